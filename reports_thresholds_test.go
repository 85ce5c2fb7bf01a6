package breaker_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
)

// What users have reported of windows and thresholds.

// A window that is emptied in the middle of an incident reads 9 % as 90 %.
func TestWindowSlidesInsteadOfStartingOver(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{FailureRate: 0.5, MinCalls: 20, Window: 10 * time.Second}))
		time.Sleep(time.Second)
		for i := range 1000 { // a hundred a second, the last ninety fail
			var err error
			if i >= 910 {
				err = errDown
			}
			executeN(t, b, "k", 1, err)
			time.Sleep(10 * time.Millisecond)
		}
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
	})
}

func TestRateNeedsVolume(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{FailureRate: 0.1, MinCalls: 10}))
		executeN(t, b, "first call fails", 1, errDown)
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "first call fails"))

		for range 4 { // one in 700: an absolute count would have it
			executeN(t, b, "busy", 699, nil)
			executeN(t, b, "busy", 1, errDown)
		}
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "busy"))
		assert.Equal(t, 2800, snapshotOf(t, b, "busy").WindowCalls)
	})
}

func TestConsecutiveMeansThatNoSuccessIsBetween(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{ConsecutiveFailures: 2}))
		for range 5 {
			executeN(t, b, "k", 1, errDown)
			executeN(t, b, "k", 200, nil)
		}
		require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
		trip(t, b, "k", 2)
	})
}

func TestFailuresFromBeforeARecoveryAreForgotten(t *testing.T) {
	for name, p := range map[string]breaker.Policy{
		"consecutive": {ConsecutiveFailures: 3},
		"window":      {WindowFailures: 3, Window: time.Hour},
		"rate":        {FailureRate: 0.5, MinCalls: 3, Window: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, join join) {
				b := join(under(p))
				trip(t, b, "k", 3)
				time.Sleep(time.Minute)
				executeN(t, b, "k", 1, nil)
				executeN(t, b, "k", 1, errDown)
				s := snapshotOf(t, b, "k")
				assert.Equal(t, breaker.StateClosed, s.State)
				assert.Equal(t, 1, s.ConsecutiveFailures)
				trip(t, b, "k", 2)
			})
		})
	}
}

func TestOwnRejectionsAreNoTraffic(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var h hearing
		b := join(breaker.Config{Policy: breaker.Policy{FailureRate: 0.5, MinCalls: 10}, Observer: &h})
		trip(t, b, "k", 10)
		for range 500 {
			requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		}
		assert.Len(t, h.outcomes, 10)
		assert.Equal(t, 500, h.rejections)
		time.Sleep(time.Minute)
		executeN(t, b, "k", 1, nil)
		s := snapshotOf(t, b, "k")
		assert.Equal(t, breaker.StateClosed, s.State)
		assert.Zero(t, s.WindowCalls)
	})
}

func TestMinimumThatTheWindowCannotHoldIsRefused(t *testing.T) {
	_, err := breaker.New(breakertest.NewFlakyStore(nil), under(breaker.Policy{
		FailureRate: 0.5, MinCalls: 101, Window: time.Millisecond,
	}))
	require.ErrorIs(t, err, breaker.ErrConfig)
	assert.ErrorContains(t, err, "MinCalls")
}

// Zero is a default, written down; never "trip on the first failure".
func TestZeroMeansTheDefaultAndNegativeIsRefused(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		executeN(t, b, "k", 4, errDown)
		require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
		trip(t, b, "k", 1)
		left, _ := breaker.RetryAfter(execute(b, "k", nil))
		assert.Equal(t, time.Minute, left)
	})
	for _, p := range []breaker.Policy{{ConsecutiveFailures: -1}, {Cooldown: -1}, {Window: -1}, {MinCalls: -1}} {
		_, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), under(p))
		assert.ErrorIs(t, err, breaker.ErrConfig)
	}
}

// What users have reported of Go programs: keys, fallbacks, goroutines, step.

func TestManyNewNamesNeitherEvictAnOpenCircuitNorGrowTheStore(t *testing.T) {
	memory := breaker.NewMemoryStore(breaker.MemoryConfig{MaxKeys: 100})
	b := newBreaker(t, memory, breaker.Config{})
	trip(t, b, "open", 5)
	for i := range 1000 {
		executeN(t, b, string(rune('a'+i)), 1, nil)
	}
	requireRejected(t, execute(b, "open", nil), breaker.ErrOpen)
	entries := 0
	for range b.Keys(bg) {
		entries++
	}
	assert.LessOrEqual(t, entries, 100)
}

func TestFallbackThatFailsKeepsBothCauses(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{CallTimeout: time.Second}))
		_, err := breaker.DoWithFallback(bg, b, "k",
			func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() },
			func(context.Context, error) (int, error) { return 0, errDown })
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorIs(t, err, errDown)
	})
}

// A cooldown is a time to compare with, not something that runs.
func TestTenThousandCircuitsLeaveNoGoroutineAndNoTimer(t *testing.T) {
	memoryBubble(t, func(t *testing.T, join join) {
		before := goroutinesOfTheBubble(t)
		b := join(breaker.Config{Observer: new(hearing)})
		for i := range 10_000 {
			for range 5 {
				_ = execute(b, string(rune(i)), errDown)
			}
		}
		require.Equal(t, breaker.StateOpen, stateOf(t, b, "a"))
		assert.Equal(t, before, goroutinesOfTheBubble(t))
	})
}

func TestFleetDoesNotProbeInStep(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		policy := under(breaker.Policy{ConsecutiveFailures: 1, CooldownJitter: 0.1})
		ends := make(map[time.Time]bool)
		for i := range 100 {
			b, key := join(policy), string(rune('a'+i))
			trip(t, b, key, 1)
			s := snapshotOf(t, b, key)
			cooldown := s.RetryAt.Sub(s.OpenedAt)
			require.InDelta(t, time.Minute, cooldown, float64(6*time.Second))
			ends[s.RetryAt] = true
		}
		assert.Greater(t, len(ends), 50, "of 100 spread over 12,000 ms")
	})
}
