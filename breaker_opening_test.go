package breaker_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// at waits until a time of the bubble's first day.
func at(t testing.TB, clock string) {
	t.Helper()
	of, err := time.Parse("15:04:05.999", clock)
	require.NoError(t, err)
	midnight := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	wait := time.Until(midnight.Add(of.Sub(of.Truncate(24 * time.Hour))))
	require.GreaterOrEqual(t, wait, time.Duration(0))
	time.Sleep(wait)
}

func TestWindowFailuresAreCountedExactly(t *testing.T) {
	for _, c := range []struct {
		fifth string
		want  breaker.State
	}{
		{"10:00:55", breaker.StateOpen},
		{"10:00:59.999", breaker.StateOpen},
		{"10:01:00", breaker.StateClosed}, // the first is one Window old, and out
	} {
		t.Run(c.fifth, func(t *testing.T) {
			eachStore(t, func(t *testing.T, join join) {
				var h hearing
				b := join(breaker.Config{Policy: breaker.Policy{WindowFailures: 5}, Observer: &h})
				for _, clock := range []string{"10:00:00", "10:00:15", "10:00:30", "10:00:45"} {
					at(t, clock)
					executeN(t, b, "k", 1, errDown)
					executeN(t, b, "k", 100, nil) // successes don't matter to it
				}
				require.Equal(t, 4, snapshotOf(t, b, "k").WindowFailures)
				at(t, c.fifth)
				executeN(t, b, "k", 1, errDown)
				require.Equal(t, c.want, stateOf(t, b, "k"))
				if c.want == breaker.StateOpen {
					assert.Equal(t, breaker.CauseWindowFailures, h.last(t).Cause)
					return
				}
				assert.Equal(t, 4, snapshotOf(t, b, "k").WindowFailures)
				at(t, "10:01:15") // here the second goes as the sixth comes
				executeN(t, b, "k", 1, errDown)
				require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
				at(t, "10:01:29.999")
				executeN(t, b, "k", 1, errDown)
				require.Equal(t, breaker.StateOpen, stateOf(t, b, "k"))
			})
		})
	}
}

func TestWindowFailuresOfSeveralProcessesOpenAtOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		policy := under(breaker.Policy{WindowFailures: 5})
		for i := range 5 {
			b := join(policy)
			require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"), "before failure %d", i+1)
			executeN(t, b, "k", 1, nil)
			executeN(t, b, "k", 1, errDown)
		}
		assert.Equal(t, breaker.StateOpen, stateOf(t, join(policy), "k"))
	})
}

func TestFailureRateOpensAtTheShare(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var h hearing
		b := join(breaker.Config{Policy: breaker.Policy{FailureRate: 0.5, MinCalls: 20, Window: time.Minute}, Observer: &h})
		executeN(t, b, "k", 11, nil)
		time.Sleep(time.Second)
		executeN(t, b, "k", 10, errDown)
		require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"), "10 of 21")
		executeN(t, b, "k", 1, errDown)
		require.Equal(t, breaker.StateOpen, stateOf(t, b, "k"), "11 of 22")
		last := h.last(t)
		assert.Equal(t, breaker.CauseFailureRate, last.Cause)
		assert.Equal(t, breaker.Counts{ConsecutiveFailures: 11, WindowCalls: 22, WindowFailures: 11}, last.Counts)
	})
}

func TestARateForgetsWhatHasLeftTheWindow(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{FailureRate: 0.5, MinCalls: 10, Window: time.Minute}))
		executeN(t, b, "k", 9, errDown)
		time.Sleep(time.Minute)
		executeN(t, b, "k", 9, nil)
		executeN(t, b, "k", 8, errDown)
		require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"), "8 of 17")
		time.Sleep(time.Minute)
		require.Zero(t, snapshotOf(t, b, "k").WindowCalls, "a read forgets as well")
		executeN(t, b, "k", 9, errDown)
		executeN(t, b, "k", 9, nil)
		executeN(t, b, "k", 1, errDown)
		assert.Equal(t, breaker.StateOpen, stateOf(t, b, "k"), "10 of 19")
	})
}

