package breaker_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// What makes the count of consecutive failures true for several processes over
// Redis, although their successes cost nothing and nobody hears of them.

// settle is RedisConfig.Settle unless set.
const settle = 150 * time.Millisecond

// pair joins two processes, and what each is told.
func pair(join join, p breaker.Policy) (a, b *breaker.Breaker, heardA, heardB *hearing) {
	heardA, heardB = new(hearing), new(hearing)
	a = join(breaker.Config{Policy: p, Observer: heardA, Instance: "a"})
	b = join(breaker.Config{Policy: p, Observer: heardB, Instance: "b"})
	return a, b, heardA, heardB
}

// B's success fell between A's failures, and B did not say so: when it began
// there was no streak to end. Its own failure brings the news.
func TestASuccessNobodyHeardOfEndsTheStreakWithItsProcessNextFailure(t *testing.T) {
	redisBubble(t, func(t *testing.T, join join) {
		a, b, _, _ := pair(join, breaker.Policy{ConsecutiveFailures: 4})
		success := beginCall(b, "k")
		executeN(t, a, "k", 1, errDown)
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, success.finish(nil))
		time.Sleep(10 * time.Millisecond)
		executeN(t, a, "k", 2, errDown)
		require.Equal(t, 3, snapshotOf(t, a, "k").ConsecutiveFailures)

		executeN(t, b, "k", 1, errDown)
		assert.Equal(t, 1, snapshotOf(t, a, "k").ConsecutiveFailures, "the streak begins with this failure")
		time.Sleep(time.Second)
		assert.Equal(t, breaker.StateClosed, stateOf(t, a, "k"))
	})
}

// And so does its next call of any kind, once a rule seems to be met.
func TestABusyProcessSpeaksUpWhileARuleSettles(t *testing.T) {
	redisBubble(t, func(t *testing.T, join join) {
		a, b, _, _ := pair(join, breaker.Policy{ConsecutiveFailures: 4})
		c := join(under(breaker.Policy{ConsecutiveFailures: 4}))
		success := beginCall(c, "k")
		executeN(t, a, "k", 2, errDown)
		executeN(t, b, "k", 2, errDown) // met, all of it by others
		time.Sleep(50 * time.Millisecond)
		require.NoError(t, success.finish(nil))
		time.Sleep(50 * time.Millisecond)
		next := beginCall(c, "k")
		time.Sleep(time.Second)
		assert.Equal(t, breaker.StateClosed, stateOf(t, a, "k"))
		require.NoError(t, next.finish(nil))
	})
}

// A process that saw nothing but failures does not wait for anybody.
func TestTheStreakOfOneProcessOpensAtOnce(t *testing.T) {
	redisBubble(t, func(t *testing.T, join join) {
		a, b, heardA, heardB := pair(join, breaker.Policy{ConsecutiveFailures: 5})
		for range 4 {
			executeN(t, a, "k", 1, errDown)
			executeN(t, b, "k", 1, nil)
			time.Sleep(10 * time.Millisecond)
		}
		require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
		executeN(t, a, "k", 1, errDown)
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		assert.Equal(t, []string{"closed>open"}, heardA.path())
		assert.Equal(t, 5, heardA.last(t).Counts.ConsecutiveFailures)
		assert.Empty(t, heardB.path())
	})
}

// Several processes together open the circuit, if the rule is still met Settle
// after all were asked: at the second failure. The one whose report met it
// settles it, and alone tells of it.
func TestARuleMetBySeveralProcessesOpensAfterSettle(t *testing.T) {
	redisBubble(t, func(t *testing.T, join join) {
		a, b, heardA, heardB := pair(join, breaker.Policy{ConsecutiveFailures: 4})
		reader := join(under(breaker.Policy{ConsecutiveFailures: 4}))
		executeN(t, a, "k", 2, errDown)
		time.Sleep(10 * time.Millisecond)
		executeN(t, b, "k", 2, errDown)
		met := time.Now()

		time.Sleep(settle/2 - 10*time.Millisecond)
		executeN(t, reader, "k", 1, errDown) // one more does not restart it
		time.Sleep(settle/2 - time.Millisecond)
		executeN(t, reader, "k", 1, errNeutral)
		require.Equal(t, breaker.StateClosed, stateOf(t, reader, "k"))
		require.Empty(t, heardB.path())
		time.Sleep(time.Millisecond)
		assert.Equal(t, []string{"closed>open"}, heardB.path())
		assert.Empty(t, heardA.path())

		s := snapshotOf(t, reader, "k")
		assert.Equal(t, breaker.StateOpen, s.State)
		assert.True(t, met.Equal(s.OpenedAt), "the failure that met it")
		r := requireRejected(t, execute(a, "k", nil), breaker.ErrOpen)
		assert.Equal(t, time.Minute-(settle-10*time.Millisecond), r.RetryAfter)
		last := heardB.last(t)
		assert.Equal(t, "b", last.Instance)
		assert.True(t, met.Add(time.Minute).Equal(last.RetryAt))
	})
}

