package breaker_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
)

// flaky runs a test in virtual time over a store that fails on command.
func flaky(t *testing.T, cfg breaker.Config, test func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := breakertest.NewFlakyStore(nil)
		b := newBreaker(t, store, cfg)
		t.Cleanup(store.Recover) // so that no step stays behind
		test(t, b, store)
	})
}

// took runs do and returns how long that took.
func took(do func()) time.Duration {
	began := time.Now()
	do()
	return time.Since(began)
}

func TestFailOpenRunsCallsUnprotected(t *testing.T) {
	flaky(t, breaker.Config{}, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
		trip(t, b, "k", 5)
		store.Fail(nil)
		executeN(t, b, "k", 100, errDown)
		executeN(t, b, "k", 1, nil)
		store.Recover()
		time.Sleep(time.Second)
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		assert.Equal(t, 5, snapshotOf(t, b, "k").ConsecutiveFailures, "nothing was counted")
	})
}

func TestFailClosedReturnsTheStoreErrorAndRunsNothing(t *testing.T) {
	flaky(t, breaker.Config{OnStoreError: breaker.FailClosed}, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
		errPlug := errors.New("unplugged")
		store.Fail(errPlug)
		mustNotRun := func(context.Context) error { t.Error("fn ran"); return nil }
		err := b.Execute(bg, "k", mustNotRun)
		var storeErr *breaker.StoreError
		require.ErrorAs(t, err, &storeErr)
		assert.Equal(t, "acquire", storeErr.Op)
		assert.Equal(t, "k", storeErr.Key)
		assert.ErrorIs(t, err, breaker.ErrStore)
		assert.ErrorIs(t, err, errPlug)
		assert.NotErrorIs(t, err, breaker.ErrOpen)
		_, ok := breaker.RetryAfter(err)
		assert.False(t, ok, "it is no rejection")

		assert.ErrorIs(t, b.Execute(bg, "k", mustNotRun), breaker.ErrStore, "also while the store is left alone")
		_, err = b.Allow(bg, "k")
		assert.ErrorIs(t, err, breaker.ErrStore)
	})
}

func TestFailLocalProtectsWithItsOwnCircuitsUntilTheStoreIsBack(t *testing.T) {
	flaky(t, breaker.Config{OnStoreError: breaker.FailLocal}, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
		trip(t, b, "shared", 5)
		executeN(t, b, "local", 3, errDown)
		for range 2 { // the second outage knows nothing of the first
			store.Fail(nil)
			executeN(t, b, "local", 5, errDown)
			requireRejected(t, execute(b, "local", nil), breaker.ErrOpen)
			executeN(t, b, "shared", 1, nil) // it begins closed
			inFlight := beginCall(b, "local2")
			store.Recover()
			time.Sleep(5 * time.Second)
			assert.Equal(t, errDown, inFlight.finish(errDown))

			requireRejected(t, execute(b, "shared", nil), breaker.ErrOpen)
			assert.Equal(t, 3, snapshotOf(t, b, "local").ConsecutiveFailures)
			assert.Zero(t, snapshotOf(t, b, "local2").ConsecutiveFailures)
		}
		executeN(t, b, "local", 1, nil)
	})
}

func TestFallbackDecidesInsteadOfOnStoreError(t *testing.T) {
	var seen error
	var h hearing
	decide := func(ctx context.Context, run func(context.Context) error) error { return run(ctx) }
	cfg := breaker.Config{
		OnStoreError: breaker.FailClosed, Observer: &h, Policy: breaker.Policy{CallTimeout: time.Second},
		Fallback: func(ctx context.Context, key string, run func(context.Context) error, storeErr error) error {
			seen = storeErr
			return decide(ctx, run)
		},
	}
	flaky(t, cfg, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
		executeN(t, b, "k", 1, nil)
		require.NoError(t, seen, "it is asked only when the store fails")
		store.Fail(nil)
		executeN(t, b, "k", 1, errDown)
		assert.ErrorIs(t, seen, breaker.ErrStore)
		assert.ErrorIs(t, seen, breakertest.ErrDown)
		assert.Equal(t, []breaker.Outcome{breaker.Success, breaker.Failure}, h.outcomes)

		require.NoError(t, b.Execute(bg, "k", func(ctx context.Context) error {
			_, ok := ctx.Deadline()
			assert.True(t, ok, "CallTimeout is still put on it")
			return nil
		}))

		errOther := errors.New("not today")
		decide = func(context.Context, func(context.Context) error) error { return errOther }
		assert.Equal(t, errOther, b.Execute(bg, "k", func(context.Context) error { t.Error("fn ran"); return nil }))
		_, err := b.Allow(bg, "k")
		assert.ErrorIs(t, err, breaker.ErrStore, "it has no part in Allow")
	})
}

