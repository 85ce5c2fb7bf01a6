package breaker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A diffWorld is one sequence being played.
type diffWorld struct {
	*diffRig
	clock     diffClock
	policy    Policy
	steps     int
	started   int             // processes
	processes [][]diffProcess // by slot, then by side
	permits   map[int]*diffPermit
	held      []int // permits not reported yet
	told      []int
}

// A diffPermit is what the sides gave for one call.
type diffPermit struct {
	process int
	bySide  []Permit
}

// A diffAnswer is what can be seen of one side after a step.
type diffAnswer struct {
	Permit   Permit
	Rejected *RejectedError
	Made     *Transition
	Snapshot *Snapshot // if asked for
	History  []Event   // if a snapshot was asked for
	Circuit  Circuit
}

func (w *diffWorld) begin(settle time.Duration) error {
	w.clock.now = w.start()
	w.clock.local = w.clock.now
	for _, side := range w.sides {
		if err := side.begin(&w.clock, settle); err != nil {
			return err
		}
	}
	w.processes = make([][]diffProcess, diffProcesses)
	for i := range w.processes {
		w.restart(i)
	}
	return nil
}

// restart puts a new process, which knows nothing, in the place of another.
func (w *diffWorld) restart(slot int) {
	w.started++
	w.processes[slot] = nil
	for _, side := range w.sides {
		w.processes[slot] = append(w.processes[slot], side.join(fmt.Sprintf("process%d", w.started)))
	}
}

// step has every side take a step, and compares them.
func (w *diffWorld) step(s diffStep) error {
	w.steps++
	w.clock.jitter, w.clock.twice = s.jitter, s.twice
	switch s.do {
	case "wait":
		w.clock.now = w.clock.now.Add(s.wait)
		w.clock.local = w.clock.local.Add(max(s.wait, 0))
	case "policy":
		w.policy = s.policy
	case "restart":
		w.restart(s.process)
	case "acquire":
		w.permits[s.permit] = &diffPermit{process: s.process}
	}
	before, err := w.sides[0].circuit()
	if err != nil {
		return err
	}
	before = clone(before)
	var answers []diffAnswer
	for i, side := range w.sides {
		a, err := w.take(s, i)
		if err == nil {
			a.Circuit, err = side.circuit()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", w.names[i], err)
		}
		answers = append(answers, a)
	}
	switch {
	case s.do == "acquire" && answers[0].Rejected == nil:
		w.held = append(w.held, s.permit)
	case s.do == "report":
		w.held = slices.DeleteFunc(w.held, func(id int) bool { return id == s.permit })
		w.told = append(w.told, s.permit)
	}
	if err := w.compare(answers); err != nil {
		return err
	}
	return w.sound(s, before, &answers[0])
}

// take has one side take a step.
func (w *diffWorld) take(s diffStep, side int) (a diffAnswer, err error) {
	process := w.processes[s.process][side]
	ctx := withInstance(context.Background(), fmt.Sprintf("host %d, \"ü\"", s.process))
	switch s.do {
	case "wait":
		err = w.sides[side].tick()
	case "lose":
		err = w.sides[side].lose()
	case "acquire":
		a.Permit, err = process.Acquire(ctx, diffKey, w.policy)
		if errors.As(err, &a.Rejected) {
			err = nil
		}
		if a.Rejected != nil || a.Permit.Probe != "" || a.Permit.Forced {
			a.Permit.streak = 0 // nothing reads it
		}
		a.Permit.read = nil // of no clock that the sides share
		w.permits[s.permit].bySide = append(w.permits[s.permit].bySide, a.Permit)
		if a.Rejected != nil {
			w.permits[s.permit].bySide = nil
		}
	case "report":
		if pm := w.permits[s.permit]; pm != nil && len(pm.bySide) > 0 { // its acquire may have been left out
			a.Made, err = process.Report(ctx, diffKey, w.policy, pm.bySide[side], s.result)
		}
	case "speak":
		a.Made, err = process.speak(ctx, diffKey, w.policy)
	case "force":
		a.Made, err = process.Force(ctx, diffKey, w.policy, s.override)
	case "clear":
		a.Made, err = process.ClearOverride(ctx, diffKey, w.policy, s.override.By)
	case "reset":
		a.Made, err = process.Reset(ctx, diffKey, w.policy, s.override.By)
	case "snapshot":
		var snap Snapshot
		snap, err = process.Snapshot(ctx, diffKey, w.policy)
		a.Snapshot = &snap
		if err == nil {
			a.History, err = w.sides[side].history(diffKey)
		}
	}
	return a, err
}

