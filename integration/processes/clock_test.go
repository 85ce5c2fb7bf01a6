package processes_test

import (
	"context"
	"errors"
	"flag"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

var setClock = flag.Bool("clock", false, "set this machine's clock by an hour, and back at once; needs root")

// set sets the machine's clock by d.
func set(t *testing.T, d time.Duration) {
	tv := syscall.NsecToTimeval(time.Now().Add(d).UnixNano())
	require.NoError(t, syscall.Settimeofday(&tv))
}

// The wall clock is set under a process, an hour either way: a memory store loses
// no failure, no cooldown, no lease and no override, and ends none early.
func TestAMemoryStoreDoesNotMindAWallClockThatIsSet(t *testing.T) {
	if !*setClock {
		t.Skip("sets this machine's clock; needs -clock")
	}
	errDown := errors.New("down")
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{Policies: map[string]breaker.Policy{
				"open":   {WindowFailures: 2, Window: 30 * time.Minute, Cooldown: 30 * time.Minute},
				"probed": {ConsecutiveFailures: 1, Cooldown: time.Millisecond, ProbeLease: 30 * time.Minute},
			}})
			require.NoError(t, err)
			defer func() { assert.NoError(t, b.Close()) }()
			call := func(key string, end error) error {
				return b.Execute(t.Context(), key, func(context.Context) error { return end })
			}
			rejects := func(key string, with error) {
				t.Helper()
				err := call(key, nil)
				require.ErrorIs(t, err, with)
				left, ok := breaker.RetryAfter(err)
				assert.True(t, ok)
				assert.InDelta(t, 30, left.Minutes(), 5, "minutes left")
			}
			require.ErrorIs(t, call("open", errDown), errDown)
			require.ErrorIs(t, call("probed", errDown), errDown)
			require.Eventually(t, func() bool {
				_, err := b.Allow(t.Context(), "probed")
				return err == nil
			}, 10*time.Second, time.Millisecond)
			require.NoError(t, b.Force(t.Context(), "forced", breaker.Override{State: breaker.StateOpen, For: 30 * time.Minute}))

			before := time.Now()
			set(t, step)
			moved := time.Now().Round(0).Sub(before.Round(0))
			defer set(t, -step)

			assert.InDelta(t, step.Minutes(), moved.Minutes(), 5, "the clock was not set")
			require.ErrorIs(t, call("open", errDown), errDown)
			rejects("open", breaker.ErrOpen) // both failures were in the window
			rejects("probed", breaker.ErrBusy)
			rejects("forced", breaker.ErrOpen)
		})
	}
}
