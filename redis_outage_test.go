package breaker_test

import (
	"context"
	"log/slog"
	"math/bits"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// What becomes of calls while a real redis-server fails in one way or another,
// and that all goes on as before once it is back.

// outageNotices counts what an Observer hears of the store.
type outageNotices struct {
	breaker.NopObserver
	mu        sync.Mutex
	errs      []error
	recovered int
}

func (o *outageNotices) StoreDegraded(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.errs = append(o.errs, err)
}

func (o *outageNotices) StoreRecovered(time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.recovered++
}

func (o *outageNotices) counts() (degraded, recovered int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.errs), o.recovered
}

// An outageProcess has a store that is about to fail.
type outageProcess struct {
	*breaker.Breaker
	notices *outageNotices
	proxy   *redistest.Proxy // nil: none
	close   func()           // ends the breaker and its client
}

var outagePolicy = breaker.Policy{ConsecutiveFailures: 3, Cooldown: time.Hour}

func startOutageProcess(t *testing.T, addr string, onError breaker.StoreErrorPolicy, edits ...func(*redis.Options, *breaker.Config)) outageProcess {
	t.Helper()
	p := outageProcess{notices: new(outageNotices), proxy: redistest.NewProxy(t, addr)}
	opts := &redis.Options{Addr: p.proxy.Addr}
	cfg := breaker.Config{Policy: outagePolicy, OnStoreError: onError, StoreTimeout: outageTimeout,
		Observer: p.notices, Logger: slog.New(slog.DiscardHandler)}
	for _, edit := range edits {
		edit(opts, &cfg)
	}
	client := redis.NewClient(opts)
	p.Breaker = patientBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{MaxStaleness: -1}), cfg)
	p.close = sync.OnceFunc(func() {
		assert.NoError(t, p.Close())
		assert.NoError(t, client.Close())
	})
	t.Cleanup(p.close)
	return p
}

// outageTimeout is the StoreTimeout: long enough that a store which is well is
// not taken for one that failed, on a machine that is busy with other things.
const outageTimeout = 400 * time.Millisecond

// slack is the most that a call may take here whose own work takes no time:
// StoreTimeout, and thrice as much again for a machine that is busy.
const slack = 4 * outageTimeout

// call makes a call that ends with end, and requires that it comes to want, by
// running once or not at all, soon.
func (p outageProcess) call(t *testing.T, key string, end, want error) (took time.Duration) {
	t.Helper()
	ran := 0
	began := time.Now()
	err := p.Execute(t.Context(), key, func(context.Context) error { ran++; return end })
	took = time.Since(began)
	require.Less(t, took, slack)
	if want == end {
		require.Equal(t, end, err, "fn's own error, untouched")
		require.Equal(t, 1, ran)
		return took
	}
	require.ErrorIs(t, err, want)
	require.Zero(t, ran, "fn must not have run")
	return took
}

// recovers goes on calling until the store is in use again.
func (p outageProcess) recovers(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if err := p.Execute(t.Context(), "well", callOK); err != nil {
			require.ErrorIs(t, err, breaker.ErrStore)
		}
		if _, recovered := p.notices.counts(); recovered > 0 {
			return
		}
		require.True(t, time.Now().Before(deadline), "the store is back and not used")
	}
}

// trials is how often a store that failed may have been tried again after d:
// at 100ms, 300ms, 700ms and so on.
func trials(d time.Duration) int { return bits.Len(uint(d/(100*time.Millisecond))+1) - 1 }

// realOutages are the ways in which a server fails.
var realOutages = []struct {
	name       string
	begin, end func(t *testing.T, srv *redistest.Server, admin *redis.Client)
	reads      bool // still answered
	forgets    bool // what it knew before
}{
	{name: "frozen",
		begin: func(_ *testing.T, srv *redistest.Server, _ *redis.Client) { srv.Freeze() },
		end:   func(_ *testing.T, srv *redistest.Server, _ *redis.Client) { srv.Thaw() }},
	{name: "killed and started again empty", forgets: true,
		begin: func(_ *testing.T, srv *redistest.Server, _ *redis.Client) { srv.Kill() },
		end: func(t *testing.T, srv *redistest.Server, admin *redis.Client) {
			srv.Restart()
			addAppUser(t, admin)
		}},
	{name: "a replica of nobody, reads served", reads: true,
		begin: func(t *testing.T, _ *redistest.Server, admin *redis.Client) { becomeReplica(t, admin, "yes") },
		end:   becomeMaster},
	{name: "a replica of nobody, reads refused",
		begin: func(t *testing.T, _ *redistest.Server, admin *redis.Client) { becomeReplica(t, admin, "no") },
		end:   becomeMaster},
	{name: "out of memory", reads: true, begin: setMemory("1"), end: setMemory("0")},
	{name: "scripts denied", reads: true, begin: setRights("-evalsha", "-eval"), end: setRights("+@all")},
	{name: "everything denied", begin: setRights("-@all"), end: setRights("+@all")},
}

