package breaker

import (
	"sync"
	"time"
)

// A ledger is what this process remembers, for nothing, of one circuit that is
// kept elsewhere: the source of its Evidence. The zero ledger knows nothing.
type ledger struct {
	mu         sync.Mutex
	generation uint64 // the one it speaks of, as last read from the store
	streak     int    // own failures in a row
	failedAt   time.Time
	succeeded  time.Time
	spoken     uint64 // the streak that a success of ours was last reported to have ended
	tallies    []ledgerTally

	recorded  bool      // the store has a record of the circuit
	unhealthy bool      // it was not simply closed when last read
	telling   time.Time // until then, somebody is about to tell the tallies
	namedAt   time.Time
}

// A ledgerTally counts successes that ended from first to last.
type ledgerTally struct {
	first, last time.Time
	calls       int
}

// saw takes in what a read of the circuit showed. Another generation makes
// what was counted in the last one void.
func (l *ledger) saw(generation uint64, recorded, healthy bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if generation != l.generation {
		l.generation, l.streak, l.spoken, l.tallies = generation, 0, 0, nil
	}
	l.recorded, l.unhealthy = recorded, !healthy
}

// healthy reports whether the circuit was simply closed when last read.
func (l *ledger) healthy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.unhealthy
}

// turned says that a report of ours changed the circuit's state.
func (l *ledger) turned(healthy bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unhealthy = !healthy
}

// failed counts a failure of our own.
func (l *ledger) failed(generation uint64, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if generation == l.generation {
		l.streak++
		l.failedAt = now
	}
}

// success counts a success and returns whether the store must hear of it:
// because it ends a streak that the permit showed and that no success of ours
// has been reported to end before.
func (l *ledger) success(pm *Permit, now time.Time) (mustTell bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if pm.Generation != l.generation {
		return false
	}
	l.streak, l.succeeded = 0, now
	if pm.streak == 0 || pm.streak == l.spoken {
		return false
	}
	l.spoken = pm.streak
	return true
}

// succeededFreely counts a success of a call that had no permit, and so no
// generation: it ends a streak of ours in any.
func (l *ledger) succeededFreely(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streak, l.succeeded = 0, now
}

// tally keeps a success for the shared window. It returns true if the store
// should be told of the tallies, and nobody has been about to for patience.
func (l *ledger) tally(generation uint64, now time.Time, window, patience time.Duration) (tell bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if generation != l.generation {
		return false
	}
	if n := len(l.tallies); n > 0 && now.Sub(l.tallies[n-1].first) < window/windowBuckets {
		l.tallies[n-1].calls++
		l.tallies[n-1].last = now
	} else {
		if n > windowBuckets { // the oldest has left the window by now
			l.tallies = append(l.tallies[:0], l.tallies[1:]...)
		}
		l.tallies = append(l.tallies, ledgerTally{now, now, 1})
	}
	if !l.recorded || now.Before(l.telling) {
		return false
	}
	l.telling = now.Add(patience) // should the store fail then, the next success tries again
	return true
}

// evidence returns what there is to tell, and takes the tallies as told.
func (l *ledger) evidence(process string, now time.Time) Evidence {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := Evidence{Process: process, Generation: l.generation, Streak: l.streak}
	if !l.succeeded.IsZero() {
		e.HasSucceeded, e.SinceSuccess = true, now.Sub(l.succeeded)
	}
	for _, t := range l.tallies {
		e.Tallies = append(e.Tallies, Tally{Age: now.Sub(t.last), Calls: t.calls})
	}
	l.tallies, l.telling = nil, time.Time{}
	return e
}

// unnamed reports whether the circuit's name is to be said again, and takes it
// as said.
func (l *ledger) unnamed(now time.Time, every time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.namedAt.IsZero() && now.Sub(l.namedAt) < every {
		return false
	}
	l.namedAt = now
	return true
}

// idle reports whether nothing would be lost with the ledger but the time of
// the last success, or a streak that is an hour old.
func (l *ledger) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return (l.streak == 0 || time.Since(l.failedAt) > time.Hour) && len(l.tallies) == 0
}
