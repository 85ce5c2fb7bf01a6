// Package grpcbreaker puts the calls of a gRPC client behind the circuits of a
// breaker.Breaker.
//
//	conn, err := grpc.NewClient("dns:///payments:443",
//		grpc.WithChainUnaryInterceptor(grpcbreaker.UnaryClientInterceptor(b)),
//		grpc.WithChainStreamInterceptor(grpcbreaker.StreamClientInterceptor(b)),
//		...)
//
// Each target has a circuit; WithKey makes it each service or each method.
// Classifier says which codes are failures. A call that is not made ends with
// an error that is a *breaker.RejectedError to errors.As, and to those who
// read statuses Unavailable with the time to wait as its RetryInfo.
package grpcbreaker
