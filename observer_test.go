package breaker_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// hooks is an Observer made of functions; one that is nil does nothing.
type hooks struct {
	breaker.NopObserver
	callDone     func()
	rejected     func()
	transitioned func(breaker.Transition)
}

func (h hooks) CallDone(string, breaker.Outcome, time.Duration) {
	if h.callDone != nil {
		h.callDone()
	}
}

func (h hooks) Rejected(string, *breaker.RejectedError) {
	if h.rejected != nil {
		h.rejected()
	}
}

func (h hooks) Transitioned(t breaker.Transition) {
	if h.transitioned != nil {
		h.transitioned(t)
	}
}

// Whatever order operations come back in, a key's transitions are told in
// order of their generations, each one beginning where the last one ended.
func TestTransitionsOfAKeyComeInOrder(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var h hearing
		b := join(breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Millisecond, MaxProbes: 3}, Observer: &h})
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				for range 40 {
					key := []string{"a", "b"}[r.IntN(2)]
					switch r.IntN(20) {
					case 0:
						_ = b.Reset(bg, key)
					case 1:
						_ = b.Force(bg, key, breaker.Override{State: breaker.State(r.IntN(2))})
					case 2, 3:
						_ = b.ClearOverride(bg, key)
					default:
						_ = execute(b, key, []error{nil, errDown, errNeutral}[r.IntN(3)])
					}
					time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond / 2)
				}
			})
		}
		wg.Wait()
		require.NoError(t, b.Close())

		last := make(map[string]breaker.Transition)
		for _, each := range h.transitions {
			before, known := last[each.Key]
			if known {
				require.Greater(t, each.Generation, before.Generation)
				require.Equal(t, before.To, each.From)
			}
			require.NotEqual(t, each.From, each.To)
			last[each.Key] = each
		}
		assert.Greater(t, len(h.transitions), 50)
		for key, each := range last {
			events, err := b.History(bg, key)
			require.NoError(t, err)
			for _, e := range events {
				if e.Kind == breaker.EventTransition {
					assert.Equal(t, e.Transition.Generation, each.Generation, "none was lost at the end")
					break
				}
			}
		}
	})
}

// No lock is held while an Observer is told: it may use the Breaker, and the
// same circuit, as it likes.
func TestAnObserverMayCallBackIntoTheBreaker(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var b *breaker.Breaker
		var told, within atomic.Int32
		use := func() {
			if within.Add(1) == 1 { // its own calls are told of too
				told.Add(1)
				_, err := b.Snapshot(bg, "k")
				assert.NoError(t, err)
				_, err = b.History(bg, "k")
				assert.NoError(t, err)
				for _, err := range b.Keys(bg) {
					assert.NoError(t, err)
				}
				_ = execute(b, "k", nil)
				assert.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateClosed}))
				assert.NoError(t, b.ClearOverride(bg, "k"))
				assert.NoError(t, b.Reset(bg, "k"))
			}
			within.Add(-1)
		}
		b = join(breaker.Config{
			Policy:   breaker.Policy{ConsecutiveFailures: 1},
			Observer: hooks{callDone: use, rejected: use, transitioned: func(breaker.Transition) { use() }},
		})
		for range 3 {
			_ = execute(b, "k", errDown)
			_ = execute(b, "k", errDown)
			synctest.Wait()
		}
		assert.GreaterOrEqual(t, told.Load(), int32(6))
	})
}

func TestASlowObserverDelaysNoCall(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var atOnce, most, told atomic.Int32
		b := join(breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1}, Observer: hooks{
			transitioned: func(breaker.Transition) {
				most.Store(max(most.Load(), atOnce.Add(1)))
				time.Sleep(time.Second)
				atOnce.Add(-1)
				told.Add(1)
			},
		}})
		assert.Zero(t, took(func() {
			for _, key := range []string{"a", "b", "c"} {
				trip(t, b, key, 1)
				requireRejected(t, execute(b, key, nil), breaker.ErrOpen)
			}
		}))
		assert.Equal(t, 3*time.Second, took(func() { require.NoError(t, b.Close()) }), "Close waits for the last notice")
		assert.EqualValues(t, 3, told.Load())
		assert.EqualValues(t, 1, most.Load(), "one at a time")
	})
}

func TestCloseIsBoundedByAnObserverThatDoesNotReturn(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		release := make(chan struct{})
		b := join(breaker.Config{Observer: hooks{transitioned: func(breaker.Transition) { <-release }}})
		trip(t, b, "k", 5)
		for range 2 {
			var err error
			assert.Equal(t, 5*time.Second, took(func() { err = b.Close() }))
			assert.ErrorContains(t, err, "Observer has not returned")
		}
		close(release)
		assert.NoError(t, b.Close())
		assert.Zero(t, took(func() { assert.NoError(t, b.Close()) }))
	})
}

