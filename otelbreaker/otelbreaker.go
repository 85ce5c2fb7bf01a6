// Package otelbreaker has OpenTelemetry metrics of a breaker.Breaker, and
// events on the spans of calls that it does not let through.
//
//	telemetry, err := otelbreaker.New(otelbreaker.Config{})
//	...
//	b, err := breaker.New(store, breaker.Config{Observer: telemetry})
//	...
//	telemetry.Watch(b)
//	defer telemetry.Close()
//	err = otelbreaker.Execute(ctx, b, "stripe", charge)
//
// The metrics, with their units and attributes:
//
//	breaker.call.duration            histogram  s             breaker.key, breaker.outcome
//	breaker.call.rejections          counter    {call}        breaker.key, breaker.state
//	breaker.circuit.transitions      counter    {transition}  breaker.key, breaker.state.from, breaker.state.to, breaker.cause
//	breaker.circuit.state            gauge      1             breaker.key, breaker.state: 1 for the state it is in, 0 for the others
//	breaker.circuit.override         gauge      1             breaker.key: 1 while an operator holds it
//	breaker.store.degraded           gauge      1             1 while this process goes without the store
//	breaker.store.degradations       counter    {outage}
//	breaker.store.degraded.duration  counter    s
//	breaker.view.count               gauge      shared circuits that this process can act on without a command
//	breaker.view.staleness           gauge      s, how long ago the oldest view was read
//	breaker.view.listening           gauge      1 while other processes' changes are heard of
//
// The number of calls by outcome is the count of the histogram. Of a fleet,
// only the process that made a transition counts it. The state is the shared
// one; a circuit that could not be read in time is left out of that
// collection, and none is shown with an old state.
//
// An Observer gets no context: it is told of transitions later, on a goroutine
// of its own, and can't know whose call a rejection was. So span events come
// from Execute and Do, or from Record for those who call the Breaker in
// another way. No event tells of transitions; the metrics and the log do.
package otelbreaker

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/gauges"
)

// OtherKey is the breaker.key of all keys past Config.MaxKeys, and of a key of
// this very name.
const OtherKey = gauges.Other

// scope names the instruments' library.
const scope = "github.com/breakerkit/breaker/otelbreaker"

// The attributes of metrics and events.
const (
	KeyAttribute     = attribute.Key("breaker.key")
	OutcomeAttribute = attribute.Key("breaker.outcome") // success, failure, ignored
	StateAttribute   = attribute.Key("breaker.state")   // closed, open, half-open
	FromAttribute    = attribute.Key("breaker.state.from")
	ToAttribute      = attribute.Key("breaker.state.to")
	CauseAttribute   = attribute.Key("breaker.cause")
)

// A Config configures Telemetry. Its zero value will do.
type Config struct {
	// MeterProvider makes the instruments. Default the global one.
	MeterProvider metric.MeterProvider

	// MaxKeys is how many keys have attributes of their own, for as long as
	// the process lives: an SDK can't forget a series. All others are counted
	// together under OtherKey, which has no state. Default 200.
	MaxKeys int

	// ReadTimeout is the longest that a collection waits for the store.
	// Default 1s.
	ReadTimeout time.Duration
}

// Telemetry has the metrics of one Breaker, and is its Observer. Its methods
// may be called concurrently.
type Telemetry struct {
	breaker.NopObserver
	labels       *gauges.Labels[series]
	reader       gauges.Reader
	duration     metric.Float64Histogram
	rejections   metric.Int64Counter
	transitions  metric.Int64Counter
	degradations metric.Int64Counter
	registration metric.Registration

	downtime gauges.Downtime
}

var _ breaker.Observer = (*Telemetry)(nil)

// series are the options that a call of a key needs, made once.
type series struct {
	label    string
	outcomes [3][]metric.RecordOption // Success, Failure, Ignored
	open     []metric.AddOption
	busy     []metric.AddOption
}

// New returns Telemetry. A wrong field of cfg is a breaker.ErrConfig that names
// it; other errors are the MeterProvider's.
func New(cfg Config) (*Telemetry, error) {
	switch {
	case cfg.MaxKeys < 0:
		return nil, fmt.Errorf("%w: otelbreaker: MaxKeys is %d: must not be negative", breaker.ErrConfig, cfg.MaxKeys)
	case cfg.ReadTimeout < 0:
		return nil, fmt.Errorf("%w: otelbreaker: ReadTimeout is %v: must not be negative", breaker.ErrConfig, cfg.ReadTimeout)
	}
	if cfg.MeterProvider == nil {
		cfg.MeterProvider = otel.GetMeterProvider()
	}
	if cfg.MaxKeys == 0 {
		cfg.MaxKeys = 200
	}
	if cfg.ReadTimeout == 0 {
		cfg.ReadTimeout = time.Second
	}
	t := &Telemetry{labels: gauges.NewLabels(cfg.MaxKeys, newSeries)}
	t.reader = gauges.Reader{Limit: cfg.ReadTimeout, Choose: t.choose}
	if err := t.instrument(cfg.MeterProvider.Meter(scope)); err != nil {
		return nil, fmt.Errorf("otelbreaker: %w", err)
	}
	return t, nil
}

// Watch sets the Breaker whose circuits are read at each collection; without
// one their state is not shown.
func (t *Telemetry) Watch(b *breaker.Breaker) { t.reader.Watch(b) }

// Close ends the reading of states. Counters go on, should calls do.
func (t *Telemetry) Close() error { return t.registration.Unregister() }

func newSeries(label string) series {
	s := series{
		label: label,
		open:  []metric.AddOption{keyed(label, StateAttribute.String(breaker.StateOpen.String()))},
		busy:  []metric.AddOption{keyed(label, StateAttribute.String(breaker.StateHalfOpen.String()))},
	}
	for o := breaker.Success; o <= breaker.Ignored; o++ {
		s.outcomes[o-breaker.Success] = []metric.RecordOption{keyed(label, OutcomeAttribute.String(o.String()))}
	}
	return s
}

func keyed(label string, more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append(more, KeyAttribute.String(label))...))
}

// CallDone implements breaker.Observer.
func (t *Telemetry) CallDone(key string, o breaker.Outcome, elapsed time.Duration) {
	if o < breaker.Success || o > breaker.Ignored {
		return
	}
	s := t.labels.Use(key)
	t.duration.Record(context.Background(), elapsed.Seconds(), s.outcomes[o-breaker.Success]...)
}

// Rejected implements breaker.Observer.
func (t *Telemetry) Rejected(key string, err *breaker.RejectedError) {
	s := t.labels.Use(key)
	options := s.open
	if err.State == breaker.StateHalfOpen {
		options = s.busy
	}
	t.rejections.Add(context.Background(), 1, options...)
}

// Transitioned implements breaker.Observer.
func (t *Telemetry) Transitioned(made breaker.Transition) {
	t.transitions.Add(context.Background(), 1, keyed(t.labels.Use(made.Key).label,
		FromAttribute.String(made.From.String()), ToAttribute.String(made.To.String()), CauseAttribute.String(made.Cause)))
}

// StoreDegraded implements breaker.Observer.
func (t *Telemetry) StoreDegraded(error) {
	t.degradations.Add(context.Background(), 1)
	t.downtime.Begin()
}

// StoreRecovered implements breaker.Observer.
func (t *Telemetry) StoreRecovered(down time.Duration) { t.downtime.End(down) }
