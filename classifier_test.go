package breaker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// codedError stands for a client library's own error type.
type codedError struct {
	code  int
	text  string
	cause error
}

func (e *codedError) Error() string   { return e.text }
func (e *codedError) StatusCode() int { return e.code }
func (e *codedError) Unwrap() error   { return e.cause }

// patientError knows how long to wait and nothing of HTTP.
type patientError time.Duration

func (e patientError) Error() string             { return "come back later" }
func (e patientError) RetryAfter() time.Duration { return time.Duration(e) }

// muteError panics when asked for its text.
type muteError struct{ code int }

func (e muteError) Error() string   { panic("no text") }
func (e muteError) StatusCode() int { return e.code }

func TestHTTPClassifierReadsStatuses(t *testing.T) {
	for code, want := range map[int]Outcome{
		-1: Failure, 0: Failure, 99: Failure, 600: Failure, 40401: Failure, // no statuses: unknown errors
		100: Success, 200: Success, 302: Success, 399: Success,
		400: Success, 401: Success, 404: Success, 408: Success, 428: Success, 499: Success,
		429: Failure, 500: Failure, 501: Failure, 503: Failure, 599: Failure,
	} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			for name, err := range map[string]error{
				"StatusError":   &StatusError{Code: code},
				"wrapped":       fmt.Errorf("get user: %w", &StatusError{Code: code}),
				"joined":        errors.Join(&StatusError{Code: code}),
				"own type":      &codedError{code: code, text: "refused by the server"},
				"under a cause": &codedError{text: "outer", cause: &codedError{code: code}},
			} {
				assert.Equal(t, Verdict{Outcome: want}, HTTPClassifier{}.Classify(err), name)
			}
		})
	}
}

func TestHTTPClassifierLetsStatusesDecideATree(t *testing.T) {
	notFound, broken := &StatusError{Code: 404}, &StatusError{Code: 503, RetryAfter: 3 * time.Second}
	unknown := errors.New("no such user")
	tests := map[string]struct {
		err  error
		want Verdict
	}{
		"unknown beside 404":          {errors.Join(unknown, notFound), Verdict{Success, 0}},
		"404 beside unknown":          {errors.Join(notFound, unknown), Verdict{Success, 0}},
		"sentinel and 404":            {fmt.Errorf("%w: %w", unknown, notFound), Verdict{Success, 0}},
		"refused beside 404":          {errors.Join(syscall.ECONNREFUSED, notFound), Verdict{Success, 0}},
		"refused under 404":           {&codedError{code: 404, cause: syscall.ECONNREFUSED}, Verdict{Success, 0}},
		"no status beside 404":        {errors.Join(&codedError{code: 0}, notFound), Verdict{Success, 0}},
		"503 beside 404":              {errors.Join(broken, notFound), Verdict{Failure, 3 * time.Second}},
		"404 beside 503":              {errors.Join(notFound, broken), Verdict{Failure, 3 * time.Second}},
		"503 under 404":               {&codedError{code: 404, cause: broken}, Verdict{Failure, 3 * time.Second}},
		"503 deep in a second branch": {fmt.Errorf("%w, %w", notFound, errors.Join(unknown, fmt.Errorf("mirror: %w", broken))), Verdict{Failure, 3 * time.Second}},
		"only unknown":                {errors.Join(unknown, unknown), Verdict{Failure, 0}},
		"empty wrapper":               {&codedError{code: 0}, Verdict{Failure, 0}},
		"nil branch":                  {nilBranchError{notFound}, Verdict{Success, 0}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, HTTPClassifier{}.Classify(tt.err))
		})
	}
}

// nilBranchError breaks the rule that no branch is nil.
type nilBranchError struct{ error }

func (e nilBranchError) Unwrap() []error { return []error{nil, e.error} }

