package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/breakerkit/breaker"
)

// What was counted counts on, an open circuit keeps its deadline, and what is
// impossible changes nothing.
func ExampleBreaker_SetPolicies() {
	ctx := context.Background()
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	fail := func(context.Context) error { return errors.New("down") }

	_ = b.Execute(ctx, "stripe", fail)
	err = b.SetPolicies(breaker.Policy{ConsecutiveFailures: 2, Cooldown: 30 * time.Second}, nil, nil)
	fmt.Println(err)
	_ = b.Execute(ctx, "stripe", fail) // the second in a row

	err = b.SetPolicies(breaker.Policy{FailureRate: 50}, nil, nil)
	fmt.Println(err)
	snap, err := b.Snapshot(ctx, "stripe")
	fmt.Println(snap.State, snap.RetryAt.Sub(snap.OpenedAt), err)
	// Output:
	// <nil>
	// breaker: invalid configuration: Policy.FailureRate is 50: must be within 0 and 1
	// open 30s <nil>
}
