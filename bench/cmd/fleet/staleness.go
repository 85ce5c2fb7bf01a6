package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// staleness is how long one process goes on as before after another tripped a
// circuit, and after it closed it again; each from before the other's command
// is sent, so with its round trip. Sorted.
type staleness struct {
	Trips      []time.Duration `json:"trips_ns"`
	Recoveries []time.Duration `json:"recoveries_ns"`
	RoundTrips []time.Duration `json:"round_trips_ns"` // bare ones, at the same time
	Pauses     []time.Duration `json:"pauses_ns"`      // p50, p99, p100 of how late a goroutine that slept for 1 ms woke up
}

const pairs = 5 // circuits that are tripped side by side

func measureStaleness(cfg breaker.RedisConfig, trips int) (got *staleness, err error) {
	got = new(staleness)
	err = inLab(func(l *lab, s *redistest.Server) error {
		f, err := newFleet(l, s, 2, cfg, breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Hour}, nil)
		if err != nil {
			return err
		}
		var mu sync.Mutex
		var all []error
		var wg, ping sync.WaitGroup
		ended := make(chan struct{})
		ping.Go(func() { got.RoundTrips = pingUntil(ended, s.Client(nil)) })
		ping.Go(func() {
			p := pausesUntil(ended)
			got.Pauses = []time.Duration{at(p, 0.5), at(p, 0.99), at(p, 1)}
		})
		for i := range pairs {
			wg.Go(func() {
				t, r, err := trip(f.processes[0], f.processes[1], fmt.Sprint("key-", i), trips/pairs)
				mu.Lock()
				defer mu.Unlock()
				got.Trips, got.Recoveries = append(got.Trips, t...), append(got.Recoveries, r...)
				all = append(all, err)
			})
		}
		wg.Wait()
		close(ended)
		ping.Wait()
		slices.Sort(got.Trips)
		slices.Sort(got.Recoveries)
		return errors.Join(all...)
	})
	return got, err
}

func pingUntil(ended <-chan struct{}, client *redis.Client) (trips []time.Duration) {
	for {
		select {
		case <-ended:
			slices.Sort(trips)
			return trips
		case <-time.After(20 * time.Millisecond):
			trips = append(trips, bare(client, 1, 0)...)
		}
	}
}

// pausesUntil shows how long the machine keeps a program waiting that has
// something to do: that much, no bound of ours can be better.
func pausesUntil(ended <-chan struct{}) (pauses []time.Duration) {
	for {
		began := time.Now()
		select {
		case <-ended:
			slices.Sort(pauses)
			return pauses
		case <-time.After(time.Millisecond):
			pauses = append(pauses, time.Since(began)-time.Millisecond)
		}
	}
}

// trip has a trip and close a circuit that b calls all the time.
func trip(a, b *breaker.Breaker, key string, n int) (trips, recoveries []time.Duration, err error) {
	until := func(rejects bool) (time.Duration, error) {
		for began := time.Now(); time.Since(began) < 30*time.Second; time.Sleep(100 * time.Microsecond) {
			if errors.Is(call(b, key, nil), breaker.ErrOpen) == rejects {
				return time.Since(began), nil
			}
		}
		return 0, fmt.Errorf("%s: not seen in 30s", key)
	}
	for range n {
		// Views of any age, and a listener that hears.
		for wait := time.Now().Add(time.Duration(50+rand.IntN(100)) * time.Millisecond); time.Now().Before(wait); {
			if err := call(b, key, nil); err != nil {
				return nil, nil, err
			}
			time.Sleep(100 * time.Microsecond)
		}
		began := time.Now()
		if err := call(a, key, errDown); err != errDown {
			return nil, nil, err
		}
		sent := time.Since(began)
		took, err := until(true)
		if err != nil {
			return nil, nil, err
		}
		trips = append(trips, sent+took)

		began = time.Now()
		if err := a.Reset(ctx, key); err != nil {
			return nil, nil, err
		}
		sent = time.Since(began)
		if took, err = until(false); err != nil {
			return nil, nil, err
		}
		recoveries = append(recoveries, sent+took)
	}
	return trips, recoveries, nil
}