func TestHTTPClassifierTakesLongestRetryAfter(t *testing.T) {
	tests := map[string]struct {
		err  error
		want Verdict
	}{
		"field":               {&StatusError{Code: 429, RetryAfter: time.Minute}, Verdict{Failure, time.Minute}},
		"method":              {patientError(time.Minute), Verdict{Failure, time.Minute}},
		"wrapped method":      {fmt.Errorf("x: %w", patientError(time.Minute)), Verdict{Failure, time.Minute}},
		"negative field":      {&StatusError{Code: 503, RetryAfter: -time.Second}, Verdict{Failure, 0}},
		"negative method":     {patientError(-time.Second), Verdict{Failure, 0}},
		"longest first":       {errors.Join(patientError(9), &StatusError{Code: 503, RetryAfter: 5}), Verdict{Failure, 9}},
		"longest last":        {errors.Join(&StatusError{Code: 503, RetryAfter: 5}, patientError(9)), Verdict{Failure, 9}},
		"method beside a 503": {errors.Join(&StatusError{Code: 503}, patientError(9)), Verdict{Failure, 9}},
		"a success asks none": {&StatusError{Code: 404, RetryAfter: time.Minute}, Verdict{Success, 0}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, HTTPClassifier{}.Classify(tt.err))
		})
	}
}

// One user's rate limit is no outage to one team and the very outage to the
// other. Five 429s must count unless told otherwise, and never half of each.
func TestTooManyRequestsCountsUnlessSwitchedOff(t *testing.T) {
	limited := &StatusError{Code: 429, RetryAfter: time.Second}
	off := HTTPClassifier{FailureStatus: func(code int) bool { return code >= 500 }}
	for range 5 {
		assert.Equal(t, Verdict{Failure, time.Second}, HTTPClassifier{}.Classify(limited))
		assert.Equal(t, Verdict{Success, 0}, off.Classify(limited))
	}
	assert.Equal(t, Failure, off.Classify(&StatusError{Code: 500}).Outcome)
}

func TestFailureStatusDecidesAlone(t *testing.T) {
	var asked []int
	c := HTTPClassifier{FailureStatus: func(code int) bool {
		asked = append(asked, code)
		return code == 401
	}}
	assert.Equal(t, Failure, c.Classify(&StatusError{Code: 401}).Outcome)
	assert.Equal(t, Success, c.Classify(&StatusError{Code: 503}).Outcome)
	assert.Equal(t, Failure, c.Classify(errors.Join(&StatusError{Code: 503}, &StatusError{Code: 401})).Outcome)

	asked = nil
	for _, code := range []int{-1, 0, 99, 600} {
		assert.Equal(t, Failure, c.Classify(&codedError{code: code}).Outcome, "an unknown error, code %d", code)
	}
	assert.Empty(t, asked, "it is asked with HTTP statuses only")
}

// The circuit opened because callers asked for what does not exist, or sent
// nonsense: errors that a healthy provider answers with all day.
func TestAnswersOfAHealthyProviderAreSuccesses(t *testing.T) {
	errNotFound := errors.New("record not found")
	rpc := HTTPClassifier{Next: ClassifierFunc(func(err error) Outcome {
		if errors.Is(err, errNotFound) { // as one would look at a gRPC code
			return Success
		}
		return Undecided
	})}
	for range 100 {
		assert.Equal(t, Success, HTTPClassifier{}.Classify(&codedError{code: 404, text: "NotFound"}).Outcome)
		assert.Equal(t, Success, HTTPClassifier{}.Classify(&codedError{code: 400, text: "InvalidArgument"}).Outcome)
		assert.Equal(t, Success, rpc.Classify(fmt.Errorf("rpc: %w", errNotFound)).Outcome)
	}
	assert.Equal(t, Failure, rpc.Classify(errors.New("rpc: unavailable")).Outcome)
}

