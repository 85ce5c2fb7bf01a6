package breaker_test

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// Records that are damaged, or of another version, or full of large numbers;
// and whose clock it is that decides.

var recordPolicy = breaker.Policy{ConsecutiveFailures: 3, WindowFailures: 10, FailureRate: 1, MinCalls: 1000, Cooldown: time.Minute}

// recordedStates bring the circuit "stripe" to a state with a record, at noon.
var recordedStates = map[string]func(t *testing.T, srv *redistest.Server, p realProcess){
	"closed": func(t *testing.T, _ *redistest.Server, p realProcess) {
		failStripe(t, p.Breaker, errDependency)
		require.NoError(t, p.Execute(t.Context(), "stripe", callOK))
		failStripe(t, p.Breaker, &breaker.StatusError{Code: 503, RetryAfter: time.Minute})
	},
	"open": func(t *testing.T, _ *redistest.Server, p realProcess) {
		for range 3 {
			failStripe(t, p.Breaker, errDependency)
		}
	},
	"half-open": func(t *testing.T, srv *redistest.Server, p realProcess) {
		for range 3 {
			failStripe(t, p.Breaker, errDependency)
		}
		setServerClock(t, srv, noon+60_000)
		_, err := p.Allow(t.Context(), "stripe")
		require.NoError(t, err)
	},
	"overridden": func(t *testing.T, _ *redistest.Server, p realProcess) {
		failStripe(t, p.Breaker, errDependency)
		require.NoError(t, p.Force(t.Context(), "stripe", breaker.Override{State: breaker.StateOpen, For: time.Hour, Reason: "drill"}))
	},
}

// Damage to one field of a record is nobody's error: the circuit goes on, and
// is where a call may run again when all its times have passed.
func TestDamagedRecordIsReadAsFarAsItGoes(t *testing.T) {
	t.Parallel()
	damages := []string{"", "x", "-1", "nan", "inf", "1e400", "99999999999999999999", "0x7fffffff", ";;,,", "open"}
	for state, reach := range recordedStates {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			srv := startAtNoon(t)
			admin, ctx := srv.Client(nil), t.Context()
			p := startProcess(t, srv, recordPolicy)
			reach(t, srv, p)
			record := admin.HGetAll(ctx, "breaker:{stripe}").Val()
			require.NotEmpty(t, record)
			for field := range record {
				for i, damage := range append(damages, "missing") {
					what := fmt.Sprintf("%s %q", field, damage)
					admin.Del(ctx, "breaker:{stripe}", "breaker:{stripe}:log")
					admin.HSet(ctx, "breaker:{stripe}", record)
					if i == len(damages) {
						admin.HDel(ctx, "breaker:{stripe}", field)
					} else {
						admin.HSet(ctx, "breaker:{stripe}", field, damage)
					}
					store := breaker.NewRedisStoreAt(admin, breaker.RedisConfig{MaxStaleness: -1}, serverClock)
					notices := new(outageNotices)
					b := patientBreaker(t, store, breaker.Config{Policy: recordPolicy, OnStoreError: breaker.FailClosed,
						Observer: notices, Logger: slog.New(slog.DiscardHandler)})
					setServerClock(t, srv, noon+60_000) // an open circuit's cooldown is over
					if state == "closed" {
						_ = b.Execute(ctx, "stripe", callFails) // before a success clears the damage
					}
					snap, err := b.Snapshot(ctx, "stripe")
					assert.NoError(t, err, what)
					err = b.Execute(ctx, "stripe", callOK)
					assert.NotErrorIs(t, err, breaker.ErrStore, what)
					if state == "open" {
						assert.NoError(t, err, "%s: a probe is due", what)
					}
					switch snap.State {
					case breaker.StateClosed:
						assert.NoError(t, err, "%s: read as closed", what)
					case breaker.StateOpen:
						assert.ErrorIs(t, err, breaker.ErrOpen, "%s: read as open", what)
					}
					if b.Execute(ctx, "stripe", callFails) == errDependency {
						history, err := b.History(ctx, "stripe")
						assert.NoError(t, err, what)
						assert.NotEmpty(t, history, "%s: a failure was not counted", what)
					}
					assert.NoError(t, b.Reset(ctx, "stripe"), what)
					assert.NoError(t, b.Close())
					assert.Empty(t, notices.errs, "%s: the store failed", what)
					setServerClock(t, srv, noon)
				}
			}
		})
	}
}

// A record that a later version wrote is used, and keeps what this one does
// not know.
func TestRecordOfALaterVersionIsUsedAndKept(t *testing.T) {
	t.Parallel()
	srv := startAtNoon(t)
	admin, ctx := srv.Client(nil), t.Context()
	p := startProcess(t, srv, recordPolicy)
	later := map[string]string{"version": "2", "mood": "gloomy", "weight": "12.50", "fresh": "1"}
	failStripe(t, p.Breaker, errDependency)
	require.NoError(t, admin.HSet(ctx, "breaker:{stripe}", later).Err())
	require.NoError(t, admin.LPush(ctx, "breaker:{stripe}:log",
		`{"at":"1800000000000","kind":"thought","mood":"gloomy","depth":3}`, `no JSON at all`).Err())
	kept := func(what string) {
		t.Helper()
		record := admin.HGetAll(ctx, "breaker:{stripe}").Val()
		for field, value := range later {
			assert.Equal(t, value, record[field], "%s after %s", field, what)
		}
	}

	for range 2 {
		failStripe(t, p.Breaker, errDependency)
	}
	kept("it opened")
	require.ErrorIs(t, p.Execute(ctx, "stripe", callOK), breaker.ErrOpen)
	history, err := p.History(ctx, "stripe")
	require.NoError(t, err)
	assert.Equal(t, []breaker.EventKind{breaker.EventTransition, breaker.EventFailure, breaker.EventFailure, "thought", breaker.EventFailure},
		kindsOf(history))
	setServerClock(t, srv, noon+60_000)
	require.NoError(t, p.Execute(ctx, "stripe", callOK))
	kept("a probe closed it")
	require.NoError(t, p.Force(ctx, "stripe", breaker.Override{State: breaker.StateOpen}))
	require.NoError(t, p.Reset(ctx, "stripe"))
	kept("a reset")
}

