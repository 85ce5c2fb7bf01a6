package admin_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/admin"
	"github.com/breakerkit/breaker/breakertest"
)

// A client that is told when to come back is told the time really left.
func TestACircuitSaysTheTimeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, nil, breaker.Config{Policy: breaker.Policy{Cooldown: 30 * time.Second}})
		h := admin.New(b, admin.Config{Token: token, Logger: silent})
		fail(b, "stripe", 5)
		time.Sleep(12 * time.Second)
		got := call(t, h, "GET", circuits+"/stripe", "", 200)
		assert.Equal(t, "open", got["state"])
		assert.EqualValues(t, 18_000, got["retry_in_ms"])
		assert.EqualValues(t, 5, got["consecutive_failures"])
		assert.Equal(t, "connection refused", got["last_failure"].(map[string]any)["error"])
		assert.Equal(t, "30s", got["policy"].(map[string]any)["cooldown"])

		time.Sleep(time.Hour)
		got = call(t, h, "GET", circuits+"/stripe", "", 200)
		assert.Equal(t, "half-open", got["state"])
		assert.NotContains(t, got, "retry_in_ms")
	})
}

func TestTheTimeLeftOfAnOverride(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h := newAdmin(t)
		fail(b, "stripe", 5) // open for 60s
		left := func() any { return call(t, h, "GET", circuits+"/stripe", "", 200)["retry_in_ms"] }
		require.NoError(t, b.Force(bg, "stripe", breaker.Override{State: breaker.StateOpen, For: 10 * time.Second}))
		assert.EqualValues(t, 60_000, left(), "its own cooldown outlasts the override")
		require.NoError(t, b.Force(bg, "stripe", breaker.Override{State: breaker.StateOpen, For: time.Hour}))
		assert.EqualValues(t, 3_600_000, left())
		require.NoError(t, b.Force(bg, "stripe", breaker.Override{State: breaker.StateOpen}))
		assert.Nil(t, left(), "nobody knows")
		require.NoError(t, b.Force(bg, "stripe", breaker.Override{State: breaker.StateClosed, For: time.Hour}))
		assert.Nil(t, left(), "calls run")
	})
}

func TestChangesAreInTheHistoryWithWhoMadeThem(t *testing.T) {
	b, h := newAdmin(t)
	fail(b, "stripe", 1)
	got := call(t, h, "POST", circuits+"/stripe/force-open", `{"duration":"10m","reason":"maintenance","by":"ann"}`, 200)
	assert.Equal(t, "open", got["state"])
	assert.InDelta(t, 600_000, got["retry_in_ms"], 5000)
	assert.ErrorIs(t, succeed(b, "stripe"), breaker.ErrOpen)

	got = call(t, h, "POST", circuits+"/stripe/force-closed", `{"by":"bob"}`, 200)
	assert.Equal(t, "closed", got["override"].(map[string]any)["state"])
	got = call(t, h, "POST", circuits+"/stripe/clear-override", `{"by":"cy","reason":"it is over"}`, 200)
	assert.NotContains(t, got, "override")
	fail(b, "stripe", 5)
	got = call(t, h, "POST", circuits+"/stripe/reset", "", 200)
	assert.Equal(t, "closed", got["state"])
	assert.EqualValues(t, 0, got["consecutive_failures"])

	var said []string
	for _, e := range call(t, h, "GET", circuits+"/stripe/history", "", 200)["events"].([]any) {
		e := e.(map[string]any)
		if by, ok := e["by"]; ok {
			line := fmt.Sprint(e["kind"], " by ", by)
			if o, ok := e["override"].(map[string]any); ok {
				line += fmt.Sprint(": ", o["state"], ", ", o["reason"])
			}
			said = append(said, line)
		}
	}
	assert.Equal(t, []string{
		"reset by admin@192.0.2.1", // the address httptest asks from
		"cleared by cy (it is over)",
		"override by bob: closed, <nil>",
		"override by ann: open, maintenance",
	}, said)
}

func TestTheOperatorIsWhomTheProgramKnows(t *testing.T) {
	b := newBreaker(t, nil, breaker.Config{})
	fail(b, "stripe", 1)
	h := admin.New(b, admin.Config{Token: token, Logger: silent, Operator: func(r *http.Request) string { return r.Header.Get("X-User") }})
	lastBy := func(user string) string {
		r := request("POST", circuits+"/stripe/reset", `{"by":"mallory"}`)
		r.Header.Set("X-User", user)
		require.Equal(t, 200, send(t, h, r).StatusCode)
		events, err := b.History(bg, "stripe")
		require.NoError(t, err)
		return events[0].By
	}
	assert.Equal(t, "ann", lastBy("ann"))
	assert.Equal(t, "mallory", lastBy(""))
}

