package storetest

import (
	"time"

	"github.com/breakerkit/breaker"
)

// outcomes are all that may come of a call.
var outcomes = []breaker.Result{succeeded, failed, ignored}

// A lateCase leaves a call under way whose result is no longer of interest.
type lateCase struct {
	name  string
	leave func(c *caller) breaker.Permit
}

// lateCheck runs each case with each outcome, on circuits of their own.
func lateCheck(cases []lateCase) func(s *scene) {
	return func(s *scene) {
		p := consecutive(2)
		p.WindowFailures, p.FailureRate, p.MinCalls = 50, 0.9, 50
		p.Cooldown, p.MaxProbes, p.ProbeLease, p.ProbeSuccesses = 10*time.Second, 3, 30*time.Second, 1
		for _, test := range cases {
			for _, r := range outcomes {
				c := s.caller(p).on(test.name + ", " + r.Outcome.String())
				pm := test.leave(c)
				r.RetryAfter = time.Minute
				s.Advance(tick)
				c.unchanged("a late "+r.Outcome.String()+" of "+test.name, func() {
					if t := c.report(pm, r); t != nil {
						s.Errorf("a late %v of %s made the transition %s", r.Outcome, test.name, text(t))
					}
				})
			}
		}
	}
}

// underway begins a call, and lets something happen before it ends.
func underway(happen func(c *caller)) func(c *caller) breaker.Permit {
	return func(c *caller) breaker.Permit {
		pm := c.acquire()
		happen(c)
		return pm
	}
}

// underwayProbe is underway with the second of two probes; happen gets the first.
func underwayProbe(happen func(c *caller, first breaker.Permit)) func(c *caller) breaker.Permit {
	return func(c *caller) breaker.Permit {
		first, second := c.tripAndProbe(), c.probe()
		happen(c, first)
		return second
	}
}

var (
	forOpen   = breaker.Override{State: breaker.StateOpen, By: "ann", Reason: "drill"}
	forClosed = breaker.Override{State: breaker.StateClosed, By: "ann", Reason: "false alarm"}
)

// Results that come too late.
var late = []check{
	{"LateResultsOfAnEarlierGenerationChangeNothing", lateCheck([]lateCase{
		{"a call that began before the circuit opened", underway(func(c *caller) { c.trip() })},
		{"a call that began before the circuit was probed", underway(func(c *caller) { c.tripAndProbe() })},
		{"a call that began before the circuit opened and closed", underway(func(c *caller) { c.recovers() })},
		{"a call that began before that, with a failure since", underway(func(c *caller) { c.recovers(); c.calls(1, failed) })},
		{"a probe, after another failed", underwayProbe(func(c *caller, first breaker.Permit) {
			c.report(first, failed)
		})},
		{"a probe, after another failed and a cooldown", underwayProbe(func(c *caller, first breaker.Permit) {
			c.report(first, failed)
			c.Advance(c.p.Cooldown)
		})},
		{"a probe, in the next round of probes", underwayProbe(func(c *caller, first breaker.Permit) {
			c.report(first, failed)
			c.Advance(c.p.Cooldown)
			c.probe()
		})},
		{"a probe, after another closed the circuit", underwayProbe(func(c *caller, first breaker.Permit) {
			c.report(first, succeeded)
		})},
		{"a probe, after its lease lapsed", underwayProbe(func(c *caller, first breaker.Permit) {
			c.Advance(c.p.ProbeLease)
			c.probe()
		})},
	})},

	{"ResultsOfCallsFromBeforeAnOperatorsStepChangeNothing", lateCheck([]lateCase{
		{"a call, after Reset", underway(func(c *caller) { c.reset() })},
		{"a call, after Reset and a failure", underway(func(c *caller) { c.reset(); c.calls(1, failed) })},
		{"a call, under an override to open", underway(func(c *caller) { c.force(forOpen) })},
		{"a call, under an override to closed", underway(func(c *caller) { c.force(forClosed) })},
		{"a call, after an override", underway(func(c *caller) { c.calls(1, failed); c.force(forClosed); c.clear() })},
		{"a call, after the end of an override", underway(func(c *caller) {
			o := forOpen
			o.For = time.Second
			c.force(o)
			c.Advance(time.Second)
			c.acquire()
		})},
		{"a probe, after Reset", underwayProbe(func(c *caller, _ breaker.Permit) { c.reset() })},
		{"a probe, under an override to open", underwayProbe(func(c *caller, _ breaker.Permit) { c.force(forOpen) })},
		{"a probe, under an override to closed", underwayProbe(func(c *caller, _ breaker.Permit) { c.force(forClosed) })},
		{"a probe, after an override", underwayProbe(func(c *caller, _ breaker.Permit) { c.force(forClosed); c.clear() })},
		{"a probe, after an override and with another", underwayProbe(func(c *caller, _ breaker.Permit) {
			c.force(forOpen)
			c.clear()
			c.probe()
		})},
		{"a forced call", func(c *caller) breaker.Permit {
			c.calls(1, failed)
			c.force(forClosed)
			return c.acquire()
		}},
		{"a forced call, after the override", func(c *caller) breaker.Permit {
			c.calls(1, failed)
			c.force(forClosed)
			pm := c.acquire()
			c.clear()
			return pm
		}},
		{"a forced call, after the circuit was probed", func(c *caller) breaker.Permit {
			c.trip()
			c.force(forClosed)
			pm := c.acquire()
			c.clear()
			c.Advance(c.p.Cooldown)
			c.probe()
			return pm
		}},
	})},
}
