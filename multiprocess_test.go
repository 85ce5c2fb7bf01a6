package breaker_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// These tests run one circuit in eight processes of the operating system, over
// one redis-server. A worker is this test binary, started again; it has a
// Breaker of its own and does what the test tells it, line by line. It ends
// with its standard input, and so with the test.
//
// What is asserted does not depend on how fast the machine is: notices and
// history stay, and times are compared on the server's clock alone.

const (
	fleetSize     = 8
	workerEnv     = "BREAKER_TEST_WORKER"
	fleetPatience = 30 * time.Second // for what takes a second or two at the most
)

func TestMain(m *testing.M) {
	if setup := os.Getenv(workerEnv); setup != "" {
		workerMain(setup)
		return
	}
	os.Exit(m.Run())
}

// The first worker may have a short lease; those that take over from it have
// time, so that a slow machine does not make them lose theirs too.
var (
	fleetPolicy = breaker.Policy{ConsecutiveFailures: 5, Cooldown: 300 * time.Millisecond, ProbeLease: time.Minute}
	shortLease  = breaker.Policy{ConsecutiveFailures: 5, Cooldown: 300 * time.Millisecond, ProbeLease: 700 * time.Millisecond}
)

const (
	fleetOpened   = "closed > open: consecutive_failures"
	fleetHalfOpen = "open > half-open: cooldown_over"
	fleetReopened = "half-open > open: probe_failed"
	fleetClosed   = "half-open > closed: probes_succeeded"
)

func TestEightProcessesOpenAndCloseOneCircuitOnce(t *testing.T) {
	t.Parallel() // it waits more than it works
	f := startProcessFleet(t, fleetPolicy, fleetPolicy)
	f.trip("pay")

	// Two recoveries fail before one succeeds. In each, all eight ask at once.
	for _, result := range []workerResult{workerFailure, workerFailure, workerSuccess} {
		f.awaitHalfOpen("pay")
		for _, w := range f.workers {
			w.tell(workerOrder{Do: "hold", Key: "pay"})
		}
		var prober *workerProcess
		for _, w := range f.workers {
			got := w.hear().Got
			if got == "holding" {
				require.Nil(t, prober, "a second probe runs")
				prober = w
				continue
			}
			require.Equal(t, "busy", got)
		}
		require.NotNil(t, prober, "nobody probes")
		prober.do(workerOrder{Do: "release", Result: result})
	}
	for _, w := range f.workers { // each hears of the recovery in its time
		ran := func() bool { return w.do(workerOrder{Do: "call", Key: "pay"}).Got == "ran" }
		require.Eventually(t, ran, fleetPatience, 5*time.Millisecond, "%s after the recovery", w.name)
	}

	changes := f.transitions("pay")
	assert.Equal(t, []string{fleetOpened, fleetHalfOpen, fleetReopened, fleetHalfOpen, fleetReopened, fleetHalfOpen, fleetClosed}, transitionTexts(changes))
	assert.Equal(t, changes, f.notices("pay"), "one notice of each, over all processes")
}

func TestEightProcessesHammeringOpenTheCircuitOnce(t *testing.T) {
	t.Parallel() // it waits more than it works
	policy := fleetPolicy
	policy.Cooldown = time.Hour
	f := startProcessFleet(t, policy, policy)

	for _, key := range []string{"dead-1", "dead-2", "dead-3", "dead-4", "dead-5"} {
		const calls = 200
		for _, w := range f.workers {
			w.tell(workerOrder{Do: "hammer", Key: key, Result: workerFailure, Calls: calls})
		}
		for _, w := range f.workers {
			tally := w.hear().Tally
			assert.Equal(t, calls, tally["ran"]+tally["open"], "%s: %v", w.name, tally)
			assert.Positive(t, tally["open"], "%s was spared nothing", w.name)
		}
		changes := f.transitions(key)
		require.Equal(t, []string{fleetOpened}, transitionTexts(changes))
		assert.GreaterOrEqual(t, changes[0].Counts.ConsecutiveFailures, 5)
		assert.Equal(t, uint64(1), f.snapshot(key).Generation)
		assert.Equal(t, changes, f.notices(key), "one notice, over all processes")
	}
}