func TestSlowCallsOpen(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{SlowRate: 0.5, SlowAfter: time.Second, MinCalls: 4}))
		take := func(d time.Duration, result error) {
			t.Helper()
			require.Equal(t, result, b.Execute(bg, "k", func(context.Context) error { time.Sleep(d); return result }))
		}
		take(time.Second, nil) // as long as SlowAfter is not slow
		take(0, nil)
		take(time.Second+time.Millisecond, errDown) // a slow failure is slow
		require.Equal(t, 1, snapshotOf(t, b, "k").WindowSlow)
		require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
		take(2*time.Second, nil)
		assert.Equal(t, breaker.StateOpen, stateOf(t, b, "k"), "2 of 4, and a success that did it")
		assert.Equal(t, breaker.CauseSlowRate, historyOf(t, b, "k")[0].Transition.Cause)
	})
}

func TestAnyRuleThatIsMetOpens(t *testing.T) {
	policy := breaker.Policy{ConsecutiveFailures: 4, WindowFailures: 6, FailureRate: 0.5, MinCalls: 10}
	for _, c := range []struct {
		cause string
		calls string // F: a failure, s: a success
	}{
		{breaker.CauseConsecutiveFailures, "sFFFF"},
		{breaker.CauseWindowFailures, "FFsFFsFsF"},
		{breaker.CauseFailureRate, "FsFssFsFsF"},
	} {
		t.Run(c.cause, func(t *testing.T) {
			eachStore(t, func(t *testing.T, join join) {
				var h hearing
				b := join(breaker.Config{Policy: policy, Observer: &h})
				for _, result := range c.calls {
					require.Empty(t, h.path())
					executeN(t, b, "k", 1, map[rune]error{'F': errDown}[result])
					time.Sleep(time.Second)
				}
				assert.Equal(t, c.cause, h.last(t).Cause)
			})
		})
	}
}

func TestTheCooldownDoublesWithEachFailedRecovery(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{Cooldown: time.Minute, MaxCooldown: 5 * time.Minute}))
		trip(t, b, "k", 5)
		for reopens, minutes := range []float64{1, 2, 4, 5, 5} {
			s := snapshotOf(t, b, "k")
			require.Equal(t, reopens, s.Reopens)
			require.Equal(t, minutes, time.Until(s.RetryAt).Minutes())
			time.Sleep(time.Until(s.RetryAt))
			executeN(t, b, "k", 1, errDown)
		}
		time.Sleep(5 * time.Minute)
		executeN(t, b, "k", 1, nil)
		trip(t, b, "k", 5)
		assert.Equal(t, time.Minute, time.Until(snapshotOf(t, b, "k").RetryAt), "once closed it begins anew")
	})
}

func TestRetryAfterIsTheTimeReallyLeft(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{Cooldown: 30 * time.Second, ProbeLease: 10 * time.Second, MaxProbes: 2}))
		left := func() time.Duration {
			t.Helper()
			d, ok := breaker.RetryAfter(fmt.Errorf("job 7: %w", execute(b, "k", nil)))
			require.True(t, ok)
			return d
		}
		trip(t, b, "k", 5)
		assert.Equal(t, 30*time.Second, left())
		time.Sleep(12 * time.Second)
		assert.Equal(t, 18*time.Second, left())
		time.Sleep(18*time.Second - time.Millisecond)
		assert.Equal(t, time.Millisecond, left())
		time.Sleep(time.Millisecond)

		probe := beginCall(b, "k")
		time.Sleep(4 * time.Second)
		other := beginCall(b, "k")
		assert.Equal(t, 6*time.Second, left(), "of the first lease to end")
		require.NoError(t, probe.finish(nil))
		require.NoError(t, other.finish(nil))

		require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateOpen, For: time.Hour}))
		time.Sleep(time.Minute)
		assert.Equal(t, 59*time.Minute, left(), "of the override")
	})
	for _, err := range []error{nil, errDown, breaker.ErrOpen, &breaker.StoreError{Err: errDown}} {
		_, ok := breaker.RetryAfter(err)
		assert.False(t, ok, "%v is no rejection", err)
	}
}

