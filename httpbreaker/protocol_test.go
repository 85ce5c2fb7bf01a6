package httpbreaker_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// http2Server serves HTTP/2 alone.
func http2Server(t *testing.T, handle http.HandlerFunc) (*httptest.Server, *http.Transport) {
	t.Helper()
	srv := httptest.NewUnstartedServer(handle)
	srv.EnableHTTP2 = true
	srv.TLS = &tls.Config{NextProtos: []string{"h2"}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	base := srv.Client().Transport.(*http.Transport)
	base.ForceAttemptHTTP2 = true
	return srv, base
}

func TestEitherProtocol(t *testing.T) {
	more := make(chan struct{})
	serve := func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/whole":
			w.Header().Set("Trailer", "Checksum")
			_, _ = io.WriteString(w, "all of it")
			w.Header().Set("Checksum", "right")
		case "/empty":
		case "/broken":
			_, _ = io.WriteString(w, "part")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler) // in HTTP/2 an RST_STREAM
		case "/endless":
			_ = http.NewResponseController(w).Flush()
			select {
			case <-req.Context().Done():
			case <-more:
			}
		}
	}
	first := httptest.NewServer(http.HandlerFunc(serve))
	defer first.Close()
	second, base := http2Server(t, serve)
	defer close(more)
	for _, c := range []struct {
		path string
		use  func(*testing.T, *http.Response)
		want breaker.Outcome
	}{
		{"/whole", func(t *testing.T, resp *http.Response) {
			all, err := io.ReadAll(resp.Body)
			assert.NoError(t, err)
			assert.Equal(t, "all of it", string(all))
			assert.Equal(t, "right", resp.Trailer.Get("Checksum"))
		}, breaker.Success},
		{"/empty", func(*testing.T, *http.Response) {}, breaker.Success},
		{"/broken", func(t *testing.T, resp *http.Response) {
			_, err := io.ReadAll(resp.Body)
			assert.Error(t, err)
			assert.NotErrorIs(t, err, context.Canceled)
		}, breaker.Failure},
		{"/endless", closed, breaker.Ignored},
		{"/endless", func(t *testing.T, resp *http.Response) {
			read := make(chan error)
			go func() {
				_, err := resp.Body.Read(make([]byte, 1))
				read <- err
			}()
			closed(t, resp)
			assert.Error(t, <-read)
		}, breaker.Ignored},
	} {
		for major, url := range map[int]string{1: first.URL, 2: second.URL} {
			for _, probe := range []bool{false, true} {
				t.Run(fmt.Sprintf("HTTP %d, %s %v, probe %v", major, c.path, c.want, probe), func(t *testing.T) {
					r := newRig(t, base, breaker.Config{Policy: probing})
					if probe {
						r.halfOpen(t, hostOf(url))
					}
					resp := r.get(t, url+c.path)
					assert.Equal(t, major, resp.ProtoMajor)
					c.use(t, resp)
					assert.Equal(t, []breaker.Outcome{c.want}, r.seen.said())
					if probe {
						r.requireProbe(t, hostOf(url), c.want)
					}
					_ = resp.Body.Close()
				})
			}
		}
	}
}

func closed(t *testing.T, resp *http.Response) {
	t.Helper()
	assert.NoError(t, resp.Body.Close())
}

// What has no body to wait for is settled when it comes: nothing below closes one.
func TestResponsesWithoutABodyCountAtOnce(t *testing.T) {
	serve := func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/204":
			w.WriteHeader(http.StatusNoContent)
		case "/304":
			w.WriteHeader(http.StatusNotModified)
		case "/200":
			w.Header().Set("Content-Length", "0")
		case "/503":
			w.Header().Set("Content-Length", "10")
			w.WriteHeader(http.StatusServiceUnavailable)
			if req.Method != http.MethodHead {
				_, _ = io.WriteString(w, "0123456789")
			}
		case "/big":
			w.Header().Set("Content-Length", "1000000")
		}
	}
	plain := httptest.NewServer(http.HandlerFunc(serve))
	defer plain.Close()
	second, base := http2Server(t, serve)
	for _, c := range []struct {
		method, path string
		want         breaker.Outcome
	}{
		{http.MethodGet, "/204", breaker.Success},
		{http.MethodGet, "/304", breaker.Success},
		{http.MethodGet, "/200", breaker.Success},
		{http.MethodPost, "/200", breaker.Success},
		{http.MethodHead, "/big", breaker.Success},
		{http.MethodHead, "/503", breaker.Failure},
	} {
		for _, at := range []string{plain.URL, second.URL} {
			r := newRig(t, base, breaker.Config{Policy: breaker.Policy{CallTimeout: limit}})
			req, err := http.NewRequestWithContext(t.Context(), c.method, at+c.path, nil)
			require.NoError(t, err)
			resp, err := r.RoundTrip(req)
			require.NoError(t, err)
			assert.Equal(t, []breaker.Outcome{c.want}, r.seen.said(), "%s %s", c.method, at+c.path)
			rest, err := io.ReadAll(resp.Body)
			assert.NoError(t, err)
			assert.Empty(t, rest)
			assert.NoError(t, resp.Body.Close())
		}
	}

}

