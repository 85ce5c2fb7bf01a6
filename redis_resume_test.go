package breaker_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// What a process had left to do when the store failed, and what is left of it
// when it ends.

// startAppProcess starts a server, with an admin and with a process whose user
// can lose its rights.
func startAppProcess(t *testing.T, edits ...func(*redis.Options, *breaker.Config)) (*redistest.Server, *redis.Client, outageProcess) {
	t.Helper()
	srv := redistest.Start(t)
	admin := srv.Client(nil)
	addAppUser(t, admin)
	return srv, admin, startOutageProcess(t, srv.Addr, breaker.FailOpen, append(edits, asApp)...)
}

func (p outageProcess) degrades(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { degraded, _ := p.notices.counts(); return degraded > 0 }, 5*time.Second, time.Millisecond)
}

// Names that were due while the store was away are said once it is back.
func TestNamesAreSaidAfterAnOutage(t *testing.T) {
	t.Parallel()
	srv, admin, p := startAppProcess(t)
	p.call(t, "early", nil, nil)
	setRights("-evalsha", "-eval")(t, srv, admin)
	p.call(t, "early", errDependency, errDependency)
	p.degrades(t)
	setRights("+@all")(t, srv, admin)
	p.recovers(t)
	p.call(t, "late", nil, nil)

	reader := breaker.NewRedisStore(admin, breaker.RedisConfig{})
	var listed map[string]bool
	assert.Eventually(t, func() bool {
		listed = make(map[string]bool)
		for key, err := range reader.Keys(t.Context()) {
			listed[key] = err == nil
		}
		return listed["early"] && listed["late"]
	}, 4*time.Second, 20*time.Millisecond)
	t.Logf("another process lists %v", listed)
}

// Successes that could not be told while the store was away do not keep later
// ones from being told: a rate that other processes' failures meet needs them.
func TestTalliesAreToldAfterAnOutage(t *testing.T) {
	t.Parallel()
	srv, admin, p := startAppProcess(t, patient, func(_ *redis.Options, cfg *breaker.Config) {
		cfg.Policy = breaker.Policy{FailureRate: 1, MinCalls: 1000}
	})
	p.call(t, "rated", errDependency, errDependency) // makes the record
	p.call(t, "rated", nil, nil)                     // ends the streak
	call, err := p.Allow(t.Context(), "rated")
	require.NoError(t, err)

	setRights("-@all")(t, srv, admin)
	p.call(t, "other", nil, nil) // the store fails, and is left alone
	call.Done(nil)               // to be told in 50ms
	p.degrades(t)
	time.Sleep(100 * time.Millisecond)
	setRights("+@all")(t, srv, admin)
	p.recovers(t)

	before, err := p.Snapshot(t.Context(), "rated")
	require.NoError(t, err)
	for range 10 {
		p.call(t, "rated", nil, nil)
	}
	calls := func() int {
		snap, err := p.Snapshot(t.Context(), "rated")
		require.NoError(t, err)
		return snap.WindowCalls
	}
	for end := time.Now().Add(2 * time.Second); calls() < before.WindowCalls+10; time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "%d calls counted, %d before the last 10", calls(), before.WindowCalls)
	}
}

// What an operator no longer waits for is not written into what he has got. The
// race detector sees it.
func TestReadThatTimesOutIsLeftAlone(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	store := breaker.NewRedisStore(srv.Client(&redis.Options{PoolSize: 1}), breaker.RedisConfig{})
	b := patientBreaker(t, store, breaker.Config{StoreTimeout: 20 * time.Millisecond})
	for name, read := range map[string]func() (any, error){
		"snapshot": func() (any, error) { return b.Snapshot(t.Context(), "stripe") },
		"history":  func() (any, error) { return b.History(t.Context(), "stripe") },
	} {
		t.Run(name, func(t *testing.T) {
			_, _ = read() // loads the script
			srv.Freeze()
			got, err := read()
			assert.ErrorIs(t, err, breaker.ErrStore)
			assert.Empty(t, got)
			srv.Thaw()
			for range 3 { // of which each waits for the connection
				_, err := store.Snapshot(t.Context(), "stripe", outagePolicy)
				require.NoError(t, err)
			}
		})
	}
}

// A reloadingClient counts how often it is told to look for the masters anew.
type reloadingClient struct {
	redis.UniversalClient
	told atomic.Int32
}

func (c *reloadingClient) ReloadState(context.Context) { c.told.Add(1) }

// A Cluster client goes on asking a master that is dead. It is told, once a
// trial, and never while all is well.
func TestClusterClientIsToldToLookForMastersAnew(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	client := &reloadingClient{UniversalClient: srv.Client(&redis.Options{MaxRetries: -1})}
	notices := new(outageNotices)
	b := patientBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{}),
		breaker.Config{Observer: notices, Logger: slog.New(slog.DiscardHandler)})
	for range 10 {
		require.NoError(t, b.Execute(t.Context(), "stripe", callOK))
	}
	require.Zero(t, client.told.Load())
	srv.Kill()
	require.Eventually(t, func() bool {
		require.Equal(t, errDependency, b.Execute(t.Context(), "stripe", callFails))
		return client.told.Load() > 0
	}, 10*time.Second, time.Millisecond)
	srv.Restart()
	require.Eventually(t, func() bool {
		_ = b.Execute(t.Context(), "stripe", callOK)
		_, recovered := notices.counts()
		return recovered == 1
	}, 15*time.Second, 5*time.Millisecond)
}

// Not parallel: it counts the goroutines of the whole program.
func TestNothingRunsAfterClose(t *testing.T) {
	silent := func(t *testing.T) string {
		return redistest.Listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	}
	for _, tt := range []struct {
		name  string
		start func(t *testing.T) (addr string, begin func())
	}{
		{"well", func(t *testing.T) (string, func()) { return redistest.Start(t).Addr, func() {} }},
		{"frozen", func(t *testing.T) (string, func()) { s := redistest.Start(t); return s.Addr, s.Freeze }},
		{"killed", func(t *testing.T) (string, func()) { s := redistest.Start(t); return s.Addr, s.Kill }},
		{"accepts and never answers", func(t *testing.T) (string, func()) { return silent(t), func() {} }},
		{"nobody listens", func(t *testing.T) (string, func()) { return "127.0.0.1:1", func() {} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr, begin := tt.start(t)
			before := runtime.NumGoroutine()
			client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Second}) // Close waits for it
			b, err := breaker.New(breaker.NewRedisStore(client, breaker.RedisConfig{}), breaker.Config{
				Policy: breaker.Policy{FailureRate: 0.9, MinCalls: 3}, Logger: slog.New(slog.DiscardHandler),
				Observer: new(outageNotices),
			})
			require.NoError(t, err)
			for range 2 {
				for range 5 {
					assert.NoError(t, b.Execute(t.Context(), "stripe", callOK))
					assert.Equal(t, errDependency, b.Execute(t.Context(), "stripe", callFails))
				}
				begin()
			}
			require.NoError(t, b.Close())
			require.NoError(t, client.Close())
			for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
				require.True(t, time.Now().Before(end), "%d goroutines, %d before", runtime.NumGoroutine(), before)
			}
		})
	}
}
