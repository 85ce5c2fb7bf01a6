package breakerconfig

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// maxSize is more than any configuration needs, and little enough that no
// parser is brought down by what some file happens to hold.
const maxSize = 1 << 20

// maxDepth is how deep tables and lists may lie in one another; the deepest
// that means something is 3.
const maxDepth = 16

// A kind is what a value of a file is.
type kind uint8

const (
	nullKind kind = iota
	textKind
	numberKind
	boolKind
	tableKind
	listKind
	otherKind    // what no setting is, such as a date
	variableKind // a text of the environment, where everything is text
)

var kindNames = []string{"nothing", "a text", "a number", "a truth value", "a table", "a list", "something else", "a text"}

func (k kind) String() string { return kindNames[k] }

// A node is a value of a file and the line it is on, whatever the format.
type node struct {
	line   int
	kind   kind
	text   string  // as it was written, less its quotes
	fields []field // of a table, in the order of the file
}

type field struct {
	name  string
	line  int
	value *node
}

// A syntaxError is one of the file as a whole, found by a parser.
type syntaxError struct {
	line    int // 0: unknown
	problem string
}

func (e *syntaxError) Error() string { return e.problem }

func syntaxErrorf(line int, format string, args ...any) *syntaxError {
	return &syntaxError{line, fmt.Sprintf(format, args...)}
}

var errTooDeep = fmt.Sprintf("tables or lists lie more than %d deep", maxDepth)

// parse reads a file; the ending of its name says the format.
func parse(name string, data []byte) (*node, *syntaxError) {
	if len(data) > maxSize {
		return nil, syntaxErrorf(0, "has %d bytes: at most %d", len(data), maxSize)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	switch ending := strings.ToLower(filepath.Ext(name)); ending {
	case ".yaml", ".yml":
		return parseYAML(data)
	case ".toml":
		return parseTOML(data)
	case ".json":
		return parseJSON(data)
	default:
		return nil, syntaxErrorf(0, "ends in %q: must end in .yaml, .yml, .toml or .json", ending)
	}
}

// A lineIndex has the offset at which each line ends.
type lineIndex []int

func indexLines(data []byte) (ends lineIndex) {
	for i, b := range data {
		if b == '\n' {
			ends = append(ends, i)
		}
	}
	return ends
}

// at is the line, from 1 on, that the byte at offset is on.
func (l lineIndex) at(offset int) int {
	i, _ := slices.BinarySearch(l, offset)
	return i + 1
}
