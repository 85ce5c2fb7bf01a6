package grpcbreaker_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
	"github.com/breakerkit/breaker/grpcbreaker"
)

func TestTheCodesCountAsTheyShould(t *testing.T) {
	for code, fails := range map[codes.Code]bool{
		codes.Unavailable: true, codes.DeadlineExceeded: true, codes.Internal: true, codes.Unknown: true,
		codes.DataLoss: true, codes.ResourceExhausted: true, codes.Code(77): true,
		codes.InvalidArgument: false, codes.NotFound: false, codes.AlreadyExists: false,
		codes.PermissionDenied: false, codes.Unauthenticated: false, codes.FailedPrecondition: false,
		codes.Aborted: false, codes.OutOfRange: false, codes.Unimplemented: false, codes.Canceled: false,
	} {
		t.Run(code.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := newBreaker(t, breaker.Config{})
				answer := status.Error(code, "so it is")
				c := dial(t, &server{unary: func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
					return nil, answer
				}}, b)
				for range 5 {
					err := call(t.Context(), c)
					assert.Equal(t, code, status.Code(err))
					assert.Equal(t, "so it is", status.Convert(err).Message())
				}
				want := breaker.StateClosed
				if fails {
					want = breaker.StateOpen
				}
				assert.Equal(t, want, snapshot(t, b, target).State)
			})
		})
	}
}

// flow-go 4910, sourcegraph 47986: a client that asks for what is not there, or
// sends what makes no sense, or goes away, tripped the breaker of a server that
// was well; and a status Canceled is not errors.Is(context.Canceled).
func TestReport16AnswersAreNoFailures(t *testing.T) {
	for _, code := range []codes.Code{codes.NotFound, codes.InvalidArgument, codes.Canceled} {
		inBubble(t, func(t *testing.T) {
			b := newBreaker(t, breaker.Config{})
			c := dial(t, &server{unary: fails(status.Error(code, "no"))}, b)
			for range 100 {
				err := call(t.Context(), c)
				require.Equal(t, code, status.Code(err))
				require.NotErrorIs(t, err, context.Canceled)
			}
			s := snapshot(t, b, target)
			assert.Equal(t, breaker.StateClosed, s.State, code)
			assert.Zero(t, s.ConsecutiveFailures, code)
		})
	}
}

func TestAnAnswerEndsARunOfFailuresAndACancelDoesNot(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Config{})
		s := &server{}
		c := dial(t, s, b)
		after := func(code codes.Code) int {
			s.unary = fails(status.Error(code, ""))
			require.Equal(t, code, status.Code(call(t.Context(), c)))
			return snapshot(t, b, target).ConsecutiveFailures
		}
		assert.Equal(t, 1, after(codes.Unavailable))
		assert.Equal(t, 1, after(codes.Canceled))
		assert.Equal(t, 2, after(codes.Internal))
		assert.Equal(t, 0, after(codes.NotFound))
	})
}

// gone is the answer of a server whose caller has gone. A deadline strikes the
// server and the caller at the same time, and either may be heard first: then
// both say the same.
func gone(ctx context.Context) error {
	if err := ctx.Err(); errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unavailable, "gone")
}

func TestACallThatItsCallerCancelsIsIgnored(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Config{})
		s := &server{unary: func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			<-ctx.Done()
			return nil, gone(ctx)
		}}
		c := dial(t, s, b)
		for range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			require.Equal(t, codes.Canceled, status.Code(call(ctx, c)))
		}
		assert.Zero(t, snapshot(t, b, target).ConsecutiveFailures)

		for range 5 { // a deadline is a Failure
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			require.Equal(t, codes.DeadlineExceeded, status.Code(call(ctx, c)))
			cancel()
		}
		assert.Equal(t, breaker.StateOpen, snapshot(t, b, target).State)
	})
}

func TestCallTimeoutReachesTheCall(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Config{Policy: breaker.Policy{CallTimeout: 3 * time.Second}})
		began := time.Now()
		c := dial(t, &server{unary: func(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}, b)
		require.Equal(t, codes.DeadlineExceeded, status.Code(call(t.Context(), c)))
		assert.Equal(t, 3*time.Second, time.Since(began))
		assert.Equal(t, 1, snapshot(t, b, target).ConsecutiveFailures)
	})
}

