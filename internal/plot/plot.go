// Package plot draws lines and bars as SVG, for the measurements in docs.
package plot

import (
	"fmt"
	"math"
	"os"
	"strings"
	"text/template"
)

// A Panel is one set of axes: lines or bars, of several series. Values of x
// and y lie within the first and the last of their ticks.
type Panel struct {
	Title, XLabel, YLabel string
	XTicks, YTicks        []float64
	LogX, LogY, Bars      bool // the axis is logarithmic; bars, not lines
	Series                []Series
	left                  float64 // where it begins in the picture
}

// A Series is points in order of x, under a name.
type Series struct {
	Name   string
	Points [][2]float64
}

const (
	panelWidth, panelHeight   = 380.0, 300.0
	padLeft, padRight, padTop = 62.0, 24.0, 44.0
	padBottom                 = 46.0
	plotWidth, plotHeight     = panelWidth - padLeft - padRight, panelHeight - padTop - padBottom
	barGap                    = 1.0
)

var colours = []string{"#1f6feb", "#d1570c"}

func scale(v float64, ticks []float64, log bool) float64 {
	low, high := ticks[0], ticks[len(ticks)-1]
	if log {
		v, low, high = math.Log(max(v, low)), math.Log(low), math.Log(high)
	}
	return min(max((v-low)/(high-low), 0), 1)
}

func (p *Panel) X(v float64) float64 { return p.left + padLeft + plotWidth*scale(v, p.XTicks, p.LogX) }
func (p *Panel) Y(v float64) float64 { return padTop + plotHeight*(1-scale(v, p.YTicks, p.LogY)) }

func (p *Panel) Left() float64   { return p.left + padLeft }
func (p *Panel) Right() float64  { return p.left + panelWidth - padRight }
func (p *Panel) Middle() float64 { return (p.Left() + p.Right()) / 2 }
func (p *Panel) Top() float64    { return padTop }
func (p *Panel) Bottom() float64 { return panelHeight - padBottom }

// Path is a line through the points of a series.
func (p *Panel) Path(s Series) string {
	var path []string
	for _, at := range s.Points {
		path = append(path, fmt.Sprintf("%.1f,%.1f", p.X(at[0]), p.Y(at[1])))
	}
	return strings.Join(path, " ")
}

// A bar is a rectangle; those of several series stand side by side in a bin,
// which is as wide as the first two points are apart.
type bar struct{ X, Y, Width, Height float64 }

func (p *Panel) BarsOf(i int) (bars []bar) {
	points := p.Series[i].Points
	bin := p.X(points[1][0]) - p.X(points[0][0])
	width := (bin - barGap) / float64(len(p.Series))
	for _, at := range points {
		if at[1] > 0 {
			y := p.Y(at[1])
			bars = append(bars, bar{p.X(at[0]) + float64(i)*width, y, width, p.Bottom() - y})
		}
	}
	return bars
}

var picture = template.Must(template.New("").Funcs(template.FuncMap{
	"colour": func(i int) string { return colours[i%len(colours)] },
	"n":      func(v float64) string { return fmt.Sprintf("%.1f", v) },
	"label":  Label,
	"plus":   func(a, b float64) float64 { return a + b },
	"times":  func(i int, b float64) float64 { return float64(i) * b },
}).Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{n .Width}} {{n .Height}}" font-family="sans-serif" font-size="11" fill="#24292f">
<rect width="100%" height="100%" fill="#ffffff"/>
{{- range $p := .Panels}}
<text x="{{n .Left}}" y="16" font-size="13" font-weight="bold">{{.Title}}</text>
<text x="{{n .Middle}}" y="{{n (plus .Bottom 36)}}" text-anchor="middle">{{.XLabel}}</text>
<text x="{{n .Left}}" y="{{n (plus .Top -8)}}">{{.YLabel}}</text>
{{- range .YTicks}}
<line x1="{{n $p.Left}}" x2="{{n $p.Right}}" y1="{{n ($p.Y .)}}" y2="{{n ($p.Y .)}}" stroke="#d8dee4"/>
<text x="{{n (plus $p.Left -6)}}" y="{{n (plus ($p.Y .) 4)}}" text-anchor="end">{{label .}}</text>
{{- end}}
{{- range .XTicks}}
<text x="{{n ($p.X .)}}" y="{{n (plus $p.Bottom 16)}}" text-anchor="middle">{{label .}}</text>
{{- end}}
{{- range $i, $s := .Series}}
{{- if $p.Bars}}
{{- range $p.BarsOf $i}}
<rect x="{{n .X}}" y="{{n .Y}}" width="{{n .Width}}" height="{{n .Height}}" fill="{{colour $i}}"/>
{{- end}}
{{- else}}
<polyline points="{{$p.Path $s}}" fill="none" stroke="{{colour $i}}" stroke-width="2"/>
{{- range $s.Points}}
<circle cx="{{n ($p.X (index . 0))}}" cy="{{n ($p.Y (index . 1))}}" r="3" fill="{{colour $i}}"/>
{{- end}}
{{- end}}
<rect x="{{n (plus $p.Right -56)}}" y="{{n (plus (times $i 15) 5)}}" width="10" height="10" fill="{{colour $i}}"/>
<text x="{{n (plus $p.Right -42)}}" y="{{n (plus (times $i 15) 14)}}">{{$s.Name}}</text>
{{- end}}
{{- end}}
</svg>
`))

// Label writes a number with its thousands apart.
func Label(v float64) string {
	text := fmt.Sprintf("%g", v)
	if v >= 1000 {
		text = fmt.Sprintf("%.0f", v)
		for i := len(text) - 3; i > 0; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
	}
	return text
}

// Draw writes panels side by side.
func Draw(file string, panels ...*Panel) error {
	for i, p := range panels {
		p.left = float64(i) * panelWidth
	}
	var text strings.Builder
	err := picture.Execute(&text, map[string]any{
		"Width": panelWidth * float64(len(panels)), "Height": panelHeight, "Panels": panels,
	})
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}
