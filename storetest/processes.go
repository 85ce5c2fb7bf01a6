package storetest

import (
	"time"

	"github.com/breakerkit/breaker"
)

// What several processes do to one circuit together.
var processes = []check{
	{"FailuresOfSeveralProcessesOpenTogether", func(s *scene) {
		for cause, p := range map[string]breaker.Policy{
			breaker.CauseConsecutiveFailures: consecutive(4),
			breaker.CauseFailureRate:         without(failureRate),
		} {
			one, another := s.pair(p)
			one, another = one.on(cause), another.on(cause)
			if cause == breaker.CauseFailureRate {
				one.calls(4, succeeded)
				another.calls(2, failed)
			}
			one.calls(1, failed)
			another.calls(1, failed)
			one.calls(1, failed)
			var told []breaker.Transition
			if t := another.call(failed); t != nil {
				told = append(told, *t)
			}
			s.Advance(patience)
			snap := one.is(breaker.StateOpen) // though nobody has come since
			sameTime(s, "RetryAt", snap.RetryAt, snap.OpenedAt.Add(p.Cooldown))
			for _, c := range []*caller{one, another, one, another} {
				pm := c.refused(breaker.ErrOpen, p.Cooldown-patience)
				told = append(told, pm.Transitions...)
			}
			if len(told) != 1 || told[0].Cause != cause || told[0].To != breaker.StateOpen {
				s.Errorf("transitions told of: %s; want one to open by %s", text(told), cause)
			}
		}
	}},

	{"WindowFailuresOfSeveralProcessesOpenAtOnce", func(s *scene) {
		one, another := s.pair(without(func(p *breaker.Policy) { p.WindowFailures = 4 }))
		one.calls(1, failed)
		another.calls(1, failed)
		one.calls(1, succeeded)
		one.calls(1, failed)
		another.opens(failed, breaker.CauseWindowFailures)
	}},

	{"ASuccessOfOneProcessRestartsTheCountOfAll", func(s *scene) {
		one, another := s.pair(consecutive(3))
		one.calls(1, failed)
		another.calls(1, failed)
		s.Advance(patience)
		one.calls(1, succeeded)
		s.Advance(patience)
		equal(s, "ConsecutiveFailures", another.is(breaker.StateClosed).ConsecutiveFailures, 0)
		another.calls(1, failed)
		one.calls(1, failed)
		s.Advance(patience)
		for _, c := range []*caller{one, another} {
			if pm := c.acquire(); len(pm.Transitions) > 0 {
				s.Errorf("Acquire: %+v; want no transition", pm)
			}
		}
		equal(s, "ConsecutiveFailures", one.is(breaker.StateClosed).ConsecutiveFailures, 2)
	}},

	{"ASuccessOfACallFromBeforeTheFailuresCountsToo", func(s *scene) {
		one, another := s.pair(consecutive(3))
		pm := one.acquire() // sees no failure that its success would end
		another.calls(1, failed)
		s.Advance(tick)
		one.report(pm, succeeded)
		another.calls(1, failed)
		one.calls(1, failed)
		s.Advance(patience)
		for _, c := range []*caller{one, another} {
			c.is(breaker.StateClosed)
			if pm := c.acquire(); len(pm.Transitions) > 0 {
				s.Errorf("Acquire: %+v; want no transition", pm)
			}
		}
	}},

	{"ProcessesThatComeLaterFindWhatIsThere", func(s *scene) {
		p := consecutive(2)
		p.WindowFailures, p.FailureRate, p.MinCalls, p.ProbeSuccesses = 20, 0.9, 10, 2
		c := s.caller(p)
		same := func() {
			s.Helper()
			there := c.elsewhere()
			equal(s, "Snapshot in a new process", text(there.snapshot()), text(c.snapshot()))
			if _, ok := there.store.(breaker.Historian); ok {
				equal(s, "History in a new process", text(there.history()), text(c.history()))
			}
		}
		same()
		c.calls(1, failed)
		same()
		c.opens(failed, breaker.CauseConsecutiveFailures)
		same()
		c.elsewhere().refused(breaker.ErrOpen, p.Cooldown)
		s.Advance(p.Cooldown)
		same()
		c.elsewhere().report(c.probe(), succeeded) // a permit is good everywhere
		same()
		equal(s, "ProbeSuccesses", c.snapshot().ProbeSuccesses, 1)
		c.probe()
		c.elsewhere().refused(breaker.ErrBusy, p.ProbeLease)
		same()
		o := forOpen
		o.For = time.Hour
		c.force(o)
		same()
		c.elsewhere().refused(breaker.ErrOpen, time.Hour)
	}},
}
