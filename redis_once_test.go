package breaker_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// A network that loses a reply, or delivers a command twice, and a client that
// is set to try again: nothing happens twice.

// retryingClients are clients of a proxy that would try a command again at once.
var retryingClients = map[string]struct {
	start func(t testing.TB, args ...string) *redistest.Server
	dial  func(addr string) redis.UniversalClient
}{
	"single": {redistest.Start, func(addr string) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: addr, MaxRetries: 3, MinRetryBackoff: -1})
	}},
	"cluster": {redistest.StartCluster, func(addr string) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{addr}, MaxRetries: 3, MaxRedirects: 8, MinRetryBackoff: -1,
			Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) { // whatever node it asks for
				return new(net.Dialer).DialContext(ctx, network, addr)
			},
		})
	}},
}

// once returns a judge that does fate to the first script and passes the rest.
func once(fate redistest.Fate) func(words []string) redistest.Fate {
	var done atomic.Bool
	return func(words []string) redistest.Fate {
		if words[0] == "evalsha" && done.CompareAndSwap(false, true) {
			return fate
		}
		return redistest.Pass
	}
}

// An unsafeNetwork is a process behind a proxy, and another one that reads the
// same circuits directly. All scripts are loaded.
type unsafeNetwork struct {
	proxy         *redistest.Proxy
	store, direct *breaker.RedisStore
}

func newUnsafeNetwork(t *testing.T, kind string) unsafeNetwork {
	t.Helper()
	k := retryingClients[kind]
	srv := k.start(t)
	proxy := redistest.NewProxy(t, srv.Addr)
	client, direct := k.dial(proxy.Addr), k.dial(srv.Addr)
	t.Cleanup(func() { _, _ = client.Close(), direct.Close() })
	n := unsafeNetwork{proxy, breaker.NewRedisStore(client, breaker.RedisConfig{}), breaker.NewRedisStore(direct, breaker.RedisConfig{})}

	ctx, p := t.Context(), oncePolicy
	for range 2 { // a failure that opens, a rejection
		pm, err := n.store.Acquire(ctx, "other", p)
		if err == nil {
			_, err = n.store.Report(ctx, "other", p, pm, breaker.Result{Outcome: breaker.Failure})
			require.NoError(t, err)
		}
	}
	_, err := n.store.Reset(ctx, "other", p, "test")
	require.NoError(t, err)
	proxy.Sent()
	return n
}

var oncePolicy = breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Millisecond, ProbeLease: time.Hour,
	MaxProbes: 2, ProbeSuccesses: 2, Window: time.Minute, MinCalls: 1000, MaxRetryAfter: -1}

// cooledDown brings a circuit to where the next call is a probe.
func (n unsafeNetwork) cooledDown(t *testing.T, key string) {
	t.Helper()
	pm, err := n.direct.Acquire(t.Context(), key, oncePolicy)
	require.NoError(t, err)
	_, err = n.direct.Report(t.Context(), key, oncePolicy, pm, breaker.Result{Outcome: breaker.Failure})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return n.read(t, key).State == breaker.StateHalfOpen }, 5*time.Second, time.Millisecond)
}

func (n unsafeNetwork) read(t *testing.T, key string) breaker.Snapshot {
	t.Helper()
	snap, err := n.direct.Snapshot(t.Context(), key, oncePolicy)
	require.NoError(t, err)
	return snap
}