func TestNextIsAskedFirst(t *testing.T) {
	for _, next := range []Verdict{{Success, 0}, {Ignored, 0}, {Failure, 0}, {Failure, 7 * time.Second}} {
		c := HTTPClassifier{Next: verdictClassifier(next)}
		assert.Equal(t, next, c.Classify(&StatusError{Code: 503, RetryAfter: time.Hour}))
		assert.Equal(t, next, c.Classify(&StatusError{Code: 404}))
		assert.Equal(t, next, c.Classify(muteError{404}), "it needs no text")
	}

	c := HTTPClassifier{Next: verdictClassifier{RetryAfter: time.Hour}}
	assert.Equal(t, Verdict{Failure, time.Second}, c.Classify(&StatusError{Code: 503, RetryAfter: time.Second}), "undecided leaves all to the status")
	assert.Equal(t, Verdict{Success, 0}, c.Classify(&StatusError{Code: 404}))

	c = HTTPClassifier{Next: HTTPClassifier{Next: ClassifierFunc(func(error) Outcome { return Ignored })}}
	assert.Equal(t, Ignored, c.Classify(io.EOF).Outcome, "they nest")
}

type verdictClassifier Verdict

func (c verdictClassifier) Classify(error) Verdict { return Verdict(c) }

// A provider that hangs was never noticed, because every context error was
// taken for a caller who had left. The caller is alive here, so a deadline or a
// cancellation is somebody else's: the provider's fault.
func TestContextErrorsOfALiveCallAreFailures(t *testing.T) {
	hangs := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hangs:
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	defer close(hangs)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", srv.URL, nil)
	require.NoError(t, err)
	_, timeout := srv.Client().Do(req)
	require.ErrorIs(t, timeout, context.DeadlineExceeded)

	for _, err := range []error{
		timeout,
		context.DeadlineExceeded,
		context.Canceled,
		fmt.Errorf("query: %w", context.DeadlineExceeded),
		fmt.Errorf("query: %w", context.Canceled),
		errors.New("rpc error: code = Canceled desc = context canceled"),
	} {
		assert.Equal(t, Verdict{Failure, 0}, HTTPClassifier{}.Classify(err), "%v", err)
		assert.Equal(t, Verdict{Failure, 0}, HTTPClassifier{MatchMessages: true}.Classify(err), "%v", err)
	}
}

// realFailures has errors as the network makes them, each with what shows that
// it is the one meant.
func realFailures(t *testing.T) map[string]error {
	t.Helper()
	errs := map[string]error{
		"no such host": &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "nowhere.invalid", IsNotFound: true}},
		"plain EOF":    io.EOF,
		"broken pipe":  &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)},
	}

	// Nobody listens.
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	_, err = http.Get("http://" + closed.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	errs["connection refused"] = err

	// The peer resets.
	peer, us := tcpPair(t)
	require.NoError(t, peer.SetLinger(0))
	require.NoError(t, peer.Close())
	_, err = us.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	errs["connection reset"] = err

	// The peer is silent.
	_, us = tcpPair(t)
	require.NoError(t, us.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err = us.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	errs["read deadline"] = err

	// The server speaks TLS that the client does not trust.
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	_, err = http.Get(secure.URL)
	require.ErrorContains(t, err, "failed to verify certificate")
	errs["untrusted certificate"] = err

	// The server does not speak TLS at all.
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	_, err = http.Get("https" + strings.TrimPrefix(plain.URL, "http"))
	require.ErrorContains(t, err, "HTTP response to HTTPS client")
	errs["no TLS"] = err

	errs["body cut short"] = cutShort(t)
	return errs
}

// tcpPair returns both ends of a connection.
func tcpPair(t *testing.T) (server, client *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	s, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s.(*net.TCPConn), c.(*net.TCPConn)
}

// cutShort returns the error of a response that began with 200 and broke off.
func cutShort(t *testing.T) error {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "only so much")
	}))
	t.Cleanup(srv.Close)
	resp, err := http.Get(srv.URL)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.NoError(t, CheckResponse(resp), "the headers promise a success")
	_, err = io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	return err
}

