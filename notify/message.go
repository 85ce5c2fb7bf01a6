package notify

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/breakerkit/breaker"
)

// A Message is what one group of events says; as JSON, it is the body that a
// webhook gets.
type Message struct {
	Version int       `json:"version"` // 1; later versions only add fields
	ID      string    `json:"id"`      // the same each time it is tried
	SentAt  time.Time `json:"sent_at"` // when it was made
	Subject string    `json:"subject"` // for people, one line
	Events  []Event   `json:"events"`

	// Missed is how many changes this process could not look at before this
	// message, Dropped how many messages this channel has lost since the last
	// one that got through.
	Missed  int `json:"missed,omitempty"`
	Dropped int `json:"dropped,omitempty"`
}

// maxLines is how many events a message for people lists.
const maxLines = 20

func newMessage(events []Event, missed int, now time.Time) Message {
	return Message{Version: 1, ID: rand.Text(), SentAt: now.UTC(), Subject: subject(events), Events: events, Missed: missed}
}

// subject is "stripe opened", or "3 opened, 1 closed".
func subject(events []Event) string {
	if len(events) == 1 {
		return "Circuit " + readable(events[0].Key) + " " + events[0].Kind.words()
	}
	var parts []string
	for _, kind := range []Kind{Chronic, Opened, Reopened, HalfOpen, Closed} {
		count := 0
		for _, e := range events {
			if e.Kind == kind {
				count++
			}
		}
		if count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count, kind.words()))
		}
	}
	return "Circuits: " + strings.Join(parts, ", ")
}

func (k Kind) words() string {
	switch k {
	case HalfOpen:
		return "being probed"
	case Chronic:
		return "opening again and again"
	}
	return string(k)
}

// text is the message for people, without its subject.
func (m *Message) text() string {
	var b strings.Builder
	for i, e := range m.Events {
		if i == maxLines {
			fmt.Fprintf(&b, "and %d more\n", len(m.Events)-maxLines)
			break
		}
		b.WriteString(e.Text + "\n")
	}
	if lost := m.Missed; lost > 0 {
		fmt.Fprintf(&b, "%d more changes were not looked at: too many at once.\n", lost)
	}
	if m.Dropped > 0 {
		fmt.Fprintf(&b, "%d earlier messages could not be sent here.\n", m.Dropped)
	}
	return b.String()
}

var causes = map[string]string{
	breaker.CauseWindowFailures:  "too many failures in its window",
	breaker.CauseFailureRate:     "too large a share of failures",
	breaker.CauseSlowRate:        "too large a share of slow calls",
	breaker.CauseCooldownOver:    "its cooldown is over",
	breaker.CauseProbeFailed:     "a probe failed",
	breaker.CauseProbesSucceeded: "its probes succeeded",
	breaker.CauseForced:          "an operator holds it",
	breaker.CauseOverrideCleared: "an operator let go of it",
	breaker.CauseOverrideEnded:   "an operator's hold has ended",
	breaker.CauseReset:           "an operator reset it",
}

// line tells of one event.
func (e *Event) line() string {
	t := &e.Transition
	if e.Kind == Chronic {
		return fmt.Sprintf("%s opened %d times within %v; it does not recover for good", readable(e.Key), e.Openings,
			time.Duration(e.WithinSeconds*float64(time.Second)))
	}
	cause, ok := causes[t.Cause]
	switch {
	case t.Cause == breaker.CauseConsecutiveFailures:
		cause = fmt.Sprintf("%d failures in a row", t.Counts.ConsecutiveFailures)
	case !ok:
		cause = readable(t.Cause)
	}
	line := fmt.Sprintf("%s %s: %s", readable(e.Key), e.Kind.words(), cause)
	if c := t.Counts; c.WindowCalls > 0 && t.To == breaker.StateOpen && t.From == breaker.StateClosed {
		line += fmt.Sprintf(" (%d of %d calls failed, %d were slow)", c.WindowFailures, c.WindowCalls, c.WindowSlow)
	}
	if !t.RetryAt.IsZero() && t.To == breaker.StateOpen {
		line += "; next try at " + t.RetryAt.UTC().Format("15:04:05 MST")
	}
	return line + "; seen by " + readable(t.Instance)
}

// readable is a key, or a name, in a line of text: nothing in it ends the
// line, and it is not too long.
func readable(s string) string {
	if r := []rune(s); len(r) > 100 {
		s = string(r[:100]) + "…"
	}
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(s)
	}
	return s
}
