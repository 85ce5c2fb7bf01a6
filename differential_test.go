package breaker

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker/internal/redistest"
)

// One random sequence of operations and waits, on every implementation of the
// rules: after each step they must have answered the same and hold the same.
//
// A run prints its seed; BREAKER_SEED repeats it. A sequence that fails is
// printed with its own seed, without the steps that it fails without.

const (
	diffProcesses = 4
	diffKey       = "a}b{c %/ü" // its name in Redis has to be escaped
	diffClockKey  = "clock"
)

// A redisSide is RedisStore on a server, with scripts that read the test's clock.
type redisSide struct {
	client  *redis.Client
	scripts scripts
	clock   *diffClock
	settle  time.Duration
	reader  *RedisStore
	joined  int
}

func newRedisSide(client *redis.Client) *redisSide {
	s := &redisSide{client: client, scripts: NewRedisStoreAt(client, RedisConfig{}, diffClockKey).scripts}
	client.AddHook(s)
	return s
}

// ProcessHook makes it a redis.Hook: where a step says so, the reply to a
// script is lost on the way, and the script arrives a second time.
func (s *redisSide) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") && s.clock.twice {
			_ = next(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

func (s *redisSide) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *redisSide) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *redisSide) begin(clock *diffClock, settle time.Duration) error {
	s.clock, s.settle, s.joined = clock, settle, 0
	s.reader = s.store()
	return errors.Join(s.client.FlushDB(context.Background()).Err(), s.tick())
}

func (s *redisSide) tick() error {
	_, err := s.client.Pipelined(context.Background(), func(pipe redis.Pipeliner) error {
		pipe.Del(context.Background(), diffClockKey)
		pipe.RPush(context.Background(), diffClockKey, s.clock.now.Unix(), s.clock.now.Nanosecond()/1000)
		return nil
	})
	return err
}

func (s *redisSide) store() *RedisStore {
	store := NewRedisStore(s.client, RedisConfig{Settle: s.settle})
	store.scripts = s.scripts
	return store
}

func (s *redisSide) join(process string) diffProcess {
	store := s.store()
	store.process = process
	s.joined++
	wrong := time.Duration(s.joined) * 1234567891 * time.Microsecond // no process's own clock is right
	store.now = func() time.Time { return s.clock.local.Add(wrong) }
	store.jitter = func() float64 { return s.clock.jitter }
	return redisProcess{store}
}

type redisProcess struct{ *RedisStore }

func (s redisProcess) speak(ctx context.Context, key string, p Policy) (*Transition, error) {
	return s.hear(ctx, key, &p, s.ledger(key), nil)
}

func (s *redisSide) lose() error {
	return s.client.Del(context.Background(), s.reader.keys(diffKey)...).Err()
}

func (s *redisSide) circuit() (Circuit, error) {
	record, err := s.client.HGetAll(context.Background(), s.reader.keys(diffKey)[0]).Result()
	return *decodeCircuit(record), err
}

func (s *redisSide) history(key string) ([]Event, error) {
	return s.reader.History(context.Background(), key)
}

// A memorySide is MemoryStore in a bubble of testing/synctest, whose clock it reads.
type memorySide struct {
	clock *diffClock
	store *MemoryStore
}

func (s *memorySide) begin(clock *diffClock, _ time.Duration) error {
	s.clock, s.store = clock, NewMemoryStore(MemoryConfig{})
	return nil
}

func (s *memorySide) tick() error {
	time.Sleep(time.Until(s.clock.now))
	return nil
}

func (s *memorySide) join(string) diffProcess { return memoryProcess{s.store} }
func (s *memorySide) lose() error             { return errors.ErrUnsupported }

func (s *memorySide) circuit() (c Circuit, err error) {
	s.store.read(diffKey, func(kept *Circuit) { c = *kept })
	return c, nil
}

func (s *memorySide) history(key string) ([]Event, error) {
	return s.store.History(context.Background(), key)
}

type memoryProcess struct{ *MemoryStore }

func (memoryProcess) speak(context.Context, string, Policy) (*Transition, error) { return nil, nil }

// A diffRig plays sequences.
type diffRig struct {
	test  string
	names []string
	sides []diffSide // the model first
	slow  int        // how many of the sides, the last ones, play in every tenth sequence only
	plain bool
	play  func(func()) // calls its argument where it is to run
	start func() time.Time
}

