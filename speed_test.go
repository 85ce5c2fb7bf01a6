package breaker_test

import (
	"context"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// What calls allocate. How long they take is for the benchmarks to say.
func TestCallsAllocateNothingOrOnce(t *testing.T) {
	server := redistest.Start(t)
	stores := map[string]func() breaker.Store{
		"memory": func() breaker.Store { return breaker.NewMemoryStore(breaker.MemoryConfig{}) },
		"view": func() breaker.Store {
			return breaker.NewRedisStore(server.Client(nil), breaker.RedisConfig{MaxStaleness: time.Hour})
		},
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			b := patientBreaker(t, store(), breaker.Config{
				Policy:       breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Hour},
				Policies:     map[string]breaker.Policy{"rate": {FailureRate: 1, MinCalls: 1000}, "slow": {SlowRate: 1, SlowAfter: time.Hour}},
				StoreTimeout: 10 * time.Second,
			})
			allocs := func(key string) float64 {
				succeed := func(context.Context) error { return nil }
				_ = b.Execute(bg, key, succeed)
				return testing.AllocsPerRun(1000, func() { _ = b.Execute(bg, key, succeed) })
			}
			assert.Zero(t, allocs("closed"))
			assert.Zero(t, allocs("rate"))
			assert.Zero(t, allocs("slow"))
			require.Equal(t, errDown, execute(b, "open", errDown))
			require.ErrorIs(t, execute(b, "open", nil), breaker.ErrOpen)
			assert.LessOrEqual(t, allocs("open"), 1.0, "the error")
		})
	}
}

// What a key costs that holds nothing, its name included.
func TestHealthyKeyTakesLittleMemory(t *testing.T) {
	const keys = 100_000
	b := newBreaker(t, breaker.NewMemoryStore(breaker.MemoryConfig{MaxKeys: keys}), breaker.Config{})
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range keys {
		require.NoError(t, execute(b, "https://api.example.com/tenants/"+strconv.Itoa(i), nil))
	}
	each := (heap() - before) / keys
	t.Logf("%d bytes a key", each)
	assert.LessOrEqual(t, each, int64(400))
	runtime.KeepAlive(b)
}
