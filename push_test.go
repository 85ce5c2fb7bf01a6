package breaker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// A listening is one process that trips a circuit and one that calls it all the
// time, with views that are kept good by what the first announces.
type listening struct {
	w        *wire
	a, b     *breaker.Breaker
	degraded *degradations
	hang     atomic.Bool // b's dials last until they are given up

	mu    sync.Mutex
	conns []*watchedConn // of the process that listens
}

// A watchedConn knows whether it is the listener's.
type watchedConn struct {
	net.Conn
	listens atomic.Bool
}

func (c *watchedConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("subscribe")) {
		c.listens.Store(true)
	}
	return c.Conn.Write(b)
}

type degradations struct {
	breaker.NopObserver
	mu   sync.Mutex
	errs []error
}

func (d *degradations) StoreDegraded(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.errs = append(d.errs, err)
}

// cut breaks the connection of the listener.
func (l *listening) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		if c.listens.Load() {
			_ = c.Close()
		}
	}
}

func inListening(t *testing.T, test func(t *testing.T, l *listening)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newMiniRedis(t)
		l := &listening{w: watch(m), degraded: new(degradations)}
		cfg := breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Hour}, Observer: l.degraded}
		l.a = newBreaker(t, m.store(t), cfg)
		client := redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:6379", PoolSize: 1000,
			Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				if l.hang.Load() {
					select {
					case <-ctx.Done():
					case <-time.After(5 * time.Second):
					}
					return nil, errDown
				}
				l.mu.Lock()
				defer l.mu.Unlock()
				conn, err := m.Dial()
				c := &watchedConn{Conn: conn}
				l.conns = append(l.conns, c)
				return c, err
			},
		})
		t.Cleanup(func() { _ = client.Close() })
		l.b = newBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{}), cfg)
		test(t, l)
	})
}

// calls has b call for a while; every call must run.
func (l *listening) calls(t *testing.T, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Millisecond) {
		require.NoError(t, execute(l.b, "k", nil))
	}
}

// notices trips the circuit and returns how long b goes on calling. Then the
// circuit is closed again, for both.
func (l *listening) notices(t *testing.T) (took time.Duration) {
	t.Helper()
	began := time.Now()
	trip(t, l.a, "k", 1)
	for execute(l.b, "k", nil) == nil {
		require.Less(t, time.Since(began), 20*time.Second)
		time.Sleep(time.Millisecond)
	}
	took = time.Since(began)
	require.NoError(t, l.a.Reset(bg, "k"))
	for began := time.Now(); execute(l.b, "k", nil) != nil; time.Sleep(time.Millisecond) {
		require.Less(t, time.Since(began), 20*time.Second)
	}
	return took
}

const (
	atOnce = 2 * time.Millisecond
	behind = staleness + 2*time.Millisecond // as without push
)

func TestLostConnectionFallsBackToMaxStalenessAtOnce(t *testing.T) {
	inListening(t, func(t *testing.T, l *listening) {
		l.calls(t, time.Second)
		require.LessOrEqual(t, l.notices(t), atOnce, "it listens")
		for range 10 {
			l.calls(t, 3*time.Second)
			l.cut()
			assert.LessOrEqual(t, l.notices(t), behind, "the trip comes as the connection drops")
			l.calls(t, 3*time.Second)
			assert.LessOrEqual(t, l.notices(t), atOnce, "it listens again")
		}
	})
}

func TestListenerThatGoesSilentFallsBackWithinASecond(t *testing.T) {
	inListening(t, func(t *testing.T, l *listening) {
		l.calls(t, time.Second)
		require.LessOrEqual(t, l.notices(t), atOnce, "it listens")
		l.calls(t, 3*time.Second)
		l.w.set("", true)
		assert.LessOrEqual(t, l.notices(t), time.Second+staleness, "the trip comes as it goes silent")
		for range 20 {
			l.calls(t, 700*time.Millisecond)
			l.w.set("", true)
			assert.LessOrEqual(t, l.notices(t), behind, "it does not count on what it can't hear")
		}
		l.w.set("", false)
		l.calls(t, time.Minute) // the longest it lets a server be
		l.calls(t, 3*time.Second)
		assert.LessOrEqual(t, l.notices(t), atOnce, "it listens again")
		assert.Empty(t, l.degraded.errs, "the store was well all the time")
	})
}

func TestServerThatRefusesToLetListenIsReadInstead(t *testing.T) {
	t.Parallel()
	inListening(t, func(t *testing.T, l *listening) {
		l.w.set("subscribe", false)
		l.calls(t, 10*time.Second)
		assert.LessOrEqual(t, l.notices(t), behind)
		l.w.since()
		l.calls(t, 10*time.Minute)
		assert.LessOrEqual(t, l.w.since()["subscribe"], 12, "once a minute")
		assert.Empty(t, l.degraded.errs, "that is no outage")
		l.w.set("publish", false)
		l.calls(t, 2*time.Minute)
		assert.LessOrEqual(t, l.notices(t), 10*time.Second+behind, "one that lets listen and not publish is read now and then")
		assert.Empty(t, l.degraded.errs)
	})
}

