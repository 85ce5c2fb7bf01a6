package storetest

import (
	"fmt"
	"math"
	"time"

	"github.com/breakerkit/breaker"
)

// How long an open circuit stays open.
var cooldown = []check{
	{"OpenRejectsWithTheTimeReallyLeft", func(s *scene) {
		c := s.caller(consecutive(2))
		t := c.trip()
		sameTime(s, "Transition.RetryAt", t.RetryAt, t.At.Add(c.p.Cooldown))
		snap := c.snapshot()
		sameTime(s, "OpenedAt", snap.OpenedAt, t.At)
		sameTime(s, "RetryAt", snap.RetryAt, t.RetryAt)

		c.refused(breaker.ErrOpen, time.Minute)
		s.Advance(12 * time.Second)
		c.refused(breaker.ErrOpen, 48*time.Second)
		s.Advance(48*time.Second - time.Millisecond)
		c.refused(breaker.ErrOpen, time.Millisecond)
		_, rejected := c.ask()
		equal(s, "RejectedError.State", rejected.State, breaker.StateOpen)
		equal(s, "RejectedError.LastError", rejected.LastError, failed.Error)
	}},

	{"LongTimesDoNotOverflow", func(s *scene) {
		const year = 365 * 24 * time.Hour
		for _, cooldown := range []time.Duration{100 * year, 290 * year} {
			p := consecutive(1)
			p.Cooldown, p.MaxCooldown = cooldown, 290*year
			c := s.caller(p).on(fmt.Sprint(cooldown))
			c.trip()
			s.Advance(tick)
			c.is(breaker.StateOpen)
			c.refused(breaker.ErrOpen, cooldown-tick)
		}
	}},

	{"RejectionsAreNotCounted", func(s *scene) {
		p := consecutive(2)
		failureRate(&p)
		c := s.caller(p)
		c.trip()
		c.unchanged("rejecting", func() {
			for range 100 {
				c.refused(breaker.ErrOpen, c.p.Cooldown)
			}
		})
	}},

	{"TheFirstCallAfterTheCooldownIsTheProbe", func(s *scene) {
		c := s.caller(consecutive(2))
		opened := c.trip()
		s.Advance(c.p.Cooldown)
		pm := c.probe()
		if len(pm.Transitions) != 1 {
			s.Fatalf("Acquire: %+v; want the one transition to half-open", pm)
		}
		t := c.became(&pm.Transitions[0], breaker.StateOpen, breaker.StateHalfOpen, breaker.CauseCooldownOver)
		equal(s, "Permit.Generation", pm.Generation, t.Generation)
		sameTime(s, "Transition.At", t.At, opened.RetryAt)
		equal(s, "Counts.ConsecutiveFailures", t.Counts.ConsecutiveFailures, 2)
		equal(s, "ProbesInFlight", c.snapshot().ProbesInFlight, 1)
	}},

	{"FailedRecoveriesDoubleTheCooldownUpToMaxCooldown", func(s *scene) {
		p := consecutive(1)
		p.Cooldown, p.MaxCooldown = 10*time.Second, 35*time.Second
		c := s.caller(p)
		for _, end := range []func(){
			func() { c.report(c.probe(), succeeded) },
			func() { c.reset() }, // last: it skips the check where there is no reset
		} {
			c.opens(failed, breaker.CauseConsecutiveFailures)
			for reopens, cooldown := range []time.Duration{10, 20, 35, 35} {
				equal(s, "Reopens", c.snapshot().Reopens, reopens)
				c.refused(breaker.ErrOpen, cooldown*time.Second)
				s.Advance(cooldown * time.Second)
				if reopens < 3 {
					c.became(c.report(c.probe(), failed), breaker.StateHalfOpen, breaker.StateOpen, breaker.CauseProbeFailed)
				}
			}
			end()
			equal(s, "Reopens of a closed circuit", c.is(breaker.StateClosed).Reopens, 0)
		}
		c.opens(failed, breaker.CauseConsecutiveFailures)
		c.refused(breaker.ErrOpen, p.Cooldown)
	}},

	{"JitterSpreadsTheCooldown", func(s *scene) {
		p := consecutive(1)
		p.Cooldown, p.CooldownJitter = 10*time.Second, 0.5
		seen := make(map[time.Duration]bool)
		for i := range 40 {
			c := s.caller(p).on(fmt.Sprint(i))
			t := c.trip()
			length := t.RetryAt.Sub(t.At)
			if length < 5*time.Second || length > 15*time.Second {
				s.Errorf("a cooldown of 10s plus or minus half lasts %v", length)
			}
			seen[length] = true
			c.refused(breaker.ErrOpen, length)
		}
		if len(seen) < 3 {
			s.Errorf("40 cooldowns drawn from 10s have %d different lengths", len(seen))
		}
	}},

	{"RetryAfterStretchesTheCooldownUpToMaxRetryAfter", func(s *scene) {
		for _, test := range []struct{ most, asked, cooldown time.Duration }{
			{5 * time.Minute, 2 * time.Minute, 2 * time.Minute},
			{5 * time.Minute, 5 * time.Minute, 5 * time.Minute},
			{5 * time.Minute, 10 * time.Minute, 5 * time.Minute},
			{5 * time.Minute, math.MaxInt64, 5 * time.Minute},
			{5 * time.Minute, 30 * time.Second, time.Minute}, // it only ever stretches
			{5 * time.Minute, -time.Hour, time.Minute},
			{-1, 2 * time.Minute, time.Minute},
		} {
			p := consecutive(1)
			p.MaxRetryAfter = test.most
			c := s.caller(p).on(fmt.Sprint(test))
			r := failed
			r.RetryAfter = test.asked
			c.opens(r, breaker.CauseConsecutiveFailures)
			c.refused(breaker.ErrOpen, test.cooldown)

			s.Advance(test.cooldown)
			c.report(c.probe(), r)
			c.refused(breaker.ErrOpen, test.cooldown)
			s.Advance(test.cooldown)
			c.report(c.probe(), failed) // the old word has been kept
			c.refused(breaker.ErrOpen, p.Cooldown)
		}
	}},

	{"RetryAfterOfAnyFailureInTheRowCounts", func(s *scene) {
		c := s.caller(consecutive(3))
		asks := failed
		asks.RetryAfter = 4 * time.Minute
		c.calls(1, asks)
		c.calls(1, succeeded) // takes it back
		c.calls(2, failed)
		c.opens(failed, breaker.CauseConsecutiveFailures)
		c.refused(breaker.ErrOpen, c.p.Cooldown)

		c = c.on("kept")
		c.calls(1, asks)
		less := asks
		less.RetryAfter = 2 * time.Minute
		c.calls(1, less)
		c.opens(failed, breaker.CauseConsecutiveFailures)
		c.refused(breaker.ErrOpen, asks.RetryAfter-2*tick) // the longest, from when it was asked
	}},

	{"APolicyChangeLeavesTheDeadlineOfAnOpenCircuit", func(s *scene) {
		c := s.caller(consecutive(2))
		t := c.trip()
		s.Advance(2 * time.Second)
		c.p.Cooldown = time.Second
		sameTime(s, "RetryAt", c.is(breaker.StateOpen).RetryAt, t.RetryAt)
		c.refused(breaker.ErrOpen, 58*time.Second)
		c.p.Cooldown = time.Hour
		s.Advance(58 * time.Second)
		c.probe()
	}},
}
