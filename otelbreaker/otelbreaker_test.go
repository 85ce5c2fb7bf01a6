package otelbreaker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
	"github.com/breakerkit/breaker/otelbreaker"
)

var (
	bg      = context.Background()
	errDown = errors.New("connection refused")
)

// A process is a Breaker and what its metrics say.
type process struct {
	*breaker.Breaker
	telemetry *otelbreaker.Telemetry
	reader    *sdkmetric.ManualReader
}

func join(t *testing.T, store breaker.Store, cfg otelbreaker.Config, bc breaker.Config) *process {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	cfg.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	telemetry, err := otelbreaker.New(cfg)
	require.NoError(t, err)
	bc.Observer, bc.Logger = telemetry, slog.New(slog.DiscardHandler)
	b, err := breaker.New(store, bc)
	require.NoError(t, err)
	telemetry.Watch(b)
	t.Cleanup(func() {
		assert.NoError(t, telemetry.Close())
		assert.NoError(t, b.Close())
	})
	return &process{b, telemetry, reader}
}

func (p *process) calls(n int, key string, err error) {
	for range n {
		_ = p.Execute(bg, key, func(context.Context) error { return err })
	}
}

// collect returns each series, as name{attributes}, and its value; of a
// histogram its count.
func (p *process) collect(t *testing.T) map[string]float64 {
	t.Helper()
	synctest.Wait()
	var all metricdata.ResourceMetrics
	require.NoError(t, p.reader.Collect(bg, &all))
	values := make(map[string]float64)
	put := func(name string, set attribute.Set, v float64) {
		values[name+"{"+set.Encoded(attribute.DefaultEncoder())+"}"] = v
	}
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					put(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Sum[float64]:
				for _, p := range d.DataPoints {
					put(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					put(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					put(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					put(m.Name, p.Attributes, float64(p.Count))
				}
			default:
				require.Fail(t, "unknown data", "%s %T", m.Name, d)
			}
		}
	}
	return values
}

func assertState(t *testing.T, got map[string]float64, key, want string) {
	t.Helper()
	for _, state := range []string{"closed", "open", "half-open"} {
		name := fmt.Sprintf("breaker.circuit.state{breaker.key=%s,breaker.state=%s}", key, state)
		value, ok := got[name]
		assert.True(t, ok, name)
		assert.Equal(t, state == want, value == 1, name)
	}
}

func TestALifeOfACircuitInMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := join(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), otelbreaker.Config{}, breaker.Config{})
		p.calls(3, "stripe", nil)
		p.calls(1, "stripe", breaker.Ignore(errDown))
		assertState(t, p.collect(t), "stripe", "closed")
		p.calls(5+4, "stripe", errDown) // four are rejected
		assertState(t, p.collect(t), "stripe", "open")
		time.Sleep(time.Minute)
		assertState(t, p.collect(t), "stripe", "half-open")
		require.NoError(t, p.Execute(bg, "stripe", func(context.Context) error {
			p.calls(2, "stripe", nil) // the slot is taken
			return nil
		}))
		require.NoError(t, p.Force(bg, "mail", breaker.Override{State: breaker.StateOpen}))
		got := p.collect(t)
		assertState(t, got, "stripe", "closed")
		assertState(t, got, "mail", "open")
		for name, want := range map[string]float64{
			"breaker.call.duration{breaker.key=stripe,breaker.outcome=success}":                                                                   4,
			"breaker.call.duration{breaker.key=stripe,breaker.outcome=failure}":                                                                   5,
			"breaker.call.duration{breaker.key=stripe,breaker.outcome=ignored}":                                                                   1,
			"breaker.call.rejections{breaker.key=stripe,breaker.state=open}":                                                                      4,
			"breaker.call.rejections{breaker.key=stripe,breaker.state=half-open}":                                                                 2,
			"breaker.circuit.transitions{breaker.cause=consecutive_failures,breaker.key=stripe,breaker.state.from=closed,breaker.state.to=open}":  1,
			"breaker.circuit.transitions{breaker.cause=cooldown_over,breaker.key=stripe,breaker.state.from=open,breaker.state.to=half-open}":      1,
			"breaker.circuit.transitions{breaker.cause=probes_succeeded,breaker.key=stripe,breaker.state.from=half-open,breaker.state.to=closed}": 1,
			"breaker.circuit.override{breaker.key=stripe}":                                                                                        0,
			"breaker.circuit.override{breaker.key=mail}":                                                                                          1,
			"breaker.store.degraded{}":          0,
			"breaker.store.degraded.duration{}": 0,
			"breaker.view.count{}":              0, // in memory there is nothing to have a view of
			"breaker.view.staleness{}":          0,
			"breaker.view.listening{}":          0,
		} {
			assert.Contains(t, got, name)
			assert.Equal(t, want, got[name], name)
		}
	})
}

func TestACollectionEndsWhateverTheStoreDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := breakertest.NewFlakyStore(nil)
		p := join(t, store, otelbreaker.Config{}, breaker.Config{})
		p.calls(1, "k", nil)
		assertState(t, p.collect(t), "k", "closed")
		store.Hang()
		p.calls(1, "k", nil)
		began := time.Now()
		got := p.collect(t)
		assert.LessOrEqual(t, time.Since(began), time.Second)
		assert.NotContains(t, got, "breaker.circuit.state{breaker.key=k,breaker.state=closed}", "it is not known")
		assert.EqualValues(t, 1, got["breaker.store.degraded{}"])
		time.Sleep(20 * time.Second)
		assert.Greater(t, p.collect(t)["breaker.store.degraded.duration{}"], 20.0)
		store.Recover()
		p.calls(1, "k", nil)
		got = p.collect(t)
		assertState(t, got, "k", "closed")
		assert.EqualValues(t, 1, got["breaker.store.degradations{}"])
		assert.Zero(t, got["breaker.store.degraded{}"])
	})
}

func TestKeysPastTheBoundAreOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := join(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), otelbreaker.Config{MaxKeys: 1}, breaker.Config{})
		for _, key := range []string{"a", "b", "c"} {
			p.calls(1, key, nil)
		}
		got := p.collect(t)
		assert.EqualValues(t, 1, got["breaker.call.duration{breaker.key=a,breaker.outcome=success}"])
		assert.EqualValues(t, 2, got["breaker.call.duration{breaker.key=other,breaker.outcome=success}"])
		assertState(t, got, "a", "closed")
		assert.NotContains(t, got, "breaker.circuit.state{breaker.key=b,breaker.state=closed}")
		assert.NotContains(t, got, "breaker.circuit.state{breaker.key=other,breaker.state=closed}")
	})
}

func TestNothingIsReadAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := breakertest.NewFlakyStore(nil)
		p := join(t, store, otelbreaker.Config{}, breaker.Config{})
		p.calls(1, "k", nil)
		require.NoError(t, p.telemetry.Close())
		steps := store.Steps()
		assert.NotContains(t, p.collect(t), "breaker.circuit.state{breaker.key=k,breaker.state=closed}")
		assert.Equal(t, steps, store.Steps())
	})
}

func TestWrongFieldsAreNamed(t *testing.T) {
	for field, cfg := range map[string]otelbreaker.Config{"MaxKeys": {MaxKeys: -1}, "ReadTimeout": {ReadTimeout: -1}} {
		_, err := otelbreaker.New(cfg)
		assert.ErrorIs(t, err, breaker.ErrConfig)
		assert.ErrorContains(t, err, field)
	}
	telemetry, err := otelbreaker.New(otelbreaker.Config{}) // the global provider, which does nothing
	require.NoError(t, err)
	telemetry.CallDone("k", breaker.Success, 0)
	telemetry.CallDone("k", breaker.Undecided, 0)
}

// spans runs do within a span, and returns the events it got, and its status.
func spans(t *testing.T, do func(ctx context.Context)) sdktrace.ReadOnlySpan {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test").Start(bg, "charge")
	do(ctx)
	span.End()
	require.Len(t, recorder.Ended(), 1, "no span but the caller's own")
	return recorder.Ended()[0]
}

func TestARejectionIsAnEventOnTheCallersSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := join(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), otelbreaker.Config{}, breaker.Config{})
		span := spans(t, func(ctx context.Context) {
			for range 5 {
				err := otelbreaker.Execute(ctx, p.Breaker, "stripe", func(context.Context) error { return errDown })
				require.Equal(t, errDown, err)
			}
			time.Sleep(18 * time.Second)
			v, err := otelbreaker.Do(ctx, p.Breaker, "stripe", func(context.Context) (int, error) { return 1, nil })
			assert.Zero(t, v)
			assert.ErrorIs(t, err, breaker.ErrOpen)
		})
		require.Len(t, span.Events(), 1, "calls that were made have none")
		assert.Equal(t, otelbreaker.RejectedEvent, span.Events()[0].Name)
		assert.ElementsMatch(t, []attribute.KeyValue{
			attribute.String("breaker.key", "stripe"), attribute.String("breaker.state", "open"),
			attribute.Float64("breaker.retry_after", 42), attribute.String("breaker.last_error", "connection refused"),
		}, span.Events()[0].Attributes)
		assert.Empty(t, span.Status().Description)
	})
}

func TestAStoreErrorIsAnEventOnTheCallersSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := breakertest.NewFlakyStore(nil)
		p := join(t, store, otelbreaker.Config{}, breaker.Config{OnStoreError: breaker.FailClosed})
		store.Fail(errors.New("no route"))
		span := spans(t, func(ctx context.Context) {
			err := otelbreaker.Execute(ctx, p.Breaker, "stripe", func(context.Context) error { return nil })
			assert.ErrorIs(t, err, breaker.ErrStore)
		})
		require.Len(t, span.Events(), 1)
		assert.Equal(t, otelbreaker.StoreErrorEvent, span.Events()[0].Name)
		assert.Contains(t, span.Events()[0].Attributes, attribute.String("exception.message", "no route"))
		assert.Contains(t, span.Events()[0].Attributes, attribute.String("breaker.store.op", "acquire"))
	})
}

func TestRecordWithoutASpanDoesNothing(t *testing.T) {
	rejected := &breaker.RejectedError{Key: "k"}
	assert.Zero(t, testing.AllocsPerRun(10, func() { otelbreaker.Record(bg, rejected) }))
	var none context.Context // as a Breaker, it bears one
	otelbreaker.Record(none, rejected)
	v, err := otelbreaker.Do(bg, newBreaker(t), "k", func(context.Context) (string, error) { return "v", nil })
	assert.Equal(t, "v", v)
	assert.NoError(t, err)
}

func newBreaker(t *testing.T) *breaker.Breaker {
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	return b
}

func BenchmarkCallDone(b *testing.B) {
	telemetry, err := otelbreaker.New(otelbreaker.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		telemetry.CallDone("k", breaker.Success, 20*time.Millisecond)
	}
}

func Example() {
	reader := sdkmetric.NewManualReader() // in a program: an exporter's reader
	telemetry, err := otelbreaker.New(otelbreaker.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	if err != nil {
		panic(err)
	}
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{Observer: telemetry})
	if err != nil {
		panic(err)
	}
	defer b.Close()
	telemetry.Watch(b)
	defer telemetry.Close()

	err = otelbreaker.Execute(context.Background(), b, "stripe", func(context.Context) error { return nil })
	fmt.Println(err)
	// Output: <nil>
}
