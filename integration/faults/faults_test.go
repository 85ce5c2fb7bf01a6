package faults_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"

	"github.com/breakerkit/breaker"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis tells of each failed dial
	m.Run()
}

// A world is servers, a way to them, and what befalls them.
type world struct {
	dial  func() redis.UniversalClient
	begin func() // the fault
	end   func() // all is well again; nil: it ends by itself
	lasts time.Duration
}

// A fault is one row of docs/reliability.md.
type fault struct {
	name  string
	start func(t *testing.T) world

	forgets bool // what circuits knew may be lost: then they begin closed
	unseen  bool // no process may notice: the store is used all the time
}

func TestFaults(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			w := f.start(t)
			if w.lasts == 0 {
				w.lasts = time.Second
			}
			check(t, f, w)
		})
	}
}

// check has a fleet go through a fault. Not parallel: it counts goroutines.
func check(t *testing.T, f fault, w world) {
	warm := w.dial() // what a client starts once for the whole program is not the fleet's
	warm.Ping(t.Context())
	_ = warm.Close()
	runtime.GC()
	goroutines := settled()
	timeout := 250 * time.Millisecond
	if f.unseen {
		timeout = 10 * time.Second // a machine that is busy with other things is no fault
	}
	fleet := startFleet(t, w.dial, timeout)
	fleet.trips()
	fleet.load()

	w.begin()
	time.Sleep(w.lasts)
	if w.end != nil {
		w.end()
	}
	regained := fleet.trip("regained-")
	if f.forgets {
		fleet.trips()
	}
	for key, p := range fleet.probes {
		most := &p.Load().most
		assert.Eventually(t, func() bool { return most.Load() > 0 }, patience, 5*time.Millisecond, "%s: nobody probes", key)
	}
	time.Sleep(300 * time.Millisecond)
	fleet.halt()
	most := map[string]int64{}
	for key, p := range fleet.probes {
		most[key] = p.Load().most.Load()
		assert.LessOrEqual(t, most[key], int64(max(policies[key].MaxProbes, 1)), "%s: probes at once", key)
	}

	var calls, ran, unserved, degraded int64
	var longest time.Duration
	for _, m := range fleet.members {
		calls, ran, unserved, degraded = calls+m.calls.Load(), ran+m.ran.Load(), unserved+m.unserved.Load(), degraded+m.degraded.Load()
		longest = max(longest, time.Duration(m.longest.Load()))
		if m.onError == breaker.FailOpen || m.onError == breaker.FailLocal {
			assert.Positive(t, m.ran.Load())
		}
	}
	if f.unseen {
		assert.Zero(t, degraded, "the store was given up")
		assert.Zero(t, unserved)
	}
	fleet.close(goroutines)
	t.Logf("| %s | %d calls, %d ran, %d refused for want of a store; %d outages seen; at most %d of 1 and %d of 3 probes at once; longest %v beyond own work (machine stalled for %v); regained after %v |",
		f.name, calls, ran, unserved, degraded, most[one], most[many], longest.Round(time.Millisecond), time.Duration(fleet.stalled.Load()).Round(time.Millisecond), regained.Round(time.Millisecond))
}

// settled is the number of goroutines once it does not change any more.
func settled() int {
	n := runtime.NumGoroutine()
	for range 50 {
		time.Sleep(20 * time.Millisecond)
		now := runtime.NumGoroutine()
		if now == n {
			return n
		}
		n = now
	}
	return n
}

// every calls do again and again while a fault lasts.
func every(t *testing.T, pause time.Duration, do func()) (begin, end func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	begin = func() {
		go func() {
			defer close(ended)
			for range 100_000 {
				select {
				case <-stop:
					return
				case <-time.After(pause):
					do()
				}
			}
		}()
	}
	return begin, func() { close(stop); <-ended }
}
