package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

func TestCircuitsAreListedAndShown(t *testing.T) {
	server := redistest.Start(t)
	c, b := on(t, server), fleet(t, server.Client(nil))
	assert.Equal(t, "no circuits\n", c.ok("list"))
	assert.JSONEq(t, "[]", c.ok("list", "-o", "json"))
	calls(b, 1, "mail", nil)
	calls(b, 5, "stripe", errDown)
	calls(b, 2, "tenant-7/webhooks", errDown)
	require.NoError(t, b.Close()) // says the names

	lines := strings.Split(strings.TrimSpace(c.ok("list")), "\n")
	require.Len(t, lines, 4)
	assert.Regexp(t, `^KEY +STATE +SINCE +RETRY IN +FAILURES +HELD BY +LAST FAILURE$`, lines[0])
	assert.Regexp(t, `^mail +closed +0$`, lines[1])
	assert.Regexp(t, `^stripe +open +\S+ +\S+ +5 +dial tcp .*connection refused$`, lines[2])
	assert.Regexp(t, `^tenant-7/webhooks +closed +2 +dial tcp`, lines[3])

	var listed []struct {
		Key, State string
		RetryAt    string `json:"retry_at"`
	}
	require.NoError(t, json.Unmarshal([]byte(c.ok("list", "-o", "json", "--state", "open,half-open")), &listed))
	require.Len(t, listed, 1)
	assert.Equal(t, "stripe", listed[0].Key)
	assert.NotEmpty(t, listed[0].RetryAt)
	assert.Contains(t, c.ok("list", "--match", "*webhooks"), "tenant-7")
	assert.NotContains(t, c.ok("list", "--match", "*webhooks"), "stripe")

	shown := c.ok("show", "stripe")
	assert.Regexp(t, `(?m)^state +open$`, shown)
	assert.Regexp(t, `(?m)^failures +5 in a row$`, shown)
	assert.Regexp(t, `(?m)^retry .*\(in .*\)$`, shown)
	assert.Contains(t, shown, "seen by web-1")
	assert.Regexp(t, `(?m)^state +closed$`, c.ok("show", "never heard of"))

	history := strings.Split(strings.TrimSpace(c.ok("history", "stripe")), "\n")
	require.Len(t, history, 1+6)
	assert.Contains(t, history[1], "closed > open: consecutive_failures")
	assert.Contains(t, history[6], "connection refused")
	assert.Len(t, strings.Split(strings.TrimSpace(c.ok("history", "stripe", "--limit", "2")), "\n"), 1+2)
	var events []breaker.Event
	require.NoError(t, json.Unmarshal([]byte(c.ok("history", "stripe", "-o", "json")), &events))
	assert.Len(t, events, 6)
	assert.Equal(t, "nothing has happened to it\n", c.ok("history", "mail"))
}

func TestWindowsAreShownByTheFleetsPolicy(t *testing.T) {
	server := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "policy.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"failure_rate":0.9,"window":"60s"}`), 0o600))
	b, err := breaker.New(breaker.NewRedisStore(server.Client(nil), breaker.RedisConfig{}),
		breaker.Config{Policy: breaker.Policy{FailureRate: 0.9}})
	require.NoError(t, err)
	calls(b, 3, "k", errDown)
	require.NoError(t, b.Close())
	assert.Contains(t, on(t, server).ok("show", "k", "--policy", file), "3 of 3 calls failed")
}

