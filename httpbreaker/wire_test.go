package httpbreaker_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
)

// says returns a server that takes a request and answers with these bytes.
func says(bytes string, then func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		if !readRequest(conn) {
			return
		}
		_, _ = io.WriteString(conn, bytes)
		then(conn)
	}
}

func hangUp(net.Conn) {}

// What servers do on the wire, and what a client who reads to the end makes of it.
var misbehaviour = []struct {
	name  string
	serve func(net.Conn)
	want  func(t *testing.T, err error) // nil: no error
}{
	{"resets before the answer", func(conn net.Conn) { readRequest(conn); reset(conn) }, isErr(syscall.ECONNRESET)},
	{"closes before the answer", func(conn net.Conn) { readRequest(conn) }, isErr(io.EOF)},
	{"closes in the headers", says("HTTP/1.1 200 OK\r\nContent-Le", hangUp), contains("malformed MIME header")},
	{"speaks no HTTP", says("220 mail.example.com ESMTP\r\n", hangUp), contains("malformed HTTP")},
	{"stalls before the answer", says("", untilClosed), isErr(context.DeadlineExceeded)},
	{"stalls in the headers", says("HTTP/1.1 200 OK\r\n", untilClosed), isErr(context.DeadlineExceeded)},
	{"stalls in the body", says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", untilClosed), isErr(context.DeadlineExceeded)},
	{"stalls before the body's end", says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", untilClosed), isErr(context.DeadlineExceeded)},
	{"resets in the body", says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", resetSoon), isErr(syscall.ECONNRESET)},
	{"resets in the body of a 404", says("HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\nhalf", resetSoon), isErr(syscall.ECONNRESET)},
	{"closes in the body", says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", hangUp), isErr(io.ErrUnexpectedEOF)},
	{"closes between chunks", says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", hangUp), isErr(io.ErrUnexpectedEOF)},
	{"writes chunks of no size", says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nhalf\r\n", hangUp), contains("invalid byte in chunk length")},
	{"says two lengths", says("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 9\r\n\r\nhalf", hangUp), contains("Content-Length")},

	// The client can't tell these from a sound answer.
	{"sends more than it said", says("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhalf and half", hangUp), nil},
	{"ends without a length", says("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf", hangUp), nil},
	{"is gone after the answer", says("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfull", hangUp), nil},
}

// resetSoon resets when the client has most likely read what came before: what
// is still under way when a connection is reset may be lost with it.
func resetSoon(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	untilClosed(conn)
	reset(conn)
}

func isErr(target error) func(*testing.T, error) {
	return func(t *testing.T, err error) { t.Helper(); assert.ErrorIs(t, err, target) }
}

func contains(part string) func(*testing.T, error) {
	return func(t *testing.T, err error) { t.Helper(); assert.ErrorContains(t, err, part) }
}

func TestServersThatMisbehaveOnTheWire(t *testing.T) {
	for _, c := range misbehaviour {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			url := "http://" + redistest.Listen(t, c.serve)
			bothStates(t, wired(t, breaker.Config{Policy: patientProbing}), url, c.want)
		})
	}
}

// patientProbing has a deadline that a sound answer on a busy machine meets.
var patientProbing = breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Millisecond, CallTimeout: time.Second}

// bothStates makes the same call to a closed and to a half-open circuit.
func bothStates(t *testing.T, r rig, url string, want func(*testing.T, error)) {
	t.Helper()
	outcome := breaker.Success
	if want != nil {
		outcome = breaker.Failure
	}
	check := func(err error) {
		t.Helper()
		if want == nil {
			assert.NoError(t, err)
		} else {
			want(t, err)
		}
		assert.Equal(t, []breaker.Outcome{outcome}, r.seen.said())
	}
	check(r.fetch(t.Context(), url))
	if want != nil {
		require.NotEqual(t, breaker.StateClosed, r.snapshot(t, hostOf(url)).State)
		require.NoError(t, r.Breaker.Reset(t.Context(), hostOf(url)))
	}
	r.halfOpen(t, hostOf(url))
	check(r.fetch(t.Context(), url))
	r.requireProbe(t, hostOf(url), outcome)
}

func TestConnectionsThatAreRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	bothStates(t, wired(t, breaker.Config{Policy: patientProbing}), "http://"+l.Addr().String(), isErr(syscall.ECONNREFUSED))
}

func TestServersWhoseTLSIsBad(t *testing.T) {
	quiet := func(s *httptest.Server) *httptest.Server {
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		t.Cleanup(s.Close)
		return s
	}
	untrusted := quiet(httptest.NewUnstartedServer(http.NotFoundHandler()))
	untrusted.StartTLS()
	old := quiet(httptest.NewUnstartedServer(http.NotFoundHandler()))
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS12}
	old.StartTLS()
	plain := quiet(httptest.NewServer(http.NotFoundHandler()))
	silent := redistest.Listen(t, untilClosed)

	for name, c := range map[string]struct {
		url  string
		tls  *tls.Config
		want func(*testing.T, error)
	}{
		"nobody vouches for it":  {untrusted.URL, nil, contains("failed to verify certificate")},
		"only versions too old":  {old.URL, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}, contains("tls: ")},
		"it does not speak TLS":  {strings.Replace(plain.URL, "http", "https", 1), nil, contains("HTTP response to HTTPS client")},
		"it never shakes hands":  {"https://" + silent, nil, isErr(context.DeadlineExceeded)},
		"the name is another's":  {untrusted.URL, named(untrusted), contains("certificate is valid for")},
		"it is sound, for proof": {untrusted.URL, trusting(untrusted), nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := wired(t, breaker.Config{Policy: patientProbing})
			r.Base.(*http.Transport).TLSClientConfig = c.tls
			bothStates(t, r, c.url, c.want)
		})
	}
}

func trusting(s *httptest.Server) *tls.Config {
	return s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
}

func named(s *httptest.Server) *tls.Config {
	cfg := trusting(s)
	cfg.ServerName = "elsewhere.test"
	return cfg
}

// noName is a name server that knows no name: over a stream, as the resolver
// takes any connection that is not a packet one.
func noName(conn net.Conn) {
	defer conn.Close()
	var size [2]byte
	for {
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		msg := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, msg); err != nil {
			return
		}
		msg[2], msg[3] = 0x81, 0x83 // an answer: no such name
		_, _ = conn.Write(append(size[:], msg...))
	}
}

func TestHostsThatDoNotExist(t *testing.T) {
	for name, c := range map[string]struct {
		dial func(context.Context, string, string) (net.Conn, error)
		want func(*net.DNSError) bool
	}{
		"no such host": {func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go noName(there)
			return here, nil
		}, func(e *net.DNSError) bool { return e.IsNotFound }},
		"no name server": {func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "udp", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}
		}, func(e *net.DNSError) bool { return !e.IsNotFound }},
	} {
		t.Run(name, func(t *testing.T) {
			r := wired(t, breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Millisecond}})
			r.Base.(*http.Transport).DialContext = (&net.Dialer{
				Resolver: &net.Resolver{PreferGo: true, Dial: c.dial},
			}).DialContext
			bothStates(t, r, "http://nowhere.test", func(t *testing.T, err error) {
				var lookup *net.DNSError
				require.True(t, errors.As(err, &lookup), err)
				assert.True(t, c.want(lookup), lookup)
			})
		})
	}
}
