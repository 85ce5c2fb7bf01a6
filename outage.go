package breaker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A StoreErrorPolicy says what becomes of a call while the store fails.
type StoreErrorPolicy uint8

const (
	// FailOpen makes the call unprotected. The default: a store that fails
	// must not take its users down.
	FailOpen StoreErrorPolicy = iota

	// FailClosed returns the *StoreError and does not make the call.
	FailClosed

	// FailLocal protects the call with circuits private to this process,
	// which begin closed and are forgotten once the store is back. Their
	// transitions are this process's own affair: no Observer is told.
	FailLocal
)

// How long a store that failed is left alone.
const (
	minRest = 100 * time.Millisecond
	maxRest = 5 * time.Second
)

var (
	errResting = errors.New("the store failed a moment ago and is left alone")
	errTooSlow = errors.New("the store did not answer within StoreTimeout")
)

// An outage keeps calls from waiting for a store that fails. After a failure
// the store is left alone for a while that doubles from minRest to maxRest;
// then one caller at a time tries it, until one gets an answer.
type outage struct {
	notes *notifier

	// prove, if set, shows that the server can write circuits such as that of
	// key. It may read and be unable to write, full or read-only: a read that
	// works must not end the outage.
	prove func(ctx context.Context, key string) error

	// down is false while the store is well: then a call need look at nothing
	// else. It is written under mu.
	down atomic.Bool

	mu     sync.Mutex
	since  time.Time
	rest   time.Duration
	next   time.Time // when the store may be tried again
	trying bool
	local  *MemoryStore // of FailLocal; nil: none needed yet

	// deadlines are of steps taken on the caller's own goroutine. They come last:
	// each such step writes them, and down is to be in another cache line.
	deadlines deadlines
}

// enter reports whether the store may be asked, and whether that is a trial of
// one that failed. Each enter that may is followed by one leave.
func (o *outage) enter() (trial, ok bool) {
	if !o.down.Load() {
		return false, true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.down.Load() {
		return false, true
	}
	if o.trying || time.Now().Before(o.next) {
		return false, false
	}
	o.trying = true
	return true, true
}

// leave says how it went. What began before the store failed says nothing
// about how it is now.
func (o *outage) leave(trial bool, err error) {
	// An unreadable record is one circuit's trouble, not the store's.
	failed := err != nil && !contains(err, errRecord)
	if !trial && !failed {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case trial && !failed:
		o.end()
	case trial:
		o.trying = false
		o.rest = min(2*o.rest, maxRest)
		o.next = time.Now().Add(o.rest)
	case !o.down.Load():
		o.since, o.rest = time.Now(), minRest
		o.next = o.since.Add(minRest)
		o.local = nil // what a straggler of the last outage left
		o.down.Store(true)
		o.notes.degraded(err)
	}
}

// end requires o.mu.
func (o *outage) end() {
	o.trying, o.local = false, nil
	o.down.Store(false)
	o.notes.recovered(time.Since(o.since))
}

// fallbackStore returns the circuits of FailLocal for this outage.
func (o *outage) fallbackStore() *MemoryStore {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.local == nil {
		o.local = NewMemoryStore(MemoryConfig{})
	}
	return o.local
}

// A step is one request to the store. It is bounded by limit even where the
// store does not heed its context: then its goroutine stays behind until the
// store lets go of it.
type step struct {
	op, key string
	limit   time.Duration
	spent   time.Duration // of limit, beforehand: its caller waits so much less, and it goes on alone
	inline  bool          // do ends within limit by itself: no goroutine, and a caller whose ctx ends waits for it
	do      func(context.Context) error

	proven bool // where it is the trial of a store that failed, outage.prove is done first

	// late, if set, undoes what do did after nobody waited for it any more.
	late func()
}

// ask takes a step, unless the store is being left alone.
func (o *outage) ask(ctx context.Context, s step) error {
	trial, ok := o.enter()
	if !ok {
		return &StoreError{s.op, s.key, errResting}
	}
	if do := s.do; trial && s.proven && o.prove != nil {
		s.do = func(ctx context.Context) error {
			if err := o.prove(ctx, s.key); err != nil {
				return err
			}
			return do(ctx)
		}
	}
	judge := func(err error) { o.leave(trial, err) }
	if s.inline {
		return s.runInline(ctx, o.notes, &o.deadlines, judge)
	}
	return s.run(ctx, o.notes, judge)
}

// run takes the step. It returns nil, the error of a ctx that ended meanwhile,
// or a *StoreError. judge is called once, with how the store did: a caller that
// can't wait any longer is no sign of a store that fails. Close waits for the
// step, and for what undoes it.
func (s *step) run(ctx context.Context, n *notifier, judge func(error)) error {
	began := n.beginStep()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limit)
	done := make(chan error) // not buffered: do's end is taken, or it is late
	gone := make(chan struct{})
	go func() {
		defer n.endStep(began)
		defer cancel()
		err := s.guarded(bounded)
		if err != nil && bounded.Err() != nil {
			err = fmt.Errorf("%w: %v", errTooSlow, err)
		}
		select {
		case done <- err:
		case <-gone:
			s.undo(err)
		}
	}()

	callerDone := ctx.Done()
	if ctx.Err() != nil {
		callerDone = nil // fn is to see for itself
	}
	var tired <-chan time.Time
	if s.spent > 0 {
		timer := time.NewTimer(s.limit - s.spent)
		defer timer.Stop()
		tired = timer.C
	}
	wait := func(callerDone <-chan struct{}, tired <-chan time.Time) (err error, answered bool) {
		select {
		case err := <-done:
			return err, true
		case <-callerDone:
			return ctx.Err(), false
		case <-tired:
			return &StoreError{s.op, s.key, errTooSlow}, false
		case <-bounded.Done():
			return errTooSlow, true
		}
	}
	err, answered := wait(callerDone, tired)
	if !answered {
		waiting := n.beginStep()
		go func() {
			defer n.endStep(waiting)
			late, _ := wait(nil, nil)
			close(gone)
			judge(late)
			s.undo(late)
		}()
		return err
	}
	close(gone)
	judge(err)
	if err != nil {
		return &StoreError{s.op, s.key, err}
	}
	return nil
}

// runInline takes the step on the caller's own goroutine. It returns what run
// does, but later where ctx ends meanwhile.
func (s *step) runInline(ctx context.Context, n *notifier, d *deadlines, judge func(error)) error {
	defer n.endStep(n.beginStep())
	dead := ctx.Err() != nil // fn is to see for itself
	bounded := d.begin(context.WithoutCancel(ctx), s.limit)
	defer d.end(bounded)
	err := errNotReturned // if the client ends the goroutine
	defer func() { judge(err) }()
	if err = s.guarded(bounded); err != nil && bounded.late() {
		err = fmt.Errorf("%w: %v", errTooSlow, err)
	}
	if gone := ctx.Err(); gone != nil && !dead {
		return gone
	}
	if err != nil {
		return &StoreError{s.op, s.key, err}
	}
	return nil
}

// undo undoes what do did, if it did it.
func (s *step) undo(err error) {
	if err == nil && s.late != nil {
		s.late()
	}
}

func (s *step) guarded(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the store panicked: %v", v)
		}
	}()
	return s.do(ctx)
}
