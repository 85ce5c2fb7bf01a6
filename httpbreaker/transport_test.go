package httpbreaker_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
	"github.com/breakerkit/breaker/httpbreaker"
)

func TestTheKeyIsTheHost(t *testing.T) {
	for url, want := range map[string]string{
		"http://api.example.com/a?b":         "api.example.com",
		"http://API.Example.com":             "api.example.com",
		"http://api.example.com:80/a":        "api.example.com",
		"https://api.example.com:443/a":      "api.example.com",
		"http://api.example.com:443":         "api.example.com:443",
		"https://api.example.com:8443/a":     "api.example.com:8443",
		"https://user:secret@example.com":    "example.com",
		"http://[::1]:80":                    "[::1]",
		"http://[::1]:8080":                  "[::1]:8080",
		"ftp://example.com:80":               "example.com:80",
		"http:///nowhere":                    "",
		"http://example.com:8080/?u=http://": "example.com:8080",
	} {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		require.NoError(t, err)
		req.Host = "virtual.example" // what is asked of the server, not whom
		assert.Equal(t, want, httpbreaker.HostKey(req), url)
	}
	assert.Empty(t, httpbreaker.HostKey(new(http.Request)))
}

func TestEachHostHasACircuitOfItsOwn(t *testing.T) {
	down := roundTrip(func(req *http.Request) (*http.Response, error) {
		if req.URL.Host == "down.test" {
			return nil, errors.New("down")
		}
		return answer(200, text("ok"))(req)
	})
	r := newRig(t, down, breaker.Config{})
	for range 5 {
		assert.ErrorContains(t, r.fetch(t.Context(), "http://down.test"), "down")
	}
	assert.ErrorIs(t, r.fetch(t.Context(), "http://down.test"), breaker.ErrOpen)
	assert.NoError(t, r.fetch(t.Context(), "http://up.test"))
}

func TestAKeyOfOnesOwnAndTheEmptyOne(t *testing.T) {
	r := newRig(t, answer(503, text("")), breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1}})
	r.Key = func(req *http.Request) string { return req.Header.Get("Tenant") }
	send := func(tenant string) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x.test", nil)
		require.NoError(t, err)
		req.Header.Set("Tenant", tenant)
		resp, err := r.RoundTrip(req)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	for range 3 {
		assert.NoError(t, send(""), "never asks")
	}
	assert.Empty(t, r.seen.said())
	assert.NoError(t, send("a"))
	assert.ErrorIs(t, send("a"), breaker.ErrOpen)
	assert.NoError(t, send("b"))
	assert.Equal(t, []string{"a", "b"}, r.seen.keys)
}

func TestStatusesAreJudgedByTheBreakersClassifier(t *testing.T) {
	never := breaker.HTTPClassifier{FailureStatus: func(int) bool { return false }}
	teapot := breaker.HTTPClassifier{FailureStatus: func(code int) bool { return code == 418 }}
	for _, c := range []struct {
		code       int
		classifier breaker.Classifier
		want       breaker.Outcome
	}{
		{200, nil, breaker.Success}, {302, nil, breaker.Success}, {404, nil, breaker.Success}, {418, nil, breaker.Success},
		{429, nil, breaker.Failure}, {500, nil, breaker.Failure}, {503, nil, breaker.Failure},
		{503, never, breaker.Success}, {418, teapot, breaker.Failure}, {503, teapot, breaker.Success},
		{404, breakertest.AlwaysTrip, breaker.Failure}, {200, breakertest.AlwaysTrip, breaker.Success},
	} {
		for name, finish := range map[string]func(*http.Response){
			"read":          func(resp *http.Response) { _, _ = io.Copy(io.Discard, resp.Body) },
			"closed unread": func(resp *http.Response) { assert.NoError(t, resp.Body.Close()) },
		} {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, answer(c.code, text("why")), breaker.Config{Classifier: c.classifier})
				resp, err := r.RoundTrip(httptest.NewRequest(http.MethodGet, "http://x.test", nil))
				require.NoError(t, err)
				assert.Equal(t, c.code, resp.StatusCode)
				finish(resp)
				assert.Equal(t, []breaker.Outcome{c.want}, r.seen.said(), "%d, %s", c.code, name)
			})
		}
	}
}

