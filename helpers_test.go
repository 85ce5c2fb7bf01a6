package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

var bg = context.Background()

// What a dependency answers.
var (
	errDown     = errors.New("connection refused") // a Failure
	errNotFound = &breaker.StatusError{Code: 404}  // a Success: the provider was reached
	errNeutral  = breaker.Ignore(errors.New("of no interest"))
)

// A join makes a Breaker over the circuits of the test, as one more process.
type join func(cfg breaker.Config) *breaker.Breaker

// eachStore runs a test in virtual time over both kinds of store. A bubble
// fails if a goroutine is left in it, so each test is one for leaks, too.
func eachStore(t *testing.T, test func(t *testing.T, join join)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := breaker.NewMemoryStore(breaker.MemoryConfig{})
			test(t, func(cfg breaker.Config) *breaker.Breaker { return newBreaker(t, store, cfg) })
		})
	})
	t.Run("redis", func(t *testing.T) { redisBubble(t, test) })
}

// redisBubble runs a test in virtual time over Redis; each Breaker has a store
// and a client of its own.
func redisBubble(t *testing.T, test func(t *testing.T, join join)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := newMiniRedis(t)
		test(t, func(cfg breaker.Config) *breaker.Breaker { return newBreaker(t, server.store(t), cfg) })
	})
}

// memoryBubble runs a test in virtual time over one MemoryStore.
func memoryBubble(t *testing.T, test func(t *testing.T, join join)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := breaker.NewMemoryStore(breaker.MemoryConfig{})
		test(t, func(cfg breaker.Config) *breaker.Breaker { return newBreaker(t, store, cfg) })
	})
}

