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
)

// What users of circuit breakers have reported, each a test: half-open, probes
// and late results first, then what counts as a failure.

func TestProbeWithAnIgnoredOutcomeLeavesTheSlotFree(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		halfOpen(t, b, "k")
		executeN(t, b, "k", 50, errNeutral)
		require.Equal(t, breaker.StateHalfOpen, stateOf(t, b, "k"))
		executeN(t, b, "k", 1, nil)
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
	})
}

// A limiter behind the Breaker refuses before the dependency is reached.
func TestProbeRefusedByALaterGateGivesItsSlotBack(t *testing.T) {
	errLimit := errors.New("rate limited")
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		halfOpen(t, b, "k")
		allowed, err := b.Allow(bg, "k")
		require.NoError(t, err)
		allowed.Done(breaker.Ignore(errLimit))
		executeN(t, b, "k", 1, fmt.Errorf("gate: %w", breaker.Ignore(errLimit)))
		require.NoError(t, execute(b, "k", nil), "the next call may probe")
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
	})
}

func TestProbeThatHangsLosesItsLease(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{ProbeLease: 30 * time.Second}))
		halfOpen(t, b, "k")
		hung := beginCall(b, "k")
		rejections := 0
		for range 30 {
			time.Sleep(time.Second - 1)
			if errors.Is(execute(b, "k", nil), breaker.ErrBusy) {
				rejections++
			}
		}
		require.Equal(t, 30, rejections)
		time.Sleep(time.Second)
		second := beginCall(b, "k")
		requireRejected(t, execute(b, "k", nil), breaker.ErrBusy)
		require.NoError(t, second.finish(nil))
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
		require.Equal(t, errDown, hung.finish(errDown))
		assert.Zero(t, snapshotOf(t, b, "k").ConsecutiveFailures)
	})
}

func TestProbeThatPanicsOrEndsItsGoroutineReopens(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, join join) {
				b := join(breaker.Config{})
				halfOpen(t, b, "k")
				inGoroutine(func() {
					defer func() {
						if v := recover(); v != nil {
							assert.Equal(t, "boom", v, "the panic reaches the caller")
						}
					}()
					_ = b.Execute(bg, "k", func(context.Context) error { end(); return nil })
					t.Error("the call returned")
				})
				r := requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
				assert.Contains(t, r.LastError, "panicked or ended its goroutine")
				time.Sleep(time.Minute)
				require.NoError(t, execute(b, "k", nil))
			})
		})
	}
}

func TestMinimumVolumeDoesNotDelayTheVerdictOfAProbe(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{FailureRate: 0.5, MinCalls: 10}))
		executeN(t, b, "k", 10, errDown)
		time.Sleep(time.Minute)
		executeN(t, b, "k", 1, errDown)
		assert.Equal(t, breaker.StateOpen, stateOf(t, b, "k"))
	})
}

func TestCallThatMakesItHalfOpenIsTheFirstProbe(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{ProbeSuccesses: 3}))
		halfOpen(t, b, "k")
		for range 3 {
			require.NotEqual(t, breaker.StateClosed, stateOf(t, b, "k"))
			executeN(t, b, "k", 1, nil)
		}
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
	})
}

func TestOneHitWhileASlowProbeRuns(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		halfOpen(t, b, "k")
		var hits, fast atomic.Int32
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				began := time.Now()
				err := b.Execute(bg, "k", func(context.Context) error {
					hits.Add(1)
					time.Sleep(30 * time.Second)
					return nil
				})
				if errors.Is(err, breaker.ErrBusy) && time.Since(began) == 0 {
					fast.Add(1)
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 1, hits.Load())
		assert.EqualValues(t, 99, fast.Load())
	})
}

func TestProbeSuccessesOfAnEarlierRoundDoNotCount(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{ProbeSuccesses: 3}))
		halfOpen(t, b, "k")
		executeN(t, b, "k", 2, nil)
		executeN(t, b, "k", 1, errDown)
		time.Sleep(time.Minute)
		executeN(t, b, "k", 1, nil)
		assert.Equal(t, breaker.StateHalfOpen, stateOf(t, b, "k"))
		assert.Equal(t, 1, snapshotOf(t, b, "k").ProbeSuccesses)
	})
}

func TestReadingTheStateConsumesNoProbe(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{ProbeSuccesses: 2}))
		halfOpen(t, b, "k")
		executeN(t, b, "k", 1, nil)
		before := snapshotOf(t, b, "k")
		for range 1000 {
			require.Equal(t, before, snapshotOf(t, b, "k"))
		}
		executeN(t, b, "k", 1, nil)
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
	})
}