// asApp makes a process one of a user that can lose its rights.
func asApp(o *redis.Options, _ *breaker.Config) { o.Username, o.Password = "app", "any" }

// patient makes a process wait for a store that is well but busy.
func patient(_ *redis.Options, cfg *breaker.Config) { cfg.StoreTimeout = 10 * time.Second }

func addAppUser(t *testing.T, admin *redis.Client) {
	require.NoError(t, admin.ACLSetUser(t.Context(), "app", "on", "nopass", "~*", "&*", "+@all").Err())
}

func becomeReplica(t *testing.T, admin *redis.Client, serveStale string) {
	ctx := t.Context()
	require.NoError(t, admin.ConfigSet(ctx, "replica-serve-stale-data", serveStale).Err())
	require.NoError(t, admin.ReplicaOf(ctx, "127.0.0.1", "1").Err()) // nobody listens there
}

func becomeMaster(t *testing.T, _ *redistest.Server, admin *redis.Client) {
	require.NoError(t, admin.ReplicaOf(t.Context(), "NO", "ONE").Err())
}

// setMemory sets how much memory the server may use; "1" is less than it does.
func setMemory(most string) func(*testing.T, *redistest.Server, *redis.Client) {
	return func(t *testing.T, _ *redistest.Server, admin *redis.Client) {
		require.NoError(t, admin.ConfigSet(t.Context(), "maxmemory", most).Err())
	}
}

func setRights(rules ...string) func(*testing.T, *redistest.Server, *redis.Client) {
	return func(t *testing.T, _ *redistest.Server, admin *redis.Client) {
		require.NoError(t, admin.ACLSetUser(t.Context(), "app", rules...).Err())
	}
}

func TestOutageOfARealServer(t *testing.T) {
	for _, tt := range realOutages {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			admin := srv.Client(nil)
			addAppUser(t, admin)
			start := func(onError breaker.StoreErrorPolicy) outageProcess {
				p := startOutageProcess(t, srv.Addr, onError, asApp)
				p.call(t, "fine", nil, nil)
				return p
			}
			open, closed, local := start(breaker.FailOpen), start(breaker.FailClosed), start(breaker.FailLocal)
			for range 3 {
				open.call(t, "dead", errDependency, errDependency)
			}
			for range 2 {
				open.call(t, "streak", errDependency, errDependency)
			}
			open.call(t, "dead", nil, breaker.ErrOpen)
			before := admin.HGetAll(t.Context(), "breaker:{streak}").Val()
			all := []outageProcess{open, closed, local}

			for _, p := range all {
				p.proxy.Sent()
			}
			tt.begin(t, srv, admin)
			began := time.Now()
			// The call that finds out, and those that come after it.
			took := []time.Duration{open.call(t, "fine", errDependency, errDependency),
				local.call(t, "fine", errDependency, errDependency)}
			if tt.reads {
				closed.call(t, "fine", errDependency, errDependency) // which only its report finds out
			} else {
				closed.call(t, "fine", errDependency, breaker.ErrStore)
			}
			for i := range 100 {
				end := []error{nil, errDependency}[i%2]
				took = append(took, open.call(t, "fine", end, end), closed.call(t, "fine", end, breaker.ErrStore))
			}
			for range 3 {
				local.call(t, "other", errDependency, errDependency)
			}
			local.call(t, "other", nil, breaker.ErrOpen)

			most := 1 + 4*(1+trials(time.Since(began))) // the client tries a read four times
			for _, p := range all {
				sent := 0
				for _, n := range p.proxy.Sent() {
					sent += n
				}
				assert.LessOrEqual(t, sent, most, "commands sent to a store to be left alone")
			}
			t.Logf("the longest of %d calls took %v", len(took), slices.Max(took))

			tt.end(t, srv, admin)
			for _, p := range all {
				p.recovers(t)
			}
			for _, p := range all {
				if tt.forgets {
					p.call(t, "dead", nil, nil)
					continue
				}
				p.call(t, "dead", nil, breaker.ErrOpen)
				p.call(t, "other", nil, nil)
			}
			after := admin.HGetAll(t.Context(), "breaker:{streak}").Val()
			if tt.forgets {
				before = map[string]string{}
			}
			assert.Equal(t, before, after)
			for _, p := range all {
				p.close()
				degraded, recovered := p.notices.counts()
				assert.Equal(t, 1, degraded, "StoreDegraded %v", p.notices.errs)
				assert.Equal(t, 1, recovered, "StoreRecovered")
			}
		})
	}
}

// A server that takes no writes but answers reads has failed as long as that
// lasts: it is one outage, however many of its reads succeed meanwhile.
func TestServerThatOnlyReadsIsOneOutage(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	admin := srv.Client(nil)
	p := startOutageProcess(t, srv.Addr, breaker.FailOpen)
	p.call(t, "fine", nil, nil)
	becomeReplica(t, admin, "yes")
	for began := time.Now(); time.Since(began) < 700*time.Millisecond; time.Sleep(time.Millisecond) {
		p.call(t, "fine", errDependency, errDependency)
	}
	becomeMaster(t, srv, admin)
	p.recovers(t)
	p.close()
	degraded, recovered := p.notices.counts()
	assert.Equal(t, 1, degraded, "StoreDegraded")
	assert.Equal(t, 1, recovered, "StoreRecovered")
}

