package breaker_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/breakerkit/breaker"
)

// A death is what a fleet does once its dependency has died.
type death struct {
	mu        sync.Mutex
	dead      bool
	succeeded time.Time     // the last time
	calls     int           // made after the death
	asks      int           // which of them Settle is counted from: the second, when the others are asked
	asked     time.Time     // then
	lasted    time.Duration // from then to the last call, if there are more than five
}

func (d *death) call() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.dead {
		d.succeeded = time.Now()
		return nil
	}
	if d.calls++; d.calls == 1 {
		d.asks = 2
		// The store's times are whole milliseconds: a success that was as near as
		// this, and is told of when asked, may be taken for one that came after the
		// failure. Then the third begins a run of five, for which nobody is asked.
		if time.Since(d.succeeded) < 2*time.Millisecond {
			d.asks = 7
		}
	}
	if d.calls <= d.asks {
		d.asked = time.Now()
	}
	if d.calls > 5 {
		d.lasted = time.Since(d.asked)
	}
	return errSick
}

func (d *death) comes() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = true
}

// die has each process call at a pace of its own, and the dependency die. The
// processes begin at random, or one after the other at even intervals.
func die(t *testing.T, processes int, every time.Duration, evenly bool, seed uint64, cfg breaker.RedisConfig) *death {
	d := new(death)
	synctest.Test(t, func(t *testing.T) {
		f := newVirtualFleet(t, processes, cfg, breaker.Policy{})
		var wg sync.WaitGroup
		for i, b := range f.processes {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), seed))
				begin := time.Duration(r.Int64N(int64(every)))
				if evenly {
					begin = every * time.Duration(i) / time.Duration(processes)
				}
				time.Sleep(begin)
				for range 10 {
					_ = b.Execute(bg, "k", func(context.Context) error { return d.call() })
					time.Sleep(every)
				}
			})
		}
		time.Sleep(4*every + time.Duration(seed)*time.Millisecond)
		d.comes()
		wg.Wait()
		synctest.Wait()
		assert.Equal(t, int64(1), f.opened.Load(), "notices of the one opening")
	})
	return d
}

// When the dependency dies, the fleet makes the five calls that show it, and
// those that begin within Settle of the second, or while a view of that time is
// good. How many these are is chance, in a fleet whose processes call when they
// like.
func TestFleetStopsCallingADependencyThatDies(t *testing.T) {
	t.Parallel()
	large(t)
	const settle = 150 * time.Millisecond
	after := map[string]time.Duration{"strict": settle, "view": settle + staleness, "push": settle}
	seeds := 2
	if *longFleet {
		seeds = 30
	}
	for _, c := range []struct {
		name      string
		processes int
		every     time.Duration // between calls of one process
		evenly    bool
		most      int // calls made after the death, of one seed; 0: as chance has it
	}{
		{"one process", 1, 100 * time.Millisecond, true, 5},
		{"20 processes, 10 calls a second each", 20, 100 * time.Millisecond, false, 60},
		{"100 processes, a call in 5s each", 100, 5 * time.Second, false, 0},
		{"100 processes, a call in 5s each in turn", 100, 5 * time.Second, true, 8},
	} {
		for way, cfg := range fleetWays {
			t.Run(c.name+"/"+way, func(t *testing.T) {
				var made []int
				for seed := range seeds {
					d := die(t, c.processes, c.every, c.evenly, uint64(seed+1), cfg)
					made = append(made, d.calls)
					assert.LessOrEqual(t, d.lasted, after[way], "from the second failure to the last call")
				}
				slices.Sort(made)
				t.Log("calls made after the death: ", made)
				assert.GreaterOrEqual(t, made[0], 5)
				if c.most > 0 {
					assert.LessOrEqual(t, made[seeds-1], c.most)
				}
			})
		}
	}
}