// check plays one random sequence. It returns "" or what went wrong.
func (r *diffRig) check(seed uint64) string {
	writer := newDiffWriter(seed, r.plain)
	steps, err := r.run(writer.settle, writer.next)
	if err == nil {
		return ""
	}
	steps = shrink(steps, func(fewer []diffStep) bool {
		_, err := r.run(writer.settle, replay(fewer))
		return err != nil
	})
	if _, last := r.run(writer.settle, replay(steps)); last != nil {
		err = last
	}
	return fmt.Sprintf("BREAKER_SEED=%d go test -run %s . begins with it:\n%s%v", seed, r.test, listing(writer.settle, steps), err)
}

// run plays the steps that next gives, and returns those played up to the
// first one that went wrong, and how.
func (r *diffRig) run(settle time.Duration, next func(*diffWorld) (diffStep, bool)) (steps []diffStep, err error) {
	r.play(func() {
		w := &diffWorld{diffRig: r, policy: DefaultPolicy, permits: make(map[int]*diffPermit)}
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("step %d panics: %v\n%s", len(steps), p, debug.Stack())
			}
		}()
		if err = w.begin(settle); err != nil {
			return
		}
		for {
			s, ok := next(w)
			if !ok {
				err = w.end()
				return
			}
			steps = append(steps, s)
			if err = w.step(s); err != nil {
				err = fmt.Errorf("after step %d: %w", len(steps), err)
				return
			}
		}
	})
	return steps, err
}

