package load_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/plot"
	"github.com/breakerkit/breaker/internal/redistest"
)

var (
	allCalls = flag.Int("calls", 100_000, "calls in TestCalls; 1000000 in the long form")
	soak     = flag.Duration("soak", 2*time.Second, "how long TestSoak goes on; 10m in the long form")
	plotTo   = flag.String("soak.plot", "", "`file` that TestSoak draws memory and goroutines in, as SVG")
	attack   = flag.Int("attack", 20_000, "distinct keys of an attacker; 1000000 in the long form")
)

const (
	keys       = 10_000
	goroutines = 64
)

var errDependency = errors.New("connection refused")

// A load is calls of many goroutines on many keys, of which every hundredth is
// down, and the counts of an observer to compare them with.
type load struct {
	*breaker.Breaker
	breaker.NopObserver
	ran, rejected   atomic.Int64
	done, told      atomic.Int64
	opened          atomic.Int64
	down            atomic.Bool // every hundredth key
	wrong, degraded atomic.Int64
}

func (l *load) CallDone(string, breaker.Outcome, time.Duration) { l.done.Add(1) }
func (l *load) Rejected(string, *breaker.RejectedError)         { l.told.Add(1) }
func (l *load) StoreDegraded(error)                             { l.degraded.Add(1) }
func (l *load) Transitioned(t breaker.Transition) {
	if t.To == breaker.StateOpen {
		l.opened.Add(1)
	}
}

func newLoad(t *testing.T, store breaker.Store) *load {
	t.Helper()
	l := new(load)
	l.down.Store(true)
	b, err := breaker.New(store, breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 3, Cooldown: 50 * time.Millisecond},
		Observer: l, StoreTimeout: time.Minute, OnStoreError: breaker.FailClosed})
	require.NoError(t, err)
	l.Breaker = b
	return l
}

// call makes one call and checks what the caller got.
func (l *load) call(key int) {
	var end error
	if key%100 == 0 && l.down.Load() {
		end = errDependency
	}
	ran := 0
	err := l.Execute(context.Background(), fmt.Sprint("tenant-", key), func(context.Context) error { ran++; return end })
	switch {
	case ran == 1 && err == end:
		l.ran.Add(1)
	case ran == 0 && (errors.Is(err, breaker.ErrOpen) || errors.Is(err, breaker.ErrBusy)):
		l.rejected.Add(1)
	default:
		l.wrong.Add(1)
	}
}

func (l *load) calls(n int) {
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for range n / goroutines {
				l.call(rng.IntN(keys))
			}
		})
	}
	all.Wait()
}

// heap is what is in use once all garbage is gone, in MB.
func heap() float64 {
	runtime.GC()
	runtime.GC() // what finalizers held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / 1e6
}

func stores(t *testing.T) map[string]breaker.Store {
	return map[string]breaker.Store{
		"memory": breaker.NewMemoryStore(breaker.MemoryConfig{}),
		"redis":  breaker.NewRedisStore(redistest.Start(t).Client(nil), breaker.RedisConfig{}),
	}
}

// Each call is accounted for: it ran once, or was rejected, and the Observer
// heard of it.
func TestCalls(t *testing.T) {
	for name, store := range stores(t) {
		t.Run(name, func(t *testing.T) {
			l := newLoad(t, store)
			began := time.Now()
			l.calls(*allCalls)
			took := time.Since(began)
			require.NoError(t, l.Close())
			n := int64(*allCalls / goroutines * goroutines)
			assert.Zero(t, l.wrong.Load())
			assert.Zero(t, l.degraded.Load())
			assert.Equal(t, n, l.ran.Load()+l.rejected.Load())
			assert.Equal(t, l.ran.Load(), l.done.Load())
			assert.Equal(t, l.rejected.Load(), l.told.Load())
			assert.Positive(t, l.rejected.Load())
			assert.GreaterOrEqual(t, l.opened.Load(), int64(keys/100), "each key that is down opens")
			t.Logf("| %s | %d calls over %d keys and %d goroutines in %v: %d ran, %d rejected, %d openings |",
				name, n, keys, goroutines, took.Round(time.Millisecond), l.ran.Load(), l.rejected.Load(), l.opened.Load())
		})
	}
}