func TestFallbackCanRunTheCallOnce(t *testing.T) {
	var refused atomic.Int32
	cfg := breaker.Config{Fallback: func(ctx context.Context, _ string, run func(context.Context) error, _ error) error {
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if errors.Is(run(ctx), breaker.ErrConfig) {
					refused.Add(1)
				}
			})
		}
		wg.Wait()
		return run(ctx)
	}}
	flaky(t, cfg, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
		store.Fail(nil)
		var runs atomic.Int32
		err := b.Execute(bg, "k", func(context.Context) error { runs.Add(1); return nil })
		assert.ErrorIs(t, err, breaker.ErrConfig)
		assert.EqualValues(t, 1, runs.Load())
		assert.EqualValues(t, 9, refused.Load())
	})
}

// A store that accepts and never answers costs a call one StoreTimeout a step,
// and while it is left alone nothing.
func TestAHungStoreCostsACallStoreTimeoutAndThenNothing(t *testing.T) {
	for name, cfg := range everyOutagePolicy() {
		t.Run(name, func(t *testing.T) {
			flaky(t, cfg, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
				store.Hang()
				assert.Equal(t, 100*time.Millisecond, took(func() { _ = execute(b, "k", nil) }))
				for range 100 {
					assert.Zero(t, took(func() { _ = execute(b, "k", nil) }))
				}
				time.Sleep(100 * time.Millisecond)
				assert.Equal(t, 100*time.Millisecond, took(func() { _ = execute(b, "k", nil) }), "one caller tries it")
			})
		})
	}
}

func TestAStoreThatHangsOnTheReportCostsStoreTimeout(t *testing.T) {
	flaky(t, breaker.Config{StoreTimeout: 40 * time.Millisecond}, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
		spent := took(func() {
			err := b.Execute(bg, "k", func(context.Context) error {
				time.Sleep(time.Second)
				store.Hang()
				return errDown
			})
			assert.Equal(t, errDown, err)
		})
		assert.Equal(t, time.Second+40*time.Millisecond, spent)
	})
}

// A slowStore takes its time for every step of a call.
type slowStore struct {
	*breaker.MemoryStore
	acquire, report time.Duration
}

func (s *slowStore) Acquire(ctx context.Context, key string, p breaker.Policy) (breaker.Permit, error) {
	time.Sleep(s.acquire)
	return s.MemoryStore.Acquire(ctx, key, p)
}

func (s *slowStore) Report(ctx context.Context, key string, p breaker.Policy, pm breaker.Permit, r breaker.Result) (*breaker.Transition, error) {
	time.Sleep(s.report)
	return s.MemoryStore.Report(ctx, key, p, pm, r)
}

// A call asks before fn and reports after it, and both together add no more to
// it than StoreTimeout. What is then still to be reported is not lost.
func TestAskingAndReportingTogetherCostStoreTimeoutAtMost(t *testing.T) {
	for name, c := range map[string]struct{ acquire, report, costs time.Duration }{
		"both are quick":         {10, 20, 30},
		"both just fit":          {50, 50, 100},
		"the report does not":    {60, 70, 100},
		"asking takes it all":    {100 - 1, 80, 100},
		"each takes nearly all":  {99, 99, 100},
		"only reporting is slow": {0, 99, 99},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h hearing
				store := &slowStore{breaker.NewMemoryStore(breaker.MemoryConfig{}), c.acquire * time.Millisecond, c.report * time.Millisecond}
				b := newBreaker(t, store, breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 2}, Observer: &h})
				for range 2 {
					spent := took(func() {
						assert.Equal(t, errDown, b.Execute(bg, "k", func(context.Context) error {
							time.Sleep(time.Second)
							return errDown
						}))
					})
					assert.Equal(t, time.Second+c.costs*time.Millisecond, spent)
				}
				time.Sleep(time.Second)
				assert.Equal(t, breaker.StateOpen, snapshotOf(t, b, "k").State, "both failures were reported")
				degraded, _, _ := h.outages()
				assert.Zero(t, degraded, "a step that takes less than StoreTimeout is no outage")
			})
		})
	}
}

