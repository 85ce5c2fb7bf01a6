package breaker_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// Servers that answer nothing, or nonsense, or refuse what a client greets
// them with.

const noScript = "-NOSCRIPT No matching script. Please use EVAL.\r\n"

func init() { logging.Disable() } // the client has much to say of all this

// emptyRecord is what HMGET says of a circuit that has no record.
const emptyRecord = "*3\r\n$-1\r\n$-1\r\n$-1\r\n"

func TestServerThatNeverKnowsAScriptIsAnOutage(t *testing.T) {
	t.Parallel()
	addr := redistest.Fake(t, func(words []string) string {
		if words[0] == "hmget" {
			return emptyRecord
		}
		return noScript
	})
	open := startOutageProcess(t, addr, breaker.FailOpen)
	closed := startOutageProcess(t, addr, breaker.FailClosed)
	for _, p := range []outageProcess{open, closed} {
		p.call(t, "stripe", errDependency, errDependency)
		assert.Equal(t, map[string]int{"hmget": 1, "evalsha": 1, "eval": 1}, p.proxy.Sent())
		p.degrades(t)
	}
	open.call(t, "stripe", errDependency, errDependency)
	closed.call(t, "stripe", errDependency, breaker.ErrStore)
}

func TestServerThatNeverAnswersIsAnOutage(t *testing.T) {
	t.Parallel()
	addr := redistest.Listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	brief := func(o *redis.Options, _ *breaker.Config) { o.ReadTimeout = 500 * time.Millisecond } // Close waits for it
	open := startOutageProcess(t, addr, breaker.FailOpen, brief)
	closed := startOutageProcess(t, addr, breaker.FailClosed, brief)
	began := time.Now()
	for range 100 {
		open.call(t, "stripe", errDependency, errDependency)
		open.call(t, "stripe", nil, nil)
		closed.call(t, "stripe", nil, breaker.ErrStore)
	}
	// Two breakers wait once, and again with each trial.
	assert.Less(t, time.Since(began), time.Duration(2+2*trials(time.Since(began)))*outageTimeout+slack)
	open.degrades(t)
	degraded, recovered := open.notices.counts()
	assert.Equal(t, 1, degraded)
	assert.Zero(t, recovered)
}

// A wrong value where one circuit's record should be is that circuit's trouble.
func TestForeignValueIsTroubleOfOneCircuit(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	admin := srv.Client(nil)
	ctx := t.Context()
	require.NoError(t, admin.Set(ctx, "breaker:{taken}", "mine", 0).Err())
	for onError, want := range map[breaker.StoreErrorPolicy]error{
		breaker.FailOpen: errDependency, breaker.FailClosed: breaker.ErrStore, breaker.FailLocal: breaker.ErrOpen,
	} {
		p := startOutageProcess(t, srv.Addr, onError, patient)
		other := fmt.Sprint("other-", onError)
		if onError == breaker.FailLocal {
			for range 3 {
				p.call(t, "taken", errDependency, errDependency)
			}
		}
		for range 3 {
			p.call(t, "taken", errDependency, want)
			p.call(t, other, errDependency, errDependency)
		}
		p.call(t, other, nil, breaker.ErrOpen)
		_, err := p.Snapshot(ctx, "taken")
		assert.ErrorIs(t, err, breaker.ErrStore)
		assert.ErrorIs(t, p.Reset(ctx, "taken"), breaker.ErrStore)
		p.close()
		degraded, _ := p.notices.counts()
		assert.Zero(t, degraded, "StoreDegraded %v", p.notices.errs)
	}
	assert.Equal(t, "mine", admin.Get(ctx, "breaker:{taken}").Val())
}

// The same where a circuit's history should be: its record must not be left
// without an end.
func TestForeignValueInPlaceOfAHistory(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	admin := srv.Client(nil)
	ctx := t.Context()
	require.NoError(t, admin.Set(ctx, "breaker:{taken}:log", "mine", 0).Err())
	p := startOutageProcess(t, srv.Addr, breaker.FailOpen, patient)
	p.call(t, "taken", errDependency, errDependency)
	p.call(t, "other", errDependency, errDependency)
	assert.Equal(t, "1", admin.HGet(ctx, "breaker:{other}", "streak").Val())
	_, err := p.History(ctx, "taken")
	assert.ErrorIs(t, err, breaker.ErrStore)
	p.close()
	degraded, _ := p.notices.counts()
	assert.Zero(t, degraded, "StoreDegraded %v", p.notices.errs)
	assert.NotEqual(t, time.Duration(-1), admin.PTTL(ctx, "breaker:{taken}").Val(), "a record for ever")
	assert.Equal(t, "mine", admin.Get(ctx, "breaker:{taken}:log").Val())
}