func TestFailedProbeRestartsTheCooldown(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{Cooldown: 10 * time.Second, MaxProbes: 5}))
		trip(t, b, "k", 5)
		time.Sleep(10 * time.Second)
		var probes []*heldCall
		for range 5 {
			probes = append(probes, beginCall(b, "k"))
		}
		for _, probe := range probes { // several that fail at once restart it once
			require.Equal(t, errDown, probe.finish(errDown))
		}
		time.Sleep(9 * time.Second)
		r := requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		assert.Equal(t, time.Second, r.RetryAfter)
		assert.Equal(t, 1, snapshotOf(t, b, "k").Reopens)
		time.Sleep(1100 * time.Millisecond)
		require.NoError(t, execute(b, "k", nil))
	})
}

func TestClassifierIsTheSameInHalfOpen(t *testing.T) {
	errSkip := errors.New("validation failed")
	classifier := breaker.HTTPClassifier{Next: breaker.ClassifierFunc(func(err error) breaker.Outcome {
		if errors.Is(err, errSkip) {
			return breaker.Ignored
		}
		return breaker.Undecided
	})}
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{Classifier: classifier})
		executeN(t, b, "k", 20, errSkip)
		halfOpen(t, b, "k")
		executeN(t, b, "k", 20, errSkip)
		assert.Equal(t, breaker.StateHalfOpen, stateOf(t, b, "k"))
		assert.Zero(t, snapshotOf(t, b, "k").ProbesInFlight)
	})
}

func TestUsersNavigatingAwayDoNotTripAHealthyDependency(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		for i := range 50 {
			ctx, leave := context.WithCancel(bg)
			c := beginCallWith(ctx, b, "k")
			leave()
			err := fmt.Errorf("query %d: %w", i, context.Canceled)
			if i%2 == 0 { // some drivers only say so in text
				err = errors.New("ERROR: canceling statement due to user request")
			}
			require.Equal(t, err, c.finish(err))
		}
		s := snapshotOf(t, b, "k")
		assert.Equal(t, breaker.StateClosed, s.State)
		assert.Zero(t, s.ConsecutiveFailures)
		assert.Nil(t, s.LastFailure)
	})
}

// A timeout of the provider is a failure although it is a context error; so is
// the caller's own deadline.
func TestDeadlinesOfALiveCallerTrip(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		err := fmt.Errorf("provider: %w", context.DeadlineExceeded)
		executeN(t, b, "k", 5, err)
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)

		for range 5 {
			ctx, cancel := context.WithTimeout(bg, time.Second)
			err := b.Execute(ctx, "deadline", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			cancel()
			require.Equal(t, context.DeadlineExceeded, err)
		}
		assert.Equal(t, breaker.StateOpen, stateOf(t, b, "deadline"))
	})
}

// A 4xx is a full success here: it ends a streak, so this sequence does not
// open, and it closes a half-open circuit.
func TestClientErrorsAreAnswersOfAHealthyProvider(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		for _, code := range []int{500, 500, 404, 500, 500, 404, 500} {
			executeN(t, b, "k", 1, &breaker.StatusError{Code: code})
			time.Sleep(time.Second)
		}
		assert.Equal(t, 1, snapshotOf(t, b, "k").ConsecutiveFailures)
		executeN(t, b, "k", 100, errNotFound)
		assert.Zero(t, snapshotOf(t, b, "k").ConsecutiveFailures)
		halfOpen(t, b, "k")
		executeN(t, b, "k", 1, errNotFound)
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
	})
}

// 429 is a failure unless one says otherwise.
func TestTooManyRequestsTripsUnlessSwitchedOff(t *testing.T) {
	tooMany := &breaker.StatusError{Code: 429}
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		executeN(t, b, "on", 5, tooMany)
		assert.Equal(t, breaker.StateOpen, stateOf(t, b, "on"))

		off := join(breaker.Config{Classifier: breaker.HTTPClassifier{FailureStatus: func(code int) bool { return code >= 500 }}})
		executeN(t, off, "off", 50, tooMany)
		assert.Equal(t, breaker.StateClosed, stateOf(t, off, "off"))
	})
}

// At 80 % misses and few failures the circuit stays closed, and a miss closes
// a half-open one: a timely empty answer is a success.
func TestCacheMissesAreSuccesses(t *testing.T) {
	errMiss := breaker.AsSuccess(errors.New("not found"))
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{FailureRate: 0.05, MinCalls: 20, ConsecutiveFailures: 5}))
		for i := range 200 {
			switch {
			case i%60 == 59:
				executeN(t, b, "k", 1, errDown)
			case i%5 == 0:
				executeN(t, b, "k", 1, nil)
			default:
				executeN(t, b, "k", 1, errMiss)
			}
		}
		s := snapshotOf(t, b, "k")
		assert.Equal(t, breaker.StateClosed, s.State)
		assert.Equal(t, 3, s.WindowFailures)

		time.Sleep(time.Hour)
		halfOpen(t, b, "k")
		executeN(t, b, "k", 1, errMiss)
		synctest.Wait()
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
	})
}
