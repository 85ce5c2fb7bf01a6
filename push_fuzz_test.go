package breaker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever is announced, and by whomever, concerns the circuit it names and no
// other, and makes this process remember nothing new.
func FuzzAnnouncement(f *testing.F) {
	keys := []string{"", "stripe", "a}b{c", "%", "ü/ñ", "\xff\x00", "changed breaker:{stripe}"}
	named := NewRedisStore(nil, RedisConfig{})
	for _, key := range keys {
		for _, what := range []string{"changed", "met", "", "closed"} {
			f.Add(what + " " + named.keys(key)[0])
		}
		f.Add("changed " + named.keys(key)[1])
	}
	for _, text := range []string{"", " ", "met", "changed breaker:{", "changed breaker:{}", "met breaker:{%ZZ}", "met other:{stripe}", "changed breaker:stripe"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := NewRedisStore(nil, RedisConfig{})
		for _, key := range keys {
			l := s.ledger(key)
			l.view.Store(&view{verdict: verdictRun})
			l.succeeded = time.Now()
		}
		s.views.push.take(text, nil)

		var dropped []string
		for _, key := range keys {
			l := s.ledgers.get(key)
			require.NotNil(t, l)
			if l.view.Load() == nil {
				dropped = append(dropped, key)
				require.False(t, l.calm(time.Now()), "it may not be all that is announced")
			}
		}
		require.Equal(t, len(keys), s.ledgers.count)
		require.LessOrEqual(t, len(dropped), 1)
		for _, key := range keys {
			for _, what := range []string{"changed", "met"} {
				if text == what+" "+s.keys(key)[0] {
					require.Equal(t, []string{key}, dropped)
				}
			}
		}
	})
}
