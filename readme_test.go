package breaker_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// What a fragment of the README may name without importing or declaring it.
var readmeImports = map[string]string{
	"admin":       "github.com/breakerkit/breaker/admin",
	"breaker":     "github.com/breakerkit/breaker",
	"breakertest": "github.com/breakerkit/breaker/breakertest",
	"context":     "context",
	"errors":      "errors",
	"fmt":         "fmt",
	"http":        "net/http",
	"httpbreaker": "github.com/breakerkit/breaker/httpbreaker",
	"log":         "log",
	"os":          "os",
	"redis":       "github.com/redis/go-redis/v9",
	"slog":        "log/slog",
	"synctest":    "testing/synctest",
	"testing":     "testing",
	"time":        "time",
}

const readmePrelude = `package readme

import (
	"context"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/redis/go-redis/v9"
)

var (
	ctx     context.Context
	b       *breaker.Breaker
	client  redis.UniversalClient
	charge  func(context.Context) error
	putBack func(time.Duration)
)
`

// A readmeBlock is the Go code of one fence and the line it begins on.
type readmeBlock struct {
	line int
	code string
}

// readmeBlocks returns the blocks of Go in a Markdown text.
func readmeBlocks(markdown string) (blocks []readmeBlock) {
	inside := false
	for i, line := range strings.Split(markdown, "\n") {
		switch {
		case !inside && line == "```go":
			inside = true
			blocks = append(blocks, readmeBlock{line: i + 2})
		case inside && line == "```":
			inside = false
		case inside:
			blocks[len(blocks)-1].code += line + "\n"
		}
	}
	return blocks
}

var topLevel = regexp.MustCompile(`(?m)^(package|func|type|import) `)

// file returns the block as a file of Go, with what it needs around it. Errors
// of the compiler name the lines of the README.
func (b readmeBlock) file(readme string) string {
	code := fmt.Sprintf("//line %s:%d\n%s", readme, b.line, b.code)
	if b.program() {
		return strings.Replace(code, "package main", "package readme", 1) // not to be linked
	}
	if !topLevel.MatchString(b.code) {
		code = "func _() {\n" + code + "}\n"
	}
	head := "package readme\n\n"
	for name, path := range readmeImports {
		if regexp.MustCompile(`\b` + name + `\.`).MatchString(code) {
			head += fmt.Sprintf("import %q\n", path)
		}
	}
	return head + code
}

func (b readmeBlock) program() bool { return strings.HasPrefix(b.code, "package ") }

// compileBlocks compiles the blocks as packages of this module: all fragments
// as one, each program as one of its own. An overlay shows the compiler files
// that are not in the tree.
func compileBlocks(t *testing.T, blocks []readmeBlock) error {
	t.Helper()
	dir := t.TempDir()
	root, err := os.Getwd()
	require.NoError(t, err)
	shown, packages := map[string]string{}, map[string]bool{}
	add := func(pkg, name, text string) {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		shown[filepath.Join(root, pkg, name)] = file
		packages["./"+pkg] = true
	}
	add("readme", "prelude.go", readmePrelude)
	for _, b := range blocks {
		name, pkg := fmt.Sprintf("line%d", b.line), "readme"
		if b.program() {
			pkg += name
		}
		add(pkg, name+".go", b.file(filepath.Join(root, "README.md")))
	}
	text, err := json.Marshal(map[string]any{"Replace": shown})
	require.NoError(t, err)
	overlay := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, text, 0o600))
	args := slices.AppendSeq([]string{"build", "-overlay", overlay}, maps.Keys(packages))
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

func readmeText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	return string(text)
}

func TestEveryGoBlockOfTheReadmeCompiles(t *testing.T) {
	blocks := readmeBlocks(readmeText(t))
	require.NotEmpty(t, blocks)
	require.NoError(t, compileBlocks(t, blocks))
}

func TestABlockThatDoesNotCompileIsFound(t *testing.T) {
	readme := strings.Join([]string{
		"# Title", "",
		"```go", "b.Execude(ctx, \"stripe\", charge)", "```", // line 4
		"```go", "func TestIt(t *testing.T) { t.Fadal() }", "```",
		"```go", "package main", "", "func main() { x() }", "```", // line 12
		"```go", "fmt.Println()", "err := b.Close()", "```",
		"```go", "_ = breaker.Config{Timeout: time.Second}", "```",
		"```go", "_ = breakertest.AlwaysTrip", "```", // nothing is wrong with this one
		"```sh", "go get", "```",
	}, "\n")
	err := compileBlocks(t, readmeBlocks(readme))
	require.Error(t, err)
	var lines []string
	for _, m := range regexp.MustCompile(`README\.md:(\d+)`).FindAllStringSubmatch(err.Error(), -1) {
		lines = append(lines, m[1])
	}
	assert.ElementsMatch(t, []string{"4", "7", "12", "16", "19"}, lines, err)
}

// The tables of the README name every field there is, and nothing else.
func TestTheReadmeNamesEveryFieldOfItsTables(t *testing.T) {
	text := readmeText(t)
	for _, config := range []any{breaker.Policy{}, breaker.Config{}, breaker.RedisConfig{}, breaker.MemoryConfig{}} {
		typ := reflect.TypeOf(config)
		_, table, found := strings.Cut(text, "| `"+typ.Name()+"` | default | |\n")
		require.True(t, found, typ.Name())
		table, _, _ = strings.Cut(table, "\n\n")
		var want, got []string
		for i := range typ.NumField() {
			want = append(want, typ.Field(i).Name)
		}
		for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(table, -1) {
			got = append(got, row[1])
		}
		assert.Equal(t, want, got, typ.Name())
	}
}

// A default in the README's table of the Policy is the one that the code has.
func TestTheReadmeHasTheDefaultsOfThePolicy(t *testing.T) {
	text := readmeText(t)
	p := reflect.ValueOf(breaker.DefaultPolicy)
	for i := range p.NumField() {
		row := regexp.MustCompile("(?m)^\\| `" + p.Type().Field(i).Name + "` \\| ([^|]*) \\|").FindStringSubmatch(text)
		if assert.NotNil(t, row, p.Type().Field(i).Name) {
			assert.Equal(t, defaultText(p.Field(i)), row[1], p.Type().Field(i).Name)
		}
	}
}

// defaultText is a default as the README writes it: 5, 0, 60s, 5m, off.
func defaultText(v reflect.Value) string {
	switch {
	case v.Kind() == reflect.Bool && !v.Bool():
		return "off"
	case v.IsZero():
		return "0"
	}
	text := fmt.Sprint(v.Interface())
	if text == "1m0s" {
		return "60s"
	}
	return strings.TrimSuffix(text, "0s")
}

var relativeLink = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

func TestTheLinksOfTheDocsLeadSomewhere(t *testing.T) {
	files, err := filepath.Glob("*.md")
	require.NoError(t, err)
	require.NoError(t, filepath.WalkDir("docs", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			files = append(files, path)
		}
		return err
	}))
	links := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, link := range relativeLink.FindAllStringSubmatch(string(text), -1) {
			links++
			_, err := os.Stat(filepath.Join(filepath.Dir(file), link[1]))
			assert.NoError(t, err, file)
		}
	}
	require.NotZero(t, links)
}
