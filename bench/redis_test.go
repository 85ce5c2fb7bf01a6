package bench

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

func newClient(tb testing.TB) *redis.Client {
	// The client heeds contexts, as the README advises.
	return redistest.Start(tb).Client(&redis.Options{ContextTimeoutEnabled: true})
}

func redisPeer(name string, client redis.UniversalClient, cfg breaker.RedisConfig, p breaker.Policy) peer {
	return peer{name, func(tb testing.TB, fn caller) caller {
		if err := client.FlushAll(ctx).Err(); err != nil {
			tb.Fatal(err)
		}
		return ours(tb, fn, p, breaker.NewRedisStore(client, cfg))
	}}
}

func distributedPeer(client *redis.Client) peer {
	return peer{"gobreaker-distributed", func(tb testing.TB, fn caller) caller {
		b, err := gobreaker.NewDistributedCircuitBreaker[struct{}](locked{client}, gobreaker.Settings{Name: "stripe"})
		if err != nil {
			tb.Fatal(err)
		}
		call := func() (struct{}, error) { return struct{}{}, fn() }
		return func() error {
			_, err := b.Execute(call)
			return err
		}
	}}
}

// locked is the store that gobreaker's distributed breaker asks for: the least
// that keeps its promise, with a lock that SET NX takes.
type locked struct{ client *redis.Client }

func (s locked) Lock(name string) error {
	for {
		ok, err := s.client.SetNX(ctx, name+":lock", 1, 10*time.Second).Result()
		if ok || err != nil {
			return err
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func (s locked) Unlock(name string) error { return s.client.Del(ctx, name+":lock").Err() }

func (s locked) GetData(name string) ([]byte, error) {
	data, err := s.client.Get(ctx, name).Bytes()
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	return data, err
}

func (s locked) SetData(name string, data []byte) error {
	return s.client.Set(ctx, name, data, 0).Err()
}

// BenchmarkRedis compares a call with what the client takes for one bare
// command.
func BenchmarkRedis(b *testing.B) {
	client := newClient(b)
	stays := breaker.Policy{Cooldown: forever}
	b.Run("bare-get", func(b *testing.B) {
		b.ReportAllocs()
		_ = client.Set(ctx, "k", "v", 0)
		for b.Loop() {
			if err := client.Get(ctx, "k").Err(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bare-evalsha", func(b *testing.B) {
		b.ReportAllocs()
		sha := client.ScriptLoad(ctx, "return redis.call('HSET', KEYS[1], 'a', ARGV[1])").Val()
		for b.Loop() {
			if err := client.EvalSha(ctx, sha, []string{"h"}, "1").Err(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bare-report", func(b *testing.B) { bareReport(b, client) })
	fails := func() error { return errDown }
	each(b, []peer{
		redisPeer("view", client, breaker.RedisConfig{}, stays),
		redisPeer("strict", client, breaker.RedisConfig{MaxStaleness: -1}, stays),
		distributedPeer(client),
	}, succeed, runs)
	each(b, []peer{redisPeer("view-open", client, breaker.RedisConfig{}, stays)}, fails, isRejected)
	each(b, []peer{redisPeer("failure", client, breaker.RedisConfig{}, breaker.Policy{FailureRate: 1, MinCalls: 1e6})}, fails,
		func(b *testing.B, call caller) {
			for b.Loop() {
				if err := call(); err != errDown {
					b.Fatal(err)
				}
			}
		})
}

// bareReport sends the script of a failure's report as the store does, and
// nothing around it.
func bareReport(b *testing.B, client *redis.Client) {
	var source []byte
	for _, file := range []string{"../lua/circuit.lua", "../lua/report.lua"} {
		text, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		source = append(source, text...)
	}
	client.FlushAll(ctx)
	sha := client.ScriptLoad(ctx, string(source)).Val()
	keys := []string{"breaker:{stripe}", "breaker:{stripe}:log"}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		err := client.EvalSha(ctx, sha, keys, "0,0,1,0,0,1000000,60000,60000,0,0,1,1,60000,", "150,0.5", "web-1:4711",
			"process", "0,"+strconv.Itoa(i+1)+",-1", "", "process-"+strconv.Itoa(i), 0, "", "failure", 0, 0, errDown.Error()).Err()
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWorkers is one call of 1 ms by each of 4 workers on one circuit.
func BenchmarkWorkers(b *testing.B) {
	client := newClient(b)
	slow := func() error { time.Sleep(time.Millisecond); return nil }
	each(b, []peer{
		{"none", func(_ testing.TB, fn caller) caller { return fn }},
		redisPeer("view", client, breaker.RedisConfig{}, breaker.Policy{}),
		redisPeer("strict", client, breaker.RedisConfig{MaxStaleness: -1}, breaker.Policy{}),
		distributedPeer(client),
	}, slow, func(b *testing.B, call caller) {
		for b.Loop() {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if err := call(); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
		}
	})
}
