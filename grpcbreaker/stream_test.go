package grpcbreaker_test

import (
	"context"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/breakerkit/breaker"
)

// A heard is an Observer that counts outcomes.
type heard struct {
	breaker.NopObserver
	mu   sync.Mutex
	list []breaker.Outcome
}

func (h *heard) CallDone(_ string, o breaker.Outcome, _ time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, o)
}

// outcomes returns those so far.
func (h *heard) outcomes() []breaker.Outcome {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.list)
}

func (h *heard) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = nil
}

// streams makes a client of s whose outcomes are heard.
func streams(t testing.TB, s *server, p breaker.Policy) (pb.TestServiceClient, *breaker.Breaker, *heard) {
	t.Helper()
	h := &heard{}
	b := newBreaker(t, breaker.Config{Observer: h, Policy: p})
	return dial(t, s, b), b, h
}

// send answers with n messages, then err.
func send(n int, err error) func(pb.TestService_StreamingOutputCallServer) error {
	return func(out pb.TestService_StreamingOutputCallServer) error {
		for range n {
			if err := out.Send(&pb.StreamingOutputCallResponse{}); err != nil {
				return err
			}
		}
		return err
	}
}

func download(t testing.TB, ctx context.Context, c pb.TestServiceClient) pb.TestService_StreamingOutputCallClient {
	t.Helper()
	s, err := c.StreamingOutputCall(ctx, &pb.StreamingOutputCallRequest{})
	require.NoError(t, err)
	return s
}

func TestAStreamOfResponsesIsJudgedAtItsEnd(t *testing.T) {
	for _, c := range []struct {
		end  error
		want breaker.Outcome
	}{
		{nil, breaker.Success},
		{status.Error(codes.NotFound, "no more"), breaker.Success},
		{status.Error(codes.Unavailable, "reset in the middle"), breaker.Failure},
		{status.Error(codes.Canceled, "the server's own affair"), breaker.Ignored},
	} {
		inBubble(t, func(t *testing.T) {
			client, _, h := streams(t, &server{download: send(3, c.end)}, breaker.Policy{})
			s := download(t, t.Context(), client)
			_, err := s.Header()
			require.NoError(t, err)
			for range 3 {
				_, err := s.Recv()
				require.NoError(t, err)
				assert.Empty(t, h.outcomes(), "headers and messages are no verdict")
			}
			_, err = s.Recv()
			if c.end == nil {
				assert.Equal(t, io.EOF, err)
			} else {
				assert.Equal(t, status.Code(c.end), status.Code(err))
			}
			assert.Equal(t, []breaker.Outcome{c.want}, h.outcomes())
			for range 2 { // once is all
				_, _ = s.Recv()
				_ = s.CloseSend()
			}
			assert.Len(t, h.outcomes(), 1)
			assert.NotNil(t, s.Trailer())
		})
	}
}

// The report of a stream that dies after its headers: success at the headers
// hid a server that broke every stream.
func TestStreamsThatDieInTheMiddleOpenTheCircuit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, _, _ := streams(t, &server{download: send(1, status.Error(codes.Internal, "torn"))}, breaker.Policy{})
		for range 5 {
			s := download(t, t.Context(), client)
			_, err := s.Recv()
			require.NoError(t, err)
			_, err = s.Recv()
			require.Equal(t, codes.Internal, status.Code(err))
		}
		_, err := client.StreamingOutputCall(t.Context(), &pb.StreamingOutputCallRequest{})
		assert.ErrorIs(t, err, breaker.ErrOpen)
		assert.Equal(t, codes.Unavailable, status.Code(err))
		delay, ok := retryInfo(err)
		assert.True(t, ok)
		assert.Equal(t, time.Minute, delay)
	})
}

func TestACallerThatHangsUpIsIgnored(t *testing.T) {
	forever := func(out pb.TestService_StreamingOutputCallServer) error {
		_ = out.Send(&pb.StreamingOutputCallResponse{})
		<-out.Context().Done()
		return gone(out.Context())
	}
	t.Run("while it reads", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			client, _, h := streams(t, &server{download: forever}, breaker.Policy{})
			ctx, cancel := context.WithCancel(t.Context())
			s := download(t, ctx, client)
			_, err := s.Recv()
			require.NoError(t, err)
			time.AfterFunc(time.Second, cancel)
			_, err = s.Recv()
			assert.Equal(t, codes.Canceled, status.Code(err))
			synctest.Wait()
			assert.Equal(t, []breaker.Outcome{breaker.Ignored}, h.outcomes())
		})
	})
	t.Run("and reads no more", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			client, b, h := streams(t, &server{download: forever}, breaker.Policy{})
			halfOpen(t, b)
			h.forget()
			ctx, cancel := context.WithCancel(t.Context())
			s := download(t, ctx, client)
			_, err := s.Recv()
			require.NoError(t, err)
			require.Equal(t, 1, snapshot(t, b, target).ProbesInFlight)
			cancel()
			synctest.Wait()
			assert.Equal(t, []breaker.Outcome{breaker.Ignored}, h.outcomes())
			assert.Zero(t, snapshot(t, b, target).ProbesInFlight, "the slot is free at once")
			assert.Equal(t, breaker.StateHalfOpen, snapshot(t, b, target).State)
		})
	})
	t.Run("by a deadline, which is a Failure", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			client, _, h := streams(t, &server{download: forever}, breaker.Policy{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_ = download(t, ctx, client)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			assert.Equal(t, []breaker.Outcome{breaker.Failure}, h.outcomes())
		})
	})
	t.Run("by CallTimeout, which is one, too", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			client, _, h := streams(t, &server{download: forever}, breaker.Policy{CallTimeout: time.Second})
			s := download(t, t.Context(), client)
			_, err := s.Recv()
			require.NoError(t, err)
			_, err = s.Recv()
			assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
			synctest.Wait()
			assert.Equal(t, []breaker.Outcome{breaker.Failure}, h.outcomes())
		})
	})
}