// However many failures a circuit counts and however often a rule is met and
// then was not, the fleet hears of it twice a second at the most.
func TestFleetHearsNoStormOfAnnouncementsInAStormOfFailures(t *testing.T) {
	t.Parallel()
	large(t)
	for name, failing := range map[string]float64{"all fail, none trips": 1, "half fail": 0.5} {
		t.Run(name, func(t *testing.T) {
			viewed(t, breaker.RedisConfig{}, func(t *testing.T, w *wire, join join) {
				p := breaker.Policy{ConsecutiveFailures: 6} // of ours and others' together, hardly ever of one's own
				if failing == 1 {
					p = breaker.Policy{FailureRate: 1, MinCalls: 1e6, Window: time.Hour}
				}
				const processes, seconds = 50, 1
				opened := countOpened{opened: new(atomic.Int64)}
				var fleet []*breaker.Breaker
				for range processes {
					fleet = append(fleet, join(breaker.Config{Policy: p, Observer: opened}))
				}
				for _, b := range fleet {
					require.NoError(t, execute(b, "k", nil))
				}
				w.announced()
				w.since()
				var wg sync.WaitGroup
				var resets atomic.Int64
				for i, b := range fleet {
					wg.Go(func() {
						r := rand.New(rand.NewPCG(uint64(i), 7))
						for range seconds * 100 {
							err := error(nil)
							if r.Float64() < failing {
								err = errDown
							}
							if got := execute(b, "k", err); errors.Is(got, breaker.ErrOpen) {
								resets.Add(1)
								require.NoError(t, b.Reset(bg, "k"))
							}
							time.Sleep(time.Duration(5+r.IntN(11)) * time.Millisecond)
						}
					})
				}
				wg.Wait()
				announced := w.announced()
				t.Logf("%d processes, %d calls a second: %d announcements, %d openings, %d resets, sent %v",
					processes, processes*100, announced, opened.opened.Load(), resets.Load(), w.since())
				// Each opening and each reset is announced, and what is met twice a second.
				assert.LessOrEqual(t, int64(announced), opened.opened.Load()+resets.Load()+2*(seconds+1))
			})
		})
	}
}

// Keys of any bytes are announced under their own name, and nobody else's.
func TestAnnouncementFindsItsCircuit(t *testing.T) {
	for i, key := range []string{"", "%", "a b", "a}b{c", "ü/ñ", "\xff\x00\n", "k changed", "breaker:{k}"} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			viewed(t, breaker.RedisConfig{Prefix: "{my} app"}, func(t *testing.T, w *wire, join join) {
				cfg := breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Hour}}
				a, b := join(cfg), join(cfg)
				for range 300 {
					require.NoError(t, execute(b, key, nil))
					require.NoError(t, execute(b, "other", nil))
					time.Sleep(time.Millisecond)
				}
				w.since()
				trip(t, a, key, 1)
				time.Sleep(atOnce)
				require.ErrorIs(t, execute(b, key, nil), breaker.ErrOpen)
				read := w.since()["hmget"]
				require.NoError(t, execute(b, "other", nil))
				assert.Zero(t, w.since()["hmget"], "its view is as good as before")
				assert.Positive(t, read)
			})
		})
	}
}

// setsClock returns what sets the clock of NewRedisStoreAt.
func setsClock(t *testing.T, m miniRedis) func(at time.Time) {
	c := m.client(t)
	return func(at time.Time) {
		m.Del("clock")
		require.NoError(t, c.RPush(bg, "clock", at.Unix(), 0).Err())
	}
}

func TestMetRuleIsToldThoughTheServersClockWentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMiniRedis(t)
		w, set := watch(m), setsClock(t, m)
		var fleet []*breaker.Breaker
		for range 2 {
			store := breaker.NewRedisStoreAt(m.client(t), breaker.RedisConfig{Settle: time.Second}, "clock")
			fleet = append(fleet, newBreaker(t, store, under(breaker.Policy{ConsecutiveFailures: 2})))
		}
		for _, at := range []time.Time{time.Now().Add(time.Hour), time.Now()} {
			set(at)
			w.announced()
			for _, b := range fleet {
				executeN(t, b, "k", 1, errDown)
			}
			assert.Equal(t, 1, w.announced())
			for _, b := range fleet {
				executeN(t, b, "k", 1, nil)
			}
			time.Sleep(2 * time.Second) // so that these successes are before the next failures
		}
	})
}

func TestLostConnectionIsNoticedThoughNoOtherCanBeHad(t *testing.T) {
	inListening(t, func(t *testing.T, l *listening) {
		l.calls(t, 3*time.Second)
		require.LessOrEqual(t, l.notices(t), atOnce, "it listens")
		l.calls(t, 3*time.Second)
		l.hang.Store(true)
		l.cut()
		assert.LessOrEqual(t, l.notices(t), behind)
	})
}

// What is announced on one server of a Ring is not heard on another, so that
// nobody may count on it.
func TestRingDoesNotListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := map[string]miniRedis{"a": newMiniRedis(t), "b": newMiniRedis(t)}
		for _, m := range servers {
			watch(m)
		}
		process := func() *breaker.Breaker {
			ring := redis.NewRing(&redis.RingOptions{
				Addrs: map[string]string{"a": "a:1", "b": "b:1"}, PoolSize: 100,
				Dialer: func(_ context.Context, _, addr string) (net.Conn, error) { return servers[addr[:1]].Dial() },
			})
			t.Cleanup(func() { _ = ring.Close() })
			return newBreaker(t, breaker.NewRedisStore(ring, breaker.RedisConfig{}), under(breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Hour}))
		}
		a, b := process(), process()
		for i := range 4 {
			key := fmt.Sprint("k", i)
			for range 2000 {
				require.NoError(t, execute(b, key, nil))
				time.Sleep(time.Millisecond)
			}
			trip(t, a, key, 1)
			began := time.Now()
			for execute(b, key, nil) == nil {
				require.LessOrEqual(t, time.Since(began), behind, key)
				time.Sleep(time.Millisecond)
			}
		}
	})
}
