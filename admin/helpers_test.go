package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/admin"
)

const token = "a-token-for-tests"

var (
	bg      = context.Background()
	errDown = errors.New("connection refused")
)

var silent = slog.New(slog.DiscardHandler)

func newBreaker(t testing.TB, store breaker.Store, cfg breaker.Config) *breaker.Breaker {
	t.Helper()
	if store == nil {
		store = breaker.NewMemoryStore(breaker.MemoryConfig{})
	}
	cfg.Logger = silent
	if cfg.StoreTimeout == 0 {
		cfg.StoreTimeout = 30 * time.Second // no test here is about it
	}
	b, err := breaker.New(store, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	return b
}

// newAdmin is a handler with a token, over circuits of its own.
func newAdmin(t testing.TB) (*breaker.Breaker, *admin.Handler) {
	t.Helper()
	b := newBreaker(t, nil, breaker.Config{})
	return b, admin.New(b, admin.Config{Token: token, Logger: silent})
}

// fail has so many calls of key fail.
func fail(b *breaker.Breaker, key string, n int) {
	for range n {
		_ = b.Execute(bg, key, func(context.Context) error { return errDown })
	}
}

func succeed(b *breaker.Breaker, key string) error {
	return b.Execute(bg, key, func(context.Context) error { return nil })
}

// request is one of somebody with the token, and a body of JSON unless it is empty.
func request(method, path, body string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

type response struct {
	*http.Response
	body string
}

func send(t testing.TB, h http.Handler, r *http.Request) response {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	got := w.Result()
	body, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	if got.StatusCode >= 400 {
		require.Equal(t, "application/problem+json", got.Header.Get("Content-Type"), string(body))
		require.EqualValues(t, got.StatusCode, parse(t, string(body))["status"])
	}
	return response{got, string(body)}
}

// call makes a request with the token, wants a status, and returns the answer.
func call(t testing.TB, h http.Handler, method, path, body string, status int) map[string]any {
	t.Helper()
	got := send(t, h, request(method, path, body))
	require.Equal(t, status, got.StatusCode, "%s %s: %s", method, path, got.body)
	return parse(t, got.body)
}

func parse(t testing.TB, text string) (v map[string]any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

const circuits = "/api/v1/circuit-breakers"

func keysOf(b *breaker.Breaker) (keys []string) {
	for key := range b.Keys(bg) {
		keys = append(keys, key)
	}
	return keys
}
