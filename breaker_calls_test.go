package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
)

func TestAPanicReachesTheCallerAsItWas(t *testing.T) {
	for _, value := range []any{"text", 7, errDown, http.ErrAbortHandler, (*int)(nil), error((*breaker.StatusError)(nil)), struct{}{}} {
		t.Run(fmt.Sprintf("%T", value), func(t *testing.T) {
			eachStore(t, func(t *testing.T, join join) {
				b := join(breaker.Config{})
				assert.PanicsWithValue(t, value, func() {
					_, _ = breaker.Do(bg, b, "k", func(context.Context) (int, error) { panic(value) })
				})
				assert.Equal(t, 1, snapshotOf(t, b, "k").ConsecutiveFailures)
			})
		})
	}
}

func TestAPanicOfNilAndOneOfTheRuntimeReachTheCallerAsTheyWere(t *testing.T) {
	for name, fn := range map[string]func(context.Context) error{
		"nil":     func(context.Context) error { panic(nil) },
		"runtime": func(context.Context) error { return []error{}[len(t.Name())] },
	} {
		t.Run(name, func(t *testing.T) {
			memoryBubble(t, func(t *testing.T, join join) {
				b := join(breaker.Config{})
				bare, wrapped := panicOf(func() { _ = fn(bg) }), panicOf(func() { _ = b.Execute(bg, "k", fn) })
				require.NotNil(t, bare)
				assert.IsType(t, bare, wrapped)
				assert.Equal(t, bare.(error).Error(), wrapped.(error).Error())
			})
		})
	}
}

func panicOf(do func()) (value any) {
	defer func() { value = recover() }()
	do()
	return nil
}

func TestDoReturnsBothOfWhatFnReturned(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{ConsecutiveFailures: 1}))
		half := func(context.Context) (string, error) { return "half an answer", errDown }
		v, err := breaker.Do(bg, b, "k", half)
		assert.Equal(t, "half an answer", v)
		assert.True(t, err == errDown, "the error itself, not a copy or a wrapper")

		v, err = breaker.Do(bg, b, "k", half)
		assert.Empty(t, v)
		requireRejected(t, err, breaker.ErrOpen)
	})
}

func TestDoWithFallbackOffersSomethingElseWhenThereIsAnError(t *testing.T) {
	errCache := errors.New("cache is empty")
	for _, c := range []struct {
		name     string
		fn       error
		fallback func(error) (string, error)
		want     string
		matches  []error
	}{
		{"no error", nil, nil, "fresh", nil},
		{"it helps", errDown, func(error) (string, error) { return "stale", nil }, "stale", nil},
		{"it fails too", errDown, func(error) (string, error) { return "", errCache }, "", []error{errDown, errCache}},
		{"it gives the error back", errDown, func(err error) (string, error) { return "", err }, "", []error{errDown}},
		{"it wraps the error", errDown, func(err error) (string, error) { return "", fmt.Errorf("%w: %w", errCache, err) }, "", []error{errDown, errCache}},
		{"fn ran out of time, it fails", context.DeadlineExceeded, func(error) (string, error) { return "", errCache }, "", []error{context.DeadlineExceeded, errCache}},
	} {
		t.Run(c.name, func(t *testing.T) {
			memoryBubble(t, func(t *testing.T, join join) {
				b := join(breaker.Config{})
				v, err := breaker.DoWithFallback(bg, b, "k",
					func(context.Context) (string, error) { return "fresh", c.fn },
					func(_ context.Context, err error) (string, error) {
						assert.Equal(t, c.fn, err)
						return c.fallback(err)
					})
				assert.Equal(t, c.want, v)
				if len(c.matches) == 0 {
					assert.NoError(t, err)
				}
				for _, each := range c.matches {
					assert.ErrorIs(t, err, each)
				}
			})
		})
	}
}

func TestDoWithFallbackServesARejectedCall(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		trip(t, b, "k", 5)
		v, err := breaker.DoWithFallback(bg, b, "k",
			func(context.Context) (string, error) { t.Error("fn ran"); return "", nil },
			func(_ context.Context, err error) (string, error) {
				requireRejected(t, err, breaker.ErrOpen)
				return "stale", nil
			})
		assert.NoError(t, err)
		assert.Equal(t, "stale", v)
	})
}

// What a Breaker within fn did not let through says nothing of the outer
// Breaker's dependency, neither while closed nor as a probe.
func TestARejectionByAnInnerBreakerIsIgnoredByTheOuter(t *testing.T) {
	inner := map[string]error{
		"open":  &breaker.RejectedError{State: breaker.StateOpen},
		"busy":  &breaker.RejectedError{State: breaker.StateHalfOpen},
		"store": &breaker.StoreError{Op: "acquire", Err: errDown},
	}
	for name, err := range inner {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, join join) {
				b := join(breaker.Config{})
				wrapped := fmt.Errorf("charge: %w", err)
				executeN(t, b, "k", 4, errDown)
				executeN(t, b, "k", 10, wrapped)
				assert.Equal(t, 4, snapshotOf(t, b, "k").ConsecutiveFailures)
				trip(t, b, "k", 1)
				time.Sleep(time.Minute)
				executeN(t, b, "k", 10, wrapped)
				assert.Equal(t, breaker.StateHalfOpen, stateOf(t, b, "k"))
				executeN(t, b, "k", 1, nil)
				assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
			})
		})
	}
}

