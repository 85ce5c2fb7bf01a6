package otelbreaker

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/breakerkit/breaker"
)

var buckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30}

// instrument makes the instruments, and has those of states and outages
// observed at each collection.
func (t *Telemetry) instrument(m metric.Meter) error {
	var errs [11]error
	t.duration, errs[0] = m.Float64Histogram("breaker.call.duration", metric.WithUnit("s"),
		metric.WithDescription("Time that calls took."), metric.WithExplicitBucketBoundaries(buckets...))
	t.rejections, errs[1] = m.Int64Counter("breaker.call.rejections", metric.WithUnit("{call}"),
		metric.WithDescription("Calls not made: the circuit is open, or half-open and every slot is taken."))
	t.transitions, errs[2] = m.Int64Counter("breaker.circuit.transitions", metric.WithUnit("{transition}"),
		metric.WithDescription("Changes of a circuit's state that this process made."))
	t.degradations, errs[3] = m.Int64Counter("breaker.store.degradations", metric.WithUnit("{outage}"),
		metric.WithDescription("Times that the store of the circuits failed."))

	var o observed
	o.state, errs[4] = m.Int64ObservableGauge("breaker.circuit.state", metric.WithUnit("1"),
		metric.WithDescription("1 for the state that the shared circuit is in, 0 for the others."))
	o.override, errs[5] = m.Int64ObservableGauge("breaker.circuit.override", metric.WithUnit("1"),
		metric.WithDescription("1 while an operator holds the circuit open or closed."))
	o.degraded, errs[6] = m.Int64ObservableGauge("breaker.store.degraded", metric.WithUnit("1"),
		metric.WithDescription("1 while this process goes without the store of the circuits."))
	o.downTime, errs[7] = m.Float64ObservableCounter("breaker.store.degraded.duration", metric.WithUnit("s"),
		metric.WithDescription("Time this process spent without the store of the circuits."))
	o.views, errs[8] = m.Int64ObservableGauge("breaker.view.count", metric.WithUnit("{circuit}"),
		metric.WithDescription("Shared circuits that this process can act on without a command."))
	o.staleness, errs[9] = m.Float64ObservableGauge("breaker.view.staleness", metric.WithUnit("s"),
		metric.WithDescription("How long ago the oldest view of a shared circuit was read."))
	o.listening, errs[10] = m.Int64ObservableGauge("breaker.view.listening", metric.WithUnit("1"),
		metric.WithDescription("1 while changes that other processes make are heard of."))
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	var err error
	t.registration, err = m.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		t.observeStates(&o, to)
		t.observeOutage(&o, to)
		v := t.reader.Views()
		to.ObserveInt64(o.views, int64(v.Circuits))
		to.ObserveFloat64(o.staleness, v.Staleness.Seconds())
		to.ObserveInt64(o.listening, btoi(v.Listening))
		return nil
	}, o.state, o.override, o.degraded, o.downTime, o.views, o.staleness, o.listening)
	return err
}

// observed are the instruments that are read when somebody collects.
type observed struct {
	state, override, degraded metric.Int64ObservableGauge
	downTime                  metric.Float64ObservableCounter
	views, listening          metric.Int64ObservableGauge
	staleness                 metric.Float64ObservableGauge
}

func (t *Telemetry) observeStates(o *observed, to metric.Observer) {
	reading, _ := t.reader.Read()
	for _, s := range reading.Snapshots {
		label, own := t.labels.Label(s.Key)
		if !own {
			continue
		}
		for state := breaker.StateClosed; state <= breaker.StateHalfOpen; state++ {
			to.ObserveInt64(o.state, btoi(s.State == state), keyed(label, StateAttribute.String(state.String())))
		}
		to.ObserveInt64(o.override, btoi(s.Override != nil), keyed(label))
	}
}

func (t *Telemetry) observeOutage(o *observed, to metric.Observer) {
	down, total := t.downtime.Read()
	to.ObserveInt64(o.degraded, btoi(down))
	to.ObserveFloat64(o.downTime, total.Seconds())
}

func btoi(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// choose returns the circuits to read: those with a label of their own.
func (t *Telemetry) choose(listed map[string]struct{}, complete bool) (keys []string) {
	for key := range listed {
		if _, own := t.labels.Label(key); own {
			keys = append(keys, key)
		}
	}
	if len(listed) == 0 && !complete { // a store that can't list
		keys = t.labels.Keys()
	}
	return keys
}
