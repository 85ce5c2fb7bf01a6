// Quickstart shows a circuit breaker at work, in one program and with nothing
// to install:
//
//	go run ./examples/quickstart
//
// It starts a payment provider, a real HTTP server on this machine, and calls
// it ten times a second. The provider goes down for a while and comes back.
// The breaker notices, spares it the calls that would fail anyway, and lets
// one through now and then to see whether it has recovered.
package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

const pace = 100 * time.Millisecond

var story = []struct {
	line  string
	down  bool
	calls int
}{
	{"the provider is up; it is called ten times a second", false, 10},
	{"THE PROVIDER GOES DOWN", true, 35},
	{"THE PROVIDER IS UP AGAIN; the breaker can't know yet", false, 30},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run() error {
	// The payment provider. It takes a moment to answer, as they do.
	var down atomic.Bool
	var received atomic.Int64
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		received.Add(1)
		time.Sleep(20 * time.Millisecond)
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer provider.Close()

	// pay is any call that may fail. CheckResponse makes an error of a bad
	// status, so that the breaker hears of it.
	client := &http.Client{Timeout: 5 * time.Second}
	pay := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, provider.URL+"/charges", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return breaker.CheckResponse(resp)
	}

	// The breaker. It is for any number of keys; here there is only one.
	timeline := newTimeline() // prints what the Breaker tells it
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{
		Policy:   breaker.Policy{ConsecutiveFailures: 5, Cooldown: 2 * time.Second},
		Observer: timeline,
	})
	if err != nil {
		return err
	}

	for _, chapter := range story {
		timeline.say(chapter.line)
		down.Store(chapter.down)
		for range chapter.calls {
			time.Sleep(pace)
			// The error is pay's own, or says that pay was not called; then
			// errors.Is(err, breaker.ErrOpen), and breaker.RetryAfter(err)
			// says how long to wait. Here the timeline shows what happened.
			_ = b.Execute(context.Background(), "payments", pay)
		}
	}
	if err := b.Close(); err != nil { // brings the last notices
		return err
	}
	return timeline.finish(int(received.Load()))
}
