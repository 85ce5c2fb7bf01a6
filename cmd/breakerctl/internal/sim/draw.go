package sim

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

// A Picture is a trace and what policies would have made of it, in columns of
// equal time.
type Picture struct {
	From, To time.Time
	Columns  []Column
	Results  []Result
}

// A Column counts the calls of a stretch of the trace.
type Column struct{ Calls, Failures int }

// NewPicture divides the trace into at most columns stretches.
func NewPicture(calls []Call, results []Result, columns int) *Picture {
	p := &Picture{From: calls[0].At, To: calls[len(calls)-1].At.Add(time.Millisecond), Columns: make([]Column, max(columns, 1)), Results: results}
	for _, c := range calls {
		column := &p.Columns[p.column(c.At)]
		column.Calls++
		if c.Outcome == breaker.Failure {
			column.Failures++
		}
	}
	return p
}

func (p *Picture) column(t time.Time) int {
	share := float64(t.Sub(p.From)) / float64(p.To.Sub(p.From))
	return min(max(int(share*float64(len(p.Columns))), 0), len(p.Columns)-1)
}

// states is the worst state of any circuit in each column: open before
// half-open before closed.
func (p *Picture) states(r Result) []breaker.State {
	states := make([]breaker.State, len(p.Columns))
	for _, e := range r.Episodes {
		for i, phase := range e.Phases {
			if phase.State == breaker.StateClosed {
				continue
			}
			until := p.To
			if i+1 < len(e.Phases) {
				until = e.Phases[i+1].At
			}
			for c := p.column(phase.At); c <= p.column(until); c++ {
				if states[c] != breaker.StateOpen {
					states[c] = phase.State
				}
			}
		}
	}
	return states
}

var (
	levels = []rune(" ▁▂▃▄▅▆▇█")
	marks  = map[breaker.State]rune{breaker.StateClosed: '·', breaker.StateHalfOpen: '▒', breaker.StateOpen: '█'}
)

// Text writes the picture as lines of text: the share of failures, and the
// state under each policy.
func (p *Picture) Text(w io.Writer) error {
	width := len("failures")
	for _, r := range p.Results {
		width = max(width, len([]rune(r.Name)))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-*s  %s", width, "", p.From.Format(time.RFC3339))
	end := p.To.Format(time.RFC3339)
	if gap := len(p.Columns) - len(end) - len(p.From.Format(time.RFC3339)); gap > 0 {
		b.WriteString(strings.Repeat(" ", gap) + end)
	}
	fmt.Fprintf(&b, "\n%-*s  ", width, "failures")
	for _, c := range p.Columns {
		level := 0
		if c.Failures > 0 {
			level = 1 + c.Failures*(len(levels)-2)/c.Calls
		}
		b.WriteRune(levels[level])
	}
	for _, r := range p.Results {
		fmt.Fprintf(&b, "\n%-*s  ", width, r.Name)
		for _, state := range p.states(r) {
			b.WriteRune(marks[state])
		}
	}
	fmt.Fprintf(&b, "\n%-*s  · closed  ▒ half-open  █ open (of several circuits, the worst)\n", width, "")
	_, err := io.WriteString(w, b.String())
	return err
}

const (
	svgLeft, svgBar, svgChart, svgRow = 130, 5, 120, 34
)

var fills = map[breaker.State]string{breaker.StateHalfOpen: "#e0a800", breaker.StateOpen: "#c0392b"}

// SVG writes the picture as a drawing: calls and failures as bars, and a band
// of states for each policy.
func (p *Picture) SVG(w io.Writer) error {
	wide := svgLeft + svgBar*len(p.Columns) + 20
	high := 40 + svgChart + 20 + svgRow*len(p.Results) + 30
	most := 1
	for _, c := range p.Columns {
		most = max(most, c.Calls)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", wide, high, wide, high)
	fmt.Fprintf(&b, `<title>%s</title><rect width="100%%" height="100%%" fill="#fff"/>`+"\n", escape("What policies would have made of a trace"))
	text := func(x, y int, anchor, s string) {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="%s" fill="#333">%s</text>`+"\n", x, y, anchor, escape(s))
	}
	base := 40 + svgChart
	text(svgLeft-10, 52, "end", fmt.Sprintf("%d calls", most))
	text(svgLeft-10, base, "end", "0")
	text(svgLeft, 26, "start", "calls (grey) and those that failed (red)")
	for i, c := range p.Columns {
		x, all, failed := svgLeft+i*svgBar, c.Calls*svgChart/most, c.Failures*svgChart/most
		if c.Calls > 0 {
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="#c8ccd0"/>`, x, base-max(all, 1), svgBar-1, max(all, 1))
		}
		if c.Failures > 0 {
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="#c0392b"/>`, x, base-max(failed, 1), svgBar-1, max(failed, 1))
		}
	}
	b.WriteByte('\n')
	for i, r := range p.Results {
		y := base + 20 + i*svgRow
		text(svgLeft-10, y+16, "end", clip(r.Name, 18))
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="22" fill="#2e8b57"/>`, svgLeft, y, svgBar*len(p.Columns))
		for c, state := range p.states(r) {
			if fill, ok := fills[state]; ok {
				fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="22" fill="%s"/>`, svgLeft+c*svgBar, y, svgBar, fill)
			}
		}
		b.WriteByte('\n')
	}
	bottom := high - 10
	text(svgLeft, bottom, "start", p.From.Format(time.RFC3339))
	text(svgLeft+svgBar*len(p.Columns)/2, bottom, "middle", "green closed, yellow half-open, red open")
	text(svgLeft+svgBar*len(p.Columns), bottom, "end", p.To.Format(time.RFC3339))
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder does not fail
	return b.String()
}

func clip(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
