package storetest

import (
	"time"

	"github.com/breakerkit/breaker"
)

// How a circuit recovers.
var probing = []check{
	{"AtMostMaxProbesInTheFleet", func(s *scene) {
		p := consecutive(2)
		p.MaxProbes, p.ProbeSuccesses, p.ProbeLease = 2, 5, 30*time.Second
		one, another := s.pair(p)
		first := one.tripAndProbe()
		s.Advance(10 * time.Second)
		second := another.probe()
		if first.Probe == second.Probe {
			s.Errorf("two probes have the one name %q", first.Probe)
		}
		equal(s, "ProbesInFlight", one.snapshot().ProbesInFlight, 2)
		for _, c := range []*caller{one, another} {
			c.refused(breaker.ErrBusy, 20*time.Second) // until the first lease lapses
		}
		s.Advance(20*time.Second - time.Millisecond)
		one.refused(breaker.ErrBusy, time.Millisecond)

		one.report(first, succeeded) // frees its slot
		another.probe()
		one.refused(breaker.ErrBusy, 10*time.Second+time.Millisecond)
	}},

	{"ALapsedLeaseGoesToOneNewProbe", func(s *scene) {
		p := consecutive(2)
		p.ProbeLease = 30 * time.Second
		one, another := s.pair(p)
		lost := one.tripAndProbe()
		s.Advance(p.ProbeLease - time.Millisecond)
		another.refused(breaker.ErrBusy, time.Millisecond)
		s.Advance(time.Millisecond)
		equal(s, "ProbesInFlight", one.snapshot().ProbesInFlight, 0)
		one.unchanged("the result of a probe whose lease has lapsed", func() { one.report(lost, succeeded) })

		taken := another.probe()
		one.refused(breaker.ErrBusy, p.ProbeLease)
		for _, r := range []breaker.Result{succeeded, failed, ignored} {
			one.unchanged("a "+r.Outcome.String()+" of a probe whose lease was taken over", func() { one.report(lost, r) })
		}
		another.became(another.report(taken, succeeded), breaker.StateHalfOpen, breaker.StateClosed, breaker.CauseProbesSucceeded)
	}},

	{"ProbeSuccessesInARowClose", func(s *scene) {
		p := consecutive(2)
		p.ProbeSuccesses = 3
		c := s.caller(p)
		c.report(c.tripAndProbe(), succeeded)
		c.calls(1, succeeded)
		equal(s, "ProbeSuccesses", c.is(breaker.StateHalfOpen).ProbeSuccesses, 2)
		t := c.became(c.call(succeeded), breaker.StateHalfOpen, breaker.StateClosed, breaker.CauseProbesSucceeded)
		equal(s, "Counts.ProbeSuccesses", t.Counts.ProbeSuccesses, 3)
		if pm := c.acquire(); pm.Probe != "" {
			s.Errorf("a closed circuit gave leave for a probe: %+v", pm)
		}
	}},

	{"MinCallsDoesNotBindProbes", func(s *scene) {
		p := consecutive(2)
		failureRate(&p)
		p.ProbeSuccesses = 3
		c := s.caller(p)
		c.report(c.tripAndProbe(), succeeded)
		c.became(c.call(failed), breaker.StateHalfOpen, breaker.StateOpen, breaker.CauseProbeFailed)
	}},

	{"AFailedProbeRestartsTheCooldownOnce", func(s *scene) {
		p := consecutive(2)
		p.Cooldown, p.MaxProbes = 10*time.Second, 2
		c := s.caller(p)
		first, second := c.tripAndProbe(), c.probe()
		t := c.became(c.report(first, failed), breaker.StateHalfOpen, breaker.StateOpen, breaker.CauseProbeFailed)
		sameTime(s, "Transition.RetryAt", t.RetryAt, t.At.Add(p.Cooldown))
		s.Advance(9 * time.Second)
		c.refused(breaker.ErrOpen, time.Second)
		c.unchanged("the failure of a second probe", func() { c.report(second, failed) })
		equal(s, "Reopens", c.snapshot().Reopens, 1)
		s.Advance(time.Second)
		c.probe()
	}},

	{"HalfOpenStartsFromZero", func(s *scene) {
		p := consecutive(2)
		p.ProbeSuccesses = 3
		c := s.caller(p)
		c.report(c.tripAndProbe(), succeeded)
		c.calls(1, succeeded)
		c.became(c.call(failed), breaker.StateHalfOpen, breaker.StateOpen, breaker.CauseProbeFailed)
		s.Advance(p.Cooldown)
		equal(s, "ProbeSuccesses, read", c.is(breaker.StateHalfOpen).ProbeSuccesses, 0)
		c.report(c.probe(), succeeded)
		equal(s, "ProbeSuccesses", c.is(breaker.StateHalfOpen).ProbeSuccesses, 1)
	}},

	{"AnIgnoredProbeFreesItsSlotWithoutAVerdict", func(s *scene) {
		p := consecutive(2)
		p.ProbeSuccesses = 2
		c := s.caller(p)
		c.report(c.tripAndProbe(), succeeded)
		for range 3 {
			if t := c.call(ignored); t != nil {
				s.Fatalf("an ignored probe made the transition %s", text(t))
			}
			snap := c.is(breaker.StateHalfOpen)
			equal(s, "ProbesInFlight", snap.ProbesInFlight, 0)
			equal(s, "ProbeSuccesses", snap.ProbeSuccesses, 1)
		}
		c.became(c.call(succeeded), breaker.StateHalfOpen, breaker.StateClosed, breaker.CauseProbesSucceeded)
	}},

	{"CountsAreClearBeforeClosedIsVisible", func(s *scene) {
		for name, rule := range map[string]func(p *breaker.Policy){
			breaker.CauseConsecutiveFailures: func(p *breaker.Policy) { p.ConsecutiveFailures = 3 },
			breaker.CauseWindowFailures:      func(p *breaker.Policy) { p.WindowFailures = 3 },
			breaker.CauseFailureRate:         func(p *breaker.Policy) { p.FailureRate, p.MinCalls = 1, 3 },
		} {
			p := without(rule)
			p.Cooldown = time.Second // well within the window
			c := s.caller(p).on(name)
			c.calls(2, failed)
			c.opens(failed, name)
			s.Advance(p.Cooldown)
			c.report(c.probe(), failed)
			s.Advance(p.Cooldown)
			t := c.became(c.report(c.probe(), succeeded), breaker.StateHalfOpen, breaker.StateClosed, breaker.CauseProbesSucceeded)

			snap := c.snapshot()
			closed := breaker.Snapshot{Key: name, Generation: t.Generation, ChangedAt: t.At, Policy: p, LastFailure: snap.LastFailure}
			equal(s, "Snapshot", text(snap), text(closed))
			c.calls(2, failed)
			c.opens(failed, name)
		}
	}},
}