// An operator's word outlasts cooldowns and results that were under way.
func TestAForcedCircuitStaysUntilItIsCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h := newAdmin(t)
		under, err := b.Allow(bg, "stripe")
		require.NoError(t, err)
		call(t, h, "POST", circuits+"/stripe/force-open", `{"by":"ann"}`, 200)
		under.Done(nil)
		for range 10 {
			time.Sleep(time.Minute)
			require.Equal(t, "open", call(t, h, "GET", circuits+"/stripe", "", 200)["state"])
			require.ErrorIs(t, succeed(b, "stripe"), breaker.ErrOpen)
		}
		call(t, h, "POST", circuits+"/stripe/clear-override", "", 200)
		require.NoError(t, succeed(b, "stripe"))
	})
}

var hostileKeys = []string{
	"", ".", "..", "...", "/", "//", "%2F", "%", "%25", "a/b", "../../etc/passwd", "a b", "+", "?", "#", "a?b=c#d", ";", "a;b", ",", ",.", ",,",
	"\xff\xfe\x00", "\x00", "\n\r\t", "ключ", "\u202e", "<script>alert(1)</script>", "a/reset", "reset", "history", "/api/v1/circuit-breakers",
	"/assets/app.js", "https://api.example.com:443/v1?x=y", strings.Repeat("k", breaker.MaxKeyLength),
}

// Each key is found, steered and shown by its id, wherever the handler stands.
func TestKeysOfAnyBytesSurvive(t *testing.T) {
	b, h := newAdmin(t)
	for _, key := range hostileKeys {
		require.NoError(t, succeed(b, key))
	}
	ids := map[string]string{}
	for _, c := range call(t, h, "GET", circuits, "", 200)["circuits"].([]any) {
		c := c.(map[string]any)
		ids[c["key"].(string)] = c["id"].(string)
	}
	require.Len(t, ids, len(hostileKeys))

	mux, stripped, slashed := http.NewServeMux(), http.NewServeMux(), http.NewServeMux()
	mux.Handle("/ops/api/", h)
	mux.Handle(circuits+"/api/", h) // no prefix is too odd
	stripped.Handle("/ops/api/", http.StripPrefix("/ops/api", h))
	slashed.Handle("/ops/api/", http.StripPrefix("/ops/api/", h))
	for name, handler := range map[string]http.Handler{"mux": mux, "stripped": stripped, "slash stripped": slashed} {
		server := httptest.NewServer(handler)
		defer server.Close()
		prefixes := []string{"/ops/api/"}
		if name == "mux" {
			prefixes = append(prefixes, circuits+"/api/")
		}
		for i, key := range hostileKeys {
			id := ids[strings.ToValidUTF8(key, "\ufffd")]
			if key == "\xff\xfe\x00" {
				id = "%FF%FE%00"
			}
			require.NotEmpty(t, id, "%q", key)
			// As a browser does: it resolves the path against the page's.
			base, err := url.Parse(server.URL + prefixes[i%len(prefixes)])
			require.NoError(t, err)
			u, err := base.Parse("." + circuits + "/" + id + "/force-open")
			require.NoError(t, err)
			r, err := http.NewRequest("POST", u.String(), nil)
			require.NoError(t, err)
			r.Header.Set("Authorization", "Bearer "+token)
			got, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			got.Body.Close()
			require.Equal(t, 200, got.StatusCode, "%s: %q as %s", name, key, u)
			require.ErrorIs(t, succeed(b, key), breaker.ErrOpen, "%s: %q", name, key)
			require.NoError(t, b.Reset(bg, key))
		}
	}
	assert.Len(t, keysOf(b), len(hostileKeys), "no other circuit was made")
}