func TestARejectionSpeaksBothLanguages(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Config{Policy: breaker.Policy{Cooldown: 30 * time.Second}})
		s := &server{unary: fails(status.Error(codes.Unavailable, "maintenance"))}
		c := dial(t, s, b)
		for range 5 {
			require.NotErrorIs(t, call(t.Context(), c), breaker.ErrOpen)
		}
		time.Sleep(12 * time.Second)
		err := call(t.Context(), c)
		assert.EqualValues(t, 5, s.calls.Load(), "a rejected call does not reach the server")

		var rejected *breaker.RejectedError
		require.ErrorAs(t, err, &rejected)
		assert.Equal(t, target, rejected.Key)
		assert.ErrorIs(t, err, breaker.ErrOpen)
		wait, ok := breaker.RetryAfter(err)
		assert.True(t, ok)
		assert.Equal(t, 18*time.Second, wait)
		assert.Contains(t, rejected.LastError, "maintenance")

		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Equal(t, rejected.Error(), status.Convert(err).Message())
		delay, ok := retryInfo(err)
		assert.True(t, ok)
		assert.Equal(t, 18*time.Second, delay)

		// A server that hands it on tells its own client as much.
		front := newBreaker(t, breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Second}})
		through := dial(t, &server{unary: fails(err)}, front)
		err = call(t.Context(), through)
		assert.Equal(t, codes.Unavailable, status.Code(err))
		delay, _ = retryInfo(err)
		assert.Equal(t, 18*time.Second, delay)
		at := snapshot(t, front, target)
		assert.Equal(t, 18*time.Second, at.RetryAt.Sub(at.OpenedAt), "and its client's breaker waits as long")
	})
}

func TestABusyCircuitRejectsWithTheTimeOfTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Config{Policy: breaker.Policy{ProbeLease: 10 * time.Second}})
		release := make(chan struct{})
		c := dial(t, &server{unary: func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			<-release
			return &pb.SimpleResponse{}, nil
		}}, b)
		halfOpen(t, b)
		probe := make(chan error)
		go func() { probe <- call(t.Context(), c) }()
		time.Sleep(4 * time.Second)
		err := call(t.Context(), c)
		assert.ErrorIs(t, err, breaker.ErrBusy)
		assert.Equal(t, codes.Unavailable, status.Code(err))
		delay, _ := retryInfo(err)
		assert.Equal(t, 6*time.Second, delay)
		close(release)
		assert.NoError(t, <-probe)
		assert.Equal(t, breaker.StateClosed, snapshot(t, b, target).State)
	})
}

func TestRetryInfoStretchesTheCooldown(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(t *testing.T) error
		policy breaker.Policy
		want   time.Duration
	}{
		{"as asked", func(t *testing.T) error {
			return withRetryInfo(t, codes.ResourceExhausted, durationpb.New(2*time.Minute))
		}, breaker.Policy{}, 2 * time.Minute},
		{"up to MaxRetryAfter", func(t *testing.T) error {
			return withRetryInfo(t, codes.Unavailable, &durationpb.Duration{Seconds: 315_576_000_000})
		}, breaker.Policy{}, 5 * time.Minute},
		{"not shorter than the cooldown", func(t *testing.T) error {
			return withRetryInfo(t, codes.Unavailable, durationpb.New(time.Second))
		}, breaker.Policy{}, time.Minute},
		{"not if told to ignore it", func(t *testing.T) error {
			return withRetryInfo(t, codes.Unavailable, durationpb.New(2*time.Minute))
		}, breaker.Policy{MaxRetryAfter: -1}, time.Minute},
		{"negative is nonsense", func(t *testing.T) error {
			return withRetryInfo(t, codes.Unavailable, &durationpb.Duration{Seconds: -90})
		}, breaker.Policy{}, time.Minute},
		{"no duration is nonsense", func(t *testing.T) error {
			return withRetryInfo(t, codes.Unavailable, &durationpb.Duration{Seconds: 90, Nanos: -1})
		}, breaker.Policy{}, time.Minute},
		{"no delay", func(t *testing.T) error { return withRetryInfo(t, codes.Unavailable, nil) }, breaker.Policy{}, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c.policy.ConsecutiveFailures = 1
				b := newBreaker(t, breaker.Config{Policy: c.policy})
				client := dial(t, &server{unary: fails(c.answer(t))}, b)
				require.Error(t, call(t.Context(), client))
				s := snapshot(t, b, target)
				require.Equal(t, breaker.StateOpen, s.State)
				assert.Equal(t, c.want, s.RetryAt.Sub(s.OpenedAt))
			})
		})
	}
}

func TestTheCallsOwnErrorAndAnswerComeBackUnchanged(t *testing.T) {
	b := newBreaker(t, breaker.Config{})
	own := errors.New("no status at all")
	unary := grpcbreaker.UnaryClientInterceptor(b)
	for _, err := range []error{own, status.Error(codes.NotFound, ""), breaker.Ignore(own), context.Canceled, nil} {
		assert.True(t, err == unary(t.Context(), "/s/m", nil, nil, nil, invokerOf(err)), "%v", err)
	}
}

