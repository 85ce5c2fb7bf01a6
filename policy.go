package breaker

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
)

// Limits of what one circuit holds.
const (
	maxWindowFailures = 1000 // failures remembered exactly, one time each
	maxProbes         = 1000 // leases remembered, one each
	maxCallsPerMilli  = 100  // calls a window is asked to hold, per millisecond of it
)

// A Policy says when a circuit opens, how long it stays open and how it
// recovers. It is plain data: comparable, loggable, and JSON with durations
// written as "60s". A zero field means its default. Durations count in whole
// milliseconds, rounded up.
//
// Any rule that is set and met opens a closed circuit. A rule is looked at
// when a failure is counted, SlowRate also when a slow success is.
type Policy struct {
	// ConsecutiveFailures opens after so many failures in a row.
	// Default 5 when no other rule is set; 0 beside another rule: not used.
	ConsecutiveFailures int `json:"consecutive_failures,omitempty"`

	// WindowFailures opens at so many failures within Window, each falling
	// out exactly one Window after it was counted. 0: not used; at most 1000.
	WindowFailures int `json:"window_failures,omitempty"`

	// FailureRate opens when at least this share, 0..1, of the calls in
	// Window failed, from MinCalls calls on. 0: not used. Window slides in
	// twentieths, so a call leaves it up to Window/20 early.
	FailureRate float64 `json:"failure_rate,omitempty"`

	// SlowRate opens when at least this share, 0..1, of the calls in Window
	// took longer than SlowAfter, from MinCalls calls on. 0: not used.
	SlowRate  float64       `json:"slow_rate,omitempty"`
	SlowAfter time.Duration `json:"slow_after,omitempty"`

	// MinCalls is the volume below which the two rates say nothing. Default 20.
	MinCalls int `json:"min_calls,omitempty"`

	// Window is the time that WindowFailures, FailureRate and SlowRate look
	// back on. Default 60s.
	Window time.Duration `json:"window,omitempty"`

	// Cooldown is how long an open circuit rejects before the first probe,
	// counted from the failure that opened it. Default 60s.
	Cooldown time.Duration `json:"cooldown,omitempty"`

	// MaxCooldown, where longer than Cooldown, lets the cooldown double with
	// each failed recovery up to here. 0: the cooldown stays as it is.
	MaxCooldown time.Duration `json:"max_cooldown,omitempty"`

	// CooldownJitter, 0..1, draws each cooldown from its length plus or minus
	// this share, so that many circuits do not probe in step.
	CooldownJitter float64 `json:"cooldown_jitter,omitempty"`

	// MaxRetryAfter is how far a Retry-After of the server may stretch the
	// cooldown. Default 5m; negative: Retry-After is ignored.
	MaxRetryAfter time.Duration `json:"max_retry_after,omitempty"`

	// MaxProbes is how many probes of one half-open round may run at once in
	// the whole fleet. Where it is more than 1, probes of an earlier round that
	// another one's failure has ended may still run beside them. Default 1, at
	// most 1000.
	MaxProbes int `json:"max_probes,omitempty"`

	// ProbeSuccesses is how many probes must succeed in a row to close the
	// circuit. Default 1.
	ProbeSuccesses int `json:"probe_successes,omitempty"`

	// ProbeLease is how long a probe may run before its slot is given to
	// another, and its result no longer counts. Default 60s; when CallTimeout
	// is set, CallTimeout + 5s.
	ProbeLease time.Duration `json:"probe_lease,omitempty"`

	// CallTimeout is a deadline put on the context that fn gets; ProbeLease
	// must exceed it. 0: none.
	CallTimeout time.Duration `json:"call_timeout,omitempty"`

	// Shadow counts, changes state and notifies as ever, but never rejects,
	// not even where an operator forced the circuit open: the way to try a
	// policy in production. What FailClosed makes of a failing store stays.
	Shadow bool `json:"shadow,omitempty"`
}

// DefaultPolicy is what the zero Policy means: open after 5 failures in a row,
// probe after 60s, one probe at a time, close on its success.
var DefaultPolicy = Policy{}.WithDefaults()

