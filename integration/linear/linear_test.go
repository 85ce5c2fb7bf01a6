package linear_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

var (
	histories = flag.Int("histories", 60, "histories of each kind; more in the long form")
	seed      = flag.Uint64("seed", 0, "of the first history; 0: a new one")
)

// A steered store is what is tested.
type steered interface {
	breaker.Store
	breaker.Controller
}

const (
	clients    = 5
	operations = 8 // of each
)

// A policy of each kind whose answers do not depend on what a process keeps to
// itself: see the two flags.
var policies = map[string]struct {
	breaker.Policy
	successes bool // calls of a closed circuit may succeed
	streaks   bool // every success is reported, or there is none
}{
	"window": {breaker.Policy{WindowFailures: 3, Cooldown: time.Millisecond, Window: time.Hour,
		MaxProbes: 2, ProbeSuccesses: 2, ProbeLease: time.Hour}.WithDefaults(), true, false},
	"consecutive": {breaker.Policy{ConsecutiveFailures: 3, Cooldown: time.Millisecond,
		MaxProbes: 1, ProbeSuccesses: 2, ProbeLease: time.Hour}.WithDefaults(), false, true},
}

// A history is made by clients that share one circuit.
type history struct {
	store     func(client int) steered
	key       string
	policy    breaker.Policy
	successes bool
	streaks   bool
	twice     func(client int) bool // whether the client's last message arrived twice

	clock atomic.Int64
	mu    sync.Mutex
	ops   []porcupine.Operation
}

// forever is when an operation of which nothing was heard has ended at last.
const forever = int64(1) << 62

func (h *history) run(ctx context.Context, seed uint64) {
	var all sync.WaitGroup
	start := make(chan struct{})
	for client := range clients {
		all.Go(func() {
			<-start
			h.client(ctx, client, rand.New(rand.NewPCG(seed, uint64(client))))
		})
	}
	close(start)
	all.Wait()
}

// client does operations one after another, most of them calls.
func (h *history) client(ctx context.Context, client int, rng *rand.Rand) {
	var held []permit
	for i := range operations {
		op := operation{id: fmt.Sprintf("%d.%d", client, i)}
		switch n := rng.IntN(100); {
		case len(held) > 0 && n < 55:
			last := len(held) - 1
			op.do, op.permit, held = "report", held[last], held[:last]
			op.result = breaker.Failure
			if n := rng.IntN(10); n == 0 {
				op.result = breaker.Ignored
			} else if n < 6 && (h.successes || op.permit.probe != "") {
				op.result = breaker.Success
			}
		case n < 80:
			op.do = "acquire"
		case n < 92:
			op.do = "snapshot"
		case n < 95:
			op.do, op.to = "force", []breaker.State{breaker.StateOpen, breaker.StateClosed}[rng.IntN(2)]
		case n < 98:
			op.do = "clear"
		default:
			op.do = "reset"
		}
		pm, ok := h.do(ctx, client, op)
		switch {
		case ok:
			held = append(held, pm)
		case op.do == "acquire" && rng.IntN(4) == 0:
			time.Sleep(time.Millisecond) // a cooldown, so that some are over
		}
		runtime.Gosched() // else a fast store serves one client after the other
	}
}

// tokens has the lease that each acquire was given, by its id.
var tokens sync.Map

func (h *history) do(ctx context.Context, client int, op operation) (pm permit, permitted bool) {
	s, p := h.store(client), h.policy
	var got answer
	var err error
	var made *breaker.Transition
	call := h.clock.Add(1)
	switch op.do {
	case "acquire":
		var given breaker.Permit
		var rejected *breaker.RejectedError
		given, err = s.Acquire(ctx, h.key, p)
		if errors.As(err, &rejected) {
			err = nil
		}
		got = answerOf(given, rejected)
		pm, permitted = permit{generation: given.Generation, forced: given.Forced}, err == nil && rejected == nil
		if given.Probe != "" {
			pm.probe = op.id
			tokens.Store(h.key+op.id, given.Probe)
		}
	case "report":
		given := breaker.Permit{Generation: op.permit.generation, Forced: op.permit.forced}
		if token, ok := tokens.Load(h.key + op.permit.probe); ok {
			given.Probe = token.(string)
		}
		made, err = s.Report(ctx, h.key, p, given, breaker.Result{Outcome: op.result})
	case "force":
		made, err = s.Force(ctx, h.key, p, breaker.Override{State: op.to})
	case "clear":
		made, err = s.ClearOverride(ctx, h.key, p, "test")
	case "reset":
		made, err = s.Reset(ctx, h.key, p, "test")
	case "snapshot":
		var snap breaker.Snapshot
		snap, err = s.Snapshot(ctx, h.key, p)
		got.seen = seen(snap, h.streaks)
	}
	if op.do != "acquire" {
		got.made = changes(made)
	}
	end := h.clock.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		got, end = answer{unknown: true}, forever
	}
	got.madeLost = h.twice != nil && h.twice(client)
	if got.madeLost {
		ghost := op
		ghost.ghost = true
		h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: ghost, Output: got, Call: call, Return: end})
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: op, Output: got, Call: call, Return: end})
	return pm, permitted
}

