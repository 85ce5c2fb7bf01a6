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

// What was observed of a fleet: openings, and what they are held against.
type observed struct {
	calls, opened int
	serial        int     // openings that an observer of these very calls would have made
	expected      float64 // and would make on average
}

// fleetWays are the ways in which processes see each other's circuits.
var fleetWays = map[string]breaker.RedisConfig{
	"strict": {MaxStaleness: -1},
	"view":   {NoPush: true},
	"push":   {},
}

// newVirtualFleet must be called in a synctest bubble.
func newVirtualFleet(t *testing.T, processes int, cfg breaker.RedisConfig, p breaker.Policy) *virtualFleet {
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
			Policy: p, Instance: fmt.Sprint("process-", i), StoreTimeout: time.Second, Observer: countOpened{opened: &f.opened},
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

func (s *serialObserver) seen() (calls, opened int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls, s.opened
}

// A workload is what a fleet does: how often and how long it calls, and how
// often that fails.
type workload struct {
	processes         int
	workers           int           // of each process, that call flat out
	every             time.Duration // a call each, of each process; 0: flat out
	shortest, longest time.Duration // of a call
	failing           float64
	calls             int // of all together
	seed              uint64
}

// expected is how often one observer of so many calls sees five failures in a
// row after a success.
func (w workload) expected(calls int) float64 {
	return float64(calls) * (1 - w.failing) * math.Pow(w.failing, 5)
}

func (w workload) length(r *rand.Rand) time.Duration {
	return w.shortest + time.Duration(r.Int64N(int64(w.longest-w.shortest)+1))
}

// run makes the calls. An opened circuit is reset at once, so that openings can
// be counted. They are counted until the last call begins: then nobody is left
// who could say that calls succeed.
func (f *virtualFleet) run(w workload) (o observed) {
	truth := &serialObserver{threshold: 5}
	call := func(b *breaker.Breaker, length time.Duration, failed bool) {
		err := b.Execute(context.Background(), "k", func(context.Context) error {
			time.Sleep(length)
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
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(w.calls))
	another := func() bool {
		n := left.Add(-1)
		if n == 0 {
			calls, serial := truth.seen()
			o = observed{calls, int(f.opened.Load()), serial, w.expected(calls)}
		}
		return n >= 0
	}
	for i, b := range f.processes {
		for n := range max(w.workers, 1) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(w.seed, uint64(i*1000+n)))
				if w.every > 0 {
					time.Sleep(time.Duration(r.Int64N(int64(w.every))))
				}
				for another() {
					failed, length := r.Float64() < w.failing, w.length(r)
					if w.every == 0 {
						call(b, length, failed)
						continue
					}
					wg.Go(func() { call(b, length, failed) })
					time.Sleep(w.every)
				}
			})
		}
	}
	wg.Wait()
	return o
}