func TestNetworkErrorsAreFailures(t *testing.T) {
	for name, err := range realFailures(t) {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, Verdict{Failure, 0}, HTTPClassifier{}.Classify(err))
			assert.Equal(t, Verdict{Failure, 0}, HTTPClassifier{}.Classify(fmt.Errorf("fetch: %w", err)))
			assert.Equal(t, Verdict{Failure, 0}, HTTPClassifier{}.Classify(errors.Join(errors.New("fetch"), err)))
			assert.Equal(t, Verdict{Failure, 0}, HTTPClassifier{}.Classify(errors.New(err.Error())), "its text alone")
		})
	}
}

// A success was credited when the headers came, and the stream that died later
// was seen by nobody. The error of the body is a Failure of its own.
func TestBodyThatBreaksOffAfterA200IsAFailure(t *testing.T) {
	err := cutShort(t)
	assert.Equal(t, Failure, HTTPClassifier{}.Classify(err).Outcome)
	driver := &codedError{code: 200, text: "decode: " + err.Error()}
	assert.Equal(t, Success, HTTPClassifier{}.Classify(driver).Outcome, "the status is all this driver tells")
	assert.Equal(t, Failure, HTTPClassifier{MatchMessages: true}.Classify(driver).Outcome)
}

func TestMatchMessagesOverridesASuccessfulStatus(t *testing.T) {
	texts := map[string]bool{
		"dial tcp 127.0.0.1:1: connect: connection refused":                             true,
		"could not connect to server: Connection refused":                               true,
		"connectex: No connection could be made because the target actively refused it": true,
		"read: connection reset by peer":                                                true,
		"wsarecv: An existing connection was forcibly closed by the remote host.":       true,
		"lookup nowhere.invalid: no such host":                                          true,
		"read tcp: i/o timeout":                                                         true,
		"dial tcp: connect: connection timed out":                                       true,
		"net/http: TLS handshake timeout":                                               true,
		"remote error: tls: internal error":                                             true,
		"tls: handshake failure":                                                        true,
		"tls: failed to verify certificate: x509: expired":                              true,
		"write: broken pipe":                                                            true,
		"unexpected EOF":                                                                true,
		"connect: no route to host":                                                     true,
		"connect: network is unreachable":                                               true,
		"rpc error: code = DeadlineExceeded desc = context deadline exceeded":           true,
		"user not found":                                                                false,
		"EOF":                                                                           false,
		"timeout must be a positive number":                                             false,
		"":                                                                              false,
	}
	ignores := ClassifierFunc(func(error) Outcome { return Ignored })
	succeeds := ClassifierFunc(func(error) Outcome { return Success })
	never := func(int) bool { return false }
	for text, failed := range texts {
		t.Run(text, func(t *testing.T) {
			for _, tt := range []struct {
				name string
				c    HTTPClassifier
				code int
				off  Outcome
			}{
				{"404", HTTPClassifier{}, 404, Success},
				{"400", HTTPClassifier{}, 400, Success},
				{"FailureStatus", HTTPClassifier{FailureStatus: never}, 503, Success},
				{"Next succeeds", HTTPClassifier{Next: succeeds}, 503, Success},
				{"Next ignores", HTTPClassifier{Next: ignores}, 503, Ignored},
			} {
				err := fmt.Errorf("driver: %w", &codedError{code: tt.code, text: text})
				assert.Equal(t, Verdict{tt.off, 0}, tt.c.Classify(err), "%s, off", tt.name)
				want := tt.off
				if failed {
					want = Failure
				}
				tt.c.MatchMessages = true
				assert.Equal(t, Verdict{want, 0}, tt.c.Classify(err), "%s, on", tt.name)
			}
		})
	}
}

func TestMatchMessagesReadsTheTextOfRealErrors(t *testing.T) {
	errs := realFailures(t)
	delete(errs, "plain EOF") // says too little
	delete(errs, "no TLS")    // someone answered
	for name, err := range errs {
		t.Run(name, func(t *testing.T) {
			driver := &codedError{code: 404, text: "index missing: " + err.Error()}
			assert.Equal(t, Success, HTTPClassifier{}.Classify(driver).Outcome)
			assert.Equal(t, Failure, HTTPClassifier{MatchMessages: true}.Classify(driver).Outcome)
		})
	}
}

