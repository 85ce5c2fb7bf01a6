package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/breakerkit/breaker/internal/plot"
)

// publish draws the plots, and puts the tables between the marks of
// docs/fleet.md.
func publish(docs string, f *figures) error {
	if err := drawStaleness(filepath.Join(docs, "img", "staleness.svg"), f); err != nil {
		return err
	}
	if err := drawLoad(filepath.Join(docs, "img", "fleet-load.svg"), f); err != nil {
		return err
	}
	page := filepath.Join(docs, "fleet.md")
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	out := string(text)
	for name, table := range map[string]string{
		"machine": f.Machine + ".\n", "staleness": stalenessTable(f), "load": loadTable(f), "storm": stormTable(f),
	} {
		begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
		before, rest, found := strings.Cut(out, begin)
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			return fmt.Errorf("%s has no place for %s: %q and %q", page, name, begin, end)
		}
		out = before + begin + table + end + after
	}
	return os.WriteFile(page, []byte(out), 0o644)
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

func stalenessTable(f *figures) string {
	var t strings.Builder
	t.WriteString("| | | n | p50 (ms) | p90 | p99 | most | bare round trip, p50 | p99 | most | pauses of the machine, p99 | most |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, way := range wayNames {
		s := f.Staleness[way]
		if s == nil {
			continue
		}
		for _, row := range []struct {
			name  string
			times []time.Duration
		}{{"trip", s.Trips}, {"recovery", s.Recoveries}} {
			fmt.Fprintf(&t, "| %s | %s | %d | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", way, row.name, len(row.times),
				ms(at(row.times, 0.5)), ms(at(row.times, 0.9)), ms(at(row.times, 0.99)), ms(at(row.times, 1)),
				ms(at(s.RoundTrips, 0.5)), ms(at(s.RoundTrips, 0.99)), ms(at(s.RoundTrips, 1)),
				ms(s.Pauses[1]), ms(s.Pauses[2]))
		}
	}
	return t.String()
}

func loadTable(f *figures) string {
	var t strings.Builder
	t.WriteString("| | processes | keys | calls/s | commands/s | commands a call | server's CPU | circuits on record | bytes: circuit | its history | its name |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, way := range wayNames {
		for _, p := range f.Load[way] {
			fmt.Fprintf(&t, "| %s | %d | %d | %s | %s | %.3f | %.0f %% | %d | %d | %s | %.0f |\n", way, p.Processes, p.Keys,
				plot.Label(math.Round(p.Calls)), plot.Label(math.Round(p.Commands)), p.Commands/p.Calls, 100*p.CPU, p.Records, p.Hash, plot.Label(float64(p.History)), p.Name)
		}
	}
	return t.String()
}

func stormTable(f *figures) string {
	var t strings.Builder
	t.WriteString("| | failures/s | report, p50 (ms) | p99 | bare round trip, p50 | p99 | p99 of a report / p50 of a round trip | announcements/s | server's CPU |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, way := range wayNames {
		if s := f.Storm[way]; s != nil {
			fmt.Fprintf(&t, "| %s | %s | %s | %s | %s | %s | %.1f | %.1f | %.0f %% |\n", way, plot.Label(math.Round(s.Failures)), ms(s.Report[0]), ms(s.Report[1]),
				ms(s.RoundTrip[0]), ms(s.RoundTrip[1]), float64(s.Report[1])/float64(s.RoundTrip[0]), s.Announcements, 100*s.CPU)
		}
	}
	return t.String()
}

// drawStaleness is a histogram: what share of trips was seen in which 5 ms.
func drawStaleness(file string, f *figures) error {
	const bin, top = 5, 130.0
	p := func(title string, of func(*staleness) []time.Duration) *plot.Panel {
		p := &plot.Panel{Title: title, XLabel: "ms until the other process saw it; the last bar: or more", YLabel: "% of all, in bins of 5 ms",
			XTicks: ticks(0, top, 10), YTicks: ticks(0, 100, 20), Bars: true}
		for _, way := range wayNames {
			if s := f.Staleness[way]; s != nil {
				p.Series = append(p.Series, plot.Series{Name: way, Points: histogram(of(s), bin, top)})
			}
		}
		return p
	}
	return plot.Draw(file, p("A trip", func(s *staleness) []time.Duration { return s.Trips }),
		p("A recovery", func(s *staleness) []time.Duration { return s.Recoveries }))
}

// histogram gives percents; the last bin has all that is longer, too.
func histogram(times []time.Duration, bin, top float64) (points [][2]float64) {
	for from := 0.0; from < top; from += bin {
		points = append(points, [2]float64{from, 0})
	}
	for _, d := range times {
		i := int(float64(d) / float64(time.Millisecond) / bin)
		points[min(i, len(points)-1)][1] += 100 / float64(len(times))
	}
	return points
}

func ticks(from, to, step float64) (at []float64) {
	for v := from; v <= to; v += step {
		at = append(at, v)
	}
	return at
}

func drawLoad(file string, f *figures) error {
	const processes, keys = 200, 1000
	p := func(title, label string, xs []float64, x func(load) (float64, bool)) *plot.Panel {
		p := &plot.Panel{Title: title, XLabel: label, YLabel: "commands a second", XTicks: xs, YTicks: []float64{10, 100, 1000, 10_000}, LogX: true, LogY: true}
		for _, way := range wayNames {
			s := plot.Series{Name: way}
			for _, point := range f.Load[way] {
				if at, ok := x(point); ok {
					s.Points = append(s.Points, [2]float64{at, point.Commands})
				}
			}
			p.Series = append(p.Series, s)
		}
		return p
	}
	return plot.Draw(file,
		p("1,000 keys", "processes, 50 calls a second each", []float64{25, 50, 100, 200},
			func(l load) (float64, bool) { return float64(l.Processes), l.Keys == keys }),
		p("200 processes", "keys", []float64{10, 100, 1000},
			func(l load) (float64, bool) { return float64(l.Keys), l.Processes == processes }))
}
