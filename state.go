package breaker

import (
	"fmt"
	"slices"
	"time"
)

// A State is what a circuit does with calls. The zero State is StateClosed.
type State uint8

const (
	StateClosed   State = iota // calls run and their outcomes are counted
	StateOpen                  // no call runs
	StateHalfOpen              // a few probes run, to see whether the dependency is back
)

var stateNames = []string{"closed", "open", "half-open"}

// String returns "closed", "open" or "half-open".
func (s State) String() string { return nameOf(stateNames, s) }

// MarshalText writes what String returns.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *State) UnmarshalText(text []byte) error { return parseName(stateNames, "state", text, s) }

// An Outcome is what a call's end says of the dependency.
type Outcome uint8

const (
	Undecided Outcome = iota // a Classifier that leaves the judgement to the next one
	Success                  // the dependency was reached and answered
	Failure                  // it was not, or said itself that it is unwell
	Ignored                  // the call says nothing of the dependency
)

var outcomeNames = []string{"undecided", "success", "failure", "ignored"}

// String returns "success", "failure", "ignored" or "undecided".
func (o Outcome) String() string { return nameOf(outcomeNames, o) }

// MarshalText writes what String returns.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (o *Outcome) UnmarshalText(text []byte) error {
	return parseName(outcomeNames, "outcome", text, o)
}

func nameOf[T ~uint8](names []string, v T) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("unknown(%d)", v)
}

func parseName[T ~uint8](names []string, what string, text []byte, v *T) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("breaker: unknown %s %q", what, text)
	}
	*v = T(i)
	return nil
}

// A Circuit is the state machine of one key: pure rules, no I/O, no clock, no
// lock. The zero Circuit is closed and healthy. It serialises as JSON; a Store
// over anything transactional loads it, calls one method and saves it.
// Times are Unix milliseconds.
//
// lua/circuit.lua has the same rules for Redis; one differential test holds
// the two together, so a change here is a change there.
type Circuit struct {
	State      State  `json:"state"`
	Generation uint64 `json:"generation"` // begun by each transition, reset and override
	ChangedAt  int64  `json:"changed_at,omitempty"`

	// What the closed state counts. Kept until the circuit is closed again.
	Streak      int    `json:"streak,omitempty"` // failures in a row
	StreakSince int64  `json:"streak_since,omitempty"`
	Counted     Window `json:"counted,omitzero"`
	RetryHint   int64  `json:"retry_hint,omitempty"` // until when the streak's failures asked to be left alone

	// MetAt, if set, is when several processes' reports together met a rule
	// that must settle before it opens the circuit.
	MetAt int64 `json:"met_at,omitempty"`

	// AskedAt is when the processes were last asked to tell of successes that
	// would end the streak.
	AskedAt int64 `json:"asked_at,omitempty"`

	OpenedAt       int64   `json:"opened_at,omitempty"`
	RetryAt        int64   `json:"retry_at,omitempty"`
	Reopens        int     `json:"reopens,omitempty"`
	ProbeSuccesses int     `json:"probe_successes,omitempty"`
	Leases         []Lease `json:"leases,omitempty"`

	LastFailure *Event    `json:"last_failure,omitempty"`
	Override    *Override `json:"override,omitempty"`

	// Log has what happened, oldest first, at most MaxHistory events. A store
	// that keeps history elsewhere takes them from here and sets it to nil.
	Log []Event `json:"log,omitempty"`
}

// A Lease is a probe's hold on one of the slots.
type Lease struct {
	Owner string `json:"owner"`
	Until int64  `json:"until"`
}

// A Moment is what an operation on a Circuit knows of the world.
type Moment struct {
	Now      time.Time     // on the store's clock
	Settle   time.Duration // see Circuit.MetAt; 0 or less: rules open at once
	Jitter   float64       // in [0,1): where in its spread a cooldown falls
	Instance string        // the process, for transitions and history

	// Evidence is what the process knows beyond the one result. nil means
	// that every result of every process is reported: there is no more to know.
	Evidence *Evidence

	heard     bool // the evidence has been taken in
	restarted bool // and has ended a streak
}

func (m *Moment) now() int64 { return m.Now.UnixMilli() }

