package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
)

// The rules of a circuit, one test each. The details are in the other tests.

// A call is a Success, a Failure or Ignored. A 4xx is a Success: the provider
// was reached, so it ends a streak and closes a half-open circuit.
func TestRule01OutcomesAreSuccessFailureAndIgnored(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{ConsecutiveFailures: 3}))
		for _, err := range []error{errDown, errDown, errNotFound, errDown, errNeutral, errDown} {
			require.Equal(t, err, execute(b, "k", err))
			time.Sleep(time.Second)
		}
		assert.Equal(t, 2, snapshotOf(t, b, "k").ConsecutiveFailures, "the 404 ended the streak, the ignored call did not")
		trip(t, b, "k", 1)

		time.Sleep(time.Minute)
		assert.Equal(t, errNotFound, execute(b, "k", errNotFound))
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
	})
}

// A call cancelled by its own caller is Ignored, whatever its error says. A
// deadline, the caller's or ours, is a Failure.
func TestRule02CancelledByTheCallerIsIgnoredAndADeadlineIsAFailure(t *testing.T) {
	returnCtxErr := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for _, c := range []struct {
		name   string
		policy breaker.Policy
		begin  func(context.Context) (context.Context, context.CancelFunc)
		fn     func(context.Context) error
		want   breaker.Outcome
	}{
		{"cancelled", breaker.Policy{}, cancelledSoon, returnCtxErr, breaker.Ignored},
		{"cancelled, in the driver's own words", breaker.Policy{}, cancelledSoon, func(ctx context.Context) error {
			<-ctx.Done()
			return errors.New("operation was aborted: context canceled")
		}, breaker.Ignored},
		{"cancelled, and a 500 came of it", breaker.Policy{}, cancelledSoon, func(ctx context.Context) error {
			<-ctx.Done()
			return &breaker.StatusError{Code: 500}
		}, breaker.Ignored},
		{"cancelled, and a value came all the same", breaker.Policy{}, cancelledSoon, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}, breaker.Success},
		{"cancelled by the code under fn", breaker.Policy{}, notEnded, func(context.Context) error {
			return context.Canceled
		}, breaker.Failure},
		{"the caller's deadline", breaker.Policy{}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		}, returnCtxErr, breaker.Failure},
		{"CallTimeout", breaker.Policy{CallTimeout: time.Second}, notEnded, returnCtxErr, breaker.Failure},
		{"cancelled before CallTimeout", breaker.Policy{CallTimeout: time.Hour}, cancelledSoon, returnCtxErr, breaker.Ignored},
		{"done before it began", breaker.Policy{}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithDeadline(ctx, time.Now())
		}, returnCtxErr, breaker.Ignored},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, join join) {
				var h hearing
				b := join(breaker.Config{Policy: c.policy, Observer: &h})
				ctx, cancel := c.begin(bg)
				defer cancel()
				ran := false
				_ = b.Execute(ctx, "k", func(ctx context.Context) error { ran = true; return c.fn(ctx) })
				assert.True(t, ran)
				assert.Equal(t, []breaker.Outcome{c.want}, h.outcomes)
				failures := 0
				if c.want == breaker.Failure {
					failures = 1
				}
				assert.Equal(t, failures, snapshotOf(t, b, "k").ConsecutiveFailures)
			})
		})
	}
}

func notEnded(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} }

func cancelledSoon(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	time.AfterFunc(time.Second, cancel)
	return ctx, cancel
}

// An Ignored probe frees its slot and decides nothing.
func TestRule03AnIgnoredProbeFreesItsSlotWithoutAVerdict(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		halfOpen(t, b, "k")
		probe := beginCall(b, "k")
		requireRejected(t, execute(b, "k", nil), breaker.ErrBusy)
		require.Equal(t, errNeutral, probe.finish(errNeutral))

		assert.Equal(t, breaker.StateHalfOpen, stateOf(t, b, "k"))
		assert.Zero(t, snapshotOf(t, b, "k").ProbesInFlight)
		require.NoError(t, execute(b, "k", nil))
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
	})
}

