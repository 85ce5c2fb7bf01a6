package breaker

import (
	"slices"
	"time"
)

// advance does what time alone has made due: an override that has run out ends,
// and a rule met Settle ago either opens the circuit or is dropped. At most one
// of the two can be due, since an override drops a rule that was met.
func (c *Circuit) advance(m *Moment, p *Policy) []Transition {
	if o := c.Override; o != nil && !o.Until.IsZero() && !m.Now.Before(o.Until) {
		from, counts := c.visible(), c.counts(m, p)
		c.Override = nil
		if t := c.steer(m, from, CauseOverrideEnded, counts); t != nil {
			return []Transition{*t}
		}
		return nil
	}
	if c.due(m, p) {
		c.hear(m, p)
		c.review(m, p)
		if c.due(m, p) {
			// Judged as of the time it was due, so that it does not matter who comes first.
			return []Transition{*c.open(m, p, c.MetAt, c.rule(p, c.settled(m, p), true, true))}
		}
		c.hearSuccess(m, p) // one that came too late for the rule still ends the run
	}
	return nil
}

// due reports whether a rule has been met and has settled.
func (c *Circuit) due(m *Moment, p *Policy) bool { return c.MetAt > 0 && m.now() >= c.settled(m, p) }

// settled is when a met rule has settled: a run of failures Settle after all
// were asked to tell of their successes, if they were before it met the rule.
func (c *Circuit) settled(m *Moment, p *Policy) int64 {
	from := c.MetAt
	if c.runMet(p) && c.asked(from) {
		from = c.AskedAt
	}
	return from + millis(m.Settle)
}

// asked reports whether the processes were asked by then of the run at hand.
func (c *Circuit) asked(by int64) bool { return c.StreakSince <= c.AskedAt && c.AskedAt <= by }

// hear takes in the evidence of a process, once an operation: its successes
// end a run of failures that began before them, its tallies join the window. A
// success later than a met rule was due comes too late.
func (c *Circuit) hear(m *Moment, p *Policy) {
	e := m.Evidence
	if e == nil || e.Generation != c.Generation || m.heard {
		return
	}
	m.heard = true
	c.hearSuccess(m, p)
	if p.rates() {
		for _, t := range e.Tallies {
			c.Counted.add(p, m.now()-t.Age.Milliseconds(), m.now(), e.Process, t.Calls, 0, 0)
		}
	}
	c.review(m, p)
}

func (c *Circuit) hearSuccess(m *Moment, p *Policy) {
	e := m.Evidence
	if e == nil || e.Generation != c.Generation || !e.HasSucceeded {
		return
	}
	at := m.now() - e.SinceSuccess.Milliseconds()
	if c.Streak > 0 && c.StreakSince <= at && (c.MetAt == 0 || at <= c.settled(m, p)) {
		m.restarted = true
		c.endStreak()
	}
}

// review drops a met rule that successes have unmet.
func (c *Circuit) review(m *Moment, p *Policy) {
	if c.MetAt > 0 && c.rule(p, min(m.now(), c.settled(m, p)), true, true) == "" {
		c.MetAt = 0
	}
}

func (c *Circuit) endStreak() { c.Streak, c.StreakSince, c.RetryHint = 0, 0, 0 }

// count takes in a result of the closed state, and opens the circuit if it
// meets a rule.
func (c *Circuit) count(m *Moment, p *Policy, r Result) *Transition {
	now, failed, slow := m.now(), r.Outcome == Failure, p.slow(r.Elapsed)
	if p.rates() {
		c.Counted.add(p, now, now, m.process(), 1, btoi(failed), btoi(slow))
	}
	if failed {
		if c.Streak == 0 {
			c.StreakSince = now
		}
		c.Streak++
		if m.restarted { // by the reporter's success: all its failures since then count
			c.Streak = max(c.Streak, m.Evidence.Streak)
		}
		c.Counted.fail(p, now)
		if d := p.retryAfter(r.RetryAfter); d > 0 {
			c.RetryHint = max(c.RetryHint, now+d)
		}
		c.fail(m, EventFailure, r)
	} else {
		c.endStreak()
		c.review(m, p)
		if !slow {
			return nil
		}
	}

	if cause := c.ruleMetAtOnce(m, p, failed, slow); cause != "" {
		return c.open(m, p, now, cause)
	}
	if m.settles() {
		return c.beginToSettle(m, p, c.rule(p, now, failed, slow))
	}
	return nil
}

