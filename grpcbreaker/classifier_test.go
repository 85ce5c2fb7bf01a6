package grpcbreaker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/grpcbreaker"
)

func TestClassifierReadsStatusesAnywhereInTheError(t *testing.T) {
	asked := withRetryInfo(t, codes.Unavailable, durationpb.New(7*time.Second))
	found := status.Error(codes.NotFound, "")
	for _, c := range []struct {
		err  error
		want breaker.Verdict
	}{
		{asked, breaker.Verdict{Outcome: breaker.Failure, RetryAfter: 7 * time.Second}},
		{fmt.Errorf("charge: %w", asked), breaker.Verdict{Outcome: breaker.Failure, RetryAfter: 7 * time.Second}},
		{errors.Join(errors.New("x"), asked), breaker.Verdict{Outcome: breaker.Failure, RetryAfter: 7 * time.Second}},
		{fmt.Errorf("charge: %w", found), breaker.Verdict{Outcome: breaker.Success}},
		{withRetryInfo(t, codes.NotFound, durationpb.New(time.Second)), breaker.Verdict{Outcome: breaker.Success}},
		{status.Error(codes.Canceled, ""), breaker.Verdict{Outcome: breaker.Ignored}},
		{nilStatus{}, breaker.Verdict{Outcome: breaker.Failure}},
		{errors.New("no status"), breaker.Verdict{Outcome: breaker.Failure}},
		{&breaker.StatusError{Code: 404}, breaker.Verdict{Outcome: breaker.Success}}, // the default Next
		{&breaker.StatusError{Code: 503, RetryAfter: 9}, breaker.Verdict{Outcome: breaker.Failure, RetryAfter: 9}},
	} {
		assert.Equal(t, c.want, grpcbreaker.Classifier{}.Classify(c.err), "%v", c.err)
	}
}

// A nilStatus has a method that answers nil.
type nilStatus struct{}

func (nilStatus) Error() string              { return "odd" }
func (nilStatus) GRPCStatus() *status.Status { return nil }

func TestNextJudgesWhatHasNoStatus(t *testing.T) {
	own := errors.New("cache miss")
	c := grpcbreaker.Classifier{Next: breaker.ClassifierFunc(func(err error) breaker.Outcome {
		if err == own {
			return breaker.Success
		}
		return breaker.Undecided
	})}
	assert.Equal(t, breaker.Success, c.Classify(own).Outcome)
	assert.Equal(t, breaker.Undecided, c.Classify(errors.New("else")).Outcome)
	assert.Equal(t, breaker.Failure, c.Classify(status.Error(codes.Internal, "")).Outcome, "Next is not asked for a status")
}

func TestFailureCodeDecidesAlone(t *testing.T) {
	c := grpcbreaker.Classifier{FailureCode: func(c codes.Code) bool {
		return c != codes.ResourceExhausted && grpcbreaker.FailureCode(c)
	}}
	assert.Equal(t, breaker.Success, c.Classify(status.Error(codes.ResourceExhausted, "")).Outcome)
	assert.Equal(t, breaker.Failure, c.Classify(status.Error(codes.Unavailable, "")).Outcome)
	assert.Equal(t, breaker.Success, c.Classify(status.Error(codes.NotFound, "")).Outcome)
	c.FailureCode = func(codes.Code) bool { return true }
	assert.Equal(t, breaker.Ignored, c.Classify(status.Error(codes.Canceled, "")).Outcome, "it is not asked")
}

// A Breaker with the Classifier judges what Execute is given, without an
// interceptor.
func TestTheClassifierServesExecuteToo(t *testing.T) {
	b := newBreaker(t, breaker.Config{Classifier: grpcbreaker.Classifier{}})
	for range 10 {
		_ = b.Execute(t.Context(), "k", func(context.Context) error { return status.Error(codes.NotFound, "") })
	}
	assert.Zero(t, snapshot(t, b, "k").ConsecutiveFailures)
	for range 5 {
		_ = b.Execute(t.Context(), "k", func(context.Context) error { return status.Error(codes.Internal, "") })
	}
	assert.Equal(t, breaker.StateOpen, snapshot(t, b, "k").State)
}

// Whatever the Breaker's own Classifier is, the interceptor's decides what is
// no failure; what is one, the Breaker's may still excuse.
func TestTheInterceptorsClassifierComesFirst(t *testing.T) {
	excuse := breaker.ClassifierFunc(func(err error) breaker.Outcome {
		if status.Code(err) == codes.DataLoss {
			return breaker.Success
		}
		return breaker.Failure
	})
	for code, failures := range map[codes.Code]int{codes.NotFound: 0, codes.Internal: 1, codes.DataLoss: 0} {
		inBubble(t, func(t *testing.T) {
			b := newBreaker(t, breaker.Config{Classifier: excuse})
			require.Error(t, call(t.Context(), dial(t, &server{unary: fails(status.Error(code, ""))}, b)))
			assert.Equal(t, failures, snapshot(t, b, target).ConsecutiveFailures, code)
		})
	}
}

func TestAClassifierThatPanicsMakesAFailure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Config{})
		c := dial(t, &server{unary: fails(status.Error(codes.NotFound, "no"))}, b,
			grpcbreaker.WithClassifier(breaker.ClassifierFunc(func(error) breaker.Outcome { panic("bug") })))
		assert.Equal(t, codes.NotFound, status.Code(call(t.Context(), c)))
		s := snapshot(t, b, target)
		assert.Equal(t, 1, s.ConsecutiveFailures)
		assert.Contains(t, s.LastFailure.Error, "judging the error panicked: bug")
	})
}

// A mark that the error brings along wins over its status.
func TestAMarkOnTheErrorWins(t *testing.T) {
	b := newBreaker(t, breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 2}})
	unary := grpcbreaker.UnaryClientInterceptor(b)
	for err, want := range map[error]int{
		breaker.Ignore(status.Error(codes.NotFound, "")):     1, // were it a Success, it would be 0
		breaker.Ignore(status.Error(codes.Unavailable, "")):  1,
		breaker.AsSuccess(status.Error(codes.Internal, "")):  0,
		breaker.AsSuccess(status.Error(codes.Canceled, "")):  0,
		&breaker.RejectedError{State: breaker.StateHalfOpen}: 1, // of a breaker within: it was not made
	} {
		require.NoError(t, b.Reset(t.Context(), ""))
		_ = b.Execute(t.Context(), "", func(context.Context) error { return errors.New("one failure") })
		got := unary(t.Context(), "/s/m", nil, nil, nil, invokerOf(err))
		assert.True(t, got == err)
		assert.Equal(t, want, snapshot(t, b, "").ConsecutiveFailures, "%v", err)
	}
}
