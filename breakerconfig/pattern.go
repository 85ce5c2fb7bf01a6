package breakerconfig

import (
	"cmp"
	"slices"
	"strings"

	"github.com/breakerkit/breaker"
)

// A pattern is a policy for all keys that its text fits.
type pattern struct {
	text   string
	policy breaker.Policy
}

// Patterns come in the order in which they are tried.
type patterns []pattern

// sort puts the more specific ones first.
func (ps patterns) sort() {
	stars := func(p pattern) int { return strings.Count(p.text, "*") }
	slices.SortFunc(ps, func(a, b pattern) int {
		return cmp.Or(
			cmp.Compare(len(b.text)-stars(b), len(a.text)-stars(a)),
			cmp.Compare(stars(a), stars(b)),
			cmp.Compare(a.text, b.text))
	})
}

// policyFor is a Config.PolicyFor.
func (ps patterns) policyFor(key string) (breaker.Policy, bool) {
	for _, p := range ps {
		if fits(p.text, key) {
			return p.policy, true
		}
	}
	return breaker.Policy{}, false
}

// fits reports whether pattern fits key. Between its ends each piece is taken
// where it is found first: what is left for the others is then the longest.
func fits(pattern, key string) bool {
	first, rest, starred := strings.Cut(pattern, "*")
	if !starred {
		return pattern == key
	}
	key, ok := strings.CutPrefix(key, first)
	if !ok {
		return false
	}
	i := strings.LastIndex(rest, "*")
	last := rest[i+1:]
	if key, ok = strings.CutSuffix(key, last); !ok {
		return false
	}
	if i < 0 {
		return true
	}
	for piece := range strings.SplitSeq(rest[:i], "*") {
		if _, key, ok = strings.Cut(key, piece); !ok {
			return false
		}
	}
	return true
}
