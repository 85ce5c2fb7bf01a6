// Package storetest is the suite that every breaker.Store must pass.
//
// Whoever writes a Store over a database of their own runs it from one test:
//
//	func TestStore(t *testing.T) {
//		db := openTestDatabase(t)
//		storetest.Run(t, storetest.Config{
//			New: func(t *testing.T) storetest.Harness {
//				clock := &testClock{now: time.Now()}
//				circuits := db.emptyTable(t)
//				return storetest.Harness{
//					Store:   newStore(circuits, clock),
//					Advance: clock.add,
//					Another: func() breaker.Store { return newStore(circuits, clock) },
//				}
//			},
//		})
//	}
//
// A store whose clock is this process's needs no clock of its own: with
// Around set to synctest.Test each check runs in a bubble, where time stands
// still until somebody sleeps, and Advance is time.Sleep.
//
//	storetest.Run(t, storetest.Config{
//		Around: synctest.Test,
//		New: func(t *testing.T) storetest.Harness {
//			store := breaker.NewMemoryStore(breaker.MemoryConfig{})
//			return storetest.Harness{Store: store, Advance: time.Sleep}
//		},
//	})
//
// # What is asked of a store
//
// Each check is a subtest named after the rule it holds the store to, so that
// go test -run and -skip choose among them. The checks call the store as a
// Breaker does: an Acquire for each call, a Report for each Permit, a Policy
// whose defaults are filled in. Those for Controller, Lister and Historian are
// skipped where the store is none.
//
// Times are compared to the millisecond. Two things may take up to a second:
// until one process sees what another has changed, and until a rule that
// several processes' calls meet only together opens the circuit. By then
// whoever comes finds it open, as of the call that met the rule. What one
// process does alone is there at once.
package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/breakerkit/breaker"
)

// A Config says how the suite gets at the store it tests.
type Config struct {
	// New returns a harness over a store without circuits. It is called once
	// for each check, within Around, with the check's own t.
	New func(t *testing.T) Harness

	// Around, if set, is what each check runs in: it must call check once,
	// before it returns. synctest.Test is one.
	Around func(t *testing.T, check func(t *testing.T))
}

// A Harness is a store for one check, and power over its clock.
type Harness struct {
	// Store is the store as one process has it.
	Store breaker.Store

	// Advance moves the store's clock on. Until the next Advance the clock
	// must stand still. It is not called while the store is.
	Advance func(d time.Duration)

	// Another returns the store as another process has it: over the same
	// circuits, with nothing in common but the server. nil: Store itself
	// stands in, as is right for circuits that never leave their process.
	Another func() breaker.Store
}

// Run runs every check of the suite as a subtest of t.
func Run(t *testing.T, cfg Config) {
	around := cfg.Around
	if around == nil {
		around = func(t *testing.T, check func(t *testing.T)) { check(t) }
	}
	for _, c := range suite() {
		t.Run(c.name, func(t *testing.T) {
			around(t, func(t *testing.T) { c.run(&scene{t, cfg.New(t)}) })
		})
	}
}

// A check holds a store to one rule.
type check struct {
	name string
	run  func(s *scene)
}

func suite() []check {
	return slices.Concat(opening, cooldown, probing, reading, late, steering,
		transitions, processes, keys, history, concurrency)
}

// A tb is the part of *testing.T that the checks use, so that the suite can be
// tried on stores that must not pass.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// A scene is what a check plays in.
type scene struct {
	tb
	Harness
}
