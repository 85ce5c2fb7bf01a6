package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/breakerkit/breaker"
)

const (
	tick     = 10 * time.Millisecond // between two calls
	patience = time.Second           // what a store may take to agree with itself
)

// What comes of a call.
var (
	succeeded = breaker.Result{Outcome: breaker.Success}
	failed    = breaker.Result{Outcome: breaker.Failure, Error: "no route to host"}
	ignored   = breaker.Result{Outcome: breaker.Ignored}
)

var ctx = context.Background()

// A caller makes calls on one circuit, as a Breaker in one process does. Its
// methods end the check when the store fails.
type caller struct {
	*scene
	process string
	store   breaker.Store
	key     string
	p       breaker.Policy
}

// caller returns a caller in the process of Harness.Store.
func (s *scene) caller(p breaker.Policy) *caller {
	return &caller{s, "one", s.Store, "stripe", p}
}

// pair returns callers of the same circuit in two processes.
func (s *scene) pair(p breaker.Policy) (one, another *caller) {
	one = s.caller(p)
	return one, one.elsewhere()
}

// elsewhere returns a caller of the same circuit in a process that has just begun.
func (c *caller) elsewhere() *caller {
	there := *c
	there.process = "another"
	if c.Another != nil {
		there.store = c.Another()
	}
	return &there
}

// on returns a caller of another circuit in the same process.
func (c *caller) on(key string) *caller {
	other := *c
	other.key = key
	return &other
}

// ask is Acquire, with the rejection apart from failures of the store.
func (c *caller) ask() (breaker.Permit, *breaker.RejectedError) {
	c.Helper()
	pm, err := c.store.Acquire(ctx, c.key, c.p)
	var rejected *breaker.RejectedError
	if err != nil && !errors.As(err, &rejected) {
		c.Fatalf("Acquire(%q): %v", c.key, err)
	}
	for _, t := range pm.Transitions {
		equal(c, "Transition.Key", t.Key, c.key)
	}
	return pm, rejected
}

// acquire is ask where a call must be let through.
func (c *caller) acquire() breaker.Permit {
	c.Helper()
	pm, rejected := c.ask()
	if rejected != nil {
		c.Fatalf("Acquire(%q): %v; want a permit", c.key, rejected)
	}
	return pm
}

// probe is ask where a call must be let through as a probe.
func (c *caller) probe() breaker.Permit {
	c.Helper()
	pm := c.acquire()
	if pm.Probe == "" || pm.Forced {
		c.Fatalf("Acquire(%q): %+v; want a probe's permit", c.key, pm)
	}
	return pm
}

// refused is ask where a call must be rejected, to come back after left.
func (c *caller) refused(want error, left time.Duration) breaker.Permit {
	c.Helper()
	pm, rejected := c.ask()
	if rejected == nil {
		c.Fatalf("Acquire(%q): %+v; want %v", c.key, pm, want)
	}
	if !errors.Is(rejected, want) || rejected.RetryAfter != left {
		c.Fatalf("Acquire(%q): %v; want %v for %v", c.key, rejected, want, left)
	}
	equal(c, "RejectedError.Key", rejected.Key, c.key)
	return pm
}

func (c *caller) report(pm breaker.Permit, r breaker.Result) *breaker.Transition {
	c.Helper()
	r.Instance = c.process
	t, err := c.store.Report(ctx, c.key, c.p, pm, r)
	if err != nil {
		c.Fatalf("Report(%q): %v", c.key, err)
	}
	if t != nil {
		equal(c, "Transition.Key", t.Key, c.key)
	}
	return t
}

// call makes a call, a tick after whatever came before.
func (c *caller) call(r breaker.Result) *breaker.Transition {
	c.Helper()
	c.Advance(tick)
	return c.report(c.acquire(), r)
}

// calls makes n calls, none of which may change the state.
func (c *caller) calls(n int, r breaker.Result) {
	c.Helper()
	for i := range n {
		if t := c.call(r); t != nil {
			c.Fatalf("%v no. %d of %d on %q made a transition: %s; want none", r.Outcome, i+1, n, c.key, text(t))
		}
	}
}

// opens makes a call that must open the circuit.
func (c *caller) opens(r breaker.Result, cause string) breaker.Transition {
	c.Helper()
	return c.became(c.call(r), breaker.StateClosed, breaker.StateOpen, cause)
}

