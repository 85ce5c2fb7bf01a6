package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
)

func ExampleBreaker_Execute() {
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{
		Policy: breaker.Policy{ConsecutiveFailures: 3, Cooldown: 30 * time.Second},
	})
	if err != nil {
		panic(err)
	}
	defer b.Close()

	for range 4 {
		err := b.Execute(context.Background(), "stripe", func(ctx context.Context) error {
			return errors.New("connection refused") // what the call came to
		})
		if errors.Is(err, breaker.ErrOpen) {
			fmt.Println("not called")
			continue
		}
		fmt.Println(err)
	}
	// Output:
	// connection refused
	// connection refused
	// connection refused
	// not called
}

func ExampleDo() {
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
	if err != nil {
		panic(err)
	}
	defer b.Close()

	balance, err := breaker.Do(context.Background(), b, "bank", func(ctx context.Context) (int, error) {
		return 42, nil
	})
	fmt.Println(balance, err)
	// Output: 42 <nil>
}

func ExampleDoWithFallback() {
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
	if err != nil {
		panic(err)
	}
	defer b.Close()

	price, err := breaker.DoWithFallback(context.Background(), b, "prices",
		func(ctx context.Context) (string, error) {
			return "", errors.New("timeout")
		},
		func(ctx context.Context, err error) (string, error) {
			return "yesterday's price, because of: " + err.Error(), nil
		})
	fmt.Println(price, err)
	// Output: yesterday's price, because of: timeout <nil>
}

// A call that is not one function: a stream, whose end says how it went.
func ExampleBreaker_Allow() {
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
	if err != nil {
		panic(err)
	}
	defer b.Close()
	ctx := context.Background()

	call, err := b.Allow(ctx, "feed")
	if err != nil {
		fmt.Println(err) // the circuit is open
		return
	}
	for _, line := range []string{"one", "two"} { // read with call.Context()
		fmt.Println(line)
	}
	call.Done(errors.New("unexpected EOF"))

	s, err := b.Snapshot(ctx, "feed")
	if err != nil {
		panic(err)
	}
	fmt.Println(s.State, s.ConsecutiveFailures, s.LastFailure.Error)
	// Output:
	// one
	// two
	// closed 1 unexpected EOF
}

// A queue worker puts a rejected job back for as long as it must wait.
func ExampleRetryAfter() {
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{
		Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: 30 * time.Second},
	})
	if err != nil {
		panic(err)
	}
	defer b.Close()

	job := func() error {
		return b.Execute(context.Background(), "mail", func(context.Context) error {
			return errors.New("421 try later")
		})
	}
	for range 2 {
		err := job()
		if wait, ok := breaker.RetryAfter(err); ok {
			fmt.Println("again in", wait.Round(time.Second))
		} else {
			fmt.Println("failed:", err)
		}
	}
	// Output:
	// failed: 421 try later
	// again in 30s
}

// Payments is code that uses a Breaker; how it behaves when the circuit is open
// is worth a unit test.
type Payments struct{ breaker *breaker.Breaker }

func (p *Payments) Charge(ctx context.Context, charge func(context.Context) error) string {
	err := p.breaker.Execute(ctx, "stripe", charge)
	switch {
	case errors.Is(err, breaker.ErrOpen):
		return "try again later"
	case errors.Is(err, breaker.ErrStore):
		return "not protected, so not charged"
	case err != nil:
		return "failed"
	}
	return "charged"
}

// In a unit test a MemoryStore stands for the shared one, an operator's word
// opens the circuit, and a store that fails on command shows the rest. Inside a
// testing/synctest bubble cooldowns pass in no time.
func Example_unitTest() {
	store := breakertest.NewFlakyStore(breaker.NewMemoryStore(breaker.MemoryConfig{}))
	b, err := breaker.New(store, breaker.Config{
		OnStoreError: breaker.FailClosed,
		Classifier:   breakertest.AlwaysTrip,
		Logger:       slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	defer b.Close()
	ctx := context.Background()
	payments := &Payments{b}
	succeed := func(context.Context) error { return nil }

	fmt.Println("closed:", payments.Charge(ctx, succeed))

	if err := b.Force(ctx, "stripe", breaker.Override{State: breaker.StateOpen}); err != nil {
		panic(err)
	}
	fmt.Println("open:", payments.Charge(ctx, succeed))

	if err := b.Reset(ctx, "stripe"); err != nil {
		panic(err)
	}
	fmt.Println("closed again:", payments.Charge(ctx, func(context.Context) error { return errors.New("declined") }))

	store.Fail(nil)
	fmt.Println("without the store:", payments.Charge(ctx, succeed))
	// Output:
	// closed: charged
	// open: try again later
	// closed again: failed
	// without the store: not protected, so not charged
}
