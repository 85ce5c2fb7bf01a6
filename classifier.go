package breaker

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Verdict is what a Classifier makes of one error.
type Verdict struct {
	Outcome Outcome

	// RetryAfter is how long the server asked to be left alone; 0 if it did
	// not. It means something with a Failure only.
	RetryAfter time.Duration
}

// A Classifier judges what the error of a call says of the dependency.
//
// It is asked only for errors that are not nil, only when the call was not
// cancelled by its own caller, and never for an error marked by Ignore or
// AsSuccess. It is asked by many goroutines at once and must not block. A
// panic in it is taken as a Failure.
type Classifier interface {
	Classify(err error) Verdict
}

// ClassifierFunc makes a Classifier of a function that knows outcomes only. A
// nil ClassifierFunc panics when asked.
type ClassifierFunc func(err error) Outcome

// Classify returns the function's outcome, with no RetryAfter.
func (f ClassifierFunc) Classify(err error) Verdict { return Verdict{Outcome: f(err)} }

// HTTPClassifier judges the errors of HTTP clients, and any other error
// sensibly. The zero value is ready to use. It is safe for concurrent use as
// long as its Next and FailureStatus are.
//
// It looks for HTTP statuses anywhere in the error's tree, through Unwrap,
// fmt.Errorf with %w and errors.Join: a *StatusError, or anything with a method
// StatusCode() int that returns a code from 100 to 599. The codes 5xx and 429
// are Failures. Every other status is a Success: the provider was reached and
// it answered. Of several statuses the worst decides.
//
// A status also decides over all else in the tree, whatever the order: a 404
// joined with a connection error or with an error of unknown kind is a
// Success, for a provider that answers 404 was reached.
//
// An error without any status is a Failure: a timeout, a refused connection, a
// failed lookup or TLS handshake, a body cut short, and whatever is not known.
// That includes context.Canceled, because a call that its own caller cancelled
// is never shown to a Classifier.
//
// RetryAfter is the longest found in the tree, in the field of a *StatusError
// or from a method RetryAfter() time.Duration. It is never negative.
type HTTPClassifier struct {
	// FailureStatus, if set, decides alone which statuses are Failures. It is
	// asked with codes from 100 to 599 and must not block. To have 429 count
	// as a Success:
	//
	//	func(code int) bool { return code >= 500 }
	FailureStatus func(code int) bool

	// MatchMessages makes a Failure of every error whose text says that the
	// network failed: "connection refused", "connection reset", "no such
	// host", "i/o timeout", "broken pipe", "unexpected EOF", "TLS handshake"
	// and the like, in upper or lower case. It is for drivers that only speak
	// text, such as one that reports a refused connection as a status 404. The
	// text wins over a Success or Ignored of Next, FailureStatus or the
	// status; not over Ignore and AsSuccess.
	//
	// It is off by default because text is not a contract: it changes without
	// notice, and may quote what a user or a server wrote. Without it no error
	// is ever asked for its text.
	MatchMessages bool

	// Next, if set, is asked first, for the user's own errors. Its verdict
	// stands unless it is Undecided.
	Next Classifier
}

// Classify judges err, which must not be nil. It does not recover from panics
// in the methods of err, in Next or in FailureStatus.
func (c HTTPClassifier) Classify(err error) Verdict {
	var v Verdict
	if c.Next != nil {
		v = c.Next.Classify(err)
	}
	if v.Outcome == Undecided {
		v = c.read(err)
		if v.Outcome == Undecided {
			v.Outcome = Failure
		}
	}
	if c.MatchMessages && v.Outcome != Failure && saysNetworkFailed(err.Error()) {
		v.Outcome = Failure
	}
	if v.Outcome != Failure {
		v.RetryAfter = 0
	}
	return v
}

// read collects what err's tree says: the worst of its statuses, Undecided if
// it has none, and the longest RetryAfter.
func (c *HTTPClassifier) read(err error) (v Verdict) {
	for {
		if s, ok := err.(interface{ StatusCode() int }); ok {
			v.Outcome = worse(v.Outcome, c.judge(s.StatusCode()))
		}
		switch r := err.(type) {
		case *StatusError:
			v.RetryAfter = max(v.RetryAfter, r.RetryAfter)
		case interface{ RetryAfter() time.Duration }:
			v.RetryAfter = max(v.RetryAfter, r.RetryAfter())
		}
		switch u := err.(type) {
		case interface{ Unwrap() error }:
			err = u.Unwrap()
		case interface{ Unwrap() []error }:
			for _, branch := range u.Unwrap() {
				b := c.read(branch)
				v.Outcome = worse(v.Outcome, b.Outcome)
				v.RetryAfter = max(v.RetryAfter, b.RetryAfter)
			}
			return v
		default: // nil, too
			return v
		}
	}
}

