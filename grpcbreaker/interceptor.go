package grpcbreaker

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"

	"github.com/breakerkit/breaker"
)

// A Key names the circuit of a call. target is the canonical target of the
// connection, such as "dns:///payments:443", and empty where there is none;
// method is the full name, such as "/payments.v1.Payments/Charge". It is asked
// for every call, by many goroutines at once, and must not block.
type Key func(target, method string) string

// The keys to choose from. A process that shares circuits with others should
// name them the same way: ByTarget only does where all dial the same target.
var (
	// ByTarget is the default: a circuit for each target, "dns:///payments:443".
	ByTarget Key = func(target, _ string) string { return target }

	// ByService makes a circuit for each service, "payments.v1.Payments",
	// whatever the target.
	ByService Key = func(_, method string) string {
		name := strings.TrimPrefix(method, "/")
		if i := strings.LastIndexByte(name, '/'); i >= 0 {
			return name[:i]
		}
		return name
	}

	// ByMethod makes a circuit for each method, "payments.v1.Payments/Charge",
	// whatever the target.
	ByMethod Key = func(_, method string) string { return strings.TrimPrefix(method, "/") }
)

// An Option changes what an interceptor does.
type Option func(*options)

type options struct {
	breaker    *breaker.Breaker
	key        Key
	classifier breaker.Classifier
}

// WithKey says which circuit a call belongs to. Default ByTarget; nil: the default.
func WithKey(k Key) Option {
	return func(o *options) {
		if k != nil {
			o.key = k
		}
	}
}

// WithClassifier says what an error means. Default Classifier{}; nil: the
// default. What it calls a Success or Ignored is one; what it calls a Failure
// or leaves Undecided is then shown to the Breaker's own Classifier, to which
// every error of gRPC is a Failure unless it was made to know better.
func WithClassifier(c breaker.Classifier) Option {
	return func(o *options) {
		if c != nil {
			o.classifier = c
		}
	}
}

func newOptions(b *breaker.Breaker, opts []Option) *options {
	o := &options{breaker: b, key: ByTarget, classifier: Classifier{}}
	for _, set := range opts {
		if set != nil {
			set(o)
		}
	}
	return o
}

// keyOf names the circuit of a call; a nil Breaker is an ErrConfig.
func (o *options) keyOf(conn *grpc.ClientConn, method string) (string, error) {
	if o.breaker == nil {
		return "", fmt.Errorf("%w: grpcbreaker: the interceptor of %s has no Breaker", breaker.ErrConfig, method)
	}
	target := ""
	if conn != nil {
		target = conn.CanonicalTarget()
	}
	return o.key(target, method), nil
}

// UnaryClientInterceptor runs each unary call through b. The error of a call
// that was made is returned unchanged. Interceptors that try again belong
// behind it in the chain: then a call counts once, however often it is tried.
// One before it should leave a rejected call alone until its RetryInfo is over.
func UnaryClientInterceptor(b *breaker.Breaker, opts ...Option) grpc.UnaryClientInterceptor {
	o := newOptions(b, opts)
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, callOpts ...grpc.CallOption) error {
		key, err := o.keyOf(conn, method)
		if err != nil {
			return withStatus(err)
		}
		var made error // what the call itself returned
		err = b.Execute(ctx, key, func(ctx context.Context) error {
			made = invoke(ctx, method, req, reply, conn, callOpts...)
			return judge(o.classifier, made)
		})
		if _, ok := err.(*judged); ok {
			return made
		}
		return withStatus(err)
	}
}
