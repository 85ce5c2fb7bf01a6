package otelbreaker

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/breakerkit/breaker"
)

// The events that Record adds.
const (
	RejectedEvent   = "breaker.rejected"    // breaker.key, breaker.state, breaker.retry_after, breaker.last_error
	StoreErrorEvent = "breaker.store_error" // breaker.key, breaker.store.op, exception.message
)

// Execute is b.Execute, and puts an event on the span of ctx where the call
// was not made: see Record. It begins no span of its own: fn's instruments do.
func Execute(ctx context.Context, b *breaker.Breaker, key string, fn func(context.Context) error) error {
	err := b.Execute(ctx, key, fn)
	Record(ctx, err)
	return err
}

// Do is breaker.Do, with events as Execute has them.
func Do[T any](ctx context.Context, b *breaker.Breaker, key string, fn func(context.Context) (T, error)) (T, error) {
	v, err := breaker.Do(ctx, b, key, fn)
	Record(ctx, err)
	return v, err
}

// Record adds an event to the span of ctx if err is, or wraps, a
// *breaker.RejectedError or a *breaker.StoreError; otherwise, and where nobody
// records the span, it does nothing. The span's status is left as it is: a
// call that was not made may still end well, from a cache.
//
// It is for code that uses Allow, or a transport over a Breaker. A Breaker
// within fn that rejects is told of as well.
func Record(ctx context.Context, err error) {
	if err == nil || ctx == nil {
		return
	}
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	var rejected *breaker.RejectedError
	var failed *breaker.StoreError
	switch {
	case errors.As(err, &rejected):
		span.AddEvent(RejectedEvent, trace.WithAttributes(
			KeyAttribute.String(rejected.Key), StateAttribute.String(rejected.State.String()),
			attribute.Float64("breaker.retry_after", rejected.RetryAfter.Seconds()),
			attribute.String("breaker.last_error", rejected.LastError)))
	case errors.As(err, &failed):
		span.AddEvent(StoreErrorEvent, trace.WithAttributes(
			KeyAttribute.String(failed.Key), attribute.String("breaker.store.op", failed.Op),
			attribute.String("exception.message", failed.Err.Error())))
	}
}