// beginToSettle has a rule that is met by cause wait until the processes have told
// of their successes. A run of failures makes them do so when it is two long:
// where failures are far apart, all have spoken when it is long enough.
func (c *Circuit) beginToSettle(m *Moment, p *Policy, cause string) *Transition {
	now := m.now()
	if c.MetAt == 0 {
		c.ask(p, now, cause)
		if cause != "" {
			c.MetAt = now
		}
	}
	if c.due(m, p) {
		return c.open(m, p, now, cause)
	}
	return nil
}

// ask has the processes tell of their successes: where a rule is met by cause,
// twice a second at the most; and where there are two failures in a row within
// half a second, once a minute, since circuits of which a few calls fail have
// such runs all the time. Where failures are rarer, it is not worth the asking.
func (c *Circuit) ask(p *Policy, now int64, cause string) {
	since := now - c.AskedAt
	if since < 0 { // the clock went back
		since = now
	}
	due := since >= 500 && !(cause == CauseConsecutiveFailures && c.asked(now))
	if cause == "" {
		due = p.ConsecutiveFailures > 0 && c.Streak >= 2 && now-c.StreakSince <= 500 && since >= 60_000
	}
	if due {
		c.AskedAt = now
	}
}

// ruleMetAtOnce names the rule that opens the circuit on this very call: one
// that nobody else's outcomes can unmeet.
func (c *Circuit) ruleMetAtOnce(m *Moment, p *Policy, failed, slow bool) string {
	if failed && p.WindowFailures > 0 && c.Counted.failuresWithin(p, m.now()) >= p.WindowFailures {
		return CauseWindowFailures
	}
	if !m.settles() {
		return c.rule(p, m.now(), failed, slow)
	}
	if failed && p.ConsecutiveFailures > 0 && m.Evidence.Streak >= p.ConsecutiveFailures {
		c.Streak = max(c.Streak, m.Evidence.Streak)
		return CauseConsecutiveFailures
	}
	if c.Counted.By == m.Evidence.Process {
		return c.rateRule(p, m.now(), failed, slow)
	}
	return ""
}

// rule names a rule, met as of now, that successes can unmeet. failed and slow
// say which rules the call at hand has a say in.
func (c *Circuit) rule(p *Policy, now int64, failed, slow bool) string {
	if failed && c.runMet(p) {
		return CauseConsecutiveFailures
	}
	return c.rateRule(p, now, failed, slow)
}

func (c *Circuit) runMet(p *Policy) bool {
	return p.ConsecutiveFailures > 0 && c.Streak >= p.ConsecutiveFailures
}

// rateRule names a rate that the window exceeds.
func (c *Circuit) rateRule(p *Policy, now int64, failed, slow bool) string {
	if !p.rates() {
		return ""
	}
	calls, failures, slows := c.Counted.sum(p, now)
	switch {
	case calls < p.MinCalls:
		return ""
	case failed && p.FailureRate > 0 && float64(failures) >= p.FailureRate*float64(calls):
		return CauseFailureRate
	case slow && p.SlowRate > 0 && float64(slows) >= p.SlowRate*float64(calls):
		return CauseSlowRate
	}
	return ""
}

// settleProbe takes in the result of a probe. One whose lease lapsed or was
// taken over changes nothing.
func (c *Circuit) settleProbe(m *Moment, p *Policy, owner string, r Result) *Transition {
	c.dropLapsed(m.now())
	i := slices.IndexFunc(c.Leases, func(l Lease) bool { return l.Owner == owner })
	if owner == "" || i < 0 {
		return nil
	}
	c.Leases = slices.Delete(slices.Clone(c.Leases), i, i+1)
	switch r.Outcome {
	case Success:
		c.record(m, Event{Kind: EventProbe, Outcome: Success, Instance: m.Instance})
		c.ProbeSuccesses++
		if c.ProbeSuccesses >= p.ProbeSuccesses {
			return c.close(m, p)
		}
	case Failure:
		c.Streak++
		c.fail(m, EventProbe, r)
		c.Reopens++
		if d := p.retryAfter(r.RetryAfter); d > 0 {
			c.RetryHint = m.now() + d
		}
		return c.open(m, p, m.now(), CauseProbeFailed)
	default:
		c.record(m, Event{Kind: EventProbe, Outcome: Ignored, Instance: m.Instance})
	}
	return nil
}

// open opens the circuit as of at, the failure that met the rule.
func (c *Circuit) open(m *Moment, p *Policy, at int64, cause string) *Transition {
	counts := c.counts(m, p)
	c.OpenedAt = at
	c.RetryAt = max(at+p.cooldown(c.Reopens, m.Jitter), c.RetryHint)
	c.MetAt, c.RetryHint = 0, 0
	t := c.shift(m, StateOpen, cause, counts)
	return &t
}

