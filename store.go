package breaker

import (
	"context"
	"iter"
	"time"
)

// A Store keeps circuits. It decides and updates atomically, on its own
// clock; a Breaker never reads a circuit to write it back.
//
// All methods may be called concurrently. Whoever writes a Store over
// something transactional loads a Circuit, calls the method of the same name
// and saves it. The folder storetest has the suite that every Store must pass.
//
// p is always a Policy that New accepted, its defaults filled in. An error
// other than a *RejectedError from Acquire means that the store failed.
type Store interface {
	// Acquire decides whether one call may run: a Permit to hand to Report, or
	// a *RejectedError. Permit.Transitions may be set in both cases.
	Acquire(ctx context.Context, key string, p Policy) (Permit, error)

	// Report takes in the result of a permitted call, once, and returns the
	// transition it made, nil when it made none.
	Report(ctx context.Context, key string, p Policy, pm Permit, r Result) (*Transition, error)

	// Snapshot reads a circuit and changes nothing. A key never heard of is a
	// closed circuit.
	Snapshot(ctx context.Context, key string, p Policy) (Snapshot, error)
}

// A Controller is a Store whose circuits an operator can steer. by says who
// asks, for the history. Each returns the transition made, nil when the
// circuit looks as before to its callers.
type Controller interface {
	Force(ctx context.Context, key string, p Policy, o Override) (*Transition, error)
	ClearOverride(ctx context.Context, key string, p Policy, by string) (*Transition, error)
	Reset(ctx context.Context, key string, p Policy, by string) (*Transition, error)
}

// A Lister is a Store that knows the names of its circuits, healthy ones
// included. Names come in no order, each once.
type Lister interface {
	Keys(ctx context.Context) iter.Seq2[string, error]
}

// A Historian is a Store that keeps the last events of each circuit, newest
// first.
type Historian interface {
	History(ctx context.Context, key string) ([]Event, error)
}

// A Permit is the leave to make one call. Stores make it; the Breaker hands it
// back with the result.
type Permit struct {
	// Generation of the circuit the permit is for. A result from an earlier
	// generation changes nothing.
	Generation uint64

	// Probe is the owner token of a probe's lease; empty for other calls.
	Probe string

	// Forced marks a call let through by an override, whose result changes
	// nothing.
	Forced bool

	// Transitions are the state changes that Acquire made, in order: an open
	// circuit whose cooldown is over turns half-open with its first probe.
	Transitions []Transition

	// streak names the run of failures the circuit showed when the permit was
	// given (0: none). Only RedisStore needs it: a success then has something
	// to clear.
	streak uint64

	// read is when that was. Only RedisStore needs it: the success of a long
	// call may have something to clear that began since. A pointer, since a
	// permit is made for each call and this is hardly ever read.
	read *time.Time
}

// A Result is what came of a permitted call.
type Result struct {
	Outcome    Outcome
	Elapsed    time.Duration // 0 unless the policy has a SlowRate or there is an Observer
	RetryAfter time.Duration // asked for by the server; 0: nothing asked
	Error      string        // of a Failure: valid UTF-8, at most MaxErrorLength bytes
	Instance   string        // the process

	// later runs store work that must not hold up the call. nil: such work is
	// left to whoever comes next.
	later *background
}

type instanceKey struct{}

// InstanceOf returns the Config.Instance of the Breaker that called the store
// with ctx; empty outside of such a call.
func InstanceOf(ctx context.Context) string {
	name, _ := ctx.Value(instanceKey{}).(string)
	return name
}

func withInstance(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, instanceKey{}, name)
}

// named sets the key that a Circuit does not know.
func named(t *Transition, key string) *Transition {
	if t != nil {
		t.Key = key
	}
	return t
}

func nameAll(ts []Transition, key string) {
	for i := range ts {
		ts[i].Key = key
	}
}

// An Override is an operator's word on a circuit, above all it knows itself.
type Override struct {
	State  State         `json:"state"`            // StateOpen: no call runs; StateClosed: all run, nothing trips
	For    time.Duration `json:"-"`                // asked of Force; 0: until cleared
	Reason string        `json:"reason,omitempty"` // shown to whoever asks why
	By     string        `json:"by,omitempty"`     // who; default: WithOperator's name, else the Breaker's Instance
	Until  time.Time     `json:"until,omitzero"`   // filled in by the store; zero: until cleared
}

