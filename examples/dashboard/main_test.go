package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The dashboard is used while the example runs, as an operator would.
func TestDashboard(t *testing.T) {
	const limit = 60 * time.Second
	program := filepath.Join(t.TempDir(), "dashboard")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	cmd := exec.CommandContext(t.Context(), program, "-addr", "127.0.0.1:0", "-for", "25s")
	cmd.WaitDelay = limit
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stdout)
	read := func(name string) string {
		require.True(t, lines.Scan(), name)
		value, found := strings.CutPrefix(lines.Text(), name)
		require.True(t, found, lines.Text())
		value, _, _ = strings.Cut(strings.TrimSpace(value), ",")
		return value
	}
	page, token, metrics, shop := read("dashboard"), read("token"), read("metrics"), read("the shop")

	ask := func(method, url, body string) (int, http.Header, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, resp.Header, string(text)
	}
	status, _, text := ask("GET", page, "")
	assert.Equal(t, 200, status)
	assert.Contains(t, text, "The shop&#39;s circuits")

	api := page + "api/v1/circuit-breakers"
	require.Eventually(t, func() bool {
		_, _, text := ask("GET", api+"?state=open", "")
		return strings.Contains(text, `"key":"payments"`)
	}, limit, 20*time.Millisecond, "payments goes down")
	_, _, text = ask("GET", metrics, "")
	assert.Regexp(t, `breaker_transitions_total{key="payments",to="open"} [1-9]`, text)
	assert.Contains(t, text, `breaker_circuit_state{key="mail",state="closed"}`)

	// Held open, for the test's sake longer than any cooldown: never a 2xx.
	status, _, _ = ask("POST", api+"/payments/force-open", `{"duration":"1s","reason":"to see","by":"ann"}`)
	require.Equal(t, 200, status)
	status, header, _ := ask("GET", shop, "")
	assert.Equal(t, 503, status)
	wait, err := strconv.Atoi(header.Get("Retry-After"))
	assert.NoError(t, err)
	assert.True(t, 0 <= wait && wait <= 2, wait)
	_, _, text = ask("GET", api+"/payments/history", "")
	var history struct{ Events []struct{ By, Kind string } }
	require.NoError(t, json.Unmarshal([]byte(text), &history))
	assert.Contains(t, fmt.Sprint(history.Events), "{ann override}")

	rest := ""
	for lines.Scan() {
		rest += lines.Text() + "\n"
	}
	require.NoError(t, cmd.Wait(), rest)
	assert.Regexp(t, `(?m)^mail( +[1-9]\d*){5}$`, rest)
	assert.Regexp(t, `(?m)^payments( +[1-9]\d*){5}$`, rest)
	assert.Regexp(t, `(?m)^stock( +[1-9]\d*){5}$`, rest)
}
