package breakerconfig

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A section is what was set of the fields of one struct.
type section struct {
	path     string // such as "circuits.stripe"; empty for the top
	at       place
	settings map[string]setting // by the field's name
}

func newSection(path string, at place) *section {
	return &section{path, at, make(map[string]setting)}
}

// field is the whole name of one of the section's fields.
func (s *section) field(name string) string {
	if s.path == "" {
		return name
	}
	return s.path + "." + name
}

// names are those of the settings, in an order that stays the same.
func (s *section) names() []string { return slices.Sorted(maps.Keys(s.settings)) }

// A document is all that was set, by the file and then by the environment.
type document struct {
	top, redis, standard *section
	circuits             map[string]*section
}

func newDocument(at place) *document {
	return &document{
		top: newSection("", at), redis: newSection("redis", at), standard: newSection("default", at),
		circuits: make(map[string]*section),
	}
}

// read takes in a file.
func (d *document) read(file string, root *node, ps *problems) {
	each(file, "", root, ps, func(f field) {
		at := place{file: file, line: f.line}
		switch f.name {
		case "redis":
			d.redis.at = at
			d.redis.read(file, f.value, redisSchema, ps)
		case "default":
			d.standard.at = at
			d.standard.read(file, f.value, policySchema, ps)
		case "circuits":
			each(file, "circuits", f.value, ps, func(f field) {
				s := newSection(circuitPath(f.name), place{file: file, line: f.line})
				d.circuits[f.name] = s
				s.read(file, f.value, policySchema, ps)
			})
		default:
			d.top.set(f, at, topSchema, ps)
		}
	})
}

// read takes in a table whose fields all are of the schema.
func (s *section) read(file string, n *node, known schema, ps *problems) {
	each(file, s.path, n, ps, func(f field) { s.set(f, place{file: file, line: f.line}, known, ps) })
}

func (s *section) set(f field, at place, known schema, ps *problems) {
	if _, ok := known[f.name]; !ok {
		ps.add(at, s.field(f.name), "unknown field")
		return
	}
	s.settings[f.name] = setting{f.value.kind, f.value.text, at}
}

// each visits the fields of a table, each name once. A table that is not
// there, as where all of its lines are comments, has none.
func each(file, path string, n *node, ps *problems, visit func(field)) {
	if n.kind == nullKind {
		return
	}
	if n.kind != tableKind {
		ps.add(place{file: file, line: n.line}, path, "must be a table of fields, not %v", n.kind)
		return
	}
	first := make(map[string]int)
	for _, f := range n.fields {
		if line, dup := first[f.name]; dup {
			name := f.name
			if path != "" {
				name = path + "." + name
			}
			ps.add(place{file: file, line: f.line}, name, "is in line %d already", line)
			continue
		}
		first[f.name] = f.line
		visit(f)
	}
}

var simpleName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// circuitPath names a circuit; one with a dot or a blank in its name is quoted.
func circuitPath(name string) string {
	if !simpleName.MatchString(name) {
		name = strconv.Quote(name)
	}
	return "circuits." + name
}

// isPattern reports whether a circuit's name stands for many.
func isPattern(name string) bool { return strings.Contains(name, "*") }
