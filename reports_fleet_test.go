package breaker_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// What users have reported of circuits shared by several processes.

func TestCircuitsOfOneStoreAreApart(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b, other := join(breaker.Config{}), join(breaker.Config{})
		trip(t, b, "a", 5)
		executeN(t, other, "b", 4, errDown)
		requireRejected(t, execute(other, "a", nil), breaker.ErrOpen)
		executeN(t, b, "b", 1, nil)
	})
}

func TestCircuitsOfTwoPrefixesAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newMiniRedis(t)
		prefixed := func(prefix string) *breaker.Breaker {
			store := breaker.NewRedisStore(server.client(t), breaker.RedisConfig{MaxStaleness: -1, Prefix: prefix})
			return newBreaker(t, store, breaker.Config{})
		}
		trip(t, prefixed("one"), "k", 5)
		executeN(t, prefixed("two"), "k", 1, nil)
		requireRejected(t, execute(prefixed("one"), "k", nil), breaker.ErrOpen)
	})
}

// A record from which fields are missing is read as if they had never been set.
func TestMissingFieldsCrashNobody(t *testing.T) {
	for _, field := range []string{"opened_at", "retry_at", "state", "generation", "version", "failures", "streak", "changed_at", "last_error"} {
		t.Run(field, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newMiniRedis(t)
				b := newBreaker(t, server.store(t), breaker.Config{OnStoreError: breaker.FailClosed})
				trip(t, b, "k", 5)
				server.HDel("breaker:{k}", field)
				if field == "opened_at" {
					requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
					time.Sleep(time.Minute)
				}
				if field == "retry_at" || field == "opened_at" || field == "state" {
					executeN(t, b, "k", 1, nil) // the earliest possible
					assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
					return
				}
				requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
				time.Sleep(time.Minute)
				executeN(t, b, "k", 1, nil)
				trip(t, b, "k", 5)
			})
		})
	}
}

func TestGarbageInARecordCrashesNobody(t *testing.T) {
	fields := []string{"state", "generation", "changed_at", "streak", "streak_since", "window", "failures", "retry_hint",
		"met_at", "asked_at", "opened_at", "retry_at", "reopens", "probe_successes", "leases", "override", "override_until", "recent", "version"}
	synctest.Test(t, func(t *testing.T) {
		server := newMiniRedis(t)
		policy := under(breaker.Policy{ConsecutiveFailures: 2, WindowFailures: 9, FailureRate: 0.9, MinCalls: 50})
		b := newBreaker(t, server.store(t), policy)
		executeN(t, b, "another", 1, errDown)
		for _, field := range fields {
			for _, garbage := range []string{"x", "-1", "1e999,;,;"} {
				key := field + " is " + garbage
				trip(t, b, key, 2)
				require.True(t, server.Exists("breaker:{"+url.PathEscape(key)+"}"))
				server.HSet("breaker:{"+url.PathEscape(key)+"}", field, garbage)
				_, _ = b.Snapshot(bg, key)
				for range 2 {
					_ = execute(b, key, errDown)
					time.Sleep(time.Minute)
				}
				require.NoError(t, b.Reset(bg, key), key)
				executeN(t, b, key, 1, nil)
				require.NotEqual(t, breaker.StateOpen, stateOf(t, b, key), key)
			}
		}
		trip(t, b, "another", 1)
	})
}

func TestFlushedServerMeansClosedCircuits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newMiniRedis(t)
		b := newBreaker(t, server.store(t), breaker.Config{OnStoreError: breaker.FailClosed})
		trip(t, b, "k", 5)
		server.FlushAll()
		executeN(t, b, "k", 1, nil)
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
		trip(t, b, "k", 5)
	})
}

// A record that is not ours at all concerns its key alone.
func TestForeignRecordConcernsItsKeyAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hearing
		server := newMiniRedis(t)
		require.NoError(t, server.Set("breaker:{k}", "a string"))
		b := newBreaker(t, server.store(t), breaker.Config{Observer: &h})
		executeN(t, b, "k", 10, errDown)
		trip(t, b, "another", 5)
		requireRejected(t, execute(b, "another", nil), breaker.ErrOpen)
		degraded, _, _ := h.outages()
		assert.Zero(t, degraded)
	})
}

// One process whose own network is broken opens a shared circuit for all.
// Whoever wants each process to judge for itself gives each a MemoryStore.
func TestOneProcessWithABrokenNetworkOpensASharedCircuitAndNoOther(t *testing.T) {
	run := func(t *testing.T, join func(i int) *breaker.Breaker) (serving int) {
		processes := make([]*breaker.Breaker, 10)
		for i := range processes {
			processes[i] = join(i)
		}
		for range 6 {
			for i, b := range processes {
				var err error
				if i == 0 {
					err = errDown
				}
				_ = execute(b, "k", err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		for _, b := range processes {
			if execute(b, "k", nil) == nil {
				serving++
			}
		}
		return serving
	}
	eachStore(t, func(t *testing.T, join join) {
		policy := under(breaker.Policy{WindowFailures: 5})
		assert.Equal(t, 0, run(t, func(int) *breaker.Breaker { return join(policy) }))
	})
	synctest.Test(t, func(t *testing.T) {
		assert.Equal(t, 9, run(t, func(int) *breaker.Breaker {
			return newBreaker(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
		}))
	})
}

func TestCooldownCountsInMilliseconds(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{Cooldown: time.Second}))
		at(t, "00:00:10.9")
		trip(t, b, "k", 5)
		at(t, "00:00:11.5")
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		at(t, "00:00:11.95")
		require.NoError(t, execute(b, "k", nil))
	})
}

