package breaker_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// That a success is told, whatever becomes of the message.

// A meddler comes between a client and its server, once for a command it is
// armed for.
type meddler struct {
	armed atomic.Pointer[string]
	with  func() error
}

func (m *meddler) arm(command string) { m.armed.Store(&command) }

func (*meddler) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*meddler) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (m *meddler) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if c := m.armed.Load(); c != nil && *c == strings.ToLower(cmd.Name()) && m.armed.CompareAndSwap(c, nil) {
			if err := m.with(); err != nil {
				cmd.SetErr(err)
				return err
			}
		}
		return next(ctx, cmd)
	}
}

// A success that was on its way when the store failed is told by the next.
func TestASuccessThatWasNotToldIsToldByTheNext(t *testing.T) {
	for way, cfg := range fleetWays {
		t.Run(way, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newMiniRedis(t)
				client, lost := server.client(t), &meddler{with: func() error { return errors.New("connection reset") }}
				client.AddHook(lost)
				a := newBreaker(t, server.store(t), breaker.Config{})
				b := newBreaker(t, breaker.NewRedisStore(client, cfg), breaker.Config{})
				executeN(t, a, "k", 4, errDown)
				call := beginCall(b, "k")
				lost.arm("evalsha")
				require.NoError(t, call.finish(nil))
				require.Equal(t, 4, snapshotOf(t, a, "k").ConsecutiveFailures)
				time.Sleep(time.Second)
				for range 10 {
					executeN(t, b, "k", 1, nil)
					time.Sleep(time.Second)
				}
				assert.Zero(t, snapshotOf(t, a, "k").ConsecutiveFailures)
			})
		})
	}
}

// Nor does it matter that the store was being left alone then.
func TestASuccessInAnOutageIsToldByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newMiniRedis(t)
		client, lost := server.client(t), &meddler{with: func() error { return errors.New("connection reset") }}
		client.AddHook(lost)
		a := newBreaker(t, server.store(t), breaker.Config{})
		b := newBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{MaxStaleness: -1}), breaker.Config{})
		executeN(t, a, "k", 4, errDown)
		call := beginCall(b, "k")
		lost.arm("hmget")
		executeN(t, b, "other", 1, nil) // the store has failed
		require.NoError(t, call.finish(nil))
		require.Equal(t, 4, snapshotOf(t, a, "k").ConsecutiveFailures)
		time.Sleep(time.Second)
		executeN(t, b, "k", 3, nil)
		assert.Zero(t, snapshotOf(t, a, "k").ConsecutiveFailures)
	})
}

// A success that came before a run of failures is no reason to keep silent of
// those that come after.
func TestASuccessBeforeARunDoesNotSilenceThoseAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newMiniRedis(t)
		client, slow := server.client(t), &meddler{with: func() error { time.Sleep(10 * time.Millisecond); return nil }}
		client.AddHook(slow)
		a := newBreaker(t, server.store(t), breaker.Config{})
		b := newBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{MaxStaleness: -1}), breaker.Config{})
		executeN(t, b, "k", 1, nil)
		long := beginCall(b, "k")
		time.Sleep(time.Second)
		slow.arm("hmget")
		require.NoError(t, long.finish(nil))
		time.Sleep(5 * time.Millisecond)
		executeN(t, a, "k", 1, errDown)
		time.Sleep(time.Second)
		require.Equal(t, 1, snapshotOf(t, a, "k").ConsecutiveFailures)
		executeN(t, b, "k", 10, nil)
		assert.Zero(t, snapshotOf(t, a, "k").ConsecutiveFailures)
	})
}
