package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

// What a store remembers of a circuit.
var history = []check{
	{"HistoryTellsOfEverythingNewestFirst", func(s *scene) {
		p := consecutive(2)
		p.ProbeSuccesses = 2
		c := s.caller(p)
		if got := c.history(); len(got) > 0 {
			s.Errorf("History of a fresh circuit: %s", text(got))
		}
		c.call(succeeded) // says nothing
		c.call(ignored)
		c.trip()
		s.Advance(p.Cooldown)
		c.report(c.probe(), ignored)
		r := failed
		r.Error = "still \"down\""
		c.call(r)
		s.Advance(p.Cooldown)
		c.report(c.probe(), succeeded)
		c.call(succeeded)

		c.tells(s, []string{
			"failure: no route to host (one)",
			"failure: no route to host (one)",
			"closed to open by consecutive_failures (one)",
			"open to half-open by cooldown_over ()",
			"probe ignored:  (one)",
			"probe failure: still \"down\" (one)",
			"half-open to open by probe_failed (one)",
			"open to half-open by cooldown_over ()",
			"probe success:  (one)",
			"probe success:  (one)",
			"half-open to closed by probes_succeeded (one)",
		})
	}},

	{"HistoryTellsWhatOperatorsDid", func(s *scene) {
		c := s.caller(consecutive(2))
		as[breaker.Historian](c)
		o := forOpen
		o.For, o.Reason = time.Minute, "ドリル, \"the third\""
		c.force(o)
		s.Advance(tick)
		c.clear()
		s.Advance(tick)
		c.clear() // there is none
		c.force(forClosed)
		s.Advance(tick)
		c.reset()
		c.tells(s, []string{
			"open by ann for ドリル, \"the third\" for 1m0s",
			"closed to open by forced ()",
			"cleared by bob",
			"open to closed by override_cleared ()",
			"closed by ann for false alarm for 0s",
			"reset by eve",
		})
	}},

	{"HistoryKeepsTheLastHundredEvents", func(s *scene) {
		c := s.caller(consecutive(1000))
		as[breaker.Historian](c)
		for i := range 240 { // past the point where a store drops many at once
			r := failed
			r.Error = fmt.Sprint(i)
			c.calls(1, r)
			events := c.history()
			if want := min(i+1, breaker.MaxHistory); len(events) != want {
				s.Fatalf("History has %d events after %d failures; want %d", len(events), i+1, want)
			}
			for age, e := range events {
				if want := fmt.Sprint(i - age); e.Error != want {
					s.Fatalf("event no. %d after %d failures is that of failure %s; want %s", age, i+1, e.Error, want)
				}
			}
		}
	}},

	{"HistoryOfOneCircuitIsNotAnothers", func(s *scene) {
		c := s.caller(consecutive(1))
		as[breaker.Historian](c)
		for _, key := range strangeKeys {
			c = c.on(key)
			if got := c.history(); len(got) > 0 {
				s.Fatalf("History of %.40q before its first call: %s", key, text(got))
			}
			c.trip()
			events := c.history()
			if len(events) != 2 || events[0].Transition == nil || events[0].Transition.Key != key {
				s.Errorf("History of %.40q: %s; want a failure and a transition", key, text(events))
			}
		}
	}},
}

// tells checks what the history says, in the order it happened, and that its
// times are in that order too.
func (c *caller) tells(s *scene, want []string) {
	s.Helper()
	events := c.history()
	slices.Reverse(events)
	var got []string
	for i, e := range events {
		got = append(got, tale(e))
		if e.At.IsZero() || i > 0 && e.At.Before(events[i-1].At) {
			s.Errorf("event no. %d is of %v, after one of %v", i+1, e.At, events[max(i-1, 0)].At)
		}
	}
	if !slices.Equal(got, want) {
		s.Errorf("History, oldest first:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	if n := len(events); n > 0 && events[n-1].Kind != breaker.EventReset {
		sameTime(s, "time of the last event", events[n-1].At, c.snapshot().ChangedAt)
	}
}

// tale tells what an event says, in one line.
func tale(e breaker.Event) string {
	switch e.Kind {
	case breaker.EventFailure:
		return fmt.Sprintf("failure: %s (%s)", e.Error, e.Instance)
	case breaker.EventProbe:
		return fmt.Sprintf("probe %v: %s (%s)", e.Outcome, e.Error, e.Instance)
	case breaker.EventTransition:
		if t := e.Transition; t != nil {
			return fmt.Sprintf("%v to %v by %s (%s)", t.From, t.To, t.Cause, e.Instance)
		}
	case breaker.EventOverride:
		if o := e.Override; o != nil {
			length := time.Duration(0)
			if !o.Until.IsZero() {
				length = o.Until.Sub(e.At)
			}
			return fmt.Sprintf("%v by %s for %s for %v", o.State, e.By, o.Reason, length)
		}
	case breaker.EventCleared, breaker.EventReset:
		return fmt.Sprintf("%s by %s", e.Kind, e.By)
	}
	return "cannot be read: " + text(e)
}
