package breaker

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What is read from the wire: records and replies of any shape.

func TestMissingFieldsOfARecordReadAsNeverSet(t *testing.T) {
	open := map[string]string{"version": "1", "state": "open", "generation": "3", "changed_at": "5000", "streak": "3",
		"streak_since": "4000", "opened_at": "5000", "retry_at": "9000", "reopens": "1", "last_failure_at": "5000",
		"last_error": "down", "last_instance": "a:1"}
	without := func(fields ...string) map[string]string {
		record := maps.Clone(open)
		for _, field := range fields {
			delete(record, field)
		}
		return record
	}
	p := DefaultPolicy
	for _, tt := range []struct {
		name   string
		record map[string]string
		at     int64
		want   State
	}{
		{"no record", nil, 6000, StateClosed},
		{"all of it", open, 6000, StateOpen},
		{"all of it, later", open, 9000, StateHalfOpen},
		{"no time of opening", without("opened_at"), 6000, StateOpen},
		{"no end of the cooldown", without("retry_at"), 6000, StateHalfOpen},
		{"neither", without("opened_at", "retry_at"), 6000, StateHalfOpen},
		{"no state", without("state"), 6000, StateClosed},
		{"an unknown state", map[string]string{"state": "ajar"}, 6000, StateClosed},
		{"an override by nobody knows whom", map[string]string{"override": "open"}, 6000, StateOpen},
		{"garbage", map[string]string{"generation": "x", "streak": "NaN", "window": ";,;1,2;a,b,c,d;", "failures": "0123456789012x",
			"leases": ",;;x;o,", "met_at": "1e9", "override": ""}, 6000, StateClosed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := decodeCircuit(tt.record)
			m := Moment{Now: time.UnixMilli(tt.at), Settle: 150 * time.Millisecond, Evidence: &Evidence{Process: "p"}}
			assert.Equal(t, tt.want, c.Snapshot(m, p).State)
			_, rejected := c.Acquire(m, p, "owner")
			assert.Equal(t, tt.want == StateOpen, rejected != nil)
		})
	}
}

// A wireReader reads a reply of any shape from the bytes of a fuzzer, of which
// there is always another one.
type wireReader struct{ data []byte }

func (r *wireReader) next() byte {
	if len(r.data) == 0 {
		return 0
	}
	b := r.data[0]
	r.data = r.data[1:]
	return b
}

func (r *wireReader) text() string {
	known := []string{"run", "probe", "open", "busy", "forced", "closed", "half-open", "0", "1", "-1", "9223372036854775807",
		"closed,open,1,1000,reset,2000,1,1,1,1,1", `{"at":"1","kind":"failure"}`, "1000,2,1,0;", "owner,1000;", "1"}
	n := r.next()
	if n < 128 {
		return known[int(n)%len(known)]
	}
	n = min(n-128, byte(min(len(r.data), 127)))
	s := string(r.data[:n])
	r.data = r.data[n:]
	return s
}

func (r *wireReader) value(depth int) any {
	switch n := r.next() % 9; {
	case n < 3 || depth > 3:
		return r.text()
	case n == 3:
		return int64(int8(r.next())) << (r.next() % 64)
	case n == 4:
		return nil
	case n == 5:
		return float64(r.next()) / 3
	case n == 6:
		return map[any]any{r.text(): r.value(depth + 1)}
	case n == 7:
		return errors.New(r.text())
	default:
		return r.list(depth)
	}
}

func (r *wireReader) list(depth int) []any {
	list := make([]any, r.next()%16)
	for i := range list {
		list[i] = r.value(depth + 1)
	}
	return list
}

// wireHook answers every command of a client with what its reader has.
type wireHook struct{ reader *wireReader }

func (h *wireHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *wireHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *wireHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		switch cmd := cmd.(type) {
		case onceCmd:
			cmd.SetVal(h.reader.value(0))
		case *redis.SliceCmd:
			cmd.SetVal(h.reader.list(0))
		case *redis.StringSliceCmd:
			cmd.SetVal([]string{h.reader.text(), h.reader.text()})
		case *redis.ScanCmd:
			cmd.SetVal([]string{h.reader.text(), h.reader.text(), h.reader.text()}, 0)
		default:
			panic("the fuzzer does not know " + cmd.Name())
		}
		return nil
	}
}

