package main

import (
	"errors"
	"fmt"

	"github.com/breakerkit/breaker"
)

// because says in words what a change of state was for.
func because(t breaker.Transition) string {
	switch t.Cause {
	case breaker.CauseConsecutiveFailures:
		return fmt.Sprintf("the fleet's last %d calls failed", t.Counts.ConsecutiveFailures)
	case breaker.CauseCooldownOver:
		return "the cooldown is over, one call may try"
	case breaker.CauseProbeFailed:
		return "that call failed"
	case breaker.CauseProbesSucceeded:
		return "that call went well, all may call"
	default:
		return t.Cause
	}
}

// finish prints the summary. It returns an error if the circuit was not shared as
// it should be.
func (f *fleet) finish(s breaker.Snapshot) error {
	size := len(f.workers)
	received, failed := f.provider.calls()
	var made, spared, sparedWorkers, resumed int
	for _, t := range f.tallies {
		made += t.OK + t.Failed
		spared += t.Spared
		sparedWorkers += min(t.Spared, 1)
		resumed += min(t.OKSinceSpared, 1)
	}
	probes, atOnce := f.provider.probed()
	f.say("the end")
	fmt.Printf(`
calls wanted    %4d   by %d processes
calls made      %4d   (the provider got %d of them while it was sick)
calls spared    %4d   (refused at once: no wait, no load on a sick provider)
circuit opened  %4d   time for all; noticed by %s, and told to it alone
probes          %4d   never more than %d at once
resumed         %4d   of %d processes; the circuit is %s
`, made+spared, size, made, failed, spared, f.opened, f.opener, probes, atOnce, resumed, size, s.State)

	switch {
	case f.opened != 1:
		return fmt.Errorf("the circuit opened %d times, not once", f.opened)
	case s.State != breaker.StateClosed:
		return errors.New("the circuit is not closed in the end")
	case sparedWorkers != size:
		return fmt.Errorf("only %d of %d processes were spared calls", sparedWorkers, size)
	case probes == 0 || atOnce != 1:
		return fmt.Errorf("%d probes, %d at once", probes, atOnce)
	case resumed != size:
		return fmt.Errorf("only %d of %d processes resumed", resumed, size)
	case received != made:
		return fmt.Errorf("the provider received %d calls, but %d were made", received, made)
	}
	// Each transition begins a generation, so this is how many there were.
	if uint64(len(f.notices)) != s.Generation {
		return fmt.Errorf("%d transitions were made, but %d told of", s.Generation, len(f.notices))
	}
	for generation, n := range f.notices {
		if n != 1 {
			return fmt.Errorf("transition %d was told of %d times", generation, n)
		}
	}
	return nil
}
