package storetest

import (
	"time"

	"github.com/breakerkit/breaker"
)

// What a Snapshot shows.
var reading = []check{
	{"SnapshotChangesNothing", func(s *scene) {
		p := consecutive(2)
		p.ProbeSuccesses = 2
		c := s.caller(p)
		read := func(what string, times int) {
			c.unchanged("reading "+what, func() {
				for range times {
					c.snapshot()
				}
			})
		}
		read("a fresh circuit", 20)
		c.calls(1, failed)
		read("a closed circuit", 20)
		c.opens(failed, breaker.CauseConsecutiveFailures)
		read("an open circuit", 20)
		s.Advance(p.Cooldown)
		read("a circuit that may be probed", 1000)
		pm := c.probe() // is still there
		equal(s, "transitions made by the first probe", len(pm.Transitions), 1)
		read("a circuit being probed", 20)
		c.report(pm, succeeded)
		read("a half-open circuit", 20)
		c.probe()
	}},

	{"PastItsCooldownAnOpenCircuitReadsHalfOpen", func(s *scene) {
		c := s.caller(consecutive(2))
		t := c.trip()
		s.Advance(c.p.Cooldown - time.Millisecond)
		before := c.is(breaker.StateOpen)
		s.Advance(time.Millisecond)
		after := c.is(breaker.StateHalfOpen)
		equal(s, "ProbesInFlight", after.ProbesInFlight, 0)
		sameTime(s, "OpenedAt", after.OpenedAt, t.At)
		sameTime(s, "RetryAt", after.RetryAt, t.RetryAt)
		after.State = before.State
		equal(s, "all but the state", text(after), text(before))
	}},

	{"AnOpenCircuitShowsTheCountsItOpenedWith", func(s *scene) {
		for cause, rule := range map[string]func(p *breaker.Policy){
			breaker.CauseWindowFailures: func(p *breaker.Policy) { p.WindowFailures = 3 },
			breaker.CauseFailureRate:    func(p *breaker.Policy) { p.FailureRate, p.MinCalls = 1, 3 },
		} {
			p := without(rule)
			p.Cooldown = 4 * p.Window
			c := s.caller(p).on(cause)
			c.calls(2, failed)
			t := c.opens(failed, cause)
			for range 2 {
				snap := c.is(breaker.StateOpen)
				counts := breaker.Counts{ConsecutiveFailures: snap.ConsecutiveFailures, WindowCalls: snap.WindowCalls,
					WindowFailures: snap.WindowFailures, WindowSlow: snap.WindowSlow}
				equal(s, cause+": counts", counts, t.Counts)
				s.Advance(2 * p.Window)
			}
		}
	}},

	{"LastFailureIsKept", func(s *scene) {
		c := s.caller(consecutive(2))
		c.calls(1, succeeded)
		if last := c.snapshot().LastFailure; last != nil {
			s.Errorf("LastFailure of a circuit that never failed: %s", text(last))
		}
		shows := func(at time.Time, message string) {
			s.Helper()
			last := c.snapshot().LastFailure
			if last == nil {
				s.Fatalf("there is no LastFailure; want %q", message)
			}
			sameTime(s, "LastFailure.At", last.At, at)
			equal(s, "LastFailure.Kind", last.Kind, breaker.EventFailure) // a probe's too
			equal(s, "LastFailure.Error", last.Error, message)
			equal(s, "LastFailure.Instance", last.Instance, c.process)
		}
		r := failed
		r.Error = "it said \"no\"\n\t\\ in 日本語, and \x00"
		c.calls(1, failed)
		t := c.opens(r, breaker.CauseConsecutiveFailures)
		shows(t.At, r.Error)
		_, rejected := c.ask()
		equal(s, "RejectedError.LastError", rejected.LastError, r.Error)

		s.Advance(c.p.Cooldown)
		r.Error = "" // of a probe, whose error said nothing
		t = c.became(c.report(c.probe(), r), breaker.StateHalfOpen, breaker.StateOpen, breaker.CauseProbeFailed)
		shows(t.At, "")
		s.Advance(c.p.Cooldown)
		c.report(c.probe(), succeeded)
		shows(t.At, "")
	}},
}
