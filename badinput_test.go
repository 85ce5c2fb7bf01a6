package breaker_test

import (
	"context"
	"errors"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
)

// What makes no sense is a clear error, or works: never a panic, and never the
// trouble of another circuit.

// beside runs a test on a Breaker with a circuit "beside" that must stay as it is.
func beside(t *testing.T, cfg breaker.Config, test func(t *testing.T, b *breaker.Breaker)) {
	t.Helper()
	eachStore(t, func(t *testing.T, join join) {
		witness, b := join(breaker.Config{}), join(cfg)
		executeN(t, witness, "beside", 3, errDown)
		before := snapshotOf(t, witness, "beside")
		assert.Nil(t, panicOf(func() { test(t, b) }))
		assert.Equal(t, before, snapshotOf(t, witness, "beside"))
	})
}

func TestWhatIsNoStoreIsRefused(t *testing.T) {
	for name, store := range map[string]breaker.Store{
		"nil":                                    nil,
		"a nil *MemoryStore":                     (*breaker.MemoryStore)(nil),
		"a MemoryStore that nobody made":         new(breaker.MemoryStore),
		"a nil *RedisStore":                      (*breaker.RedisStore)(nil),
		"a RedisStore that nobody made":          new(breaker.RedisStore),
		"a RedisStore over nil":                  breaker.NewRedisStore(nil, breaker.RedisConfig{}),
		"a RedisStore over a nil client":         breaker.NewRedisStore((*redis.Client)(nil), breaker.RedisConfig{}),
		"a RedisStore over a nil cluster client": breaker.NewRedisStore((*redis.ClusterClient)(nil), breaker.RedisConfig{}),
		"a nil pointer to a Store of others":     (*breakertest.FlakyStore)(nil),
	} {
		t.Run(name, func(t *testing.T) {
			b, err := breaker.New(store, breaker.Config{})
			assert.ErrorIs(t, err, breaker.ErrConfig)
			assert.Nil(t, b)
		})
	}
}

func TestANilFunctionIsRefused(t *testing.T) {
	beside(t, breaker.Config{}, func(t *testing.T, b *breaker.Breaker) {
		assert.ErrorIs(t, b.Execute(bg, "k", nil), breaker.ErrConfig)
		_, err := breaker.Do[int](bg, b, "k", nil)
		assert.ErrorIs(t, err, breaker.ErrConfig)
		_, err = breaker.DoWithFallback(bg, b, "k", func(context.Context) (int, error) { t.Error("fn ran"); return 0, nil }, nil)
		assert.ErrorIs(t, err, breaker.ErrConfig)
		_, err = breaker.DoWithFallback(bg, b, "k", nil, func(_ context.Context, err error) (int, error) { return 0, err })
		assert.ErrorIs(t, err, breaker.ErrConfig)
	})
}

func TestANilContextIsABackgroundContext(t *testing.T) {
	var none context.Context
	beside(t, under(breaker.Policy{CallTimeout: time.Second}), func(t *testing.T, b *breaker.Breaker) {
		for name, do := range map[string]func() error{
			"Execute": func() error {
				return b.Execute(none, "k", func(ctx context.Context) error { return ctx.Err() })
			},
			"Do": func() error {
				_, err := breaker.Do(none, b, "k", func(ctx context.Context) (int, error) { return 0, ctx.Err() })
				return err
			},
			"DoWithFallback": func() error {
				_, err := breaker.DoWithFallback(none, b, "k",
					func(ctx context.Context) (int, error) { return 0, errDown },
					func(ctx context.Context, err error) (int, error) { return 0, ctx.Err() })
				return err
			},
			"Allow": func() error {
				allowed, err := b.Allow(none, "k")
				if err == nil {
					allowed.Done(allowed.Context().Err())
				}
				return err
			},
			"Snapshot": func() error { _, err := b.Snapshot(none, "k"); return err },
			"History":  func() error { _, err := b.History(none, "k"); return err },
			"Keys": func() error {
				for _, err := range b.Keys(none) {
					if err != nil {
						return err
					}
				}
				return nil
			},
			"Force":         func() error { return b.Force(none, "k", breaker.Override{State: breaker.StateClosed}) },
			"ClearOverride": func() error { return b.ClearOverride(none, "k") },
			"Reset":         func() error { return b.Reset(none, "k") },
		} {
			assert.Nil(t, panicOf(func() { assert.NoError(t, do(), name) }), name)
		}
	})
}