func TestAllowGivesAContextWithTheDeadlineAndDoneEndsIt(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{CallTimeout: time.Second}))
		allowed, err := b.Allow(bg, "k")
		require.NoError(t, err)
		deadline, ok := allowed.Context().Deadline()
		assert.True(t, ok)
		assert.Equal(t, time.Second, time.Until(deadline))
		require.NoError(t, allowed.Context().Err())
		allowed.Done(nil)
		assert.Equal(t, context.Canceled, allowed.Context().Err())
	})
}

// However a call ends, the context with its deadline ends too, and with it its timer.
func TestTheContextOfACallEndsWithIt(t *testing.T) {
	exit := breaker.ClassifierFunc(func(error) breaker.Outcome { runtime.Goexit(); return breaker.Failure })
	for name, c := range map[string]struct {
		classifier breaker.Classifier
		end        func() error
	}{
		"success":            {nil, func() error { return nil }},
		"failure":            {nil, func() error { return errDown }},
		"panic":              {nil, func() error { panic("boom") }},
		"Goexit":             {nil, func() error { runtime.Goexit(); return nil }},
		"classifier panics":  {breaker.ClassifierFunc(nil), func() error { return errDown }},
		"classifier Goexits": {exit, func() error { return errDown }},
	} {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, join join) {
				b := join(breaker.Config{Classifier: c.classifier, Policy: breaker.Policy{CallTimeout: time.Hour}})
				var inner context.Context
				inGoroutine(func() {
					_ = panicOf(func() {
						_ = b.Execute(bg, "k", func(ctx context.Context) error { inner = ctx; return c.end() })
					})
				})
				assert.Equal(t, context.Canceled, inner.Err())
			})
		})
	}
}

// A caller who hangs up, and then says so to Done, is no failure either.
func TestDoneAfterTheCallerCancelledIsIgnored(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		ctx, cancel := context.WithCancel(bg)
		allowed, err := b.Allow(ctx, "k")
		require.NoError(t, err)
		cancel()
		allowed.Done(errors.New("stream reset"))
		assert.Zero(t, snapshotOf(t, b, "k").ConsecutiveFailures)
	})
}

func TestAProbeThatIsNeverDoneCostsOneLease(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(under(breaker.Policy{ProbeLease: 30 * time.Second}))
		halfOpen(t, b, "k")
		forgotten, err := b.Allow(bg, "k")
		require.NoError(t, err)
		time.Sleep(30*time.Second - time.Millisecond)
		requireRejected(t, execute(b, "k", nil), breaker.ErrBusy)
		time.Sleep(time.Millisecond)

		probe := beginCall(b, "k")
		before := snapshotOf(t, b, "k")
		forgotten.Done(errDown) // its lease has been taken over
		assert.Equal(t, before, snapshotOf(t, b, "k"))
		require.NoError(t, probe.finish(nil))
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
	})
}

// A probe that the store granted when nobody waited for it any more is given
// back: whoever gave up was not the one to make it.
func TestAProbeGrantedTooLateIsGivenBack(t *testing.T) {
	for name, patience := range map[string]time.Duration{
		"the caller gave up":          25 * time.Millisecond,
		"the store exceeded its time": time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := breakertest.NewFlakyStore(nil)
				b := newBreaker(t, store, breaker.Config{OnStoreError: breaker.FailClosed})
				halfOpen(t, b, "k")

				store.Hang()
				ctx, cancel := context.WithTimeout(bg, patience)
				defer cancel()
				err := b.Execute(ctx, "k", func(context.Context) error { t.Error("fn ran"); return nil })
				require.Error(t, err)
				store.Recover()
				time.Sleep(time.Second) // the store is left alone for a moment
				assert.Zero(t, snapshotOf(t, b, "k").ProbesInFlight)
				require.NoError(t, execute(b, "k", nil))
				assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"))
			})
		})
	}
}

// fn gets a context that is done already, and what it makes of it is Ignored:
// in half-open, too.
func TestAContextThatIsDoneAlreadyIsHandedToFn(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{})
		ctx, cancel := context.WithCancel(bg)
		cancel()
		runs := 0
		fn := func(ctx context.Context) error { runs++; return ctx.Err() }
		assert.Equal(t, context.Canceled, b.Execute(ctx, "k", fn))
		halfOpen(t, b, "k")
		assert.Equal(t, context.Canceled, b.Execute(ctx, "k", fn))
		assert.Equal(t, 2, runs)
		s := snapshotOf(t, b, "k")
		assert.Equal(t, breaker.StateHalfOpen, s.State)
		assert.Zero(t, s.ProbesInFlight)
	})
}

// Marks are for single errors, and win over the Classifier.
func TestMarksWinOverTheClassifier(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{Classifier: breakertest.AlwaysTrip})
		executeN(t, b, "k", 4, errDown)
		executeN(t, b, "k", 4, errNeutral)
		assert.Equal(t, 4, snapshotOf(t, b, "k").ConsecutiveFailures)
		miss := breaker.AsSuccess(errors.New("cache miss"))
		assert.True(t, execute(b, "k", miss) == miss)
		assert.Zero(t, snapshotOf(t, b, "k").ConsecutiveFailures)
	})
}
