package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// Tests of a RedisStore on a real redis-server: what it sends and what it keeps.

var errDependency = errors.New("the dependency is down")

func callOK(context.Context) error    { return nil }
func callFails(context.Context) error { return errDependency }

// serverClock is the list that a store with a clock of the test's asks.
const serverClock = "clock"

// A realProcess is one of a fleet: a Breaker over a strict store, with a proxy
// that counts what it sends.
type realProcess struct {
	*breaker.Breaker
	proxy *redistest.Proxy
}

// startProcess starts a process that uses srv by its clock.
func startProcess(t *testing.T, srv *redistest.Server, p breaker.Policy) realProcess {
	t.Helper()
	proxy := redistest.NewProxy(t, srv.Addr)
	// One connection, so that no command waits for another one's greeting.
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr, PoolSize: 1})
	t.Cleanup(func() { _ = client.Close() })
	store := breaker.NewRedisStoreAt(client, breaker.RedisConfig{MaxStaleness: -1, Settle: time.Minute}, serverClock) // no call is a long one
	return realProcess{patientBreaker(t, store, breaker.Config{Policy: p}), proxy}
}

// patientBreaker returns a Breaker that ends with the test and is patient with a
// busy machine unless told otherwise.
func patientBreaker(t *testing.T, store breaker.Store, cfg breaker.Config) *breaker.Breaker {
	t.Helper()
	if cfg.StoreTimeout == 0 {
		cfg.StoreTimeout = 10 * time.Second
	}
	b, err := breaker.New(store, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// setServerClock sets the clock of the stores that startProcess makes.
func setServerClock(t *testing.T, srv *redistest.Server, ms int64) {
	t.Helper()
	ctx, c := t.Context(), srv.Client(nil)
	_, err := c.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.Del(ctx, serverClock)
		tx.RPush(ctx, serverClock, ms/1000, ms%1000*1000)
		return nil
	})
	require.NoError(t, err)
}

// failStripe makes one call that fails with err.
func failStripe(t *testing.T, b *breaker.Breaker, err error) {
	t.Helper()
	require.Equal(t, err, b.Execute(t.Context(), "stripe", func(context.Context) error { return err }))
}

// sends runs do and requires what the process sent for it.
func (p realProcess) sends(t *testing.T, what string, want map[string]int, do func()) {
	t.Helper()
	p.proxy.Sent()
	do()
	assert.Equal(t, want, p.proxy.Sent(), what)
}

const noon = 1_800_000_000_000 // when a test's clock begins

func startAtNoon(t *testing.T, args ...string) *redistest.Server {
	t.Helper()
	srv := redistest.Start(t, args...)
	setServerClock(t, srv, noon)
	return srv
}

func callTenKeys(t *testing.T, b *breaker.Breaker, calls int) {
	t.Helper()
	for i := range calls {
		require.NoError(t, b.Execute(t.Context(), fmt.Sprint("key-", i%10), callOK))
	}
}

// sayNames has the process say the names it uses, which it would in a second.
func sayNames(t *testing.T, p realProcess) {
	t.Helper()
	for _, err := range p.Keys(t.Context()) {
		require.NoError(t, err)
	}
}

func TestHealthyCallIsOneReadAndNothingElse(t *testing.T) {
	t.Parallel()
	srv := startAtNoon(t)

	// A second after their first use, or at Close, the ten names are said: one
	// script, in full where the server has never seen it.
	cold := startProcess(t, srv, breaker.Policy{})
	cold.sends(t, "the first process of all", map[string]int{"hmget": 1000, "evalsha": 1, "eval": 1}, func() {
		callTenKeys(t, cold.Breaker, 1000)
		require.NoError(t, cold.Close())
	})
	assert.Equal(t, 1000, srv.Commands()["hmget"], "reads that the server counts")
	assert.Equal(t, 1, srv.Commands()["zadd"], "commands that said the names")

	next := startProcess(t, srv, breaker.Policy{})
	next.sends(t, "a process that comes later", map[string]int{"hmget": 1000, "evalsha": 1}, func() {
		callTenKeys(t, next.Breaker, 1000)
		require.NoError(t, next.Close())
	})

	warm := startProcess(t, srv, breaker.Policy{})
	callTenKeys(t, warm.Breaker, 10)
	sayNames(t, warm)
	warm.sends(t, "a process whose names are said", map[string]int{"hmget": 1000}, func() {
		callTenKeys(t, warm.Breaker, 1000)
		require.NoError(t, warm.Close())
	})
	assert.Equal(t, 3010, srv.Commands()["hmget"])
}

