package breaker_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// ProbeSuccesses in a row close the circuit. Entering half-open starts from
// zero, and all counts are clear before Closed is visible.
func TestRule09ProbeSuccessesInARowCloseWithCountsClear(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var h hearing
		b := join(breaker.Config{Policy: breaker.Policy{
			ConsecutiveFailures: 5, WindowFailures: 100, Window: time.Hour, ProbeSuccesses: 3,
		}, Observer: &h})
		halfOpen(t, b, "k")
		executeN(t, b, "k", 2, nil)
		require.Equal(t, 2, snapshotOf(t, b, "k").ProbeSuccesses)
		executeN(t, b, "k", 1, errDown)

		time.Sleep(time.Minute)
		assert.Zero(t, snapshotOf(t, b, "k").ProbeSuccesses)
		executeN(t, b, "k", 2, nil)
		require.Equal(t, breaker.StateHalfOpen, stateOf(t, b, "k"))
		executeN(t, b, "k", 1, nil)

		s := snapshotOf(t, b, "k")
		assert.Equal(t, breaker.StateClosed, s.State)
		assert.Zero(t, s.ConsecutiveFailures+s.WindowFailures+s.ProbeSuccesses+s.ProbesInFlight+s.Reopens)
		assert.True(t, s.OpenedAt.IsZero() && s.RetryAt.IsZero())
		assert.Equal(t, breaker.Counts{ConsecutiveFailures: 6, WindowFailures: 5, ProbeSuccesses: 3}, h.last(t).Counts, "as they were before")
	})
}

// MinCalls and the rates bind the closed state only, and the Breaker's own
// rejections are never counted as calls.
func TestRule10MinCallsBindTheClosedStateOnly(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{FailureRate: 0.5, MinCalls: 10}))
		executeN(t, b, "k", 5, nil)
		executeN(t, b, "k", 4, errDown)
		require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"), "nine calls say nothing")
		executeN(t, b, "k", 1, errDown)
		require.Equal(t, breaker.StateOpen, stateOf(t, b, "k"))

		for range 200 {
			requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		}
		assert.Equal(t, 10, snapshotOf(t, b, "k").WindowCalls)

		time.Sleep(time.Minute)
		executeN(t, b, "k", 1, errDown)
		require.Equal(t, breaker.StateOpen, stateOf(t, b, "k"), "one probe is enough to reopen")
		time.Sleep(time.Minute)
		executeN(t, b, "k", 1, nil)
		s := snapshotOf(t, b, "k")
		assert.Equal(t, breaker.StateClosed, s.State, "and one to close")
		assert.Zero(t, s.WindowCalls)
	})
}

// An override wins over everything in every process, until it ends or is
// cleared. Who, why and until when are kept.
func TestRule11AnOverrideWinsOverEverything(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b, other := join(breaker.Config{}), join(breaker.Config{Instance: "other"})
		late := []*heldCall{beginCall(b, "k"), beginCall(other, "k")}

		require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateOpen, Reason: "migration", By: "ann"}))
		forced := snapshotOf(t, other, "k")
		assert.Equal(t, &breaker.Override{State: breaker.StateOpen, Reason: "migration", By: "ann"}, forced.Override)
		late[0].finish(nil)
		late[1].finish(errDown)
		time.Sleep(10 * time.Minute) // ten cooldowns
		for _, each := range []*breaker.Breaker{b, other} {
			r := requireRejected(t, execute(each, "k", nil), breaker.ErrOpen)
			assert.Equal(t, time.Minute, r.RetryAfter, "until cleared: nobody knows, so a Cooldown")
		}
		assert.Equal(t, forced, snapshotOf(t, b, "k"))

		// Forced closed instead, for a while: everything runs and nothing trips.
		require.NoError(t, other.Force(bg, "k", breaker.Override{State: breaker.StateClosed, For: time.Hour}))
		until := time.Now().Add(time.Hour)
		for _, each := range []*breaker.Breaker{b, other} {
			executeN(t, each, "k", 20, errDown)
		}
		s := snapshotOf(t, b, "k")
		assert.Equal(t, breaker.StateClosed, s.State)
		assert.Zero(t, s.ConsecutiveFailures)
		assert.Equal(t, "other", s.Override.By, "who it was is the process, unless said otherwise")
		assert.True(t, until.Equal(s.Override.Until))

		// It ends by itself, and the circuit is what it was before.
		time.Sleep(time.Hour)
		assert.Nil(t, snapshotOf(t, b, "k").Override)
		trip(t, b, "k", 5)
		require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateClosed}))
		executeN(t, other, "k", 1, nil)
		require.NoError(t, other.ClearOverride(bg, "k"))
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)

		// Reset clears it as well, and the circuit too.
		require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateOpen}))
		require.NoError(t, other.Reset(bg, "k"))
		executeN(t, b, "k", 1, nil)
		s = snapshotOf(t, b, "k")
		assert.Nil(t, s.Override)
		assert.Equal(t, breaker.StateClosed, s.State)
	})
}

