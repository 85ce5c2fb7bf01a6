package breaker

import (
	"sync"
	"sync/atomic"
	"time"
)

// A ledger is what this process remembers, for nothing, of one circuit that is
// kept elsewhere: the source of its Evidence. The zero ledger knows nothing.
type ledger struct {
	view    atomic.Pointer[view] // nil: the next call reads; written under mu
	failing atomic.Bool          // streak > 0; written under mu
	keys    []string             // names of the circuit's record and history; never changed
	stray   bool                 // nobody will find it again; never changed
	start   time.Time            // what the coarse clock of views counts from; never changed

	mu         sync.Mutex
	writes     uint64  // what we did or heard of that may have changed the circuit
	policy     *Policy // the last one asked under; nil: none yet
	generation uint64  // the one it speaks of, as last read from the store
	streak     int     // own failures in a row
	failedAt   time.Time
	succeeded  time.Time
	spoken     uint64 // the streak that a success of ours has ended, or is being reported to have
	tallies    []ledgerTally

	recorded  bool      // the store has a record of the circuit
	unhealthy bool      // it was not simply closed when last read
	telling   time.Time // until then, somebody is about to tell the tallies
	namedAt   time.Time
	announced time.Time // when something last was, of it, by another process
}

// A ledgerTally counts successes that ended from first to last.
type ledgerTally struct {
	first, last time.Time
	calls       int
}

// epoch is to be taken before a read is sent, and handed in with what it
// showed: one that came before an operation of ours, or an announcement, may be
// older than that, and must not become the view.
func (l *ledger) epoch() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writes
}

// wrote says that an operation of ours may have changed the circuit.
func (l *ledger) wrote() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes++
	l.replace(nil)
}

// heard says that another process changed the circuit.
func (l *ledger) heard(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes++
	l.replace(nil)
	l.announced = now
}

// calm reports whether all that happens to the circuit from at on is announced.
func (l *ledger) calm(at time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isCalm(at)
}

// isCalm requires l.mu.
func (l *ledger) isCalm(at time.Time) bool { return !at.Before(l.announced.Add(pushRestless)) }

// A sight is what a read of a circuit, or a decision on it, showed.
type sight struct {
	generation uint64
	recorded   bool   // the store has a record of it
	healthy    bool   // it is simply closed
	streak     uint64 // after a message of ours, when its run of failures began; 0: there is none
	changed    bool   // it may have been changed by what showed it
	view       *view  // to act on from now on; nil: none
	epoch      uint64 // as it was before
}

// saw takes in a sight and reports whether its view is the view now.
func (l *ledger) saw(s sight, p *Policy) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.policy = p
	kept := l.take(s)
	if s.streak == l.spoken { // our success came before it
		l.spoken = 0
	}
	if s.changed {
		l.writes++
		if !kept {
			l.replace(nil)
		}
	}
	return kept
}

// take requires l.mu. Another generation makes what was counted in the last
// one void. An answer that was overtaken by one of a later generation says
// nothing; with no operation between them, a record that was lost begins anew.
func (l *ledger) take(s sight) bool {
	if s.epoch != l.writes && s.generation < l.generation {
		return false
	}
	if s.generation != l.generation {
		l.generation, l.spoken, l.tallies = s.generation, 0, nil
		l.setStreak(0)
	}
	l.recorded, l.unhealthy = s.recorded, !s.healthy
	if s.epoch != l.writes {
		return false
	}
	l.replace(s.view)
	return s.view != nil
}

// replace puts v in place of the view, and keeps what was seen under the old
// one: that a call succeeded. It requires l.mu.
func (l *ledger) replace(v *view) {
	l.succeeded = l.lastSuccess()
	l.view.Store(v)
}