// Acquire decides on one call. A probe's lease is given to owner, which must
// be unique. It returns a Permit, or a *RejectedError that has no Key yet.
func (c *Circuit) Acquire(m Moment, p Policy, owner string) (Permit, *RejectedError) {
	var pm Permit
	pm.Transitions = c.advance(&m, &p)
	if c.Override == nil && c.State == StateClosed {
		c.hear(&m, &p)
	}
	if c.Override == nil && c.State == StateOpen && m.now() >= c.RetryAt {
		pm.Transitions = append(pm.Transitions, c.shift(&m, StateHalfOpen, CauseCooldownOver, c.counts(&m, &p)))
	}
	pm.Generation = c.Generation

	switch {
	case c.Override != nil && c.Override.State == StateClosed:
		pm.Forced = true
		return pm, nil
	case c.Override != nil:
		return pm, c.reject(StateOpen, c.overrideLeft(&m, &p))
	case c.State == StateClosed:
		pm.streak = uint64(c.StreakSince)
		return pm, nil
	case c.State == StateOpen:
		return pm, c.reject(StateOpen, c.RetryAt-m.now())
	}

	c.dropLapsed(m.now())
	if len(c.Leases) >= max(p.MaxProbes, 1) {
		return pm, c.reject(StateHalfOpen, c.firstLapse()-m.now())
	}
	c.Leases = append(c.Leases, Lease{owner, m.now() + millis(p.ProbeLease)})
	pm.Probe = owner
	return pm, nil
}

// Report takes in the result of a permitted call.
func (c *Circuit) Report(m Moment, p Policy, pm Permit, r Result) *Transition {
	// What time alone brought began a new generation, so that the result then
	// changes nothing: there is one transition at most.
	due := c.advance(&m, &p)
	if len(due) > 0 || c.Override != nil || pm.Forced || pm.Generation != c.Generation {
		return firstOf(due)
	}
	switch c.State {
	case StateClosed:
		if r.Outcome == Success || r.Outcome == Failure {
			c.hear(&m, &p)
			return c.count(&m, &p, r)
		}
	case StateHalfOpen:
		return c.settleProbe(&m, &p, pm.Probe, r)
	}
	return nil
}

// Hear takes in what a process knows, without a result of its own.
func (c *Circuit) Hear(m Moment, p Policy) *Transition {
	due := c.advance(&m, &p)
	if c.Override == nil && c.State == StateClosed {
		c.hear(&m, &p)
	}
	return firstOf(due)
}

// Force puts an override on the circuit, in place of any other. What the
// circuit itself knows is kept for the time when the override ends.
func (c *Circuit) Force(m Moment, p Policy, o Override) *Transition {
	from, counts := c.visible(), c.counts(&m, &p)
	c.advance(&m, &p)
	o.Until = time.Time{}
	if o.For > 0 {
		o.Until = timeOf(m.now() + millis(o.For))
	}
	o.For = 0 // Until says it
	logged := o
	c.Override = &o
	c.record(&m, Event{Kind: EventOverride, Override: &logged, By: o.By})
	return c.steer(&m, from, CauseForced, counts)
}

// ClearOverride ends an override: the circuit is again what it knows itself.
func (c *Circuit) ClearOverride(m Moment, p Policy, by string) *Transition {
	if due := c.advance(&m, &p); len(due) > 0 || c.Override == nil {
		return firstOf(due)
	}
	from, counts := c.visible(), c.counts(&m, &p)
	c.Override = nil
	c.record(&m, Event{Kind: EventCleared, By: by})
	return c.steer(&m, from, CauseOverrideCleared, counts)
}

// Reset closes the circuit and forgets its counts and its override. The last
// failure and the history stay.
func (c *Circuit) Reset(m Moment, p Policy, by string) *Transition {
	from, counts := c.visible(), c.counts(&m, &p)
	c.advance(&m, &p)
	c.Override = nil
	c.State = StateClosed
	c.clear()
	c.record(&m, Event{Kind: EventReset, By: by})
	return c.steer(&m, from, CauseReset, counts)
}

// Snapshot reads the circuit as callers find it at m, and changes nothing.
func (c *Circuit) Snapshot(m Moment, p Policy) Snapshot {
	view := *c // the methods below replace slices, and never write into them
	view.Log = nil
	view.Counted.Buckets = slices.Clone(c.Counted.Buckets) // but for these
	view.advance(&m, &p)
	view.dropLapsed(m.now())
	counts := view.counts(&m, &p)
	s := Snapshot{
		State: view.visible(), Generation: view.Generation,
		ConsecutiveFailures: counts.ConsecutiveFailures, WindowCalls: counts.WindowCalls,
		WindowFailures: counts.WindowFailures, WindowSlow: counts.WindowSlow,
		ChangedAt:      timeOf(view.ChangedAt),
		ProbesInFlight: len(view.Leases), ProbeSuccesses: view.ProbeSuccesses, Reopens: view.Reopens,
		Policy: p,
	}
	if view.State != StateClosed {
		s.OpenedAt, s.RetryAt = timeOf(view.OpenedAt), timeOf(view.RetryAt)
		if s.State == StateOpen && view.Override == nil && m.now() >= view.RetryAt {
			s.State, s.ProbeSuccesses = StateHalfOpen, 0
		}
	}
	if view.LastFailure != nil {
		last := *view.LastFailure
		s.LastFailure = &last
	}
	if view.Override != nil {
		o := *view.Override
		s.Override = &o
	}
	return s
}