func TestMatchMessagesKeepsRetryAfter(t *testing.T) {
	err := fmt.Errorf("upstream: connection refused: %w", &StatusError{Code: 404, RetryAfter: time.Second})
	assert.Equal(t, Verdict{Failure, time.Second}, HTTPClassifier{MatchMessages: true}.Classify(err))
}

func TestTextIsNotReadUnlessItMayMatter(t *testing.T) {
	assert.NotPanics(t, func() {
		assert.Equal(t, Success, HTTPClassifier{}.Classify(muteError{404}).Outcome)
		assert.Equal(t, Failure, HTTPClassifier{}.Classify(muteError{0}).Outcome)
		assert.Equal(t, Failure, HTTPClassifier{MatchMessages: true}.Classify(muteError{503}).Outcome)
	})
	assert.PanicsWithValue(t, "no text", func() { HTTPClassifier{MatchMessages: true}.Classify(muteError{404}) })
}

// A panic goes on to the Breaker, which takes it as a Failure. To swallow it
// here could turn a broken error into a Success.
func TestPanicsReachTheBreaker(t *testing.T) {
	var status *StatusError
	var coded *codedError
	for name, err := range map[string]error{
		"nil *StatusError":          status,
		"nil pointer of own type":   coded,
		"nil pointer wrapped":       fmt.Errorf("x: %w", status),
		"nil pointer beside a 404":  errors.Join(&StatusError{Code: 404}, coded),
		"nil pointer beside a 503 ": errors.Join(&StatusError{Code: 503}, coded),
	} {
		assert.Panics(t, func() { HTTPClassifier{}.Classify(err) }, name)
	}
	assert.Panics(t, func() { HTTPClassifier{Next: ClassifierFunc(nil)}.Classify(io.EOF) })
}

func TestHTTPClassifierIsSafeForConcurrentUse(t *testing.T) {
	c := HTTPClassifier{MatchMessages: true}
	shared := errors.Join(io.EOF, Ignore(&StatusError{Code: 503, RetryAfter: time.Second}))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				assert.Equal(t, Verdict{Failure, time.Second}, c.Classify(shared))
			}
		})
	}
	wg.Wait()
}

func TestClassifyDoesNotAllocate(t *testing.T) {
	var c Classifier = HTTPClassifier{FailureStatus: func(code int) bool { return code >= 500 }}
	for name, err := range map[string]error{
		"StatusError":         &StatusError{Code: 503, RetryAfter: time.Second},
		"wrapped StatusError": fmt.Errorf("get: %w", &StatusError{Code: 503}),
		"joined":              errors.Join(&StatusError{Code: 404}, &StatusError{Code: 503}),
		"unknown":             io.ErrUnexpectedEOF,
		"refused":             &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
	} {
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			if marked(err) != Undecided || c.Classify(err).Outcome != Failure {
				t.Error("not the verdict this measures")
			}
		}), name)
	}
}

func TestMarksSurviveWrapping(t *testing.T) {
	miss := errors.New("cache miss")
	for name, tt := range map[string]struct {
		err  error
		want Outcome
	}{
		"none":                   {miss, Undecided},
		"nil":                    {nil, Undecided},
		"ignored":                {Ignore(miss), Ignored},
		"success":                {AsSuccess(miss), Success},
		"wrapped":                {fmt.Errorf("get: %w", Ignore(miss)), Ignored},
		"joined":                 {errors.Join(miss, AsSuccess(miss)), Success},
		"outermost wins":         {AsSuccess(fmt.Errorf("get: %w", Ignore(miss))), Success},
		"outermost wins, turned": {Ignore(fmt.Errorf("get: %w", AsSuccess(miss))), Ignored},
		"first branch wins":      {errors.Join(Ignore(miss), AsSuccess(miss)), Ignored},
		"depth before breadth":   {errors.Join(fmt.Errorf("a: %w", AsSuccess(miss)), Ignore(miss)), Success},
		"a status inside":        {Ignore(&StatusError{Code: 503}), Ignored},
		"lost with its tree":     {fmt.Errorf("get: %v", Ignore(miss)), Undecided},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tt.want, marked(tt.err)) })
	}
}