// Responses that no connection brought leave out what tests don't need.
func TestResponsesMadeByHand(t *testing.T) {
	broken := io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))
	for name, c := range map[string]struct {
		resp *http.Response
		want []breaker.Outcome
	}{
		"no body":            {&http.Response{StatusCode: 200}, []breaker.Outcome{breaker.Success}},
		"a body, no length":  {&http.Response{StatusCode: 200, Body: broken}, nil},
		"an upgraded stream": {&http.Response{StatusCode: 101, Body: newStream()}, []breaker.Outcome{breaker.Success}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, roundTrip(func(*http.Request) (*http.Response, error) { return c.resp, nil }), breaker.Config{})
			body := c.resp.Body
			resp, err := r.RoundTrip(httptest.NewRequest(http.MethodGet, "http://x.test", nil))
			require.NoError(t, err)
			assert.Equal(t, c.want, r.seen.said())
			if c.want != nil {
				assert.Equal(t, body, resp.Body, "as it came")
				return
			}
			_, err = io.ReadAll(resp.Body)
			assert.Equal(t, io.ErrUnexpectedEOF, err)
			assert.Equal(t, []breaker.Outcome{breaker.Failure}, r.seen.said())
		})
	}
}

func TestInformationalResponsesPass(t *testing.T) {
	url := "http://" + redistest.Listen(t, says("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"+
		"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", untilClosed))
	var codes []int
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { codes = append(codes, code); return nil },
	})
	r := wired(t, breaker.Config{Policy: breaker.Policy{CallTimeout: limit}})
	require.NoError(t, r.fetch(ctx, url))
	assert.Equal(t, []int{103, 102}, codes)
	assert.Equal(t, []breaker.Outcome{breaker.Success}, r.seen.said())
}

// A server that is asked whether it wants the body, and does not.
func TestExpectContinue(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusExpectationFailed)
	}))
	defer srv.Close()
	r := wired(t, breaker.Config{})
	r.Base.(*http.Transport).ExpectContinueTimeout = limit
	body := &watchedBody{Reader: strings.NewReader("a large file")}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, srv.URL, body)
	require.NoError(t, err)
	req.Header.Set("Expect", "100-continue")
	resp, err := r.client().Do(req)
	require.NoError(t, err)
	assert.NoError(t, resp.Body.Close())
	assert.Zero(t, body.read.Load())
	assert.Equal(t, []breaker.Outcome{breaker.Success}, r.seen.said())
}

// echo answers a request and then sends back what comes.
func echo(answer string) func(net.Conn) {
	return func(conn net.Conn) {
		in := bufio.NewReader(conn)
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		_, _ = io.WriteString(conn, answer)
		_, _ = io.Copy(conn, in)
	}
}

const upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

// A WebSocket outlives the call that asked for it, its CallTimeout too.
func TestAnUpgradeHandsTheConnectionOver(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"plain": 0, "with a CallTimeout": limit} {
		t.Run(name, func(t *testing.T) {
			r := wired(t, breaker.Config{Policy: breaker.Policy{
				ConsecutiveFailures: 1, Cooldown: time.Millisecond, CallTimeout: timeout}})
			addr := redistest.Listen(t, echo(upgraded))
			r.halfOpen(t, addr)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr, nil)
			require.NoError(t, err)
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "websocket")
			resp, err := r.client().Do(req)
			require.NoError(t, err)
			require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
			r.requireProbe(t, addr, breaker.Success)
			conn, ok := resp.Body.(io.ReadWriteCloser)
			require.True(t, ok)
			for _, word := range []string{"hello", "again"} {
				_, err = io.WriteString(conn, word)
				require.NoError(t, err)
				got := make([]byte, len(word))
				_, err = io.ReadFull(conn, got)
				require.NoError(t, err)
				assert.Equal(t, word, string(got))
			}
			assert.NoError(t, conn.Close())
			assert.Equal(t, []breaker.Outcome{breaker.Success}, r.seen.said())
		})
	}
}

