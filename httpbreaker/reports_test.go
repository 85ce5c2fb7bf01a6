package httpbreaker_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/httpbreaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// What users of circuit breakers have reported of HTTP, each a test.

// A success was credited at the headers, and the stream that died later was
// seen by nobody.
func TestStreamsThatDieAfterA200Trip(t *testing.T) {
	begun := make(chan struct{})
	url := "http://" + redistest.Listen(t, says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		func(conn net.Conn) { <-begun; reset(conn) }))
	r := wired(t, breaker.Config{})
	for range 5 {
		resp := r.get(t, url)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Equal(t, breaker.StateClosed, r.snapshot(t, hostOf(url)).State)
		begun <- struct{}{}
		_, err := io.ReadAll(resp.Body)
		assert.ErrorIs(t, err, syscall.ECONNRESET)
		assert.NoError(t, resp.Body.Close())
	}
	assert.ErrorIs(t, r.fetch(t.Context(), url), breaker.ErrOpen)
}

// Users who navigate away, before the answer or within it, trip nothing.
func TestUsersNavigatingAwayDoNotTrip(t *testing.T) {
	asked := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/stream" {
			_, _ = io.WriteString(w, "data: 1\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		asked <- struct{}{}
		<-req.Context().Done()
	}))
	defer srv.Close()
	r := wired(t, breaker.Config{})
	for range 25 {
		for _, path := range []string{"/page", "/stream"} {
			ctx, leave := context.WithCancel(t.Context())
			go func() { <-asked; leave() }()
			assert.ErrorIs(t, r.fetch(ctx, srv.URL+path), context.Canceled)
		}
	}
	s := r.snapshot(t, hostOf(srv.URL))
	assert.Equal(t, breaker.StateClosed, s.State)
	assert.Zero(t, s.ConsecutiveFailures)
	assert.Nil(t, s.LastFailure)
	assert.Len(t, r.seen.said(), 50)
}

// gateway is a reverse proxy to a server, over the Transport.
func gateway(t *testing.T, r rig, to string) *httptest.Server {
	t.Helper()
	target, err := url.Parse(to)
	require.NoError(t, err)
	srv := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(pr *httputil.ProxyRequest) { pr.SetURL(target) },
		Transport: r,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if !httpbreaker.WriteRejection(w, err) {
				w.WriteHeader(http.StatusBadGateway)
			}
		},
	})
	t.Cleanup(srv.Close)
	return srv
}

// Wrappers used to hide what an upgrade and a flush need.
func TestAWebSocketPassesAGateway(t *testing.T) {
	addr := redistest.Listen(t, echo(upgraded))
	r := wired(t, breaker.Config{Policy: breaker.Policy{CallTimeout: limit}})
	conn, err := net.Dial("tcp", gateway(t, r, "http://"+addr).Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(limit)))
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	require.NoError(t, err)
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	for range 3 {
		_, err = io.WriteString(conn, "hello")
		require.NoError(t, err)
		got := make([]byte, 5)
		_, err = io.ReadFull(in, got)
		require.NoError(t, err)
		assert.Equal(t, "hello", string(got))
	}
	assert.Equal(t, []breaker.Outcome{breaker.Success}, r.seen.said())
}

func TestServerSentEventsPassAGatewayOneByOne(t *testing.T) {
	seen := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			_, _ = io.WriteString(w, "data: tick\n\n")
			_ = http.NewResponseController(w).Flush()
			select { // the next only when this one has come through
			case <-seen:
			case <-req.Context().Done():
				return
			}
		}
	}))
	defer srv.Close()
	r := wired(t, breaker.Config{})
	resp, err := http.Get(gateway(t, r, srv.URL).URL)
	require.NoError(t, err)
	defer resp.Body.Close()
	events := bufio.NewScanner(resp.Body)
	for range 3 {
		require.True(t, events.Scan())
		assert.Equal(t, "data: tick", events.Text())
		require.True(t, events.Scan())
		assert.Empty(t, r.seen.said(), "a stream under way has no verdict")
		seen <- struct{}{}
	}
	assert.False(t, events.Scan())
	assert.NoError(t, events.Err())
	require.Eventually(t, func() bool { return len(r.seen.said()) == 1 }, limit, time.Millisecond)
	assert.Equal(t, []breaker.Outcome{breaker.Success}, r.seen.said())
}

// An open circuit was answered with 200.
func TestAnOpenCircuitIsNever2xx(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer srv.Close()
	r := wired(t, breaker.Config{})
	front := gateway(t, r, srv.URL)
	for i := range 50 {
		resp, err := http.Get(front.URL)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		want := http.StatusInternalServerError
		if i >= 5 {
			want = http.StatusServiceUnavailable
			assert.Equal(t, "60", resp.Header.Get("Retry-After"))
		}
		require.Equal(t, want, resp.StatusCode)
	}
}

// A constant Retry-After is of no use: it is what is left.
func TestRetryAfterIsWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("down") }),
			breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: 30 * time.Second}})
		_ = r.fetch(t.Context(), "http://x.test")
		time.Sleep(12 * time.Second)
		w := httptest.NewRecorder()
		require.True(t, httpbreaker.WriteRejection(w, r.fetch(t.Context(), "http://x.test")))
		assert.Equal(t, "18", w.Header().Get("Retry-After"))
	})
}
