package breaker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// Failures are told at once and successes a little later, so the first tallies
// of a window are too dark. Yet a fleet under its rate does not open, from the
// first call on, and one above it does at once. The long form is a hundred
// windows of twice as many processes.
func TestFleetRateIsNotThatOfWhoReportsFirst(t *testing.T) {
	t.Parallel()
	large(t)
	fleets, processes, windows := 1, 100, 2
	if *longFleet {
		fleets, processes, windows = 10, 200, 10
	}
	for way, cfg := range fleetWays {
		for seed := range fleets {
			t.Run(fmt.Sprintf("%s/%d", way, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { fleetUnderARate(t, processes, windows, uint64(seed), cfg) })
			})
		}
	}
}

func fleetUnderARate(t *testing.T, processes, windows int, seed uint64, cfg breaker.RedisConfig) {
	const (
		every  = 20 * time.Millisecond
		window = 200 * time.Millisecond // ten calls of each
	)
	f := newVirtualFleet(t, processes, cfg, breaker.Policy{FailureRate: 0.25, MinCalls: 20, Window: window, Cooldown: time.Hour})
	ctx, stop := context.WithCancel(bg)
	var percent, calls atomic.Int64 // percent of the calls fail
	percent.Store(10)
	var wg sync.WaitGroup
	for i, b := range f.processes {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), seed))
			time.Sleep(time.Duration(r.Int64N(int64(every))))
			for ctx.Err() == nil {
				length := time.Duration(r.Int64N(int64(every)))
				_ = b.Execute(bg, "k", func(context.Context) error {
					calls.Add(1)
					time.Sleep(length)
					if r.Int64N(100) < percent.Load() {
						return errSick
					}
					return nil
				})
				time.Sleep(every - length)
			}
		})
	}
	time.Sleep(time.Duration(windows) * window)
	assert.Zero(t, f.opened.Load(), "10 %% of %d calls failed, in %d windows", calls.Load(), windows)

	percent.Store(50)
	began := time.Now()
	for f.opened.Load() == 0 && time.Since(began) < time.Second {
		time.Sleep(time.Millisecond)
	}
	t.Logf("%d calls; opened %v after half of them failed", calls.Load(), time.Since(began))
	assert.Equal(t, int64(1), f.opened.Load(), "half of the calls fail")
	stop()
	wg.Wait()
	synctest.Wait()
}

// A process that is alone knows all, and need not wait for others.
func TestRateOfOneProcessOpensOnTheCallThatMeetsIt(t *testing.T) {
	for way, cfg := range fleetWays {
		t.Run(way, func(t *testing.T) {
			for seed := range uint64(10) {
				synctest.Test(t, func(t *testing.T) {
					f := newVirtualFleet(t, 1, cfg, breaker.Policy{FailureRate: 0.25, MinCalls: 20})
					r := rand.New(rand.NewPCG(seed, 1))
					calls, failures := 0, 0
					for met := false; !met; {
						require.Less(t, calls, 1000)
						time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
						calls++
						err := error(nil)
						if failed := r.Float64() < 0.3; failed {
							failures++
							err = errSick
							met = calls >= 20 && float64(failures) >= 0.25*float64(calls)
						}
						require.Equal(t, err, execute(f.processes[0], "k", err))
						synctest.Wait()
						require.Equal(t, met, f.opened.Load() == 1, "call %d, %d failed", calls, failures)
					}
				})
			}
		})
	}
}