// What a client greets a server with may be refused without harm.
func TestRefusedGreetingIsNoFailure(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	for name, refused := range map[string][]string{
		"hello": {"hello"}, "client": {"client"}, "both": {"hello", "client"},
	} {
		p := startOutageProcess(t, srv.Addr, breaker.FailClosed, patient)
		greeted := 0
		p.proxy.Decide(func(words []string) redistest.Fate {
			if slices.Contains(refused, words[0]) {
				greeted++
				return redistest.Refuse
			}
			return redistest.Pass
		})
		for range 10 {
			p.call(t, name, nil, nil)
		}
		p.call(t, name, errDependency, errDependency)
		snap, err := p.Snapshot(t.Context(), name)
		require.NoError(t, err)
		assert.Equal(t, 1, snap.ConsecutiveFailures, "the dependency's own")
		p.close()
		assert.Positive(t, greeted)
		degraded, _ := p.notices.counts()
		assert.Zero(t, degraded, "StoreDegraded %v", p.notices.errs)
	}
}

// A server that forgets its scripts all the time is asked in full, and misses nothing.
func TestForgottenScriptsAreSentAgain(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	admin := srv.Client(nil)
	p := startOutageProcess(t, srv.Addr, breaker.FailClosed, patient)
	ctx, cancel := context.WithCancel(t.Context())
	var flusher sync.WaitGroup
	flusher.Go(func() {
		for ctx.Err() == nil {
			_ = admin.ScriptFlush(ctx).Err()
		}
	})
	const keys = 100
	for i := range 2 * keys {
		p.call(t, fmt.Sprint("key-", i%keys), errDependency, errDependency)
	}
	cancel()
	flusher.Wait()
	sent := p.proxy.Sent()
	assert.Positive(t, sent["eval"], "nothing was forgotten: %v", sent)
	for i := range keys {
		assert.Equal(t, "2", admin.HGet(t.Context(), fmt.Sprintf("breaker:{key-%d}", i), "streak").Val())
	}
	p.close()
	degraded, _ := p.notices.counts()
	assert.Zero(t, degraded, "StoreDegraded %v", p.notices.errs)
	t.Logf("sent %v", sent)
}

// randomReply is a RESP2 or RESP3 value of any shape.
func randomReply(r *rand.Rand, depth int) string {
	texts := []string{"", "run", "probe", "open", "busy", "forced", "closed", "half-open", "0", "1", "-1", "9223372036854775807",
		"99999999999999999999", "1e400", "NaN", "closed,open,1,1,x,1,1,1,1,1,1", ",,,,,,,,,,,,", "{", `{"at":"1"}`, "\xff\x00"}
	others := []string{"$-1", "_", "*-1", ",3.25", ",inf", "#t", "(123456789012345678901234567890", "+OK", "-ERR no", "-LOADING",
		"-WRONGTYPE no", "-NOSCRIPT no", "-READONLY no", "-MOVED 1 127.0.0.1:1"}
	several := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(randomReply(r, depth+1))
		}
		return b.String()
	}
	switch n := r.IntN(8); r.IntN(8) / (1 + depth/4) {
	case 0:
		return others[r.IntN(len(others))] + "\r\n"
	case 1:
		return fmt.Sprintf(":%d\r\n", r.Int64()-r.Int64())
	case 2, 3:
		text := texts[r.IntN(len(texts))]
		return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
	case 4:
		return fmt.Sprintf("%%%d\r\n%s", n/2, several(n/2*2))
	case 5:
		return fmt.Sprintf("~%d\r\n%s", n, several(n))
	default:
		return fmt.Sprintf("*%d\r\n%s", n, several(n))
	}
}