func TestAnotherProcessProbesOnceTheLeaseOfADeadOneIsOver(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		policy := under(breaker.Policy{ProbeLease: 20 * time.Second})
		dead, other := join(policy), join(policy)
		halfOpen(t, dead, "k")
		_, err := dead.Allow(bg, "k") // and never Done
		require.NoError(t, err)
		require.NoError(t, dead.Close())

		r := requireRejected(t, execute(other, "k", nil), breaker.ErrBusy)
		assert.Equal(t, 20*time.Second, r.RetryAfter)
		time.Sleep(r.RetryAfter)
		require.NoError(t, execute(other, "k", nil))
		assert.Equal(t, breaker.StateClosed, stateOf(t, other, "k"))
	})
}

// Switching protection off wins over an open circuit at once: for one process
// by its policy, for all by an override.
func TestDisabledWinsOverAnOpenCircuit(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b, other := join(breaker.Config{}), join(breaker.Config{})
		shadow := join(under(breaker.Policy{Shadow: true}))
		trip(t, b, "k", 5)
		executeN(t, shadow, "k", 10, errDown)
		requireRejected(t, execute(other, "k", nil), breaker.ErrOpen)

		require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateClosed}))
		for _, each := range []*breaker.Breaker{other, b, shadow} {
			executeN(t, each, "k", 10, errDown)
		}
	})
}

// Shadow counts, changes state and notifies as ever, and never rejects.
func TestShadowChangesStateAndNeverRejects(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var h hearing
		b := join(breaker.Config{Policy: breaker.Policy{Shadow: true}, Observer: &h})
		executeN(t, b, "k", 50, errDown)
		require.Equal(t, breaker.StateOpen, stateOf(t, b, "k"))
		time.Sleep(time.Minute)
		probe := beginCall(b, "k")
		executeN(t, b, "k", 50, nil) // no slot is free, and they run uncounted
		require.Equal(t, breaker.StateHalfOpen, stateOf(t, b, "k"))
		require.NoError(t, probe.finish(nil))
		assert.Equal(t, []string{"closed>open", "open>half-open", "half-open>closed"}, h.path())
		assert.Zero(t, h.rejections)
		assert.Len(t, h.outcomes, 101)
	})
}

// A decided to close; meanwhile B's probe failed and reopened.
func TestStaleCloseDoesNotUndoANewerOpening(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		policy := under(breaker.Policy{MaxProbes: 2})
		a, b := join(policy), join(policy)
		halfOpen(t, a, "k")
		closing, failing := beginCall(a, "k"), beginCall(b, "k")
		require.Equal(t, errDown, failing.finish(errDown))
		reopened := snapshotOf(t, b, "k")
		require.NoError(t, closing.finish(nil))
		assert.Equal(t, reopened, snapshotOf(t, b, "k"))
		assert.Equal(t, breaker.StateOpen, reopened.State)
	})
}

// No key in Redis expires while an open circuit, a lease, a window or a timed
// override needs it.
func TestExpiryClosesNoOpenCircuit(t *testing.T) {
	for _, cooldown := range []time.Duration{1, time.Millisecond, time.Minute, 90 * 24 * time.Hour} {
		t.Run(cooldown.String(), func(t *testing.T) {
			redisBubble(t, func(t *testing.T, join join) {
				b := join(under(breaker.Policy{Cooldown: cooldown, ProbeSuccesses: 2}))
				trip(t, b, "k", 5)
				left, _ := breaker.RetryAfter(execute(b, "k", nil))
				time.Sleep(left - time.Millisecond)
				requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
				time.Sleep(12 * time.Hour)
				require.NoError(t, execute(b, "k", nil))
				assert.Equal(t, breaker.StateHalfOpen, stateOf(t, b, "k"), "one success of two")
				require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateOpen, For: 400 * 24 * time.Hour}))
				time.Sleep(400*24*time.Hour - time.Millisecond)
				requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
				require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateOpen}))
				time.Sleep(20 * 365 * 24 * time.Hour)
				requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
			})
		})
	}
}

func TestTwentyProcessesTellOfOneTripOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var h hearing // everybody's
		var processes []*breaker.Breaker
		for i := range 20 {
			processes = append(processes, join(breaker.Config{Observer: &h, Instance: fmt.Sprint(i)}))
		}
		everybody := func(err error) {
			for _, b := range processes {
				_ = b.Execute(bg, "k", func(context.Context) error { return err })
			}
			time.Sleep(time.Second)
		}
		everybody(errDown)
		everybody(errDown)
		require.Equal(t, []string{"closed>open"}, h.path())
		time.Sleep(time.Minute)
		everybody(nil)
		assert.Equal(t, []string{"closed>open", "open>half-open", "half-open>closed"}, h.path())
	})
}