// A result that its caller did not wait for counts once.
func TestResultReportedToAFrozenServerCountsOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	admin := srv.Client(nil)
	p := startOutageProcess(t, srv.Addr, breaker.FailOpen)
	p.call(t, "fine", errDependency, errDependency)
	call, err := p.Allow(t.Context(), "fine")
	require.NoError(t, err)

	srv.Freeze()
	began := time.Now()
	call.Done(errDependency)
	assert.Less(t, time.Since(began), slack)
	p.degrades(t) // the report goes on a little longer than its caller
	srv.Thaw()
	p.recovers(t)
	require.Eventually(t, func() bool {
		return admin.HGet(t.Context(), "breaker:{fine}", "streak").Val() == "2"
	}, 5*time.Second, 5*time.Millisecond)
	p.close()
	assert.Equal(t, "2", admin.HGet(t.Context(), "breaker:{fine}", "streak").Val())
}

// A probe granted to a caller that no longer waits is given back.
func TestProbeGrantedTooLateIsGivenBack(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := startOutageProcess(t, srv.Addr, breaker.FailOpen)
	ctx := t.Context()
	for range 3 {
		p.call(t, "dead", errDependency, errDependency)
	}
	p.call(t, "dead", nil, breaker.ErrOpen)
	require.NoError(t, srv.Client(nil).HSet(ctx, "breaker:{dead}", "retry_at", 1).Err())

	srv.Freeze()
	p.call(t, "dead", nil, nil) // unprotected
	srv.Thaw()
	p.recovers(t)
	require.Eventually(t, func() bool {
		history, err := p.History(ctx, "dead")
		return err == nil && history[0].Kind == breaker.EventProbe
	}, 2*time.Second, 5*time.Millisecond)
	snap, err := p.Snapshot(ctx, "dead")
	require.NoError(t, err)
	assert.Equal(t, breaker.StateHalfOpen, snap.State)
	assert.Zero(t, snap.ProbesInFlight)
}

// The first write of a script is the one that a full server refuses.
func TestFullServerHasNoHalfWrittenRecord(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	admin := srv.Client(nil)
	p := startOutageProcess(t, srv.Addr, breaker.FailOpen)
	ctx := t.Context()
	for range 2 {
		p.call(t, "streak", errDependency, errDependency)
		p.call(t, "dead", errDependency, errDependency)
	}
	p.call(t, "dead", errDependency, errDependency)
	p.call(t, "dead", nil, breaker.ErrOpen)
	require.NoError(t, admin.HSet(ctx, "breaker:{dead}", "retry_at", 1).Err()) // a probe is due
	stored := func() map[string]any {
		all := make(map[string]any)
		for _, key := range []string{"new", "streak", "dead"} {
			record := "breaker:{" + key + "}"
			all[record] = admin.HGetAll(ctx, record).Val()
			all[record+":log"] = admin.LRange(ctx, record+":log", 0, -1).Val()
		}
		return all
	}
	before := stored()
	setMemory("1")(t, srv, admin)
	for _, key := range []string{"new", "streak", "dead"} {
		store := breaker.NewRedisStore(srv.Client(nil), breaker.RedisConfig{}) // knows of no outage
		b := patientBreaker(t, store, breaker.Config{Policy: outagePolicy, Logger: slog.New(slog.DiscardHandler)})
		require.Equal(t, errDependency, b.Execute(ctx, key, callFails))
		require.ErrorContains(t, b.Force(ctx, key, breaker.Override{State: breaker.StateOpen}), "OOM")
		require.ErrorContains(t, b.Reset(ctx, key), "OOM")
		assert.Equal(t, before, stored(), key)
	}
}

// With a client that heeds contexts, steps are taken on the caller's goroutine:
// they are bounded all the same, and the outage is one.
func TestFrozenServerAndAClientThatHeedsContexts(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	heeds := func(o *redis.Options, _ *breaker.Config) { o.ContextTimeoutEnabled = true }
	for _, onError := range []breaker.StoreErrorPolicy{breaker.FailOpen, breaker.FailClosed} {
		p := startOutageProcess(t, srv.Addr, onError, heeds)
		p.call(t, "fine", nil, nil)
		p.call(t, "fine", errDependency, errDependency)
		srv.Freeze()
		for i := range 50 {
			end := []error{nil, errDependency}[i%2]
			want := end
			if onError == breaker.FailClosed {
				want = breaker.ErrStore
			}
			p.call(t, "fine", end, want)
		}
		p.degrades(t)
		srv.Thaw()
		p.recovers(t)
		p.call(t, "fine", errDependency, errDependency)
		p.close()
		degraded, recovered := p.notices.counts()
		assert.Equal(t, 1, degraded)
		assert.Equal(t, 1, recovered)
	}
}