// Every permit is settled: by return, panic or Goexit; and once.
func TestRule04EveryPermitIsSettledOnce(t *testing.T) {
	ends := map[string]func(t *testing.T, b *breaker.Breaker){
		"return": func(t *testing.T, b *breaker.Breaker) { executeN(t, b, "k", 1, errDown) },
		"panic": func(t *testing.T, b *breaker.Breaker) {
			assert.PanicsWithValue(t, "boom", func() {
				_ = b.Execute(bg, "k", func(context.Context) error { panic("boom") })
			})
		},
		"Goexit": func(t *testing.T, b *breaker.Breaker) {
			inGoroutine(func() {
				_ = b.Execute(bg, "k", func(context.Context) error { runtime.Goexit(); return nil })
			})
		},
		"Done, many times": func(t *testing.T, b *breaker.Breaker) {
			allowed, err := b.Allow(bg, "k")
			require.NoError(t, err)
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() { allowed.Done(errDown) })
			}
			wg.Wait()
			allowed.Done(nil)
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, join join) {
				b := join(breaker.Config{})
				end(t, b)
				assert.Equal(t, 1, snapshotOf(t, b, "k").ConsecutiveFailures)
				require.NoError(t, b.Reset(bg, "k"))

				halfOpen(t, b, "k")
				end(t, b)
				s := snapshotOf(t, b, "k")
				assert.Equal(t, breaker.StateOpen, s.State, "a failed probe opens it again")
				assert.Equal(t, 1, s.Reopens)
				time.Sleep(time.Minute)
				require.NoError(t, execute(b, "k", nil), "the slot is free and the cooldown works")
			})
		})
	}
}

// fn runs at most once, and a store that fails after it ran changes nothing of
// what the caller gets.
func TestRule05FnRunsAtMostOnceAndItsResultStands(t *testing.T) {
	breaks := map[string]func(*breakertest.FlakyStore){
		"fails": func(s *breakertest.FlakyStore) { s.Fail(nil) },
		"hangs": (*breakertest.FlakyStore).Hang,
	}
	for policy, cfg := range everyOutagePolicy() {
		for how, breaks := range breaks {
			for _, want := range []error{nil, errDown} {
				t.Run(fmt.Sprintf("%s/store %s/fn returns %v", policy, how, want), func(t *testing.T) {
					flaky(t, cfg, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
						runs := 0
						assert.Equal(t, want, b.Execute(bg, "k", func(context.Context) error {
							runs++
							breaks(store) // so that the report fails
							return want
						}))
						assert.Equal(t, 1, runs)

						// And now the store can't be asked either.
						runs = 0
						got := b.Execute(bg, "k", func(context.Context) error { runs++; return want })
						if policy == "FailClosed" {
							assert.ErrorIs(t, got, breaker.ErrStore)
							assert.Zero(t, runs)
							return
						}
						assert.Equal(t, want, got)
						assert.Equal(t, 1, runs)
					})
				})
			}
		}
	}
}

// Every transition, reset and override begins a generation. A result of an
// earlier one changes nothing.
func TestRule06ALateResultOfAnEarlierGenerationChangesNothing(t *testing.T) {
	begins := map[string]func(t *testing.T, b *breaker.Breaker){
		"open":      func(t *testing.T, b *breaker.Breaker) { trip(t, b, "k", 5) },
		"half-open": func(t *testing.T, b *breaker.Breaker) { halfOpen(t, b, "k"); beginCall(b, "k").finish(errNeutral) },
		"closed":    func(t *testing.T, b *breaker.Breaker) { halfOpen(t, b, "k"); executeN(t, b, "k", 1, nil) },
		"reset":     func(t *testing.T, b *breaker.Breaker) { require.NoError(t, b.Reset(bg, "k")) },
		"forced open": func(t *testing.T, b *breaker.Breaker) {
			require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateOpen}))
		},
		"forced closed, and back": func(t *testing.T, b *breaker.Breaker) {
			require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateClosed}))
			require.NoError(t, b.ClearOverride(bg, "k"))
		},
	}
	for name, begin := range begins {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, join join) {
				var h hearing
				b := join(breaker.Config{Observer: &h})
				late := []*heldCall{beginCall(b, "k"), beginCall(b, "k"), beginCall(b, "k")}
				generation := snapshotOf(t, b, "k").Generation
				begin(t, b)
				before, path := snapshotOf(t, b, "k"), h.path()
				require.Greater(t, before.Generation, generation)

				for i, err := range []error{nil, errDown, errNeutral} {
					assert.Equal(t, err, late[i].finish(err), "what the caller gets")
				}
				assert.Equal(t, before, snapshotOf(t, b, "k"))
				assert.Equal(t, path, h.path())
			})
		})
	}
}

