package breaker_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
)

// What users have reported of servers and clients of Redis, as far as it can
// be shown in virtual time; the redis_ tests use real servers.

// intercept has hook answer commands of the server in its place.
func (m miniRedis) intercept(t testing.TB, hook func(peer *server.Peer, command string, args []string) (answered bool)) {
	t.Helper()
	_, err := m.Dial() // starts it
	require.NoError(t, err)
	m.Server().SetPreHook(func(peer *server.Peer, command string, args ...string) bool {
		return hook(peer, strings.ToUpper(command), args)
	})
}

func TestServerThatForgetsEveryScriptIsAStoreFailureAfterOneReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMiniRedis(t)
		var commands []string
		m.intercept(t, func(peer *server.Peer, command string, _ []string) bool {
			if !strings.HasPrefix(command, "EVAL") {
				return false
			}
			commands = append(commands, command)
			peer.WriteError("NOSCRIPT No matching script.")
			return true
		})
		b := newBreaker(t, m.store(t), breaker.Config{OnStoreError: breaker.FailClosed})
		assert.Equal(t, errDown, execute(b, "k", errDown), "the report fails, and it stays fn's error")
		assert.Equal(t, []string{"EVALSHA", "EVAL"}, commands)
		assert.ErrorIs(t, execute(b, "k", nil), breaker.ErrStore)
	})
}

func TestKeysOfACircuitShareOneHashTag(t *testing.T) {
	hashed := regexp.MustCompile(`^[^{]*\{([^}]+)\}`) // what a Cluster looks at
	tags := make(map[string]bool)
	for i, key := range []string{"stripe", "", " ", "{}", "{", "}", "a}b{c", "{a}", "{{a}}", "a", "%", "%7B", "é", "\xff", "names"} {
		synctest.Test(t, func(t *testing.T) {
			m := newMiniRedis(t)
			m.intercept(t, func(_ *server.Peer, command string, args []string) bool {
				if command == "EVALSHA" && args[1] == "2" {
					record, log := hashed.FindStringSubmatch(args[2]), hashed.FindStringSubmatch(args[3])
					if assert.NotNil(t, record, args[2]) && assert.NotNil(t, log, args[3]) {
						assert.Equal(t, record[1], log[1])
						tags[record[1]] = true
					}
				}
				return false
			})
			trip(t, newBreaker(t, m.store(t), breaker.Config{}), key, 5)
			assert.Len(t, tags, i+1, "%q has a tag of its own", key)
		})
	}
}

// go-redis does not heed a context's deadline in the middle of a command, so
// the library bounds the step itself.
func TestDeadlineEndsAStepThatTheClientWouldWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMiniRedis(t)
		var slow atomic.Bool
		m.intercept(t, func(*server.Peer, string, []string) bool {
			if slow.Load() {
				time.Sleep(200 * time.Millisecond)
			}
			return false
		})
		b := newBreaker(t, m.store(t), breaker.Config{})
		executeN(t, b, "k", 1, nil)
		slow.Store(true)
		ctx, cancel := context.WithTimeout(bg, 25*time.Millisecond)
		defer cancel()
		assert.Equal(t, 25*time.Millisecond, took(func() {
			assert.Equal(t, context.DeadlineExceeded, b.Execute(ctx, "k", func(context.Context) error { return nil }))
		}))
		assert.Equal(t, 100*time.Millisecond, took(func() { executeN(t, b, "k", 1, nil) }), "StoreTimeout")
	})
}

func TestReplicaThatRefusesWritesRecoversAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hearing
		m := newMiniRedis(t)
		b := newBreaker(t, m.store(t), breaker.Config{Observer: &h})
		executeN(t, b, "k", 1, nil)
		m.SetError("READONLY You can't write against a read only replica.")
		for range 50 {
			executeN(t, b, "k", 1, errDown)
			time.Sleep(100 * time.Millisecond)
		}
		m.SetError("")
		time.Sleep(5 * time.Second)
		trip(t, b, "k", 5)
		degraded, recovered, _ := h.outages()
		assert.Equal(t, 1, degraded)
		assert.Equal(t, 1, recovered)
	})
}

// Some servers refuse keys that a script did not declare.
func TestScriptsWriteDeclaredKeysAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMiniRedis(t)
		declared := make(map[string]bool)
		m.intercept(t, func(_ *server.Peer, command string, args []string) bool {
			if command == "EVALSHA" {
				n, err := strconv.Atoi(args[1])
				assert.NoError(t, err)
				for _, key := range args[2 : 2+n] {
					declared[key] = true
				}
			}
			return false
		})
		b := newBreaker(t, m.store(t), under(breaker.Policy{ConsecutiveFailures: 5, FailureRate: 0.9, WindowFailures: 50}))
		halfOpen(t, b, "k")
		executeN(t, b, "k", 1, nil)
		require.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateOpen}))
		require.NoError(t, b.ClearOverride(bg, "k"))
		require.NoError(t, b.Reset(bg, "k"))
		time.Sleep(time.Second) // names are said
		assert.ElementsMatch(t, m.Keys(), slices.Collect(maps.Keys(declared)))
		assert.Len(t, declared, 3)
	})
}

// A server or a proxy that knows neither HELLO nor the client's handshake.
func TestHandshakeNoiseIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hearing
		m := newMiniRedis(t)
		refused := 0
		m.intercept(t, func(peer *server.Peer, command string, _ []string) bool {
			if command != "HELLO" && command != "CLIENT" {
				return false
			}
			refused++
			peer.WriteError("ERR unknown command")
			return true
		})
		b := newBreaker(t, m.store(t), breaker.Config{Observer: &h, OnStoreError: breaker.FailClosed})
		executeN(t, b, "k", 1, nil)
		assert.Zero(t, snapshotOf(t, b, "k").ConsecutiveFailures)
		trip(t, b, "k", 5)
		degraded, _, _ := h.outages()
		assert.Zero(t, degraded)
		assert.Positive(t, refused)
	})
}

func TestBothProtocolsDoTheSame(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		synctest.Test(t, func(t *testing.T) {
			m := newMiniRedis(t)
			client := redis.NewClient(&redis.Options{
				Addr: "127.0.0.1:6379", Protocol: protocol, PoolSize: 1000,
				Dialer: func(context.Context, string, string) (net.Conn, error) { return m.Dial() },
			})
			defer client.Close()
			b := newBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{MaxStaleness: -1}), breaker.Config{})
			trip(t, b, "k", 5)
			left, _ := breaker.RetryAfter(execute(b, "k", nil))
			assert.Equal(t, time.Minute, left)
			time.Sleep(left)
			executeN(t, b, "k", 1, nil)
			assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
			events, err := b.History(bg, "k")
			require.NoError(t, err)
			assert.Len(t, events, 9)
			require.NoError(t, b.Close())
		})
	}
}

// The store is down, fn returns E, and every hook there is panics: the caller
// gets E.
func TestDegradedStoreAndAPanickingHookNeverReplaceTheCallersError(t *testing.T) {
	for name, cfg := range everyOutagePolicy() {
		if cfg.OnStoreError == breaker.FailClosed {
			continue // fn does not run
		}
		t.Run(name, func(t *testing.T) {
			cfg.Observer = panicking{}
			flaky(t, cfg, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
				errE := errors.New("E")
				store.Fail(nil)
				for range 3 {
					assert.True(t, execute(b, "k", errE) == errE)
					time.Sleep(time.Second)
				}
			})
		})
	}
}