// Plain percent-encoding does too, where nothing in between spoils it.
func TestKeysSurvivePlainPercentEncoding(t *testing.T) {
	b, h := newAdmin(t)
	encodings := map[string]func(string) string{
		"PathEscape": url.PathEscape,
		"every byte": func(key string) (all string) {
			for _, c := range []byte(key) {
				all += fmt.Sprintf("%%%02x", c)
			}
			return all
		},
	}
	for _, key := range hostileKeys {
		require.NoError(t, succeed(b, key))
		for name, encode := range encodings {
			got := call(t, h, "GET", circuits+"/"+encode(key), "", 200)
			id, err := url.PathUnescape(got["id"].(string))
			require.NoError(t, err)
			assert.Contains(t, []string{key, "," + key}, id, name)
			call(t, h, "POST", circuits+"/"+encode(key)+"/force-open", "", 200)
			assert.ErrorIs(t, succeed(b, key), breaker.ErrOpen, "%s: %q", name, key)
			call(t, h, "POST", circuits+"/"+encode(key)+"/reset", "", 200)
		}
	}
	assert.Len(t, keysOf(b), len(hostileKeys), "no other circuit was made")
}

func TestAnUnknownKeyIsNotFoundAndLeavesNoTrace(t *testing.T) {
	asked := []string{}
	store := breaker.NewMemoryStore(breaker.MemoryConfig{})
	b := newBreaker(t, store, breaker.Config{PolicyFor: func(key string) (breaker.Policy, bool) {
		asked = append(asked, key)
		return breaker.Policy{}, false
	}})
	h := admin.New(b, admin.Config{Token: token, Logger: silent})
	require.NoError(t, succeed(b, "known"))
	for _, key := range []string{"unknown", "", "..", "known2", "KNOWN", strings.Repeat("k", breaker.MaxKeyLength+1)} {
		path := circuits + "/" + url.PathEscape(key)
		call(t, h, "GET", path, "", 404)
		call(t, h, "GET", path+"/history", "", 404)
		for _, verb := range []string{"reset", "force-open", "force-closed", "clear-override"} {
			call(t, h, "POST", path+"/"+verb, `{"by":"ann"}`, 404)
		}
	}
	assert.Equal(t, []string{"known"}, keysOf(b))
	assert.Equal(t, []string{"known"}, asked)
}

func listed(t *testing.T, answer map[string]any) (keys []string) {
	t.Helper()
	for _, c := range answer["circuits"].([]any) {
		keys = append(keys, c.(map[string]any)["key"].(string))
	}
	return keys
}

func TestTheListIsFilteredAndPaged(t *testing.T) {
	b, h := newAdmin(t)
	const n = 10_000
	for i := range n {
		key := fmt.Sprintf("tenant-%05d", i)
		if i%100 == 7 {
			fail(b, key, 5)
		} else {
			require.NoError(t, succeed(b, key))
		}
	}
	for _, c := range []struct {
		query       string
		want, pages int
	}{
		{"limit=500", n, 20},
		{"state=open&limit=7", 100, 15},
		{"state=open&limit=50", 100, 2}, // no empty page at the end
		{"state=open,half-open", 100, 1},
		{"state=open&state=closed&limit=500", n, 20},
		{"state=half-open", 0, 1},
		{"name=TENANT-001&limit=10", 100, 10},
		{"name=-00107&state=open", 1, 1},
		{"name=nobody", 0, 1},
	} {
		var keys []string
		pages, next := 0, ""
		for pages == 0 || next != "" {
			answer := call(t, h, "GET", circuits+"?"+c.query+next, "", 200)
			keys = append(keys, listed(t, answer)...)
			pages++
			next = ""
			if cursor, ok := answer["next_cursor"].(string); ok {
				next = "&cursor=" + cursor
			}
			require.LessOrEqual(t, pages, c.pages, c.query)
		}
		assert.Len(t, keys, c.want, c.query)
		assert.Equal(t, c.pages, pages, c.query)
		assert.True(t, slices.IsSorted(keys), c.query)
		assert.Len(t, slices.Compact(keys), c.want, c.query)
	}
}

func TestThePagesGoOnBehindTheEmptyKey(t *testing.T) {
	b, h := newAdmin(t)
	for _, key := range []string{"", "a"} {
		require.NoError(t, succeed(b, key))
	}
	first := call(t, h, "GET", circuits+"?limit=1", "", 200)
	assert.Equal(t, []string{""}, listed(t, first))
	second := call(t, h, "GET", circuits+"?limit=1&cursor="+first["next_cursor"].(string), "", 200)
	assert.Equal(t, []string{"a"}, listed(t, second))
	assert.NotContains(t, second, "next_cursor")
}

