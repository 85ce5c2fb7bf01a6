package linear_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/breakerkit/breaker"
)

// An operation is what one client did.
type operation struct {
	do     string // acquire, report, force, clear, reset, snapshot
	id     string // of the message; an acquire's names the lease
	permit permit // of a report
	result breaker.Outcome
	to     breaker.State // of a force

	// ghost marks the first delivery of a message that arrived twice: it took
	// place, and nobody saw the answer.
	ghost bool
}

// A permit is a breaker.Permit, its lease under the id of the acquire.
type permit struct {
	generation uint64
	probe      string
	forced     bool
}

// An answer is what the client got. Times are left out: they are the server's.
type answer struct {
	unknown bool // the reply was lost: it took place, or not, or will

	generation uint64
	rejected   string // the state a rejection told of; empty: none
	probe      bool
	forced     bool
	made       []string // transitions
	madeLost   bool     // a message that arrived twice tells of the second arrival
	seen       string   // of a snapshot
}

// A state is all that a circuit can be, as JSON so that states compare.
type state struct {
	Circuit breaker.Circuit
	Over    uint64   // the open generation whose cooldown is known to be over
	Counted []string // failures counted, by message: a second arrival counts nothing
}

func (s state) text() string {
	s.Circuit.Log, s.Circuit.LastFailure = nil, nil // the history is another matter
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// Cooldowns are so short here that they may be over or not at any operation:
// the model tries both. Windows, leases and overrides outlast every history. So
// it needs two times only.
var (
	before = time.UnixMilli(1_000_000)
	after  = before.Add(time.Second)
)

func modelPolicy(p breaker.Policy) breaker.Policy {
	p.Cooldown = after.Sub(before)
	return p
}

// model is a circuit under p. streaks is false where a success need not be
// reported, so that a streak is no more than a hint.
func model(p breaker.Policy, streaks bool) porcupine.Model {
	p = modelPolicy(p)
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}.text()} },
		Step: func(from, in, out any) (next []any) {
			var s state
			if err := json.Unmarshal([]byte(from.(string)), &s); err != nil {
				panic(err)
			}
			op, got := in.(operation), out.(answer)
			if got.unknown {
				next = append(next, from)
			}
			times := []time.Time{before}
			if s.Circuit.State == breaker.StateOpen {
				times = []time.Time{before, after}
				if s.Over == s.Circuit.Generation {
					times = times[1:]
				}
			}
			for _, now := range times {
				would := state{Over: s.Over, Counted: slices.Clone(s.Counted), Circuit: s.Circuit}
				would.Circuit.Leases = slices.Clone(s.Circuit.Leases)
				would.Circuit.Counted.Failures = slices.Clone(s.Circuit.Counted.Failures)
				if s.Circuit.Override != nil {
					o := *s.Circuit.Override
					would.Circuit.Override = &o
				}
				if now == after {
					would.Over = s.Circuit.Generation
				}
				if a := would.take(op, now, p, streaks); got.unknown || op.ghost || a.equal(got) {
					if text := any(would.text()); !slices.Contains(next, text) {
						next = append(next, text)
					}
				}
			}
			return next
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
		DescribeState:     func(s any) string { return s.(string) },
	}
	return m.ToModel()
}

func (a answer) equal(got answer) bool {
	if got.madeLost {
		a.made, got.made = nil, nil
	}
	got.madeLost = false
	return a.generation == got.generation && a.rejected == got.rejected && a.probe == got.probe &&
		a.forced == got.forced && a.seen == got.seen && slices.Equal(a.made, got.made)
}

// take has the circuit do op at now.
func (s *state) take(op operation, now time.Time, p breaker.Policy, streaks bool) (a answer) {
	c, m := &s.Circuit, breaker.Moment{Now: now, Jitter: 0.5}
	switch op.do {
	case "acquire":
		if slices.ContainsFunc(c.Leases, func(l breaker.Lease) bool { return l.Owner == op.id }) {
			return answer{generation: c.Generation, probe: true} // arrived twice
		}
		pm, rejected := c.Acquire(m, p, op.id)
		return answerOf(pm, rejected)
	case "report":
		closed := c.State == breaker.StateClosed && c.Override == nil
		if closed && op.result == breaker.Failure && op.permit.generation == c.Generation && !op.permit.forced {
			if slices.Contains(s.Counted, op.id) {
				return answer{}
			}
			s.Counted = append(s.Counted, op.id)
		}
		pm := breaker.Permit{Generation: op.permit.generation, Probe: op.permit.probe, Forced: op.permit.forced}
		return answer{made: changes(c.Report(m, p, pm, breaker.Result{Outcome: op.result}))}
	case "force":
		return answer{made: changes(c.Force(m, p, breaker.Override{State: op.to}))}
	case "clear":
		return answer{made: changes(c.ClearOverride(m, p, "test"))}
	case "reset":
		return answer{made: changes(c.Reset(m, p, "test"))}
	default:
		return answer{seen: seen(c.Snapshot(m, p), streaks)}
	}
}

func answerOf(pm breaker.Permit, rejected *breaker.RejectedError) answer {
	a := answer{generation: pm.Generation, probe: pm.Probe != "", forced: pm.Forced}
	for i := range pm.Transitions {
		a.made = append(a.made, changes(&pm.Transitions[i])...)
	}
	if rejected != nil {
		a.rejected = rejected.State.String()
	}
	return a
}

func changes(t *breaker.Transition) []string {
	if t == nil {
		return nil
	}
	return []string{fmt.Sprintf("%v>%v %d %s", t.From, t.To, t.Generation, t.Cause)}
}

// seen is what of a snapshot does not depend on the time.
func seen(s breaker.Snapshot, streaks bool) string {
	text := fmt.Sprintf("%v g%d f%d p%d s%d r%d", s.State, s.Generation, s.WindowFailures, s.ProbesInFlight, s.ProbeSuccesses, s.Reopens)
	if s.Override != nil {
		text += " " + s.Override.State.String()
	}
	if streaks {
		text += fmt.Sprintf(" c%d", s.ConsecutiveFailures)
	}
	return text
}
