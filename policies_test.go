package breaker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// setPolicy makes p the policy of every key, in each of the processes.
func setPolicy(t testing.TB, p breaker.Policy, processes ...*breaker.Breaker) {
	t.Helper()
	for _, b := range processes {
		require.NoError(t, b.SetPolicies(p, nil, nil))
	}
}

func TestWhatWasCountedCountsOnUnderANewPolicy(t *testing.T) {
	for name, c := range map[string]struct {
		before   breaker.Policy
		failures int // counted before
		after    breaker.Policy
		cause    string
	}{
		"failures in a row":    {breaker.Policy{ConsecutiveFailures: 9}, 3, breaker.Policy{ConsecutiveFailures: 4}, breaker.CauseConsecutiveFailures},
		"fewer than counted":   {breaker.Policy{ConsecutiveFailures: 9}, 8, breaker.Policy{ConsecutiveFailures: 2}, breaker.CauseConsecutiveFailures},
		"failures in a window": {breaker.Policy{WindowFailures: 9}, 3, breaker.Policy{WindowFailures: 4}, breaker.CauseWindowFailures},
		"in a longer window": {breaker.Policy{WindowFailures: 9, Window: 5 * time.Second}, 3,
			breaker.Policy{WindowFailures: 4, Window: time.Hour}, breaker.CauseWindowFailures},
		"a rate": {breaker.Policy{FailureRate: 0.5, MinCalls: 100}, 9, breaker.Policy{FailureRate: 0.9, MinCalls: 10}, breaker.CauseFailureRate},
		"a rate in a longer window": {breaker.Policy{FailureRate: 0.5, MinCalls: 100, Window: 10 * time.Second}, 9,
			breaker.Policy{FailureRate: 0.9, MinCalls: 10, Window: time.Hour}, breaker.CauseFailureRate},
		"a rate in a shorter window": {breaker.Policy{FailureRate: 0.5, MinCalls: 100, Window: time.Hour}, 9,
			breaker.Policy{FailureRate: 0.9, MinCalls: 10, Window: 10 * time.Second}, breaker.CauseFailureRate},
		"another rule": {breaker.Policy{WindowFailures: 9}, 3, breaker.Policy{ConsecutiveFailures: 4}, breaker.CauseConsecutiveFailures},
	} {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, join join) {
				b := join(under(c.before))
				executeN(t, b, "k", c.failures, errDown)
				time.Sleep(time.Second)
				setPolicy(t, c.after, b)
				require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"), "a new policy alone opens nothing")
				assert.Equal(t, c.after.WithDefaults(), snapshotOf(t, b, "k").Policy)
				executeN(t, b, "k", 1, errDown)
				requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
				assert.Equal(t, c.cause, historyOf(t, b, "k")[0].Transition.Cause)
			})
		})
	}
}

func TestAnOpenCircuitKeepsItsDeadlineUnderANewPolicy(t *testing.T) {
	for _, cooldown := range []time.Duration{time.Second, time.Hour} {
		eachStore(t, func(t *testing.T, join join) {
			b := join(under(breaker.Policy{Cooldown: time.Minute}))
			trip(t, b, "k", 5)
			opened := snapshotOf(t, b, "k")
			setPolicy(t, breaker.Policy{Cooldown: cooldown, MaxProbes: 2}, b)
			after := snapshotOf(t, b, "k")
			assert.Equal(t, opened.RetryAt, after.RetryAt)
			assert.Equal(t, opened.Generation, after.Generation)

			time.Sleep(time.Minute - time.Millisecond)
			requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
			time.Sleep(time.Millisecond)
			executeN(t, b, "k", 1, errDown) // the probe fails, and the new cooldown begins
			reopened := snapshotOf(t, b, "k")
			assert.Equal(t, cooldown, reopened.RetryAt.Sub(reopened.OpenedAt))
		})
	}
}

func TestProbesUnderWayCountUnderANewPolicy(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		halfOpen(t, b, "k")
		probe := beginCall(b, "k")
		setPolicy(t, breaker.Policy{MaxProbes: 2, ProbeSuccesses: 2}, b)
		require.Equal(t, 1, snapshotOf(t, b, "k").ProbesInFlight)
		second := beginCall(b, "k") // the new policy has room for it
		requireRejected(t, execute(b, "k", nil), breaker.ErrBusy)
		require.NoError(t, second.finish(nil)) // one of the two that are needed
		require.Equal(t, breaker.StateHalfOpen, stateOf(t, b, "k"))
		require.NoError(t, probe.finish(nil)) // began when one was enough
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
	})
}

