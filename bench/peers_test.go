package bench

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/afex/hystrix-go/hystrix"
	"github.com/cep21/circuit/v4"
	resiliency "github.com/eapache/go-resiliency/breaker"
	"github.com/failsafe-go/failsafe-go"
	failsafebreaker "github.com/failsafe-go/failsafe-go/circuitbreaker"
	mercari "github.com/mercari/go-circuitbreaker"
	"github.com/sony/gobreaker/v2"

	"github.com/breakerkit/breaker"
)

// A caller makes one call of a function through a breaker.
type caller func() error

// A peer makes a breaker that opens at five failures in a row and stays open,
// and returns the caller of fn through it.
type peer struct {
	name string
	make func(tb testing.TB, fn caller) caller
}

var (
	errDown = errors.New("down")
	ctx     = context.Background()
)

const forever = 24 * time.Hour

func ours(tb testing.TB, fn caller, p breaker.Policy, store breaker.Store) caller {
	b, err := breaker.New(store, breaker.Config{Policy: p, OnStoreError: breaker.FailClosed, StoreTimeout: 10 * time.Second})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = b.Close() })
	call := func(context.Context) error { return fn() }
	return func() error { return b.Execute(ctx, "stripe", call) }
}

func memory() breaker.Store { return breaker.NewMemoryStore(breaker.MemoryConfig{}) }

var peers = []peer{
	{"breaker", func(tb testing.TB, fn caller) caller {
		return ours(tb, fn, breaker.Policy{Cooldown: forever}, memory())
	}},
	{"go-resiliency", func(_ testing.TB, fn caller) caller {
		b := resiliency.New(5, 1, forever)
		return func() error { return b.Run(fn) }
	}},
	{"mercari", func(_ testing.TB, fn caller) caller {
		b := mercari.New(mercari.WithTripFunc(mercari.NewTripFuncConsecutiveFailures(5)), mercari.WithOpenTimeout(forever))
		call := func() (any, error) { return nil, fn() }
		return func() error {
			_, err := b.Do(ctx, call)
			return err
		}
	}},
	{"failsafe-permits", func(_ testing.TB, fn caller) caller {
		b := failsafebreaker.NewBuilder[any]().WithFailureThreshold(5).WithDelay(forever).Build()
		return func() error {
			if !b.TryAcquirePermit() {
				return failsafebreaker.ErrOpen
			}
			if err := fn(); err != nil {
				b.RecordFailure()
				return err
			}
			b.RecordSuccess()
			return nil
		}
	}},
	{"failsafe-executor", func(_ testing.TB, fn caller) caller {
		b := failsafebreaker.NewBuilder[any]().WithFailureThreshold(5).WithDelay(forever).Build()
		run := failsafe.With[any](b)
		return func() error { return run.Run(fn) }
	}},
	{"gobreaker", func(_ testing.TB, fn caller) caller {
		b := gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{Timeout: forever})
		call := func() (struct{}, error) { return struct{}{}, fn() }
		return func() error {
			_, err := b.Execute(call)
			return err
		}
	}},
	{"cep21", func(_ testing.TB, fn caller) caller {
		b := circuit.NewCircuitFromConfig("stripe", circuit.Config{Execution: circuit.ExecutionConfig{MaxConcurrentRequests: -1}})
		call := func(context.Context) error {
			err := fn()
			if err != nil {
				b.OpenCircuit(ctx) // it has no rule of its own unless it is given one
			}
			return err
		}
		return func() error { return b.Run(ctx, call) }
	}},
	{"hystrix-go", func(_ testing.TB, fn caller) caller {
		hystrix.ConfigureCommand("stripe", hystrix.CommandConfig{Timeout: int(forever.Milliseconds()), MaxConcurrentRequests: 1000,
			RequestVolumeThreshold: 5, SleepWindow: int(forever.Milliseconds())})
		hystrix.Flush()
		return func() error { return hystrix.Do("stripe", func() error { return fn() }, nil) }
	}},
}

// windows are breakers that look back on a minute of calls.
var windows = []peer{
	{"breaker", func(tb testing.TB, fn caller) caller {
		return ours(tb, fn, breaker.Policy{FailureRate: 0.5, Cooldown: forever}, memory())
	}},
	{"gobreaker", func(_ testing.TB, fn caller) caller {
		b := gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{Timeout: forever, Interval: time.Minute, BucketPeriod: 3 * time.Second,
			ReadyToTrip: func(c gobreaker.Counts) bool { return c.Requests >= 20 && 2*c.TotalFailures >= c.Requests }})
		call := func() (struct{}, error) { return struct{}{}, fn() }
		return func() error {
			_, err := b.Execute(call)
			return err
		}
	}},
	{"failsafe-permits", func(_ testing.TB, fn caller) caller {
		b := failsafebreaker.NewBuilder[any]().WithFailureRateThreshold(0.5, 20, time.Minute).WithDelay(forever).Build()
		return func() error {
			if !b.TryAcquirePermit() {
				return failsafebreaker.ErrOpen
			}
			if err := fn(); err != nil {
				b.RecordFailure()
				return err
			}
			b.RecordSuccess()
			return nil
		}
	}},
}

func succeed() error { return nil }

func each(b *testing.B, all []peer, fn caller, bench func(b *testing.B, call caller)) {
	for _, p := range all {
		b.Run(p.name, func(b *testing.B) {
			call := p.make(b, fn)
			b.ReportAllocs()
			bench(b, call)
		})
	}
}

// BenchmarkClosed is a call that succeeds at once, on a closed circuit.
func BenchmarkClosed(b *testing.B) { each(b, peers, succeed, runs) }

// BenchmarkWindow is the same with a rate over a rolling window.
func BenchmarkWindow(b *testing.B) { each(b, windows, succeed, runs) }

func runs(b *testing.B, call caller) {
	for b.Loop() {
		if err := call(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkParallel is BenchmarkClosed from every processor at once.
func BenchmarkParallel(b *testing.B) { each(b, peers, succeed, runsOnAll) }

func runsOnAll(b *testing.B, call caller) {
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := call(); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkCores is what further processors add: to calls of one circuit, and
// to work of about that length that shares nothing, which is all that the
// machine can give.
func BenchmarkCores(b *testing.B) {
	runsOnOne := func(b *testing.B, call caller) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		runsOnAll(b, call)
	}
	for _, p := range []peer{peers[0], {"nothing-shared", func(testing.TB, caller) caller { return alone }}} {
		each(b, []peer{{p.name + "-one", p.make}}, succeed, runsOnOne)
		each(b, []peer{{p.name + "-all", p.make}}, succeed, runsOnAll)
	}
}

// alone computes something.
func alone() error {
	x := uint64(1)
	for range 40 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	if x == 0 { // which it never is
		return errDown
	}
	return nil
}

// BenchmarkOpen is a call that an open circuit rejects.
func BenchmarkOpen(b *testing.B) {
	each(b, peers, func() error { return errDown }, isRejected)
}

// isRejected opens the circuit by failures, and calls it then.
func isRejected(b *testing.B, call caller) {
	for range 100 {
		_ = call()
	}
	if call() == errDown {
		b.Skip("is not open after 100 failures in a row")
	}
	for b.Loop() {
		if call() == errDown {
			b.Fatal("a call ran")
		}
	}
}
