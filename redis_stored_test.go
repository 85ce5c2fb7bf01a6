package breaker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// What is kept on the server, and for how long.

func TestCircuitThatNeverFailedStoresNothing(t *testing.T) {
	t.Parallel()
	srv := startAtNoon(t)
	p := startProcess(t, srv, breaker.Policy{FailureRate: 0.5, SlowRate: 0.5, SlowAfter: time.Hour, WindowFailures: 3})
	callTenKeys(t, p.Breaker, 100)
	_, err := p.Snapshot(t.Context(), "key-1")
	require.NoError(t, err)
	_, err = p.History(t.Context(), "key-1")
	require.NoError(t, err)
	require.NoError(t, p.ClearOverride(t.Context(), "key-1"))
	require.NoError(t, p.Close())

	keys, err := srv.Client(nil).Keys(t.Context(), "breaker:*").Result()
	require.NoError(t, err)
	assert.Equal(t, []string{"breaker:names"}, keys)
}

// Successes are no reason for a record, not even where one has just gone.
func TestTalliesMakeNoRecord(t *testing.T) {
	t.Parallel()
	srv := startAtNoon(t)
	p := startProcess(t, srv, breaker.Policy{FailureRate: 1})
	failStripe(t, p.Breaker, errDependency)
	require.NoError(t, p.Execute(t.Context(), "stripe", callOK))
	call, err := p.Allow(t.Context(), "stripe") // sees the record
	require.NoError(t, err)
	require.NoError(t, srv.Client(nil).Del(t.Context(), "breaker:{stripe}").Err())
	p.sends(t, "the tallies and the name", map[string]int{"evalsha": 2, "eval": 2}, func() {
		call.Done(nil)
		require.NoError(t, p.Close())
	})
	assert.Zero(t, srv.Client(nil).Exists(t.Context(), "breaker:{stripe}").Val())
}

// Every key of the store has an end, and it comes after all that the key is
// needed for. Only an override until cleared has none.
func TestEveryKeyOutlivesItsUseAndNoMore(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	trip := breaker.Policy{ConsecutiveFailures: 1, Cooldown: 30 * day}
	for _, tt := range []struct {
		name   string
		policy breaker.Policy
		do     func(t *testing.T, srv *redistest.Server, p realProcess)
		needed time.Duration // 0: for ever
	}{
		{"a failure in a long window", breaker.Policy{WindowFailures: 5, Window: 20 * day},
			func(t *testing.T, _ *redistest.Server, p realProcess) { failStripe(t, p.Breaker, errDependency) }, 20 * day},
		{"a streak that was told to wait", breaker.Policy{MaxRetryAfter: 10 * day},
			func(t *testing.T, _ *redistest.Server, p realProcess) {
				failStripe(t, p.Breaker, &breaker.StatusError{Code: 503, RetryAfter: 10 * day})
			}, 10 * day},
		{"a cooldown", trip,
			func(t *testing.T, _ *redistest.Server, p realProcess) { failStripe(t, p.Breaker, errDependency) }, 30 * day},
		{"a cooldown that the server stretched", breaker.Policy{ConsecutiveFailures: 1, MaxRetryAfter: 10 * day},
			func(t *testing.T, _ *redistest.Server, p realProcess) {
				failStripe(t, p.Breaker, &breaker.StatusError{Code: 503, RetryAfter: 10 * day})
			}, 10 * day},
		{"a probe's lease", breaker.Policy{ConsecutiveFailures: 1, ProbeLease: 50 * day},
			func(t *testing.T, srv *redistest.Server, p realProcess) {
				failStripe(t, p.Breaker, errDependency)
				setServerClock(t, srv, noon+60_000)
				_, err := p.Allow(t.Context(), "stripe")
				require.NoError(t, err)
			}, 50 * day},
		{"a timed override", breaker.Policy{},
			func(t *testing.T, _ *redistest.Server, p realProcess) {
				require.NoError(t, p.Force(t.Context(), "stripe", breaker.Override{State: breaker.StateOpen, For: 90 * day}))
			}, 90 * day},
		{"an override until cleared", breaker.Policy{},
			func(t *testing.T, _ *redistest.Server, p realProcess) {
				require.NoError(t, p.Force(t.Context(), "stripe", breaker.Override{State: breaker.StateOpen}))
			}, 0},
		{"an override that was cleared", trip,
			func(t *testing.T, _ *redistest.Server, p realProcess) {
				failStripe(t, p.Breaker, errDependency)
				require.NoError(t, p.Force(t.Context(), "stripe", breaker.Override{State: breaker.StateClosed}))
				require.NoError(t, p.ClearOverride(t.Context(), "stripe"))
			}, 30 * day},
		{"a reset", trip,
			func(t *testing.T, _ *redistest.Server, p realProcess) {
				failStripe(t, p.Breaker, errDependency)
				require.NoError(t, p.Reset(t.Context(), "stripe"))
			}, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			srv := startAtNoon(t)
			p := startProcess(t, srv, tt.policy)
			tt.do(t, srv, p)
			_, err := p.Snapshot(t.Context(), "stripe")
			require.NoError(t, err)
			sayNames(t, p)

			ttl := func(key string) time.Duration {
				d, err := srv.Client(nil).PTTL(t.Context(), key).Result()
				require.NoError(t, err)
				return d
			}
			assert.Positive(t, ttl("breaker:names"))
			for _, key := range []string{"breaker:{stripe}", "breaker:{stripe}:log"} {
				if tt.needed == 0 {
					assert.EqualValues(t, -1, ttl(key), key)
					continue
				}
				assert.Greater(t, ttl(key), tt.needed, key)
				assert.Less(t, ttl(key), tt.needed+2*day, key)
			}
		})
	}
}

func TestRecordReadsAsWhatItIs(t *testing.T) {
	t.Parallel()
	srv := startAtNoon(t)
	p := startProcess(t, srv, breaker.Policy{ConsecutiveFailures: 2, Cooldown: time.Minute})
	failStripe(t, p.Breaker, errDependency)
	setServerClock(t, srv, noon+1000)
	failStripe(t, p.Breaker, errDependency)

	record, err := srv.Client(nil).HGetAll(t.Context(), "breaker:{stripe}").Result()
	require.NoError(t, err)
	recent := strings.Split(strings.TrimSuffix(record["recent"], ","), ",")
	assert.Len(t, recent, 2, "messages remembered")
	delete(record, "recent")
	instance := record["last_instance"]
	delete(record, "last_instance")
	assert.NotEmpty(t, instance)
	assert.Equal(t, map[string]string{
		"version": "1", "head": "ask 1 1800000000000 ", "state": "open", "generation": "1", "changed_at": "1800000001000",
		"streak": "2", "streak_since": "1800000000000",
		"opened_at": "1800000001000", "retry_at": "1800000061000",
		"last_failure_at": "1800000001000", "last_error": errDependency.Error(),
	}, record)
}
