// Command mutate breaks the rules of the circuits on purpose, one at a time in a
// copy of the root module, and reports whether a test finds it. It exits 1 if a
// mutant survives. Run it with `make mutants`, for one rule with
// `make mutants MUTANTS="-rule 8"`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A mutant is one mistake that somebody could make.
type mutant struct {
	rule     int // of docs/state-machine.md
	what     string
	file     string
	old, new string // old stands in the file just once
	tests    string // a pattern of those that should find it
}

const (
	buildLimit = 5 * time.Minute // on a machine that is busy with other things
	testLimit  = 2 * time.Minute
)

func main() {
	rule := flag.Int("rule", 0, "break this rule only; 0: all")
	file := flag.String("file", "", "break files only whose name contains this")
	flag.Parse()
	if err := run(*rule, *file); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(rule int, file string) error {
	root, err := filepath.Abs("..")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := copyModule(root, dir); err != nil {
		return err
	}
	killed, survived := 0, 0
	for _, m := range mutants {
		if (rule != 0 && m.rule != rule) || !strings.Contains(m.file, file) {
			continue
		}
		began := time.Now()
		by, err := m.try(dir)
		if err != nil {
			return fmt.Errorf("rule %d, %s: %w", m.rule, m.what, err)
		}
		verdict := "killed by " + by
		if killed++; by == "" {
			verdict = "SURVIVED"
			killed--
			survived++
		}
		fmt.Printf("| %d | %s | `%s` | %s |\n", m.rule, m.what, m.file, verdict)
		fmt.Fprintf(os.Stderr, "%v\n", time.Since(began).Round(time.Second))
	}
	fmt.Printf("%d killed, %d survived\n", killed, survived)
	switch {
	case survived > 0:
		return errors.New("a mistake in a rule is not found")
	case killed == 0:
		return errors.New("no mutant is of that rule")
	}
	return nil
}

// copyModule copies the root module, without the modules nested in it.
func copyModule(root, dir string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(path, "go.mod"))
			if rel != "." && (nested == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
				return fs.SkipDir
			}
			return os.MkdirAll(filepath.Join(dir, rel), 0o755)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, rel), text, 0o644)
	})
}

// try makes the mistake in the copy in dir, runs the tests and mends it. It
// returns the name of a test that failed, "" if none did.
func (m mutant) try(dir string) (by string, err error) {
	path := filepath.Join(dir, m.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", fmt.Errorf("%q stands %d times in %s: mend the mutant", m.old, n, m.file)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), m.old, m.new, 1)), 0o644); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(path, text, 0o644)) }()

	binary := filepath.Join(dir, "mutant.test")
	if out, err := command(dir, buildLimit, "go", "test", "-c", "-o", binary, "-ldflags", "-s -w", "."); err != nil {
		return "", fmt.Errorf("it does not build: %w\n%s", err, out)
	}
	out, err := command(dir, testLimit, binary, "-test.short", "-test.failfast", "-test.timeout", "90s", "-test.run", m.tests)
	if err == nil {
		if strings.Contains(out, "no tests to run") {
			return "", fmt.Errorf("%q names no test", m.tests)
		}
		return "", nil
	}
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: "); ok {
			name, _, _ = strings.Cut(name, " ")
			return name, nil
		}
	}
	return "a run that hangs or panics", nil
}

func command(dir string, limit time.Duration, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
