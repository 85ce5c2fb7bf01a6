package httpbreaker_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/httpbreaker"
)

// limit is for what takes no time unless something is wrong.
const limit = 10 * time.Second

// A witness is an Observer that remembers what calls came to.
type witness struct {
	breaker.NopObserver
	mu       sync.Mutex
	outcomes []breaker.Outcome
	keys     []string
	elapsed  time.Duration
}

func (w *witness) CallDone(key string, o breaker.Outcome, elapsed time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outcomes, w.keys, w.elapsed = append(w.outcomes, o), append(w.keys, key), elapsed
}

func (w *witness) said() []breaker.Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.outcomes
}

// A rig is a Transport, the Breaker it asks, and who sees what comes of it.
type rig struct {
	*httpbreaker.Transport
	seen *witness
}

func newRig(t testing.TB, base http.RoundTripper, cfg breaker.Config) rig {
	t.Helper()
	w := new(witness)
	cfg.Observer = w
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	return rig{&httpbreaker.Transport{Breaker: b, Base: base}, w}
}

// wired is a rig over connections of its own, closed with the test.
func wired(t testing.TB, cfg breaker.Config) rig {
	base := &http.Transport{DisableCompression: true}
	t.Cleanup(base.CloseIdleConnections)
	return newRig(t, base, cfg)
}

func (r rig) client() *http.Client { return &http.Client{Transport: r} }

func (r rig) snapshot(t testing.TB, key string) breaker.Snapshot {
	t.Helper()
	s, err := r.Breaker.Snapshot(context.Background(), key)
	require.NoError(t, err)
	return s
}

// fetch gets url and reads its body to the end.
func (r rig) fetch(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := r.client().Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// get gets url; the body is the caller's to close.
func (r rig) get(t testing.TB, url string) *http.Response {
	t.Helper()
	resp, err := r.client().Get(url)
	require.NoError(t, err)
	return resp
}

// probing is a policy under which one failure opens and a probe may run at once.
var probing = breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Millisecond}

// halfOpen has the next call of key be a probe.
func (r rig) halfOpen(t testing.TB, key string) {
	t.Helper()
	_ = r.Breaker.Execute(context.Background(), key, func(context.Context) error { return errors.New("down") })
	require.Eventually(t, func() bool { return r.snapshot(t, key).State == breaker.StateHalfOpen },
		limit, time.Millisecond)
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	r.seen.outcomes = nil
}

// requireProbe asserts what became of a half-open circuit.
func (r rig) requireProbe(t testing.TB, key string, o breaker.Outcome) {
	t.Helper()
	s := r.snapshot(t, key)
	assert.Zero(t, s.ProbesInFlight)
	switch o {
	case breaker.Success:
		assert.Equal(t, breaker.StateClosed, s.State)
	case breaker.Failure:
		assert.Equal(t, 1, s.Reopens)
	default:
		assert.Equal(t, breaker.StateHalfOpen, s.State)
		assert.Zero(t, s.Reopens)
	}
}

// roundTrip is a Base made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// answer is a Base that answers everything with a status and this body.
func answer(code int, body io.ReadCloser) roundTrip {
	return func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: code, Body: body, ContentLength: -1, ProtoMajor: 1, Request: req}, nil
	}
}

func text(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }

// hostOf is the key of a server's URL.
func hostOf(url string) string { return strings.SplitN(url, "/", 4)[2] }

// readRequest takes the request off the wire.
func readRequest(conn net.Conn) bool {
	_, err := http.ReadRequest(bufio.NewReader(conn))
	return err == nil
}

// untilClosed waits until the peer has hung up.
func untilClosed(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func reset(conn net.Conn) {
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

func rejection(t testing.TB, err error) *breaker.RejectedError {
	t.Helper()
	var r *breaker.RejectedError
	require.ErrorAs(t, err, &r)
	return r
}