func TestMarkedErrorIsStillTheError(t *testing.T) {
	cause := &StatusError{Code: 503}
	for _, mark := range []func(error) error{Ignore, AsSuccess} {
		assert.NoError(t, mark(nil))
		err := mark(cause)
		assert.Equal(t, cause.Error(), err.Error())
		assert.Same(t, cause, errors.Unwrap(err))
		assert.ErrorIs(t, err, cause)
		var status *StatusError
		assert.ErrorAs(t, err, &status)
	}
}

// With four of five lookups ending in "not there", the cache stood open though
// it was well. An empty answer in time is a Success, not a call to overlook.
func TestEmptyAnswerInTimeIsASuccess(t *testing.T) {
	assert.Equal(t, Success, marked(fmt.Errorf("lookup: %w", AsSuccess(errors.New("cache miss")))))
	assert.Equal(t, Success, HTTPClassifier{}.Classify(&StatusError{Code: 404}).Outcome)
}

func TestStatusErrorText(t *testing.T) {
	assert.EqualError(t, &StatusError{Code: 503}, "breaker: HTTP status 503 Service Unavailable")
	assert.EqualError(t, &StatusError{Code: 599, RetryAfter: time.Second}, "breaker: HTTP status 599")
	assert.EqualError(t, new(StatusError), "breaker: HTTP status 0")
}

func TestCheckResponse(t *testing.T) {
	for _, code := range []int{0, 100, 200, 204, 304, 399} {
		assert.NoError(t, CheckResponse(&http.Response{StatusCode: code}), code)
	}
	for _, code := range []int{400, 404, 429, 500, 503, 999} {
		assert.Equal(t, &StatusError{Code: code}, CheckResponse(&http.Response{StatusCode: code}), "without headers")
		resp := &http.Response{StatusCode: code, Header: http.Header{"Retry-After": {"7"}}}
		assert.Equal(t, &StatusError{code, 7 * time.Second}, CheckResponse(resp))
	}

	var err error
	require.NotPanics(t, func() { err = CheckResponse(nil) })
	assert.ErrorIs(t, err, ErrConfig)
}

func TestCheckResponseLeavesTheBodyAlone(t *testing.T) {
	body := &watchedBody{Reader: strings.NewReader("why")}
	require.Error(t, CheckResponse(&http.Response{StatusCode: 503, Body: body}))
	assert.False(t, body.closed)
	rest, err := io.ReadAll(body)
	require.NoError(t, err)
	assert.Equal(t, "why", string(rest))
}

type watchedBody struct {
	io.Reader
	closed bool
}

func (b *watchedBody) Close() error {
	b.closed = true
	return nil
}

func TestCheckResponseReadsRealHeaders(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		// The server's clock is years behind ours; the two dates agree.
		w.Header().Set("Date", "Sun, 06 Nov 1994 08:49:37 GMT")
		w.Header().Set("Retry-After", "Sun, 06 Nov 1994 08:51:07 GMT")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer srv.Close()
	resp, err := http.Get(srv.URL)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, Verdict{Failure, 90 * time.Second}, HTTPClassifier{}.Classify(CheckResponse(resp)))
}