// Open ends one Cooldown after the failure that met the rule; the next call is
// the first probe. A failed probe restarts the cooldown, once.
func TestRule07OpenEndsWhenTheCooldownHasPassed(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{MaxProbes: 2}))
		trip(t, b, "k", 5)
		time.Sleep(time.Minute - time.Millisecond)
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		time.Sleep(time.Millisecond)

		probe, other := beginCall(b, "k"), beginCall(b, "k")
		time.Sleep(time.Second)
		require.Equal(t, errDown, probe.finish(errDown))
		reopened := snapshotOf(t, b, "k")
		require.Equal(t, breaker.StateOpen, reopened.State)
		time.Sleep(time.Second)
		require.Equal(t, errDown, other.finish(errDown))
		assert.Equal(t, reopened, snapshotOf(t, b, "k"), "the second failure restarts nothing")

		time.Sleep(time.Minute - time.Second - time.Millisecond)
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		time.Sleep(time.Millisecond)
		require.NoError(t, execute(b, "k", nil))
	})
}

// At most MaxProbes probes run at once in the whole fleet. A prober that dies
// costs one ProbeLease.
func TestRule08NoMoreThanMaxProbesRunInTheWholeFleet(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		policy := breaker.Policy{MaxProbes: 3, ProbeLease: 10 * time.Second}
		processes := []*breaker.Breaker{join(under(policy)), join(under(policy)), join(under(policy))}
		halfOpen(t, processes[0], "k")

		var ran, busy atomic.Int32
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				err := processes[i%3].Execute(bg, "k", func(context.Context) error {
					ran.Add(1)
					time.Sleep(time.Hour) // its process might as well be dead
					return errDown
				})
				if errors.Is(err, breaker.ErrBusy) {
					busy.Add(1)
					left, _ := breaker.RetryAfter(err)
					assert.Equal(t, 10*time.Second, left, "until a lease ends")
				}
			})
		}
		synctest.Wait()
		assert.EqualValues(t, 3, ran.Load())
		assert.EqualValues(t, 97, busy.Load())

		time.Sleep(10*time.Second - time.Millisecond)
		requireRejected(t, execute(processes[1], "k", nil), breaker.ErrBusy)
		time.Sleep(time.Millisecond)
		require.NoError(t, execute(processes[1], "k", nil))
		assert.Equal(t, breaker.StateClosed, stateOf(t, processes[2], "k"))
		wg.Wait()
		assert.Equal(t, breaker.StateClosed, stateOf(t, processes[2], "k"), "the dead probers' results change nothing")
	})
}

// Nor is one lost where nothing is measured, and a healthy circuit has a way of
// its own through Execute.
func TestRule04APanicInAHealthyCircuitThatNobodyObservesIsAFailure(t *testing.T) {
	for name, end := range map[string]func(){
		"panic":  func() { panic("boom") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			memoryBubble(t, func(t *testing.T, join join) {
				b := join(under(breaker.Policy{ConsecutiveFailures: 2}))
				executeN(t, b, "k", 1, nil) // it is known, and healthy
				for range 2 {
					inGoroutine(func() {
						defer func() { _ = recover() }()
						_ = b.Execute(bg, "k", func(context.Context) error { end(); return nil })
					})
				}
				requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
			})
		})
	}
}