func TestAConnectIsSettledWhenTheTunnelStands(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"plain": 0, "with a CallTimeout": limit} {
		t.Run(name, func(t *testing.T) {
			r := wired(t, breaker.Config{Policy: breaker.Policy{CallTimeout: timeout}})
			addr := redistest.Listen(t, echo("HTTP/1.1 200 Connection established\r\n\r\n"))
			out, in := io.Pipe()
			resp, err := r.RoundTrip(connect(addr, out))
			require.NoError(t, err)
			assert.Equal(t, []breaker.Outcome{breaker.Success}, r.seen.said(), "the tunnel's end is another's")
			go func() { _, _ = io.WriteString(in, "through") }()
			got := make([]byte, len("through"))
			_, err = io.ReadFull(resp.Body, got)
			require.NoError(t, err)
			assert.Equal(t, "through", string(got))
			assert.NoError(t, in.Close())
			assert.NoError(t, resp.Body.Close())
		})
	}
	r := wired(t, breaker.Config{})
	addr := redistest.Listen(t, says("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno", untilClosed))
	resp, err := r.RoundTrip(connect(addr, http.NoBody))
	require.NoError(t, err)
	assert.NoError(t, resp.Body.Close())
	assert.Equal(t, []breaker.Outcome{breaker.Failure}, r.seen.said())
}

// connect asks the server at addr for a tunnel, and sends body through it.
func connect(addr string, body io.ReadCloser) *http.Request {
	return &http.Request{Method: http.MethodConnect, URL: &url.URL{Scheme: "http", Host: addr},
		Host: "far.test:443", Header: http.Header{}, Body: body, ContentLength: -1}
}

// A request to a proxy that is down is a failure of what was asked for.
func TestAProxyThatRefusesTheTunnel(t *testing.T) {
	proxy := redistest.Listen(t, says("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", hangUp))
	r := wired(t, breaker.Config{})
	r.Base.(*http.Transport).Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy})
	assert.ErrorContains(t, r.fetch(t.Context(), "https://far.test"), "Bad Gateway")
	assert.Equal(t, []string{"far.test"}, r.seen.keys)
	assert.Equal(t, []breaker.Outcome{breaker.Failure}, r.seen.said())
}

func TestLengthsArePassedOn(t *testing.T) {
	got := make(chan int64, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		got <- req.ContentLength
		_, _ = io.Copy(io.Discard, req.Body)
		w.(http.Flusher).Flush() // chunked
		_, _ = io.WriteString(w, "ok")
	}))
	defer srv.Close()
	r := wired(t, breaker.Config{})
	for _, c := range []struct {
		body io.Reader
		want int64
	}{{io.MultiReader(strings.NewReader("of no known length")), -1}, {strings.NewReader("12345"), 5}} {
		resp, err := r.client().Post(srv.URL, "text/plain", c.body)
		require.NoError(t, err)
		assert.Equal(t, c.want, <-got)
		assert.Equal(t, int64(-1), resp.ContentLength)
		all, err := io.ReadAll(resp.Body)
		assert.NoError(t, err)
		assert.Equal(t, "ok", string(all))
		assert.NoError(t, resp.Body.Close())
	}
}

func TestCompressedBodies(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, strings.Repeat("long ", 10_000))
		if req.URL.Path == "/broken" {
			_ = z.Flush()
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		_ = z.Close()
	}))
	defer srv.Close()
	r := newRig(t, new(http.Transport), breaker.Config{})
	defer r.CloseIdleConnections()
	assert.NoError(t, r.fetch(t.Context(), srv.URL))
	assert.ErrorIs(t, r.fetch(t.Context(), srv.URL+"/broken"), io.ErrUnexpectedEOF)
	assert.Equal(t, []breaker.Outcome{breaker.Success, breaker.Failure}, r.seen.said())
}

// The client's own timeout is a deadline of the caller: a Failure wherever it falls.
func TestTheTimeoutOfTheClient(t *testing.T) {
	for name, bytes := range map[string]string{
		"before the answer": "",
		"in the body":       "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := wired(t, breaker.Config{})
			client := r.client()
			client.Timeout = 300 * time.Millisecond
			resp, err := client.Get("http://" + redistest.Listen(t, says(bytes, untilClosed)))
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				assert.NoError(t, resp.Body.Close())
			}
			var timeout interface{ Timeout() bool }
			require.ErrorAs(t, err, &timeout)
			assert.True(t, timeout.Timeout())
			assert.Equal(t, []breaker.Outcome{breaker.Failure}, r.seen.said())
		})
	}
}

func TestARequestWhoseContextIsDoneIsNoVerdict(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	r := wired(t, breaker.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, r.fetch(ctx, srv.URL), context.Canceled)
	assert.Equal(t, []breaker.Outcome{breaker.Ignored}, r.seen.said())
}
