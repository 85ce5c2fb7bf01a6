package breakerconfig

import (
	"slices"
	"strings"
)

// envPrefix begins the name of every variable that is looked at.
const envPrefix = "BREAKER_"

// overlay takes in the variables of the environment, each "NAME=value".
func (d *document) overlay(environ []string, ps *problems) {
	inFile := make(map[string][]string) // the circuits of the file, by their names in variables
	for name := range d.circuits {
		inFile[envName(name)] = append(inFile[envName(name)], name)
	}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		rest, ours := strings.CutPrefix(name, envPrefix)
		if !ours {
			continue
		}
		at := place{variable: name}
		if s, field := d.sectionOf(rest, at, inFile, ps); s != nil {
			s.settings[field] = setting{variableKind, value, at}
		}
	}
}

// sectionOf finds the field that a variable is for, by its name less the prefix.
func (d *document) sectionOf(name string, at place, inFile map[string][]string, ps *problems) (*section, string) {
	if field, ok := fieldNamed(name, topSchema); ok {
		return d.top, field
	}
	if rest, ok := strings.CutPrefix(name, "REDIS_"); ok {
		if field, ok := fieldNamed(rest, redisSchema); ok {
			return d.redis, field
		}
	}
	if rest, ok := strings.CutPrefix(name, "DEFAULT_"); ok {
		if field, ok := fieldNamed(rest, policySchema); ok {
			return d.standard, field
		}
	}
	if rest, ok := strings.CutPrefix(name, "CIRCUITS_"); ok {
		if s, field := d.circuitOf(rest, at, inFile, ps); field != "" {
			return s, field
		}
	}
	ps.add(at, "", "matches no setting")
	return nil, ""
}

// circuitOf takes apart "STRIPE_MAX_COOLDOWN": it is max_cooldown of stripe,
// unless the file has a circuit stripe_max and none that is stripe. A circuit
// that is not in the file is made, named in small letters.
func (d *document) circuitOf(name string, at place, inFile map[string][]string, ps *problems) (*section, string) {
	var circuit, field string // of the longest field that fits
	var found []string        // the circuits of the file that fit, by the longest field
	for f := range policySchema {
		c, ok := strings.CutSuffix(name, "_"+strings.ToUpper(f))
		if !ok {
			continue
		}
		known := inFile[c]
		if better := len(known) > 0 && len(found) == 0; better || (len(known) > 0) == (len(found) > 0) && len(f) > len(field) {
			circuit, field, found = c, f, known
		}
	}
	switch {
	case len(found) > 1:
		slices.Sort(found)
		ps.add(at, "", "may mean each of the circuits %q: rename one of them, or set it in the file", found)
		return nil, field
	case len(found) == 1:
		return d.circuits[found[0]], field
	case circuit == "":
		return nil, ""
	}
	key := strings.ToLower(circuit)
	if d.circuits[key] == nil {
		d.circuits[key] = newSection(circuitPath(key), at)
	}
	return d.circuits[key], field
}

func fieldNamed(variable string, s schema) (string, bool) {
	for field := range s {
		if strings.ToUpper(field) == variable {
			return field, true
		}
	}
	return "", false
}

// envName is the name of a circuit as variables have it.
func envName(circuit string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, circuit)
}