// judge returns Undecided for a code that is no HTTP status.
func (c *HTTPClassifier) judge(code int) Outcome {
	if code < 100 || code > 599 {
		return Undecided
	}
	failed := code >= 500 || code == http.StatusTooManyRequests
	if c.FailureStatus != nil {
		failed = c.FailureStatus(code)
	}
	if failed {
		return Failure
	}
	return Success
}

// worse needs Undecided < Success < Failure, and is never given Ignored.
func worse(a, b Outcome) Outcome { return max(a, b) }

// networkFailed has what drivers say of a failed network, in lower case.
var networkFailed = []string{
	"connection refused", "actively refused", // the latter is Windows
	"connection reset", "forcibly closed", // likewise
	"connection timed out", "i/o timeout", "deadline exceeded",
	"no such host", "no route to host", "network is unreachable",
	"broken pipe", "unexpected eof",
	"tls handshake", "tls: handshake", "remote error: tls", "failed to verify certificate",
}

func saysNetworkFailed(text string) bool {
	text = strings.ToLower(text)
	for _, phrase := range networkFailed {
		if strings.Contains(text, phrase) {
			return true
		}
	}
	return false
}

// A StatusError is an HTTP response taken as an error; CheckResponse makes it.
type StatusError struct {
	Code       int           // such as 503
	RetryAfter time.Duration // how long the server asked to be left alone; 0 if it did not
}

// Error returns text such as "breaker: HTTP status 503 Service Unavailable".
func (e *StatusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("breaker: HTTP status %d %s", e.Code, http.StatusText(e.Code)))
}

// StatusCode returns Code.
func (e *StatusError) StatusCode() int { return e.Code }

// CheckResponse returns a *StatusError if the status of resp is 400 or more,
// else nil. For a nil resp it returns an error that is ErrConfig. It neither
// reads nor closes the body; that stays with the caller.
//
// RetryAfter is what the Retry-After header says, in seconds or as a date. A
// date is compared with the response's own Date header, or with this machine's
// clock if there is no valid one. A header that makes no sense, or a date that
// has passed, is 0; a time too long for a time.Duration is the longest there is.
func CheckResponse(resp *http.Response) error {
	if resp == nil {
		return configError("CheckResponse: nil response")
	}
	if resp.StatusCode < 400 {
		return nil
	}
	return &StatusError{
		Code:       resp.StatusCode,
		RetryAfter: parseRetryAfter(resp.Header.Get("Retry-After"), resp.Header.Get("Date")),
	}
}

// parseRetryAfter reads a Retry-After header; date is the Date header beside it.
func parseRetryAfter(value, date string) time.Duration {
	if strings.Trim(value, "0123456789") == "" {
		seconds, _ := strconv.ParseUint(value, 10, 64) // 0 if empty, MaxUint64 if out of range
		if seconds > math.MaxInt64/uint64(time.Second) {
			return math.MaxInt64
		}
		return time.Duration(seconds) * time.Second
	}
	until, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(date)
	if err != nil {
		now = time.Now()
	}
	return max(until.Sub(now), 0) // Sub saturates
}

// Ignore marks err as one that says nothing of the dependency, whatever the
// Classifier would make of it. The mark is found when the error is wrapped or
// joined; of several in one error the outermost counts, as errors.As finds it.
// The result has the text of err and unwraps to it. Ignore(nil) is nil.
func Ignore(err error) error { return mark(err, Ignored) }

// AsSuccess marks err as the answer of a healthy dependency, such as a cache
// miss, whatever the Classifier would make of it. All else is as with Ignore.
func AsSuccess(err error) error { return mark(err, Success) }

type markedError struct {
	error
	outcome Outcome
}

func (e *markedError) Unwrap() error { return e.error }

func mark(err error, o Outcome) error {
	if err == nil {
		return nil
	}
	return &markedError{err, o}
}

// marked returns the outcome of the outermost mark in err's tree, or Undecided.
func marked(err error) Outcome {
	if m, ok := errors.AsType[*markedError](err); ok {
		return m.outcome
	}
	return Undecided
}
