package grpcbreaker_test

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/grpcbreaker"
)

// The circuit of every test that does not choose another key.
const target = "passthrough:///payments"

// A server answers as the test says; a nil function answers well. Calls is
// how many unary calls reached it.
type server struct {
	pb.UnimplementedTestServiceServer
	calls    atomic.Int64
	unary    func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error)
	download func(pb.TestService_StreamingOutputCallServer) error
	upload   func(pb.TestService_StreamingInputCallServer) error
	duplex   func(pb.TestService_FullDuplexCallServer) error
}

func (s *server) UnaryCall(ctx context.Context, r *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	s.calls.Add(1)
	if s.unary == nil {
		return &pb.SimpleResponse{Username: "ann"}, nil
	}
	return s.unary(ctx, r)
}

func (s *server) StreamingOutputCall(_ *pb.StreamingOutputCallRequest, out pb.TestService_StreamingOutputCallServer) error {
	return s.download(out)
}
func (s *server) StreamingInputCall(in pb.TestService_StreamingInputCallServer) error {
	return s.upload(in)
}
func (s *server) FullDuplexCall(both pb.TestService_FullDuplexCallServer) error {
	return s.duplex(both)
}

// fails makes a unary method that answers with err.
func fails(err error) func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) { return nil, err }
}

// inBubble runs a test in virtual time; what it dials and starts is in memory.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

// dial starts s in memory and returns a client of it whose calls run through b.
func dial(t testing.TB, s *server, b *breaker.Breaker, opts ...grpcbreaker.Option) pb.TestServiceClient {
	t.Helper()
	return pb.NewTestServiceClient(connect(t, s, b, opts...))
}

func connect(t testing.TB, s *server, b *breaker.Breaker, opts ...grpcbreaker.Option) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	serve(t, s, listener)
	return open(t, target, b, opts, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return listener.DialContext(ctx)
	}))
}

func serve(t testing.TB, s *server, listener net.Listener) {
	srv := grpc.NewServer()
	pb.RegisterTestServiceServer(srv, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(listener)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
}

func open(t testing.TB, target string, b *breaker.Breaker, opts []grpcbreaker.Option, more ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(target, append(more,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(grpcbreaker.UnaryClientInterceptor(b, opts...)),
		grpc.WithChainStreamInterceptor(grpcbreaker.StreamClientInterceptor(b, opts...)))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func newBreaker(t testing.TB, cfg breaker.Config) *breaker.Breaker {
	t.Helper()
	return newBreakerOver(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), cfg)
}

func newBreakerOver(t testing.TB, store breaker.Store, cfg breaker.Config) *breaker.Breaker {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	b, err := breaker.New(store, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	return b
}

func snapshot(t testing.TB, b *breaker.Breaker, key string) breaker.Snapshot {
	t.Helper()
	s, err := b.Snapshot(context.Background(), key)
	require.NoError(t, err)
	return s
}

// call makes a unary call.
func call(ctx context.Context, c pb.TestServiceClient) error {
	_, err := c.UnaryCall(ctx, &pb.SimpleRequest{})
	return err
}

// halfOpen opens the circuit and waits until it may be probed.
func halfOpen(t testing.TB, b *breaker.Breaker) {
	t.Helper()
	for snapshot(t, b, target).State == breaker.StateClosed {
		_ = b.Execute(t.Context(), target, func(context.Context) error { return status.Error(codes.Unavailable, "down") })
	}
	s := snapshot(t, b, target)
	time.Sleep(s.RetryAt.Sub(s.OpenedAt))
	require.Equal(t, breaker.StateHalfOpen, snapshot(t, b, target).State)
}

// withRetryInfo is a status error that asks for a pause of d.
func withRetryInfo(t testing.TB, code codes.Code, d *durationpb.Duration) error {
	t.Helper()
	s, err := status.New(code, "busy").WithDetails(&errdetails.RetryInfo{RetryDelay: d})
	require.NoError(t, err)
	return s.Err()
}

// retryInfo is the delay of the RetryInfo in err's status; false if it has none.
func retryInfo(err error) (time.Duration, bool) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

// invokerOf is a call that ends with err.
func invokerOf(err error) grpc.UnaryInvoker {
	return func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return err }
}
