package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The program measures, draws what a browser can read, and fills in its page.
func TestMeasuresAndPublishes(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil && os.Getenv("BREAKER_REQUIRE_REDIS") != "1" {
		t.Skip("no redis-server on the PATH")
	}
	docs, err := filepath.Abs("../../../docs")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(docs, "fleet.md"))
	if err != nil {
		t.Fatal(err)
	}
	docs = t.TempDir()
	if err := os.WriteFile(filepath.Join(docs, "fleet.md"), page, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := read(docs)
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range ways {
		s, err := measureStaleness(cfg, 2*pairs)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Trips) != 2*pairs || len(s.Recoveries) != 2*pairs || s.Trips[0] <= 0 {
			t.Errorf("%s: trips %v, recoveries %v", name, s.Trips, s.Recoveries)
		}
		l, err := measureLoad(cfg, 3, 5, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if l.Calls <= 0 || l.Commands <= 0 || l.Name <= 0 {
			t.Errorf("%s: %+v", name, l)
		}
		l.Processes, l.Keys = 200, 1000 // so that it is drawn
		f.Staleness[name], f.Load[name] = s, []load{l}
	}
	if err := write(docs, f); err != nil {
		t.Fatal(err)
	}
	if err := publish(docs, f); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"staleness.svg", "fleet-load.svg"} {
		picture, err := os.Open(filepath.Join(docs, "img", name))
		if err != nil {
			t.Fatal(err)
		}
		defer picture.Close()
		d := xml.NewDecoder(picture)
		for err == nil {
			_, err = d.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	filled, err := os.ReadFile(filepath.Join(docs, "fleet.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(filled), "| push | trip | 10 |") {
		t.Error("the page has not the new table")
	}
}