// Snapshot changes nothing, and past its cooldown an open circuit reads as
// half-open.
func TestRule12SnapshotIsAPureRead(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var h hearing
		b, reader := join(breaker.Config{Observer: &h}), join(breaker.Config{})
		trip(t, b, "k", 5)
		open := snapshotOf(t, reader, "k")
		time.Sleep(time.Minute)
		for range 200 {
			s := snapshotOf(t, reader, "k")
			require.Equal(t, breaker.StateHalfOpen, s.State)
			require.Equal(t, open.Generation, s.Generation)
			require.Zero(t, s.ProbesInFlight)
		}
		assert.Equal(t, []string{"closed>open"}, h.path(), "a read is no transition")
		require.NoError(t, execute(b, "k", nil), "the probe is still there")

		// A key that nobody called stays unheard of.
		assert.Equal(t, breaker.StateClosed, stateOf(t, reader, "other"))
		for key, err := range reader.Keys(bg) {
			require.NoError(t, err)
			assert.Equal(t, "k", key)
		}
	})
}

// The process whose write made a transition notifies, and it alone. A panic in
// an Observer is logged and touches no call.
func TestRule13TheProcessThatMadeATransitionAloneNotifies(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var log strings.Builder
		logger := slog.New(slog.NewTextHandler(&log, nil))
		heard := make([]*hearing, 20)
		processes := make([]*breaker.Breaker, 20)
		for i := range processes {
			heard[i] = new(hearing)
			processes[i] = join(breaker.Config{
				Instance: fmt.Sprint(i), Logger: logger, Observer: breaker.Observers(heard[i], panicking{}),
			})
		}
		trip(t, processes[3], "k", 5)
		for _, b := range processes {
			requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		}
		time.Sleep(time.Minute)
		executeN(t, processes[7], "k", 1, nil)
		for _, b := range processes {
			executeN(t, b, "k", 1, nil)
		}
		for i, h := range heard {
			switch i {
			case 3:
				assert.Equal(t, []string{"closed>open"}, h.path())
				assert.Equal(t, "3", h.last(t).Instance)
			case 7:
				assert.Equal(t, []string{"open>half-open", "half-open>closed"}, h.path())
			default:
				assert.Empty(t, h.path())
			}
		}
		assert.Contains(t, log.String(), "an Observer panicked")
	})
}

type panicking struct{}

func (panicking) CallDone(string, breaker.Outcome, time.Duration) { panic("observer") }
func (panicking) Rejected(string, *breaker.RejectedError)         { panic("observer") }
func (panicking) Transitioned(breaker.Transition)                 { panic("observer") }
func (panicking) StoreDegraded(error)                             { panic("observer") }
func (panicking) StoreRecovered(time.Duration)                    { panic("observer") }