// end compares what is read at the end.
func (w *diffWorld) end() error {
	var answers []diffAnswer
	for i := range w.sides {
		a, err := w.take(diffStep{do: "snapshot"}, i)
		if err != nil {
			return fmt.Errorf("at the end, %s: %w", w.names[i], err)
		}
		answers = append(answers, a)
	}
	if err := w.compare(answers); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}

	var again Circuit
	c, _ := w.sides[0].circuit()
	text, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(text, &again)
	}
	if diff := differences(c, again); err != nil || diff != nil {
		return fmt.Errorf("the circuit in JSON: %v\n%s", err, describe("before", "after", diff))
	}
	return nil
}

func (w *diffWorld) compare(answers []diffAnswer) error {
	model := answers[0]
	model.Circuit.Log = nil // compared as History
	for i, other := range answers[1:] {
		other.Circuit.Log = nil
		if diff := differences(model, other); diff != nil {
			return errors.New("the sides differ\n" + describe("model", w.names[i+1], diff))
		}
	}
	return nil
}

// sound checks what must hold of the model whatever the other sides say.
func (w *diffWorld) sound(s diffStep, before Circuit, a *diffAnswer) error {
	now, c := w.clock.now.UnixMilli(), a.Circuit
	before.dropLapsed(now)
	after := clone(c)
	after.dropLapsed(now)
	limit := len(before.Leases)
	if a.Permit.Probe != "" {
		limit = w.policy.MaxProbes
	}
	switch {
	case len(after.Leases) > limit:
		return fmt.Errorf("%d probes are under way, not at most %d", len(after.Leases), limit)
	case c.Generation < before.Generation && s.do != "lose":
		return fmt.Errorf("generation %d comes after %d", c.Generation, before.Generation)
	case len(c.Log) > MaxHistory:
		return fmt.Errorf("%d events are kept", len(c.Log))
	case a.Rejected != nil && a.Rejected.RetryAfter < 0:
		return fmt.Errorf("RetryAfter is %v", a.Rejected.RetryAfter)
	case s.do == "wait": // when there may be something new to see
		return w.unchanged(c)
	}
	return nil
}

// unchanged checks that a snapshot, whatever its reader knows, changes nothing.
func (w *diffWorld) unchanged(c Circuit) error {
	c.Log = nil
	kept := clone(c)
	all := Evidence{Process: "watcher", Generation: c.Generation, HasSucceeded: true, Tallies: []Tally{{0, 1}}}
	m := Moment{Now: w.clock.now, Settle: 150 * time.Millisecond, Evidence: &all}
	first := c.Snapshot(m, w.policy)
	if diff := differences(first, c.Snapshot(m, w.policy)); diff != nil {
		return errors.New("two snapshots differ\n" + describe("first", "second", diff))
	}
	if diff := differences(kept, c); diff != nil {
		return errors.New("a snapshot changed the circuit\n" + describe("before", "after", diff))
	}
	return nil
}

// clone copies c deeply, but for the log's events, which nothing changes.
func clone(c Circuit) Circuit {
	c.Counted.Failures = slices.Clone(c.Counted.Failures)
	c.Counted.Buckets = slices.Clone(c.Counted.Buckets)
	c.Leases = slices.Clone(c.Leases)
	c.Log = slices.Clone(c.Log)
	return c
}

// A difference is where two values of one type differ.
type difference struct {
	path string
	a, b any
}

func describe(a, b string, diff []difference) string {
	var text strings.Builder
	for _, d := range diff {
		fmt.Fprintf(&text, "  %s: %s %v, %s %v\n", d.path, a, d.a, b, d.b)
	}
	return text.String()
}

// differences compares two values of one type. A slice that is empty equals
// one that is nil.
func differences[T any](a, b T) []difference {
	return differing(reflect.ValueOf(a), reflect.ValueOf(b))
}

func differing(a, b reflect.Value) (all []difference) {
	within := func(name func() string, a, b reflect.Value) {
		for _, d := range differing(a, b) {
			d.path = name() + d.path
			all = append(all, d)
		}
	}
	switch kind := a.Kind(); {
	case kind == reflect.Pointer && !a.IsNil() && !b.IsNil():
		return differing(a.Elem(), b.Elem())
	case kind == reflect.Pointer && a.IsNil() && b.IsNil():
		return nil
	case kind == reflect.Slice && a.Len() == b.Len():
		for i := range a.Len() {
			within(func() string { return fmt.Sprintf("[%d]", i) }, a.Index(i), b.Index(i))
		}
		return all
	case kind == reflect.Struct && a.Type() != reflect.TypeFor[time.Time]():
		for i := range a.NumField() {
			within(func() string { return "." + a.Type().Field(i).Name }, a.Field(i), b.Field(i))
		}
		return all
	case kind != reflect.Pointer && kind != reflect.Slice && a.Equal(b):
		return nil
	}
	return []difference{{"", shown(a), shown(b)}}
}

func shown(v reflect.Value) any {
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if v.Kind() == reflect.String {
		return strconv.Quote(v.String())
	}
	return fmt.Sprintf("%+v", v)
}
