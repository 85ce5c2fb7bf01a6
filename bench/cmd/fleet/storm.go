package main

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// storm is what happens while processes report failures of one circuit, as fast
// as they can pace them.
type storm struct {
	Failures      float64          `json:"failures_a_second"`
	Announcements float64          `json:"announcements_a_second"`
	Report        [2]time.Duration `json:"report"`     // p50 and p99
	RoundTrip     [2]time.Duration `json:"round_trip"` // of a bare PING in the same seconds: p50 and p99
	CPU           float64          `json:"cpu"`
	Degraded      int64            `json:"degraded"`
}

const (
	stormProcesses = 50
	stormWorkers   = 2                     // of each
	stormEvery     = 20 * time.Millisecond // a failure of each of those
)

func measureStorm(cfg breaker.RedisConfig, span time.Duration) (got *storm, err error) {
	got = new(storm)
	err = inLab(func(l *lab, s *redistest.Server) error {
		timed := new(timer)
		// So many failures open nothing: the storm goes on.
		f, err := newFleet(l, s, stormProcesses, cfg, breaker.Policy{ConsecutiveFailures: 1 << 30}, timed)
		if err != nil {
			return err
		}
		client := s.Client(nil)
		work, stop := context.WithCancel(ctx)
		defer stop()
		var wg sync.WaitGroup
		var failures atomic.Int64
		for i := range stormProcesses * stormWorkers {
			b := f.processes[i/stormWorkers]
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				time.Sleep(time.Duration(r.Int64N(int64(stormEvery))))
				for tick := time.NewTicker(stormEvery); work.Err() == nil; <-tick.C {
					_ = call(b, "k", errDown)
					failures.Add(1)
				}
			})
		}
		time.Sleep(2 * time.Second)
		before, err := look(client, s)
		if err != nil {
			return err
		}
		began, failed, published := time.Now(), failures.Load(), s.Commands()["publish"]
		timed.start()
		trips := bare(client, int(span/(5*time.Millisecond)), 5*time.Millisecond)
		reports := timed.stop()
		seconds := time.Since(began).Seconds()
		after, err := look(client, s)
		if err != nil {
			return err
		}
		got.Failures = float64(failures.Load()-failed) / seconds
		got.Announcements = float64(s.Commands()["publish"]-published) / seconds
		got.CPU = (after.cpu - before.cpu) / seconds
		got.Report = [2]time.Duration{at(reports, 0.5), at(reports, 0.99)}
		got.RoundTrip = [2]time.Duration{at(trips, 0.5), at(trips, 0.99)}
		got.Degraded = f.degraded.Load()
		stop()
		wg.Wait()
		return nil
	})
	return got, err
}

// A timer is a hook that times the scripts of its clients. In a storm of
// failures on a circuit that stays closed, these are the reports.
type timer struct {
	mu    sync.Mutex
	on    bool
	times []time.Duration
}

func (t *timer) start() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on = true
}

// stop returns the times, sorted.
func (t *timer) stop() []time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on = false
	slices.Sort(t.times)
	return t.times
}

func (t *timer) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (t *timer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (t *timer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		began := time.Now()
		err := next(ctx, cmd)
		if took := time.Since(began); strings.HasPrefix(cmd.Name(), "eval") {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.on {
				t.times = append(t.times, took)
			}
		}
		return err
	}
}