func TestATooLongKeyIsRefusedInAFewWords(t *testing.T) {
	for _, key := range []string{strings.Repeat("k", breaker.MaxKeyLength+1), strings.Repeat("\xff", 1<<20)} {
		beside(t, breaker.Config{}, func(t *testing.T, b *breaker.Breaker) {
			_, allowErr := b.Allow(bg, key)
			_, snapshotErr := b.Snapshot(bg, key)
			_, historyErr := b.History(bg, key)
			for name, err := range map[string]error{
				"Execute":       b.Execute(bg, key, func(context.Context) error { t.Error("fn ran"); return nil }),
				"Execute nil":   b.Execute(bg, key, nil),
				"Allow":         allowErr,
				"Snapshot":      snapshotErr,
				"History":       historyErr,
				"Force":         b.Force(bg, key, breaker.Override{}),
				"Force wrongly": b.Force(bg, key, breaker.Override{State: breaker.StateHalfOpen}),
				"ClearOverride": b.ClearOverride(bg, key),
				"Reset":         b.Reset(bg, key),
			} {
				assert.ErrorIs(t, err, breaker.ErrConfig, name)
				assert.Less(t, len(err.Error()), 300, name)
			}
			for listed := range b.Keys(bg) {
				assert.Equal(t, "beside", listed)
			}
		})
	}
}

func TestOddKeysWork(t *testing.T) {
	for _, key := range []string{"", "\xff\x00\xfe", "\x00", strings.Repeat("\xff", breaker.MaxKeyLength), "beside ", "beside:log", "{beside}", "BESIDE"} {
		beside(t, breaker.Config{}, func(t *testing.T, b *breaker.Breaker) {
			trip(t, b, key, 5)
			r := requireRejected(t, execute(b, key, nil), breaker.ErrOpen)
			assert.Equal(t, key, r.Key)
			require.NoError(t, b.Force(bg, key, breaker.Override{State: breaker.StateClosed}))
			require.NoError(t, b.ClearOverride(bg, key))
			require.NoError(t, b.Reset(bg, key))
			events, err := b.History(bg, key)
			require.NoError(t, err)
			assert.NotEmpty(t, events)
		})
	}
}

// A hostileError has methods that panic.
type hostileError struct{ text, is, as, unwrap bool }

func (e hostileError) Error() string {
	if e.text {
		panic("Error")
	}
	return "hostile"
}
func (e hostileError) Is(error) bool {
	if e.is {
		panic("Is")
	}
	return false
}
func (e hostileError) As(any) bool {
	if e.as {
		panic("As")
	}
	return false
}
func (e hostileError) Unwrap() error {
	if e.unwrap {
		panic("Unwrap")
	}
	return nil
}

type uncomparableError struct{ any }

func (uncomparableError) Error() string { return "uncomparable" }

// The caller gets the error that fn returned, and the permit is settled.
func TestHostileErrorsReachTheCallerAndAreFailures(t *testing.T) {
	for name, hostile := range map[string]error{
		"Error panics":           hostileError{text: true},
		"Is panics":              hostileError{is: true},
		"As panics":              hostileError{as: true},
		"Unwrap panics":          hostileError{unwrap: true},
		"a nil *StatusError":     (*breaker.StatusError)(nil),
		"a nil *RejectedError":   (*breaker.RejectedError)(nil),
		"a nil *StoreError":      (*breaker.StoreError)(nil),
		"uncomparable":           uncomparableError{[]int{1}},
		"joined with hostile":    errors.Join(errDown, hostileError{text: true}),
		"a megabyte of nonsense": errors.New(strings.Repeat("\xff", 1<<20)),
	} {
		t.Run(name, func(t *testing.T) {
			beside(t, breaker.Config{}, func(t *testing.T, b *breaker.Breaker) {
				same := func() {
					t.Helper()
					got := b.Execute(bg, "k", func(context.Context) error { return hostile })
					assert.True(t, reflect.TypeOf(got) == reflect.TypeOf(hostile))
				}
				assert.Nil(t, panicOf(same))
				s := snapshotOf(t, b, "k")
				assert.Equal(t, 1, s.ConsecutiveFailures)
				if assert.NotNil(t, s.LastFailure) {
					assert.True(t, utf8.ValidString(s.LastFailure.Error))
					assert.LessOrEqual(t, len(s.LastFailure.Error), breaker.MaxErrorLength)
				}
				require.NoError(t, b.Reset(bg, "k"))

				halfOpen(t, b, "k")
				assert.Nil(t, panicOf(same))
				assert.Zero(t, snapshotOf(t, b, "k").ProbesInFlight)
				assert.Equal(t, breaker.StateOpen, stateOf(t, b, "k"))
			})
		})
	}
}

func TestAFallbackMayReturnAnUncomparableErrorAgain(t *testing.T) {
	beside(t, breaker.Config{}, func(t *testing.T, b *breaker.Breaker) {
		_, err := breaker.DoWithFallback(bg, b, "k",
			func(context.Context) (int, error) { return 0, uncomparableError{[]int{1}} },
			func(_ context.Context, err error) (int, error) { return 0, err })
		assert.Error(t, err)
	})
}

