// Http-client shows HTTP clients that are protected by their transport: one of
// net/http and one of resty, which share the circuit of the host they call.
//
//	go run .
//
// clients.go is what a program of yours would look like.
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

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "http-client:", err)
		os.Exit(1)
	}
}

// What the provider does with a request.
const (
	well int32 = iota
	down       // it answers 503
	torn       // it answers 200, and breaks off in the body
)

// A provider of exchange rates, a real HTTP server on this machine.
type provider struct {
	*httptest.Server
	mood     atomic.Int32
	received atomic.Int32
}

func newProvider() *provider {
	p := new(provider)
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p.received.Add(1)
		w.Header().Set("Content-Type", "application/json")
		switch p.mood.Load() {
		case down:
			w.WriteHeader(http.StatusServiceUnavailable)
		case torn:
			fmt.Fprint(w, `{"rate":1`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		default:
			fmt.Fprint(w, `{"rate":1.09}`)
		}
	}))
	return p
}

// A tally counts how calls went.
type tally struct{ ok, failed, spared int }

func (t *tally) add(err error) {
	switch {
	case err == nil:
		t.ok++
	case errors.Is(err, breaker.ErrOpen), errors.Is(err, breaker.ErrBusy):
		t.spared++
	default:
		t.failed++
	}
}

func run(ctx context.Context) error {
	p := newProvider()
	defer p.Close()
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{
		Policy: breaker.Policy{ConsecutiveFailures: 5, Cooldown: 2 * time.Second},
	})
	if err != nil {
		return err
	}
	defer b.Close()
	plain, rest := newClients(b)
	defer plain.CloseIdleConnections()

	// act has both clients call in turn until enough is true, at most 1000 times each.
	act := func(title string, mood int32, enough func(viaPlain, viaResty tally) bool) (received int, last error) {
		p.mood.Store(mood)
		p.received.Store(0)
		var viaPlain, viaResty tally
		for range 1000 {
			_, last = getPlain(ctx, plain, p.URL)
			viaPlain.add(last)
			_, last = getResty(ctx, rest, p.URL)
			viaResty.add(last)
			if enough(viaPlain, viaResty) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		received = int(p.received.Load())
		fmt.Println(title)
		fmt.Printf("   net/http  %3d ok, %d failed, %2d spared\n", viaPlain.ok, viaPlain.failed, viaPlain.spared)
		fmt.Printf("   resty     %3d ok, %d failed, %2d spared\n", viaResty.ok, viaResty.failed, viaResty.spared)
		fmt.Printf("   the provider received %d requests\n", received)
		return received, last
	}
	bothOK := func(a, b tally) bool { return a.ok >= 10 && b.ok >= 10 }
	bothSpared := func(a, b tally) bool { return a.spared >= 10 && b.spared >= 10 }

	if n, err := act("THE PROVIDER IS UP", well, bothOK); n != 20 {
		return fmt.Errorf("the provider received %d requests, want 20; the last error is %v", n, err)
	}
	// One request of net/http and four tries of resty open the circuit, and
	// the ten rejections of resty make no try more.
	if n, err := act("THE PROVIDER IS DOWN: it answers 503", down, bothSpared); n != 5 {
		return fmt.Errorf("the provider received %d requests, want 5; the last error is %v", n, err)
	}
	w := httptest.NewRecorder()
	front(plain, p.URL).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	wait := w.Header().Get("Retry-After")
	fmt.Printf("   our own server answers %d, Retry-After: %s\n", w.Code, wait)
	if w.Code != http.StatusServiceUnavailable || wait != "1" && wait != "2" { // what is left of 2s, rounded up
		return fmt.Errorf("our own server answers %d with %v", w.Code, w.Header())
	}
	if _, err := act("THE PROVIDER IS UP AGAIN", well, bothOK); err != nil {
		return fmt.Errorf("the clients did not resume: %w", err)
	}
	if n, err := act("ITS ANSWERS BREAK OFF: 200, and half a body", torn, bothSpared); n != 5 {
		return fmt.Errorf("the provider received %d requests, want 5; the last error is %v", n, err)
	}
	return nil
}
