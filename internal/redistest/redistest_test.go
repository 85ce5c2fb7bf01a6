package redistest_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker/internal/redistest"
)

func TestDurableServerKnowsAllAgain(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Durable(t)...)
	require.NoError(t, s.Client(nil).Set(t.Context(), "k", "v", 0).Err())
	s.Kill()
	s.Restart()
	assert.Equal(t, "v", s.Client(nil).Get(t.Context(), "k").Val())
}

func TestSentinelsReplaceTheirMaster(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinels(t, 300*time.Millisecond)
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: s.Name, SentinelAddrs: s.Addrs()})
	defer c.Close()
	require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
	s.Master.Kill()
	require.Eventually(t, func() bool { return c.Set(t.Context(), "k", "w", 0).Err() == nil }, time.Minute, 20*time.Millisecond)
	assert.Equal(t, "w", s.Replica.Client(nil).Get(t.Context(), "k").Val())
}

func TestClusterFailsOverAndMovesASlot(t *testing.T) {
	t.Parallel()
	s := redistest.StartClusterOf(t, 3, 500*time.Millisecond)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: s.Addrs(), ClusterStateReloadInterval: 200 * time.Millisecond})
	defer c.Close()
	ctx := context.Background()
	require.NoError(t, c.Set(ctx, "k", "v", 0).Err())
	from := s.OwnerOf("k")
	to := (from + 1) % 3
	s.Move("k", s.Masters[from], s.Masters[to])
	assert.Equal(t, "v", s.Masters[to].Client(nil).Get(ctx, "k").Val())
	require.Equal(t, "v", c.Get(ctx, "k").Val())
	require.Equal(t, int64(1), s.Masters[to].Client(nil).Wait(ctx, 1, time.Minute).Val())
	s.Masters[to].Kill()
	require.Eventually(t, func() bool { return c.Get(ctx, "k").Val() == "v" }, time.Minute, 20*time.Millisecond)
}

func TestOnlyWhoTrustsTheAuthorityIsServed(t *testing.T) {
	t.Parallel()
	a := redistest.NewAuthority(t)
	_, addr := redistest.StartTLS(t, a)
	for _, trusted := range []*redistest.Authority{a, redistest.NewAuthority(t)} {
		c := redis.NewClient(&redis.Options{Addr: addr, TLSConfig: trusted.Trust(), MaxRetries: -1})
		err := c.Ping(t.Context()).Err()
		if trusted == a {
			assert.NoError(t, err)
		} else {
			assert.ErrorContains(t, err, "certificate")
		}
		_ = c.Close()
	}
}

func TestProxyShapesWhatPasses(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr)
	c := redis.NewClient(&redis.Options{Addr: p.Addr, MaxRetries: -1})
	defer c.Close()
	ctx := t.Context()
	took := func(do func() error) time.Duration {
		began := time.Now()
		require.NoError(t, do())
		return time.Since(began)
	}
	require.NoError(t, c.Set(ctx, "k", string(make([]byte, 10_000)), 0).Err())
	p.Delay(func([]string) time.Duration { return 50 * time.Millisecond })
	assert.GreaterOrEqual(t, took(func() error { return c.Ping(ctx).Err() }), 50*time.Millisecond)
	p.Delay(nil)
	p.Throttle(100_000)
	assert.GreaterOrEqual(t, took(func() error { return c.Get(ctx, "k").Err() }), 90*time.Millisecond)
	p.Throttle(0)
	for fate, runs := range map[redistest.Fate]bool{redistest.CutReply: true, redistest.LoseCommand: false} {
		require.NoError(t, c.Set(ctx, "n", 0, 0).Err())
		p.Decide(func(words []string) redistest.Fate {
			if words[0] == "incr" {
				return fate
			}
			return redistest.Pass
		})
		assert.Error(t, c.Incr(ctx, "n").Err())
		require.Eventually(t, func() bool { return (c.Get(ctx, "n").Val() == "1") == runs }, 5*time.Second, 5*time.Millisecond)
	}
}
