package httpbreaker_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/httpbreaker"
)

func newBreaker(p breaker.Policy) *breaker.Breaker {
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{Policy: p})
	if err != nil {
		log.Fatal(err)
	}
	return b
}

func Example() {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "90")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer provider.Close()

	b := newBreaker(breaker.Policy{ConsecutiveFailures: 2})
	defer b.Close()
	client := &http.Client{Transport: &httpbreaker.Transport{Breaker: b}}
	for range 3 {
		resp, err := client.Get(provider.URL)
		if err != nil {
			wait, rejected := breaker.RetryAfter(err)
			fmt.Println("rejected:", rejected, "- more than a minute to wait:", wait.Minutes() > 1)
			continue
		}
		fmt.Println(resp.Status)
		resp.Body.Close()
	}
	// Output:
	// 503 Service Unavailable
	// 503 Service Unavailable
	// rejected: true - more than a minute to wait: true
}

// A circuit for each tenant of one host, and none for its health check.
func ExampleTransport_key() {
	t := &httpbreaker.Transport{Key: func(req *http.Request) string {
		if req.URL.Path == "/healthz" {
			return ""
		}
		tenant, _, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
		return httpbreaker.HostKey(req) + "/" + tenant
	}}
	for _, path := range []string{"/acme/orders", "/healthz"} {
		fmt.Printf("%q\n", t.Key(&http.Request{URL: &url.URL{Scheme: "https", Host: "api.example.com:443", Path: path}}))
	}
	// Output:
	// "api.example.com/acme"
	// ""
}

func ExampleWriteRejection() {
	b := newBreaker(breaker.Policy{ConsecutiveFailures: 1})
	defer b.Close()
	handler := func(w http.ResponseWriter, req *http.Request) {
		err := b.Execute(req.Context(), "stripe", charge)
		switch {
		case err == nil:
			w.WriteHeader(http.StatusCreated)
		case httpbreaker.WriteRejection(w, err):
		default:
			http.Error(w, "the payment failed", http.StatusBadGateway)
		}
	}
	for range 2 {
		w := httptest.NewRecorder()
		handler(w, httptest.NewRequest(http.MethodPost, "/charges", nil))
		fmt.Println(w.Code, w.Header().Get("Retry-After"), w.Header().Get("Content-Type"))
	}
	// Output:
	// 502  text/plain; charset=utf-8
	// 503 60 application/problem+json
}

func charge(context.Context) error { return errors.New("connection refused") }
