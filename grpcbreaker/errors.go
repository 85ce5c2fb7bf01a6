package grpcbreaker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/breakerkit/breaker"
)

// A notMade is the error of a call that was not made. It unwraps to what the
// Breaker said and has a status for those who speak gRPC.
type notMade struct{ error }

func (e *notMade) Unwrap() error { return e.error }

// GRPCStatus is Unavailable for a rejection, with the time to wait as its
// RetryInfo, and for a store that failed; Internal for a mistake in the
// program; Canceled or DeadlineExceeded for a context that ended first.
func (e *notMade) GRPCStatus() *status.Status {
	if wait, ok := breaker.RetryAfter(e.error); ok {
		s := status.New(codes.Unavailable, e.Error())
		if detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}); err == nil {
			return detailed
		}
		return s
	}
	code := codes.Unavailable // ErrStore
	switch {
	case errors.Is(e.error, breaker.ErrConfig):
		code = codes.Internal
	case errors.Is(e.error, context.Canceled), errors.Is(e.error, context.DeadlineExceeded):
		code = status.FromContextError(e.error).Code()
	}
	return status.New(code, e.Error())
}

// withStatus gives an error of the Breaker a status. Any other error, such as
// one that Config.Fallback made, is left as it is.
func withStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	for _, ours := range []error{breaker.ErrOpen, breaker.ErrBusy, breaker.ErrStore, breaker.ErrConfig,
		context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, ours) {
			return &notMade{err}
		}
	}
	return err
}

// A judged is the error of a call with what the interceptor's Classifier made
// of it, in a form that any Breaker reads: a mark for what is no Failure, a
// method RetryAfter for what is. A mark that the error has already comes first
// in the tree, and so wins.
type judged struct {
	error
	mark       error // nil: none
	retryAfter time.Duration
}

func (j *judged) Unwrap() []error {
	if j.mark == nil {
		return []error{j.error}
	}
	return []error{j.error, j.mark}
}

// RetryAfter is read by breaker.HTTPClassifier.
func (j *judged) RetryAfter() time.Duration { return j.retryAfter }

var (
	errMarked = errors.New("judged by its status")
	asSuccess = breaker.AsSuccess(errMarked)
	asIgnored = breaker.Ignore(errMarked)
)

// judge returns err with its verdict; nil for nil. A Classifier that panics
// makes a Failure, and the history of the circuit says so.
func judge(c breaker.Classifier, err error) (out error) {
	if err == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			out = &judged{error: fmt.Errorf("judging the error panicked: %v: %w", v, err)}
		}
	}()
	v := c.Classify(err)
	switch v.Outcome {
	case breaker.Success:
		return &judged{error: err, mark: asSuccess}
	case breaker.Ignored:
		return &judged{error: err, mark: asIgnored}
	}
	return &judged{error: err, retryAfter: v.RetryAfter}
}