func TestAQueryThatMakesNoSenseIsRefused(t *testing.T) {
	_, h := newAdmin(t)
	for _, query := range []string{
		"state=opne", "state=", "state=open,", "limit=0", "limit=501", "limit=x", "limit=-1", "cursor=x", "cursor=!!", "cursor=",
		"sate=open", "limit=1&limit=2", "name=%zz", "a;b",
	} {
		call(t, h, "GET", circuits+"?"+query, "", 400)
	}
}

// One record that can't be read must not hide the others.
func TestAListGoesOnPastARecordThatCantBeRead(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	b := newBreaker(t, breaker.NewRedisStore(client, breaker.RedisConfig{}), breaker.Config{})
	h := admin.New(b, admin.Config{Token: token, Logger: silent})
	fail(b, "a", 5)
	require.NoError(t, succeed(b, "b"))
	require.NoError(t, succeed(b, "c"))
	require.NoError(t, server.Set("breaker:{b}", "not a hash"))

	answer := call(t, h, "GET", circuits, "", 200)
	assert.Equal(t, []string{"a", "c"}, listed(t, answer))
	bad := answer["unreadable"].([]any)
	require.Len(t, bad, 1)
	assert.Equal(t, "b", bad[0].(map[string]any)["key"])
	assert.Contains(t, bad[0].(map[string]any)["error"], "WRONGTYPE")
	call(t, h, "GET", circuits+"/b", "", 503)

	got := call(t, h, "POST", circuits+"/a/reset", `{"by":"ann","reason":"fixed"}`, 200)
	assert.Equal(t, "closed", got["state"])
	assert.Contains(t, send(t, h, request("GET", circuits+"/a/history", "")).body, `"by":"ann (fixed)"`)
	call(t, h, "GET", circuits+"/nobody", "", 404)
	assert.ElementsMatch(t, []string{"a", "b", "c"}, keysOf(b))
}

// What could not be read or done is never a 2xx.
func TestAStoreThatFailsIsNoSuccess(t *testing.T) {
	store := breakertest.NewFlakyStore(nil)
	b := newBreaker(t, store, breaker.Config{})
	h := admin.New(b, admin.Config{Token: token, Logger: silent})
	fail(b, "stripe", 5)
	store.Fail(nil)
	for _, path := range []string{"", "/stripe", "/stripe/history", "/nobody"} {
		got := send(t, h, request("GET", circuits+path, ""))
		assert.Equal(t, 503, got.StatusCode, path)
		assert.NotEmpty(t, got.Header.Get("Retry-After"))
	}
	for _, verb := range []string{"reset", "force-open", "force-closed", "clear-override"} {
		assert.Equal(t, 503, send(t, h, request("POST", circuits+"/stripe/"+verb, "")).StatusCode, verb)
	}
	store.Recover()
	assert.Equal(t, "open", call(t, h, "GET", circuits+"/stripe", "", 200)["state"], "and nothing was done")
}

// plain is a store that can do nothing but decide.
type plain struct{ breaker.Store }

func TestWhatTheStoreCantDoIsNotImplemented(t *testing.T) {
	b := newBreaker(t, plain{breaker.NewMemoryStore(breaker.MemoryConfig{})}, breaker.Config{})
	h := admin.New(b, admin.Config{Token: token, Logger: silent})
	call(t, h, "GET", circuits, "", 501)
	call(t, h, "GET", circuits+"/stripe/history", "", 501)
	call(t, h, "POST", circuits+"/stripe/reset", "", 501)
}

func TestANilBreakerIsSaid(t *testing.T) {
	h := admin.New(nil, admin.Config{Token: token})
	call(t, h, "GET", circuits, "", 500)
}

func TestAPolicyThatCantBeIsSaid(t *testing.T) {
	store := breaker.NewMemoryStore(breaker.MemoryConfig{})
	b := newBreaker(t, store, breaker.Config{})
	require.NoError(t, succeed(b, "stripe"))
	wrong := newBreaker(t, store, breaker.Config{PolicyFor: func(string) (breaker.Policy, bool) { return breaker.Policy{MaxProbes: -1}, true }})
	got := call(t, admin.New(wrong, admin.Config{Token: token, Logger: silent}), "GET", circuits+"/stripe", "", 500)
	assert.Contains(t, got["detail"], "MaxProbes")
}