func TestCallsUnderWayEndUnderThePolicyTheyBeganWith(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{ConsecutiveFailures: 1, CallTimeout: time.Minute}))
		call := beginCall(b, "execute")
		allowed, err := b.Allow(bg, "allow")
		require.NoError(t, err)
		setPolicy(t, breaker.Policy{ConsecutiveFailures: 5, CallTimeout: time.Second}, b)

		time.Sleep(2 * time.Second)
		assert.NoError(t, allowed.Context().Err(), "its deadline is the old one")
		allowed.Done(errDown)
		assert.Equal(t, breaker.StateOpen, stateOf(t, b, "allow"), "one failure was enough when it began")
		assert.Equal(t, errDown, call.finish(errDown))
		assert.Equal(t, breaker.StateOpen, stateOf(t, b, "execute"))
		executeN(t, b, "new", 4, errDown)
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "new"))
	})
}

func TestProcessesThatHaveTheNewPoliciesDecideAlike(t *testing.T) {
	alike := func(t *testing.T, one, two *breaker.Breaker) {
		policies := map[string]breaker.Policy{"exact": {WindowFailures: 2, Cooldown: time.Hour}}
		policyFor := func(key string) (breaker.Policy, bool) {
			return breaker.Policy{WindowFailures: 3, Cooldown: time.Hour}, strings.HasPrefix(key, "family/")
		}
		for _, b := range []*breaker.Breaker{one, two} {
			require.NoError(t, b.SetPolicies(breaker.Policy{WindowFailures: 4, Cooldown: time.Hour}, policies, policyFor))
		}
		for key, failures := range map[string]int{"exact": 2, "family/a": 3, "other": 4} {
			for i := range failures { // in turns
				executeN(t, []*breaker.Breaker{one, two}[i%2], key, 1, errDown)
			}
			for _, b := range []*breaker.Breaker{one, two} {
				requireRejected(t, execute(b, key, nil), breaker.ErrOpen)
			}
			a, b := snapshotOf(t, one, key), snapshotOf(t, two, key)
			assert.Equal(t, a, b)
			assert.Equal(t, time.Hour, a.RetryAt.Sub(a.OpenedAt))
		}
	}
	eachStore(t, func(t *testing.T, join join) { alike(t, join(breaker.Config{}), join(breaker.Config{})) })
	t.Run("redis-server", func(t *testing.T) {
		srv := redistest.Start(t)
		process := func() *breaker.Breaker {
			return patientBreaker(t, breaker.NewRedisStore(srv.Client(nil), breaker.RedisConfig{MaxStaleness: -1}), breaker.Config{})
		}
		alike(t, process(), process())
	})
}

func TestAnImpossibleNewPolicyChangesNothing(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{
			Policies: map[string]breaker.Policy{"exact": {ConsecutiveFailures: 2}},
			PolicyFor: func(key string) (breaker.Policy, bool) {
				return breaker.Policy{ConsecutiveFailures: 3}, key == "family"
			},
		})
		err := b.SetPolicies(breaker.Policy{Cooldown: -1, FailureRate: 7},
			map[string]breaker.Policy{
				"exact": {ConsecutiveFailures: 9, Window: -1}, "good": {ConsecutiveFailures: 1},
				strings.Repeat("k", breaker.MaxKeyLength+1): {},
			},
			func(string) (breaker.Policy, bool) { return breaker.Policy{ConsecutiveFailures: 1}, true })
		require.ErrorIs(t, err, breaker.ErrConfig)
		for _, text := range []string{"Policy.Cooldown", "Policy.FailureRate", `Policies["exact"].Window`, "1025 bytes"} {
			assert.ErrorContains(t, err, text)
		}
		trip(t, b, "exact", 2)
		trip(t, b, "family", 3)
		trip(t, b, "good", 5)
	})
}

