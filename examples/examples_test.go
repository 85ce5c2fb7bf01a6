package examples_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker/internal/redistest"
)

// Each example says itself, by its exit status, whether it came out as it
// should. What is asserted here is that, and what a reader sees.

func TestQuickstart(t *testing.T) {
	t.Parallel() // it waits more than it works
	out, code := start(t, "quickstart")
	require.Equal(t, 0, code, out)
	assertReadable(t, out)
	assertInOrder(t, out,
		"the provider is up", "x ok",
		"THE PROVIDER GOES DOWN", "5 x FAILED", "circuit open: 5 calls failed in a row",
		"circuit half-open: the cooldown is over", "1 x FAILED", "circuit open: that call failed",
		"THE PROVIDER IS UP AGAIN", "circuit half-open", "1 x ok", "circuit closed: that call went well", "x ok",
		"calls wanted", "calls made", "calls spared", "it is now closed")
	assert.Regexp(t, `(?m)^calls spared +[1-9]\d* `, out)
	assert.Regexp(t, `(?m)^circuit opened +1 `, out)
}

func TestFleet(t *testing.T) {
	run := func(t *testing.T, size string, args ...string) {
		t.Parallel() // it waits more than it works
		out, code := start(t, "fleet", append(args, "-workers", size, "-sick", "3s")...)
		require.Equal(t, 0, code, out)
		assertReadable(t, out)
		assertInOrder(t, out,
			size+" processes call the provider",
			"THE PROVIDER GETS SICK", "circuit open: the fleet's last",
			"THE PROVIDER IS WELL AGAIN", "circuit closed: that call went well",
			"calls wanted", "by "+size+" processes", "calls made", "calls spared")
		assert.Regexp(t, `(?m)^calls spared +[1-9]\d+ `, out)
		assert.Regexp(t, `(?m)^circuit opened +1 .* noticed by worker-\d+, and told to it alone$`, out)
		assert.Regexp(t, `(?m)^probes +[1-9]\d* +never more than 1 at once$`, out)
		assert.Regexp(t, `(?m)^resumed +`+size+` +of `+size+` processes; the circuit is closed$`, out)
	}
	t.Run("on the Redis within", func(t *testing.T) { run(t, "4") })
	t.Run("on a real server, which keeps nothing of it", func(t *testing.T) {
		server := redistest.Start(t)
		run(t, "3", "-redis", server.Addr)
		keys, err := server.Client(nil).Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		assert.Empty(t, keys)
	})
}

func TestFleetSaysWhatWentWrong(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"the provider is never sick", []string{"-sick", "0s"}, 1, "fleet: the circuit did not open"},
		{"no Redis", []string{"-redis", "127.0.0.1:1"}, 1, "fleet: no Redis at 127.0.0.1:1: "},
		{"no workers", []string{"-workers", "0"}, 2, "usage: fleet [flags]"},
		{"an argument too many", []string{"now"}, 2, "usage: fleet [flags]"},
		{"asked for help", []string{"-h"}, 0, "how many worker processes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // it waits more than it works
			out, code := start(t, "fleet", c.args...)
			assert.Equal(t, c.code, code, out)
			assert.Contains(t, out, c.says)
		})
	}
}

// The workers hold the standard error of the fleet: it ends with the last one.
func TestFleetWorkersEndWhenTheirParentIsKilled(t *testing.T) {
	t.Parallel() // it waits more than it works
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	cmd := exec.Command(program("fleet"))
	cmd.Stdout, cmd.Stderr = write, write
	require.NoError(t, cmd.Start())
	require.NoError(t, write.Close())
	require.NoError(t, read.SetReadDeadline(time.Now().Add(limit)))

	killed := false
	for lines := bufio.NewScanner(read); ; {
		if !lines.Scan() {
			assert.NoError(t, lines.Err(), "workers live on")
			break
		}
		if strings.Contains(lines.Text(), "THE PROVIDER GETS SICK") {
			killed = true
			assert.NoError(t, cmd.Process.Kill())
		}
	}
	assert.Error(t, cmd.Wait())
	assert.True(t, killed)
}

func TestGracefulDegradation(t *testing.T) {
	t.Parallel() // it waits more than it works
	out, code := start(t, "graceful-degradation")
	require.Equal(t, 0, code, out)
	assertReadable(t, out)
	assertInOrder(t, out,
		"before any rate is known: no earlier rate is known,", "after breaker: HTTP status 503",
		"THE PROVIDER IS UP", "20 pages: 20 with a fresh rate,  0 with the last known", "20 requests",
		"THE PROVIDER IS DOWN", "40 pages:  0 with a fresh rate, 40 with the last known",
		"THE PROVIDER IS UP AGAIN", "10 with a fresh rate", "no page was without a rate")
}

func TestIntegrationBase(t *testing.T) {
	out, code := start(t, "integration-base")
	require.Equal(t, 0, code, out)
	assertReadable(t, out)
	assertInOrder(t, out,
		"ALL IS WELL", "crm/acme    10 ok", "crm/globex  10 ok", "mail/acme   10 ok",
		"ACCESS TO THE CRM IS REVOKED", "crm/acme     0 ok,  3 failed,  7 spared", "crm/globex  10 ok", "mail/acme   10 ok",
		"CONNECTS ANEW", "CALLS AGAIN", "crm/acme    10 ok", "crm/globex  10 ok", "mail/acme   10 ok",
		"the dead token was tried 3 times")
	assert.Contains(t, out, "-> circuit crm/acme is open (consecutive_failures)")
	assert.Contains(t, out, "-> circuit crm/acme is closed (reset)")
}

// limit is for what takes ten seconds or so.
const limit = time.Minute

var programs string // the folder they are built in

func program(name string) string { return filepath.Join(programs, name) }

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if programs, err = os.MkdirTemp("", "examples"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(programs)
		build := exec.Command("go", "build", "-o", programs, "./quickstart", "./fleet",
			"./graceful-degradation", "./integration-base")
		if out, err := build.CombinedOutput(); err != nil {
			panic(string(out))
		}
		return m.Run()
	}())
}

// start runs a program and returns all that it wrote, and its exit status.
func start(t *testing.T, name string, args ...string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(name), args...)
	cmd.WaitDelay = limit
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err, string(text))
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// assertReadable holds a page to what a terminal shows.
func assertReadable(t *testing.T, out string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	assert.LessOrEqual(t, len(lines), 40, out)
	for _, line := range lines {
		assert.LessOrEqual(t, utf8.RuneCountInString(line), 80, line)
	}
}

func assertInOrder(t *testing.T, out string, parts ...string) {
	t.Helper()
	rest := out
	for _, part := range parts {
		_, after, found := strings.Cut(rest, part)
		if !assert.True(t, found, "%q is not where it should be in:\n%s", part, out) {
			return
		}
		rest = after
	}
}
