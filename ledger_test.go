package breaker

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inBubble runs a test with a store of its own in virtual time.
func inBubble(t *testing.T, cfg RedisConfig, test func(t *testing.T, s *RedisStore, b *Breaker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		defer server.Close()
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", PoolSize: 1000,
			Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() }})
		defer func() { _ = client.Close() }()
		s := NewRedisStore(client, cfg)
		b, err := New(s, Config{})
		require.NoError(t, err)
		defer func() { assert.NoError(t, b.Close()) }()
		test(t, s, b)
	})
}

// More circuits than a process remembers leave no views that nobody finds.
func TestCircuitsThatAreNotRememberedHaveNoView(t *testing.T) {
	inBubble(t, RedisConfig{}, func(t *testing.T, s *RedisStore, b *Breaker) {
		s.ledgers = newTable(2, (*ledger).idle)
		for i := range 500 {
			require.NoError(t, b.Execute(context.Background(), fmt.Sprint(i%10), func(context.Context) error { return nil }))
			time.Sleep(10 * time.Millisecond)
		}
		assert.LessOrEqual(t, b.Views().Circuits, 2)
	})
}

// An answer that comes late, of a generation that is over, must not void what
// was counted since: a process's own streak opens on its very last failure.
func TestOvertakenAnswerDoesNotVoidOwnStreak(t *testing.T) {
	l, now := new(ledger), time.Now()
	before := l.epoch()
	l.saw(sight{generation: 1, recorded: true, healthy: true, changed: true, epoch: before}, nil)
	for range 4 {
		l.failed(1, now)
	}
	l.saw(sight{generation: 0, healthy: true, epoch: before}, nil)
	l.failed(1, now)
	e := l.evidence("p", now)
	assert.Equal(t, 5, e.Streak)
	assert.EqualValues(t, 1, e.Generation)

	l.saw(sight{generation: 0, healthy: true, epoch: l.epoch()}, nil)
	assert.Zero(t, l.evidence("p", now).Generation, "the record was lost")
}

// A success on a view that is so new that no tick has been yet is no older
// than the view.
func TestSuccessBeforeTheFirstTickIsNotOld(t *testing.T) {
	inBubble(t, RedisConfig{NoPush: true}, func(t *testing.T, s *RedisStore, b *Breaker) {
		l, p := s.ledger("k"), new(Policy)
		for range 2 {
			now := s.now()
			v := &view{verdict: verdictRun, read: now}
			require.True(t, l.saw(sight{healthy: true, view: v, epoch: l.epoch()}, p))
			require.True(t, s.unmoved(l, p, new(Permit)), "a call that comes before see is done")
			s.views.keep(l, "k", &b.background)
			e := l.evidence("p", s.now())
			require.True(t, e.HasSucceeded)
			assert.LessOrEqual(t, e.SinceSuccess, maxTick)
			time.Sleep(time.Hour)
		}
	})
}

// How seldom a circuit is read that nothing is heard of.
func TestSlowReadsBehindAnnouncements(t *testing.T) {
	for n, want := range map[int]time.Duration{
		0: 10 * time.Second, 50: 10 * time.Second, 100: 20 * time.Second,
		9_000: 30 * time.Minute, 10_000: 30 * time.Minute, 1_000_000: 30 * time.Minute,
	} {
		assert.Equal(t, want, new(push).poll(n), "%d circuits", n)
	}
}