// A nonsenseServer answers at random, by the seed; in part with what is no
// value at all, if broken.
func nonsenseServer(t *testing.T, seed uint64, broken bool) *redis.Client {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 0))
	addr := redistest.Fake(t, func(words []string) string {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case broken && r.IntN(4) == 0:
			return []string{"\r\n", "?\r\n", "$5\r\nab", "*2\r\n:1\r\n", ":x\r\n", "$x\r\n", "*9223372036854775807\r\n",
				"*2\r\n$1\r\n0\r\n*9223372036854775807\r\n"}[r.IntN(8)]
		case words[0] == "hmget": // of which the client can't bear any other shape
			return fmt.Sprintf("*6\r\n%s%s%s", randomReply(r, 4), randomReply(r, 4), strings.Repeat(randomReply(r, 4), 4))
		default:
			return randomReply(r, 0)
		}
	})
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: 20 * time.Millisecond, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// What a server says is an error at worst.
func TestNonsenseFromAServerIsAnErrorAtWorst(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		store := breaker.NewRedisStore(nonsenseServer(t, seed, false), breaker.RedisConfig{})
		ctx, understood := t.Context(), 0
		try := func(err error) {
			if err == nil {
				understood++
			}
		}
		for i := range 100 {
			key := fmt.Sprint("key-", i%7)
			p := breaker.DefaultPolicy
			p.FailureRate = []float64{0, 0.5}[i%2]
			pm, err := store.Acquire(ctx, key, p)
			try(err)
			_, err = store.Report(ctx, key, p, pm, breaker.Result{Outcome: breaker.Outcome(i % 4)})
			try(err)
			_, err = store.Snapshot(ctx, key, p)
			try(err)
			_, err = store.History(ctx, key)
			try(err)
			_, err = store.Force(ctx, key, p, breaker.Override{State: breaker.StateOpen})
			try(err)
			for range store.Keys(ctx) {
				break
			}
		}
		t.Logf("seed %d: %d of 500 replies made sense", seed, understood)
	}
}

// Not even one that the client can't take apart: the caller gets what fn returned.
func TestBrokenProtocolReachesNoCaller(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		store := breaker.NewRedisStore(nonsenseServer(t, seed, true), breaker.RedisConfig{})
		for i := range 100 { // each with a Breaker that knows of no outage yet
			b := patientBreaker(t, store, breaker.Config{Logger: slog.New(slog.DiscardHandler)})
			key, ran := fmt.Sprint("key-", i%7), 0
			err := b.Execute(t.Context(), key, func(context.Context) error { ran++; return errDependency })
			if err == errDependency {
				require.Equal(t, 1, ran)
				continue
			}
			var rejected *breaker.RejectedError
			require.ErrorAs(t, err, &rejected)
			require.Zero(t, ran)
		}
	}
}

func TestKeysOfABrokenServerEndInAnError(t *testing.T) {
	t.Parallel()
	addr := redistest.Fake(t, func([]string) string { return "*2\r\n$1\r\n0\r\n*9223372036854775807\r\n" })
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	b := patientBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{}), breaker.Config{})
	assert.NotPanics(t, func() {
		for _, err := range b.Keys(t.Context()) {
			assert.ErrorIs(t, err, breaker.ErrStore)
		}
	})
}

// A server that accepts a connection to listen on and says nothing does not
// hold up Close for as long as its client is ready to wait.
func TestCloseDoesNotWaitForAFrozenHandshake(t *testing.T) {
	large(t)
	server := miniredis.RunT(t)
	var dials atomic.Int64
	listens := make(chan struct{})
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), ReadTimeout: 10 * time.Second,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			if dials.Add(1) == 1 {
				return net.Dial("tcp", server.Addr())
			}
			ours, theirs := net.Pipe()
			go func() {
				_, _ = theirs.Read(make([]byte, 1))
				close(listens)
				_, _ = io.Copy(io.Discard, theirs)
			}()
			return ours, nil
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	b, err := breaker.New(breaker.NewRedisStore(client, breaker.RedisConfig{}), breaker.Config{})
	require.NoError(t, err)
	require.NoError(t, execute(b, "k", nil))
	<-listens
	began := time.Now()
	assert.Error(t, b.Close())
	assert.Less(t, time.Since(began), 9*time.Second)
}
