package breakerconfig

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// parseTOML takes the values from the decoder, which knows what tables, dotted
// names and inline tables amount to, and the lines from the syntax tree, which
// alone has them.
func parseTOML(data []byte) (*node, *syntaxError) {
	var values map[string]any
	if err := toml.Unmarshal(data, &values); err != nil {
		var wrong *toml.DecodeError
		if errors.As(err, &wrong) {
			line, _ := wrong.Position()
			return nil, syntaxErrorf(line, "%s", strings.TrimPrefix(wrong.Error(), "toml: "))
		}
		return nil, syntaxErrorf(0, "%s", strings.TrimPrefix(err.Error(), "toml: "))
	}
	lines := tomlLines{of: make(map[string]int), index: indexLines(data)}
	lines.read(data)
	return lines.table(values, nil)
}

// tomlLines knows the line of each name, by its path.
type tomlLines struct {
	of    map[string]int
	index lineIndex
}

func pathOf(names []string) string { return fmt.Sprintf("%q", names) }

func (l *tomlLines) read(data []byte) {
	var p unstable.Parser
	p.Reset(data)
	var table []string
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = l.name(nil, e.Key())
		case unstable.KeyValue:
			l.pair(table, e)
		}
	}
}

// pair takes in a name with its value, which may be an inline table.
func (l *tomlLines) pair(table []string, e *unstable.Node) {
	path := l.name(table, e.Key())
	if e.Value().Kind != unstable.InlineTable {
		return
	}
	for inner := e.Value().Children(); inner.Next(); {
		if inner.Node().Kind == unstable.KeyValue {
			l.pair(path, inner.Node())
		}
	}
}

// name takes in a dotted name, each part where it is named first. What lies too
// deep needs no line: it is refused.
func (l *tomlLines) name(table []string, parts unstable.Iterator) []string {
	path := slices.Clone(table)
	for parts.Next() && len(path) <= maxDepth {
		path = append(path, string(parts.Node().Data))
		if _, known := l.of[pathOf(path)]; !known {
			l.of[pathOf(path)] = l.index.at(int(parts.Node().Raw.Offset))
		}
	}
	return path
}

func (l *tomlLines) line(path []string) int { return max(l.of[pathOf(path)], 1) }

func (l *tomlLines) table(values map[string]any, path []string) (*node, *syntaxError) {
	n := &node{line: l.line(path), kind: tableKind}
	if len(path) > maxDepth {
		return nil, syntaxErrorf(n.line, "%s", errTooDeep)
	}
	for name, v := range values {
		inner := append(slices.Clone(path), name)
		f := field{name: name, line: l.line(inner)}
		if table, ok := v.(map[string]any); ok {
			var err *syntaxError
			if f.value, err = l.table(table, inner); err != nil {
				return nil, err
			}
		} else {
			f.value = tomlScalar(v)
			f.value.line = f.line
		}
		n.fields = append(n.fields, f)
	}
	slices.SortFunc(n.fields, func(a, b field) int { return a.line - b.line })
	return n, nil
}

func tomlScalar(v any) *node {
	switch v := v.(type) {
	case string:
		return &node{kind: textKind, text: v}
	case int64:
		return &node{kind: numberKind, text: strconv.FormatInt(v, 10)}
	case float64:
		return &node{kind: numberKind, text: strconv.FormatFloat(v, 'g', -1, 64)}
	case bool:
		return &node{kind: boolKind, text: strconv.FormatBool(v)}
	case []any:
		return &node{kind: listKind}
	}
	return &node{kind: otherKind, text: fmt.Sprint(v)}
}