// Where failures are so far apart that all have had the time to speak, nobody
// is waited for.
func TestARuleMetSettleAfterAllWereAskedOpensAtOnce(t *testing.T) {
	for _, c := range []struct {
		third time.Duration // after the second failure, which asks
		waits time.Duration
	}{{settle - time.Millisecond, time.Millisecond}, {settle, 0}, {time.Minute, 0}} {
		t.Run(c.third.String(), func(t *testing.T) {
			redisBubble(t, func(t *testing.T, join join) {
				p := breaker.Policy{ConsecutiveFailures: 3}
				a, b, _, heardB := pair(join, p)
				executeN(t, a, "k", 2, errDown)
				time.Sleep(c.third)
				executeN(t, b, "k", 1, errDown)
				if c.waits > 0 {
					require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
					time.Sleep(c.waits)
				}
				require.Equal(t, []string{"closed>open"}, heardB.path())
				requireRejected(t, execute(a, "k", nil), breaker.ErrOpen)
			})
		})
	}
}

// Where failures are rare, asking early would spare hardly a call: nobody is
// asked before the rule is met.
func TestNobodyIsAskedEarlyOfARunWhoseFailuresAreRare(t *testing.T) {
	for _, c := range []struct {
		apart time.Duration
		path  []string // once a third failure came
	}{{500 * time.Millisecond, []string{"closed>open"}}, {501 * time.Millisecond, nil}} {
		t.Run(c.apart.String(), func(t *testing.T) {
			redisBubble(t, func(t *testing.T, join join) {
				a, b, _, heardB := pair(join, breaker.Policy{ConsecutiveFailures: 3})
				executeN(t, a, "k", 1, errDown)
				time.Sleep(c.apart)
				executeN(t, a, "k", 1, errDown)
				time.Sleep(settle)
				executeN(t, b, "k", 1, errDown)
				synctest.Wait()
				assert.Equal(t, c.path, heardB.path())
			})
		})
	}
}

// Of a run they are asked once a minute at the most, and who was not asked is
// waited for from when the rule is met.
func TestAStreakThatNobodyWasAskedOfSettlesFromWhenItIsMet(t *testing.T) {
	redisBubble(t, func(t *testing.T, join join) {
		a, b, _, heardB := pair(join, breaker.Policy{ConsecutiveFailures: 4})
		executeN(t, a, "k", 2, errDown) // asks
		time.Sleep(settle)
		executeN(t, a, "k", 1, nil)
		executeN(t, a, "k", 2, errDown) // does not
		time.Sleep(settle)
		executeN(t, b, "k", 2, errDown)
		require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
		time.Sleep(settle - time.Millisecond)
		require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
		time.Sleep(time.Millisecond)
		assert.Equal(t, []string{"closed>open"}, heardB.path())
	})
}

// A call that began before the streak knows nothing of it. If it took long, its
// success is worth a look: nobody else may ask this process in time.
func TestTheSuccessOfALongCallEndsAStreakThatBeganDuringIt(t *testing.T) {
	for way, cfg := range fleetWays {
		known := map[string]time.Duration{"strict": settle / 3, "view": staleness * 3 / 4}[way] // so long, what was read is new enough
		for _, c := range []struct {
			lasts time.Duration
			ends  bool
		}{{known + 21*time.Millisecond, true}, {max(known, time.Millisecond), way == "push"}, {time.Hour, true}} {
			t.Run(fmt.Sprint(way, ", a call of ", c.lasts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := newMiniRedis(t)
					join := func(name string) *breaker.Breaker {
						return newBreaker(t, breaker.NewRedisStore(server.client(t), cfg), breaker.Config{Instance: name})
					}
					a, b := join("a"), join("b")
					executeN(t, b, "k", 1, nil)
					time.Sleep(20 * time.Second)
					long := beginCall(b, "k")
					time.Sleep(c.lasts - time.Millisecond)
					executeN(t, a, "k", 2, errDown)
					time.Sleep(time.Millisecond)
					require.NoError(t, long.finish(nil))
					synctest.Wait()
					if c.ends {
						assert.Zero(t, snapshotOf(t, a, "k").ConsecutiveFailures)
					} else {
						assert.Equal(t, 2, snapshotOf(t, a, "k").ConsecutiveFailures)
					}
				})
			})
		}
	}
}

