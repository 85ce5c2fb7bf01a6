// Command report writes the page and the plot of a run of the benchmarks.
//
//	for pass in $(seq 9); do go test -run '^$' -bench . .; done | go run ./report -page ../docs/benchmarks.md -plot ../docs/img/benchmarks.svg
package main

import (
	"bytes"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"golang.org/x/perf/benchfmt"
)

//go:embed page.md.tmpl
var pageText string

//go:embed plot.svg.tmpl
var plotText string

func main() {
	log.SetFlags(0)
	page := flag.String("page", "", "file to write the page to")
	plot := flag.String("plot", "", "file to write the plot to")
	flag.Parse()
	r, err := read(os.Stdin)
	if err != nil {
		log.Fatal("report: ", err)
	}
	for _, out := range []struct{ file, text string }{{*page, pageText}, {*plot, plotText}} {
		if out.file == "" {
			continue
		}
		if err := write(out.file, out.text, r); err != nil {
			log.Fatal("report: ", err)
		}
	}
}

func write(file, text string, r *run) error {
	t, err := template.New(file).Parse(text)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, r); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// A row is one benchmark: medians over its runs.
type row struct {
	Group, Name   string
	Nanos, Allocs float64
	passes        []float64 // the time in each pass over all benchmarks
	Low, High     float64
}

// A run is all that was measured together.
type run struct {
	rows          []*row
	CPU           string
	Go, OS, Redis string
	Cores         int
	Date          string
	modules       map[string]string
}

func read(in io.Reader) (*run, error) {
	r := &run{Go: runtime.Version(), OS: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(),
		Date: time.Now().Format("2 January 2006"), Redis: redisVersion(), modules: make(map[string]string)}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			r.modules[m.Path] = m.Version
		}
	}
	results := benchfmt.NewReader(in, "stdin")
	for results.Scan() {
		result, ok := results.Result().(*benchfmt.Result)
		if !ok {
			continue // a line of something else
		}
		if cpu := result.GetConfig("cpu"); cpu != "" {
			r.CPU = cpu
		}
		r.add(result)
	}
	if err := results.Err(); err != nil {
		return nil, err
	}
	if len(r.rows) == 0 {
		return nil, fmt.Errorf("no benchmark in the input")
	}
	for _, w := range r.rows {
		w.Nanos, w.Low, w.High = median(w.passes), slices.Min(w.passes), slices.Max(w.passes)
	}
	return r, nil
}

func (r *run) add(result *benchfmt.Result) {
	full, _, _ := strings.Cut(string(result.Name), "-"+fmt.Sprint(runtime.GOMAXPROCS(0)))
	group, name, ok := strings.Cut(full, "/")
	if !ok {
		return
	}
	w := r.find(group, name)
	if w == nil {
		w = &row{Group: group, Name: name}
		r.rows = append(r.rows, w)
	}
	if nanos, ok := result.Value("sec/op"); ok {
		w.passes = append(w.passes, nanos*1e9)
	}
	w.Allocs, _ = result.Value("allocs/op")
}

func (r *run) find(group, name string) *row {
	for _, w := range r.rows {
		if w.Group == group && w.Name == name {
			return w
		}
	}
	return nil
}

// Rows are those of a group, the fastest first.
func (r *run) Rows(group string) []*row {
	var rows []*row
	for _, w := range r.rows {
		if w.Group == group {
			rows = append(rows, w)
		}
	}
	slices.SortStableFunc(rows, func(a, b *row) int { return int(math.Copysign(1, a.Nanos-b.Nanos)) })
	return rows
}

// Ratio is how many times b's time a's is, as text.
func (r *run) Ratio(group, a, b string) string { return r.Across(group, a, group, b) }