// Close waits for a report that its call did not wait for.
func TestCloseWaitsForAReportThatItsCallLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{breaker.NewMemoryStore(breaker.MemoryConfig{}), 90 * time.Millisecond, 90 * time.Millisecond}
		b, err := breaker.New(store, breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1}})
		require.NoError(t, err)
		assert.Equal(t, 100*time.Millisecond, took(func() { _ = execute(b, "k", errDown) }))
		assert.Equal(t, 80*time.Millisecond, took(func() { require.NoError(t, b.Close()) }))
		got, err := store.Snapshot(bg, "k", breaker.Policy{})
		require.NoError(t, err)
		assert.Equal(t, breaker.StateOpen, got.State)
	})
}

func TestACallersDeadlineEndsTheStoreStep(t *testing.T) {
	for name, cfg := range everyOutagePolicy() {
		t.Run(name, func(t *testing.T) {
			flaky(t, cfg, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
				store.Hang()
				ctx, cancel := context.WithTimeout(bg, 25*time.Millisecond)
				defer cancel()
				spent := took(func() {
					err := b.Execute(ctx, "k", func(context.Context) error { t.Error("fn ran"); return nil })
					assert.Equal(t, context.DeadlineExceeded, err)
				})
				assert.Equal(t, 25*time.Millisecond, spent)
			})
		})
	}
}

// A caller who can't wait is no sign of a store that fails.
func TestACallerWhoGivesUpDoesNotDegradeTheStore(t *testing.T) {
	var h hearing
	flaky(t, breaker.Config{Observer: &h}, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
		store.Hang()
		ctx, cancel := context.WithTimeout(bg, 25*time.Millisecond)
		defer cancel()
		require.Error(t, b.Execute(ctx, "k", func(context.Context) error { return nil }))
		store.Recover()
		time.Sleep(time.Second)
		degraded, _, _ := h.outages()
		assert.Zero(t, degraded)
		executeN(t, b, "k", 1, nil)
		assert.Equal(t, 3, store.Steps(), "two acquires and a report")
	})
}

func TestAStoreThatFailedIsTriedAgainAfter100msDoublingTo5s(t *testing.T) {
	flaky(t, breaker.Config{}, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
		store.Fail(nil)
		var tried []time.Duration
		began, steps := time.Now(), 0
		for time.Since(began) < 27*time.Second {
			executeN(t, b, "k", 1, nil)
			if n := store.Steps(); n > steps {
				steps, tried = n, append(tried, time.Since(began))
			}
			time.Sleep(10 * time.Millisecond)
		}
		var want []time.Duration
		for _, ms := range []int{0, 100, 300, 700, 1500, 3100, 6300, 11300, 16300, 21300, 26300} {
			want = append(want, time.Duration(ms)*time.Millisecond)
		}
		assert.Equal(t, want, tried)
		assert.Equal(t, len(want), steps, "one step each time")
	})
}

func TestOneCallerAtATimeTriesAStoreThatFailed(t *testing.T) {
	flaky(t, breaker.Config{}, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
		store.Fail(nil)
		executeN(t, b, "k", 1, nil)
		time.Sleep(100 * time.Millisecond)
		store.Recover()
		store.Hang()
		var waited atomic.Int32
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if took(func() { _ = execute(b, "k", nil) }) > 0 {
					waited.Add(1)
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 1, waited.Load())
		assert.Equal(t, 2, store.Steps())
	})
}

func TestObserversHearOnceOfAnOutageAndOnceOfItsEnd(t *testing.T) {
	var h hearing
	flaky(t, breaker.Config{Observer: &h}, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
		for outage := range 3 {
			store.Fail(nil)
			for range 600 {
				executeN(t, b, "k", 1, nil)
				time.Sleep(10 * time.Millisecond)
			}
			degraded, recovered, _ := h.outages()
			assert.Equal(t, outage+1, degraded)
			assert.Equal(t, outage, recovered)
			store.Recover()
			for range 600 {
				executeN(t, b, "k", 1, nil)
				time.Sleep(10 * time.Millisecond)
			}
			degraded, recovered, down := h.outages()
			assert.Equal(t, outage+1, degraded)
			assert.Equal(t, outage+1, recovered)
			assert.Equal(t, 6300*time.Millisecond, down, "until the first trial that was answered")
		}
	})
}

func TestCallsThatFailTogetherAreOneOutage(t *testing.T) {
	var h hearing
	flaky(t, breaker.Config{Observer: &h}, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
		store.Hang()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { assert.NoError(t, execute(b, "k", nil)) })
		}
		wg.Wait()
		degraded, _, _ := h.outages()
		assert.Equal(t, 1, degraded)
		assert.Equal(t, 20, store.Steps())
	})
}

