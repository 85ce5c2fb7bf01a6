package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// Who may use the store, by which protocol, and over what kind of server.

// useEverything does with the circuit of key all that a Breaker can do, on the
// server's own clock. It returns the first thing that went wrong, and why the
// store failed if it did.
func useEverything(ctx context.Context, client redis.UniversalClient, cfg breaker.RedisConfig, key string) error {
	notices := new(outageNotices)
	b, err := breaker.New(breaker.NewRedisStore(client, cfg), breaker.Config{
		Policy:   breaker.Policy{ConsecutiveFailures: 2, FailureRate: 1, MinCalls: 1000, Cooldown: time.Millisecond},
		Observer: notices, StoreTimeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	var first error
	check := func(what string, got, want error) {
		switch {
		case first != nil || errors.Is(got, want):
		case got == nil:
			first = fmt.Errorf("%s: no error, expected %w", what, want)
		default:
			first = fmt.Errorf("%s: %w", what, got)
		}
	}
	expect := func(what string, state breaker.State) {
		snap, err := b.Snapshot(ctx, key)
		check("snapshot", err, nil)
		if snap.State != state {
			check(what, fmt.Errorf("the circuit is %v, expected %v", snap.State, state), nil)
		}
	}

	check("healthy call", b.Execute(ctx, key, callOK), nil)
	expect("after a healthy call", breaker.StateClosed)
	for range 2 {
		check("failure", b.Execute(ctx, key, callFails), errDependency)
	}
	probe := breaker.ErrOpen
	for end := time.Now().Add(5 * time.Second); errors.Is(probe, breaker.ErrOpen) && time.Now().Before(end); {
		probe = b.Execute(ctx, key, callOK)
	}
	check("probe", probe, nil)
	expect("after a probe", breaker.StateClosed)

	check("force open", b.Force(ctx, key, breaker.Override{State: breaker.StateOpen, Reason: "drill"}), nil)
	check("call while forced open", b.Execute(ctx, key, callOK), breaker.ErrOpen)
	expect("forced", breaker.StateOpen)
	check("force closed", b.Force(ctx, key, breaker.Override{State: breaker.StateClosed, For: time.Hour}), nil)
	check("clear override", b.ClearOverride(ctx, key), nil)
	check("reset", b.Reset(ctx, key), nil)
	check("failure", b.Execute(ctx, key, callFails), errDependency)
	check("success", b.Execute(ctx, key, callOK), nil)
	check("success", b.Execute(ctx, key, callOK), nil)
	expect("after a reset", breaker.StateClosed)

	history, err := b.History(ctx, key)
	check("history", err, nil)
	if len(history) == 0 || history[0].Error != errDependency.Error() {
		check("history", fmt.Errorf("%d events", len(history)), nil)
	}
	listed := 0
	for k, err := range b.Keys(ctx) {
		check("keys", err, nil)
		if k == key {
			listed++
		}
	}
	if listed != 1 {
		check("keys", fmt.Errorf("listed %d times", listed), nil)
	}
	check("close", b.Close(), nil)
	return errors.Join(append([]error{first}, notices.errs...)...)
}

// overflowHistory makes more events than a history keeps.
func overflowHistory(ctx context.Context, client redis.UniversalClient) error {
	store := breaker.NewRedisStore(client, breaker.RedisConfig{})
	for range 150 {
		if _, err := store.Reset(ctx, "stripe", breaker.DefaultPolicy, "test"); err != nil {
			return err
		}
	}
	history, err := store.History(ctx, "stripe")
	if err == nil && len(history) != breaker.MaxHistory {
		err = fmt.Errorf("a history of %d events", len(history))
	}
	return err
}

// smallestUser is all that a user of the store needs: every rule, each of
// which is missed. What a client greets a server with may be denied.
var smallestUser = strings.Fields(`~breaker:* +evalsha +eval +hmget +lrange +zscan
	+time +hgetall +hset +lpush +ltrim +pexpire +persist +zadd +zremrangebyscore +zremrangebyrank`)

// clusterRights are what the client of a Cluster needs besides.
const clusterRights = "+cluster|slots"

// pushRights are what it needs to hear of changes, and to be heard.
var pushRights = []string{"&breaker:changes", "+subscribe", "+ping", "+publish"}

// addUser adds a user that has the rules, and no others.
func addUser(t *testing.T, srv *redistest.Server, rules ...string) (name, password string) {
	t.Helper()
	rules = append([]string{"reset", "on", ">secret", "resetchannels", "-@all"}, rules...)
	require.NoError(t, srv.Client(nil).ACLSetUser(t.Context(), "app", rules...).Err())
	return "app", "secret"
}

func startAs(t *testing.T, rules ...string) redis.UniversalClient {
	t.Helper()
	srv := redistest.Start(t)
	name, password := addUser(t, srv, rules...)
	return srv.Client(&redis.Options{Username: name, Password: password})
}

func clusterClientAs(t *testing.T, srv *redistest.Server, rules ...string) redis.UniversalClient {
	t.Helper()
	name, password := addUser(t, srv, rules...)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{srv.Addr}, Username: name, Password: password})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestSmallestUserCanDoEverything(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for name, client := range map[string]redis.UniversalClient{
		"single":  startAs(t, smallestUser...),
		"cluster": clusterClientAs(t, cluster, append(slices.Clone(smallestUser), clusterRights)...),
	} {
		ctx := t.Context()
		require.NoError(t, useEverything(ctx, client, breaker.RedisConfig{}, "stripe"), name)
		require.NoError(t, overflowHistory(ctx, client), name)
		assert.ErrorContains(t, client.Get(ctx, "breaker:{stripe}").Err(), "NOPERM", name)
	}
	store := breaker.NewRedisStore(clusterClientAs(t, cluster, smallestUser...), breaker.RedisConfig{})
	_, err := store.Snapshot(t.Context(), "stripe", breaker.DefaultPolicy)
	assert.ErrorContains(t, err, "NOPERM", "a cluster's client without %s", clusterRights)
}

// No right of the smallest user is one too many, and none is missed in silence.
func TestEachRightOfTheSmallestUserIsMissed(t *testing.T) {
	t.Parallel()
	for i, rule := range smallestUser {
		t.Run("without "+rule, func(t *testing.T) {
			t.Parallel()
			client := startAs(t, slices.Delete(slices.Clone(smallestUser), i, i+1)...)
			err := errors.Join(useEverything(t.Context(), client, breaker.RedisConfig{}, "stripe"), overflowHistory(t.Context(), client))
			require.Error(t, err)
			assert.Regexp(t, "NOPERM|can't run this command|ACL failure in script", err.Error()) // of Redis, or Valkey
			t.Log(err)
		})
	}
}

// Changes are announced by, and to, whoever has the rights to it, over every kind
// of server. The views would last for half a minute else.
func TestChangesAreAnnouncedOnARealServer(t *testing.T) {
	t.Parallel()
	rules := slices.Concat(smallestUser, pushRights)
	cluster := redistest.StartCluster(t)
	resp2, resp3 := redistest.Start(t), redistest.Start(t)
	name, password := addUser(t, resp2, rules...)
	_, _ = addUser(t, resp3, rules...)
	for name, of := range map[string]struct {
		server *redistest.Server
		client redis.UniversalClient
	}{
		"RESP3":   {resp3, resp3.Client(&redis.Options{Username: name, Password: password})},
		"RESP2":   {resp2, resp2.Client(&redis.Options{Username: name, Password: password, Protocol: 2})},
		"cluster": {cluster, clusterClientAs(t, cluster, append(slices.Clone(rules), clusterRights)...)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := of.client
			start := func() *breaker.Breaker {
				return patientBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{MaxStaleness: time.Minute}),
					breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Hour}, StoreTimeout: 10 * time.Second})
			}
			a, b := start(), start()
			soon := func(want error) {
				t.Helper()
				require.Eventually(t, func() bool { return errors.Is(b.Execute(t.Context(), "stripe", callOK), want) },
					20*time.Second, time.Millisecond)
			}
			soon(nil)
			require.NoError(t, a.Execute(t.Context(), "stripe", callOK))
			admin := of.server.Client(nil)
			require.Eventually(t, func() bool {
				return admin.PubSubNumSub(t.Context(), "breaker:changes").Val()["breaker:changes"] == 2
			}, 20*time.Second, time.Millisecond, "both listen")
			for range 3 {
				require.Equal(t, errDependency, a.Execute(t.Context(), "stripe", callFails))
				soon(breaker.ErrOpen)
				require.NoError(t, a.Reset(t.Context(), "stripe"))
			}
			soon(nil)
		})
	}
}