func TestNewPoliciesReplaceAllThatWasSaid(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		asked := 0
		b := join(breaker.Config{Policies: map[string]breaker.Policy{"exact": {ConsecutiveFailures: 2}}})
		policyFor := func(n int) func(string) (breaker.Policy, bool) {
			return func(key string) (breaker.Policy, bool) {
				asked++
				return breaker.Policy{ConsecutiveFailures: n}, key == "family"
			}
		}
		threshold := func(key string) int { return snapshotOf(t, b, key).Policy.ConsecutiveFailures }
		assert.Equal(t, []int{2, 5, 5}, []int{threshold("exact"), threshold("family"), threshold("k")})
		exact := map[string]breaker.Policy{"k": {ConsecutiveFailures: 7}}
		require.NoError(t, b.SetPolicies(breaker.Policy{ConsecutiveFailures: 6}, exact, policyFor(8)))
		delete(exact, "k") // what was handed in is the caller's again
		for range 3 {
			assert.Equal(t, []int{6, 8, 7}, []int{threshold("exact"), threshold("family"), threshold("k")})
		}
		assert.Equal(t, 2, asked, "once a key, and never for an exact one")
		require.NoError(t, b.SetPolicies(breaker.Policy{}, nil, policyFor(9)))
		assert.Equal(t, []int{5, 9, 5}, []int{threshold("exact"), threshold("family"), threshold("k")})
		require.NoError(t, b.SetPolicies(breaker.Policy{}, nil, nil))
		assert.Equal(t, []int{5, 5, 5}, []int{threshold("exact"), threshold("family"), threshold("k")})
	})
}

// A policy that is taken out of service by Shadow rejects nothing from the next
// call on, though the store says open; an override stands whatever the policy.
func TestANewPolicyWithShadowWinsOverAnOpenCircuit(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b, other := join(breaker.Config{}), join(breaker.Config{})
		trip(t, b, "k", 5)
		requireRejected(t, execute(other, "k", nil), breaker.ErrOpen)
		setPolicy(t, breaker.Policy{Shadow: true}, b, other)
		executeN(t, b, "k", 1, nil)
		executeN(t, other, "k", 1, nil)
		setPolicy(t, breaker.Policy{}, b, other)
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)

		require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateClosed}))
		setPolicy(t, breaker.Policy{ConsecutiveFailures: 1}, b, other)
		executeN(t, other, "k", 3, errDown)
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
	})
}

// Each call has one policy, whole, however often policies change meanwhile.
func TestPoliciesChangeUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), under(breaker.Policy{CallTimeout: time.Hour}))
		var callers, changers sync.WaitGroup
		stop := make(chan struct{})
		for i := range 2 {
			changers.Go(func() {
				for n := time.Duration(1); ; n = n%5 + 1 {
					select {
					case <-stop:
						return
					default:
					}
					p := breaker.Policy{ConsecutiveFailures: int(n), CallTimeout: n * time.Hour}
					assert.NoError(t, b.SetPolicies(p, map[string]breaker.Policy{fmt.Sprint(i): p},
						func(string) (breaker.Policy, bool) { return p, true }))
				}
			})
		}
		for i := range 4 {
			callers.Go(func() {
				for range 500 {
					err := b.Execute(bg, fmt.Sprint(i), func(ctx context.Context) error {
						until, _ := ctx.Deadline()
						left := time.Until(until)
						assert.Zero(t, left%time.Hour)
						assert.True(t, left >= time.Hour && left <= 5*time.Hour, left)
						return nil
					})
					assert.NoError(t, err)
				}
			})
		}
		callers.Wait()
		close(stop)
		changers.Wait()
	})
}

func TestAHealthyCallAllocatesNothing(t *testing.T) {
	policyFor := func(key string) (breaker.Policy, bool) {
		return breaker.Policy{ConsecutiveFailures: 2}, key == "family"
	}
	b := newBreaker(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{PolicyFor: policyFor})
	fn := func(context.Context) error { return nil }
	measure := func() {
		for _, key := range []string{"family", "else", "exact"} {
			require.NoError(t, b.Execute(bg, key, fn)) // the first of a key asks PolicyFor
			assert.Zero(t, testing.AllocsPerRun(100, func() { _ = b.Execute(bg, key, fn) }), key)
		}
	}
	measure()
	require.NoError(t, b.SetPolicies(breaker.Policy{WindowFailures: 3}, map[string]breaker.Policy{"exact": {}}, policyFor))
	measure()
}

// A view is a verdict under the policy it was asked for.
func TestNewPolicyHoldsForACircuitInView(t *testing.T) {
	eachView(t, func(t *testing.T, w *wire, join join) {
		p := breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Second, ProbeLease: time.Hour}
		b := join(under(p))
		trip(t, b, "k", 1)
		time.Sleep(time.Second)
		probe, err := b.Allow(bg, "k")
		require.NoError(t, err)
		requireRejected(t, execute(b, "k", nil), breaker.ErrBusy)
		p.MaxProbes = 2
		require.NoError(t, b.SetPolicies(p, nil, nil))
		assert.NoError(t, execute(b, "k", nil), "the second slot is free")
		probe.Done(nil)
	})
}
