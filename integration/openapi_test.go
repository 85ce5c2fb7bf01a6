package integration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/admin"
	"github.com/breakerkit/breaker/breakertest"
)

const circuits = "/api/v1/circuit-breakers"

// A contract holds answers against the document, and remembers what it saw of
// it: all that is documented must be seen.
type contract struct {
	t    *testing.T
	doc  *openapi3.T
	seen map[string]bool // "operation status", and "Schema.field"
}

func newContract(t *testing.T) *contract {
	doc, err := openapi3.NewLoader().LoadFromFile("../docs/openapi.yaml")
	require.NoError(t, err)
	require.NoError(t, doc.Validate(t.Context()))
	return &contract{t, doc, make(map[string]bool)}
}

// call makes a request that must be answered with a status, as documented.
func (c *contract) call(h http.Handler, method, path, key, body string, status int, options ...func(*http.Request)) {
	c.t.Helper()
	r := httptest.NewRequest(method, strings.Replace(path, "{key}", key, 1), strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, o := range options {
		o(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(c.t, status, w.Code, "%s %s: %s", method, path, w.Body)
	path, _, _ = strings.Cut(path, "?")
	c.check(method, path, w.Result())
}

func (c *contract) check(method, path string, got *http.Response) {
	c.t.Helper()
	item := c.doc.Paths.Value(path)
	require.NotNil(c.t, item, path)
	operation := item.GetOperation(method)
	if operation == nil { // 405 stands with the methods there are
		require.Equal(c.t, http.StatusMethodNotAllowed, got.StatusCode)
		for _, operation = range item.Operations() {
			assert.Contains(c.t, got.Header.Get("Allow"), "T")
		}
	}
	response := operation.Responses.Status(got.StatusCode)
	require.NotNil(c.t, response, "%s %s answers %d, which is not documented", method, path, got.StatusCode)
	c.seen[fmt.Sprint(operation.OperationID, " ", got.StatusCode)] = true
	body, err := io.ReadAll(got.Body)
	require.NoError(c.t, err)
	if len(response.Value.Content) == 0 {
		assert.Empty(c.t, body)
		return
	}
	kind := got.Header.Get("Content-Type")
	media := response.Value.Content[kind]
	require.NotNil(c.t, media, "%s %s answers %d with %s, which is not documented", method, path, got.StatusCode, kind)
	c.checkJSON(media.Schema, body)
}

func (c *contract) checkJSON(schema *openapi3.SchemaRef, text []byte) {
	c.t.Helper()
	var v any
	require.NoError(c.t, json.Unmarshal(text, &v), string(text))
	require.NoError(c.t, schema.Value.VisitJSON(v, openapi3.MultiErrors()), string(text))
	c.mark(schema, v)
}

// mark remembers the fields of v that named schemas have.
func (c *contract) mark(schema *openapi3.SchemaRef, v any) {
	name := schema.Ref[strings.LastIndex(schema.Ref, "/")+1:]
	switch v := v.(type) {
	case map[string]any:
		for field, value := range v {
			c.seen[name+"."+field] = true
			c.mark(schema.Value.Properties[field], value)
		}
	case []any:
		for _, value := range v {
			c.mark(schema.Value.Items, value)
		}
	}
}

// requireAllSeen fails for what is documented and was not seen.
func (c *contract) requireAllSeen() {
	var missing []string
	for _, item := range c.doc.Paths.Map() {
		for _, operation := range item.Operations() {
			for status := range operation.Responses.Map() {
				if name := operation.OperationID + " " + status; !c.seen[name] {
					missing = append(missing, name)
				}
			}
		}
	}
	for name, schema := range c.doc.Components.Schemas {
		for field := range schema.Value.Properties {
			if !c.seen[name+"."+field] {
				missing = append(missing, name+"."+field)
			}
		}
	}
	slices.Sort(missing)
	assert.Empty(c.t, missing, "documented, but never seen")
}

var silent = slog.New(slog.DiscardHandler)

func newAdmin(t *testing.T, store breaker.Store, bcfg breaker.Config, cfg admin.Config) (*breaker.Breaker, *admin.Handler) {
	bcfg.Logger, cfg.Logger = silent, silent
	bcfg.StoreTimeout = 30 * time.Second // no test here is about it
	b, err := breaker.New(store, bcfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	return b, admin.New(b, cfg)
}

// decided is a store that can do nothing but decide.
type decided struct{ breaker.Store }

// blind can do all but show some circuits.
type blind struct {
	*breaker.MemoryStore
	to     func(key string) bool
	hidden atomic.Bool // forgets its names
}

func (s *blind) Snapshot(ctx context.Context, key string, p breaker.Policy) (breaker.Snapshot, error) {
	if s.to(key) {
		return breaker.Snapshot{}, errors.New("unreadable")
	}
	return s.MemoryStore.Snapshot(ctx, key, p)
}

func (s *blind) Keys(ctx context.Context) iter.Seq2[string, error] {
	if s.hidden.Load() {
		return func(func(string, error) bool) {}
	}
	return s.MemoryStore.Keys(ctx)
}

// everyRule is a policy with each field set.
var everyRule = breaker.Policy{
	ConsecutiveFailures: 5, WindowFailures: 10, FailureRate: 0.5, SlowRate: 0.5, SlowAfter: time.Second, MinCalls: 10, Window: time.Minute,
	Cooldown: time.Minute, MaxCooldown: time.Hour, CooldownJitter: 0.1, MaxRetryAfter: time.Minute, MaxProbes: 2, ProbeSuccesses: 2,
	ProbeLease: time.Minute, CallTimeout: 10 * time.Second, Shadow: true,
}

// The code and docs/openapi.yaml say the same: routes, methods, statuses, the
// fields of the answers.
func TestTheAPIIsAsDocumented(t *testing.T) {
	c := newContract(t)
	store := &blind{MemoryStore: breaker.NewMemoryStore(breaker.MemoryConfig{}), to: func(key string) bool { return key == "unreadable" }}
	b, h := newAdmin(t, store, breaker.Config{
		Policies: map[string]breaker.Policy{
			"every-rule": everyRule, "short": {ConsecutiveFailures: 1, Cooldown: time.Millisecond},
		},
		PolicyFor: func(key string) (breaker.Policy, bool) { return breaker.Policy{MaxProbes: -1}, key == "wrong" },
	}, admin.Config{Token: token})
	fail := func(key string, n int) {
		for range n {
			_ = b.Execute(t.Context(), key, func(context.Context) error { return errors.New("down") })
		}
	}
	for _, key := range []string{"every-rule", "stripe", "short"} {
		fail(key, 5)
	}
	require.Eventually(t, func() bool { fail("short", 1); return len(history(t, b, "short")) > 3 }, time.Minute, 5*time.Millisecond) // a probe failed
	_, err := store.Reset(t.Context(), "unreadable", breaker.DefaultPolicy, "ann")
	require.NoError(t, err)
	_, err = store.Reset(t.Context(), "wrong", breaker.DefaultPolicy, "ann")
	require.NoError(t, err)

	c.call(h, "GET", circuits+"?limit=2", "", "", 200)
	c.call(h, "GET", circuits+"?limit=500&state=open&name=e&cursor=MQ", "", "", 200)
	c.call(h, "GET", circuits+"?limit=no", "", "", 400)
	c.call(h, "GET", circuits+"/{key}", "every-rule", "", 200)
	force := `{"duration":"10m","reason":"maintenance","by":"ann"}`
	c.call(h, "POST", circuits+"/{key}/force-open", "stripe", force, 200)
	c.call(h, "GET", circuits+"/{key}", "stripe", "", 200)
	c.call(h, "POST", circuits+"/{key}/force-closed", "stripe", force, 200)
	c.call(h, "POST", circuits+"/{key}/clear-override", "stripe", `{"reason":"over","by":"ann"}`, 200)
	c.call(h, "POST", circuits+"/{key}/reset", "stripe", "", 200)
	c.call(h, "GET", circuits+"/{key}/history", "stripe", "", 200)
	c.call(h, "GET", circuits+"/{key}/history", "short", "", 200)
	c.call(h, "GET", circuits+"/{key}", "wrong", "", 500)

	_, readOnly := newAdmin(t, store, breaker.Config{}, admin.Config{})
	_, down := newAdmin(t, downStore(), breaker.Config{}, admin.Config{Token: token})
	_, plain := newAdmin(t, decided{store}, breaker.Config{}, admin.Config{Token: token})
	closed := admin.New(b, admin.Config{Token: token})
	closed.Close()
	for path, item := range c.doc.Paths.Map() {
		for method := range item.Operations() {
			steers, events := method == "POST", strings.HasSuffix(path, "/events")
			c.call(h, method, path, "stripe", "", 401, func(r *http.Request) { r.Header.Del("Authorization") })
			c.call(readOnly, method, path, "stripe", "", 403)
			c.call(h, "DELETE", path, "stripe", "", 405)
			if strings.Contains(path, "{key}") {
				c.call(h, method, path, "nobody", "", 404)
			}
			if !events {
				c.call(down, method, path, "stripe", "", 503)
				c.call(plain, method, path, "stripe", "", 501)
			} else {
				c.call(closed, method, path, "", "", 503)
			}
			if steers {
				c.call(h, method, path, "unreadable", `{"by":"ann"}`, 204)
				c.call(h, method, path, "stripe", `{"buy":"ann"}`, 400)
				c.call(h, method, path, "stripe", strings.Repeat(" ", 65<<10), 413)
				c.call(h, method, path, "stripe", `{}`, 415, func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") })
				c.call(h, method, path, "wrong", "", 500)
			}
		}
	}
	c.checkEvents()
	c.requireAllSeen()
}

func history(t *testing.T, b *breaker.Breaker, key string) []breaker.Event {
	events, err := b.History(t.Context(), key)
	require.NoError(t, err)
	return events
}

func downStore() *breakertest.FlakyStore {
	store := breakertest.NewFlakyStore(nil)
	store.Fail(nil)
	return store
}

// checkEvents has each event happen.
func (c *contract) checkEvents() {
	t := c.t
	var dark atomic.Bool
	store := &blind{MemoryStore: breaker.NewMemoryStore(breaker.MemoryConfig{}), to: func(string) bool { return dark.Load() }}
	b, h := newAdmin(t, store, breaker.Config{}, admin.Config{Token: token, Poll: time.Millisecond})
	require.NoError(t, b.Reset(t.Context(), "stripe"))
	schemas := map[string]string{"totals": "Totals", "transition": "TransitionEvent", "circuit": "Circuit", "gone": "Gone", "trouble": "Trouble", "resync": "Resync"}

	missing := slices.Collect(maps.Keys(schemas))

	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	listen := func() *slowWriter {
		w := &slowWriter{header: http.Header{}, taken: make(chan []byte), ended: ctx.Done()}
		r := httptest.NewRequestWithContext(ctx, "GET", "/api/v1/events", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		go func() {
			defer close(w.taken)
			h.ServeHTTP(w, r)
		}()
		return w
	}
	w := listen()
	until := func(event string) {
		t.Helper()
		for text := range w.taken {
			name, data, found := bytes.Cut(text, []byte("\ndata: "))
			if !found {
				continue // a comment
			}
			came := strings.TrimPrefix(string(name), "event: ")
			schema := schemas[came]
			require.NotEmpty(t, schema, "event %s is not documented", name)
			c.checkJSON(openapi3.NewSchemaRef("#/components/schemas/"+schema, c.doc.Components.Schemas[schema].Value), bytes.TrimSpace(data))
			missing = slices.DeleteFunc(missing, func(name string) bool { return name == came })
			if came == event {
				return
			}
		}
		t.Fatalf("no %s", event)
	}
	until("totals")
	c.check("GET", "/api/v1/events", &http.Response{StatusCode: 200, Header: w.header, Body: io.NopCloser(strings.NewReader(`""`))})
	for range 5 {
		_ = b.Execute(t.Context(), "stripe", func(context.Context) error { return errors.New("down") })
	}
	until("transition")
	until("circuit")
	dark.Store(true)
	until("trouble")
	dark.Store(false)
	until("totals")
	for i := range 2200 { // nobody takes them meanwhile: a thousand may be on their way, a thousand wait
		require.NoError(t, b.Reset(t.Context(), fmt.Sprint(i)))
	}
	for text := range listen().taken { // until all have been told
		if bytes.Contains(text, []byte(`{"closed":2200,`)) {
			break
		}
	}
	until("resync")
	store.hidden.Store(true)
	until("gone")
	assert.Empty(t, missing, "events that are documented and did not come")
}

// slowWriter is a client that takes one event at a time.
type slowWriter struct {
	header http.Header
	taken  chan []byte
	ended  <-chan struct{}
}

func (w *slowWriter) Header() http.Header { return w.header }
func (w *slowWriter) WriteHeader(int)     {}
func (w *slowWriter) Flush()              {}
func (w *slowWriter) Write(text []byte) (int, error) {
	select {
	case w.taken <- bytes.Clone(text):
		return len(text), nil
	case <-w.ended:
		return 0, io.ErrClosedPipe
	}
}

func TestADocumentThatIsWrongIsFound(t *testing.T) {
	c := newContract(t)
	circuit := c.doc.Components.Schemas["Gone"]
	require.Error(t, circuit.Value.VisitJSON(map[string]any{"key": "a", "id": "a", "more": 1}), "a field that is not documented")
	require.Error(t, circuit.Value.VisitJSON(map[string]any{"key": "a"}), "a field that is missing")
	require.Error(t, circuit.Value.VisitJSON(map[string]any{"key": "a", "id": 1}), "a field of another type")
}
