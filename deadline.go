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
type deadlines struct {
	mu    sync.Mutex
	steps map[*stepContext]struct{}
	timer *time.Timer
	due   time.Time // when the timer fires; zero: it does not
}

// A stepContext ends at its deadline, or when the step is over.
type stepContext struct {
	context.Context // its values count
	deadline        time.Time
	done            chan struct{}
	err             error // once done is closed
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
	c := &stepContext{Context: values, deadline: time.Now().Add(limit), done: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.steps == nil {
		d.steps = make(map[*stepContext]struct{})
	}
	d.steps[c] = struct{}{}
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
	for c := range d.steps {
		if c.late() {
			d.close(c, context.DeadlineExceeded)
		} else if d.due.IsZero() || c.deadline.Before(d.due) {
			d.due = c.deadline
		}
	}
	if !d.due.IsZero() {
		d.set(d.due)
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

// close requires d.mu. What is closed stays as it is.
func (d *deadlines) close(c *stepContext, err error) {
	if _, open := d.steps[c]; open {
		delete(d.steps, c)
		c.err = err
		close(c.done)
	}
}