// lastSuccess is when a call last succeeded, at the least; zero if none did.
// The coarse clock may have stood still until the view was there, but no call
// that marked the view ended before it was read. It requires l.mu.
func (l *ledger) lastSuccess() time.Time {
	last := l.succeeded
	v := l.view.Load()
	if v == nil {
		return last
	}
	if tick := v.succeeded.Load(); tick != 0 {
		for _, at := range []time.Time{v.read, l.start.Add(time.Duration(tick))} {
			if at.After(last) {
				last = at
			}
		}
	}
	return last
}

// renew takes in a refreshed head. A circuit that is as it was keeps its
// verdict; one that is not is read anew by the next call.
func (l *ledger) renew(h head, epoch uint64, sent time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.view.Load()
	s := sight{generation: h.generation, recorded: h.recorded, healthy: h.closed, epoch: epoch}
	switch {
	case h.closed:
		s.view = h.view(sent)
	case old != nil && old.verdict != verdictRun && old.generation == h.generation && old.leases == h.leases &&
		sent.Sub(old.decided) < verdictMost:
		s.view = &view{verdict: old.verdict, decided: old.decided, generation: old.generation, until: old.until, left: old.left,
			leases: old.leases, refusals: refusals{state: old.refusals.state, lastError: old.refusals.lastError}, read: sent}
	}
	return l.take(s)
}

// drop drops the view, if it is v or v is nil.
func (l *ledger) drop(v *view) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v == nil || l.view.Load() == v {
		l.replace(nil)
	}
}

// setStreak requires l.mu.
func (l *ledger) setStreak(n int) {
	l.streak = n
	l.failing.Store(n > 0)
}

// healthy reports whether the circuit was simply closed when last read.
func (l *ledger) healthy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.unhealthy
}

// failed counts a failure of our own.
func (l *ledger) failed(generation uint64, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if generation == l.generation {
		l.setStreak(l.streak + 1)
		l.failedAt = now
	}
}

// success counts a success and returns whether the store must hear of it:
// because it ends a streak that the permit showed and that no success of ours
// has ended before, or is being reported to.
func (l *ledger) success(pm *Permit, now time.Time) (mustTell bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if pm.Generation != l.generation {
		return false
	}
	l.setStreak(0)
	l.succeeded = now
	streak := pm.streak
	if v := l.view.Load(); v != nil && v.streak != 0 {
		streak = v.streak // seen since the call began
	}
	if streak == 0 || streak == l.spoken {
		return false
	}
	l.spoken = streak
	return true
}

// outdated reports whether a run of failures may have begun since read of which
// this process does not know: where it hears of all, and all is announced, when
// something was; else when enough time has passed.
func (l *ledger) outdated(read, now time.Time, hears bool, enough time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.announced.After(read) || now.Sub(read) > enough && !(hears && l.isCalm(read))
}

// untold says that a message of ours was not sent, or may have been lost.
func (l *ledger) untold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spoken = 0
}

// mustClear reports whether a head shows a streak that a success of ours may
// have ended, and takes it as told.
func (l *ledger) mustClear(h *head, generation uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.generation != generation || h.streak == 0 || h.streak == l.spoken {
		return false
	}
	l.spoken = h.streak
	return true
}

// succeededFreely counts a success of a call that had no permit, and so no
// generation: it ends a streak of ours in any.
func (l *ledger) succeededFreely(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setStreak(0)
	l.succeeded = now
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
	if at := l.lastSuccess(); !at.IsZero() {
		e.HasSucceeded, e.SinceSuccess = true, now.Sub(at)
	}
	for _, t := range l.tallies {
		e.Tallies = append(e.Tallies, Tally{Age: now.Sub(t.last), Calls: t.calls})
	}
	l.tallies, l.telling = nil, time.Time{}
	return e
}

// toSay returns the policy to speak under, nil where there is nothing to say:
// this process had no success here.
func (l *ledger) toSay() *Policy {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lastSuccess().IsZero() && len(l.tallies) == 0 {
		return nil
	}
	return l.policy
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
	return (l.streak == 0 || time.Since(l.failedAt) > time.Hour) && len(l.tallies) == 0 && l.view.Load() == nil
}