func (c *Circuit) close(m *Moment, p *Policy) *Transition {
	counts := c.counts(m, p)
	c.clear()
	t := c.shift(m, StateClosed, CauseProbesSucceeded, counts)
	return &t
}

// clear forgets all that led up to a closed circuit.
func (c *Circuit) clear() {
	c.endStreak()
	c.Counted = Window{}
	c.MetAt, c.OpenedAt, c.RetryAt, c.Reopens = 0, 0, 0, 0
}

// shift begins the generation of a new state.
func (c *Circuit) shift(m *Moment, to State, cause string, counts Counts) Transition {
	from := c.State
	c.State = to
	c.begin(m)
	return c.transition(m, from, cause, counts)
}

// steer begins the generation of an operator's change, or of its end. It is a
// transition if callers see another state than before.
func (c *Circuit) steer(m *Moment, from State, cause string, counts Counts) *Transition {
	c.begin(m)
	if c.visible() == from {
		return nil
	}
	t := c.transition(m, from, cause, counts)
	return &t
}

func (c *Circuit) transition(m *Moment, from State, cause string, counts Counts) Transition {
	t := Transition{From: from, To: c.visible(), Generation: c.Generation, At: timeOf(m.now()),
		Cause: cause, Counts: counts, Instance: m.Instance}
	if t.To == StateOpen {
		t.RetryAt = timeOf(c.RetryAt)
		if c.Override != nil {
			t.RetryAt = c.Override.Until
		}
	}
	c.record(m, Event{Kind: EventTransition, Transition: &t, Instance: m.Instance})
	return t
}

// begin starts a generation: nothing still under way can change it.
func (c *Circuit) begin(m *Moment) {
	c.Generation++
	c.ChangedAt = m.now()
	c.MetAt, c.ProbeSuccesses, c.Leases = 0, 0, nil
}

// visible is the state that callers see.
func (c *Circuit) visible() State {
	if c.Override != nil {
		return c.Override.State
	}
	return c.State
}

// counts reads the counters; those of a circuit that is not closed are as they
// were when it opened.
func (c *Circuit) counts(m *Moment, p *Policy) Counts {
	at := m.now()
	if c.State != StateClosed {
		at = c.OpenedAt
	}
	n := Counts{ConsecutiveFailures: c.Streak, ProbeSuccesses: c.ProbeSuccesses}
	n.WindowCalls, n.WindowFailures, n.WindowSlow = c.Counted.sum(p, at)
	if !p.rates() {
		n.WindowFailures = c.Counted.failuresWithin(p, at)
	}
	return n
}

func (c *Circuit) reject(s State, left int64) *RejectedError {
	e := &RejectedError{State: s, RetryAfter: durationOf(left)}
	if c.LastFailure != nil {
		e.LastError = c.LastFailure.Error
	}
	return e
}

func (c *Circuit) overrideLeft(m *Moment, p *Policy) int64 {
	if c.Override.Until.IsZero() {
		return millis(p.Cooldown)
	}
	return c.Override.Until.UnixMilli() - m.now()
}

func (c *Circuit) dropLapsed(now int64) {
	lapsed := func(l Lease) bool { return now >= l.Until }
	if slices.ContainsFunc(c.Leases, lapsed) {
		c.Leases = slices.DeleteFunc(slices.Clone(c.Leases), lapsed)
	}
}

func (c *Circuit) firstLapse() int64 {
	first := c.Leases[0].Until
	for _, l := range c.Leases[1:] {
		first = min(first, l.Until)
	}
	return first
}

// fail records a failure, also as the last one.
func (c *Circuit) fail(m *Moment, kind EventKind, r Result) {
	e := Event{At: timeOf(m.now()), Kind: EventFailure, Error: r.Error, Instance: m.Instance, Outcome: Failure}
	last := e
	c.LastFailure = &last
	e.Kind = kind
	c.record(m, e)
}

func (c *Circuit) record(m *Moment, e Event) {
	e.At = timeOf(m.now())
	if drop := len(c.Log) + 1 - MaxHistory; drop > 0 {
		c.Log = append(c.Log[:0], c.Log[drop:]...)
	}
	c.Log = append(c.Log, e)
}

func firstOf(ts []Transition) *Transition {
	if len(ts) == 0 {
		return nil
	}
	return &ts[0]
}

func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
