package breakerconfig_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerconfig"
)

// A watched is a Breaker whose policies come from a file.
type watched struct {
	*breaker.Breaker
	t       *testing.T
	reports chan error
	cancel  context.CancelFunc
	ended   chan error
}

// watchFile begins to watch path and waits for the first report, which it returns.
func watchFile(t *testing.T, path string) (*watched, error) {
	t.Helper()
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	w := &watched{b, t, make(chan error, 100), cancel, make(chan error, 1)}
	go func() { w.ended <- breakerconfig.Watch(ctx, path, b, func(err error) { w.reports <- err }) }()
	t.Cleanup(func() {
		w.stop()
		assert.NoError(t, b.Close())
	})
	return w, w.next()
}

// next is the next report.
func (w *watched) next() error {
	w.t.Helper()
	select {
	case err := <-w.reports:
		return err
	case err := <-w.ended:
		require.Fail(w.t, "Watch has ended", "%v", err)
	case <-time.After(20 * time.Second):
		require.Fail(w.t, "no report")
	}
	return nil
}

func (w *watched) stop() {
	w.cancel()
	select {
	case err := <-w.ended:
		assert.NoError(w.t, err)
		w.ended <- nil // for a second stop
	case <-time.After(20 * time.Second):
		assert.Fail(w.t, "Watch has not ended")
	}
}

// threshold is the policy in force.
func (w *watched) threshold(key string) int {
	w.t.Helper()
	s, err := w.Snapshot(context.Background(), key)
	require.NoError(w.t, err)
	return s.Policy.ConsecutiveFailures
}

// becomes waits until a report says that the file is good and its threshold in
// force. A file written in steps may have been read empty in between.
func (w *watched) becomes(threshold int) {
	w.t.Helper()
	for w.next() != nil || w.threshold("k") != threshold {
	}
}

func thresholdFile(n int) string { return fmt.Sprintf("default:\n  consecutive_failures: %d\n", n) }

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// replace writes a new file beside path and renames it, as editors do.
func replace(t *testing.T, path, text string) {
	t.Helper()
	write(t, path+".tmp", text)
	require.NoError(t, os.Rename(path+".tmp", path))
}

func TestAFileIsReloadedHoweverItIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "breaker.yaml")
	write(t, path, thresholdFile(2))
	w, err := watchFile(t, path)
	require.NoError(t, err)
	require.Equal(t, 2, w.threshold("k"), "the first report is of the file as it is")

	write(t, path, thresholdFile(3))
	w.becomes(3)
	for n := 4; n < 7; n++ { // again and again: the watch must not stay at the old file
		replace(t, path, thresholdFile(n))
		w.becomes(n)
	}
	// As vim does it: the old file becomes a backup, then the new one is written.
	require.NoError(t, os.Rename(path, path+"~"))
	write(t, path, thresholdFile(7))
	w.becomes(7)
}

// A ConfigMap in Kubernetes: the file is a link into ..data, which is a link to
// a folder; an update makes a new folder and renames a new link over ..data.
func TestAConfigMapIsReloaded(t *testing.T) {
	mount := t.TempDir()
	update := func(n int) {
		t.Helper()
		folder := fmt.Sprintf("..2026_11_30_%d", n)
		require.NoError(t, os.Mkdir(filepath.Join(mount, folder), 0o700))
		write(t, filepath.Join(mount, folder, "breaker.yaml"), thresholdFile(n))
		old, _ := os.Readlink(filepath.Join(mount, "..data"))
		require.NoError(t, os.Symlink(folder, filepath.Join(mount, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(mount, "..data_tmp"), filepath.Join(mount, "..data")))
		if old != "" {
			require.NoError(t, os.RemoveAll(filepath.Join(mount, old)))
		}
	}
	update(2)
	path := filepath.Join(mount, "breaker.yaml")
	require.NoError(t, os.Symlink("..data/breaker.yaml", path))
	w, err := watchFile(t, path)
	require.NoError(t, err)
	require.Equal(t, 2, w.threshold("k"))
	for n := 3; n < 7; n++ {
		update(n)
		w.becomes(n)
	}
}

// A release whose folder is named by a link somewhere above the file.
func TestALinkAboveTheFileIsFollowed(t *testing.T) {
	dir := t.TempDir()
	for n := 2; n < 5; n++ {
		folder := filepath.Join(dir, fmt.Sprint("release-", n), "etc")
		require.NoError(t, os.MkdirAll(folder, 0o700))
		write(t, filepath.Join(folder, "breaker.yaml"), thresholdFile(n))
	}
	turnTo := func(n int) {
		t.Helper()
		require.NoError(t, os.Symlink(fmt.Sprint("release-", n), filepath.Join(dir, "next")))
		require.NoError(t, os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "current")))
	}
	turnTo(2)
	w, err := watchFile(t, filepath.Join(dir, "current", "etc", "breaker.yaml"))
	require.NoError(t, err)
	turnTo(3)
	w.becomes(3)
	turnTo(4)
	w.becomes(4)
	write(t, filepath.Join(dir, "release-4", "etc", "breaker.yaml"), thresholdFile(5)) // and what it leads to
	w.becomes(5)
}

func TestAFileThatComesLateIsSeen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet")
	path := filepath.Join(dir, "breaker.yaml")
	w, err := watchFile(t, path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Equal(t, 5, w.threshold("k"), "what New was given stays")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	replace(t, path, thresholdFile(3))
	w.becomes(3)

	require.NoError(t, os.RemoveAll(filepath.Dir(dir))) // and goes, and comes again
	require.ErrorIs(t, w.next(), fs.ErrNotExist)
	require.Equal(t, 3, w.threshold("k"))
	require.NoError(t, os.MkdirAll(dir, 0o700))
	write(t, path, thresholdFile(4))
	w.becomes(4)
}

func TestABrokenFileChangesNothingAndIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "breaker.yaml")
	write(t, path, thresholdFile(2))
	w, err := watchFile(t, path)
	require.NoError(t, err)
	for _, text := range []string{
		"", "\n", "default: [", "default:\n  consecutive_failures: 3\n  x: 1\n", "default:\n  consecutive_failures: 3\ncircuits: {k: {failure_rate: 7}}\n",
	} {
		replace(t, path, text)
		err := w.next()
		var wrong *breakerconfig.Error
		require.ErrorAs(t, err, &wrong)
		assert.Equal(t, path, wrong.File)
		assert.Equal(t, strings.TrimSpace(text) != "", wrong.Line > 0)
		assert.Equal(t, 2, w.threshold("k"))
	}
	require.NoError(t, os.Remove(path))
	require.ErrorIs(t, w.next(), fs.ErrNotExist)
	assert.Equal(t, 2, w.threshold("k"))
	replace(t, path, thresholdFile(2))
	require.NoError(t, w.next())
	w.stop()
	replace(t, path, thresholdFile(9))
	assert.Empty(t, w.reports, "each was reported once, and none after the end")
	assert.Equal(t, 2, w.threshold("k"))
}

func TestAReloadLosesNoState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "breaker.yaml")
	write(t, path, "default: {consecutive_failures: 9, cooldown: 60s}")
	w, err := watchFile(t, path)
	require.NoError(t, err)
	down := errors.New("down")
	fail := func(key string, n int) {
		for range n {
			_ = w.Execute(t.Context(), key, func(context.Context) error { return down })
		}
	}
	fail("open", 9)
	fail("counting", 3)
	before, err := w.Snapshot(t.Context(), "open")
	require.NoError(t, err)
	require.Equal(t, breaker.StateOpen, before.State)

	replace(t, path, "default: {consecutive_failures: 4, cooldown: 1h}\ncircuits: {other*: {consecutive_failures: 1}}")
	require.NoError(t, w.next())
	after, err := w.Snapshot(t.Context(), "open")
	require.NoError(t, err)
	assert.Equal(t, breaker.StateOpen, after.State)
	assert.Equal(t, before.RetryAt, after.RetryAt)
	fail("counting", 1)
	assert.ErrorIs(t, w.Execute(t.Context(), "counting", succeeds), breaker.ErrOpen)
	assert.Equal(t, 1, w.threshold("other/1"))
}

func succeeds(context.Context) error { return nil }

func TestTheEnvironmentStaysOverAReloadedFile(t *testing.T) {
	t.Setenv("BREAKER_CIRCUITS_K_CONSECUTIVE_FAILURES", "8")
	path := filepath.Join(t.TempDir(), "breaker.json")
	write(t, path, `{"default": {"consecutive_failures": 2}}`)
	w, err := watchFile(t, path)
	require.NoError(t, err)
	assert.Equal(t, []int{8, 2}, []int{w.threshold("k"), w.threshold("else")})
	replace(t, path, `{"default": {"consecutive_failures": 3}, "circuits": {"k": {"consecutive_failures": 4}}}`)
	require.NoError(t, w.next())
	assert.Equal(t, []int{8, 3}, []int{w.threshold("k"), w.threshold("else")})
}

func TestWhatOnlyANewStartTakesInIsSaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "breaker.yaml")
	write(t, path, "redis: {address: a:1}\n"+thresholdFile(2))
	w, err := watchFile(t, path)
	require.NoError(t, err)
	replace(t, path, "redis: {address: b:1, prefix: p, settle: 1s, max_staleness: 1s}\nstore_timeout: 1s\non_store_error: fail_local\n"+thresholdFile(3))
	err = w.next()
	require.ErrorIs(t, err, breakerconfig.ErrRestart)
	assert.ErrorContains(t, err, `["on_store_error" "redis.address" "redis.max_staleness" "redis.prefix" "redis.settle" "store_timeout"]`)
	assert.Equal(t, 3, w.threshold("k"), "the policies are in place")
	replace(t, path, "redis: {address: a:1}\n"+thresholdFile(4))
	assert.NoError(t, w.next())
}

func TestOtherFilesOfTheFolderAreNoReason(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "breaker.yaml")
	write(t, path, thresholdFile(2))
	w, err := watchFile(t, path)
	require.NoError(t, err)
	lines := 0
	assert.Never(t, func() bool {
		lines++
		_ = os.WriteFile(filepath.Join(dir, "log"), []byte(fmt.Sprint(lines)), 0o600)
		return len(w.reports) > 0
	}, 300*time.Millisecond, 10*time.Millisecond)
	replace(t, path, thresholdFile(2)) // nor is a file with the same in it
	replace(t, path, thresholdFile(3))
	require.NoError(t, w.next())
	assert.Equal(t, 3, w.threshold("k"))
	assert.Empty(t, w.reports)
}

func TestMisuseOfWatchIsAnError(t *testing.T) {
	assert.ErrorIs(t, breakerconfig.Watch(t.Context(), "x.yaml", nil, nil), breaker.ErrConfig)
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
	require.NoError(t, err)
	assert.ErrorIs(t, breakerconfig.Watch(t.Context(), "", b, nil), breaker.ErrConfig)
}