func TestKilledProberCostsOneLease(t *testing.T) {
	t.Parallel() // it waits more than it works
	f := startProcessFleet(t, shortLease, fleetPolicy)
	prober, others := f.workers[0], f.workers[1:]
	f.trip("pay")
	f.awaitHalfOpen("pay")
	require.Equal(t, "holding", prober.do(workerOrder{Do: "hold", Key: "pay"}).Got)
	f.notices("pay") // all that it has to say
	prober.signal(syscall.SIGKILL)
	prober.dead = true
	fleetTakeOver(t, others, workerOrder{Do: "call", Key: "pay"})

	changes := f.transitions("pay")
	require.Equal(t, []string{fleetOpened, fleetHalfOpen, fleetClosed}, transitionTexts(changes))
	assert.GreaterOrEqual(t, changes[2].At.Sub(changes[1].At), shortLease.ProbeLease, "the slot was free too early")
	assert.Equal(t, changes, f.notices("pay"), "one notice of each, over all processes")
}

// A prober that is stopped, not killed, wakes up later and reports. By then
// another process has the slot, or has settled the matter.
func TestLateResultOfAStoppedProberChangesNothing(t *testing.T) {
	t.Parallel() // it waits more than it works
	// This failure stretches the cooldown, so that the circuit is still open
	// when the late result comes.
	longFailure := workerResult{Fail: true, RetryAfter: time.Minute}
	for _, c := range []struct {
		key      string
		takeover *workerResult // nil: still under way when the late result comes
		late     workerResult
		state    breaker.State
	}{
		{"success-while-another-probes", nil, workerSuccess, breaker.StateHalfOpen},
		{"failure-while-another-probes", nil, workerFailure, breaker.StateHalfOpen},
		{"success-after-another-closed-it", &workerSuccess, workerSuccess, breaker.StateClosed},
		{"failure-after-another-closed-it", &workerSuccess, workerFailure, breaker.StateClosed},
		{"success-after-another-reopened-it", &longFailure, workerSuccess, breaker.StateOpen},
		{"failure-after-another-reopened-it", &longFailure, workerFailure, breaker.StateOpen},
	} {
		t.Run(c.key, func(t *testing.T) {
			f := startProcessFleet(t, shortLease, fleetPolicy)
			prober, others := f.workers[0], f.workers[1:]
			f.trip(c.key)
			f.awaitHalfOpen(c.key)
			require.Equal(t, "holding", prober.do(workerOrder{Do: "hold", Key: c.key}).Got)
			prober.signal(syscall.SIGSTOP)
			second := fleetTakeOver(t, others, workerOrder{Do: "hold", Key: c.key})
			if c.takeover != nil {
				second.do(workerOrder{Do: "release", Result: *c.takeover})
			}
			record, snapshot, history := f.record(c.key), f.snapshot(c.key), f.history(c.key)
			require.Equal(t, c.state, snapshot.State)

			prober.signal(syscall.SIGCONT)
			require.Equal(t, "ran", prober.do(workerOrder{Do: "release", Result: c.late}).Got)
			assert.Equal(t, record, f.record(c.key), "the record on the server")
			assert.Equal(t, snapshot, f.snapshot(c.key))
			assert.Equal(t, history, f.history(c.key))

			if c.takeover == nil { // the probe that has the lease counts
				second.do(workerOrder{Do: "release", Result: workerSuccess})
				assert.Equal(t, breaker.StateClosed, f.snapshot(c.key).State)
			}
			assert.Equal(t, f.transitions(c.key), f.notices(c.key), "one notice of each, over all processes")
		})
	}
}

