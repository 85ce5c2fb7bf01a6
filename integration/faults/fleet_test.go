package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

const (
	// slack is what a call may take beyond StoreTimeout and its own work: the
	// machine is busy with other things.
	slack = time.Second

	// patience is how long the shared state may take to be regained: the
	// longest pause is 5s, and a client has its own.
	patience = 40 * time.Second
)

// Circuits that never close again by themselves: each run, once they have
// opened, is a probe. Those of one often fail. Those of many do not, since a
// probe that fails begins a new round, in which those still under way of the
// last one are not counted.
const (
	one  = "one"
	many = "many"
)

// A probe whose permit is lost on the way holds its slot until its lease is over.
const lease = 4 * time.Second

var policies = map[string]breaker.Policy{
	one:  {ConsecutiveFailures: 3, Cooldown: 20 * time.Millisecond, ProbeSuccesses: 1 << 30, ProbeLease: lease},
	many: {ConsecutiveFailures: 3, Cooldown: 20 * time.Millisecond, ProbeSuccesses: 1 << 30, ProbeLease: lease, MaxProbes: 3},
}

var errDependency = errors.New("connection refused")

// A fleet is processes that use the same circuits, and what they have measured.
type fleet struct {
	t       *testing.T
	timeout time.Duration // StoreTimeout
	members []*member
	clients []redis.UniversalClient
	probes  map[string]*atomic.Pointer[gauge]
	stalled atomic.Int64 // the longest that a goroutine here had to wait for the machine
	stop    chan struct{}
	callers sync.WaitGroup
}

// A member is one process.
type member struct {
	*breaker.Breaker
	breaker.NopObserver
	onError breaker.StoreErrorPolicy

	calls, ran, unserved atomic.Int64
	longest              atomic.Int64 // beyond the call's own work
	degraded, recovered  atomic.Int64
}

func (m *member) StoreDegraded(error)          { m.degraded.Add(1) }
func (m *member) StoreRecovered(time.Duration) { m.recovered.Add(1) }

// A gauge knows how many run at once, and the most there were.
type gauge struct{ now, most atomic.Int64 }

func (g *gauge) enter() { raise(&g.most, g.now.Add(1)) }
func (g *gauge) leave() { g.now.Add(-1) }

func raise(most *atomic.Int64, n int64) {
	for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
	}
}