// diffRun has each rig, all at once, play its share of n sequences, and reports
// the first that fails.
func diffRun(t *testing.T, n int, rigs ...*diffRig) {
	seed := rand.Uint64() >> 1
	if text := os.Getenv("BREAKER_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("BREAKER_SEED=%d, %d sequences", seed, n)

	var taken atomic.Int64
	var first sync.Once
	work := func(r *diffRig) {
		quick := *r
		quick.sides = quick.sides[:len(quick.sides)-quick.slow]
		for !t.Failed() {
			i := int(taken.Add(1)) - 1
			if i >= n {
				return
			}
			playing := &quick
			if i%10 == 0 {
				playing = r
			}
			if wrong := playing.check(seed + uint64(i)); wrong != "" {
				first.Do(func() { t.Errorf("sequence %d of %d: %s", i+1, n, wrong) })
			}
		}
	}
	var others sync.WaitGroup
	for _, r := range rigs[1:] {
		others.Go(func() { work(r) })
	}
	work(rigs[0]) // here, where a bubble may begin
	others.Wait()
}

// redisRig is for RedisStores on servers yet to be added.
func redisRig(t *testing.T) *diffRig {
	return &diffRig{
		test: t.Name(), names: []string{"model"}, sides: []diffSide{&modelSide{}},
		play:  func(run func()) { run() },
		start: func() time.Time { return time.UnixMicro(1_700_000_000_000_999) },
	}
}

func (r *diffRig) add(name string, side diffSide) {
	r.names = append(r.names, name)
	r.sides = append(r.sides, side)
}

func miniClient(t *testing.T) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func raceEnabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func diffSequences() int {
	if testing.Short() || raceEnabled() { // what is compared runs on one goroutine: make test runs the rest without
		return 200
	}
	return 2000
}

func TestRedisDecidesAsTheModelDoes(t *testing.T) {
	t.Parallel()
	var server *redistest.Server
	if _, err := exec.LookPath("redis-server"); err == nil || os.Getenv("BREAKER_REQUIRE_REDIS") == "1" {
		server = redistest.Start(t)
	} else {
		t.Log("no redis-server on the PATH: miniredis alone is compared")
	}
	var rigs []*diffRig
	for i := range min(runtime.GOMAXPROCS(0), 8) {
		r := redisRig(t)
		if server != nil {
			r.add("redis-server", newRedisSide(server.Client(&redis.Options{DB: i})))
			r.slow = 1 // miniredis takes ten times as long
		}
		r.add("miniredis", newRedisSide(miniClient(t)))
		rigs = append(rigs, r)
	}
	diffRun(t, diffSequences(), rigs...)
}

func TestMemoryStoreDecidesAsTheModelDoes(t *testing.T) {
	t.Parallel()
	diffRun(t, diffSequences(), &diffRig{
		test: t.Name(), names: []string{"model", "MemoryStore"}, sides: []diffSide{&plainSide{}, &memorySide{}}, plain: true,
		play:  func(run func()) { synctest.Test(t, func(*testing.T) { run() }) },
		start: time.Now,
	})
}

// A failover may go to a server whose clock is behind. Of the three failures
// here, two are in the window in the end: the second fell out of it.
func TestTheServersClockMayBeSetBack(t *testing.T) {
	failed := Result{Outcome: Failure}
	r := redisRig(t)
	r.add("redis-server", newRedisSide(redistest.Start(t).Client(nil)))
	_, err := r.run(150*time.Millisecond, replay([]diffStep{
		{do: "policy", policy: Policy{WindowFailures: 3, Window: 10 * time.Second}.WithDefaults()},
		{do: "acquire", permit: 1}, {do: "acquire", permit: 2}, {do: "acquire", permit: 3},
		{do: "report", permit: 1, result: failed},
		{do: "wait", wait: -8 * time.Second},
		{do: "report", permit: 2, result: failed},
		{do: "wait", wait: 10500 * time.Millisecond},
		{do: "report", permit: 3, result: failed},
	}))
	require.NoError(t, err)
}

// A server that lost the circuit counts generations anew, so that what came of an
// earlier one may bear the number of the one that it begins.
func TestAResultThatEndsAnOverrideIsNotCountedWhenItArrivesAgain(t *testing.T) {
	r := redisRig(t)
	r.add("redis-server", newRedisSide(redistest.Start(t).Client(nil)))
	_, err := r.run(150*time.Millisecond, replay([]diffStep{
		{do: "policy", policy: Policy{WindowFailures: 5}.WithDefaults()},
		{do: "force", override: Override{State: StateOpen}}, {do: "clear"},
		{do: "acquire", permit: 1},
		{do: "lose"},
		{do: "force", override: Override{State: StateOpen, For: time.Second}},
		{do: "wait", wait: time.Second},
		{do: "report", permit: 1, result: Result{Outcome: Failure}, twice: true},
	}))
	require.NoError(t, err)
}

// A test of equality shows nothing if it finds no difference where there is one.
func TestADifferenceInTheRulesIsFound(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, edit := range map[string][2]string{
		"a rate must be exceeded":            {"failures >= p.failure_rate", "failures > p.failure_rate"},
		"a lease lasts a millisecond longer": {"if now >= till then return end", "if now > till then return end"},
		"a cooldown does too":                {"now >= c.retry_at", "now > c.retry_at"},
		"a met rule is never unmet":          {"if c.met_at > 0 and not rule", "if false and not rule"},
		"a success after it settled counts":  {"(c.met_at == 0 or succeeded <= settled())", "true"},
		"a run asks when it is three long":   {"c.streak >= 2", "c.streak >= 3"},
		"a run asks again within a minute":   {"since >= 60000", "since >= 600"},
		"a run settles from when it is met":  {"from = c.asked_at", "from = c.met_at"},
		"asks as often as it likes":          {"since >= 500", "since >= 1"},
		"a late result counts":               {" or generation ~= c.generation", ""},
		"a message counts each time":         {"return not known", "return true"},
		"one probe too many":                 {"taken >= math.max(p.max_probes, 1)", "taken > p.max_probes"},
		"the window keeps its edge":          {"start > at - p.window", "start >= at - p.window"},
		"tallies count as of now":            {"add(now - tonumber(age)", "add(now"},
	} {
		t.Run(name, func(t *testing.T) {
			r, side, edited := redisRig(t), newRedisSide(server.Client(nil)), 0
			r.add("redis-server", side)
			for _, s := range []*script{&side.scripts.acquire, &side.scripts.report, &side.scripts.hear, &side.scripts.control} {
				edited += strings.Count(s.source, edit[0])
				s.source = strings.ReplaceAll(s.source, edit[0], edit[1])
				sum := sha1.Sum([]byte(s.source))
				s.sha = hex.EncodeToString(sum[:])
			}
			require.NotZero(t, edited, "no script has %q", edit[0])
			for seed := range uint64(500) {
				writer := newDiffWriter(seed, false)
				if _, err := r.run(writer.settle, writer.next); err != nil {
					t.Logf("sequence %d: %v", seed+1, err)
					return
				}
			}
			t.Error("it is not found")
		})
	}
}

func TestShrinkLeavesTheStepsThatFail(t *testing.T) {
	var steps []diffStep
	for i := range 100 {
		steps = append(steps, diffStep{permit: i})
	}
	needed := []diffStep{steps[17], steps[18], steps[80]}
	left := shrink(steps, func(fewer []diffStep) bool {
		return !slices.ContainsFunc(needed, func(s diffStep) bool { return !slices.Contains(fewer, s) })
	})
	require.Equal(t, needed, left)
}
