package storetest

import (
	"fmt"
	"time"

	"github.com/breakerkit/breaker"
)

// consecutive is a policy that opens after n failures in a row.
func consecutive(n int) breaker.Policy {
	p := breaker.DefaultPolicy
	p.ConsecutiveFailures = n
	return p
}

// without is the default policy without its rule, for a rule of the check's own.
func without(rule func(p *breaker.Policy)) breaker.Policy {
	p := consecutive(0)
	rule(&p)
	return p
}

func failureRate(p *breaker.Policy) { p.FailureRate, p.MinCalls = 0.5, 10 }

func slowRate(p *breaker.Policy) { p.SlowRate, p.SlowAfter, p.MinCalls = 0.5, time.Second, 4 }

func took(r breaker.Result, elapsed time.Duration) breaker.Result {
	r.Elapsed = elapsed
	return r
}

// When a closed circuit opens.
var opening = []check{
	{"FreshKeyIsClosed", func(s *scene) {
		c := s.caller(breaker.DefaultPolicy)
		snap := c.is(breaker.StateClosed)
		fresh := breaker.Snapshot{Key: c.key, Policy: c.p, Generation: snap.Generation}
		equal(s, "Snapshot", text(snap), text(fresh))

		pm := c.acquire()
		equal(s, "Permit.Generation", pm.Generation, snap.Generation)
		if pm.Probe != "" || pm.Forced || len(pm.Transitions) > 0 {
			s.Errorf("Acquire: %+v; want a plain permit", pm)
		}
		if t := c.report(pm, succeeded); t != nil {
			s.Errorf("a success made the transition %s", text(t))
		}
	}},

	{"ConsecutiveFailuresOpenAtExactlyTheThreshold", func(s *scene) {
		for _, n := range []int{1, 2, 5} {
			c := s.caller(consecutive(n)).on(fmt.Sprint(n))
			for i := range n - 1 {
				c.calls(1, failed)
				equal(s, "ConsecutiveFailures", c.is(breaker.StateClosed).ConsecutiveFailures, i+1)
				s.Advance(2 * c.p.Window) // no window binds this rule
			}
			t := c.opens(failed, breaker.CauseConsecutiveFailures)
			equal(s, "Transition.Counts.ConsecutiveFailures", t.Counts.ConsecutiveFailures, n)
			equal(s, "ConsecutiveFailures", c.snapshot().ConsecutiveFailures, n)
			c.refused(breaker.ErrOpen, c.p.Cooldown)
		}
	}},

	{"ASuccessRestartsTheCount", func(s *scene) {
		c := s.caller(consecutive(3))
		for range 3 {
			c.calls(2, failed)
			c.calls(1, succeeded)
			equal(s, "ConsecutiveFailures", c.is(breaker.StateClosed).ConsecutiveFailures, 0)
		}
		c.trip()
	}},

	{"IgnoredResultsAreNotCounted", func(s *scene) {
		c := s.caller(without(func(p *breaker.Policy) { p.FailureRate, p.MinCalls, p.ConsecutiveFailures = 1, 3, 3 }))
		c.unchanged("50 ignored results", func() { c.calls(50, ignored) })
		c.calls(2, failed)
		c.unchanged("an ignored result", func() { c.calls(1, ignored) }) // not a success either
		equal(s, "Counts.WindowCalls", c.opens(failed, breaker.CauseConsecutiveFailures).Counts.WindowCalls, 3)
	}},

	{"WindowFailuresCountExactlyOneWindow", func(s *scene) {
		p := without(func(p *breaker.Policy) { p.WindowFailures = 5 })
		for _, test := range []struct {
			last  time.Duration // of the fifth failure
			opens bool
		}{
			{55 * time.Second, true},
			{60*time.Second - time.Millisecond, true},
			{60 * time.Second, false},
		} {
			c := s.caller(p).on(fmt.Sprint(test.last))
			now := time.Duration(0)
			for i, at := range []time.Duration{0, 15 * time.Second, 30 * time.Second, 45 * time.Second} {
				s.Advance(at - now)
				now = at
				if t := c.report(c.acquire(), failed); t != nil {
					s.Fatalf("failure no. %d of 5 made the transition %s", i+1, text(t))
				}
				c.calls(1, succeeded) // no matter to this rule
				now += tick
			}
			s.Advance(test.last - now)
			t := c.report(c.acquire(), failed)
			if !test.opens {
				if t != nil {
					s.Fatalf("a failure one whole Window old counted: %s", text(t))
				}
				equal(s, "WindowFailures", c.is(breaker.StateClosed).WindowFailures, 4)
				continue
			}
			made := c.became(t, breaker.StateClosed, breaker.StateOpen, breaker.CauseWindowFailures)
			equal(s, "Counts.WindowFailures", made.Counts.WindowFailures, 5)
		}
	}},

	{"FailureRateCountsFromMinCallsOn", func(s *scene) {
		p := without(failureRate)
		type run struct {
			n int
			r breaker.Result
		}
		for name, test := range map[string]struct {
			before   []run // closed until here; then one more failure opens
			calls    int
			failures int
		}{
			"failures alone":                      {[]run{{9, failed}}, 10, 10},
			"the very share":                      {[]run{{5, succeeded}, {4, failed}}, 10, 5},
			"below it for a while":                {[]run{{6, succeeded}, {5, failed}}, 12, 6},
			"looked at when a failure is counted": {[]run{{5, failed}, {5, succeeded}}, 11, 6},
		} {
			c := s.caller(p).on(name)
			for _, run := range test.before {
				c.calls(run.n, run.r)
			}
			c.is(breaker.StateClosed)
			t := c.opens(failed, breaker.CauseFailureRate)
			equal(s, name+": Counts.WindowCalls", t.Counts.WindowCalls, test.calls)
			equal(s, name+": Counts.WindowFailures", t.Counts.WindowFailures, test.failures)
		}

		c := s.caller(p).on("slow successes")
		c.p.SlowRate, c.p.SlowAfter = 0.9, time.Second
		c.calls(5, failed)
		c.calls(5, took(succeeded, time.Minute)) // are a matter for SlowRate alone
		c.opens(failed, breaker.CauseFailureRate)

		c = s.caller(p).on("left behind")
		c.calls(9, failed)
		s.Advance(p.Window)
		equal(s, "WindowCalls, a Window later", c.snapshot().WindowCalls, 0)
		c.calls(9, failed)
		equal(s, "WindowCalls of the new Window", c.snapshot().WindowCalls, 9)
		c.opens(failed, breaker.CauseFailureRate)
	}},

	{"SlowRateCountsCallsSlowerThanSlowAfter", func(s *scene) {
		p := without(slowRate)
		c := s.caller(p)
		c.calls(2, took(succeeded, 0))
		c.calls(1, took(succeeded, p.SlowAfter)) // not slower than that
		c.calls(2, took(succeeded, p.SlowAfter+time.Millisecond))
		t := c.opens(took(succeeded, time.Hour), breaker.CauseSlowRate)
		equal(s, "Counts.WindowCalls", t.Counts.WindowCalls, 6)
		equal(s, "Counts.WindowSlow", t.Counts.WindowSlow, 3)

		c = s.caller(p).on("failures")
		c.calls(20, took(failed, 0))
		c = s.caller(p).on("slow failures")
		c.calls(3, took(failed, time.Minute))
		c.opens(took(failed, time.Minute), breaker.CauseSlowRate)
	}},

	{"AnyRuleThatIsMetOpens", func(s *scene) {
		p := consecutive(3)
		p.WindowFailures = 4
		p.FailureRate, p.SlowRate, p.SlowAfter, p.MinCalls = 0.5, 0.9, time.Second, 6
		slow := took(succeeded, time.Minute)
		for cause, before := range map[string][]breaker.Result{
			breaker.CauseConsecutiveFailures: {succeeded, failed, failed},
			breaker.CauseWindowFailures:      {failed, failed, succeeded, failed, succeeded, succeeded, succeeded, succeeded},
			breaker.CauseFailureRate:         {slow, failed, slow, failed, slow},
			breaker.CauseSlowRate:            {slow, slow, slow, slow, slow},
		} {
			c := s.caller(p).on(cause)
			for _, r := range before {
				c.calls(1, r)
			}
			last := failed
			if cause == breaker.CauseSlowRate {
				last = slow
			}
			c.opens(last, cause)
		}
	}},
}
