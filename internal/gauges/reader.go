package gauges

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

const (
	maxListed  = 100_000 // names taken from the store in one reading
	readers    = 8       // circuits read at once
	maxFailed  = 3       // store errors after which a reading gives up
	endedAfter = 2       // readings that hang this many limits are not waited for
)

// A Reader reads the circuits of a Breaker for a scrape, from the store that
// all share, bounded in time and number. Its methods may be called
// concurrently: scrapes at the same time share one reading, and one that hangs
// is never joined by a second.
type Reader struct {
	Limit time.Duration // the longest that Read takes

	// Choose is told which circuits there are (complete: all of them, else
	// some), and returns those to read.
	Choose func(listed map[string]struct{}, complete bool) []string

	breaker atomic.Pointer[breaker.Breaker]
	mu      sync.Mutex
	flight  *flight
}

// A Reading is what one scrape saw.
type Reading struct {
	Snapshots []breaker.Snapshot // of the circuits that were read
	Listed    int                // circuits that the store knows
	Complete  bool               // nothing failed, and nothing was left out
}

type flight struct {
	began time.Time
	done  chan struct{}

	mu      sync.Mutex
	reading Reading
	failed  int
}

// Watch sets the Breaker whose circuits are read; nil: none.
func (r *Reader) Watch(b *breaker.Breaker) { r.breaker.Store(b) }

// Views are those of the Breaker; zero if there is none.
func (r *Reader) Views() breaker.ViewStats {
	if b := r.breaker.Load(); b != nil {
		return b.Views()
	}
	return breaker.ViewStats{}
}

// Read returns what could be read within Limit. ok is false if there is no
// Breaker to read from.
func (r *Reader) Read() (reading Reading, ok bool) {
	b := r.breaker.Load()
	if b == nil {
		return Reading{}, false
	}
	f, hangs := r.join(b)
	if !hangs {
		timer := time.NewTimer(r.Limit)
		defer timer.Stop()
		select {
		case <-f.done:
		case <-timer.C:
		}
	}
	return f.sofar(), true
}

// join returns the reading under way, or a new one.
func (r *Reader) join(b *breaker.Breaker) (f *flight, hangs bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.flight; f != nil {
		select {
		case <-f.done:
		default:
			if time.Since(f.began) > endedAfter*r.Limit {
				return &flight{}, true
			}
			return f, false
		}
	}
	r.flight = &flight{began: time.Now(), done: make(chan struct{})}
	go r.read(b, r.flight)
	return r.flight, false
}

func (f *flight) sofar() Reading {
	f.mu.Lock()
	defer f.mu.Unlock()
	reading := f.reading
	reading.Snapshots = append([]breaker.Snapshot(nil), reading.Snapshots...)
	return reading
}

// read lists the circuits and reads those chosen, a few at once.
func (r *Reader) read(b *breaker.Breaker, f *flight) {
	defer close(f.done)
	ctx, cancel := context.WithTimeout(context.Background(), r.Limit)
	defer cancel()
	listed, complete, failed := list(ctx, b)
	chosen := r.Choose(listed, complete && !failed)
	f.mu.Lock()
	f.reading.Listed = len(listed)
	f.mu.Unlock()
	if failed {
		return // a store that can't say what it has is not asked for each
	}

	keys := make(chan string)
	var work sync.WaitGroup
	for range min(readers, len(chosen)) {
		work.Go(func() {
			for key := range keys {
				snapshot, err := b.Snapshot(ctx, key)
				f.note(key, snapshot, err)
			}
		})
	}
	all := true
	for _, key := range chosen {
		if ctx.Err() != nil || f.gaveUp() {
			all = false
			break
		}
		keys <- key
	}
	close(keys)
	work.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reading.Complete = all && f.failed == 0 && len(f.reading.Snapshots) == len(chosen)
}

// list returns the circuits there are. A store that can't list them knows
// none: complete is then false, and so is failed.
func list(ctx context.Context, b *breaker.Breaker) (listed map[string]struct{}, complete, failed bool) {
	listed = make(map[string]struct{})
	defer func() {
		if recover() != nil { // a store of the user's own; a scrape must not end the program
			complete, failed = false, true
		}
	}()
	for key, err := range b.Keys(ctx) {
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			return listed, false, false
		case err != nil || ctx.Err() != nil:
			return listed, false, true
		case len(listed) == maxListed:
			return listed, false, false
		}
		listed[key] = struct{}{}
	}
	return listed, true, false
}

func (f *flight) note(key string, s breaker.Snapshot, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.failed++
		return
	}
	s.Key = key
	f.reading.Snapshots = append(f.reading.Snapshots, s)
}

func (f *flight) gaveUp() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed >= maxFailed
}
