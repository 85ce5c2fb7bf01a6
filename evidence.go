package breaker

import "time"

// Evidence is what one process knows of a circuit beyond what it has reported.
// A success that costs nothing is invisible to the other processes, so that a
// shared count of consecutive failures would lie; evidence makes it true. See
// docs/adr for the argument and what was measured.
type Evidence struct {
	Process    string // which process; never empty
	Generation uint64 // the generation it speaks of; of another it says nothing

	// Streak is how many calls of this process failed in a row, the one being
	// reported included.
	Streak int

	// SinceSuccess is how long ago a call of this process last succeeded, if
	// HasSucceeded. A run of failures that began before then has ended.
	SinceSuccess time.Duration
	HasSucceeded bool

	// Tallies are successes, none of them slow, not yet counted in the shared
	// window. Only rates need them.
	Tallies []Tally
}

// A Tally counts calls that ended Age ago.
type Tally struct {
	Age   time.Duration
	Calls int
}

// settles reports whether a rule met by several processes together must stay
// met for a while: whoever knows everything need not wait.
func (m *Moment) settles() bool { return m.Evidence != nil && m.Settle > 0 }

// process names who reports; empty where all is one.
func (m *Moment) process() string {
	if m.Evidence == nil {
		return ""
	}
	return m.Evidence.Process
}
