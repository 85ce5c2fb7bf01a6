package grpcbreaker_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/grpcbreaker"
)

// A fakeStream stands for what other interceptors make of a stream.
type fakeStream struct {
	grpc.ClientStream
	err   error
	panic bool
}

func (f *fakeStream) Header() (metadata.MD, error) { return nil, f.err }
func (f *fakeStream) SendMsg(any) error            { return f.err }
func (f *fakeStream) CloseSend() error             { return f.err }
func (f *fakeStream) RecvMsg(any) error {
	if f.panic {
		panic("boom")
	}
	return f.err
}

func TestErrorsOfHeaderAndSendMsgEndAStream(t *testing.T) {
	down := status.Error(codes.Unavailable, "down")
	for _, c := range []struct {
		name string
		do   func(grpc.ClientStream) error
		err  error
		want []breaker.Outcome
	}{
		{"Header", func(s grpc.ClientStream) error { _, err := s.Header(); return err }, down, []breaker.Outcome{breaker.Failure}},
		{"Header without headers", func(s grpc.ClientStream) error { _, err := s.Header(); return err }, nil, nil},
		{"Header/EOF", func(s grpc.ClientStream) error { _, err := s.Header(); return err }, io.EOF, nil},
		{"SendMsg", func(s grpc.ClientStream) error { return s.SendMsg(nil) }, down, []breaker.Outcome{breaker.Failure}},
		{"SendMsg/EOF", func(s grpc.ClientStream) error { return s.SendMsg(nil) }, io.EOF, nil},
		{"CloseSend", func(s grpc.ClientStream) error { return s.CloseSend() }, down, nil},
		{"RecvMsg", func(s grpc.ClientStream) error { return s.RecvMsg(nil) }, down, []breaker.Outcome{breaker.Failure}},
		{"RecvMsg/message", func(s grpc.ClientStream) error { return s.RecvMsg(nil) }, nil, nil},
		{"RecvMsg/marked", func(s grpc.ClientStream) error { return s.RecvMsg(nil) }, breaker.Ignore(status.Error(codes.NotFound, "")),
			[]breaker.Outcome{breaker.Ignored}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &heard{}
			b := newBreaker(t, breaker.Config{Observer: h})
			s, err := grpcbreaker.StreamClientInterceptor(b)(t.Context(), &grpc.StreamDesc{ServerStreams: true}, nil, "/s/m",
				func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
					return &fakeStream{err: c.err}, nil
				})
			require.NoError(t, err)
			assert.True(t, c.err == c.do(s), "the error is handed on as it is")
			assert.Equal(t, c.want, h.outcomes())
		})
	}
}

func TestAStreamThatDoesNotBeginIsJudged(t *testing.T) {
	for err, want := range map[error]breaker.Outcome{
		status.Error(codes.Unavailable, "no connection"): breaker.Failure,
		status.Error(codes.Unauthenticated, "who?"):      breaker.Success,
		errors.New("no status"):                          breaker.Failure,
	} {
		h := &heard{}
		b := newBreaker(t, breaker.Config{Observer: h})
		_, got := grpcbreaker.StreamClientInterceptor(b)(t.Context(), &grpc.StreamDesc{}, nil, "/s/m",
			func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				return nil, err
			})
		assert.True(t, err == got)
		assert.Equal(t, []breaker.Outcome{want}, h.outcomes())
	}
}

func TestAStreamThatPanicsIsAFailure(t *testing.T) {
	h := &heard{}
	b := newBreaker(t, breaker.Config{Observer: h})
	intercept := grpcbreaker.StreamClientInterceptor(b)
	assert.PanicsWithValue(t, "boom", func() {
		_, _ = intercept(t.Context(), &grpc.StreamDesc{}, nil, "/s/m",
			func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				panic("boom")
			})
	})
	s, err := intercept(t.Context(), &grpc.StreamDesc{}, nil, "/s/m",
		func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			return &fakeStream{panic: true}, nil
		})
	require.NoError(t, err)
	assert.PanicsWithValue(t, "boom", func() { _ = s.RecvMsg(nil) })
	assert.Equal(t, []breaker.Outcome{breaker.Failure, breaker.Failure}, h.outcomes())
}

// A context that outlives many streams must not hold what they held.
func TestAStreamThatIsOverLeavesNothingAtItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, _, h := streams(t, &server{download: send(0, nil)}, breaker.Policy{})
		ctx, cancel := context.WithCancel(t.Context())
		watched := &countingContext{Context: ctx}
		for range 10 {
			_, err := download(t, watched, client).Recv()
			require.Equal(t, io.EOF, err)
		}
		synctest.Wait()
		assert.NotZero(t, watched.begun.Load())
		assert.Equal(t, watched.begun.Load(), watched.stopped.Load())
		cancel()
		synctest.Wait()
		assert.Len(t, h.outcomes(), 10)
	})
}

// A countingContext counts what waits for its end by AfterFunc.
type countingContext struct {
	context.Context
	begun, stopped atomic.Int64
}

// Value hides the context within: package context would go past AfterFunc to it.
func (c *countingContext) Value(any) any { return nil }

func (c *countingContext) AfterFunc(do func()) func() bool {
	c.begun.Add(1)
	stop := context.AfterFunc(c.Context, do)
	return func() bool {
		if stop() {
			c.stopped.Add(1)
			return true
		}
		return false
	}
}
