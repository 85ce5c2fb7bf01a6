// Command licences writes docs/licences.md: every module that a package or a
// test of this repository is built from, and its licence. Run it with `make
// licences`.
package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	page = "docs/licences.md"
	own  = "github.com/breakerkit/breaker"
)

func main() {
	text, err := generate("../..")
	if err == nil {
		err = os.WriteFile(filepath.Join("../..", page), text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

// A used module is one that something here is built from.
type used struct {
	dir string   // where its files are
	by  []string // the folders of the modules that need it
}

// generate returns the page for the repository at root.
func generate(root string) ([]byte, error) {
	all := make(map[string]used)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() == ".git" {
			return skip(err, d)
		}
		if d.Name() != "go.mod" {
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		return collect(all, filepath.Dir(path), filepath.ToSlash(folder))
	})
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "# Licences\n\nEvery module that a package, a tool or a test here is built from. "+
		"Programs that import `%s` are built from what the first folder, `.`, needs without its tests: "+
		"see [dependencies.md](dependencies.md). What that folder needs, nearly every other does too. `make licences` writes this page; a test says when it is out of date.\n\n"+
		"| module | licence | needed by |\n|---|---|---|\n", own)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		name, err := licenceOf(all[path].dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		by := all[path].by
		if slices.Contains(by, ".") {
			by = []string{"."} // and so by nearly all others
		}
		fmt.Fprintf(&text, "| `%s` | %s | `%s` |\n", path, name, strings.Join(by, "`, `"))
	}
	return text.Bytes(), nil
}

func skip(err error, d fs.DirEntry) error {
	if err == nil && d.IsDir() {
		return fs.SkipDir
	}
	return err
}

// collect adds what the packages and tests of the module in dir are built from.
func collect(all map[string]used, dir, folder string) error {
	cmd := exec.Command("go", "list", "-deps", "-test", "-f", "{{with .Module}}{{.Path}}\t{{.Dir}}{{end}}", "./...")
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), "GOWORK=off"), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list in %s: %w", dir, err)
	}
	for line := range strings.Lines(string(out)) {
		path, where, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok || path == own || strings.HasPrefix(path, own+"/") {
			continue
		}
		u := all[path]
		u.dir = where
		if !slices.Contains(u.by, folder) {
			u.by = append(u.by, folder)
		}
		all[path] = u
	}
	return nil
}

// known licences, by words that no other has.
var known = []struct {
	name  string
	words []string
}{
	{"Apache-2.0", []string{"Apache License", "Version 2.0"}},
	{"MPL-2.0", []string{"Mozilla Public License", "2.0"}},
	{"MIT", []string{"Permission is hereby granted, free of charge", "without restriction"}},
	{"ISC", []string{"Permission to use, copy, modify, and/or distribute this software"}},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "endorse or promote products"}},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms"}},
}

// licenceOf reads the licence of the module in dir.
func licenceOf(dir string) (string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, f := range files {
		upper := strings.ToUpper(f.Name())
		if !strings.HasPrefix(upper, "LICEN") && !strings.HasPrefix(upper, "COPYING") {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return "", err
		}
		if name := nameOf(string(raw)); name != "" {
			return name, nil
		}
	}
	return "", fmt.Errorf("no licence that is known here")
}

// nameOf names the licences in a text.
func nameOf(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	var names []string
	for _, k := range known {
		if slices.ContainsFunc(k.words, func(w string) bool { return !strings.Contains(text, w) }) {
			continue
		}
		if k.name == "BSD-2-Clause" && slices.Contains(names, "BSD-3-Clause") {
			continue
		}
		names = append(names, k.name)
	}
	return strings.Join(names, " and ")
}
