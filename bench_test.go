package breaker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

var errBench = errors.New("down")

func benchSucceeds(context.Context) error { return nil }

func benchFails(context.Context) error { return errBench }

// benchBreaker returns a Breaker over store that stays open once it has opened.
func benchBreaker(b *testing.B, store breaker.Store) *breaker.Breaker {
	b.Helper()
	return benchBreakerOf(b, store, breaker.Policy{ConsecutiveFailures: 1, Cooldown: 24 * time.Hour})
}

func benchBreakerOf(b *testing.B, store breaker.Store, p breaker.Policy) *breaker.Breaker {
	b.Helper()
	br, err := breaker.New(store, breaker.Config{Policy: p, OnStoreError: breaker.FailClosed, StoreTimeout: 10 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = br.Close() })
	return br
}

// benchCalls makes calls one after the other; each must end in want.
func benchCalls(b *testing.B, br *breaker.Breaker, fn func(context.Context) error, want error) {
	b.Helper()
	b.ReportAllocs()
	ctx := context.Background()
	for b.Loop() {
		if err := br.Execute(ctx, "stripe", fn); !errors.Is(err, want) {
			b.Fatal(err)
		}
	}
}

// BenchmarkExecute is what a Breaker adds to a call that costs nothing itself.
func BenchmarkExecute(b *testing.B) {
	b.Run("memory/closed", func(b *testing.B) {
		benchCalls(b, benchBreaker(b, breaker.NewMemoryStore(breaker.MemoryConfig{})), benchSucceeds, nil)
	})
	b.Run("memory/open", func(b *testing.B) {
		br := benchBreaker(b, breaker.NewMemoryStore(breaker.MemoryConfig{}))
		_ = br.Execute(context.Background(), "stripe", benchFails)
		benchCalls(b, br, benchSucceeds, breaker.ErrOpen)
	})
	b.Run("memory/parallel", func(b *testing.B) {
		br := benchBreaker(b, breaker.NewMemoryStore(breaker.MemoryConfig{}))
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := br.Execute(context.Background(), "stripe", benchSucceeds); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})

	client := redistest.Start(b).Client(nil)
	store := func() *breaker.RedisStore { return breaker.NewRedisStore(client, breaker.RedisConfig{}) }
	ctx := context.Background()
	empty := func(b *testing.B) {
		if err := client.FlushAll(ctx).Err(); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("redis/closed", func(b *testing.B) {
		empty(b)
		benchCalls(b, benchBreaker(b, store()), benchSucceeds, nil)
	})
	b.Run("redis/open", func(b *testing.B) {
		empty(b)
		br := benchBreaker(b, store())
		_ = br.Execute(ctx, "stripe", benchFails)
		benchCalls(b, br, benchSucceeds, breaker.ErrOpen)
	})
	b.Run("redis/failure", func(b *testing.B) { // the circuit stays closed: every call is counted
		empty(b)
		benchCalls(b, benchBreakerOf(b, store(), breaker.Policy{FailureRate: 1, MinCalls: 1e6}), benchFails, errBench)
	})

	// What the same server takes for one bare command, in the same run.
	b.Run("redis/bare-hmget", func(b *testing.B) {
		empty(b)
		b.ReportAllocs()
		for b.Loop() {
			if err := client.HMGet(ctx, "h", "a", "b", "c", "d", "e", "f").Err(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("redis/bare-get", func(b *testing.B) {
		if err := client.Set(ctx, "k", "v", 0).Err(); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if err := client.Get(ctx, "k").Err(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
