package main

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// A tally counts, for the page's end.
type tally struct {
	breaker.NopObserver

	mu     sync.Mutex
	counts map[string]*counts
}

type counts struct{ made, failed, spared, opened, closed int }

func newTally() *tally {
	t := &tally{counts: make(map[string]*counts)}
	for name := range policies {
		t.counts[name] = new(counts)
	}
	return t
}

func (t *tally) CallDone(key string, o breaker.Outcome, _ time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[key].made++
	if o == breaker.Failure {
		t.counts[key].failed++
	}
}

func (t *tally) Rejected(key string, _ *breaker.RejectedError) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[key].spared++
}

func (t *tally) Transitioned(tr breaker.Transition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch tr.To {
	case breaker.StateOpen:
		t.counts[tr.Key].opened++
	case breaker.StateClosed:
		t.counts[tr.Key].closed++
	}
}

// finish prints what happened. Whoever set how long it runs wants to see each
// circuit at work: one that did not open and close is an error then.
func (t *tally) finish(check bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Printf("\n%-10s %6s %7s %7s %7s %7s\n", "provider", "calls", "failed", "spared", "opened", "closed")
	for _, name := range slices.Sorted(maps.Keys(t.counts)) {
		c := t.counts[name]
		fmt.Printf("%-10s %6d %7d %7d %7d %7d\n", name, c.made, c.failed, c.spared, c.opened, c.closed)
		if check && (c.opened == 0 || c.closed == 0 || c.spared == 0) {
			return fmt.Errorf("the circuit of %s did not open and close again", name)
		}
	}
	return nil
}
