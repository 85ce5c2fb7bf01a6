package httpbreaker_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/httpbreaker"
)

// What the Transport adds to a request, without and with a network.
func BenchmarkTransport(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	defer srv.Close()
	for name, base := range map[string]http.RoundTripper{
		"no network": roundTrip(func(req *http.Request) (*http.Response, error) { return answer(200, text("ok"))(req) }),
		"loopback":   http.DefaultTransport,
	} {
		circuits := newBreaker(breaker.Policy{})
		defer circuits.Close()
		protected := &httpbreaker.Transport{Breaker: circuits, Base: base}
		for kind, rt := range map[string]http.RoundTripper{"bare": base, "protected": protected} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, srv.URL, nil)
				require.NoError(b, err)
				b.ReportAllocs()
				for b.Loop() {
					resp, err := rt.RoundTrip(req)
					if err != nil {
						b.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			})
		}
	}
}
