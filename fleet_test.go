package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// A virtualFleet is a number of processes, each with a client and a Breaker of its
// own, that share the circuits of one server, all in virtual time.
type virtualFleet struct {
	t         *testing.T
	server    *miniredis.Miniredis
	processes []*breaker.Breaker
	opened    atomic.Int64 // transitions to open that the processes were told of
}

var raceDetector bool

// large skips a test of a whole fleet under the race detector, which would take
// minutes for what smaller tests show as well. make test runs it without.
func large(t *testing.T) {
	t.Helper()
	if raceDetector {
		t.Skip("runs without the race detector")
	}
}

// fleetWays are the ways in which processes see each other's circuits.
var fleetWays = map[string]breaker.RedisConfig{
	"strict": {MaxStaleness: -1},
	"view":   {NoPush: true},
	"push":   {},
}

// newVirtualFleet must be called in a synctest bubble.
func newVirtualFleet(t *testing.T, processes int, cfg breaker.RedisConfig) *virtualFleet {
	t.Helper()
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	t.Cleanup(server.Close)
	f := &virtualFleet{t: t, server: server}
	for i := range processes {
		client := redis.NewClient(&redis.Options{
			Dialer:   func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
			Addr:     "127.0.0.1:6379", // never dialled; an IP, so that nothing is looked up
			Protocol: 2, DisableIdentity: true, PoolSize: 64,
		})
		b, err := breaker.New(breaker.NewRedisStore(client, cfg), breaker.Config{
			Instance: fmt.Sprint("process-", i), StoreTimeout: time.Second, Observer: countOpened{opened: &f.opened},
		})
		require.NoError(t, err)
		t.Cleanup(func() {
			assert.NoError(t, b.Close())
			assert.NoError(t, client.Close())
		})
		f.processes = append(f.processes, b)
	}
	return f
}

type countOpened struct {
	breaker.NopObserver
	opened *atomic.Int64
}

func (o countOpened) Transitioned(t breaker.Transition) {
	if t.To == breaker.StateOpen {
		o.opened.Add(1)
	}
}

var errSick = errors.New("sick")

// A serialObserver sees every call of the fleet end, in order, and counts what
// a circuit that knew all would have done.
type serialObserver struct {
	mu             sync.Mutex
	threshold      int
	streak, opened int
	calls          int
}

func (s *serialObserver) ended(failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if !failed {
		s.streak = 0
		return
	}
	if s.streak++; s.streak == s.threshold {
		s.opened++
		s.streak = 0
	}
}

// callAtRandom has workers of every process call flat out, each call 30 to 70ms
// long. An opened circuit is reset at once, so that openings can be counted.
func (f *virtualFleet) callAtRandom(workers, calls int, failing float64) *serialObserver {
	truth := &serialObserver{threshold: 5}
	var left atomic.Int64
	left.Store(int64(calls))
	var wg sync.WaitGroup
	for i, b := range f.processes {
		for w := range workers {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), uint64(w)))
				for left.Add(-1) >= 0 {
					failed := r.Float64() < failing
					err := b.Execute(context.Background(), "k", func(context.Context) error {
						time.Sleep(30*time.Millisecond + time.Duration(r.Int64N(int64(40*time.Millisecond))))
						truth.ended(failed)
						if failed {
							return errSick
						}
						return nil
					})
					if errors.Is(err, breaker.ErrOpen) || errors.Is(err, breaker.ErrBusy) {
						_ = b.Reset(context.Background(), "k")
					}
				}
			})
		}
	}
	wg.Wait()
	synctest.Wait()
	return truth
}

// A success costs no command, so the processes do not see each other's. A
// shared count of failures alone would open over and over; what a process says
// of its own successes keeps the fleet near what one observer of all its calls
// would have done.
func TestFleetOpensAboutAsOftenAsOneObserverOfAllItsCalls(t *testing.T) {
	large(t)
	for _, c := range []struct {
		name    string
		calls   int
		failing float64
		settle  time.Duration
		check   func(t *testing.T, opened, expected float64)
	}{
		{"1 % failing", 10_000, 0.01, 0, never},
		{"5 % failing", 10_000, 0.05, 0, never},
		// Three times what is expected is about six standard deviations up.
		{"20 % failing", 30_000, 0.20, 0, func(t *testing.T, opened, expected float64) {
			assert.LessOrEqual(t, opened, 3*expected)
		}},
		// Without settling the same fleet opens several times as often: the
		// bound above does tell the two apart.
		{"20 % failing, unsettled", 20_000, 0.20, -1, func(t *testing.T, opened, expected float64) {
			assert.Greater(t, opened, 3*expected)
		}},
	} {
		for way, cfg := range fleetWays {
			t.Run(c.name+"/"+way, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					cfg.Settle = c.settle
					f := newVirtualFleet(t, 20, cfg)
					truth := f.callAtRandom(10, c.calls, c.failing)
					// Five failures in a row after a success, anywhere among the calls.
					expected := float64(c.calls) * (1 - c.failing) * math.Pow(c.failing, 5)
					t.Logf("%d calls: opened %d times; a serial observer %d, expected %.2f",
						truth.calls, f.opened.Load(), truth.opened, expected)
					c.check(t, float64(f.opened.Load()), expected)
				})
			})
		}
	}
}

func never(t *testing.T, opened, _ float64) { assert.Zero(t, opened) }

// When the dependency dies, the fleet stops calling it after a few more calls.
func TestFleetStopsCallingADependencyThatDies(t *testing.T) {
	for _, c := range []struct {
		name      string
		processes int
		every     time.Duration // between calls of one process
		most      int64         // calls made after the death
	}{
		{"one process", 1, 100 * time.Millisecond, 5},
		{"20 processes, 10 calls a second each", 20, 100 * time.Millisecond, 60},
		{"100 processes, a call in 5s each", 100, 5 * time.Second, 8},
	} {
		for way, cfg := range fleetWays {
			t.Run(c.name+"/"+way, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newVirtualFleet(t, c.processes, cfg)
					var dead atomic.Bool
					var after atomic.Int64
					var wg sync.WaitGroup
					for i, b := range f.processes {
						wg.Go(func() {
							r := rand.New(rand.NewPCG(uint64(i), 1))
							time.Sleep(time.Duration(r.Int64N(int64(c.every))))
							for range 10 {
								_ = b.Execute(context.Background(), "k", func(context.Context) error {
									if dead.Load() {
										after.Add(1)
										return errSick
									}
									return nil
								})
								time.Sleep(c.every)
							}
						})
					}
					time.Sleep(4 * c.every)
					dead.Store(true)
					wg.Wait()
					synctest.Wait()
					t.Logf("calls made after the death: %d", after.Load())
					assert.LessOrEqual(t, after.Load(), c.most)
					assert.GreaterOrEqual(t, after.Load(), int64(5))
					assert.Equal(t, int64(1), f.opened.Load(), "notices of the one opening")
				})
			})
		}
	}
}