// Memory and goroutines stay where they were once all keys are known.
func TestSoak(t *testing.T) {
	var heaps, routines plot.Panel
	for name, store := range stores(t) {
		t.Run(name, func(t *testing.T) {
			l := newLoad(t, store)
			before := runtime.NumGoroutine()
			for key := range keys { // all are known from here on
				l.call(key)
			}
			l.calls(20 * goroutines)
			inUse, running := plot.Series{Name: name}, plot.Series{Name: name}
			first, most := heap(), 0
			began := time.Now()
			for next := began; time.Since(began) < *soak; {
				l.calls(200 * goroutines)
				l.down.Store(!l.down.Load()) // dependencies come and go
				most = max(most, runtime.NumGoroutine())
				if time.Now().After(next) {
					next = time.Now().Add(*soak / 60)
					at := time.Since(began).Minutes()
					inUse.Points = append(inUse.Points, [2]float64{at, heap()})
					running.Points = append(running.Points, [2]float64{at, float64(runtime.NumGoroutine())})
				}
			}
			last := heap()
			assert.Less(t, last, first*1.5+10, "MB in use, %.1f at first", first)
			assert.Less(t, most, before+goroutines, "goroutines between calls, %d before", before)
			assert.Zero(t, l.wrong.Load())
			require.NoError(t, l.Close())
			heaps.Series, routines.Series = append(heaps.Series, inUse), append(routines.Series, running)
			t.Logf("| %s, %v | %d calls; %.1f MB in use at first, %.1f MB at last; %d goroutines before, %d at most between calls |",
				name, soak, l.ran.Load()+l.rejected.Load(), first, last, before, most)
		})
	}
	if *plotTo != "" {
		for _, p := range []*plot.Panel{&heaps, &routines} {
			p.XLabel, p.XTicks = "minutes", ticks(soak.Minutes())
			most := 0.0
			for _, s := range p.Series {
				for _, at := range s.Points {
					most = max(most, at[1])
				}
			}
			p.YTicks = ticks(most * 1.2)
		}
		heaps.Title, heaps.YLabel = "Memory in use", "MB"
		routines.Title, routines.YLabel = "Goroutines between calls", ""
		require.NoError(t, plot.Draw(*plotTo, &heaps, &routines))
	}
}

// ticks are five from zero on that reach most.
func ticks(most float64) []float64 {
	step := math.Ceil(most / 4)
	return []float64{0, step, 2 * step, 3 * step, 4 * step}
}

// hostile is the i-th key of an attacker: as long as may be, and of bytes that
// mean something to Redis, to Lua, to a Cluster or to a terminal.
func hostile(i int) string {
	return fmt.Sprintf("%d}{\r\n*3\r\n$3\r\nSET\x00\xff%%s\x1b[2J'\"]] .. redis.call('FLUSHALL') --", i) + strings.Repeat("\xf0\x9f\x9a\x80", i%100)
}

// An attacker who chooses keys fills neither the process nor the server, and a
// circuit that is open stays open.
func TestAttackersKeys(t *testing.T) {
	for _, name := range []string{"memory", "redis"} {
		t.Run(name, func(t *testing.T) {
			const maxKeys = 10_000
			var store breaker.Store = breaker.NewMemoryStore(breaker.MemoryConfig{MaxKeys: maxKeys})
			var client *redis.Client
			if name == "redis" {
				client = redistest.Start(t).Client(nil)
				store = breaker.NewRedisStore(client, breaker.RedisConfig{})
			}
			b, err := breaker.New(store, breaker.Config{StoreTimeout: time.Minute,
				Policy: breaker.Policy{ConsecutiveFailures: 3, Cooldown: time.Hour, Window: time.Millisecond}})
			require.NoError(t, err)
			ctx := context.Background()
			for range 3 {
				_ = b.Execute(ctx, "victim", func(context.Context) error { return errDependency })
			}
			before := heap()
			var all sync.WaitGroup
			for g := range 16 {
				all.Go(func() {
					for i := g; i < *attack; i += 16 {
						end := error(nil)
						if i%10 == 0 {
							end = errDependency // each a record
						}
						err := b.Execute(ctx, hostile(i), func(context.Context) error { return end })
						assert.Equal(t, end, err)
					}
				})
			}
			all.Wait()
			for _, key := range []string{strings.Repeat("x", 64<<10), strings.Repeat("\x00", 1025)} {
				err := b.Execute(ctx, key, func(context.Context) error { t.Error("it ran"); return nil })
				assert.ErrorIs(t, err, breaker.ErrConfig)
				assert.Less(t, len(err.Error()), 300)
			}
			assert.ErrorIs(t, b.Execute(ctx, "victim", func(context.Context) error { return nil }), breaker.ErrOpen)
			after := heap()
			known := 0
			for range store.(breaker.Lister).Keys(ctx) {
				known++
			}
			if client != nil {
				records := client.DBSize(ctx).Val()
				used := client.InfoMap(ctx, "memory").Val()["Memory"]["used_memory"]
				ttl := client.TTL(ctx, "breaker:names").Val()
				assert.Positive(t, ttl)
				assert.LessOrEqual(t, records, int64(*attack/10*2+3), "a record and a history for each key that failed, the victim, the names")
				some, _, err := client.Scan(ctx, 0, "*", 1000).Result()
				require.NoError(t, err)
				for _, key := range some {
					require.Positive(t, client.TTL(ctx, key).Val(), "%q stays for ever", key)
					require.True(t, strings.HasPrefix(key, "breaker:"), "%q is not ours", key)
					require.LessOrEqual(t, strings.Count(key, "{"), 1, "%q", key)
				}
				t.Logf("%d keys in Redis, %s bytes", records, used)
				assert.LessOrEqual(t, known, 100_000)
			} else {
				assert.LessOrEqual(t, known, maxKeys)
			}
			// A bound for what the process remembers of 100,000 circuits, and no more.
			assert.Less(t, after-before, 300.0, "MB more in use")
			require.NoError(t, b.Close())
			t.Logf("| %s | %d keys: %.1f MB more in use, %d names listed |", name, *attack, after-before, known)
		})
	}
}
