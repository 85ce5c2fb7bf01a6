// Fleet measures on a real redis-server what a fleet costs it, and how soon one
// process sees what another did. It writes the figures as JSON, the plots as SVG
// and the tables of docs/fleet.md. Every process is a Breaker with a client of
// its own; they share this program's processors, and the server's.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

// ways are the ways to see what others do that are measured.
var ways = map[string]breaker.RedisConfig{
	"view": {NoPush: true},
	"push": {},
}

var wayNames = []string{"view", "push"}

// figures is all that was measured, by the last run of each part.
type figures struct {
	Machine   string                `json:"machine"`
	Staleness map[string]*staleness `json:"staleness"`
	Load      map[string][]load     `json:"load"`
	Storm     map[string]*storm     `json:"storm"`
}

func main() {
	docs := flag.String("docs", "../docs", "the `folder` to write to")
	only := flag.String("only", "staleness,load,storm,tables", "the `parts` to run, joined by commas")
	way := flag.String("way", strings.Join(wayNames, ","), "the `ways` to measure, joined by commas")
	trips := flag.Int("trips", 500, "trips to time")
	span := flag.Duration("span", 5*time.Second, "`time` to measure each point of the load, and the storm")
	flag.Parse()
	err := run(*docs, strings.Split(*only, ","), strings.Split(*way, ","), *trips, *span)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(docs string, parts, of []string, trips int, span time.Duration) (err error) {
	f, err := read(docs)
	if err != nil {
		return err
	}
	for _, name := range of {
		cfg, ok := ways[name]
		if !ok {
			return fmt.Errorf("there is no way %q, only view and push", name)
		}
		if slices.Contains(parts, "staleness") {
			if f.Staleness[name], err = measureStaleness(cfg, trips); err != nil {
				return err
			}
		}
		if slices.Contains(parts, "load") {
			if f.Load[name], err = measureLoads(cfg, span); err != nil {
				return err
			}
		}
		if slices.Contains(parts, "storm") {
			if f.Storm[name], err = measureStorm(cfg, span); err != nil {
				return err
			}
		}
	}
	if len(parts) > 1 || parts[0] != "tables" {
		f.Machine = machine()
	}
	if err := write(docs, f); err != nil {
		return err
	}
	if slices.Contains(parts, "tables") {
		return publish(docs, f)
	}
	return nil
}

// machine says on what it was measured, and how busy that was.
func machine() string {
	load := "unknown"
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		load = strings.Join(strings.Fields(string(text))[:3], ", ")
	}
	return fmt.Sprintf("%s/%s, %d processors, %s; load average at the end %s",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), load)
}

func figuresFile(docs string) string { return filepath.Join(docs, "img", "fleet.json") }

func read(docs string) (*figures, error) {
	f := &figures{Staleness: map[string]*staleness{}, Load: map[string][]load{}, Storm: map[string]*storm{}}
	text, err := os.ReadFile(figuresFile(docs))
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	return f, json.Unmarshal(text, f)
}

func write(docs string, f *figures) error {
	text, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(docs, "img"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(figuresFile(docs), append(text, '\n'), 0o644)
}
