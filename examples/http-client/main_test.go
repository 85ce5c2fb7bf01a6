package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The example says itself, by its exit status, whether it came out as it should.
func TestTheExampleComesOut(t *testing.T) {
	program := filepath.Join(t.TempDir(), "http-client")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = exec.CommandContext(t.Context(), program).CombinedOutput()
	require.NoError(t, err, string(out))

	rest := string(out)
	for _, part := range []string{
		"THE PROVIDER IS UP", "net/http   10 ok, 0 failed", "resty      10 ok, 0 failed", "received 20 requests",
		"THE PROVIDER IS DOWN", "0 ok, 1 failed, 10 spared", "0 ok, 1 failed, 10 spared", "received 5 requests",
		"answers 503, Retry-After: ",
		"THE PROVIDER IS UP AGAIN", "10 ok, 0 failed", "10 ok, 0 failed",
		"ITS ANSWERS BREAK OFF", "0 ok, 1 failed, 10 spared", "0 ok, 1 failed, 10 spared", "received 5 requests",
	} {
		_, after, found := strings.Cut(rest, part)
		require.True(t, found, "%q is not where it should be in:\n%s", part, out)
		rest = after
	}
	assert.LessOrEqual(t, len(strings.Split(string(out), "\n")), 40)
}