// A Snapshot is one circuit as the store has it now. Times are the store's,
// zero when they don't apply.
type Snapshot struct {
	Key        string `json:"key"`
	State      State  `json:"state"` // the override's, if there is one; an open circuit past its cooldown reads half-open
	Generation uint64 `json:"generation"`

	// ConsecutiveFailures keeps its value while the circuit is open. The
	// window counts what the policy's rules need: failures under
	// WindowFailures, all calls under a rate; of an open circuit, as it last opened.
	ConsecutiveFailures int `json:"consecutive_failures"`
	WindowCalls         int `json:"window_calls"`
	WindowFailures      int `json:"window_failures"`
	WindowSlow          int `json:"window_slow"`

	OpenedAt  time.Time `json:"opened_at,omitzero"`
	RetryAt   time.Time `json:"retry_at,omitzero"`
	ChangedAt time.Time `json:"changed_at,omitzero"`

	ProbesInFlight int `json:"probes_in_flight"`
	ProbeSuccesses int `json:"probe_successes"`
	Reopens        int `json:"reopens"` // failed recoveries since it was last closed

	LastFailure *Event    `json:"last_failure,omitempty"`
	Override    *Override `json:"override,omitempty"` // nil: none
	Policy      Policy    `json:"policy"`
}

// Counts are the numbers a circuit had just before a transition.
type Counts struct {
	ConsecutiveFailures int `json:"consecutive_failures"`
	WindowCalls         int `json:"window_calls"`
	WindowFailures      int `json:"window_failures"`
	WindowSlow          int `json:"window_slow"`
	ProbeSuccesses      int `json:"probe_successes"`
}

// A Transition is a change of state that callers can see.
type Transition struct {
	Key        string    `json:"key,omitempty"`
	From       State     `json:"from"`
	To         State     `json:"to"`
	Generation uint64    `json:"generation"` // the one it began
	At         time.Time `json:"at"`
	Cause      string    `json:"cause"` // one of the Cause constants
	Counts     Counts    `json:"counts"`
	RetryAt    time.Time `json:"retry_at,omitzero"` // of an open circuit
	Instance   string    `json:"instance,omitempty"`
}

// What Transition.Cause says.
const (
	CauseConsecutiveFailures = "consecutive_failures"
	CauseWindowFailures      = "window_failures"
	CauseFailureRate         = "failure_rate"
	CauseSlowRate            = "slow_rate"
	CauseCooldownOver        = "cooldown_over"
	CauseProbeFailed         = "probe_failed"
	CauseProbesSucceeded     = "probes_succeeded"
	CauseForced              = "forced"
	CauseOverrideCleared     = "override_cleared"
	CauseOverrideEnded       = "override_ended"
	CauseReset               = "reset"
)

// An EventKind says what an Event tells of.
type EventKind string

// The kinds of Event, and which of its fields each sets beside At.
const (
	EventFailure    EventKind = "failure"    // counted while closed: Error, Instance
	EventProbe      EventKind = "probe"      // a settled probe: Outcome, Error, Instance
	EventTransition EventKind = "transition" // Transition, Instance
	EventOverride   EventKind = "override"   // Override, By
	EventCleared    EventKind = "cleared"    // an override was taken back: By
	EventReset      EventKind = "reset"      // By
)

// An Event is one line of a circuit's history.
type Event struct {
	At         time.Time   `json:"at"`
	Kind       EventKind   `json:"kind"`
	Error      string      `json:"error,omitempty"`
	Instance   string      `json:"instance,omitempty"`
	By         string      `json:"by,omitempty"`
	Outcome    Outcome     `json:"outcome,omitempty"`
	Transition *Transition `json:"transition,omitempty"`
	Override   *Override   `json:"override,omitempty"`
}

// Limits on what callers hand in.
const (
	MaxKeyLength   = 1024 // bytes of a key; a longer one is an ErrConfig
	MaxErrorLength = 256  // bytes kept of an error's text, a reason or a name
	MaxHistory     = 100  // events kept of a circuit
)
