package grpcbreaker_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/grpcbreaker"
)

var creds = insecure.NewCredentials()

// A server that is ill, and one answer of it for each code.
type illServer struct {
	grpc_health_v1.UnimplementedHealthServer
	code codes.Code
}

func (s *illServer) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return nil, status.Error(s.code, "as the example wants it")
}

func startServer(code codes.Code) (addr string, stop func()) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	srv := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(srv, &illServer{code: code})
	go func() { _ = srv.Serve(listener) }()
	return listener.Addr().String(), srv.Stop
}

func Example() {
	addr, stop := startServer(codes.Unavailable)
	defer stop()

	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds),
		grpc.WithChainUnaryInterceptor(grpcbreaker.UnaryClientInterceptor(b)),
		grpc.WithChainStreamInterceptor(grpcbreaker.StreamClientInterceptor(b)))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	client := grpc_health_v1.NewHealthClient(conn)
	for range 6 {
		_, err = client.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
		fmt.Println(status.Code(err), errors.Is(err, breaker.ErrOpen))
	}
	wait, _ := breaker.RetryAfter(err)
	fmt.Println("come back in", wait.Round(time.Minute))
	// Output:
	// Unavailable false
	// Unavailable false
	// Unavailable false
	// Unavailable false
	// Unavailable false
	// Unavailable true
	// come back in 1m0s
}

// A circuit for each method, so that one that is slow does not stop the others.
func ExampleWithKey() {
	addr, stop := startServer(codes.Internal)
	defer stop()
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds), grpc.WithChainUnaryInterceptor(
		grpcbreaker.UnaryClientInterceptor(b, grpcbreaker.WithKey(grpcbreaker.ByMethod))))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	_, _ = grpc_health_v1.NewHealthClient(conn).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	snap, err := b.Snapshot(context.Background(), "grpc.health.v1.Health/Check")
	fmt.Println(snap.ConsecutiveFailures, err)
	// Output: 1 <nil>
}

func ExampleClassifier() {
	c := grpcbreaker.Classifier{FailureCode: func(c codes.Code) bool {
		return c != codes.ResourceExhausted && grpcbreaker.FailureCode(c) // our quota, not their trouble
	}}
	for _, code := range []codes.Code{codes.Unavailable, codes.ResourceExhausted, codes.NotFound, codes.Canceled} {
		fmt.Println(code, c.Classify(status.Error(code, "")).Outcome)
	}
	// Output:
	// Unavailable failure
	// ResourceExhausted success
	// NotFound success
	// Canceled ignored
}