// Keys are arbitrary strings, each a circuit of its own.
func TestRule14KeysAreArbitraryStrings(t *testing.T) {
	keys := []string{"", " ", "stripe", "STRIPE", "a b", "a/b", "a%2Fb", "{}", "{a}b", "a}b{c", "%", "names",
		"café", "cafe\u0301", "\x00", "\xff\xfe", "a\nb", "k:log", strings.Repeat("k", breaker.MaxKeyLength)}
	eachStore(t, func(t *testing.T, join join) {
		b, other := join(breaker.Config{}), join(breaker.Config{})
		for i, key := range keys {
			trip(t, b, key, 5)
			for j, each := range keys {
				want := breaker.StateClosed
				if j <= i {
					want = breaker.StateOpen
				}
				require.Equal(t, want, stateOf(t, other, each), "%.20q after %.20q was opened", each, key)
			}
		}
		var listed []string
		for key, err := range b.Keys(bg) {
			require.NoError(t, err)
			listed = append(listed, key)
		}
		assert.ElementsMatch(t, keys, listed, "byte for byte")
	})
}

// MemoryStore is bounded, and forgets only what is not worth keeping.
func TestRule14MemoryStoreForgetsOnlyHealthyCircuits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.NewMemoryStore(breaker.MemoryConfig{MaxKeys: 100}), breaker.Config{})
		trip(t, b, "open", 5)
		executeN(t, b, "counting", 4, errDown)
		require.NoError(t, b.Force(bg, "forced", breaker.Override{State: breaker.StateClosed}))
		for i := range 1000 {
			executeN(t, b, fmt.Sprint(i), 1, nil)
		}
		requireRejected(t, execute(b, "open", nil), breaker.ErrOpen)
		assert.NotNil(t, snapshotOf(t, b, "forced").Override)
		trip(t, b, "counting", 1)

		entries := 0
		for range b.Keys(bg) {
			entries++
		}
		assert.Equal(t, 100, entries)
	})
}

// A probe that ends when its lease is over changes nothing, even if nobody has
// taken its slot.
func TestRule06AProbeThatOutlivesItsLeaseChangesNothing(t *testing.T) {
	for _, late := range []error{nil, errDown} {
		eachStore(t, func(t *testing.T, join join) {
			b := join(under(breaker.Policy{ProbeLease: 10 * time.Second}))
			halfOpen(t, b, "k")
			probe := beginCall(b, "k")
			time.Sleep(10 * time.Second)
			before := historyOf(t, b, "k")
			assert.Equal(t, late, probe.finish(late))
			assert.Equal(t, before, historyOf(t, b, "k"))
			s := snapshotOf(t, b, "k")
			assert.Equal(t, breaker.StateHalfOpen, s.State)
			assert.Zero(t, s.ProbeSuccesses)
			executeN(t, b, "k", 1, nil)
			assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
		})
	}
}

// What an open circuit counted has lost its meaning after a Window; that it is
// open, and until when, has not. Nor has an operator's word.
func TestRule14MemoryStoreKeepsWhatIsOpenOrForcedForLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := breaker.Policy{Window: time.Second, Cooldown: time.Hour}
		b := newBreaker(t, breaker.NewMemoryStore(breaker.MemoryConfig{MaxKeys: 100}), under(policy))
		trip(t, b, "open", 5)
		require.NoError(t, b.Force(bg, "forced", breaker.Override{State: breaker.StateClosed}))
		time.Sleep(time.Minute)
		for i := range 1000 {
			executeN(t, b, fmt.Sprint(i), 1, nil)
			time.Sleep(time.Second)
		}
		requireRejected(t, execute(b, "open", nil), breaker.ErrOpen)
		assert.NotNil(t, snapshotOf(t, b, "forced").Override)
	})
}