// What began before the store failed says nothing about how it is now.
func TestALateAnswerFromBeforeTheOutageDoesNotEndIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, release := breakertest.NewFlakyStore(nil), make(chan struct{})
		gated := gatedStore{breaker.NewMemoryStore(breaker.MemoryConfig{}), release, store}
		b := newBreaker(t, gated, breaker.Config{StoreTimeout: time.Minute})
		early := beginCall(b, "gated")
		store.Fail(nil)
		executeN(t, b, "k", 1, nil) // the outage begins
		steps := store.Steps()
		close(release)
		assert.NoError(t, early.finish(nil))
		executeN(t, b, "k", 1, nil)
		assert.Equal(t, steps, store.Steps(), "it is still left alone")
	})
}

// A gatedStore has the key "gated" wait; all else it hands on.
type gatedStore struct {
	gated   *breaker.MemoryStore
	release chan struct{}
	breaker.Store
}

func (s gatedStore) Acquire(ctx context.Context, key string, p breaker.Policy) (breaker.Permit, error) {
	if key == "gated" {
		<-s.release
		return s.gated.Acquire(ctx, key, p)
	}
	return s.Store.Acquire(ctx, key, p)
}

func TestOperatorsStepsAreTriedDuringAnOutage(t *testing.T) {
	flaky(t, breaker.Config{}, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
		store.Fail(nil)
		executeN(t, b, "k", 1, nil)
		_, snapErr := b.Snapshot(bg, "k")
		_, historyErr := b.History(bg, "k")
		for op, err := range map[string]error{
			"snapshot": snapErr, "history": historyErr, "reset": b.Reset(bg, "k"),
			"force": b.Force(bg, "k", breaker.Override{}), "clear override": b.ClearOverride(bg, "k"),
		} {
			var storeErr *breaker.StoreError
			require.ErrorAs(t, err, &storeErr)
			assert.Equal(t, op, storeErr.Op)
			assert.ErrorIs(t, err, breakertest.ErrDown)
		}
		store.Recover()
		assert.NoError(t, b.Force(bg, "k", breaker.Override{State: breaker.StateOpen}), "at once, though calls leave it alone")
	})
}

// A step that never returns holds up no notice of another key.
func TestNoticesAreBroughtWhileAStepHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hearing
		release := make(chan struct{})
		gated := gatedStore{breaker.NewMemoryStore(breaker.MemoryConfig{}), release, breakertest.NewFlakyStore(nil)}
		b := newBreaker(t, gated, breaker.Config{Observer: &h})
		executeN(t, b, "gated", 1, nil)
		time.Sleep(time.Second) // the store is tried again
		trip(t, b, "k", 5)
		assert.Equal(t, []string{"closed>open"}, h.path())
		close(release)
	})
}

// What circuits of FailLocal do is this process's own affair.
func TestNobodyIsToldOfTransitionsOfFailLocal(t *testing.T) {
	var h hearing
	cfg := breaker.Config{Observer: &h, OnStoreError: breaker.FailLocal}
	flaky(t, cfg, func(t *testing.T, b *breaker.Breaker, store *breakertest.FlakyStore) {
		store.Hang()
		executeN(t, b, "k", 5, errDown)
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		time.Sleep(time.Minute)
		degraded, _, _ := h.outages()
		assert.Equal(t, 1, degraded)
		assert.Empty(t, h.path())
		assert.Equal(t, 1, h.rejections)
	})
}

// A success that the server does not hear of ends a streak of this process all
// the same, whoever decided on the call.
func TestSuccessWithoutTheStoreEndsOwnStreak(t *testing.T) {
	for name, cfg := range everyOutagePolicy() {
		if cfg.OnStoreError == breaker.FailClosed {
			continue // no call runs
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMiniRedis(t)
				b := newBreaker(t, m.store(t), cfg)
				executeN(t, b, "k", 4, errDown)
				m.SetError("ERR broken")
				executeN(t, b, "k", 2, nil)
				m.SetError("")
				time.Sleep(10 * time.Second)
				executeN(t, b, "k", 1, errDown)
				s := snapshotOf(t, b, "k")
				assert.Equal(t, breaker.StateClosed, s.State)
				assert.Equal(t, 1, s.ConsecutiveFailures)
			})
		})
	}
}
