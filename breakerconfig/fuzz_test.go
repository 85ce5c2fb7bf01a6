package breakerconfig_test

import (
	"errors"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerconfig"
)

// What YAML takes as the end of a line, too.
var lineBreaks = regexp.MustCompile("\r\n|[\n\r\u0085\u2028\u2029]")

// Whatever a file and a variable hold, they come to settings that New accepts,
// or to errors that each say where. Beside the seeds here there are some in
// testdata/fuzz.
func FuzzParse(f *testing.F) {
	for name, text := range wholeFiles {
		f.Add(name, []byte(text), "BREAKER_CIRCUITS_STRIPE_CONSECUTIVE_FAILURES=3", "stripe")
	}
	f.Add("b.yaml", []byte("circuits: &c {a: *c}"), "BREAKER_", "")
	f.Add("b.toml", []byte("a.b.c = 1\n[[a]]\n"), "BREAKER_DEFAULT_COOLDOWN=1s", "a")
	f.Add("", []byte(nil), "BREAKER_CIRCUITS___COOLDOWN=1ms", "_")
	store := breaker.NewMemoryStore(breaker.MemoryConfig{})
	f.Fuzz(func(t *testing.T, name string, data []byte, variable, key string) {
		s, err := breakerconfig.Parse(name, data, []string{variable})
		if err != nil {
			var joined interface{ Unwrap() []error }
			require.True(t, errors.As(err, &joined))
			for _, one := range joined.Unwrap() {
				var e *breakerconfig.Error
				require.ErrorAs(t, one, &e)
				assert.NotEmpty(t, e.Problem)
				assert.Equal(t, e.Variable == "", e.File != "", "a file or a variable: %v", e)
				assert.LessOrEqual(t, e.Line, len(lineBreaks.FindAll(data, -1))+2)
				assert.GreaterOrEqual(t, e.Line, 0)
			}
			assert.Equal(t, breakerconfig.Settings{}, s)
			return
		}
		b, err := breaker.New(store, s.Config)
		require.NoError(t, err)
		defer b.Close()
		if len(key) <= breaker.MaxKeyLength {
			_, err = b.Snapshot(t.Context(), key)
			require.NoError(t, err)
		}
	})
}
