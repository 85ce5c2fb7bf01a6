package sim

import (
	"container/heap"
	"slices"
	"strconv"
	"time"

	"github.com/breakerkit/breaker"
)

// A Result is what a policy would have made of a trace.
type Result struct {
	Name     string         `json:"name"`
	Policy   breaker.Policy `json:"policy"`
	Calls    int            `json:"calls"`
	Failures int            `json:"failures"` // in the trace; with CallTimeout, slower calls too

	Made         int `json:"made"`
	FailuresMade int `json:"failures_made"`
	Spared       int `json:"spared"`   // rejected calls that had failed
	Lost         int `json:"lost"`     // rejected calls that had succeeded, or were ignored
	Openings     int `json:"openings"` // from closed: reopenings by a failed probe belong to the same one

	// FalseOpenings are those that lost more calls than they spared.
	FalseOpenings int           `json:"false_openings"`
	NotClosed     time.Duration `json:"-"` // summed over the circuits
	NotClosedSecs float64       `json:"not_closed_seconds"`
	Episodes      []Episode     `json:"episodes"`
}

// An Episode is the time from an opening until the circuit is closed again.
type Episode struct {
	Key    string    `json:"key"`
	Opened time.Time `json:"opened"`
	Closed time.Time `json:"closed,omitzero"` // zero: not within the trace
	Cause  string    `json:"cause"`
	Counts string    `json:"why"`
	Spared int       `json:"spared"`
	Lost   int       `json:"lost"`
	Probes int       `json:"failed_probes"`
	False  bool      `json:"false"`

	Phases []Phase `json:"phases"`
}

// A Phase is a stretch in one state, from At until the next.
type Phase struct {
	At    time.Time     `json:"at"`
	State breaker.State `json:"state"`
}

// Replay runs calls, in order of time, through one circuit for each key under
// p, which must be valid. One observer sees all calls, as in one process, or
// as a fleet does through its store; time is the trace's. A call that the
// policy lets through goes as it went in the trace, but for CallTimeout, which
// makes a slower one a failure. Shadow and the jitter of cooldowns are left
// out.
func Replay(name string, p breaker.Policy, calls []Call) Result {
	p = p.WithDefaults()
	p.Shadow = false
	r := replay{policy: p, circuits: make(map[string]*circuit), result: Result{Name: name, Policy: p, Episodes: []Episode{}}}
	for i := range calls {
		r.finish(calls[i].At)
		r.begin(&calls[i])
	}
	end := calls[len(calls)-1].At
	for _, each := range r.running {
		if each.at.After(end) {
			end = each.at
		}
	}
	r.finish(end)
	r.end(end)
	return r.result
}

type replay struct {
	policy   breaker.Policy
	circuits map[string]*circuit
	running  running
	probes   int
	result   Result
}

type circuit struct {
	breaker.Circuit
	episode int // in Result.Episodes; -1: it is closed
}

// A run is a call under way.
type run struct {
	at      time.Time // when it ends
	circuit *circuit
	key     string
	permit  breaker.Permit
	result  breaker.Result
}

// running has the calls under way, the one that ends first on top.
type running []*run

func (q running) Len() int           { return len(q) }
func (q running) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q running) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *running) Push(x any)        { *q = append(*q, x.(*run)) }
func (q *running) Pop() any {
	last := len(*q) - 1
	top := (*q)[last]
	*q = (*q)[:last]
	return top
}

// asMade is how a call goes if it is made.
func (r *replay) asMade(c *Call) (took time.Duration, o breaker.Outcome) {
	if limit := r.policy.CallTimeout; limit > 0 && c.Took > limit {
		return limit, breaker.Failure
	}
	return c.Took, c.Outcome
}

func (r *replay) begin(c *Call) {
	k := r.circuits[c.Key]
	if k == nil {
		k = &circuit{episode: -1}
		r.circuits[c.Key] = k
	}
	took, outcome := r.asMade(c)
	r.result.Calls++
	if outcome == breaker.Failure {
		r.result.Failures++
	}
	r.probes++
	permit, rejected := k.Acquire(breaker.Moment{Now: c.At, Jitter: 0.5}, r.policy, strconv.Itoa(r.probes))
	k.Log = nil
	for _, t := range permit.Transitions {
		r.note(k, c.Key, t)
	}
	if rejected != nil {
		r.reject(k, outcome)
		return
	}
	r.result.Made++
	if outcome == breaker.Failure {
		r.result.FailuresMade++
	}
	heap.Push(&r.running, &run{at: c.At.Add(took), circuit: k, key: c.Key, permit: permit,
		result: breaker.Result{Outcome: outcome, Elapsed: took, RetryAfter: c.RetryAfter}})
}

func (r *replay) reject(k *circuit, outcome breaker.Outcome) {
	failed := outcome == breaker.Failure
	if failed {
		r.result.Spared++
	} else {
		r.result.Lost++
	}
	if k.episode < 0 {
		return
	}
	if e := &r.result.Episodes[k.episode]; failed {
		e.Spared++
	} else {
		e.Lost++
	}
}

// finish reports the calls that end by now.
func (r *replay) finish(now time.Time) {
	for len(r.running) > 0 && !r.running[0].at.After(now) {
		done := heap.Pop(&r.running).(*run)
		t := done.circuit.Report(breaker.Moment{Now: done.at, Jitter: 0.5}, r.policy, done.permit, done.result)
		done.circuit.Log = nil
		if t != nil {
			r.note(done.circuit, done.key, *t)
		}
	}
}

// note takes in a transition.
func (r *replay) note(k *circuit, key string, t breaker.Transition) {
	if t.From == breaker.StateClosed {
		k.episode = len(r.result.Episodes)
		r.result.Openings++
		r.result.Episodes = append(r.result.Episodes, Episode{Key: key, Opened: t.At, Cause: t.Cause, Counts: why(t)})
	}
	e := &r.result.Episodes[k.episode]
	e.Phases = append(e.Phases, Phase{t.At, t.To})
	switch {
	case t.To == breaker.StateOpen && t.From == breaker.StateHalfOpen:
		e.Probes++
	case t.To == breaker.StateClosed:
		e.Closed = t.At
		k.episode = -1
	}
}

func why(t breaker.Transition) string {
	c := t.Counts
	switch t.Cause {
	case breaker.CauseConsecutiveFailures:
		return strconv.Itoa(c.ConsecutiveFailures) + " failures in a row"
	case breaker.CauseWindowFailures:
		return strconv.Itoa(c.WindowFailures) + " failures in the window"
	case breaker.CauseSlowRate:
		return strconv.Itoa(c.WindowSlow) + " of " + strconv.Itoa(c.WindowCalls) + " calls slow"
	default:
		return strconv.Itoa(c.WindowFailures) + " of " + strconv.Itoa(c.WindowCalls) + " calls failed"
	}
}

func (r *replay) end(now time.Time) {
	for i := range r.result.Episodes {
		e := &r.result.Episodes[i]
		if e.False = e.Lost > e.Spared; e.False {
			r.result.FalseOpenings++
		}
		until := e.Closed
		if until.IsZero() {
			until = now
		}
		r.result.NotClosed += until.Sub(e.Opened)
	}
	slices.SortStableFunc(r.result.Episodes, func(a, b Episode) int { return a.Opened.Compare(b.Opened) })
	r.result.NotClosedSecs = r.result.NotClosed.Seconds()
}