func TestARetryAfterOfAnEarlierFailureOfTheStreakCounts(t *testing.T) {
	asks := func(d time.Duration) error { return &breaker.StatusError{Code: 429, RetryAfter: d} }
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{ConsecutiveFailures: 3}))
		executeN(t, b, "k", 1, asks(4*time.Minute))
		time.Sleep(time.Second)
		executeN(t, b, "k", 1, asks(time.Second))
		trip(t, b, "k", 1)
		assert.Equal(t, 4*time.Minute-time.Second, time.Until(snapshotOf(t, b, "k").RetryAt))

		// One that a success followed does not.
		require.NoError(t, b.Reset(bg, "k"))
		executeN(t, b, "k", 1, asks(4*time.Minute))
		executeN(t, b, "k", 1, nil)
		time.Sleep(time.Second)
		trip(t, b, "k", 3)
		assert.Equal(t, time.Minute, time.Until(snapshotOf(t, b, "k").RetryAt))
	})
}

// The longest durations there are neither overflow nor turn negative.
func TestTheLongestDurationsAreJustLong(t *testing.T) {
	policies := func(longest time.Duration) map[string]breaker.Policy {
		return map[string]breaker.Policy{
			"Cooldown":       {ConsecutiveFailures: 1, Cooldown: longest},
			"MaxCooldown":    {ConsecutiveFailures: 1, Cooldown: longest / 2, MaxCooldown: longest},
			"CooldownJitter": {ConsecutiveFailures: 1, Cooldown: longest, CooldownJitter: 0.001},
			"MaxRetryAfter":  {ConsecutiveFailures: 1, MaxRetryAfter: longest},
			"Window":         {WindowFailures: 1, Window: longest, Cooldown: longest},
		}
	}
	test := func(longest time.Duration, bubble func(*testing.T, func(*testing.T, join))) func(t *testing.T) {
		return func(t *testing.T) {
			for name, p := range policies(longest) {
				t.Run(name, func(t *testing.T) {
					bubble(t, func(t *testing.T, join join) {
						b := join(under(p))
						executeN(t, b, "k", 1, &breaker.StatusError{Code: 503, RetryAfter: longest})
						for range 2 {
							left, ok := breaker.RetryAfter(execute(b, "k", nil))
							require.True(t, ok, "it is open")
							require.Greater(t, left, 100*365*24*time.Hour)
							time.Sleep(365 * 24 * time.Hour)
						}
					})
				})
			}
		}
	}
	t.Run("memory", test(math.MaxInt64, memoryBubble))
	t.Run("redis", test(280*365*24*time.Hour, redisBubble)) // miniredis has its expiries in nanoseconds
}

func TestTheSmallestSharesAreUnderstood(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{FailureRate: 1e-7, MinCalls: 1, CooldownJitter: 1e-9}))
		executeN(t, b, "k", 1, errDown)
		left, ok := breaker.RetryAfter(execute(b, "k", nil))
		require.True(t, ok, "it is open")
		assert.InDelta(t, time.Minute, left, float64(time.Millisecond))
	})
}

// Durations count in whole milliseconds, rounded up, so that none is nothing.
func TestTheShortestDurationsAreAMillisecond(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{ConsecutiveFailures: 1, Cooldown: 1, ProbeLease: 1}))
		executeN(t, b, "k", 1, errDown)
		r := requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		assert.Equal(t, time.Millisecond, r.RetryAfter)
		time.Sleep(time.Millisecond)
		probe := beginCall(b, "k")
		requireRejected(t, execute(b, "k", nil), breaker.ErrBusy)
		time.Sleep(time.Millisecond)
		assert.NoError(t, execute(b, "k", nil))
		assert.NoError(t, probe.finish(nil))
	})
}
