package storetest

import (
	"time"

	"github.com/breakerkit/breaker"
)

// An operator's word: overrides and Reset.
var steering = []check{
	{"ForcedOpenLetsNoCallRun", func(s *scene) {
		c := s.caller(consecutive(2))
		o := forOpen
		o.Until = time.UnixMilli(1) // is the store's to say
		t := c.became(c.force(o), breaker.StateClosed, breaker.StateOpen, breaker.CauseForced)
		if !t.RetryAt.IsZero() {
			s.Errorf("Transition.RetryAt of an override for good is %v; want none", t.RetryAt)
		}
		for range 10 {
			c.refused(breaker.ErrOpen, c.p.Cooldown) // a fair while, for want of an end
			s.Advance(c.p.Cooldown)
		}
		got := c.is(breaker.StateOpen).Override
		if got == nil || got.State != o.State || got.By != o.By || got.Reason != o.Reason || !got.Until.IsZero() {
			s.Errorf("Snapshot.Override is %s; want %s", text(got), text(forOpen))
		}

		c = c.on("open")
		c.trip()
		if t := c.force(forOpen); t != nil {
			s.Errorf("forcing an open circuit open made the transition %s", text(t))
		}
		s.Advance(c.p.Cooldown) // the circuit's own is over, the operator's word is not
		c.is(breaker.StateOpen)
		c.refused(breaker.ErrOpen, c.p.Cooldown)
	}},

	{"ForcedClosedLetsEveryCallRunAndNothingTrips", func(s *scene) {
		c := s.caller(consecutive(2))
		c.trip()
		c.became(c.force(forClosed), breaker.StateOpen, breaker.StateClosed, breaker.CauseForced)
		c.unchanged("a call under an override", func() {
			for _, r := range []breaker.Result{failed, failed, failed, succeeded, ignored} {
				pm := c.acquire()
				if !pm.Forced || pm.Probe != "" {
					s.Errorf("Acquire: %+v; want a forced permit", pm)
				}
				c.report(pm, r)
			}
		})
	}},

	{"ATimedOverrideEndsOnTime", func(s *scene) {
		c := s.caller(consecutive(2))
		o := forOpen
		o.For = 10 * time.Second
		t := c.became(c.force(o), breaker.StateClosed, breaker.StateOpen, breaker.CauseForced)
		until := t.At.Add(o.For)
		sameTime(s, "Transition.RetryAt", t.RetryAt, until)
		if o := c.snapshot().Override; o == nil || !o.Until.Equal(until) {
			s.Errorf("Snapshot.Override is %s; want one until %v", text(o), until)
		}
		c.refused(breaker.ErrOpen, o.For)
		s.Advance(o.For - time.Millisecond)
		c.refused(breaker.ErrOpen, time.Millisecond)
		s.Advance(time.Millisecond)
		if o := c.is(breaker.StateClosed).Override; o != nil {
			s.Errorf("Snapshot.Override after its end is %s", text(o))
		}
		pm := c.acquire()
		if len(pm.Transitions) != 1 || pm.Forced {
			s.Fatalf("Acquire: %+v; want a plain permit and one transition", pm)
		}
		c.became(&pm.Transitions[0], breaker.StateOpen, breaker.StateClosed, breaker.CauseOverrideEnded)
		equal(s, "transitions of the next call", len(c.acquire().Transitions), 0)
	}},

	{"ANewOverrideReplacesTheOld", func(s *scene) {
		c := s.caller(consecutive(2))
		o := forOpen
		o.For = time.Minute
		c.force(o)
		before := c.snapshot()
		o.For, o.Reason, o.By = time.Hour, "it lasts", "bob"
		s.Advance(tick)
		if t := c.force(o); t != nil {
			s.Errorf("an override from open to open made the transition %s", text(t))
		}
		snap := c.snapshot()
		if snap.Generation <= before.Generation {
			s.Errorf("Generation %d did not grow with a new override: %d", before.Generation, snap.Generation)
		}
		if snap.Override == nil || snap.Override.By != "bob" || snap.Override.Reason != "it lasts" {
			s.Errorf("Snapshot.Override is %s; want %s", text(snap.Override), text(o))
		}
		c.refused(breaker.ErrOpen, time.Hour)
		c.became(c.force(forClosed), breaker.StateOpen, breaker.StateClosed, breaker.CauseForced)
		s.Advance(2 * time.Hour)
		if pm := c.acquire(); !pm.Forced {
			s.Errorf("Acquire: %+v; want a forced permit", pm)
		}
	}},

	{"AClearedOverrideGivesTheCircuitBackAsItWas", func(s *scene) {
		c := s.caller(consecutive(3))
		if t := c.clear(); t != nil {
			s.Errorf("clearing no override made the transition %s", text(t))
		}

		c.calls(2, failed)
		c.force(forOpen)
		t := c.became(c.clear(), breaker.StateOpen, breaker.StateClosed, breaker.CauseOverrideCleared)
		if t.Generation != c.acquire().Generation {
			s.Errorf("the permit after an override is of another generation than %d", t.Generation)
		}
		equal(s, "ConsecutiveFailures", c.is(breaker.StateClosed).ConsecutiveFailures, 2)

		c = c.on("open")
		opened := c.trip()
		c.force(forClosed)
		s.Advance(20 * time.Second)
		t = c.became(c.clear(), breaker.StateClosed, breaker.StateOpen, breaker.CauseOverrideCleared)
		sameTime(s, "Transition.RetryAt", t.RetryAt, opened.RetryAt)
		c.refused(breaker.ErrOpen, 40*time.Second)
		s.Advance(40 * time.Second)
		c.probe()

		c.force(forClosed) // half-open
		c.became(c.clear(), breaker.StateClosed, breaker.StateHalfOpen, breaker.CauseOverrideCleared)
		c.report(c.probe(), succeeded)
		c.is(breaker.StateClosed)
	}},

	{"ACooldownThatEndsUnderAnOverrideIsOver", func(s *scene) {
		c := s.caller(consecutive(2))
		c.trip()
		o := forClosed
		o.For = 2 * c.p.Cooldown
		c.force(o)
		s.Advance(o.For)
		c.is(breaker.StateHalfOpen)
		pm := c.probe()
		if len(pm.Transitions) != 2 {
			s.Fatalf("Acquire: %+v; want the end of the override and that of the cooldown", pm)
		}
		equal(s, "first Cause", pm.Transitions[0].Cause, breaker.CauseOverrideEnded)
		equal(s, "its To", pm.Transitions[0].To, breaker.StateOpen)
		c.became(&pm.Transitions[1], breaker.StateOpen, breaker.StateHalfOpen, breaker.CauseCooldownOver)
	}},

	{"ResetClosesAndClearsAllCounts", func(s *scene) {
		p := consecutive(3)
		p.WindowFailures = 10
		failureRate(&p)
		cleared := func(c *caller, before breaker.Snapshot) {
			s.Helper()
			snap := c.is(breaker.StateClosed)
			if snap.Generation <= before.Generation {
				s.Errorf("Generation %d did not grow with a Reset: %d", before.Generation, snap.Generation)
			}
			if text(snap.LastFailure) != text(before.LastFailure) {
				s.Errorf("LastFailure is %s; want %s still", text(snap.LastFailure), text(before.LastFailure))
			}
			want := breaker.Snapshot{Key: c.key, Generation: snap.Generation, ChangedAt: snap.ChangedAt,
				LastFailure: snap.LastFailure, Policy: p}
			equal(s, "Snapshot", text(snap), text(want))
			c.trip() // takes as many failures as ever
		}

		c := s.caller(p)
		c.calls(2, failed)
		before := c.snapshot()
		if t := c.reset(); t != nil {
			s.Errorf("Reset of a closed circuit made the transition %s", text(t))
		}
		cleared(c, before)

		before = c.is(breaker.StateOpen)
		c.became(c.reset(), breaker.StateOpen, breaker.StateClosed, breaker.CauseReset)
		cleared(c, before)

		s.Advance(p.Cooldown)
		c.probe()
		before = c.is(breaker.StateHalfOpen)
		c.became(c.reset(), breaker.StateHalfOpen, breaker.StateClosed, breaker.CauseReset)
		cleared(c, before)

		c.force(forOpen)
		before = c.is(breaker.StateOpen)
		c.became(c.reset(), breaker.StateOpen, breaker.StateClosed, breaker.CauseReset)
		cleared(c, before)

		c.force(forClosed) // over an open circuit: callers see no change
		before = c.is(breaker.StateClosed)
		if t := c.reset(); t != nil {
			s.Errorf("Reset under an override to closed made the transition %s", text(t))
		}
		cleared(c, before)
	}},
}
