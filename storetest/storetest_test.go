package storetest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/breakerkit/breaker"
)

// A recorder is the tb of a check that is expected to fail.
type recorder struct {
	mu       sync.Mutex
	failures []string
	skipped  bool
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skipf(string, ...any) {
	r.skipped = true
	runtime.Goexit()
}

// try runs a check and returns what it had to say. A panic is a failure.
func try(c check, h Harness) *recorder {
	r := new(recorder)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				r.Errorf("panic: %v", v)
			}
		}()
		c.run(&scene{r, h})
	}()
	<-done
	return r
}

// sound returns a harness over a store that is as it should be.
func sound() Harness {
	db := newDatabase()
	return Harness{
		Store: jsonStore{db}, Advance: db.advance, Another: func() breaker.Store { return jsonStore{db} },
	}
}

func (f flaw) harness() Harness {
	db := newDatabase()
	db.torn, db.wrote = f.torn, f.wrote
	return Harness{
		Store: flawedStore{jsonStore{db}, f}, Advance: db.advance,
		Another: func() breaker.Store {
			if f.alone {
				return flawedStore{jsonStore{newDatabase()}, f}
			}
			return flawedStore{jsonStore{db}, f}
		},
	}
}

func TestAStoreThatSavesCircuitsConforms(t *testing.T) {
	Run(t, Config{New: func(*testing.T) Harness { return sound() }})
}

func TestRunPutsEachCheckInABubble(t *testing.T) {
	Run(t, Config{
		Around: synctest.Test,
		New: func(*testing.T) Harness {
			return Harness{Store: breaker.NewMemoryStore(breaker.MemoryConfig{}), Advance: time.Sleep}
		},
	})
}

// The checks that a flaw names are those made to find it; others may as well.
func TestTheSuiteFindsEachFlaw(t *testing.T) {
	for name, f := range flaws {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, name := range f.breaks {
					i := slices.IndexFunc(suite(), func(c check) bool { return c.name == name })
					if i < 0 {
						t.Fatalf("there is no check %s", name)
					}
					r := try(suite()[i], f.harness())
					if len(r.failures) == 0 {
						t.Errorf("%s passes", name)
					}
					t.Logf("%s: %.300q", name, r.failures)
				}
			})
		})
	}
}

func TestEveryCheckFailsOnSomeStore(t *testing.T) {
	for _, c := range suite() {
		made := false
		for _, f := range flaws {
			made = made || slices.Contains(f.breaks, c.name)
		}
		if !made {
			t.Errorf("no flaw is known that %s finds", c.name)
		}
	}
}

func TestChecksOfWhatAStoreIsNotAreSkipped(t *testing.T) {
	var skipped, ran int
	for _, c := range suite() {
		h := sound()
		h.Store = struct{ breaker.Store }{h.Store}
		h.Another = nil
		r := try(c, h)
		if len(r.failures) > 0 {
			t.Errorf("%s fails: %s", c.name, r.failures)
		}
		if r.skipped {
			skipped++
		} else {
			ran++
		}
	}
	if skipped < 10 || ran < 20 {
		t.Errorf("%d checks were skipped and %d ran", skipped, ran)
	}
}