// WithDefaults returns p with each zero field that has a default replaced by
// it. A Breaker does this itself; it is for whoever calls a Store or a Circuit.
func (p Policy) WithDefaults() Policy {
	if p.ConsecutiveFailures == 0 && p.WindowFailures == 0 && p.FailureRate == 0 && p.SlowRate == 0 {
		p.ConsecutiveFailures = 5
	}
	setDefault(&p.MinCalls, 20)
	setDefault(&p.Window, 60*time.Second)
	setDefault(&p.Cooldown, 60*time.Second)
	setDefault(&p.MaxRetryAfter, 5*time.Minute)
	setDefault(&p.MaxProbes, 1)
	setDefault(&p.ProbeSuccesses, 1)
	if p.ProbeLease == 0 {
		p.ProbeLease = 60 * time.Second
		if p.CallTimeout > 0 {
			p.ProbeLease = addClamped(p.CallTimeout, 5*time.Second)
		}
	}
	return p
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports every contradiction in p, each as an ErrConfig that names
// the field; zero fields count as their defaults. New calls it.
func (p Policy) Validate() error { return p.validate("Policy") }

func (p Policy) validate(name string) error {
	var errs []error
	said := make(map[string]bool)
	wrong := func(field string, value any, why string, args ...any) {
		if said[field] {
			return // one thing is wrong with it already
		}
		said[field] = true
		errs = append(errs, configError("%s.%s is %v: %s", name, field, value, fmt.Sprintf(why, args...)))
	}
	for _, f := range []struct {
		name  string
		value int
		most  int
	}{
		{"ConsecutiveFailures", p.ConsecutiveFailures, math.MaxInt32},
		{"WindowFailures", p.WindowFailures, maxWindowFailures},
		{"MinCalls", p.MinCalls, math.MaxInt32},
		{"MaxProbes", p.MaxProbes, maxProbes},
		{"ProbeSuccesses", p.ProbeSuccesses, math.MaxInt32},
	} {
		if f.value < 0 || f.value > f.most {
			wrong(f.name, f.value, "must be within 0 and %d", f.most)
		}
	}
	for _, f := range []struct {
		name  string
		value float64
	}{{"FailureRate", p.FailureRate}, {"SlowRate", p.SlowRate}, {"CooldownJitter", p.CooldownJitter}} {
		if !(f.value >= 0 && f.value <= 1) { // so written that NaN is wrong too
			wrong(f.name, f.value, "must be within 0 and 1")
		}
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"SlowAfter", p.SlowAfter}, {"Window", p.Window}, {"Cooldown", p.Cooldown},
		{"MaxCooldown", p.MaxCooldown}, {"ProbeLease", p.ProbeLease}, {"CallTimeout", p.CallTimeout},
	} {
		if f.value < 0 {
			wrong(f.name, f.value, "must not be negative")
		}
	}
	d := p.WithDefaults()
	if p.FailureRate > 0 || p.SlowRate > 0 {
		if most := d.Window.Seconds() * 1000 * maxCallsPerMilli; float64(d.MinCalls) > most {
			wrong("MinCalls", d.MinCalls, "a Window of %v can't hold more than %.0f calls", d.Window, most)
		}
	}
	if p.WindowFailures > 0 {
		if most := d.Window.Seconds() * 1000 * maxCallsPerMilli; float64(d.WindowFailures) > most {
			wrong("WindowFailures", d.WindowFailures, "a Window of %v can't hold more than %.0f failures", d.Window, most)
		}
	}
	if p.SlowRate > 0 && p.SlowAfter == 0 {
		wrong("SlowAfter", p.SlowAfter, "SlowRate %v needs it", p.SlowRate)
	}
	if p.SlowRate > 0 && p.CallTimeout > 0 && p.SlowAfter > p.CallTimeout {
		wrong("SlowAfter", p.SlowAfter, "no call is slower than CallTimeout %v", p.CallTimeout)
	}
	if p.MaxCooldown > 0 && p.MaxCooldown < d.Cooldown {
		wrong("MaxCooldown", p.MaxCooldown, "must not be shorter than Cooldown %v", d.Cooldown)
	}
	if d.ProbeLease <= p.CallTimeout {
		wrong("ProbeLease", d.ProbeLease, "must be longer than CallTimeout %v", p.CallTimeout)
	}
	return errors.Join(errs...)
}

