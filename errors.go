package breaker

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// The sentinels that errors of this package match with errors.Is.
var (
	// ErrOpen: the circuit is open, or held open by an operator; the call was not made.
	ErrOpen = errors.New("breaker: circuit open")

	// ErrBusy: the circuit is half-open and every probe slot is taken; the call was not made.
	ErrBusy = errors.New("breaker: circuit half-open, every probe slot is taken")

	// ErrStore: the store of the circuits failed. The dependency itself may be well.
	ErrStore = errors.New("breaker: store failed")

	// ErrConfig: what the program asked for makes no sense: an impossible
	// Policy, a nil function, a key longer than MaxKeyLength.
	ErrConfig = errors.New("breaker: invalid configuration")
)

// errFull: a MemoryStore has no room for an operator's word on a new key.
var errFull = errors.New("every circuit of the store holds something worth keeping; raise MemoryConfig.MaxKeys")

// A RejectedError says that a call was not made, and when to come back.
// It is ErrOpen or ErrBusy, never the dependency's own error. To try again
// before RetryAfter has passed is of no use while the circuit is open; while it
// is half-open, RetryAfter is the latest time a slot frees, mostly sooner.
// Callers may share one: it is not to be changed.
type RejectedError struct {
	Key   string
	State State // StateOpen or StateHalfOpen

	// RetryAfter is the time left until a call may be made: the rest of the
	// cooldown, of the timed override, or of the earliest probe's lease. It is
	// never negative. A circuit forced open for good knows no such time; it
	// says its Cooldown, a fair while to wait before asking again.
	RetryAfter time.Duration

	// LastError is the text of the failure last counted; empty if none is known.
	LastError string
}

// refusals makes the rejections of one circuit. Calls that are rejected in the
// same millisecond share one: a flood of them then leaves nothing to collect.
type refusals struct {
	state     State
	lastError string
	last      atomic.Pointer[RejectedError]
}

func (r *refusals) after(key string, left time.Duration) *RejectedError {
	if e := r.last.Load(); e != nil && e.RetryAfter == left {
		return e
	}
	e := &RejectedError{Key: key, State: r.state, RetryAfter: left, LastError: r.lastError}
	r.last.Store(e)
	return e
}

func (e *RejectedError) Error() string {
	what := "circuit %q is open; retry in %v"
	if e.State == StateHalfOpen {
		what = "circuit %q is being probed; retry in %v"
	}
	msg := fmt.Sprintf("breaker: "+what, e.Key, e.RetryAfter)
	if e.LastError != "" {
		msg += "; last failure: " + e.LastError
	}
	return msg
}

// Is reports whether target is the sentinel of this rejection.
func (e *RejectedError) Is(target error) bool {
	if e.State == StateHalfOpen {
		return target == ErrBusy
	}
	return target == ErrOpen
}

// A StoreError says that the store could not do its step for a key. It is
// ErrStore, and unwraps to the cause.
type StoreError struct {
	Op  string // "acquire", "report", "snapshot", ...
	Key string
	Err error
}

func (e *StoreError) Error() string {
	return fmt.Sprintf("breaker: store: %s %q: %v", e.Op, e.Key, e.Err)
}

// Is reports whether target is ErrStore.
func (e *StoreError) Is(target error) bool { return target == ErrStore }

// Unwrap returns the store's own error.
func (e *StoreError) Unwrap() error { return e.Err }

// RetryAfter returns how long a queue worker should wait before it offers a
// rejected call again, and whether err is, or wraps, such a rejection. It is
// never negative.
func RetryAfter(err error) (time.Duration, bool) {
	var rejected *RejectedError
	if !errors.As(err, &rejected) {
		return 0, false
	}
	return max(rejected.RetryAfter, 0), true
}

// configError names one wrong field or argument; it is ErrConfig.
func configError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
}