func kindsOf(events []breaker.Event) (kinds []breaker.EventKind) {
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// Redis's Lua writes a large number in its own way if it is let to. These are
// times where their count of digits changes, and generations past a million.
func TestLargeNumbersKeepTheirDigits(t *testing.T) {
	t.Parallel()
	for _, now := range []int64{1, 999_999_999_990, 1_000_000_000_000, 1_795_982_507_123, 9_223_372_000_000} {
		for _, generation := range []uint64{1_000_000, 999_999_999, 1_000_000_000_000} {
			t.Run(fmt.Sprint(now, " ", generation), func(t *testing.T) {
				t.Parallel()
				srv := startAtNoon(t)
				setServerClock(t, srv, now)
				ctx := t.Context()
				p := startProcess(t, srv, breaker.Policy{WindowFailures: 3, Cooldown: 20 * time.Millisecond, Window: 15 * time.Millisecond})
				failStripe(t, p.Breaker, errDependency)
				require.NoError(t, srv.Client(nil).HSet(ctx, "breaker:{stripe}", "generation", generation).Err())
				require.NoError(t, srv.Client(nil).HDel(ctx, "breaker:{stripe}", "head").Err()) // made anew from the rest
				at := now + 10
				for range 3 { // by the first of which the earlier one has left the window
					at += 5
					setServerClock(t, srv, at)
					failStripe(t, p.Breaker, errDependency)
				}
				snap, err := p.Snapshot(ctx, "stripe")
				require.NoError(t, err)
				assert.Equal(t, breaker.StateOpen, snap.State)
				assert.Equal(t, generation+1, snap.Generation)
				assert.Equal(t, 3, snap.WindowFailures)
				assert.Equal(t, at, snap.OpenedAt.UnixMilli())
				assert.Equal(t, at, snap.LastFailure.At.UnixMilli())
				assert.Equal(t, at+20, snap.RetryAt.UnixMilli())

				setServerClock(t, srv, at+19)
				wait, rejected := breaker.RetryAfter(p.Execute(ctx, "stripe", callOK))
				require.True(t, rejected)
				assert.Equal(t, time.Millisecond, wait)
				setServerClock(t, srv, at+20)
				require.NoError(t, p.Execute(ctx, "stripe", callOK))
				snap, err = p.Snapshot(ctx, "stripe")
				require.NoError(t, err)
				assert.Equal(t, generation+3, snap.Generation)
				assert.Equal(t, breaker.StateClosed, snap.State)
				history, err := p.History(ctx, "stripe")
				require.NoError(t, err)
				assert.Equal(t, at+20, history[0].Transition.At.UnixMilli())
				assert.Equal(t, generation+3, history[0].Transition.Generation)
			})
		}
	}
}

// Two processes whose clock goes on by hours between any two steps do as the
// server's clock says, and as nothing else does.
func TestDecisionsFollowTheServersClockAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, ctx := newMiniRedis(t), t.Context()
		server.ClockTTL(false) // no key expires by the bubble's time
		admin := server.client(t)
		set := func(ms int64) {
			require.NoError(t, admin.Del(ctx, serverClock).Err())
			require.NoError(t, admin.RPush(ctx, serverClock, ms/1000, ms%1000*1000).Err())
			time.Sleep(5 * time.Hour) // of the processes' own time
		}
		start := func() *breaker.Breaker {
			store := breaker.NewRedisStoreAt(server.client(t), breaker.RedisConfig{MaxStaleness: -1}, serverClock)
			return patientBreaker(t, store, breaker.Config{Policy: breaker.Policy{WindowFailures: 3, Window: time.Second, Cooldown: time.Second}})
		}
		a, b := start(), start()
		rejected := func(left time.Duration) {
			t.Helper()
			for _, each := range []*breaker.Breaker{a, b} {
				wait, is := breaker.RetryAfter(each.Execute(ctx, "stripe", callOK))
				require.True(t, is)
				assert.Equal(t, left, wait)
			}
		}
		set(noon)
		failStripe(t, a, errDependency)
		set(noon + 10)
		failStripe(t, b, errDependency) // ten hours later, and within a second
		set(noon + 20)
		failStripe(t, a, errDependency)
		set(noon + 21)
		rejected(999 * time.Millisecond)
		set(noon + 1019)
		rejected(time.Millisecond)
		set(noon - 3_600_000) // the server's clock is set back: the circuit waits for it
		rejected(time.Hour + 1020*time.Millisecond)
		set(noon + 1020)
		require.NoError(t, b.Execute(ctx, "stripe", callOK))
		snap, err := a.Snapshot(ctx, "stripe")
		require.NoError(t, err)
		assert.Equal(t, breaker.StateClosed, snap.State)
		assert.EqualValues(t, noon+1020, snap.ChangedAt.UnixMilli())
	})
}