// rates reports whether p counts every call, not failures alone.
func (p *Policy) rates() bool { return p.FailureRate > 0 || p.SlowRate > 0 }

// slow reports whether a call that took elapsed counts as slow.
func (p *Policy) slow(elapsed time.Duration) bool {
	return p.SlowRate > 0 && elapsed > p.SlowAfter
}

// cooldown returns the milliseconds a circuit stays open after so many failed
// recoveries; jitter in [0,1) is where in the spread it falls.
func (p *Policy) cooldown(reopens int, jitter float64) int64 {
	d := millis(p.Cooldown)
	for limit := millis(p.MaxCooldown); reopens > 0 && d < limit; reopens-- {
		d = min(2*d, limit)
	}
	// The conversion keeps the product from being fused with the sum, so that
	// every processor, and Redis, computes the same number.
	spread := float64(p.CooldownJitter * (2*jitter - 1))
	return int64(math.Floor(float64(d) * (1 + spread)))
}

// retryAfter returns the milliseconds of a server's Retry-After that p honours.
func (p *Policy) retryAfter(d time.Duration) int64 {
	if d <= 0 || p.MaxRetryAfter < 0 {
		return 0
	}
	return millis(min(d, p.MaxRetryAfter))
}

// millis rounds d up to whole milliseconds.
func millis(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return ms
}

// durationOf is the duration of ms milliseconds, at least 0 and at most the
// longest there is.
func durationOf(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// addClamped adds two durations that are not negative.
func addClamped(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// durationText is a duration as JSON has it: "60s", or "1.5s".
type durationText time.Duration

func (d durationText) MarshalText() ([]byte, error) {
	if v := time.Duration(d); v%time.Second != 0 {
		return []byte(v.String()), nil
	}
	return fmt.Appendf(nil, "%ds", int64(time.Duration(d)/time.Second)), nil
}

func (d *durationText) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = durationText(v)
	return err
}

// policyText has the fields of a Policy, its durations as text: the outer
// fields hide the embedded ones of the same name.
type policyText struct {
	*policyFields
	SlowAfter     durationText `json:"slow_after,omitempty"`
	Window        durationText `json:"window,omitempty"`
	Cooldown      durationText `json:"cooldown,omitempty"`
	MaxCooldown   durationText `json:"max_cooldown,omitempty"`
	MaxRetryAfter durationText `json:"max_retry_after,omitempty"`
	ProbeLease    durationText `json:"probe_lease,omitempty"`
	CallTimeout   durationText `json:"call_timeout,omitempty"`
}

type policyFields Policy

func (t *policyText) durations(p *Policy) map[*durationText]*time.Duration {
	return map[*durationText]*time.Duration{
		&t.SlowAfter: &p.SlowAfter, &t.Window: &p.Window, &t.Cooldown: &p.Cooldown,
		&t.MaxCooldown: &p.MaxCooldown, &t.MaxRetryAfter: &p.MaxRetryAfter,
		&t.ProbeLease: &p.ProbeLease, &t.CallTimeout: &p.CallTimeout,
	}
}

// MarshalJSON writes the fields that are set, durations as "60s".
func (p Policy) MarshalJSON() ([]byte, error) {
	t := policyText{policyFields: (*policyFields)(&p)}
	for text, d := range t.durations(&p) {
		*text = durationText(*d)
	}
	return json.Marshal(t)
}

// UnmarshalJSON sets the fields that data names and leaves the others as they
// are. It checks the form only; Validate checks the sense. After an error p is
// unchanged.
func (p *Policy) UnmarshalJSON(data []byte) error {
	next := *p
	t := policyText{policyFields: (*policyFields)(&next)}
	for text, d := range t.durations(&next) {
		*text = durationText(*d)
	}
	if err := json.Unmarshal(data, &t); err != nil {
		return fmt.Errorf("breaker: policy: %w", err)
	}
	for text, d := range t.durations(&next) {
		*d = time.Duration(*text)
	}
	*p = next
	return nil
}