func newBreaker(t testing.TB, store breaker.Store, cfg breaker.Config) *breaker.Breaker {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b, err := breaker.New(store, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	return b
}

// A miniRedis is a server in the bubble: its TIME is the bubble's time, as are
// its expiries.
type miniRedis struct{ *miniredis.Miniredis }

func newMiniRedis(t testing.TB) miniRedis {
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	t.Cleanup(server.Close)
	return miniRedis{server}
}

// client returns a client of the server. Its pool is so large that no caller
// waits for a connection: go-redis keeps the timers of such waits in a pool of
// the whole program, and a timer can't move from one bubble to another.
func (m miniRedis) client(t testing.TB) *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr:     "127.0.0.1:6379", // not dialled
		Dialer:   func(context.Context, string, string) (net.Conn, error) { return m.Dial() },
		PoolSize: 1000,
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (m miniRedis) store(t testing.TB) *breaker.RedisStore {
	return breaker.NewRedisStore(m.client(t), breaker.RedisConfig{MaxStaleness: -1})
}

// execute makes a call that ends with err, and returns what Execute returns.
func execute(b *breaker.Breaker, key string, err error) error {
	return b.Execute(bg, key, func(context.Context) error { return err })
}

// executeN makes calls that must all run and end with err.
func executeN(t testing.TB, b *breaker.Breaker, key string, n int, err error) {
	t.Helper()
	for i := range n {
		require.Equal(t, err, execute(b, key, err), "call %d of %d", i+1, n)
	}
}

// trip opens a circuit by so many failures in a row.
func trip(t testing.TB, b *breaker.Breaker, key string, failures int) {
	t.Helper()
	executeN(t, b, key, failures, errDown)
	require.Equal(t, breaker.StateOpen, snapshotOf(t, b, key).State)
}

func snapshotOf(t testing.TB, b *breaker.Breaker, key string) breaker.Snapshot {
	t.Helper()
	s, err := b.Snapshot(bg, key)
	require.NoError(t, err)
	return s
}

func historyOf(t testing.TB, b *breaker.Breaker, key string) []breaker.Event {
	t.Helper()
	events, err := b.History(bg, key)
	require.NoError(t, err)
	return events
}

func stateOf(t testing.TB, b *breaker.Breaker, key string) breaker.State {
	t.Helper()
	return snapshotOf(t, b, key).State
}

// requireRejected asserts that err is a rejection, and returns it.
func requireRejected(t testing.TB, err, sentinel error) *breaker.RejectedError {
	t.Helper()
	var r *breaker.RejectedError
	require.ErrorAs(t, err, &r)
	require.ErrorIs(t, err, sentinel)
	return r
}

// A heldCall is a call under way, in a goroutine of its own.
type heldCall struct {
	end  chan error // what fn is to return
	done chan error // what Execute returned
}

// beginCall starts a call and returns once fn runs, or Execute has returned.
func beginCall(b *breaker.Breaker, key string) *heldCall {
	return beginCallWith(bg, b, key)
}

func beginCallWith(ctx context.Context, b *breaker.Breaker, key string) *heldCall {
	c := &heldCall{end: make(chan error, 1), done: make(chan error, 1)}
	go func() {
		c.done <- b.Execute(ctx, key, func(context.Context) error { return <-c.end })
	}()
	synctest.Wait()
	return c
}

// finish has fn return err, and returns what Execute returns.
func (c *heldCall) finish(err error) error {
	c.end <- err
	return <-c.done
}

// A hearing is an Observer that remembers.
type hearing struct {
	breaker.NopObserver
	mu                  sync.Mutex
	transitions         []breaker.Transition
	outcomes            []breaker.Outcome
	rejections          int
	degraded, recovered int
	down                time.Duration
}

func (o *hearing) note(do func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	do()
}

func (o *hearing) Transitioned(t breaker.Transition) {
	o.note(func() { o.transitions = append(o.transitions, t) })
}
func (o *hearing) CallDone(_ string, outcome breaker.Outcome, _ time.Duration) {
	o.note(func() { o.outcomes = append(o.outcomes, outcome) })
}
func (o *hearing) Rejected(string, *breaker.RejectedError) { o.note(func() { o.rejections++ }) }
func (o *hearing) StoreDegraded(error)                     { o.note(func() { o.degraded++ }) }
func (o *hearing) StoreRecovered(down time.Duration) {
	o.note(func() { o.recovered++; o.down = down })
}

// path is the transitions so far, as "closed>open open>half-open".
func (o *hearing) path() (path []string) {
	synctest.Wait() // notices come on a goroutine of their own
	o.note(func() {
		for _, t := range o.transitions {
			path = append(path, fmt.Sprintf("%v>%v", t.From, t.To))
		}
	})
	return path
}

// outages is how many began and ended, and how long the last one was.
func (o *hearing) outages() (degraded, recovered int, down time.Duration) {
	synctest.Wait()
	o.note(func() { degraded, recovered, down = o.degraded, o.recovered, o.down })
	return degraded, recovered, down
}

// last is the transition last told of.
func (o *hearing) last(t testing.TB) (last breaker.Transition) {
	t.Helper()
	synctest.Wait()
	o.note(func() {
		require.NotEmpty(t, o.transitions)
		last = o.transitions[len(o.transitions)-1]
	})
	return last
}

// under is a Config with nothing but a policy.
func under(p breaker.Policy) breaker.Config { return breaker.Config{Policy: p} }

// halfOpen trips a circuit of the default rule and waits until it may be probed.
func halfOpen(t testing.TB, b *breaker.Breaker, key string) {
	t.Helper()
	trip(t, b, key, 5)
	s := snapshotOf(t, b, key)
	time.Sleep(s.RetryAt.Sub(s.OpenedAt))
	require.Equal(t, breaker.StateHalfOpen, stateOf(t, b, key))
}

// inGoroutine runs do, which may end its goroutine.
func inGoroutine(do func()) {
	var wg sync.WaitGroup
	wg.Go(do)
	wg.Wait()
}

// everyOutagePolicy has a Config for each way to go on without the store.
func everyOutagePolicy() map[string]breaker.Config {
	return map[string]breaker.Config{
		"FailOpen":   {OnStoreError: breaker.FailOpen},
		"FailClosed": {OnStoreError: breaker.FailClosed},
		"FailLocal":  {OnStoreError: breaker.FailLocal},
		"Fallback": {Fallback: func(ctx context.Context, _ string, run func(context.Context) error, _ error) error {
			return run(ctx)
		}},
	}
}

// goroutinesOfTheBubble counts the goroutines of the calling one's bubble.
func goroutinesOfTheBubble(t testing.TB) int {
	t.Helper()
	synctest.Wait()
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	head, _, _ := strings.Cut(string(stacks), "\n") // ours comes first
	bubble := regexp.MustCompile(`synctest bubble \d+`).FindString(head)
	require.NotEmpty(t, bubble)
	return len(regexp.MustCompile(bubble+`\b`).FindAll(stacks, -1))
}
