package storetest

import (
	"cmp"
	"errors"
	"slices"
	"sync"

	"github.com/breakerkit/breaker"
)

const crowd = 64 // callers at once

// together runs do in a crowd of goroutines and returns when all are done.
func together(do func(i int)) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for i := range crowd {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-start
			do(i)
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
}

// A tally gathers what a crowd met. Its methods may be called concurrently.
type tally struct {
	mu       sync.Mutex
	permits  []breaker.Permit
	rejected []error
	broken   []error
	told     []breaker.Transition
}

// acquire is Acquire of one in the crowd.
func (t *tally) acquire(c *caller) (breaker.Permit, bool) {
	pm, err := c.store.Acquire(ctx, c.key, c.p)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told = append(t.told, pm.Transitions...)
	var rejected *breaker.RejectedError
	switch {
	case err == nil:
		t.permits = append(t.permits, pm)
	case errors.As(err, &rejected):
		t.rejected = append(t.rejected, err)
	default:
		t.broken = append(t.broken, err)
	}
	return pm, err == nil
}

// report is Report of one in the crowd.
func (t *tally) report(c *caller, pm breaker.Permit, r breaker.Result) {
	made, err := c.store.Report(ctx, c.key, c.p, pm, r)
	t.mu.Lock()
	defer t.mu.Unlock()
	if made != nil {
		t.told = append(t.told, *made)
	}
	if err != nil {
		t.broken = append(t.broken, err)
	}
}

// once checks that nothing failed and that one transition was told of.
func (t *tally) once(s *scene, cause string) {
	s.Helper()
	if len(t.broken) > 0 {
		s.Fatalf("%d calls failed; the first: %v", len(t.broken), t.broken[0])
	}
	if len(t.told) != 1 || t.told[0].Cause != cause {
		s.Errorf("transitions told of: %s; want one by %s", text(t.told), cause)
	}
}

// Many callers at once.
var concurrency = []check{
	{"ACrowdGetsExactlyMaxProbes", func(s *scene) {
		p := consecutive(2)
		p.MaxProbes, p.ProbeSuccesses = 3, 3
		one, another := s.pair(p)
		callers := []*caller{one, another}
		one.trip()
		s.Advance(p.Cooldown)
		var first tally
		together(func(i int) { first.acquire(callers[i%2]) })
		first.once(s, breaker.CauseCooldownOver)
		if len(first.permits) != p.MaxProbes {
			s.Fatalf("%d callers at once got %d probes; want %d", crowd, len(first.permits), p.MaxProbes)
		}
		names := make(map[string]bool)
		for _, pm := range first.permits {
			names[pm.Probe] = true
		}
		if len(names) != p.MaxProbes || names[""] {
			s.Errorf("%d probes are named %v; want a name each", p.MaxProbes, names)
		}
		for _, err := range first.rejected {
			if !errors.Is(err, breaker.ErrBusy) {
				s.Errorf("rejected with %v; want ErrBusy", err)
			}
		}

		var second tally
		together(func(i int) {
			if i < p.MaxProbes {
				second.report(callers[i%2], first.permits[i], succeeded)
			}
		})
		second.once(s, breaker.CauseProbesSucceeded)
	}},

	{"ACrowdThatFailsOpensOnce", func(s *scene) {
		for _, p := range []breaker.Policy{
			consecutive(5),
			without(func(p *breaker.Policy) { p.WindowFailures = 5 }),
			without(failureRate),
		} {
			cause := breaker.CauseFailureRate
			switch {
			case p.ConsecutiveFailures > 0:
				cause = breaker.CauseConsecutiveFailures
			case p.WindowFailures > 0:
				cause = breaker.CauseWindowFailures
			}
			c := s.caller(p).on(cause)
			var all tally
			together(func(int) {
				if pm, ok := all.acquire(c); ok {
					all.report(c, pm, failed)
				}
			})
			all.once(s, cause)
			c.is(breaker.StateOpen)
		}
	}},

	{"TransitionsOfACrowdAreOneChain", func(s *scene) {
		p := consecutive(5)
		p.WindowFailures, p.MaxProbes, p.ProbeSuccesses = 20, 2, 2
		one, another := s.pair(p)
		callers := []*caller{one, another}
		var all tally
		for round := range 8 {
			s.Advance(p.Cooldown)
			together(func(i int) {
				c, r := callers[i%2], failed
				if round%2 == 1 {
					r = outcomes[(i+round)%3]
				}
				if pm, ok := all.acquire(c); ok {
					all.report(c, pm, r)
				}
			})
		}
		if len(all.broken) > 0 {
			s.Fatalf("%d calls failed; the first: %v", len(all.broken), all.broken[0])
		}
		slices.SortFunc(all.told, func(a, b breaker.Transition) int { return cmp.Compare(a.Generation, b.Generation) })
		state, generation := breaker.StateClosed, uint64(0)
		for i, t := range all.told {
			if i > 0 && t.Generation == generation || t.From != state {
				s.Fatalf("no. %d of the transitions does not follow on the one before: %s", i+1, text(all.told))
			}
			state, generation = t.To, t.Generation
		}
		if len(all.told) < 4 {
			s.Errorf("transitions: %s; want a few more", text(all.told))
		}
		one.is(state)
	}},
}
