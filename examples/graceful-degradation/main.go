// Graceful-degradation shows a shop that keeps serving pages while a provider
// of exchange rates is down: with the last rate it knows.
//
//	go run ./examples/graceful-degradation
//
// shop.go is what a program of yours would look like.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

const pace = 50 * time.Millisecond

// A tally counts what customers got to see.
type tally struct{ fresh, kept, failed int }

func (t *tally) serve(s *shop) {
	r, err := s.rate(context.Background())
	switch {
	case err != nil:
		t.failed++
	case r.Kept:
		t.kept++
	default:
		t.fresh++
	}
}

func (t tally) pages() int { return t.fresh + t.kept + t.failed }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "graceful-degradation:", err)
		os.Exit(1)
	}
}

func run() error {
	// The provider of rates, a real HTTP server on this machine.
	var down atomic.Bool
	var received atomic.Int64
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		received.Add(1)
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, `{"eur_usd":1.09}`)
	}))
	defer provider.Close()

	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{
		Policy: breaker.Policy{ConsecutiveFailures: 3, Cooldown: 500 * time.Millisecond},
	})
	if err != nil {
		return err
	}
	defer b.Close()
	s := &shop{breaker: b, client: &http.Client{Timeout: 5 * time.Second}, url: provider.URL}

	// With nothing to fall back on, the customer gets an error, and both the
	// provider's and the fallback's are in it.
	down.Store(true)
	_, err = s.rate(context.Background())
	var status *breaker.StatusError
	if !errors.As(err, &status) || !errors.Is(err, errNothingKept) {
		return fmt.Errorf("before any rate is known, the error is %v", err)
	}
	fmt.Printf("before any rate is known: %v,\n%26safter %v\n", errNothingKept, "", status)

	asked := func() int { return int(received.Swap(0)) }
	asked()
	down.Store(false)
	var well, sick, again tally
	for range 20 {
		well.serve(s)
		time.Sleep(pace)
	}
	report("THE PROVIDER IS UP", well, asked())

	down.Store(true)
	for range 40 {
		sick.serve(s)
		time.Sleep(pace)
	}
	spent := asked()
	report("THE PROVIDER IS DOWN", sick, spent)

	down.Store(false)
	for range 200 { // until the breaker has found out, and some more
		again.serve(s)
		if again.fresh == 10 {
			break
		}
		time.Sleep(pace)
	}
	report("THE PROVIDER IS UP AGAIN", again, asked())

	switch {
	case well.fresh != well.pages():
		return fmt.Errorf("with the provider up, only %d of %d pages were fresh", well.fresh, well.pages())
	case sick.kept != sick.pages():
		return fmt.Errorf("with the provider down, only %d of %d pages had the last rate", sick.kept, sick.pages())
	case spent >= sick.pages()/2:
		return fmt.Errorf("the provider was asked %d times while it was down", spent)
	case again.failed > 0 || again.fresh != 10:
		return fmt.Errorf("after the outage %d pages were fresh and %d failed", again.fresh, again.failed)
	}
	fmt.Println("\nno page was without a rate")
	return nil
}

func report(what string, t tally, asked int) {
	fmt.Printf("%-25s %2d pages: %2d with a fresh rate, %2d with the last known\n"+
		"%25s %2d requests reached the provider\n", what, t.pages(), t.fresh, t.kept, "", asked)
}
