package breaker_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
)

// A log handler is user code: one that sends its lines through the Breaker it
// logs for must not stop the calls.
type callingHandler struct {
	slog.Handler
	handle func()
}

func (h callingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h callingHandler) Handle(context.Context, slog.Record) error {
	h.handle()
	return nil
}

func TestALogHandlerMayUseTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, lines := breakertest.NewFlakyStore(nil), 0
		var b *breaker.Breaker
		logger := slog.New(callingHandler{handle: func() {
			lines++
			_ = b.Execute(context.Background(), "logs", func(context.Context) error { return nil })
		}})
		b, err := breaker.New(store, breaker.Config{Logger: logger})
		require.NoError(t, err)
		store.Fail(nil)
		require.NoError(t, b.Execute(t.Context(), "k", func(context.Context) error { return nil }))
		synctest.Wait()
		assert.Equal(t, 1, lines)
		require.NoError(t, b.Close())
	})
}

func TestCloseWaitsForAReadThatTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := breakertest.NewFlakyStore(nil)
		b, err := breaker.New(store, breaker.Config{})
		require.NoError(t, err)
		store.Hang()
		_, err = b.Snapshot(t.Context(), "k")
		require.ErrorIs(t, err, breaker.ErrStore)

		closed := make(chan error)
		go func() { closed <- b.Close() }()
		synctest.Wait()
		select {
		case <-closed:
			t.Fatal("Close returned while a step was in the store")
		default:
		}
		store.Recover()
		assert.NoError(t, <-closed)
	})
}

func TestHistoryIsTheCallersOwn(t *testing.T) {
	ctx := t.Context()
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
	require.NoError(t, err)
	require.NoError(t, b.Force(ctx, "k", breaker.Override{State: breaker.StateOpen}))
	for range 2 {
		events, err := b.History(ctx, "k")
		require.NoError(t, err)
		require.NotNil(t, events[1].Override)
		assert.Equal(t, breaker.StateOpen, events[1].Override.State)
		assert.Equal(t, breaker.StateOpen, events[0].Transition.To)
		events[1].Override.State, events[0].Transition.To = breaker.StateClosed, breaker.StateClosed
	}
	snap, err := b.Snapshot(ctx, "k")
	require.NoError(t, err)
	assert.Equal(t, breaker.StateOpen, snap.State)
}

// A Store may be used without a Breaker, and then be given a Policy whose
// defaults nobody filled in.
func TestAPolicyWithoutDefaultsGrantsOneProbe(t *testing.T) {
	ctx, p := t.Context(), breaker.Policy{ConsecutiveFailures: 1}
	store := breaker.NewMemoryStore(breaker.MemoryConfig{})
	pm, err := store.Acquire(ctx, "k", p)
	require.NoError(t, err)
	made, err := store.Report(ctx, "k", p, pm, breaker.Result{Outcome: breaker.Failure})
	require.NoError(t, err)
	require.NotNil(t, made)
	pm, err = store.Acquire(ctx, "k", p) // a Cooldown of 0 is over
	require.NoError(t, err)
	assert.NotEmpty(t, pm.Probe)
}

// Calls that run unprotected in an outage are not reported, but they do show
// that the dependency is well.
func TestASuccessInAnOutageEndsTheStreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newVirtualFleet(t, 1, fleetWays["strict"], breaker.Policy{})
		b := f.processes[0]
		call := func(err error) {
			assert.Equal(t, err, b.Execute(t.Context(), "k", func(context.Context) error { return err }))
		}
		for range 4 {
			call(errSick)
			time.Sleep(time.Second)
		}
		f.server.SetError("ERR away")
		call(nil)
		f.server.SetError("")
		time.Sleep(10 * time.Second)
		call(errSick)
		snap, err := b.Snapshot(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, breaker.StateClosed, snap.State)
		assert.Equal(t, 1, snap.ConsecutiveFailures)
	})
}

// The circuits of FailLocal are one process's own: what they do is not told as
// if it were the fleet's.
func TestNoObserverIsToldOfTheCircuitsOfFailLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &virtualFleet{}
		store := breakertest.NewFlakyStore(nil)
		b, err := breaker.New(store, breaker.Config{OnStoreError: breaker.FailLocal, Observer: countOpened{opened: &f.opened}})
		require.NoError(t, err)
		store.Fail(nil)
		for range 5 {
			_ = b.Execute(t.Context(), "k", func(context.Context) error { return errSick })
		}
		err = b.Execute(t.Context(), "k", func(context.Context) error { return errors.New("it ran") })
		require.ErrorIs(t, err, breaker.ErrOpen)
		require.NoError(t, b.Close())
		assert.Zero(t, f.opened.Load())
	})
}