// That look costs one read, and none where the process would have heard of it.
func TestTheSuccessOfALongCallCostsOneReadAtMost(t *testing.T) {
	for way, cfg := range fleetWays {
		t.Run(way, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newMiniRedis(t)
				w := watch(server)
				b := newBreaker(t, breaker.NewRedisStore(server.client(t), cfg), breaker.Config{})
				executeN(t, b, "k", 1, nil)
				time.Sleep(5 * time.Second) // its name is said, and it listens
				want := map[string]int{"hmget": 1}
				if way == "push" {
					want = map[string]int{}
				}
				for range 3 {
					long := beginCall(b, "k")
					time.Sleep(time.Second)
					w.since()
					require.NoError(t, long.finish(nil))
					synctest.Wait()
					sent := w.since()
					delete(sent, "ping") // that it listens
					assert.Equal(t, want, sent)
				}
			})
		})
	}
}

func TestASuccessWhileARuleSettlesPreventsTheOpening(t *testing.T) {
	for _, after := range []time.Duration{time.Millisecond, settle - time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			redisBubble(t, func(t *testing.T, join join) {
				a, b, heardA, heardB := pair(join, breaker.Policy{ConsecutiveFailures: 4})
				executeN(t, a, "k", 2, errDown)
				executeN(t, b, "k", 2, errDown)
				time.Sleep(after)
				executeN(t, a, "k", 1, nil)
				time.Sleep(time.Second)
				assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
				assert.Zero(t, snapshotOf(t, b, "k").ConsecutiveFailures)
				assert.Empty(t, append(heardA.path(), heardB.path()...))
			})
		})
	}
}

// If the process that would settle it is gone, whoever comes next does.
func TestWhoeverComesNextSettlesForAProcessThatDied(t *testing.T) {
	nexts := map[string]func(t *testing.T, a *breaker.Breaker, inFlight *heldCall){
		"a call": func(t *testing.T, a *breaker.Breaker, c *heldCall) {
			r := requireRejected(t, execute(a, "k", nil), breaker.ErrOpen)
			assert.Equal(t, 50*time.Second, r.RetryAfter)
			require.NoError(t, c.finish(nil))
		},
		"a failure": func(t *testing.T, a *breaker.Breaker, c *heldCall) { require.Error(t, c.finish(errDown)) },
		// It ended too late to have a say.
		"a success": func(t *testing.T, a *breaker.Breaker, c *heldCall) { require.NoError(t, c.finish(nil)) },
	}
	for name, next := range nexts {
		t.Run(name, func(t *testing.T) {
			redisBubble(t, func(t *testing.T, join join) {
				a, b, heardA, heardB := pair(join, breaker.Policy{ConsecutiveFailures: 4})
				executeN(t, a, "k", 2, errDown)
				time.Sleep(10 * time.Millisecond)
				inFlight := beginCall(a, "k")
				executeN(t, b, "k", 2, errDown)
				require.NoError(t, b.Close())
				time.Sleep(10 * time.Second)

				// A read takes it as settled, and settles nothing.
				assert.Equal(t, breaker.StateOpen, stateOf(t, a, "k"))
				require.Empty(t, append(heardA.path(), heardB.path()...))

				next(t, a, inFlight)
				assert.Equal(t, []string{"closed>open"}, heardA.path())
				assert.Equal(t, "a", heardA.last(t).Instance)
				assert.Equal(t, 50*time.Second, time.Until(heardA.last(t).RetryAt))
			})
		})
	}
}

// Successes of which nobody heard count in a shared rate before it opens.
func TestSuccessesComeInWhileARateSettles(t *testing.T) {
	for _, c := range []struct {
		name      string
		successes int
		want      breaker.State
	}{{"failures alone", 0, breaker.StateOpen}, {"and successes elsewhere", 20, breaker.StateClosed}} {
		t.Run(c.name, func(t *testing.T) {
			redisBubble(t, func(t *testing.T, join join) {
				a, b, _, _ := pair(join, breaker.Policy{FailureRate: 0.5, MinCalls: 10})
				executeN(t, b, "k", 1, errDown)
				executeN(t, a, "k", 1, errDown)
				executeN(t, a, "k", c.successes, nil)
				executeN(t, b, "k", 8, errDown)
				require.Equal(t, 10, snapshotOf(t, b, "k").WindowFailures)
				require.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
				time.Sleep(settle)
				synctest.Wait()
				assert.Equal(t, c.want, stateOf(t, b, "k"))
				assert.Equal(t, 10+c.successes, snapshotOf(t, b, "k").WindowCalls)
			})
		})
	}
}

