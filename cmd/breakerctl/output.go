package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"

	"github.com/breakerkit/breaker"
)

// print writes v as JSON, or what text writes.
func (s *settings) print(w io.Writer, v any, text func(w io.Writer) error) error {
	asJSON, err := s.json()
	if err != nil {
		return err
	}
	if !asJSON {
		return text(w)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// rows has a header and rows as a table without colours.
func rows(w io.Writer, header []string, body [][]string) error {
	t := table.New().Border(lipgloss.HiddenBorder()).BorderHeader(false).BorderTop(false).BorderBottom(false).
		BorderLeft(false).BorderRight(false).BorderColumn(false).
		StyleFunc(func(int, int) lipgloss.Style { return lipgloss.NewStyle().PaddingRight(2) }).Headers(header...).Rows(body...).Wrap(false)
	for line := range strings.Lines(t.Render() + "\n") {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

func printList(w io.Writer, all []circuit, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no circuits")
		return err
	}
	var body [][]string
	for _, c := range all {
		body = append(body, listRow(c, now))
	}
	return rows(w, listHeader, body)
}

var listHeader = []string{"KEY", "STATE", "SINCE", "RETRY IN", "FAILURES", "HELD BY", "LAST FAILURE"}

func listRow(c circuit, now time.Time) []string {
	if c.Unreadable != "" {
		return []string{keyText(c.Key), "?", "", "", "", "", clip(readable(c.Unreadable), 60)}
	}
	held, last := "", ""
	if o := c.Override; o != nil {
		held = clip(readable(o.By), 24)
	}
	if f := c.LastFailure; f != nil {
		last = clip(readable(f.Error), 60)
	}
	return []string{clip(keyText(c.Key), 60), c.State.String(), ago(c.ChangedAt, now), left(c.RetryAt, now),
		strconv.Itoa(max(c.ConsecutiveFailures, c.WindowFailures)), held, last}
}

func printCircuit(w io.Writer, c breaker.Snapshot, now time.Time) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("key", "%s", keyText(c.Key))
	line("state", "%v", c.State)
	if o := c.Override; o != nil {
		until := "until cleared"
		if !o.Until.IsZero() {
			until = "until " + clock(o.Until)
		}
		line("held", "%v by %s, %s", o.State, readable(o.By), until)
		line("reason", "%s", cmp.Or(readable(o.Reason), "none given"))
	}
	line("generation", "%d", c.Generation)
	when := func(name string, t time.Time) {
		if !t.IsZero() {
			line(name, "%s (%s)", clock(t), relative(t, now))
		}
	}
	when("changed", c.ChangedAt)
	when("opened", c.OpenedAt)
	when("retry", c.RetryAt)
	line("failures", "%d in a row", c.ConsecutiveFailures)
	if c.WindowCalls > 0 || c.WindowFailures > 0 {
		line("window", "%d of %d calls failed, %d were slow, in %v", c.WindowFailures, c.WindowCalls, c.WindowSlow, c.Policy.Window)
	}
	if c.State != breaker.StateClosed {
		line("probes", "%d under way, %d succeeded, %d failed recoveries", c.ProbesInFlight, c.ProbeSuccesses, c.Reopens)
	}
	if f := c.LastFailure; f != nil {
		line("last failure", "%s (%s), seen by %s", clock(f.At), relative(f.At, now), readable(f.Instance))
		line("", "%s", readable(f.Error))
	}
	return tw.Flush()
}

func printHistory(w io.Writer, events []breaker.Event) error {
	if len(events) == 0 {
		_, err := fmt.Fprintln(w, "nothing has happened to it")
		return err
	}
	var body [][]string
	for _, e := range events {
		body = append(body, []string{clock(e.At), string(e.Kind), readable(cmp.Or(e.By, e.Instance)), clip(details(e), 100)})
	}
	return rows(w, []string{"TIME", "WHAT", "WHO", "DETAILS"}, body)
}

func details(e breaker.Event) string {
	switch {
	case e.Transition != nil:
		return fmt.Sprintf("%v > %v: %s", e.Transition.From, e.Transition.To, readable(e.Transition.Cause))
	case e.Override != nil:
		until := "until cleared"
		if !e.Override.Until.IsZero() {
			until = "until " + clock(e.Override.Until)
		}
		return fmt.Sprintf("held %v %s: %s", e.Override.State, until, cmp.Or(readable(e.Override.Reason), "no reason given"))
	case e.Kind == breaker.EventProbe:
		return strings.TrimSuffix(e.Outcome.String()+": "+readable(e.Error), ": ")
	default:
		return readable(e.Error)
	}
}

func clock(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

// relative is "in 42s" or "3m10s ago".
func relative(t, now time.Time) string {
	if d := t.Sub(now); d > 0 {
		return "in " + short(d)
	}
	return short(now.Sub(t)) + " ago"
}

func ago(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return short(now.Sub(t))
}

func left(t, now time.Time) string {
	if t.IsZero() || !t.After(now) {
		return ""
	}
	return short(t.Sub(now))
}

func short(d time.Duration) string {
	switch d = max(d, 0); {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	case d >= time.Minute:
		return d.Round(time.Second).String()
	default:
		return d.Round(100 * time.Millisecond).String()
	}
}

// readable keeps what others wrote from steering the terminal.
func readable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(s)
	}
	return s
}

// keyText is a key as it is shown; the empty one is "".
func keyText(key string) string {
	if key == "" {
		return `""`
	}
	return readable(key)
}

func clip(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
