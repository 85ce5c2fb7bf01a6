package breakerconfig

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"

	"github.com/breakerkit/breaker"
)

// Settings are what a configuration comes to.
type Settings struct {
	// Config is for breaker.New: its Policy, Policies, PolicyFor, OnStoreError
	// and StoreTimeout are set, the other fields are the program's to set.
	//
	// A circuit named exactly goes before any pattern. Of the patterns that fit
	// a key the one with the most characters beside its stars counts; of those
	// the one with the fewest stars; of those the first in the order of bytes.
	// A star stands for any characters, none and "/" included.
	Config breaker.Config

	// RedisAddress is where the Redis of the circuits is; empty: none was
	// named. The client stays the program's to make, with the password, TLS and
	// pool it needs.
	RedisAddress string

	// Redis is for breaker.NewRedisStore.
	Redis breaker.RedisConfig
}

// Load reads the file at path, then the environment of the process, which
// wins. An empty path means the environment alone. The ending of the file's
// name, .yaml, .yml, .toml or .json, says its format.
//
// All that is wrong is in the error, each an *Error. A file that can't be read
// is an error of package os.
func Load(path string) (Settings, error) {
	var data []byte
	if path != "" {
		var err error
		if data, err = os.ReadFile(path); err != nil {
			return Settings{}, fmt.Errorf("breakerconfig: %w", err)
		}
	}
	return Parse(path, data, os.Environ())
}

// Parse is Load for a file that has been read, such as one of an embed.FS, and
// an environment of "NAME=value" texts. With an empty name there is no file.
func Parse(name string, data []byte, environ []string) (Settings, error) {
	var ps problems
	d := newDocument(place{file: name})
	if name != "" {
		root, wrong := parse(name, data)
		if wrong != nil {
			ps.add(place{file: name, line: wrong.line}, "", "%s", wrong.problem)
			return Settings{}, ps.err()
		}
		d.read(name, root, &ps)
	}
	d.overlay(environ, &ps)
	settings := d.settings(&ps)
	if len(ps) > 0 {
		return Settings{}, ps.err()
	}
	return settings, nil
}

var storeErrorPolicies = map[string]breaker.StoreErrorPolicy{
	"":            breaker.FailOpen,
	"fail_open":   breaker.FailOpen,
	"fail_closed": breaker.FailClosed,
	"fail_local":  breaker.FailLocal,
}

func (d *document) settings(ps *problems) Settings {
	var top topFields
	var redis redisFields
	d.top.fill(reflect.ValueOf(&top).Elem(), topSchema, ps)
	d.redis.fill(reflect.ValueOf(&redis).Elem(), redisSchema, ps)
	onStoreError, known := storeErrorPolicies[top.OnStoreError]
	if !known {
		ps.add(d.top.settings["on_store_error"].at, "on_store_error",
			"%q is not one of fail_open, fail_closed, fail_local", top.OnStoreError)
	}
	if top.StoreTimeout < 0 {
		ps.add(d.top.settings["store_timeout"].at, "store_timeout", "is %v: must not be negative", top.StoreTimeout)
	}
	s := Settings{
		Config:       breaker.Config{OnStoreError: onStoreError, StoreTimeout: top.StoreTimeout},
		RedisAddress: redis.Address,
		Redis:        breaker.RedisConfig{Prefix: redis.Prefix, MaxStaleness: redis.MaxStaleness, Settle: redis.Settle},
	}
	d.policies(&s.Config, ps)
	return s
}

func (d *document) policies(cfg *breaker.Config, ps *problems) {
	d.standard.fill(reflect.ValueOf(&cfg.Policy).Elem(), policySchema, ps)
	wrong := d.standard.validate(cfg.Policy, nil, ps)
	var found patterns
	for _, name := range slices.Sorted(maps.Keys(d.circuits)) {
		s, p := d.circuits[name], cfg.Policy
		if len(name) > breaker.MaxKeyLength {
			ps.add(s.at, "circuits", "a name has %d bytes: at most %d", len(name), breaker.MaxKeyLength)
			continue
		}
		s.fill(reflect.ValueOf(&p).Elem(), policySchema, ps)
		s.validate(p, wrong, ps)
		if isPattern(name) {
			found = append(found, pattern{name, p})
			continue
		}
		if cfg.Policies == nil {
			cfg.Policies = make(map[string]breaker.Policy)
		}
		cfg.Policies[name] = p
	}
	if len(found) > 0 {
		found.sort()
		cfg.PolicyFor = found.policyFor
	}
}

// fill sets the fields of a struct that the section sets.
func (s *section) fill(to reflect.Value, known schema, ps *problems) {
	for _, name := range s.names() {
		if problem := s.settings[name].assign(to.Field(known[name])); problem != "" {
			ps.add(s.settings[name].at, s.field(name), "%s", problem)
		}
	}
}

// A contradiction is what Policy.Validate says of one field.
type contradiction struct{ field, problem string }

var contradictions = regexp.MustCompile(`Policy\.(\w+) (.*)$`)

// validate adds what is wrong with the section's policy p as a whole, where the
// field was set, or where the section begins if it was not set here. What is
// in but, since the defaults have it, has been said.
func (s *section) validate(p breaker.Policy, but []contradiction, ps *problems) (wrong []contradiction) {
	for _, err := range split(p.Validate()) {
		m := contradictions.FindStringSubmatch(err.Error())
		if m == nil {
			ps.add(s.at, s.path, "%v", err)
			continue
		}
		c := contradiction{fileName(m[1]), m[2]}
		wrong = append(wrong, c)
		if slices.Contains(but, c) {
			continue
		}
		at := s.at
		if set, ok := s.settings[c.field]; ok {
			at = set.at
		}
		ps.add(at, s.field(c.field), "%s", c.problem)
	}
	return wrong
}

// fileName is the name in files of a field of Policy.
func fileName(goName string) string {
	f, _ := reflect.TypeFor[breaker.Policy]().FieldByName(goName)
	for name, i := range policySchema {
		if len(f.Index) == 1 && f.Index[0] == i {
			return name
		}
	}
	return goName
}

// split takes a joined error apart.
func split(err error) []error {
	if err == nil {
		return nil
	}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return joined.Unwrap()
	}
	return []error{err}
}
