package breaker

import (
	"context"
	"sync"
	"time"
)

// background runs what a call leaves to be done later: settling a rule,
// telling tallies, saying names. Its timers and goroutines last as long as
// there is something to do, and none outlives close.
type background struct {
	run func(job) // does one job, and is bounded in time

	mu     sync.Mutex
	closed bool
	next   uint64
	due    map[uint64]dueJob
	work   sync.WaitGroup
}

type dueJob struct {
	timer *time.Timer
	job   job
}

// A job is store work for a key, under a name for errors.
type job struct {
	op, key string
	atClose bool // close does it early; without, close drops it
	aside   bool // it is not about circuits: its failure is no outage
	do      func(ctx context.Context) (*Transition, error)
}

// after does j once d has passed. After close it does nothing, and neither
// does a nil background.
func (b *background) after(d time.Duration, j job) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.work.Add(1)
	id := b.next
	b.next++
	timer := time.AfterFunc(d, func() {
		defer b.work.Done()
		if b.take(id) {
			b.run(j)
		}
	})
	if b.due == nil {
		b.due = make(map[uint64]dueJob)
	}
	b.due[id] = dueJob{timer, j} // under mu: a timer that fires at once waits in take
}

// take reports whether a job is still to be done, by whoever asks.
func (b *background) take(id uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.due[id]
	delete(b.due, id)
	return ok
}

// close ends all timers, does what must not be lost and returns when nothing
// is running any more.
func (b *background) close() {
	b.mu.Lock()
	b.closed = true
	due := b.due
	b.due = nil
	b.mu.Unlock()
	for _, d := range due {
		if d.timer.Stop() {
			b.work.Done() // its function will not run
		}
		if d.job.atClose {
			b.run(d.job)
		}
	}
	b.work.Wait()
}
