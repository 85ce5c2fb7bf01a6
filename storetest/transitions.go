package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// Who hears of a transition, and what it says.
var transitions = []check{
	{"EachTransitionIsToldOnceByWhoMadeIt", func(s *scene) {
		p := consecutive(2)
		p.FailureRate, p.MinCalls, p.ProbeSuccesses = 1, 50, 2
		one, another := s.pair(p)
		told := []breaker.Transition{one.trip()}
		silent := func(c *caller) {
			s.Helper()
			s.Advance(patience)
			if pm, _ := c.ask(); len(pm.Transitions) > 0 {
				s.Fatalf("process %s told of a transition it did not make: %s", c.process, text(pm.Transitions))
			}
		}
		probes := func(c *caller, r breaker.Result) {
			s.Helper()
			s.Advance(p.Cooldown)
			pm := c.probe()
			told = append(told, pm.Transitions...)
			if t := c.report(pm, r); t != nil {
				told = append(told, *t)
			}
		}
		silent(another)
		silent(one)
		probes(another, failed)
		silent(one)
		silent(another)
		probes(one, succeeded)
		if t := another.call(succeeded); t != nil {
			told = append(told, *t)
		}
		silent(one)
		silent(another)

		type step struct {
			from, to breaker.State
			cause    string
		}
		want := []step{
			{breaker.StateClosed, breaker.StateOpen, breaker.CauseConsecutiveFailures},
			{breaker.StateOpen, breaker.StateHalfOpen, breaker.CauseCooldownOver},
			{breaker.StateHalfOpen, breaker.StateOpen, breaker.CauseProbeFailed},
			{breaker.StateOpen, breaker.StateHalfOpen, breaker.CauseCooldownOver},
			{breaker.StateHalfOpen, breaker.StateClosed, breaker.CauseProbesSucceeded},
		}
		if len(told) != len(want) {
			s.Fatalf("%d transitions were told of; want %d: %s", len(told), len(want), text(told))
		}
		for i, t := range told {
			equal(s, "transition", step{t.From, t.To, t.Cause}, want[i])
			if t.At.IsZero() || t.RetryAt.IsZero() == (t.To == breaker.StateOpen) {
				s.Errorf("transition %s; want a RetryAt of an open circuit only", text(t))
			}
			if i > 0 && t.Generation <= told[i-1].Generation {
				s.Errorf("generation %d follows on %d", t.Generation, told[i-1].Generation)
			}
		}
		// The counts are those before the transition.
		equal(s, "Counts of closed to open", told[0].Counts,
			breaker.Counts{ConsecutiveFailures: 2, WindowCalls: 2, WindowFailures: 2})
		for i, want := range []int{2, 2, 3, 3, 3} {
			equal(s, "Counts.ConsecutiveFailures of "+told[i].Cause, told[i].Counts.ConsecutiveFailures, want)
		}
		for i, want := range []int{0, 0, 0, 0, 2} {
			equal(s, "Counts.ProbeSuccesses of "+told[i].Cause, told[i].Counts.ProbeSuccesses, want)
		}
	}},

	{"AnOperatorsTransitionIsToldOnceByWhoMadeIt", func(s *scene) {
		one, another := s.pair(consecutive(2))
		others := func(told *breaker.Transition, c *caller) {
			s.Helper()
			if told == nil {
				s.Fatalf("a step that callers see made no transition")
			}
			s.Advance(patience)
			if pm, _ := c.ask(); len(pm.Transitions) > 0 {
				s.Errorf("another process told of %s too", text(pm.Transitions))
			}
		}
		one.calls(1, failed)
		t := one.force(forOpen)
		others(t, another)
		equal(s, "Counts before an override", t.Counts.ConsecutiveFailures, 1)
		others(another.clear(), one)
		others(another.force(forOpen), one)
		others(one.reset(), another)

		o := forOpen
		o.For = time.Minute
		others(one.force(o), another)
		s.Advance(o.For)
		pm := another.acquire()
		if len(pm.Transitions) != 1 {
			s.Fatalf("Acquire: %+v; want the end of the override", pm)
		}
		others(&pm.Transitions[0], one)
	}},

	{"TransitionsNameTheProcess", func(s *scene) {
		var seen observer
		const name = "web-1"
		b, err := breaker.New(s.Store, breaker.Config{Instance: name, Observer: &seen, StoreTimeout: time.Minute})
		if err != nil {
			s.Fatalf("New: %v", err)
		}
		down := errors.New("down")
		for range breaker.DefaultPolicy.ConsecutiveFailures {
			s.Advance(tick)
			if err := b.Execute(ctx, "stripe", func(context.Context) error { return down }); err != down {
				s.Fatalf("Execute: %v; want the call's own error", err)
			}
		}
		s.Advance(breaker.DefaultPolicy.Cooldown)
		if err := b.Execute(ctx, "stripe", func(context.Context) error { return nil }); err != nil {
			s.Fatalf("Execute of the probe: %v", err)
		}
		if err := b.Close(); err != nil { // brings the last notices
			s.Fatalf("Close: %v", err)
		}
		seen.mu.Lock()
		defer seen.mu.Unlock()
		if len(seen.told) != 3 {
			s.Fatalf("an Observer saw %s; want three transitions", text(seen.told))
		}
		for _, t := range seen.told {
			equal(s, "Transition.Instance, "+t.Cause, t.Instance, name)
		}
	}},
}

type observer struct {
	breaker.NopObserver
	mu   sync.Mutex
	told []breaker.Transition
}

func (o *observer) Transitioned(t breaker.Transition) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = append(o.told, t)
}