// Where successes unmeet nothing, nobody is asked for them.
func TestNobodyIsAskedWhereNoRuleIsOfARun(t *testing.T) {
	for name, p := range map[string]breaker.Policy{"window": {WindowFailures: 100}, "rate": {FailureRate: 0.9, MinCalls: 100}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newMiniRedis(t)
				w := watch(server)
				a := newBreaker(t, server.store(t), under(p))
				b := newBreaker(t, breaker.NewRedisStore(server.client(t), breaker.RedisConfig{}), under(p))
				executeN(t, b, "k", 1, nil)
				time.Sleep(5 * time.Second)
				w.since()
				executeN(t, a, "k", 2, errDown)
				synctest.Wait()
				sent := w.since()
				delete(sent, "ping")
				assert.Equal(t, map[string]int{"hmget": 2, "evalsha": 2, "eval": 1}, sent, "two calls and their reports")

				long := beginCall(a, "k") // under a rate it tells this success, and does not ask
				time.Sleep(time.Second)
				executeN(t, a, "k", 1, nil)
				time.Sleep(time.Second)
				w.since()
				require.NoError(t, long.finish(nil))
				synctest.Wait()
				assert.Zero(t, w.since()["hmget"])
			})
		})
	}
}

// A rate has its time to settle though a run of failures was asked of long before.
func TestARateSettlesFromWhenItIsMetThoughARunWasToo(t *testing.T) {
	redisBubble(t, func(t *testing.T, join join) {
		a, b, heardA, heardB := pair(join, breaker.Policy{ConsecutiveFailures: 4, FailureRate: 0.5, MinCalls: 4})
		executeN(t, a, "k", 2, errDown) // asks
		time.Sleep(settle - 10*time.Millisecond)
		executeN(t, b, "k", 2, errDown) // meets both
		time.Sleep(5 * time.Millisecond)
		executeN(t, a, "k", 1, nil) // ends the run
		time.Sleep(settle - 10*time.Millisecond)
		require.Equal(t, breaker.StateClosed, stateOf(t, a, "k"), "%v %v", heardA.path(), heardB.path())
		time.Sleep(10 * time.Millisecond)
		assert.Equal(t, breaker.StateOpen, stateOf(t, a, "k"))
	})
}

// A rule that an older process met settles as long as any.
func TestARuleMetByAnOlderProcessSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newMiniRedis(t)
		join := func(cfg breaker.Config) *breaker.Breaker { return newBreaker(t, server.store(t), cfg) }
		a, b, _, _ := pair(join, breaker.Policy{ConsecutiveFailures: 4})
		executeN(t, a, "k", 2, errDown)
		executeN(t, b, "k", 2, errDown)
		server.HDel("breaker:{k}", "asked_at")
		time.Sleep(settle - time.Millisecond)
		assert.Equal(t, breaker.StateClosed, stateOf(t, a, "k"))
		executeN(t, a, "k", 1, errNeutral)
		assert.Equal(t, breaker.StateClosed, stateOf(t, a, "k"))
		time.Sleep(2 * time.Millisecond)
		assert.Equal(t, breaker.StateOpen, stateOf(t, a, "k"))
	})
}

func TestWithoutSettlingEveryRuleOpensAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newMiniRedis(t)
		var processes []*breaker.Breaker
		for range 5 {
			store := breaker.NewRedisStore(server.client(t), breaker.RedisConfig{MaxStaleness: -1, Settle: -1})
			processes = append(processes, newBreaker(t, store, breaker.Config{}))
		}
		for _, b := range processes {
			executeN(t, b, "k", 1, errDown)
		}
		assert.Equal(t, breaker.StateOpen, stateOf(t, processes[0], "k"))
	})
}

// A success and the failures after it may fall into one millisecond.
func TestFailuresRightAfterASuccessAreAllCounted(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		executeN(t, b, "k", 1, nil)
		executeN(t, b, "k", 3, errDown)
		assert.Equal(t, 3, snapshotOf(t, b, "k").ConsecutiveFailures)
	})
}

// A minute of 32 callers in four processes; the dependency is down from the
// twentieth second to the fortieth.
func TestAMinuteOfThirtyTwoCallers(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		policy := under(breaker.Policy{Cooldown: 5 * time.Second})
		began := time.Now()
		var inVain, served atomic.Int32
		fn := func(context.Context) error {
			if at := time.Since(began); at >= 20*time.Second && at < 40*time.Second {
				inVain.Add(1)
				return errDown
			}
			served.Add(1)
			return nil
		}
		var wg sync.WaitGroup
		for range 4 {
			b := join(policy)
			for range 8 {
				wg.Go(func() {
					for time.Since(began) < time.Minute {
						_ = b.Execute(bg, "k", fn)
						time.Sleep(time.Second)
					}
				})
			}
		}
		wg.Wait()
		assert.LessOrEqual(t, inVain.Load(), int32(32+4), "one call each at most, then a probe every 5s")
		assert.GreaterOrEqual(t, served.Load(), int32(32*(60-20-6)), "all, but for the outage and a cooldown")
		assert.Equal(t, breaker.StateClosed, stateOf(t, join(policy), "k"))
	})
}
