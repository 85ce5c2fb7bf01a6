package breaker

import (
	"context"
	"sync"
	"time"
)

// deadlines gives steps a context that ends. Nearly all steps are over long
// before, and to start and stop a timer for each costs a tenth of what the
// command itself does. So one timer serves them all: it fires when the first of
// those then under way would be late, and is set anew for the first that is left.
//
// The steps are kept in the order of their deadlines. Nearly always the next one
// is the last: what a store that hangs costs must not grow with their square.
type deadlines struct {
	mu          sync.Mutex
	first, last *stepContext // of those under way; nil: there are none
	timer       *time.Timer
	due         time.Time // when the timer fires; zero: it does not
}

// A stepContext ends at its deadline, or when the step is over.
type stepContext struct {
	context.Context // its values count
	deadline        time.Time
	done            chan struct{}
	err             error // once done is closed

	before, after *stepContext // under way; guarded by deadlines.mu
}

func (c *stepContext) Deadline() (time.Time, bool) { return c.deadline, true }
func (c *stepContext) Done() <-chan struct{}       { return c.done }

func (c *stepContext) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// late reports whether the deadline has passed, even if Done is still to say so.
func (c *stepContext) late() bool { return !time.Now().Before(c.deadline) }

// begin returns a context that ends after limit. It must be given to end.
func (d *deadlines) begin(values context.Context, limit time.Duration) *stepContext {
	c := &stepContext{Context: values, done: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.deadline = time.Now().Add(limit)
	d.insert(c)
	if d.due.IsZero() || c.deadline.Before(d.due) {
		d.set(c.deadline)
	}
	return c
}

// end ends a context, as its step is over. The timer is left as it is.
func (d *deadlines) end(c *stepContext) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.close(c, context.Canceled)
}

// expire ends those that are late.
func (d *deadlines) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.due = time.Time{}
	for d.first != nil && d.first.late() {
		d.close(d.first, context.DeadlineExceeded)
	}
	if d.first != nil {
		d.set(d.first.deadline)
	}
}

// set requires d.mu.
func (d *deadlines) set(due time.Time) {
	d.due = due
	if d.timer == nil {
		d.timer = time.AfterFunc(time.Until(due), d.expire)
		return
	}
	d.timer.Reset(time.Until(due))
}

// insert puts c after those that end before it. It requires d.mu.
func (d *deadlines) insert(c *stepContext) {
	before, after := d.last, (*stepContext)(nil)
	for before != nil && c.deadline.Before(before.deadline) {
		before, after = before.before, before
	}
	d.join(before, c)
	d.join(c, after)
}

// join has one follow the other, either of which may be nil: the end. It
// requires d.mu.
func (d *deadlines) join(one, other *stepContext) {
	if one == nil {
		d.first = other
	} else {
		one.after = other
	}
	if other == nil {
		d.last = one
	} else {
		other.before = one
	}
}

// close requires d.mu. What is closed stays as it is.
func (d *deadlines) close(c *stepContext, err error) {
	if c.err == nil {
		d.join(c.before, c.after)
		c.before, c.after = nil, nil
		c.err = err
		close(c.done)
	}
}