func TestWhatEachCallSends(t *testing.T) {
	t.Parallel()
	srv := startAtNoon(t)
	p := startProcess(t, srv, breaker.Policy{ConsecutiveFailures: 3, Cooldown: time.Minute, ProbeSuccesses: 2})
	ctx := t.Context()
	on := func(key string, fn func(context.Context) error, want error) func() {
		return func() { assert.ErrorIs(t, p.Execute(ctx, key, fn), want) }
	}
	call := func(fn func(context.Context) error, want error) func() { return on("stripe", fn, want) }
	healthy, more := map[string]int{"hmget": 1}, map[string]int{"hmget": 1, "evalsha": 1}
	one, two := map[string]int{"evalsha": 1}, map[string]int{"evalsha": 2}

	for range 3 { // has the server load all scripts
		on("other", callFails, errDependency)()
	}
	for range 2 {
		on("other", callOK, breaker.ErrOpen)()
	}
	call(callOK, nil)()
	sayNames(t, p)
	setServerClock(t, srv, noon+1000)

	p.sends(t, "a healthy call", healthy, call(callOK, nil))
	p.sends(t, "a failure", more, call(callFails, errDependency))
	p.sends(t, "a success that ends a streak", more, call(callOK, nil))
	p.sends(t, "a success after that", healthy, call(callOK, nil))
	for range 3 {
		call(callFails, errDependency)()
	}
	for range 3 {
		p.sends(t, "a rejection by a circuit it opened itself", one, call(callOK, breaker.ErrOpen))
	}
	setServerClock(t, srv, noon+61_000)
	p.sends(t, "a probe", two, call(callOK, nil))
	probe, err := p.Allow(ctx, "stripe")
	require.NoError(t, err)
	p.sends(t, "a rejection by a half-open circuit", one, call(callOK, breaker.ErrBusy))
	p.sends(t, "the end of a probe", one, func() { probe.Done(nil) })
	call(callOK, nil)()
	p.sends(t, "a call after that", healthy, call(callOK, nil))

	require.NoError(t, p.Force(ctx, "stripe", breaker.Override{State: breaker.StateClosed}))
	call(callOK, nil)()
	p.sends(t, "a call under an override", one, call(callFails, errDependency))
}

// What a process pays to find out what another one did.
func TestWhatAChangeByAnotherProcessCosts(t *testing.T) {
	t.Parallel()
	srv := startAtNoon(t)
	policy := breaker.Policy{ConsecutiveFailures: 3, Cooldown: time.Minute}
	a, b, c := startProcess(t, srv, policy), startProcess(t, srv, policy), startProcess(t, srv, policy)
	call := func(p realProcess, fn func(context.Context) error, want error) func() {
		return func() { assert.ErrorIs(t, p.Execute(t.Context(), "stripe", fn), want) }
	}
	for _, p := range []realProcess{a, b, c} {
		call(p, callOK, nil)()
		sayNames(t, p)
	}
	for range 3 { // has the server load all scripts
		failOther := func() error { return a.Execute(t.Context(), "other", callFails) }
		assert.ErrorIs(t, failOther(), errDependency)
	}
	assert.ErrorIs(t, a.Execute(t.Context(), "other", callOK), breaker.ErrOpen)

	// The clock stands, so that what two processes met together goes on settling.
	call(a, callFails, errDependency)()
	call(a, callFails, errDependency)()
	call(b, callFails, errDependency)()
	c.sends(t, "a failure while a rule settles", map[string]int{"hmget": 1, "evalsha": 2}, call(c, callFails, errDependency))
	c.sends(t, "a success that unmeets it", map[string]int{"evalsha": 2}, call(c, callOK, nil)) // it knows from its report

	call(a, callOK, nil)() // its own two failures would count else
	for range 3 {
		call(a, callFails, errDependency)()
	}
	c.sends(t, "the first rejection", map[string]int{"hmget": 1, "evalsha": 1}, call(c, callOK, breaker.ErrOpen))
	c.sends(t, "the next", map[string]int{"evalsha": 1}, call(c, callOK, breaker.ErrOpen))
	setServerClock(t, srv, noon+61_000)
	call(a, callOK, nil)()
	c.sends(t, "the first call after it closed", map[string]int{"evalsha": 1}, call(c, callOK, nil))
	c.sends(t, "the next", map[string]int{"hmget": 1}, call(c, callOK, nil))
}