// A result that was under way when its circuit was forgotten does not count in
// the circuit that has the name now.
func TestRule14ALateResultDoesNotCountInAnotherLifeOfItsCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.NewMemoryStore(breaker.MemoryConfig{MaxKeys: 2}), breaker.Config{})
		halfOpen(t, b, "k")
		executeN(t, b, "k", 1, nil)
		late := beginCall(b, "k")
		time.Sleep(time.Minute) // its counts have lost their meaning
		for i := range 5 {
			executeN(t, b, fmt.Sprint(i), 1, nil)
		}
		require.Empty(t, historyOf(t, b, "k"), "it is forgotten")
		halfOpen(t, b, "k") // and lives through the same again
		executeN(t, b, "k", 1, nil)
		executeN(t, b, "k", 1, errDown)
		late.finish(errDown)
		assert.Equal(t, 1, snapshotOf(t, b, "k").ConsecutiveFailures)
	})
}

// Where nothing can be forgotten, calls for new names run uncounted.
func TestRule14AFullMemoryStoreRunsNewNamesUncounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.NewMemoryStore(breaker.MemoryConfig{MaxKeys: 2}), breaker.Config{})
		trip(t, b, "a", 5)
		trip(t, b, "b", 5)
		executeN(t, b, "new", 50, errDown)
		assert.ErrorIs(t, b.Force(bg, "new", breaker.Override{State: breaker.StateOpen}), breaker.ErrStore)
		executeN(t, b, "new", 1, nil)
		require.NoError(t, b.Reset(bg, "a"))
		time.Sleep(time.Minute)
		trip(t, b, "new", 5)
	})
}

// CallTimeout puts a deadline on fn's context.
func TestRule15CallTimeoutIsADeadlineOnFnsContext(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{CallTimeout: 3 * time.Second}))
		for range 5 {
			began := time.Now()
			err := b.Execute(bg, "k", func(ctx context.Context) error {
				deadline, ok := ctx.Deadline()
				assert.True(t, ok)
				assert.Equal(t, 3*time.Second, time.Until(deadline))
				<-ctx.Done()
				return ctx.Err()
			})
			assert.Equal(t, context.DeadlineExceeded, err)
			assert.Equal(t, 3*time.Second, time.Since(began))
		}
		assert.Equal(t, breaker.StateOpen, stateOf(t, b, "k"))
	})
}

// A Retry-After of the server stretches the cooldown, for everyone, up to
// MaxRetryAfter. Nonsense in it is ignored, and overflow is clamped.
func TestRule15RetryAfterStretchesTheCooldownForEveryone(t *testing.T) {
	for _, c := range []struct {
		name  string
		most  time.Duration // MaxRetryAfter
		asked time.Duration
		want  time.Duration
	}{
		{"longer than the cooldown", 0, 2 * time.Minute, 2 * time.Minute},
		{"shorter than the cooldown", 0, time.Second, time.Minute},
		{"longer than MaxRetryAfter", 0, time.Hour, 5 * time.Minute},
		{"longer than another MaxRetryAfter", 10 * time.Minute, time.Hour, 10 * time.Minute},
		{"ignored", -1, 2 * time.Minute, time.Minute},
		{"negative", 0, -time.Hour, time.Minute},
		{"the longest there is", 0, math.MaxInt64, 5 * time.Minute},
		{"the most negative there is", 0, math.MinInt64, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, join join) {
				policy := breaker.Policy{ConsecutiveFailures: 1, MaxRetryAfter: c.most}
				b, other := join(under(policy)), join(under(policy))
				executeN(t, b, "k", 1, &breaker.StatusError{Code: 503, RetryAfter: c.asked})
				left, ok := breaker.RetryAfter(execute(other, "k", nil))
				require.True(t, ok)
				assert.Equal(t, c.want, left)

				// A failed probe may ask for the same again.
				time.Sleep(left)
				executeN(t, other, "k", 1, &breaker.StatusError{Code: 503, RetryAfter: c.asked})
				assert.Equal(t, c.want, time.Until(snapshotOf(t, b, "k").RetryAt))
			})
		})
	}
}