func TestA503CountsAtOnceAndItsBodyIsTheCallersToRead(t *testing.T) {
	for name, p := range map[string]breaker.Policy{
		"plain":           {ConsecutiveFailures: 1},
		"and CallTimeout": {ConsecutiveFailures: 1, CallTimeout: limit},
	} {
		t.Run(name, func(t *testing.T) {
			more := make(chan struct{})
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusServiceUnavailable)
				_ = http.NewResponseController(w).Flush()
				<-more
				_, _ = io.WriteString(w, "we are sorry")
			}))
			defer srv.Close()
			r := wired(t, breaker.Config{Policy: p})
			resp := r.get(t, srv.URL)
			assert.Equal(t, breaker.StateOpen, r.snapshot(t, hostOf(srv.URL)).State)
			close(more) // the context of the call has ended; the body has not
			why, err := io.ReadAll(resp.Body)
			assert.NoError(t, err)
			assert.Equal(t, "we are sorry", string(why))
			assert.NoError(t, resp.Body.Close())
			assert.Equal(t, []breaker.Outcome{breaker.Failure}, r.seen.said())
		})
	}
}

// A watchedBody is a request body that knows what was done with it.
type watchedBody struct {
	io.Reader
	read, closed atomic.Int32
}

func (b *watchedBody) Read(p []byte) (int, error) { b.read.Add(1); return b.Reader.Read(p) }
func (b *watchedBody) Close() error               { b.closed.Add(1); return nil }

func TestARejectionIsTypedAndTheBodyIsClosedUnread(t *testing.T) {
	sent := 0
	r := newRig(t, roundTrip(func(*http.Request) (*http.Response, error) { sent++; return nil, errors.New("down") }),
		breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1}})
	_ = r.fetch(t.Context(), "http://x.test")

	body := &watchedBody{Reader: strings.NewReader("order")}
	resp, err := r.client().Post("http://x.test/orders", "text/plain", body)
	assert.Nil(t, resp)
	var outer *url.Error
	require.ErrorAs(t, err, &outer)
	rejected := rejection(t, err)
	assert.Equal(t, "x.test", rejected.Key)
	assert.Equal(t, breaker.StateOpen, rejected.State)
	assert.Equal(t, "down", rejected.LastError)
	assert.ErrorIs(t, err, breaker.ErrOpen)
	wait, ok := breaker.RetryAfter(err)
	assert.True(t, ok)
	assert.Positive(t, wait)
	assert.Equal(t, 1, sent)
	assert.Zero(t, body.read.Load())
	assert.Equal(t, int32(1), body.closed.Load())
}

func TestWhatMakesNoSenseIsAnErrorAndNoPanic(t *testing.T) {
	body := &watchedBody{Reader: strings.NewReader("order")}
	req := httptest.NewRequest(http.MethodPost, "http://x.test", body)
	req.Body = body
	_, err := new(httpbreaker.Transport).RoundTrip(req)
	assert.ErrorIs(t, err, breaker.ErrConfig)
	assert.ErrorContains(t, err, "Breaker is nil")
	assert.Equal(t, int32(1), body.closed.Load())

	r := newRig(t, roundTrip(func(*http.Request) (*http.Response, error) { return nil, nil }), breaker.Config{})
	_, err = r.RoundTrip(nil)
	assert.ErrorIs(t, err, breaker.ErrConfig)
	resp, err := r.RoundTrip(httptest.NewRequest(http.MethodGet, "http://x.test", nil))
	assert.Nil(t, resp)
	assert.ErrorContains(t, err, "neither a response nor an error")

	r.Key = func(*http.Request) string { return strings.Repeat("k", breaker.MaxKeyLength+1) }
	req.Body = body
	_, err = r.RoundTrip(req)
	assert.ErrorIs(t, err, breaker.ErrConfig)
	assert.Equal(t, int32(2), body.closed.Load())

	r.Base = nil // http.DefaultTransport, which has an opinion of its own
	r.Key = nil
	_, err = r.client().Get("http:///nowhere")
	assert.ErrorContains(t, err, "no Host")
}

