package grpcbreaker_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/breakerkit/breaker"
)

// The real thing: a TCP server that stops, refuses connections, and comes back
// on the same port.
func TestOverTCPAServerDiesAndComesBack(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().String()
	start := func(l net.Listener) *grpc.Server {
		srv := grpc.NewServer()
		pb.RegisterTestServiceServer(srv, &server{})
		go func() { _ = srv.Serve(l) }()
		t.Cleanup(srv.Stop)
		return srv
	}
	srv := start(listener)

	b := newBreaker(t, breaker.Config{Policy: breaker.Policy{ConsecutiveFailures: 3, Cooldown: 10 * time.Millisecond}})
	conn := open(t, "dns:///"+addr, b, nil)
	c := pb.NewTestServiceClient(conn)
	require.NoError(t, call(t.Context(), c))
	require.Equal(t, "dns:///"+addr, conn.CanonicalTarget())

	srv.Stop()
	require.Eventually(t, func() bool { return errors.Is(call(t.Context(), c), breaker.ErrOpen) }, 10*time.Second, time.Millisecond)
	assert.Contains(t, snapshot(t, b, "dns:///"+addr).LastFailure.Error, "Unavailable")

	listener, err = net.Listen("tcp", addr)
	require.NoError(t, err)
	start(listener)
	require.Eventually(t, func() bool { return call(t.Context(), c) == nil }, 30*time.Second, 10*time.Millisecond)
	assert.Equal(t, breaker.StateClosed, snapshot(t, b, "dns:///"+addr).State)
}

// The real thing: a TCP server that is stopped while it answers.
func TestOverTCPAServerThatDiesInAStreamHasFailed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, &server{download: func(out pb.TestService_StreamingOutputCallServer) error {
		_ = out.Send(&pb.StreamingOutputCallResponse{})
		<-out.Context().Done()
		return nil
	}})
	go func() { _ = srv.Serve(listener) }()
	t.Cleanup(srv.Stop)

	h := &heard{}
	b := newBreaker(t, breaker.Config{Observer: h})
	c := pb.NewTestServiceClient(open(t, listener.Addr().String(), b, nil))
	s := download(t, t.Context(), c)
	_, err = s.Recv()
	require.NoError(t, err)
	srv.Stop()
	_, err = s.Recv()
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.Equal(t, []breaker.Outcome{breaker.Failure}, h.outcomes())
	assert.Equal(t, 1, snapshot(t, b, "dns:///"+listener.Addr().String()).ConsecutiveFailures)
}
