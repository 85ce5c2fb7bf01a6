package grpcbreaker

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/breakerkit/breaker"
)

// A Classifier judges errors by their gRPC status, wrapped or joined as they
// may be. The zero value is ready to use. It is safe for concurrent use as
// long as its Next and FailureCode are.
//
//	Failure  Unavailable, DeadlineExceeded, Internal, Unknown, DataLoss,
//	         ResourceExhausted, and codes that gRPC does not define
//	Success  NotFound, InvalidArgument, AlreadyExists, PermissionDenied,
//	         Unauthenticated, FailedPrecondition, OutOfRange, Aborted,
//	         Unimplemented: the server was reached and answered
//	Ignored  Canceled: whoever cancelled, the call says nothing of the server
//
// RetryAfter is the delay in a RetryInfo among the details of a Failure; one
// that is negative, or no duration, is 0.
//
// The interceptors use it by default. As Config.Classifier of a Breaker it is
// for programs that hand errors of gRPC to Execute themselves.
type Classifier struct {
	// FailureCode, if set, decides alone which codes are Failures; the others
	// are Successes. It is not asked for Canceled, and must not block. To have
	// ResourceExhausted count as a Success:
	//
	//	func(c codes.Code) bool {
	//		return c != codes.ResourceExhausted && grpcbreaker.FailureCode(c)
	//	}
	FailureCode func(code codes.Code) bool

	// Next judges errors that carry no status. Default breaker.HTTPClassifier{},
	// which judges any error.
	Next breaker.Classifier
}

var _ breaker.Classifier = Classifier{}

// Classify judges err, which must not be nil.
func (c Classifier) Classify(err error) breaker.Verdict {
	s, ok := status.FromError(err)
	switch {
	case ok:
		return c.judge(s)
	case c.Next != nil:
		return c.Next.Classify(err)
	}
	return breaker.HTTPClassifier{}.Classify(err)
}

func (c Classifier) judge(s *status.Status) breaker.Verdict {
	if s.Code() == codes.Canceled {
		return breaker.Verdict{Outcome: breaker.Ignored}
	}
	failed := FailureCode
	if c.FailureCode != nil {
		failed = c.FailureCode
	}
	if !failed(s.Code()) {
		return breaker.Verdict{Outcome: breaker.Success}
	}
	return breaker.Verdict{Outcome: breaker.Failure, RetryAfter: retryDelay(s)}
}

// FailureCode reports whether a Classifier without a FailureCode of its own
// takes code as a Failure.
func FailureCode(code codes.Code) bool {
	switch code {
	case codes.OK, codes.Canceled, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists,
		codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.Aborted,
		codes.OutOfRange, codes.Unimplemented:
		return false
	}
	return true
}

// retryDelay is the longest delay that the details of s ask for.
func retryDelay(s *status.Status) (longest time.Duration) {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay().IsValid() {
			longest = max(longest, info.GetRetryDelay().AsDuration()) // AsDuration saturates
		}
	}
	return longest
}