// Whatever a server answers, reading it is an error at worst, and what it is
// read as makes sense.
func FuzzRedisReply(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x08\x06\x00\x00\x00\x08\x00\x08\x00\x08\x00\x08\x00\x0b"))
	f.Add([]byte("\x08\x02\x08\x02\x00\x08\x00\x08\x08\x04\x00\xff"))
	f.Add([]byte("\x00\x85state\x00\x02\x00\x88override\x00\x05"))
	// An open circuit, by a read and by the script, to come back to in 292 million years.
	f.Add([]byte("\x00\x00" + strings.Repeat("\x01", 14) + "\x00\x00" +
		"\x06\x00\x02" + strings.Repeat("\x00\x07", 5) + "\x08\x05\x00\x02\x00\x08\x00\x0a\x00\x07\x00\x07"))
	hook := new(wireHook)
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never dialled
	f.Cleanup(func() { _ = client.Close() })
	client.AddHook(hook)
	f.Fuzz(func(t *testing.T, data []byte) {
		ctx, key, p := t.Context(), "stripe", DefaultPolicy
		p.FailureRate, p.WindowFailures = 0.5, 3
		reader := &wireReader{data}
		hook.reader = reader

		textsOf(reader.value(0))
		record := map[string]string{}
		for _, field := range []string{"state", "generation", "streak", "window", "failures", "leases", "override",
			"override_until", "met_at", "retry_at", "opened_at", "last_failure_at", "reopens", "window_by"} {
			if reader.next()%2 == 0 {
				record[field] = reader.text()
			}
		}
		checkSnapshot(t, decodeCircuit(record).Snapshot(Moment{Now: time.UnixMilli(5000), Evidence: &Evidence{}}, p))
		checkTransition(t, decodeTransition(reader.text(), key, "i"))
		if e, ok := decodeEvent(reader.text(), key); ok {
			_, err := json.Marshal(e)
			require.NoError(t, err)
		}

		s := NewRedisStore(client, RedisConfig{})
		for range 2 {
			pm, err := s.Acquire(ctx, key, p)
			var rejected *RejectedError
			if errors.As(err, &rejected) {
				require.GreaterOrEqual(t, rejected.RetryAfter, time.Duration(0))
				require.NotEqual(t, StateClosed, rejected.State)
			}
			for _, tr := range pm.Transitions {
				checkTransition(t, tr)
			}
			if tr, err := s.Report(ctx, key, p, pm, Result{Outcome: Failure, Error: "down"}); tr != nil {
				require.NoError(t, err)
				checkTransition(t, *tr)
			}
		}
		if snap, err := s.Snapshot(ctx, key, p); err == nil {
			checkSnapshot(t, snap)
		}
		events, err := s.History(ctx, key)
		require.NoError(t, err)
		_, err = json.Marshal(events)
		require.NoError(t, err)
		if tr, err := s.Force(ctx, key, p, Override{State: StateOpen}); err == nil && tr != nil {
			checkTransition(t, *tr)
		}
		for _, err := range s.Keys(ctx) {
			require.NoError(t, err)
		}
	})
}

func checkSnapshot(t *testing.T, s Snapshot) {
	t.Helper()
	require.LessOrEqual(t, s.State, StateHalfOpen)
	_, err := json.Marshal(s)
	require.NoError(t, err)
}

func checkTransition(t *testing.T, tr Transition) {
	t.Helper()
	require.LessOrEqual(t, max(tr.From, tr.To), StateHalfOpen)
	_, err := json.Marshal(tr)
	require.NoError(t, err)
}

// unescape undoes escape.
func unescape(t *testing.T, escaped string) string {
	t.Helper()
	if escaped == "%" {
		return ""
	}
	s, err := url.PathUnescape(escaped)
	require.NoError(t, err)
	return s
}

// What escape writes has nothing that would end the tag it is put in, and says
// all that was escaped: so different names have different keys, and the name of
// a record says whose it is.
func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", "%", "%%", "%2F", "%252F", "/", "{}", "a}b{c", " ", "é", "\x00\xff", "stripe", "%7B", "+"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		escaped := escape(s)
		require.Equal(t, s, unescape(t, escaped))
		for _, prefix := range []string{"", "{my} app", s} {
			store := NewRedisStore(nil, RedisConfig{Prefix: prefix})
			key, ok := store.keyOf(store.keys(s)[0])
			require.True(t, ok)
			require.Equal(t, s, key)
			_, ok = store.keyOf(store.keys(s)[1])
			require.False(t, ok, "a history is no record")
		}
		require.NotEmpty(t, escaped)
		require.Equal(t, -1, strings.IndexFunc(escaped, func(r rune) bool {
			return r == '{' || r == '}' || r > unicode.MaxASCII || unicode.IsSpace(r) || unicode.IsControl(r)
		}), "%q", escaped)
	})
}

func TestNamesThatLookEscapedStayApart(t *testing.T) {
	names := []string{"", "%", "%25", "%2525", "{", "%7B", "%7b", "%257B", "/", "%2F", "%252F", " ", "%20", "+", "%2B"}
	escaped := make([]string, len(names))
	for i, name := range names {
		escaped[i] = escape(name)
	}
	slices.Sort(escaped)
	assert.Len(t, slices.Compact(escaped), len(names))
}

// A share of any size must be a number to every server's Lua.
func TestTheSmallestJitterIsUnderstood(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	s := NewRedisStore(client, RedisConfig{})
	s.jitter = func() float64 { return 1e-9 }
	p := Policy{ConsecutiveFailures: 1, CooldownJitter: 0.5}.WithDefaults()
	pm, err := s.Acquire(t.Context(), "k", p)
	require.NoError(t, err)
	opened, err := s.Report(t.Context(), "k", p, pm, Result{Outcome: Failure})
	require.NoError(t, err)
	require.NotNil(t, opened)
	assert.InDelta(t, 30_000, opened.RetryAt.Sub(opened.At).Milliseconds(), 1)
}

// A client may panic over a reply that is none; the store then fails.
func TestAPanicOfTheClientIsAnError(t *testing.T) {
	s := NewRedisStore((*redis.Client)(nil), RedisConfig{})
	p, ctx := DefaultPolicy, t.Context()
	_, err := s.Acquire(ctx, "k", p)
	assert.ErrorContains(t, err, "panicked")
	_, err = s.History(ctx, "k")
	assert.ErrorContains(t, err, "panicked")
	_, err = s.Snapshot(ctx, "k", p)
	assert.ErrorContains(t, err, "panicked")
}
