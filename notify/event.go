package notify

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// A Kind is a kind of Event.
type Kind string

// The kinds of Event.
const (
	Opened   Kind = "opened"    // by a rule, or by an operator
	HalfOpen Kind = "half-open" // its cooldown is over, and it is being probed
	Reopened Kind = "reopened"  // a probe failed
	Closed   Kind = "closed"    // it has recovered, or an operator closed it
	Chronic  Kind = "chronic"   // it opens again and again
)

func (k Kind) known() bool {
	return slices.Contains([]Kind{Opened, HalfOpen, Reopened, Closed, Chronic}, k)
}

// An Event is one thing to tell of.
type Event struct {
	Kind       Kind               `json:"kind"`
	Key        string             `json:"key"`
	Text       string             `json:"text"` // for people, one line
	Transition breaker.Transition `json:"transition"`

	// Of a chronic circuit: how often it opened, and within how many seconds.
	Openings      int     `json:"openings,omitempty"`
	WithinSeconds float64 `json:"within_seconds,omitempty"`
}

// eventsOf is what there is to tell of a transition.
func (n *Notifier) eventsOf(t breaker.Transition) (events []Event) {
	kind := kindOf(t)
	if n.kinds[kind] {
		events = append(events, Event{Kind: kind, Key: t.Key, Transition: t})
	}
	if n.kinds[Chronic] && counts(t) {
		if openings, reached := n.chronic(t); reached {
			events = append(events, Event{Kind: Chronic, Key: t.Key, Transition: t,
				Openings: openings, WithinSeconds: n.cfg.ChronicWindow.Seconds()})
		}
	}
	for i := range events {
		events[i].Text = events[i].line()
	}
	return events
}

func kindOf(t breaker.Transition) Kind {
	switch {
	case t.To == breaker.StateHalfOpen:
		return HalfOpen
	case t.To == breaker.StateClosed:
		return Closed
	case t.Cause == breaker.CauseProbeFailed:
		return Reopened
	default:
		return Opened
	}
}

// counts reports whether a transition is an opening that the dependency
// brought about.
func counts(t breaker.Transition) bool {
	return t.To == breaker.StateOpen && t.Cause != breaker.CauseForced &&
		t.Cause != breaker.CauseOverrideCleared && t.Cause != breaker.CauseOverrideEnded
}

// chronic returns how many openings there were within the window that ends
// with t, and whether t is the one that made them enough: whoever made that
// one tells, so a fleet tells once.
func (n *Notifier) chronic(t breaker.Transition) (openings int, reached bool) {
	all := n.history.openings(t, n.cfg.ChronicWindow)
	within := func(end int) (count int) {
		for _, at := range all[:end+1] {
			if all[end].Sub(at) < n.cfg.ChronicWindow {
				count++
			}
		}
		return count
	}
	last := len(all) - 1
	openings = within(last)
	return openings, openings >= n.cfg.ChronicOpenings && (last == 0 || within(last-1) < n.cfg.ChronicOpenings)
}

// A history knows the openings of circuits: those that this process made, and,
// if it has a Breaker to ask, those that the store remembers.
type history struct {
	mu      *sync.Mutex
	breaker *breaker.Breaker
	own     map[string][]opening
}

type opening struct {
	generation uint64
	at         time.Time
}

// maxRemembered bounds the circuits whose openings are remembered.
const maxRemembered = 10_000

func newHistory() history {
	return history{mu: new(sync.Mutex), own: make(map[string][]opening)}
}

func (h *history) watch(b *breaker.Breaker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.breaker = b
}

// openings returns the times of the openings up to t, in order, as far as two
// windows back: so that what was within a window of the one before t is there.
func (h *history) openings(t breaker.Transition, window time.Duration) (times []time.Time) {
	h.mu.Lock()
	b := h.breaker
	h.mu.Unlock()
	known := map[uint64]time.Time{t.Generation: t.At}
	if b != nil {
		events, _ := b.History(context.Background(), t.Key) // without it, what this process knows must do
		for _, e := range events {
			if e.Kind == breaker.EventTransition && e.Transition != nil && counts(*e.Transition) {
				known[e.Transition.Generation] = e.Transition.At
			}
		}
	}
	for _, o := range h.remember(t, window) {
		known[o.generation] = o.at
	}
	for generation, at := range known {
		if generation <= t.Generation && t.At.Sub(at) < 2*window {
			times = append(times, at)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

// remember adds an opening of this process and returns those of the key.
func (h *history) remember(t breaker.Transition, window time.Duration) []opening {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.own[t.Key]; !ok && len(h.own) >= maxRemembered {
		for key := range h.own { // any one
			delete(h.own, key)
			break
		}
	}
	recent := slices.DeleteFunc(append(h.own[t.Key], opening{t.Generation, t.At}), func(o opening) bool {
		return t.At.Sub(o.at) >= 2*window
	})
	if len(recent) > 1000 {
		recent = recent[len(recent)-1000:]
	}
	h.own[t.Key] = recent
	return slices.Clone(recent)
}
