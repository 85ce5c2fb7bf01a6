package admin_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/admin"
)

// FuzzRequest sends any path and any body. Whatever comes is answered, what is
// refused says why in the one form there is for it, and no circuit comes into
// being that nobody called.
func FuzzRequest(f *testing.F) {
	for _, path := range []string{"", "/", "/api/v1/circuit-breakers", "/api/v1/circuit-breakers?limit=-1&cursor=%FF", "/api/v1/circuit-breakers/stripe",
		"/api/v1/circuit-breakers/a%2Fb%00/history", "/api/v1/circuit-breakers/,./reset", "/api/v1/circuit-breakers/../../x", "//api//v1"} {
		f.Add("GET", path, "")
	}
	f.Add("POST", "/api/v1/circuit-breakers/stripe/force-open", `{"duration":"10m","reason":"why","by":"ann"}`)
	f.Add("POST", "/api/v1/circuit-breakers/stripe/force-closed", `{"duration":"-1s"}`)
	f.Add("POST", "/api/v1/circuit-breakers/stripe/reset", `{"reason":"\u0000"}{}`)
	f.Add("POST", "/api/v1/circuit-breakers/none/clear-override", `[`)
	f.Fuzz(func(t *testing.T, method, path, body string) {
		if strings.Contains(path, "/events") {
			t.Skip("a stream does not end")
		}
		target, err := url.Parse("http://localhost/breakers" + path)
		if err != nil || strings.ToUpper(method) != method {
			t.Skip("no request can be made of it")
		}
		b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		defer b.Close()
		require.NoError(t, b.Execute(t.Context(), "stripe", func(context.Context) error { return nil }))
		h := admin.New(b, admin.Config{Token: "secret", Logger: slog.New(slog.DiscardHandler)})
		defer h.Close()

		req := &http.Request{Method: method, URL: target, Host: "localhost", RemoteAddr: "127.0.0.1:4711", RequestURI: target.RequestURI(),
			Header: http.Header{"Authorization": {"Bearer secret"}, "Content-Type": {"application/json"}},
			Body:   io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, req.WithContext(t.Context()))

		require.Contains(t, []int{200, 301, 302, 303, 307, 308, 400, 404, 405, 413, 415, 422}, answer.Code)
		if answer.Code >= 400 && method != http.MethodHead {
			require.Equal(t, "application/problem+json", answer.Header().Get("Content-Type"))
		}
		for key, err := range b.Keys(t.Context()) {
			require.NoError(t, err)
			require.Equal(t, "stripe", key)
		}
	})
}