func TestFailureCountsOnceOnAnUnsafeNetwork(t *testing.T) {
	t.Parallel()
	p := oncePolicy
	p.ConsecutiveFailures, p.FailureRate, p.Window = 100, 1, time.Hour
	for kind := range retryingClients {
		for name, fate := range map[string]redistest.Fate{"reply lost": redistest.LoseReply, "delivered twice": redistest.Repeat} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				n := newUnsafeNetwork(t, kind)
				ctx := t.Context()
				for range 7 { // tallies that the failure's report brings
					pm, err := n.store.Acquire(ctx, "stripe", p)
					require.NoError(t, err)
					_, err = n.store.Report(ctx, "stripe", p, pm, breaker.Result{Outcome: breaker.Success})
					require.NoError(t, err)
				}
				pm, err := n.store.Acquire(ctx, "stripe", p)
				require.NoError(t, err)
				n.proxy.Sent()
				n.proxy.Decide(once(fate))
				_, err = n.store.Report(ctx, "stripe", p, pm, breaker.Result{Outcome: breaker.Failure})
				if fate == redistest.LoseReply {
					require.Error(t, err)
				} else {
					require.NoError(t, err)
				}
				assert.Equal(t, map[string]int{"evalsha": 1}, n.proxy.Sent())

				snap, err := n.direct.Snapshot(ctx, "stripe", p)
				require.NoError(t, err)
				assert.Equal(t, 1, snap.ConsecutiveFailures)
				assert.Equal(t, 1, snap.WindowFailures)
				assert.Equal(t, 8, snap.WindowCalls)
				history, err := n.direct.History(ctx, "stripe")
				require.NoError(t, err)
				assert.Len(t, history, 1)
			})
		}
	}
}

// A probe whose leave was lost costs its lease, and no more than the one.
func TestLostLeaveCostsOneLease(t *testing.T) {
	t.Parallel()
	for kind := range retryingClients {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			n := newUnsafeNetwork(t, kind)
			n.cooledDown(t, "stripe")
			_, err := n.store.Acquire(t.Context(), "stripe", oncePolicy) // reads that it is not closed...
			require.NoError(t, err)
			require.Equal(t, 1, n.read(t, "stripe").ProbesInFlight)

			n.proxy.Sent()
			n.proxy.Decide(once(redistest.LoseReply))
			_, err = n.store.Acquire(t.Context(), "stripe", oncePolicy) // ...so that this asks the script at once
			require.Error(t, err)
			require.NotErrorIs(t, err, breaker.ErrBusy)
			assert.Equal(t, map[string]int{"evalsha": 1}, n.proxy.Sent())
			assert.Equal(t, 2, n.read(t, "stripe").ProbesInFlight)

			var rejected *breaker.RejectedError
			_, err = n.direct.Acquire(t.Context(), "stripe", oncePolicy)
			require.ErrorAs(t, err, &rejected)
			assert.LessOrEqual(t, rejected.RetryAfter, oncePolicy.ProbeLease)
			assert.Greater(t, rejected.RetryAfter, oncePolicy.ProbeLease-time.Minute)
		})
	}
}

func TestProbeDeliveredTwiceIsOneProbe(t *testing.T) {
	t.Parallel()
	n := newUnsafeNetwork(t, "single")
	n.cooledDown(t, "stripe")
	n.proxy.Decide(once(redistest.Repeat))
	pm, err := n.store.Acquire(t.Context(), "stripe", oncePolicy)
	require.NoError(t, err)
	assert.Equal(t, 1, n.read(t, "stripe").ProbesInFlight)

	n.proxy.Decide(once(redistest.Repeat))
	_, err = n.store.Report(t.Context(), "stripe", oncePolicy, pm, breaker.Result{Outcome: breaker.Success})
	require.NoError(t, err)
	snap := n.read(t, "stripe")
	assert.Equal(t, 1, snap.ProbeSuccesses, "of the two that close it")
	assert.Equal(t, breaker.StateHalfOpen, snap.State)
	assert.Zero(t, snap.ProbesInFlight)

	pm, err = n.store.Acquire(t.Context(), "stripe", oncePolicy)
	require.NoError(t, err)
	n.proxy.Decide(once(redistest.Repeat))
	_, err = n.store.Report(t.Context(), "stripe", oncePolicy, pm, breaker.Result{Outcome: breaker.Failure})
	require.NoError(t, err)
	snap = n.read(t, "stripe")
	assert.Equal(t, 1, snap.Reopens)
	assert.Equal(t, 2, snap.ConsecutiveFailures)
}