// check runs histories of each policy, and returns how many were linearizable,
// were not, and lost a reply.
func check(t *testing.T, n int, prepare func(h *history)) (good, bad, lost int) {
	t.Helper()
	wanted := strings.Contains(t.Name(), "IsFound") // then it need not be told in full
	first := *seed
	if first == 0 {
		first = rand.Uint64() >> 1
	}
	t.Logf("-seed=%d", first)
	for name, p := range policies {
		for i := range n {
			h := &history{key: fmt.Sprintf("%s-%d", name, i), policy: p.Policy, successes: p.successes, streaks: p.streaks}
			prepare(h)
			h.run(t.Context(), first+uint64(i))
			for _, op := range h.ops {
				if op.Output.(answer).unknown {
					lost++
				}
			}
			switch porcupine.CheckOperationsTimeout(model(p.Policy, h.streaks), h.ops, 20*time.Second) {
			case porcupine.Ok:
				good++
			case porcupine.Illegal:
				if bad++; bad == 1 && !wanted {
					t.Logf("history %d of %s:", i, name)
					for _, op := range h.ops {
						t.Logf("%d [%d,%d] %+v -> %+v", op.ClientId, op.Call, op.Return, op.Input, op.Output)
					}
				}
			default:
				t.Errorf("history %d of %s was too hard to judge", i, name)
			}
		}
	}
	t.Logf("%d histories linearizable, %d not; %d of %d operations without an answer",
		good, bad, lost, 2*n*clients*operations)
	return good, bad, lost
}

func oneStore(s steered) func(h *history) {
	return func(h *history) { h.store = func(int) steered { return s } }
}

func TestMemoryStoreIsLinearizable(t *testing.T) {
	t.Parallel()
	s := breaker.NewMemoryStore(breaker.MemoryConfig{})
	good, bad, _ := check(t, 2*(*histories), func(h *history) {
		oneStore(s)(h)
		h.successes, h.streaks = true, true // it hears of every result
	})
	assert.Zero(t, bad)
	assert.Equal(t, 4*(*histories), good)
}

// A process of the fleet has a store and a client of its own.
func processes(t *testing.T, addr string, opts redis.Options) (stores []steered) {
	t.Helper()
	for range clients {
		o := opts
		o.Addr = addr
		c := redis.NewClient(&o)
		t.Cleanup(func() { assert.NoError(t, c.Close()) })
		stores = append(stores, breaker.NewRedisStore(c, breaker.RedisConfig{Settle: -1}))
	}
	return stores
}

func TestRedisStoreIsLinearizable(t *testing.T) {
	t.Parallel()
	for _, protocol := range []int{2, 3} {
		stores := processes(t, redistest.Start(t).Addr, redis.Options{Protocol: protocol})
		good, bad, lost := check(t, *histories, func(h *history) { h.store = func(i int) steered { return stores[i] } })
		assert.Zero(t, bad)
		assert.Zero(t, lost)
		assert.Equal(t, 2*(*histories), good)
	}
}

