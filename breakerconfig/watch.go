package breakerconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/breakerkit/breaker"
)

// ErrRestart is what Watch reports beside new policies that it has put in
// place: something else has changed that only a new start takes in.
var ErrRestart = errors.New("breakerconfig: takes effect at the next start")

// settleDelay is how long a change is left alone before the file is read: an
// editor may write it in several steps.
const settleDelay = 50 * time.Millisecond

// Watch gives b the policies of the file at path, with the environment over it
// as Load does, and again whenever the file changes, until ctx ends. Circuits
// keep their state; see breaker.Breaker.SetPolicies. Run it in a goroutine of
// its own, after New: it returns nil when ctx has ended, and an error where the
// system lets it watch no more folders.
//
// A file that is broken, empty or gone changes nothing. A file that is written in
// place, one that is replaced by renaming, and links on the way to it that come
// to lead elsewhere, as Kubernetes updates a ConfigMap, are all seen. In a
// container, mount the folder and not the file alone (subPath): a file that is
// mounted alone stays the old one.
//
// report is told how each reading of a changed file went, from Watch's
// goroutine: nil when its policies are in place; ErrRestart, naming the fields,
// when they are but the store's address or prefix, on_store_error or
// store_timeout changed, too; any other error when nothing has changed. The
// first report is that of the file as it is when Watch begins. A nil report
// logs errors to slog.Default().
func Watch(ctx context.Context, path string, b *breaker.Breaker, report func(error)) error {
	if b == nil || path == "" {
		return fmt.Errorf("%w: breakerconfig: Watch needs a Breaker and a path", breaker.ErrConfig)
	}
	if report == nil {
		report = func(err error) {
			if err != nil {
				slog.Error("breaker: configuration not reloaded", "file", path, "error", err)
			}
		}
	}
	files, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("breakerconfig: watch %s: %w", path, err)
	}
	defer func() { _ = files.Close() }()
	w := &watch{path: path, breaker: b, report: report, files: files}
	if err := w.follow(); err != nil {
		return err
	}
	w.reload()
	return w.run(ctx)
}

type watch struct {
	path    string
	breaker *breaker.Breaker
	report  func(error)
	files   *fsnotify.Watcher

	began *Settings // the first that were whole; nil: none yet
	last  string    // what was read last: the file, or the error
}

// run reads the file again after each burst of events. The delay does not begin
// anew with each event: other files of the folder may change all the time.
func (w *watch) run(ctx context.Context) error {
	settled := time.NewTimer(0)
	settled.Stop()
	waiting := false
	wait := func() {
		if !waiting {
			waiting = true
			settled.Reset(settleDelay)
		}
	}
	defer settled.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.files.Events:
			wait()
		case <-w.files.Errors: // events were lost: look for oneself
			wait()
		case <-settled.C:
			waiting = false
			if err := w.follow(); err != nil {
				return err
			}
			w.reload()
		}
	}
}

// follow watches each folder in which a change can make the path lead to
// another file. Folders are watched, not the file: one that replaces another is
// not the one that was watched.
func (w *watch) follow() error {
	const tries = 10
	for range tries { // until nothing has changed while watches were set
		want, err := foldersOf(w.path)
		if err != nil {
			return fmt.Errorf("breakerconfig: watch %s: %w", w.path, err)
		}
		have := w.files.WatchList()
		settled := true
		for _, folder := range want {
			if !slices.Contains(have, folder) {
				settled = false
				if err := w.files.Add(folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("breakerconfig: watch %s: %w", w.path, err)
				}
			}
		}
		for _, folder := range have {
			if !slices.Contains(want, folder) {
				_ = w.files.Remove(folder) // it may be gone, and its watch with it
			}
		}
		if settled {
			break
		}
	}
	return nil
}

// foldersOf returns the folder of each link on the way along path, wherever
// that leads, and the folder at its end. Where the way ends too early, that is
// the last one that is there.
func foldersOf(path string) (folders []string, err error) {
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	const maxLinks = 40
	root := filepath.VolumeName(path) + string(filepath.Separator)
	at, rest := root, strings.TrimPrefix(path, root)
	for links := 0; ; {
		name, after, more := strings.Cut(rest, string(filepath.Separator))
		info, err := os.Lstat(filepath.Join(at, name))
		switch {
		case err == nil && info.Mode()&fs.ModeSymlink != 0 && links < maxLinks:
			links++
			folders = append(folders, at)
			to, err := os.Readlink(filepath.Join(at, name))
			if err != nil {
				return folders, nil // it is gone again, and the folder says so
			}
			if !filepath.IsAbs(to) {
				to = filepath.Join(at, to)
			}
			at, rest = root, strings.TrimPrefix(filepath.Join(to, after), root)
		case err != nil || !more:
			return append(folders, at), nil
		default:
			at, rest = filepath.Join(at, name), after
		}
	}
}

// reload reads the file and, unless it is as it was, puts its policies in place.
func (w *watch) reload() {
	data, err := os.ReadFile(w.path)
	now := "file " + string(data)
	if err != nil {
		now = "error " + err.Error()
	}
	if now == w.last {
		return
	}
	w.last = now
	if err != nil {
		w.report(fmt.Errorf("breakerconfig: %w", err))
		return
	}
	w.report(w.apply(data))
}

func (w *watch) apply(data []byte) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return &Error{File: w.path, Problem: "is empty; if it is being written, the rest will be read, too"}
	}
	s, err := Parse(w.path, data, os.Environ())
	if err != nil {
		return err
	}
	if err := w.breaker.SetPolicies(s.Config.Policy, s.Config.Policies, s.Config.PolicyFor); err != nil {
		return err
	}
	if w.began == nil {
		w.began = &s
	}
	if fields := w.began.fixedUnlike(&s); len(fields) > 0 {
		return fmt.Errorf("%w: %s: %q", ErrRestart, w.path, fields)
	}
	return nil
}

// fixedUnlike names the settings other than policies that differ.
func (s *Settings) fixedUnlike(t *Settings) []string {
	fields := []string{}
	for name, same := range map[string]bool{
		"redis.address":       s.RedisAddress == t.RedisAddress,
		"redis.prefix":        s.Redis.Prefix == t.Redis.Prefix,
		"redis.max_staleness": s.Redis.MaxStaleness == t.Redis.MaxStaleness,
		"redis.settle":        s.Redis.Settle == t.Redis.Settle,
		"on_store_error":      s.Config.OnStoreError == t.Config.OnStoreError,
		"store_timeout":       s.Config.StoreTimeout == t.Config.StoreTimeout,
	} {
		if !same {
			fields = append(fields, name)
		}
	}
	slices.Sort(fields)
	return fields
}
