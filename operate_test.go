package breaker_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

func TestTheHistoryNamesTheOperator(t *testing.T) {
	eachStore(t, func(t *testing.T, join join) {
		b := join(breaker.Config{Instance: "web-1"})
		ann := breaker.WithOperator(bg, "ann")
		require.NoError(t, b.Force(ann, "stripe", breaker.Override{State: breaker.StateOpen}))
		require.NoError(t, b.ClearOverride(ann, "stripe"))
		require.NoError(t, b.Reset(ann, "stripe"))
		require.NoError(t, b.Force(ann, "stripe", breaker.Override{State: breaker.StateOpen, By: "bob"}))
		require.NoError(t, b.Reset(bg, "stripe"))
		require.NoError(t, b.Reset(breaker.WithOperator(bg, ""), "stripe"))
		require.NoError(t, b.Reset(breaker.WithOperator(bg, strings.Repeat("x", 1000)), "stripe"))

		var by []string
		for _, e := range historyOf(t, b, "stripe") {
			if e.Kind != breaker.EventTransition {
				by = append(by, e.By)
			}
		}
		assert.Equal(t, []string{strings.Repeat("x", breaker.MaxErrorLength), "web-1", "web-1", "bob", "ann", "ann", "ann"}, by)
	})
}