// A network that loses commands and replies, cuts replies in two and lets what
// one client sends overtake what another sent before. An operation whose reply
// was lost may have taken place, or not.
func TestRedisStoreIsLinearizableOnABadNetwork(t *testing.T) {
	t.Parallel()
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr)
	stores := processes(t, proxy.Addr, redis.Options{MinRetryBackoff: -1})
	proxy.Delay(func([]string) time.Duration { return time.Duration(rand.IntN(2000)) * time.Microsecond })
	proxy.Decide(func(words []string) redistest.Fate {
		if words[0] != "evalsha" || rand.IntN(100) >= 8 {
			return redistest.Pass
		}
		return []redistest.Fate{redistest.LoseReply, redistest.CutReply, redistest.LoseCommand}[rand.IntN(3)]
	})
	good, bad, lost := check(t, *histories, func(h *history) { h.store = func(i int) steered { return stores[i] } })
	assert.Zero(t, bad)
	assert.Equal(t, 2*(*histories), good)
	assert.Positive(t, lost, "the network lost nothing")
}

// A network that delivers messages twice.
func TestRedisStoreIsLinearizableWhereMessagesArriveTwice(t *testing.T) {
	t.Parallel()
	addr := redistest.Start(t).Addr
	loadScripts(t, processes(t, addr, redis.Options{})[0]) // one that is not known, arriving twice, does nothing twice
	var stores []steered
	var repeated [clients]atomic.Int64
	for i := range clients { // a proxy each, to know whose message it was
		proxy := redistest.NewProxy(t, addr)
		proxy.Decide(func(words []string) redistest.Fate {
			if words[0] != "evalsha" || words[2] != "2" || rand.IntN(100) >= 15 {
				return redistest.Pass
			}
			repeated[i].Add(1)
			return redistest.Repeat
		})
		stores = append(stores, processes(t, proxy.Addr, redis.Options{})[0])
	}
	total := 0
	good, bad, _ := check(t, *histories, func(h *history) {
		h.store = func(i int) steered { return stores[i] }
		h.twice = func(i int) bool {
			n := repeated[i].Swap(0)
			total += int(n)
			return n > 0
		}
	})
	assert.Zero(t, bad)
	assert.Equal(t, 2*(*histories), good)
	assert.Positive(t, total, "nothing arrived twice")
}

// loadScripts has the server know every script.
func loadScripts(t *testing.T, s steered) {
	ctx, key, p := t.Context(), "scripts", policies["window"].Policy
	pm, err := s.Acquire(ctx, key, p)
	require.NoError(t, err)
	_, err = s.Report(ctx, key, p, pm, breaker.Result{Outcome: breaker.Failure})
	require.NoError(t, err)
	_, err = s.Force(ctx, key, p, breaker.Override{State: breaker.StateOpen})
	require.NoError(t, err)
	_, _ = s.Acquire(ctx, key, p) // reads
	_, err = s.Acquire(ctx, key, p)
	require.ErrorIs(t, err, breaker.ErrOpen)
}

// A checker shows nothing if it finds nothing where there is something.

// staleStore answers reads as they were one read ago.
type staleStore struct {
	steered
	mu   sync.Mutex
	last map[string]breaker.Snapshot
}

func (s *staleStore) Snapshot(ctx context.Context, key string, p breaker.Policy) (breaker.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.steered.Snapshot(ctx, key, p)
	before, ok := s.last[key]
	s.last[key] = now
	if !ok {
		return now, err
	}
	return before, err
}

// doubleStore counts every result twice.
type doubleStore struct{ steered }

func (s doubleStore) Report(ctx context.Context, key string, p breaker.Policy, pm breaker.Permit, r breaker.Result) (*breaker.Transition, error) {
	_, _ = s.steered.Report(ctx, key, p, pm, r)
	return s.steered.Report(ctx, key, p, pm, r)
}

// generousStore grants one probe too many.
type generousStore struct{ steered }

func (s generousStore) Acquire(ctx context.Context, key string, p breaker.Policy) (breaker.Permit, error) {
	p.MaxProbes++
	return s.steered.Acquire(ctx, key, p)
}

func TestAStoreThatIsNotLinearizableIsFound(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(steered) steered{
		"stale reads":  func(s steered) steered { return &staleStore{steered: s, last: make(map[string]breaker.Snapshot)} },
		"counts twice": func(s steered) steered { return doubleStore{s} },
		"probes":       func(s steered) steered { return generousStore{s} },
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 { // in each of which it is likely to be found
				if _, bad, _ := check(t, 20, oneStore(wrap(breaker.NewMemoryStore(breaker.MemoryConfig{})))); bad > 0 {
					return
				}
			}
			t.Error("it is not found")
		})
	}
}