// Of all its calls that saw the same streak, one speaks for the process.
func TestStreakIsSpokenForOncePerProcess(t *testing.T) {
	t.Parallel()
	srv := startAtNoon(t)
	a, b := startProcess(t, srv, breaker.Policy{}), startProcess(t, srv, breaker.Policy{})
	require.ErrorIs(t, a.Execute(t.Context(), "stripe", callFails), errDependency)

	allow := func(p realProcess) (calls []*breaker.Call) {
		for range 20 {
			c, err := p.Allow(t.Context(), "stripe")
			require.NoError(t, err)
			calls = append(calls, c)
		}
		return calls
	}
	ofA, ofB := allow(a), allow(b)
	for _, each := range []struct {
		realProcess
		calls []*breaker.Call
	}{{a, ofA}, {b, ofB}} {
		each.sends(t, "20 successes that saw a streak", map[string]int{"evalsha": 1}, func() {
			for _, c := range each.calls {
				c.Done(nil)
			}
		})
	}
	snap, err := a.Snapshot(t.Context(), "stripe")
	require.NoError(t, err)
	assert.Zero(t, snap.ConsecutiveFailures)
}

func TestRatesCostACommandPer50msAtMostAndLoseNoCall(t *testing.T) {
	t.Parallel()
	srv := startAtNoon(t)
	p := startProcess(t, srv, breaker.Policy{FailureRate: 1, MinCalls: 1000, Window: time.Hour})
	ctx := t.Context()
	calls := func(n int, fn func(context.Context) error, want error) func() {
		return func() {
			for range n {
				require.ErrorIs(t, p.Execute(ctx, "stripe", fn), want)
			}
		}
	}
	counted := func() (calls, failures int) {
		snap, err := p.Snapshot(ctx, "stripe")
		require.NoError(t, err)
		return snap.WindowCalls, snap.WindowFailures
	}

	calls(1, callOK, nil)()
	sayNames(t, p)
	p.sends(t, "healthy calls of a circuit without a record", map[string]int{"hmget": 100}, calls(100, callOK, nil))
	total, failures := counted()
	assert.Zero(t, total, "calls the server knows of while none failed")
	assert.Zero(t, failures)

	calls(1, callFails, errDependency)() // brings what has been counted so far
	total, failures = counted()
	assert.Equal(t, 102, total)
	assert.Equal(t, 1, failures)
	calls(1, callOK, nil)() // ends the streak
	sayNames(t, p)

	p.proxy.Sent()
	began := time.Now()
	calls(1000, callOK, nil)()
	require.NoError(t, p.Close()) // brings the rest
	most := int(time.Since(began)/(50*time.Millisecond)) + 1
	sent := p.proxy.Sent()
	assert.Equal(t, 1000, sent["hmget"])
	assert.Positive(t, sent["evalsha"])
	assert.LessOrEqual(t, sent["evalsha"]+sent["eval"], most+1, "one of them may be sent in full")
	t.Logf("1000 successes: %d reads, %d scripts", sent["hmget"], sent["evalsha"])

	total, failures = counted()
	assert.Equal(t, 1103, total)
	assert.Equal(t, 1, failures)
}

func TestKeysDoNotPayForOtherTenantsKeys(t *testing.T) {
	t.Parallel()
	srv := startAtNoon(t)
	foreign := "for i = 1, 1000000 do redis.call('SET', 'foreign:' .. i, '') end return 1"
	require.NoError(t, srv.Client(&redis.Options{ReadTimeout: time.Minute}).Eval(t.Context(), foreign, nil).Err())
	p := startProcess(t, srv, breaker.Policy{})
	const circuits = 2000
	want := make(map[string]bool)
	for i := range circuits {
		key := fmt.Sprint("tenant-", i)
		want[key] = true
		require.NoError(t, p.Execute(t.Context(), key, callOK))
	}

	p.proxy.Sent()
	got := make(map[string]bool)
	for key, err := range p.Keys(t.Context()) {
		require.NoError(t, err)
		assert.False(t, got[key], "%s comes twice", key)
		got[key] = true
	}
	assert.Equal(t, want, got)

	sent := p.proxy.Sent()
	assert.Positive(t, sent["zscan"])
	assert.LessOrEqual(t, sent["zscan"], circuits/100, "pages of 500 names")
	ran := srv.Commands()
	assert.Zero(t, ran["scan"])
	assert.Zero(t, ran["keys"])
	t.Logf("%d names among 1,000,000 keys: sent %v", circuits, sent)
}