func TestParseRetryAfter(t *testing.T) {
	const longest = time.Duration(math.MaxInt64)
	const date = "Sun, 06 Nov 1994 08:49:37 GMT"
	for _, tt := range []struct {
		value, date string
		want        time.Duration
	}{
		{"", date, 0},
		{"0", date, 0},
		{"120", date, 2 * time.Minute},
		{"00120", date, 2 * time.Minute},
		{"120", "nonsense", 2 * time.Minute},

		// Too long to hold.
		{"9223372036", "", 9223372036 * time.Second},
		{"9223372037", "", longest},
		{"18446744073709551615", "", longest},
		{"18446744073709551616", "", longest},
		{strings.Repeat("9", 500), "", longest},
		{"Fri, 31 Dec 9999 23:59:59 GMT", date, longest},
		{"Fri, 31 Dec 9999 23:59:59 GMT", "", longest},

		// Nonsense.
		{"soon", date, 0},
		{"-1", date, 0},
		{"-99999999999999999999", date, 0},
		{"+5", date, 0},
		{"1.5", date, 0},
		{"1e3", date, 0},
		{"0x10", date, 0},
		{"1_000", date, 0},
		{"5s", date, 0},
		{strings.Repeat("9", 20) + "s", date, 0},
		{"5, 10", date, 0},
		{"\u0665", date, 0}, // a digit, but not of ASCII
		{"1994-11-06T08:50:37Z", date, 0},
		{"Sun, 31 Feb 2094 08:49:37 GMT", date, 0},

		// Dates, in each of the three formats HTTP knows.
		{"Sun, 06 Nov 1994 08:50:37 GMT", date, time.Minute},
		{"Sunday, 06-Nov-94 08:50:37 GMT", date, time.Minute},
		{"Sun Nov  6 08:50:37 1994", date, time.Minute},
		{"Sun, 06 Nov 1994 08:50:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", time.Minute},
		{date, date, 0},
		{"Sun, 06 Nov 1994 08:49:36 GMT", date, 0},
		{"Mon, 01 Jan 0001 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", 0},

		// Without a valid Date, against the clock: it is 2000-01-01 in the bubble.
		{"Sat, 01 Jan 2000 00:01:00 GMT", "", time.Minute},
		{"Sat, 01 Jan 2000 00:01:00 GMT", "nonsense", time.Minute},
		{"Sat, 01 Jan 2000 00:00:00 GMT", "", 0},
		{date, "", 0},
	} {
		t.Run(tt.value+"|"+tt.date, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				assert.Equal(t, tt.want, parseRetryAfter(tt.value, tt.date))
			})
		})
	}
}

func FuzzRetryAfter(f *testing.F) {
	const date = "Sun, 06 Nov 1994 08:49:37 GMT"
	for _, value := range []string{
		"", "0", "120", "-1", "+5", "1.5", "soon", "9223372036", "9223372037", "18446744073709551616",
		date, "Sun, 06 Nov 1994 08:50:37 GMT", "Sunday, 06-Nov-94 08:50:37 GMT", "Sun Nov  6 08:50:37 1994",
		"Fri, 31 Dec 9999 23:59:59 GMT",
	} {
		f.Add(value, date)
		f.Add(value, "")
	}
	longest := big.NewInt(math.MaxInt64)
	f.Fuzz(func(t *testing.T, value, date string) {
		got := parseRetryAfter(value, date)
		if got < 0 {
			t.Fatalf("negative: %v", got)
		}
		if value != "" && strings.Trim(value, "0123456789") == "" {
			n, _ := new(big.Int).SetString(value, 10)
			want := n.Mul(n, big.NewInt(int64(time.Second)))
			if want.Cmp(longest) > 0 {
				want = longest
			}
			if want.Int64() != int64(got) {
				t.Fatalf("%d, want %v", got, want)
			}
			return
		}
		until, err := http.ParseTime(value)
		if err != nil {
			if got != 0 {
				t.Fatalf("nonsense gave %v", got)
			}
			return
		}
		if now, err := http.ParseTime(date); err == nil && got != 0 && got != math.MaxInt64 && !now.Add(got).Equal(until) {
			t.Fatalf("%v after %v is not %v", got, now, until)
		} else if err == nil && got == 0 && until.After(now) {
			t.Fatalf("a time to come gave 0")
		}
	})
}