// Across is Ratio for rows of two groups: the median of their ratios in each
// pass, since a machine may be faster in one pass than in the next.
func (r *run) Across(groupA, a, groupB, b string) string {
	x, y := r.find(groupA, a), r.find(groupB, b)
	if x == nil || y == nil || len(x.passes) != len(y.passes) {
		return "not measured"
	}
	ratios := make([]float64, len(x.passes))
	for i := range ratios {
		ratios[i] = x.passes[i] / y.passes[i]
	}
	return fmt.Sprintf("%.2f", median(ratios))
}

// Millis is the time of a row in milliseconds, as text.
func (r *run) Millis(group, name string) string {
	w := r.find(group, name)
	if w == nil {
		return "not measured"
	}
	return fmt.Sprintf("%.2f", w.Nanos/1e6)
}

// Judge marks a figure that misses what is wanted of it: at most so much, or,
// where that is negative, at least its amount.
func (r *run) Judge(ratio string, wanted float64) string {
	got, err := strconv.ParseFloat(ratio, 64)
	if err != nil || wanted >= 0 && got <= wanted || wanted < 0 && got >= -wanted {
		return ratio
	}
	return "**" + ratio + "**, missed"
}

// Time is a time as people write it.
func (w *row) Time() string { return timeText(w.Nanos) }

// Spread is the fastest and the slowest run.
func (w *row) Spread() string { return timeText(w.Low) + " to " + timeText(w.High) }

func timeText(nanos float64) string {
	switch {
	case nanos < 1e3:
		return fmt.Sprintf("%.3g ns", nanos)
	case nanos < 1e6:
		return fmt.Sprintf("%.3g µs", nanos/1e3)
	}
	return fmt.Sprintf("%.3g ms", nanos/1e6)
}

// Ours reports whether the row is of this project.
func (w *row) Ours() bool {
	return w.Name == "breaker" || w.Name == "strict" || w.Name == "failure" || strings.HasPrefix(w.Name, "view") || strings.HasPrefix(w.Name, "breaker-")
}

// A Bar is a row as it is drawn.
type Bar struct {
	*row
	Y, Width int
}

// A Panel is a group as it is drawn.
type Panel struct {
	Title  string
	Y      int
	Bars   []Bar
	Ticks  []Tick
	Bottom int
}

// A Tick is a power of ten on the axis.
type Tick struct {
	X    int
	Text string
}

// Panels lays the groups out, on one logarithmic axis from 10 ns to 100 ms.
func (r *run) Panels() []Panel {
	const left, width, line = 190, 560, 22
	y, panels := 50, []Panel(nil)
	for _, g := range []struct{ group, title string }{
		{"Closed", "closed circuit, a call that succeeds"},
		{"Window", "the same, with a rate over a rolling window"},
		{"Open", "open circuit, a call that is rejected"},
		{"Redis", "circuit shared through Redis, beside bare commands"},
	} {
		p := Panel{Title: g.title, Y: y}
		y += 12
		for _, w := range r.Rows(g.group) {
			p.Bars = append(p.Bars, Bar{w, y, max(int(float64(width)*position(w.Nanos)), 2)})
			y += line
		}
		p.Bottom = y
		for e := 1; e <= 6; e++ {
			p.Ticks = append(p.Ticks, Tick{left + int(float64(width)*position(math.Pow10(e))), timeText(math.Pow10(e))})
		}
		y += 52
		panels = append(panels, p)
	}
	return panels
}

// Height is that of the plot.
func (r *run) Height() int {
	panels := r.Panels()
	return panels[len(panels)-1].Bottom + 40
}

func position(nanos float64) float64 {
	return min(max((math.Log10(nanos)-0.7)/(6-0.7), 0), 1)
}

func median(values []float64) float64 {
	n, sorted := len(values), slices.Sorted(slices.Values(values))
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func redisVersion() string {
	out, err := exec.Command("redis-server", "--version").Output()
	for _, word := range strings.Fields(string(out)) {
		if v, ok := strings.CutPrefix(word, "v="); ok && err == nil {
			return v
		}
	}
	return "unknown"
}
