// Sql-store shows a breaker.Store over database/sql, here with SQLite: the
// circuits of all processes on a machine, and they outlive a restart.
//
//	go run .
//
// store.go is the store, main.go two processes' worth of use.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/breakerkit/breaker"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "sql-store:", err)
		os.Exit(1)
	}
}

var errDown = errors.New("connection refused")

// A process has a handle on the database and a Breaker of its own.
type process struct {
	name    string
	store   *Store
	breaker *breaker.Breaker
}

func start(ctx context.Context, name, file string) (*process, error) {
	store, err := Open(ctx, file)
	if err != nil {
		return nil, err
	}
	b, err := breaker.New(store, breaker.Config{
		Policy:       breaker.Policy{ConsecutiveFailures: 3, Cooldown: 3 * time.Second},
		OnStoreError: breaker.FailClosed, // so that this program hears of it
		StoreTimeout: 5 * time.Second,
		Instance:     name,
	})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &process{name, store, b}, nil
}

func (p *process) stop() error { return errors.Join(p.breaker.Close(), p.store.Close()) }

// call makes a call that ends with result, and says how it went.
func (p *process) call(ctx context.Context, result error) error {
	err := p.breaker.Execute(ctx, "stripe", func(context.Context) error { return result })
	fmt.Printf("   %-8s %s\n", p.name, describe(err))
	return err
}

func describe(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, breaker.ErrOpen):
		return "not made: the circuit is open"
	default:
		return "failed: " + err.Error()
	}
}

func run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "sql-store")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "circuits.db")

	web, err := start(ctx, "web", file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, web.stop()) }()
	worker, err := start(ctx, "worker", file)
	if err != nil {
		return err
	}

	fmt.Println("THE PROVIDER IS DOWN: three failures in a row, of both together")
	for _, p := range []*process{web, worker, web} {
		if err := p.call(ctx, errDown); err != errDown {
			return fmt.Errorf("%s: got %v; want the call's own error", p.name, err)
		}
	}
	fmt.Println("THE CIRCUIT IS OPEN FOR BOTH, AND AFTER A RESTART")
	if err := worker.call(ctx, nil); !errors.Is(err, breaker.ErrOpen) {
		return fmt.Errorf("worker: got %v; want a rejection", err)
	}
	if err := worker.stop(); err != nil {
		return err
	}
	again, err := start(ctx, "restart", file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, again.stop()) }()
	rejected := again.call(ctx, nil)
	wait, ok := breaker.RetryAfter(rejected)
	if !ok {
		return fmt.Errorf("restart: got %v; want a rejection", rejected)
	}

	time.Sleep(wait)
	fmt.Println("THE COOLDOWN IS OVER, AND THE PROVIDER IS UP")
	for _, p := range []*process{again, web} {
		if err := p.call(ctx, nil); err != nil {
			return err
		}
	}
	events, err := web.breaker.History(ctx, "stripe")
	if err != nil {
		return err
	}
	fmt.Println("ITS HISTORY")
	var kinds [3]int // failures, transitions, probes
	for _, e := range slices.Backward(events) {
		switch e.Kind {
		case breaker.EventFailure:
			kinds[0]++
			fmt.Printf("   %-8s failure: %s\n", e.Instance, e.Error)
		case breaker.EventTransition:
			kinds[1]++
			fmt.Printf("   %-8s %v -> %v: %s\n", e.Instance, e.Transition.From, e.Transition.To, e.Transition.Cause)
		case breaker.EventProbe:
			kinds[2]++
			fmt.Printf("   %-8s probe: %v\n", e.Instance, e.Outcome)
		}
	}
	if kinds != [3]int{3, 3, 1} {
		return fmt.Errorf("the history has %d failures, %d transitions and %d probes; want 3, 3 and 1", kinds[0], kinds[1], kinds[2])
	}
	return nil
}
