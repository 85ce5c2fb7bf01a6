package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The example says itself, by its exit status, whether it came out as it should.
func TestTheExampleComesOut(t *testing.T) {
	program := filepath.Join(t.TempDir(), "sql-store")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = exec.CommandContext(t.Context(), program).CombinedOutput()
	require.NoError(t, err, string(out))
	rest := string(out)
	for _, part := range []string{
		"THE PROVIDER IS DOWN", "web      failed", "worker   failed", "web      failed",
		"OPEN FOR BOTH", "worker   not made", "restart  not made",
		"THE COOLDOWN IS OVER", "restart  ok", "web      ok",
		"ITS HISTORY", "closed -> open: consecutive_failures", "restart  open -> half-open", "half-open -> closed",
	} {
		_, after, found := strings.Cut(rest, part)
		require.True(t, found, "%q is not where it should be in:\n%s", part, out)
		rest = after
	}
}
