package breaker_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/breakerkit/breaker"
)

// A slowHook has each step of the store take its time.
type slowHook time.Duration

func (h slowHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h slowHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "hmget" || cmd.Name() == "evalsha" { // what greets a server must not wait: locks are held
			time.Sleep(time.Duration(h))
		}
		return next(ctx, cmd)
	}
}

func (h slowHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A caller who cancels while the store is asked gets the context's error, and fn
// does not run, also where the store is asked on the caller's own goroutine.
func TestACallerWhoCancelsWhileTheStoreIsAskedMakesNoCall(t *testing.T) {
	for name, heeds := range map[string]bool{"in a goroutine": false, "on the caller's own": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newMiniRedis(t)
				client := redis.NewClient(&redis.Options{
					Addr:     "127.0.0.1:6379", // not dialled
					Dialer:   func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
					PoolSize: 1000, ContextTimeoutEnabled: heeds,
				})
				t.Cleanup(func() { _ = client.Close() })
				client.AddHook(slowHook(50 * time.Millisecond))
				b := newBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{MaxStaleness: -1}), breaker.Config{})
				ctx, cancel := context.WithCancel(bg)
				time.AfterFunc(20*time.Millisecond, cancel)
				err := b.Execute(ctx, "k", func(context.Context) error { t.Error("fn ran"); return nil })
				assert.Equal(t, context.Canceled, err)

				// One that was cancelled before is fn's to see.
				ran := false
				assert.NoError(t, b.Execute(ctx, "k", func(context.Context) error { ran = true; return nil }))
				assert.True(t, ran)
			})
		})
	}
}

// Asking may take a read and a script. A caller waits for both together no longer
// than StoreTimeout; but a store each of whose steps takes less has not failed.
func TestAStoreWhoseStepsTogetherTakeTooLongHasNotFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newMiniRedis(t)
		policy := breaker.Policy{ConsecutiveFailures: 1}
		trip(t, newBreaker(t, server.store(t), breaker.Config{Policy: policy}), "k", 1)
		client := server.client(t)
		client.AddHook(slowHook(60 * time.Millisecond))
		var h hearing
		b := newBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{MaxStaleness: -1}),
			breaker.Config{Policy: policy, Observer: &h, OnStoreError: breaker.FailClosed})
		assert.Equal(t, 100*time.Millisecond, took(func() {
			assert.ErrorIs(t, execute(b, "k", nil), breaker.ErrStore, "it is read, and decided on")
		}))
		assert.Equal(t, 60*time.Millisecond, took(func() {
			assert.ErrorIs(t, execute(b, "k", nil), breaker.ErrOpen, "from now on it is decided on straight away")
		}))

		// A probe whose leave comes too late is given back.
		time.Sleep(time.Minute)
		late := newBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{MaxStaleness: -1}), breaker.Config{Policy: policy})
		assert.NoError(t, execute(late, "k", nil), "unprotected")
		time.Sleep(time.Second)
		assert.Zero(t, snapshotOf(t, late, "k").ProbesInFlight)
		assert.NoError(t, execute(b, "k", nil), "the probe")
		degraded, _, _ := h.outages()
		assert.Zero(t, degraded)
	})
}
