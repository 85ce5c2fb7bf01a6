package breaker

import (
	"context"
	"sync"
	"time"
)

// background runs what a call leaves to be done later: settling a rule,
// telling tallies, saying names, refreshing views. Its timers and goroutines
// last as long as there is something to do, and none outlives close.
type background struct {
	run func(job) // does one job, and is bounded in time

	mu     sync.Mutex
	life   context.Context // of what serve runs; nil: nothing yet
	end    context.CancelFunc
	closed bool
	next   uint64
	due    map[uint64]dueJob
	work   sync.WaitGroup
}

type dueJob struct {
	timer *time.Timer
	job   job
}

// A job is store work for a key, under a name for errors. Or it is local: then
// it is done whatever the store's state, and told whether close does it.
type job struct {
	op, key string
	atClose bool // close does it early; without, close drops it
	aside   bool // it is not about circuits: its failure is no outage
	do      func(ctx context.Context) (*Transition, error)
	local   func(closing bool)
}

// after does j once d has passed. After close it does nothing and returns
// false, and so does a nil background.
func (b *background) after(d time.Duration, j job) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.work.Add(1)
	id := b.next
	b.next++
	timer := time.AfterFunc(d, func() {
		defer b.work.Done()
		switch {
		case !b.take(id):
		case j.local != nil:
			j.local(false)
		default:
			b.run(j)
		}
	})
	if b.due == nil {
		b.due = make(map[uint64]dueJob)
	}
	b.due[id] = dueJob{timer, j} // under mu: a timer that fires at once waits in take
	return true
}

// serve runs f on a goroutine of its own, until close ends its context. After
// close it does nothing and returns false, and so does a nil background.
func (b *background) serve(f func(ctx context.Context)) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	if b.life == nil {
		b.life, b.end = context.WithCancel(context.Background())
	}
	b.work.Go(func() { f(b.life) })
	return true
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
// is running any more; false, when that is not so within limit: a client that
// is connecting to a server that is frozen heeds nobody.
func (b *background) close(limit time.Duration) bool {
	b.mu.Lock()
	b.closed = true
	if b.end != nil {
		b.end()
	}
	due := b.due
	b.due = nil
	b.mu.Unlock()
	for _, d := range due {
		if d.timer.Stop() {
			b.work.Done() // its function will not run
		}
		switch {
		case d.job.local != nil:
			d.job.local(true)
		case d.job.atClose:
			b.run(d.job)
		}
	}
	idle := make(chan struct{})
	go func() {
		b.work.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return true
	case <-time.After(limit):
		return false
	}
}
