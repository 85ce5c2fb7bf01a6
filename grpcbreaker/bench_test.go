package grpcbreaker_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/grpcbreaker"
)

// BenchmarkUnary is what the interceptor adds to a call that costs nothing.
func BenchmarkUnary(b *testing.B) {
	for name, err := range map[string]error{"success": nil, "NotFound": status.Error(codes.NotFound, "")} {
		b.Run(name, func(b *testing.B) {
			unary := grpcbreaker.UnaryClientInterceptor(newBreaker(b, breaker.Config{}))
			invoke := invokerOf(err)
			b.ReportAllocs()
			for b.Loop() {
				_ = unary(b.Context(), "/s/m", nil, nil, nil, invoke)
			}
		})
	}
}
