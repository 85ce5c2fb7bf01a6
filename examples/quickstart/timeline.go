package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// A timeline prints what happens, a line for each run of like outcomes, and
// counts for the summary. It is a breaker.Observer: the Breaker tells it of
// each call and each change of state.
type timeline struct {
	breaker.NopObserver // for the methods it has no use for
	start               time.Time

	mu    sync.Mutex // an Observer is called by many goroutines
	run   string     // the run of outcomes under way, not printed yet
	times int
	since time.Duration

	ok, failed, spared int
	state              breaker.State
	opens              int
	openedAt           time.Time
	wasOpen            time.Duration
}

func newTimeline() *timeline { return &timeline{start: time.Now()} }

// CallDone is told of each call that was made.
func (t *timeline) CallDone(_ string, o breaker.Outcome, _ time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o == breaker.Success {
		t.ok++
		t.add("ok")
	} else {
		t.failed++
		t.add("FAILED, the provider answers 503")
	}
}

// Rejected is told of each call that was not made.
func (t *timeline) Rejected(string, *breaker.RejectedError) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spared++
	t.add("spared, refused at once and not made")
}

// Transitioned is told of each change of state.
func (t *timeline) Transitioned(tr breaker.Transition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state = tr.To
	if tr.From == breaker.StateClosed {
		t.opens++
		t.openedAt = tr.At
	}
	if tr.To == breaker.StateClosed {
		t.wasOpen += tr.At.Sub(t.openedAt)
	}
	t.print("-> circuit %s: %s", tr.To, because(tr))
}

// because says in words what a change of state was for.
func because(t breaker.Transition) string {
	switch t.Cause {
	case breaker.CauseConsecutiveFailures:
		return fmt.Sprintf("%d calls failed in a row", t.Counts.ConsecutiveFailures)
	case breaker.CauseCooldownOver:
		return "the cooldown is over, one call may try"
	case breaker.CauseProbeFailed:
		return "that call failed, so wait another cooldown"
	case breaker.CauseProbesSucceeded:
		return "that call went well"
	default:
		return t.Cause
	}
}

// say prints a line of the story.
func (t *timeline) say(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.print("%s", line)
}

// finish prints the summary. It returns an error if the breaker did not do its job.
func (t *timeline) finish(received int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.print("the end")
	made := t.ok + t.failed
	fmt.Printf(`
calls wanted    %3d
calls made      %3d   (%d ok, %d failed)
calls spared    %3d   (refused at once: no wait, no load on a sick provider)
circuit opened  %3d   time, for %.1fs; it is now %s
`, made+t.spared, made, t.ok, t.failed, t.spared, t.opens, t.wasOpen.Seconds(), t.state)

	switch {
	case t.opens != 1:
		return fmt.Errorf("the circuit opened %d times, not once", t.opens)
	case t.state != breaker.StateClosed:
		return errors.New("the circuit did not close again")
	case t.spared == 0:
		return errors.New("no call was spared")
	case received != made:
		return fmt.Errorf("the provider received %d calls, but %d were made", received, made)
	}
	return nil
}

// The methods below require t.mu.

// add counts an outcome. Its run is printed once something else happens.
func (t *timeline) add(outcome string) {
	if outcome != t.run {
		t.flush()
		t.run, t.since = outcome, time.Since(t.start)
	}
	t.times++
}

func (t *timeline) print(format string, args ...any) {
	t.flush()
	fmt.Printf("%4.1fs  %s\n", time.Since(t.start).Seconds(), fmt.Sprintf(format, args...))
}

func (t *timeline) flush() {
	if t.times > 0 {
		fmt.Printf("%4.1fs     %2d x %s\n", t.since.Seconds(), t.times, t.run)
	}
	t.run, t.times = "", 0
}