// trip opens the circuit by failures in a row.
func (c *caller) trip() breaker.Transition {
	c.Helper()
	c.calls(c.p.ConsecutiveFailures-1, failed)
	return c.opens(failed, breaker.CauseConsecutiveFailures)
}

// tripAndProbe opens the circuit and returns its first probe.
func (c *caller) tripAndProbe() breaker.Permit {
	c.Helper()
	c.trip()
	c.Advance(c.p.Cooldown)
	return c.probe()
}

// recovers trips the circuit and closes it again.
func (c *caller) recovers() breaker.Transition {
	c.Helper()
	t := c.report(c.tripAndProbe(), succeeded)
	return c.became(t, breaker.StateHalfOpen, breaker.StateClosed, breaker.CauseProbesSucceeded)
}

// became checks a transition that has just been made.
func (c *caller) became(t *breaker.Transition, from, to breaker.State, cause string) breaker.Transition {
	c.Helper()
	if t == nil {
		c.Fatalf("%q made no transition; want %v to %v by %s", c.key, from, to, cause)
	}
	if t.From != from || t.To != to || t.Cause != cause {
		c.Fatalf("%q made the transition %s; want %v to %v by %s", c.key, text(t), from, to, cause)
	}
	snap := c.snapshot()
	equal(c, "State after the transition", snap.State, to)
	equal(c, "Transition.Generation", t.Generation, snap.Generation)
	sameTime(c, "Transition.At", t.At, snap.ChangedAt)
	return *t
}

func (c *caller) snapshot() breaker.Snapshot {
	c.Helper()
	snap, err := c.store.Snapshot(ctx, c.key, c.p)
	if err != nil {
		c.Fatalf("Snapshot(%q): %v", c.key, err)
	}
	equal(c, "Snapshot.Key", snap.Key, c.key)
	return snap
}

func (c *caller) history() []breaker.Event {
	c.Helper()
	events, err := as[breaker.Historian](c).History(ctx, c.key)
	if err != nil {
		c.Fatalf("History(%q): %v", c.key, err)
	}
	return events
}

// is checks the state that a Snapshot shows.
func (c *caller) is(want breaker.State) breaker.Snapshot {
	c.Helper()
	snap := c.snapshot()
	if snap.State != want {
		c.Fatalf("%q is %v; want %v: %s", c.key, snap.State, want, text(snap))
	}
	return snap
}

// unchanged checks that what do does changes nothing of the circuit that
// anybody can see.
func (c *caller) unchanged(what string, do func()) {
	c.Helper()
	see := func() string {
		seen := text(c.snapshot())
		if _, ok := c.store.(breaker.Historian); ok {
			seen += "\n" + text(c.history())
		}
		return seen
	}
	before := see()
	do()
	if after := see(); after != before {
		c.Fatalf("%s changed the circuit %q\nfrom %s\nto   %s", what, c.key, before, after)
	}
}

// as returns the store as what it may be beside a Store. The check is skipped
// if it is not.
func as[I any](c *caller) I {
	c.Helper()
	i, ok := c.store.(I)
	if !ok {
		c.Skipf("%T is no %v", c.store, reflect.TypeFor[I]())
	}
	return i
}

// The steps of an operator.

func (c *caller) force(o breaker.Override) *breaker.Transition {
	c.Helper()
	return c.steered(as[breaker.Controller](c).Force(ctx, c.key, c.p, o))
}

func (c *caller) clear() *breaker.Transition {
	c.Helper()
	return c.steered(as[breaker.Controller](c).ClearOverride(ctx, c.key, c.p, "bob"))
}

func (c *caller) reset() *breaker.Transition {
	c.Helper()
	return c.steered(as[breaker.Controller](c).Reset(ctx, c.key, c.p, "eve"))
}

func (c *caller) steered(t *breaker.Transition, err error) *breaker.Transition {
	c.Helper()
	if err != nil {
		c.Fatalf("steering %q: %v", c.key, err)
	}
	return t
}

func equal[V comparable](t tb, what string, got, want V) {
	t.Helper()
	if got == want {
		return
	}
	format := "%s is %v; want %v"
	if _, ok := any(got).(string); ok {
		format = "%s is %q; want %q"
	}
	t.Errorf(format, what, got, want)
}

func sameTime(t tb, what string, got, want time.Time) {
	t.Helper()
	if !got.Equal(want) {
		t.Errorf("%s is %v; want %v", what, got, want)
	}
}

// text writes a value for people, and for comparison.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	return string(b)
}