func TestAClassifierThatMisbehavesMakesAFailure(t *testing.T) {
	for name, classifier := range map[string]breaker.Classifier{
		"panics":         breaker.ClassifierFunc(func(error) breaker.Outcome { panic("classifier") }),
		"nil func":       breaker.ClassifierFunc(nil),
		"Undecided":      breaker.ClassifierFunc(func(error) breaker.Outcome { return breaker.Undecided }),
		"no Outcome":     breaker.ClassifierFunc(func(error) breaker.Outcome { return 77 }),
		"ends goroutine": breaker.ClassifierFunc(func(error) breaker.Outcome { runtime.Goexit(); return breaker.Success }),
	} {
		t.Run(name, func(t *testing.T) {
			beside(t, breaker.Config{Classifier: classifier}, func(t *testing.T, b *breaker.Breaker) {
				for range 5 {
					inGoroutine(func() { assert.Equal(t, errDown, execute(b, "k", errDown)) })
				}
				require.Equal(t, breaker.StateOpen, stateOf(t, b, "k"))
				time.Sleep(time.Minute)
				inGoroutine(func() { _ = execute(b, "k", errDown) })
				s := snapshotOf(t, b, "k")
				assert.Equal(t, breaker.StateOpen, s.State)
				assert.Zero(t, s.ProbesInFlight, "the slot is free")
			})
		})
	}
}

type exiting struct{}

func (exiting) CallDone(string, breaker.Outcome, time.Duration) { runtime.Goexit() }
func (exiting) Rejected(string, *breaker.RejectedError)         { runtime.Goexit() }
func (exiting) Transitioned(breaker.Transition)                 { runtime.Goexit() }
func (exiting) StoreDegraded(error)                             { runtime.Goexit() }
func (exiting) StoreRecovered(time.Duration)                    { runtime.Goexit() }

// As a failed test does, from an Observer of its own.
func TestAnObserverThatEndsItsGoroutineLosesNoResult(t *testing.T) {
	beside(t, breaker.Config{Observer: exiting{}}, func(t *testing.T, b *breaker.Breaker) {
		for range 5 {
			inGoroutine(func() { _ = execute(b, "k", errDown) })
		}
		require.Equal(t, breaker.StateOpen, stateOf(t, b, "k"))
		inGoroutine(func() { _ = execute(b, "k", errDown) })
		time.Sleep(time.Minute)
		inGoroutine(func() { _ = execute(b, "k", nil) })
		assert.Equal(t, breaker.StateClosed, stateOf(t, b, "k"), "the probe was settled")
	})
}

func TestAPolicyForThatPanicsIsAnErrConfigOfItsKey(t *testing.T) {
	cfg := breaker.Config{PolicyFor: func(key string) (breaker.Policy, bool) {
		if key == "k" {
			panic("PolicyFor")
		}
		return breaker.Policy{}, false
	}}
	beside(t, cfg, func(t *testing.T, b *breaker.Breaker) {
		for range 2 {
			assert.Nil(t, panicOf(func() { assert.ErrorIs(t, execute(b, "k", nil), breaker.ErrConfig) }))
		}
		executeN(t, b, "another", 1, nil)
	})
}

func TestOverridesThatMakeNoSenseAreRefused(t *testing.T) {
	beside(t, breaker.Config{}, func(t *testing.T, b *breaker.Breaker) {
		for _, o := range []breaker.Override{
			{State: breaker.StateHalfOpen}, {State: 77}, {For: -1}, {For: math.MinInt64},
		} {
			assert.ErrorIs(t, b.Force(bg, "k", o), breaker.ErrConfig)
			assert.Nil(t, snapshotOf(t, b, "k").Override)
		}
	})
}

func TestOverridesAreCutToWhatIsKept(t *testing.T) {
	long := strings.Repeat("é", 1<<19)
	beside(t, breaker.Config{Instance: long}, func(t *testing.T, b *breaker.Breaker) {
		require.NoError(t, b.Force(bg, "k", breaker.Override{
			State: breaker.StateOpen, For: 200 * 365 * 24 * time.Hour, Reason: "\xff" + long, Until: time.Unix(1, 0),
		}))
		o := snapshotOf(t, b, "k").Override
		require.NotNil(t, o)
		for _, text := range []string{o.Reason, o.By} {
			assert.True(t, utf8.ValidString(text))
			assert.InDelta(t, breaker.MaxErrorLength, len(text), 2)
		}
		assert.Equal(t, 200*365*24*time.Hour, time.Until(o.Until), "Until is not the caller's to say")
		requireRejected(t, execute(b, "k", nil), breaker.ErrOpen)
		assert.NoError(t, b.ClearOverride(bg, "never heard of"))
		assert.NoError(t, b.Reset(bg, "never heard of"))
	})
}