// startFleet starts two processes that refuse calls while the store fails, so
// that every probe is one that the store granted, and one of each
// other kind. Views and push are on, as by default.
func startFleet(t *testing.T, dial func() redis.UniversalClient, timeout time.Duration) *fleet {
	t.Helper()
	f := &fleet{t: t, timeout: timeout, stop: make(chan struct{}), probes: map[string]*atomic.Pointer[gauge]{
		one: new(atomic.Pointer[gauge]), many: new(atomic.Pointer[gauge])}}
	for i, onError := range []breaker.StoreErrorPolicy{breaker.FailClosed, breaker.FailClosed, breaker.FailOpen, breaker.FailLocal} {
		m, client := &member{onError: onError}, dial()
		b, err := breaker.New(breaker.NewRedisStore(client, breaker.RedisConfig{}), breaker.Config{
			Policy: breaker.Policy{ConsecutiveFailures: 3, Cooldown: time.Hour}, Policies: policies,
			OnStoreError: onError, StoreTimeout: timeout, Instance: fmt.Sprint("process-", i),
			Observer: m, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		m.Breaker = b
		f.members, f.clients = append(f.members, m), append(f.clients, client)
	}
	return f
}

// call makes one call, of which the own work is work, and checks what must hold
// of any.
func (f *fleet) call(m *member, key string, work time.Duration, end error) error {
	ran, worked := 0, time.Duration(0)
	probes := new(gauge)
	if p := f.probes[key]; p != nil && p.Load() != nil {
		probes = p.Load()
	}
	began := time.Now()
	err := m.Execute(context.Background(), key, func(context.Context) error {
		entered := time.Now()
		ran++
		probes.enter()
		defer probes.leave()
		time.Sleep(work)
		worked = time.Since(entered)
		return end
	})
	beyond := time.Since(began) - worked
	m.calls.Add(1)
	m.ran.Add(int64(ran))
	raise(&m.longest, int64(beyond))
	if stalled := time.Duration(f.stalled.Load()); beyond > f.timeout+slack+stalled {
		f.t.Errorf("%s: a call took %v beyond its own work, where no goroutine had to wait for more than %v", key, beyond, stalled)
	}
	switch {
	case ran > 1:
		f.t.Errorf("%s: fn ran %d times", key, ran)
	case ran == 1 && err != end:
		f.t.Errorf("%s: fn returned %v, and the caller got %v", key, end, err)
	case ran == 0 && errors.Is(err, breaker.ErrStore) && m.onError == breaker.FailClosed:
		m.unserved.Add(1)
	case ran == 0 && !errors.Is(err, breaker.ErrOpen) && !errors.Is(err, breaker.ErrBusy):
		f.t.Errorf("%s: fn did not run, and the caller got %v", key, err)
	}
	return err
}

// load makes calls until halt: probes by those who refuse calls in an outage,
// and by all calls of circuits that are well.
func (f *fleet) load() {
	f.callers.Go(func() {
		const pause = 5 * time.Millisecond
		for began := time.Now(); ; began = time.Now() {
			select {
			case <-f.stop:
				return
			case <-time.After(pause):
				raise(&f.stalled, int64(time.Since(began)-pause))
			}
		}
	})
	for i, m := range f.members {
		for j, key := range []string{"well", one, many, many} {
			if m.onError != breaker.FailClosed {
				key = fmt.Sprint("well-", j)
			}
			rng := rand.New(rand.NewPCG(uint64(i), uint64(j)))
			f.callers.Go(func() {
				for {
					select {
					case <-f.stop:
						return
					case <-time.After(time.Duration(rng.IntN(4000)) * time.Microsecond):
					}
					var end error
					if key == one && rng.IntN(10) < 7 {
						end = errDependency
					}
					err := f.call(m, key, time.Duration(rng.IntN(5000))*time.Microsecond, end)
					if err != nil && m.onError != breaker.FailClosed {
						f.t.Errorf("%s: a healthy circuit's call got %v", key, err)
					}
				}
			})
		}
	}
}

// trips opens the circuits that are to be probed. From then on each run is a
// probe, and is counted.
func (f *fleet) trips() {
	f.t.Helper()
	for _, key := range []string{one, many} {
		f.probes[key].Store(nil)
		f.trip(key)
		f.probes[key].Store(new(gauge))
	}
}

// trip has process 0 open a circuit, and waits until all those of the other
// processes that share it see it open. It returns how long that took.
func (f *fleet) trip(key string) time.Duration {
	f.t.Helper()
	began := time.Now()
	rejects := func(m *member, key string) bool {
		err := f.call(m, key, 0, errDependency)
		return errors.Is(err, breaker.ErrOpen) || errors.Is(err, breaker.ErrBusy)
	}
	for i := 0; ; i++ {
		// Each time another circuit: one that a process opened for itself while
		// the store failed shows nothing.
		k := key
		if policies[key] == (breaker.Policy{}) {
			k = fmt.Sprint(key, i)
		}
		opened := false
		for range 5 {
			opened = opened || rejects(f.members[0], k)
		}
		if opened && !slices.ContainsFunc(f.members, func(m *member) bool {
			deadline := time.Now().Add(time.Second)
			for k != key && !rejects(m, k) {
				if time.Now().After(deadline) {
					return true
				}
				time.Sleep(5 * time.Millisecond)
			}
			return false
		}) {
			return time.Since(began)
		}
		require.Less(f.t, time.Since(began), patience, "%s: the shared state is not regained", key)
		time.Sleep(20 * time.Millisecond)
	}
}

// halt ends the load.
func (f *fleet) halt() {
	close(f.stop)
	f.callers.Wait()
}

// close ends all and checks that no goroutine is left of it.
func (f *fleet) close(goroutines int) {
	f.t.Helper()
	for i, m := range f.members {
		assert.NoError(f.t, m.Close())
		_ = f.clients[i].Close()
	}
	left := 0
	assert.Eventually(f.t, func() bool {
		left = runtime.NumGoroutine()
		return left <= goroutines+1 // the one that asks this
	}, patience, 20*time.Millisecond)
	if left > goroutines+1 {
		stacks := make([]byte, 1<<20)
		f.t.Errorf("%d goroutines, %d before:\n%s", left, goroutines, stacks[:runtime.Stack(stacks, true)])
	}
}