// fleetTakeOver has workers ask in turn until one may probe.
func fleetTakeOver(t *testing.T, workers []*workerProcess, o workerOrder) *workerProcess {
	t.Helper()
	for end := time.Now().Add(fleetPatience); time.Now().Before(end); {
		for _, w := range workers {
			got := w.do(o).Got
			if got == "ran" || got == "holding" {
				return w
			}
			require.Equal(t, "busy", got)
		}
	}
	require.FailNow(t, "nobody took over")
	return nil
}

// A processFleet is the workers and, as a bystander, a Breaker of the test's own.
type processFleet struct {
	t       *testing.T
	client  *redis.Client
	watch   *breaker.Breaker
	workers []*workerProcess
}

func startProcessFleet(t *testing.T, first, others breaker.Policy) *processFleet {
	t.Helper()
	server := redistest.Start(t)
	f := &processFleet{t: t, client: server.Client(nil)}
	var err error
	f.watch, err = breaker.New(breaker.NewRedisStore(f.client, breaker.RedisConfig{}),
		breaker.Config{Policy: others, StoreTimeout: fleetPatience})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.watch.Close()) })
	for i := range fleetSize {
		policy := others
		if i == 0 {
			policy = first
		}
		f.workers = append(f.workers, startWorkerProcess(t, workerSetup{fmt.Sprint("worker-", i), server.Addr, policy}))
	}
	return f
}

// trip opens a circuit by one failure each of as many processes as it takes.
func (f *processFleet) trip(key string) {
	f.t.Helper()
	few := f.workers[:fleetPolicy.ConsecutiveFailures]
	for _, w := range few {
		w.tell(workerOrder{Do: "call", Key: key, Result: workerFailure})
	}
	for _, w := range few {
		require.Equal(f.t, "ran", w.hear().Got)
	}
	require.Eventually(f.t, func() bool { return len(f.transitions(key)) > 0 }, fleetPatience, 5*time.Millisecond)
}

func (f *processFleet) awaitHalfOpen(key string) {
	f.t.Helper()
	isHalfOpen := func() bool { return f.snapshot(key).State == breaker.StateHalfOpen }
	require.Eventually(f.t, isHalfOpen, fleetPatience, 5*time.Millisecond)
}

func (f *processFleet) snapshot(key string) breaker.Snapshot {
	s, err := f.watch.Snapshot(context.Background(), key)
	assert.NoError(f.t, err)
	return s
}

func (f *processFleet) history(key string) []breaker.Event {
	events, err := f.watch.History(context.Background(), key)
	assert.NoError(f.t, err)
	return events
}

// transitions returns those in the history, oldest first.
func (f *processFleet) transitions(key string) (made []breaker.Transition) {
	for _, e := range f.history(key) {
		if e.Transition != nil {
			made = append(made, *e.Transition)
		}
	}
	slices.Reverse(made)
	return made
}

// record returns what the server keeps of a circuit, as it is.
func (f *processFleet) record(key string) map[string]string {
	fields, err := f.client.HGetAll(context.Background(), "breaker:{"+key+"}").Result()
	require.NoError(f.t, err)
	require.NotEmpty(f.t, fields)
	return fields
}

// notices returns all that the workers' Observers were told of a circuit, in
// its order. Each worker brings what it still has to bring before it answers.
func (f *processFleet) notices(key string) (all []breaker.Transition) {
	f.t.Helper()
	for _, w := range f.workers {
		if !w.dead {
			assert.Equal(f.t, "flushed", w.do(workerOrder{Do: "flush"}).Got, w.name)
		}
		for _, notice := range w.noticed {
			if notice.Key == key {
				assert.Equal(f.t, w.name, notice.Instance, "only who made a transition is told")
				all = append(all, notice)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b breaker.Transition) int { return cmp.Compare(a.Generation, b.Generation) })
	return all
}

func transitionTexts(ts []breaker.Transition) (texts []string) {
	for _, t := range ts {
		texts = append(texts, fmt.Sprintf("%v > %v: %s", t.From, t.To, t.Cause))
	}
	return texts
}