func TestAStreamLeftAloneHoldsAProbeForItsLease(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, b, h := streams(t, &server{download: send(2, nil)}, breaker.Policy{ProbeLease: 10 * time.Second})
		halfOpen(t, b)
		h.forget()
		s := download(t, t.Context(), client)
		_, err := s.Recv()
		require.NoError(t, err)
		time.Sleep(10*time.Second - time.Millisecond)
		_, err = client.StreamingOutputCall(t.Context(), &pb.StreamingOutputCallRequest{})
		assert.ErrorIs(t, err, breaker.ErrBusy)
		time.Sleep(time.Millisecond)
		second := download(t, t.Context(), client)
		for err = nil; err == nil; {
			_, err = second.Recv()
		}
		assert.Equal(t, io.EOF, err)
		assert.Equal(t, breaker.StateClosed, snapshot(t, b, target).State)
		assert.Equal(t, []breaker.Outcome{breaker.Success}, h.outcomes())
	})
}

func TestAStreamOfRequestsEndsWithItsOneResponse(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		answer := error(nil)
		client, _, h := streams(t, &server{upload: func(in pb.TestService_StreamingInputCallServer) error {
			for {
				if _, err := in.Recv(); err != nil {
					break
				}
			}
			if answer != nil {
				return answer
			}
			return in.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: 7})
		}}, breaker.Policy{})
		upload := func() (*pb.StreamingInputCallResponse, error) {
			s, err := client.StreamingInputCall(t.Context())
			require.NoError(t, err)
			for range 3 {
				require.NoError(t, s.Send(&pb.StreamingInputCallRequest{}))
			}
			require.NoError(t, s.CloseSend())
			require.Empty(t, h.outcomes(), "what was sent is no verdict")
			return s.CloseAndRecv()
		}
		got, err := upload()
		require.NoError(t, err)
		assert.EqualValues(t, 7, got.GetAggregatedPayloadSize())
		assert.Equal(t, []breaker.Outcome{breaker.Success}, h.outcomes())

		h.forget()
		answer = status.Error(codes.DataLoss, "")
		_, err = upload()
		assert.Equal(t, codes.DataLoss, status.Code(err))
		assert.Equal(t, []breaker.Outcome{breaker.Failure}, h.outcomes())
	})
}

// A server that ends the stream while the client sends: Send says io.EOF, which
// is no verdict; Recv has the status.
func TestSendThatFindsTheStreamOverLeavesTheVerdictToRecv(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, _, h := streams(t, &server{duplex: func(pb.TestService_FullDuplexCallServer) error {
			return status.Error(codes.PermissionDenied, "not you")
		}}, breaker.Policy{})
		s, err := client.FullDuplexCall(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, io.EOF, s.Send(&pb.StreamingOutputCallRequest{}))
		assert.Empty(t, h.outcomes())
		_, err = s.Recv()
		assert.Equal(t, codes.PermissionDenied, status.Code(err))
		assert.Equal(t, []breaker.Outcome{breaker.Success}, h.outcomes())
	})
}

func TestSendersAndReceiversMayShareAStream(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		client, b, h := streams(t, &server{duplex: func(both pb.TestService_FullDuplexCallServer) error {
			for {
				if _, err := both.Recv(); err != nil {
					return status.Error(codes.Unavailable, "enough")
				}
				_ = both.Send(&pb.StreamingOutputCallResponse{})
			}
		}}, breaker.Policy{})
		s, err := client.FullDuplexCall(t.Context())
		require.NoError(t, err)
		go func() {
			for range 100 {
				_ = s.Send(&pb.StreamingOutputCallRequest{})
			}
			_ = s.CloseSend()
		}()
		received := 0
		for err == nil {
			if _, err = s.Recv(); err == nil {
				received++
			}
		}
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Equal(t, 100, received)
		assert.Equal(t, []breaker.Outcome{breaker.Failure}, h.outcomes())
		assert.Equal(t, 1, snapshot(t, b, target).ConsecutiveFailures)
	})
}
