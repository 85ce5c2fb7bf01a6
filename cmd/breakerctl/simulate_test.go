package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// files writes files, by name, into a folder, and returns it.
func files(t *testing.T, texts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// outage is a trace of 300 s, a call a second: stripe fails from 60 to 180,
// and mail never.
func outage() string {
	var b strings.Builder
	b.WriteString("time,key,outcome,duration\n")
	for s := range 300 {
		outcome := "success"
		if s >= 60 && s < 180 {
			outcome = "failure"
		}
		fmt.Fprintf(&b, "%d,stripe,%s,100ms\n%d.5,mail,success,1\n", 1_796_000_000+s, outcome, 1_796_000_000+s)
	}
	return b.String()
}

func TestATraceIsReplayedAgainstTwoPolicies(t *testing.T) {
	dir := files(t, map[string]string{
		"calls.csv": outage(), "today.json": `{"consecutive_failures":5,"cooldown":"60s"}`, "bolder.json": `{"consecutive_failures":50,"cooldown":"5s"}`,
	})
	svg := filepath.Join(dir, "both.svg")
	args := []string{"simulate", filepath.Join(dir, "calls.csv"), "--policy", filepath.Join(dir, "today.json"),
		"--compare", filepath.Join(dir, "bolder.json"), "--svg", svg}
	c := ctl{t: t}

	var results []struct {
		Name                                          string
		Calls, Failures, Made, Spared, Lost, Openings int
		FailuresMade                                  int `json:"failures_made"`
		Episodes                                      []struct{ Key, Opened, Closed string }
	}
	require.NoError(t, json.Unmarshal([]byte(c.ok(append(args, "-o", "json")...)), &results))
	require.Len(t, results, 2)
	today, bolder := results[0], results[1]
	assert.Equal(t, "today", today.Name)
	for _, r := range results {
		assert.Equal(t, 600, r.Calls)
		assert.Equal(t, 120, r.Failures)
		assert.Equal(t, 1, r.Openings)
		assert.Equal(t, "stripe", r.Episodes[0].Key)
		assert.Equal(t, r.Calls, r.Made+r.Spared+r.Lost)
	}
	assert.Equal(t, 6, today.FailuresMade, "five, and a probe a minute later")
	assert.Equal(t, 114, today.Spared)
	assert.Greater(t, bolder.FailuresMade, 50)
	assert.Less(t, bolder.Lost, today.Lost, "a short cooldown finds out sooner")

	text := c.ok(args...)
	assert.Regexp(t, `(?m)^openings +1 +1$`, text)
	assert.Regexp(t, `(?m)^failures made +6 +\d+$`, text)
	assert.Regexp(t, `(?m)^today +·+█+·+$`, text)
	assert.Contains(t, text, "5 failures in a row")
	drawing, err := os.ReadFile(svg)
	require.NoError(t, err)
	assert.Contains(t, string(drawing), "<svg")
	assert.Contains(t, string(drawing), "bolder")
}

func TestATraceFromStandardInput(t *testing.T) {
	c := ctl{t: t, in: outage()}
	assert.Regexp(t, `(?m)^calls in the trace +600$`, c.ok("simulate", "-"))
	assert.Regexp(t, `(?m)^openings +0$`, c.ok("simulate", "-", "--key", "mail"))
	assert.Contains(t, c.fails(exitUsage, "simulate", "-", "--key", "nobody"), `no call has the key "nobody"`)
	c.in = "time,outcome\n1,melted\n"
	assert.Contains(t, c.fails(exitUsage, "simulate", "-"), "trace -: line 2: outcome")
	assert.Contains(t, c.fails(exitUsage, "simulate", "nowhere.csv"), "no such file")
	assert.Contains(t, c.fails(exitUsage, "simulate", "-", "--width", "1"), "--width")
	dir := files(t, map[string]string{"bad.json": `{"failure_rate":2}`, "worse.json": `{"cooldown":60}`})
	c.in = outage()
	assert.Contains(t, c.fails(exitUsage, "simulate", "-", "--policy", filepath.Join(dir, "bad.json")), "FailureRate is 2")
	assert.Contains(t, c.fails(exitUsage, "simulate", "-", "--compare", filepath.Join(dir, "worse.json")), "worse.json")
}