func TestCloseWithinAnObserverIsAnErrorAndNoDeadlock(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var b *breaker.Breaker
		var closed error
		var spent time.Duration
		b = join(breaker.Config{Observer: hooks{transitioned: func(breaker.Transition) {
			spent = took(func() { closed = b.Close() })
		}}})
		trip(t, b, "k", 5)
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		time.Sleep(6 * time.Second) // by then that one has given up
		assert.NoError(t, b.Close())
		assert.Error(t, closed)
		assert.Equal(t, 5*time.Second, spent)
	})
}

func TestCloseByManyAtOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var h hearing
		b := join(breaker.Config{Observer: &h})
		trip(t, b, "k", 5)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { assert.NoError(t, b.Close()) })
		}
		wg.Wait()
		assert.Len(t, h.transitions, 1)
	})
}

func TestCallsAfterCloseAreStillProtectedAndToldOf(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var h hearing
		b := join(breaker.Config{Observer: &h})
		require.NoError(t, b.Close())
		trip(t, b, "k", 5)
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		time.Sleep(time.Minute)
		executeN(t, b, "k", 1, nil)
		assert.Equal(t, []string{"closed>open", "open>half-open", "half-open>closed"}, h.path())
	})
}

func TestAnObserverHearsOfEachCallAndItsTime(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var o timing
		b := join(breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 2}, Observer: &o})
		for i, err := range []error{nil, errDown, errNeutral, errNotFound, errDown, errDown, nil} {
			_ = b.Execute(bg, "k", func(context.Context) error { time.Sleep(time.Duration(i) * time.Second); return err })
		}
		allowed, err := b.Allow(bg, "another")
		require.NoError(t, err)
		time.Sleep(time.Hour)
		allowed.Done(nil)
		assert.Equal(t, []breaker.Outcome{
			breaker.Success, breaker.Failure, breaker.Ignored, breaker.Success, breaker.Failure, breaker.Failure, breaker.Success,
		}, o.outcomes)
		assert.Equal(t, []time.Duration{
			0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second, time.Hour,
		}, o.elapsed)
		require.Len(t, o.errs, 1)
		assert.Equal(t, breaker.RejectedError{Key: "k", State: breaker.StateOpen, RetryAfter: time.Minute, LastError: "connection refused"}, *o.errs[0])
	})
}

type timing struct {
	hearing
	elapsed []time.Duration
	errs    []*breaker.RejectedError
}

func (o *timing) CallDone(key string, outcome breaker.Outcome, elapsed time.Duration) {
	o.hearing.CallDone(key, outcome, elapsed)
	o.elapsed = append(o.elapsed, elapsed)
}

func (o *timing) Rejected(_ string, err *breaker.RejectedError) { o.errs = append(o.errs, err) }

func TestObserversAreToldInOrderAndNilOnesLeftOut(t *testing.T) {
	memoryBubble(t, func(t *testing.T, join join) {
		var order []string
		named := func(name string) breaker.Observer {
			return hooks{callDone: func() { order = append(order, name) }}
		}
		b := join(breaker.Config{Observer: breaker.Observers(named("first"), nil, named("second"))})
		executeN(t, b, "k", 1, nil)
		assert.Equal(t, []string{"first", "second"}, order)
		executeN(t, join(breaker.Config{Observer: breaker.Observers()}), "k", 1, nil)
	})
}

// A broken metrics Observer must not silence the one that alerts.
func TestAPanicInOneObserverDoesNotSilenceTheNext(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		var h hearing
		b := join(breaker.Config{Observer: breaker.Observers(panicking{}, &h)})
		trip(t, b, "k", 5)
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		assert.Equal(t, []string{"closed>open"}, h.path())
		assert.Len(t, h.outcomes, 5)
		assert.Equal(t, 1, h.rejections)
	})
}

// Names to say, tallies to tell and a rule to settle are left for later by
// these calls. Close does or drops them, and nothing comes after it.
func TestNoGoroutineAndNoTimerOutlivesClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMiniRedis(t)
		commands := 0
		m.intercept(t, func(*server.Peer, string, []string) bool { commands++; return false })
		before := goroutinesOfTheBubble(t)
		clients := []*redis.Client{m.client(t), m.client(t)}
		for i := range 6 {
			store := breaker.NewRedisStore(clients[i%2], breaker.RedisConfig{MaxStaleness: -1})
			b := newBreaker(t, store, breaker.Config{
				Policy: breaker.Policy{ConsecutiveFailures: 3, FailureRate: 0.9, MinCalls: 99}, Observer: new(hearing),
			})
			executeN(t, b, "k", 1, errDown)
			executeN(t, b, "another", 10, nil)
			assert.Zero(t, took(func() { require.NoError(t, b.Close()) }))
		}
		commands = 0
		time.Sleep(time.Hour)
		assert.Zero(t, commands)
		for _, client := range clients {
			require.NoError(t, client.Close())
		}
		assert.Equal(t, before, goroutinesOfTheBubble(t))
	})
}