func TestKeys(t *testing.T) {
	const method = "/grpc.testing.TestService/UnaryCall"
	for name, k := range map[string]struct {
		opts []grpcbreaker.Option
		want string
	}{
		"default":     {nil, target},
		"nil options": {[]grpcbreaker.Option{nil, grpcbreaker.WithKey(nil), grpcbreaker.WithClassifier(nil)}, target},
		"target":      {[]grpcbreaker.Option{grpcbreaker.WithKey(grpcbreaker.ByTarget)}, target},
		"service":     {[]grpcbreaker.Option{grpcbreaker.WithKey(grpcbreaker.ByService)}, "grpc.testing.TestService"},
		"method":      {[]grpcbreaker.Option{grpcbreaker.WithKey(grpcbreaker.ByMethod)}, "grpc.testing.TestService/UnaryCall"},
		"own": {[]grpcbreaker.Option{grpcbreaker.WithKey(func(target, method string) string { return target + "|" + method })},
			target + "|" + method},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := newBreaker(t, breaker.Config{})
				c := dial(t, &server{unary: fails(status.Error(codes.Internal, ""))}, b, k.opts...)
				require.Error(t, call(t.Context(), c))
				assert.Equal(t, 1, snapshot(t, b, k.want).ConsecutiveFailures)
			})
		})
	}
	for method, want := range map[string]string{
		"/a.b.C/D": "a.b.C", "a.b.C/D": "a.b.C", "/nonsense": "nonsense", "nonsense": "nonsense", "": "", "/": "", "/a/b/c": "a/b",
	} {
		assert.Equal(t, want, grpcbreaker.ByService("x", method), method)
	}
}

func TestMisuseIsAnErrorAndNeverPanics(t *testing.T) {
	invoked := false
	invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
		invoked = true
		return nil
	}
	begin := func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
		invoked = true
		return nil, nil
	}
	long := grpcbreaker.WithKey(func(string, string) string { return strings.Repeat("k", breaker.MaxKeyLength+1) })
	for _, b := range []*breaker.Breaker{nil, newBreaker(t, breaker.Config{})} {
		_, streamErr := grpcbreaker.StreamClientInterceptor(b, long)(t.Context(), &grpc.StreamDesc{}, nil, "/s/m", begin)
		for _, err := range []error{grpcbreaker.UnaryClientInterceptor(b, long)(t.Context(), "/s/m", nil, nil, nil, invoke), streamErr} {
			assert.ErrorIs(t, err, breaker.ErrConfig)
			assert.Equal(t, codes.Internal, status.Code(err))
		}
	}
	assert.False(t, invoked)
}

func TestAStoreThatFailsHasAStatusToo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		store := breakertest.NewFlakyStore(nil)
		s := &server{}
		c := dial(t, s, newBreakerOver(t, store, breaker.Config{OnStoreError: breaker.FailClosed}))
		store.Fail(nil)
		err := call(t.Context(), c)
		assert.ErrorIs(t, err, breaker.ErrStore)
		assert.Equal(t, codes.Unavailable, status.Code(err))
		_, err = c.FullDuplexCall(t.Context())
		assert.ErrorIs(t, err, breaker.ErrStore)
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Zero(t, s.calls.Load())

		store.Recover()
		time.Sleep(time.Minute)
		store.Hang()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		err = call(ctx, c)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
		store.Recover()
	})
}

func TestFallbackDecidesAboutUnaryCalls(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		store := breakertest.NewFlakyStore(nil)
		store.Fail(nil)
		own := errors.Join(breaker.ErrOpen, status.Error(codes.NotFound, "of the fallback"))
		refuse := false
		b := newBreakerOver(t, store, breaker.Config{
			Fallback: func(ctx context.Context, _ string, run func(context.Context) error, _ error) error {
				if refuse {
					return own
				}
				return run(ctx)
			},
		})
		s := &server{}
		c := dial(t, s, b)
		assert.NoError(t, call(t.Context(), c))
		s.unary = fails(status.Error(codes.NotFound, "no"))
		assert.Equal(t, codes.NotFound, status.Code(call(t.Context(), c)))
		refuse = true
		assert.Equal(t, own, call(t.Context(), c))
		assert.EqualValues(t, 2, s.calls.Load())
	})
}

func TestAnInterceptorBehindThatPanicsOrEndsItsGoroutineIsAFailure(t *testing.T) {
	b := newBreaker(t, breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 2}})
	unary := grpcbreaker.UnaryClientInterceptor(b)
	invoke := func(do func()) func() {
		return func() {
			_ = unary(t.Context(), "/s/m", nil, nil, nil,
				func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { do(); return nil })
		}
	}
	assert.PanicsWithValue(t, "boom", invoke(func() { panic("boom") }))
	var wg sync.WaitGroup
	wg.Go(invoke(runtime.Goexit))
	wg.Wait()
	assert.Equal(t, breaker.StateOpen, snapshot(t, b, "").State)
}

func TestACloseOfTheConnectionIsNoFailure(t *testing.T) {
	b := newBreaker(t, breaker.Config{})
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(grpcbreaker.UnaryClientInterceptor(b)))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	for range 10 {
		require.Equal(t, codes.Canceled, status.Code(call(t.Context(), pb.NewTestServiceClient(conn))))
	}
	assert.Equal(t, breaker.StateClosed, snapshot(t, b, "passthrough:///x").State)
}