func TestAnOperatorSteersTheFleet(t *testing.T) {
	server := redistest.Start(t)
	c, b := on(t, server), fleet(t, server.Client(nil))
	calls(b, 1, "stripe", nil)

	out := c.ok("open", "stripe", "mail", "--for", "10m", "--reason", "maintenance", "--by", "ann")
	assert.Regexp(t, `(?m)^held +open by ann, until `, out)
	assert.Regexp(t, `(?m)^reason +maintenance$`, out)
	for _, key := range []string{"stripe", "mail"} {
		assert.ErrorIs(t, b.Execute(bg, key, nilCall), breaker.ErrOpen)
	}
	assert.Regexp(t, `stripe +open +\S+ +0 +ann`, c.ok("list"))

	c.ok("clear", "mail", "--by", "bob")
	assert.NoError(t, b.Execute(bg, "mail", nilCall))
	assert.Regexp(t, `cleared +bob`, c.ok("history", "mail"))

	c.ok("close", "stripe")
	calls(b, 20, "stripe", errDown)
	assert.NoError(t, b.Execute(bg, "stripe", nilCall), "nothing opens it")

	c.ok("clear", "stripe")
	calls(b, 5, "stripe", errDown)
	require.ErrorIs(t, b.Execute(bg, "stripe", nilCall), breaker.ErrOpen)
	assert.Regexp(t, `(?m)^state +closed$`, c.ok("reset", "stripe", "--by", "ann"))
	assert.NoError(t, b.Execute(bg, "stripe", nilCall))
	assert.Regexp(t, `reset +ann`, c.ok("history", "stripe"))
}

func TestAKeyCanNotSteerTheTerminal(t *testing.T) {
	server := redistest.Start(t)
	c, b := on(t, server), fleet(t, server.Client(nil))
	for _, key := range []string{"\x1b[2J", "two\nlines", "\xff", ""} {
		calls(b, 5, key, errDown)
		out := c.ok("show", "--", key)
		assert.NotContains(t, out, "\x1b")
		assert.Regexp(t, `(?m)^state +open$`, out)
	}
	require.NoError(t, b.Close())
	out := c.ok("list")
	assert.NotContains(t, out, "\x1b")
	assert.Len(t, strings.Split(strings.TrimSpace(out), "\n"), 5)
	assert.Contains(t, out, `"two\nlines"`)
}

func TestWhatIsWrongWithACommandLineIsSaid(t *testing.T) {
	c := ctl{t: t}
	policy := filepath.Join(t.TempDir(), "policy.json")
	require.NoError(t, os.WriteFile(policy, []byte(`{"colldown":"60s"}`), 0o600))
	for _, each := range []struct {
		want string
		args []string
	}{
		{"unknown command", []string{"lst"}},
		{"unknown flag", []string{"list", "--stat", "open"}},
		{"requires at least 1 arg", []string{"show"}},
		{"accepts 1 arg", []string{"history", "a", "b"}},
		{`--state is "ajar"`, []string{"list", "--state", "ajar"}},
		{"--match", []string{"list", "--match", "["}},
		{"--output", []string{"list", "-o", "yaml"}},
		{"--timeout", []string{"list", "--timeout", "0s"}},
		{"--limit", []string{"history", "k", "--limit", "-1"}},
		{"--interval", []string{"watch", "--interval", "1ms"}},
		{"Override.For", []string{"open", "k", "--for", "-1s"}},
		{`no field "colldown"`, []string{"show", "k", "--policy", policy}},
		{"no such file", []string{"show", "k", "--policy", "nowhere.json"}},
		{"no such file", []string{"list", "--password-file", "nowhere"}},
		{"--tls-ca", []string{"list", "--tls-ca", policy}},
		{"can't be read", []string{"list", "--redis", "localhost"}},
		{"unexpected option", []string{"list", "--redis", "redis://localhost?colour=red"}},
		{"has 2000 bytes", []string{"show", strings.Repeat("k", 2000)}},
		{"--cert and --cert-key", []string{"serve", "--cert", "x"}},
	} {
		assert.Contains(t, c.fails(exitUsage, each.args...), each.want, "%.60q", each.args)
	}
}

func TestCompletions(t *testing.T) {
	server := redistest.Start(t)
	c, b := on(t, server), fleet(t, server.Client(nil))
	calls(b, 1, "stripe", nil)
	calls(b, 1, "mail", nil)
	require.NoError(t, b.Close())
	assert.Contains(t, c.run("__complete", "show", "st").out, "stripe\n")
	assert.NotContains(t, c.run("__complete", "show", "st").out, "mail")
	assert.Contains(t, c.run("__complete", "list", "--state", "").out, "half-open\n")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		assert.Contains(t, c.ok("completion", shell), "breakerctl")
	}
	assert.Contains(t, c.ok(), "Exit codes")
}
