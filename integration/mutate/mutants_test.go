package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A mutant that no longer fits the code proves nothing: this finds it without
// building any.
func TestEveryRuleHasMutantsThatFitTheCode(t *testing.T) {
	rules := make(map[int]bool)
	for _, m := range mutants {
		rules[m.rule] = true
		text, err := os.ReadFile(filepath.Join("../..", m.file))
		require.NoError(t, err)
		assert.Equal(t, 1, strings.Count(string(text), m.old), "rule %d, %s: %q in %s", m.rule, m.what, m.old, m.file)
		assert.NotEqual(t, m.old, m.new)
	}
	for rule := 1; rule <= 15; rule++ {
		assert.True(t, rules[rule], "rule %d has none", rule)
	}
}