func TestAStoreThatFails(t *testing.T) {
	for policy, name := range map[breaker.StoreErrorPolicy]string{breaker.FailOpen: "FailOpen", breaker.FailClosed: "FailClosed"} {
		t.Run(name, func(t *testing.T) {
			store := breakertest.NewFlakyStore(nil)
			store.Fail(nil)
			b, err := breaker.New(store, breaker.Config{OnStoreError: policy, Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			defer b.Close()
			sent := 0
			client := &http.Client{Transport: &httpbreaker.Transport{Breaker: b, Base: roundTrip(func(req *http.Request) (*http.Response, error) {
				sent++
				return answer(200, text("ok"))(req)
			})}}
			body := &watchedBody{Reader: strings.NewReader("order")}
			resp, err := client.Post("http://x.test", "text/plain", body)
			if policy == breaker.FailOpen {
				require.NoError(t, err)
				assert.NoError(t, resp.Body.Close())
				assert.Equal(t, 1, sent)
				return
			}
			assert.ErrorIs(t, err, breaker.ErrStore)
			assert.ErrorIs(t, err, breakertest.ErrDown)
			assert.Zero(t, sent)
			assert.Zero(t, body.read.Load())
			assert.Equal(t, int32(1), body.closed.Load())
		})
	}
}

func TestABaseThatPanicsSettlesTheCall(t *testing.T) {
	r := newRig(t, roundTrip(func(*http.Request) (*http.Response, error) { panic("boom") }), breaker.Config{Policy: probing})
	r.halfOpen(t, "x.test")
	assert.PanicsWithValue(t, "boom", func() { _ = r.fetch(context.Background(), "http://x.test") })
	r.requireProbe(t, "x.test", breaker.Failure)
}

func TestRetryAfterStretchesTheCooldownWithinReason(t *testing.T) {
	const cooldown, most = 10 * time.Second, time.Minute
	for value, want := range map[string]time.Duration{
		"":                              cooldown,
		"30":                            30 * time.Second,
		"5":                             cooldown,
		"Sat, 01 Jan 2000 00:00:30 GMT": 30 * time.Second, // the bubble's clock begins at midnight
		"Fri, 31 Dec 1999 23:00:00 GMT": cooldown,
		"3600":                          most,
		"99999999999999999999999999":    most,
		"Fri, 31 Dec 9999 23:59:59 GMT": most,
		"-30":                           cooldown,
		"soon":                          cooldown,
		"1e9":                           cooldown,
	} {
		t.Run(value, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, roundTrip(func(req *http.Request) (*http.Response, error) {
					resp, err := answer(429, text(""))(req)
					resp.Header = http.Header{"Retry-After": {value}}
					return resp, err
				}), breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: cooldown, MaxRetryAfter: most}})
				require.NoError(t, r.fetch(t.Context(), "http://x.test"))
				assert.Equal(t, want, rejection(t, r.fetch(t.Context(), "http://x.test")).RetryAfter)
			})
		})
	}
}

func TestRedirectsAreSentAgainWithTheirBody(t *testing.T) {
	var got []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		got = append(got, req.URL.Path+" "+string(body))
		if req.URL.Path == "/old" {
			http.Redirect(w, req, "/new", http.StatusPermanentRedirect)
		}
	}))
	defer srv.Close()
	r := wired(t, breaker.Config{Policy: breaker.Policy{CallTimeout: limit}})
	resp, err := r.client().Post(srv.URL+"/old", "text/plain", strings.NewReader("order")) // has a GetBody
	require.NoError(t, err)
	assert.NoError(t, resp.Body.Close())
	assert.Equal(t, []string{"/old order", "/new order"}, got)
	assert.Equal(t, []breaker.Outcome{breaker.Success, breaker.Success}, r.seen.said())
}

func TestTheRequestIsHandedOnUnchanged(t *testing.T) {
	type mark struct{}
	var sent *http.Request
	for name, p := range map[string]breaker.Policy{"plain": {}, "with a CallTimeout": {CallTimeout: time.Minute}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, roundTrip(func(req *http.Request) (*http.Response, error) {
				sent = req
				return answer(200, text("ok"))(req)
			}), breaker.Config{Policy: p})
			req := httptest.NewRequestWithContext(context.WithValue(t.Context(), mark{}, "x"), http.MethodPost, "http://x.test", strings.NewReader("order"))
			req.ContentLength = -1
			before := *req
			resp, err := r.RoundTrip(req)
			require.NoError(t, err)
			assert.Equal(t, before.Body, sent.Body)
			assert.Equal(t, int64(-1), sent.ContentLength)
			assert.Equal(t, "x", sent.Context().Value(mark{}))
			assert.Equal(t, &before, req)
			assert.Same(t, req, resp.Request, "the caller's own, with the caller's context")
			assert.Equal(t, int64(-1), resp.ContentLength)
			_, limited := sent.Context().Deadline()
			assert.Equal(t, p.CallTimeout > 0, limited)
			assert.NoError(t, sent.Context().Err())
			assert.NoError(t, resp.Body.Close())
		})
	}
}

func TestIdleConnectionsOfBaseAreClosed(t *testing.T) {
	idle, closed := make(chan struct{}, 8), make(chan struct{}, 8)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateIdle:
			idle <- struct{}{}
		case http.StateClosed:
			closed <- struct{}{}
		}
	}
	srv.Start()
	defer srv.Close()
	r := wired(t, breaker.Config{})
	require.NoError(t, r.fetch(t.Context(), srv.URL))
	<-idle
	assert.Empty(t, closed)
	r.client().CloseIdleConnections()
	<-closed

	r.Base = answer(200, text("")) // can't
	assert.NotPanics(t, r.client().CloseIdleConnections)
}