// Without one of them, all else goes on as before.
func TestEachRightToAnnounceMayBeMissing(t *testing.T) {
	t.Parallel()
	for i, rule := range pushRights {
		t.Run("without "+rule, func(t *testing.T) {
			t.Parallel()
			client := startAs(t, slices.Concat(smallestUser, slices.Delete(slices.Clone(pushRights), i, i+1))...)
			require.NoError(t, useEverything(t.Context(), client, breaker.RedisConfig{}, "stripe"))
		})
	}
}

// A user who may not ask the server's time is told so, by that name.
func TestDeniedTimeIsNamed(t *testing.T) {
	t.Parallel()
	client := startAs(t, append(slices.Clone(smallestUser), "-time")...)
	b := patientBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{}), breaker.Config{})
	_, err := b.Snapshot(t.Context(), "stripe")
	require.ErrorIs(t, err, breaker.ErrStore)
	assert.Contains(t, strings.ToLower(err.Error()), "time")
}

// Names that would break the slot of a Cluster if they were not escaped.
var hostileNames = []string{"{}", "a}b{c", "", "{", "}", "{a}", "}{", " ", "é", "\x00\xff", "%", "%7B", "a:log", "/", "?*[]", "\r\n"}

func TestEveryServerAndProtocolDoesTheSame(t *testing.T) {
	t.Parallel()
	single := func(protocol int) func(t *testing.T) redis.UniversalClient {
		return func(t *testing.T) redis.UniversalClient {
			return redistest.Start(t).Client(&redis.Options{Protocol: protocol})
		}
	}
	for name, dial := range map[string]func(t *testing.T) redis.UniversalClient{
		"RESP2": single(2), "RESP3": single(3),
		"Cluster": func(t *testing.T) redis.UniversalClient { return dialCluster(t, redistest.StartCluster(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := dial(t)
			for _, key := range append([]string{"stripe"}, hostileNames...) {
				assert.NoError(t, useEverything(t.Context(), client, breaker.RedisConfig{}, key), "key %q", key)
			}
			for _, prefix := range hostileNames {
				cfg := breaker.RedisConfig{Prefix: prefix}
				assert.NoError(t, useEverything(t.Context(), client, cfg, "of "+prefix), "prefix %q", prefix)
			}
			// The server forgets its scripts, as a node that took over does.
			require.NoError(t, client.ScriptFlush(t.Context()).Err())
			assert.NoError(t, useEverything(t.Context(), client, breaker.RedisConfig{}, "later"))
			assert.NoError(t, overflowHistory(t.Context(), client))
		})
	}
}

func dialCluster(t *testing.T, srv *redistest.Server) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{srv.Addr}})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// The two keys of a circuit are in one slot, whatever its name and prefix, and
// each circuit has keys of its own.
func TestBothKeysOfACircuitAreInOneSlot(t *testing.T) {
	t.Parallel()
	srv := redistest.StartCluster(t)
	client, ctx := dialCluster(t, srv), t.Context()
	for _, prefix := range append([]string{"", "a:b:"}, hostileNames...) {
		b := patientBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{Prefix: prefix}), breaker.Config{})
		for _, key := range hostileNames {
			require.NoError(t, client.FlushDB(ctx).Err())
			require.Equal(t, errDependency, b.Execute(ctx, key, callFails))
			keys := client.Keys(ctx, "*}*").Val()
			require.Len(t, keys, 2, "prefix %q, key %q", prefix, key)
			record, log := min(keys[0], keys[1]), max(keys[0], keys[1])
			assert.Equal(t, record+":log", log)
			assert.Equal(t, client.ClusterKeySlot(ctx, record).Val(), client.ClusterKeySlot(ctx, log).Val(), "%q", keys)
			assert.Equal(t, 1, strings.Count(log, "{"), log)
			assert.Equal(t, 1, strings.Count(log, "}"), log)
			assert.NotContains(t, log, "{}", "an empty tag is none")
		}
	}
}
