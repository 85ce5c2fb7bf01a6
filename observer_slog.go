package breaker

import (
	"context"
	"log/slog"
	"slices"
	"time"
)

// NewLogObserver returns an Observer that writes what happens to logger; nil
// means slog.Default(). It may be used concurrently, and joined with others by
// Observers. The messages and their attributes are:
//
//   - "breaker: circuit open" (warn), "breaker: circuit half-open" and
//     "breaker: circuit closed" (info): key, from, cause, generation, instance,
//     consecutive_failures; window_calls, window_failures and window_slow
//     where the window counted any; retry_at of a circuit that opened.
//   - "breaker: call rejected" (debug): key, state, retry_after, last_error.
//   - "breaker: store degraded" (warn): error.
//   - "breaker: store recovered" (info): down.
//
// A store outage is logged once: a Breaker leaves to this Observer what it
// otherwise writes to Config.Logger. A rejection costs no allocation while the
// logger's level is above debug.
func NewLogObserver(logger *slog.Logger) Observer {
	if logger == nil {
		logger = slog.Default()
	}
	return &logObserver{logger: logger}
}

type logObserver struct {
	NopObserver
	logger *slog.Logger
}

// logsOutages reports whether o is, or has within it, a logObserver.
func logsOutages(o Observer) bool {
	switch o := o.(type) {
	case *logObserver:
		return true
	case observers:
		return slices.ContainsFunc(o, logsOutages)
	}
	return false
}

var circuitMessages = [...]string{
	StateClosed: "breaker: circuit closed", StateOpen: "breaker: circuit open", StateHalfOpen: "breaker: circuit half-open",
}

func (o *logObserver) Transitioned(t Transition) {
	level, message := slog.LevelInfo, "breaker: circuit changed" // a state that this version does not know
	if t.To == StateOpen {
		level = slog.LevelWarn
	}
	if int(t.To) < len(circuitMessages) {
		message = circuitMessages[t.To]
	}
	ctx := context.Background()
	if !o.logger.Enabled(ctx, level) {
		return
	}
	attrs := [...]slog.Attr{
		slog.String("key", t.Key), slog.String("from", t.From.String()), slog.String("cause", t.Cause),
		slog.Uint64("generation", t.Generation), slog.String("instance", t.Instance),
		slog.Int("consecutive_failures", t.Counts.ConsecutiveFailures),
		{}, {}, {}, {}, // handlers leave out empty attributes
	}
	if c := t.Counts; c.WindowCalls > 0 || c.WindowFailures > 0 {
		attrs[6] = slog.Int("window_calls", c.WindowCalls)
		attrs[7] = slog.Int("window_failures", c.WindowFailures)
		attrs[8] = slog.Int("window_slow", c.WindowSlow)
	}
	if !t.RetryAt.IsZero() {
		attrs[9] = slog.Time("retry_at", t.RetryAt)
	}
	o.logger.LogAttrs(ctx, level, message, attrs[:]...)
}

func (o *logObserver) Rejected(key string, err *RejectedError) {
	ctx := context.Background()
	if !o.logger.Enabled(ctx, slog.LevelDebug) {
		return
	}
	o.logger.LogAttrs(ctx, slog.LevelDebug, "breaker: call rejected",
		slog.String("key", key), slog.String("state", err.State.String()),
		slog.Duration("retry_after", err.RetryAfter), slog.String("last_error", err.LastError))
}

func (o *logObserver) StoreDegraded(err error) {
	o.logger.LogAttrs(context.Background(), slog.LevelWarn, "breaker: store degraded", slog.Any("error", err))
}

func (o *logObserver) StoreRecovered(down time.Duration) {
	o.logger.LogAttrs(context.Background(), slog.LevelInfo, "breaker: store recovered", slog.Duration("down", down))
}
