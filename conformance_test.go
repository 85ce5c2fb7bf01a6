package breaker_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
	"github.com/breakerkit/breaker/storetest"
)

func TestMemoryStoreConforms(t *testing.T) {
	storetest.Run(t, storetest.Config{
		Around: synctest.Test,
		New: func(*testing.T) storetest.Harness {
			return storetest.Harness{Store: breaker.NewMemoryStore(breaker.MemoryConfig{}), Advance: time.Sleep}
		},
	})
}

// redisWays are the ways to run a RedisStore that change how it decides, or
// what it reads.
var redisWays = []struct {
	name     string
	cfg      breaker.RedisConfig
	protocol int
}{
	{"views", breaker.RedisConfig{NoPush: true}, 3},
	{"strict", breaker.RedisConfig{MaxStaleness: -1}, 3},
	{"hasty", breaker.RedisConfig{NoPush: true, Settle: -1}, 3},
	{"push", breaker.RedisConfig{}, 3}, // not on a real server: time in a bubble stands still while a listener reads
	{"RESP2", breaker.RedisConfig{NoPush: true}, 2},
}

// The scripts ask miniredis for its own TIME, which is the bubble's.
func TestRedisStoreConformsOnMiniredis(t *testing.T) {
	t.Parallel()
	for _, way := range redisWays[:4] {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, storetest.Config{
				Around: synctest.Test,
				New: func(t *testing.T) storetest.Harness {
					m := miniredis.NewMiniRedis()
					t.Cleanup(m.Close)
					m.ClockTTL(true)
					dial := func(context.Context, string, string) (net.Conn, error) { return m.Dial() }
					open := func() breaker.Store {
						client := bubbleClient(t, &redis.Options{Addr: "127.0.0.1:0", Dialer: dial, Protocol: way.protocol})
						return breaker.NewRedisStore(client, way.cfg)
					}
					return storetest.Harness{Store: open(), Advance: time.Sleep, Another: open}
				},
			})
		})
	}
}

// A real server's TIME can't be moved: its scripts ask a list that goes with
// the bubble's time, as the clocks of the processes do.
func TestRedisStoreConformsOnARealServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, way := range redisWays {
		if way.name == "push" {
			continue
		}
		t.Run(way.name, func(t *testing.T) {
			storetest.Run(t, storetest.Config{
				Around: synctest.Test,
				New: func(t *testing.T) storetest.Harness {
					client := func() *redis.Client {
						return bubbleClient(t, &redis.Options{Addr: server.Addr, Protocol: way.protocol})
					}
					clock := listClock{t, client()}
					require.NoError(t, clock.client.FlushAll(t.Context()).Err())
					clock.advance(0)
					open := func() breaker.Store { return breaker.NewRedisStoreAt(client(), way.cfg, clockKey) }
					return storetest.Harness{Store: open(), Advance: clock.advance, Another: open}
				},
			})
		})
	}
}

const clockKey = "the-clock"

// A listClock is what NewRedisStoreAt has its scripts ask.
type listClock struct {
	t      *testing.T
	client *redis.Client
}

func (c listClock) advance(d time.Duration) {
	c.t.Helper()
	time.Sleep(d)
	now := time.Now()
	_, err := c.client.TxPipelined(c.t.Context(), func(p redis.Pipeliner) error {
		p.Del(c.t.Context(), clockKey)
		p.RPush(c.t.Context(), clockKey, strconv.FormatInt(now.Unix(), 10), strconv.Itoa(now.Nanosecond()/1000))
		return nil
	})
	require.NoError(c.t, err)
}

// bubbleClient returns a client that ends with its test, inside the test's
// bubble. Its pool has room for all: the timers of those that wait for a
// connection are shared with other bubbles.
func bubbleClient(t *testing.T, opts *redis.Options) *redis.Client {
	opts.PoolSize = 128
	c := redis.NewClient(opts)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
