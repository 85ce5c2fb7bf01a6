package prombreaker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/prombreaker"
)

var (
	bg      = context.Background()
	errDown = errors.New("connection refused")
)

// A process is a Breaker and what its metrics say.
type process struct {
	*breaker.Breaker
	metrics  *prombreaker.Metrics
	registry *prometheus.Registry
}

func join(t testing.TB, store breaker.Store, cfg prombreaker.Config, p breaker.Policy) *process {
	t.Helper()
	metrics, err := prombreaker.New(cfg)
	require.NoError(t, err)
	b, err := breaker.New(store, breaker.Config{Policy: p, Observer: metrics, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	metrics.Watch(b)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(metrics))
	return &process{b, metrics, registry}
}

func (p *process) call(key string, err error) error {
	return p.Execute(bg, key, func(context.Context) error { return err })
}

func (p *process) calls(n int, key string, err error) {
	for range n {
		_ = p.call(key, err)
	}
}

// scrape returns each series, as name{label="value",...}, and its value; of a
// histogram its count.
func (p *process) scrape(t testing.TB) map[string]float64 {
	t.Helper()
	synctest.Wait() // notices come on a goroutine of their own
	families, err := p.registry.Gather()
	require.NoError(t, err)
	values := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := f.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// states are the states of which the gauge of key is 1, and how many series it has.
func states(values map[string]float64, key string) (is []string, series int) {
	for _, state := range []string{"closed", "open", "half-open"} {
		if v, ok := values[fmt.Sprintf("breaker_circuit_state{key=%q,state=%q}", key, state)]; ok {
			series++
			if v == 1 {
				is = append(is, state)
			}
		}
	}
	return is, series
}

func assertState(t testing.TB, p *process, key, want string) {
	t.Helper()
	is, series := states(p.scrape(t), key)
	assert.Equal(t, []string{want}, is)
	assert.Equal(t, 3, series)
}

func TestCallsRejectionsAndTransitionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := join(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), prombreaker.Config{}, breaker.Policy{})
		p.calls(7, "stripe", nil)
		p.calls(1, "stripe", breaker.Ignore(errDown))
		_ = p.Execute(bg, "stripe", func(context.Context) error { time.Sleep(3 * time.Second); return nil })
		p.calls(5+4, "stripe", errDown) // four are rejected
		time.Sleep(time.Minute)
		require.NoError(t, p.Execute(bg, "stripe", func(context.Context) error {
			p.calls(2, "stripe", nil) // the slot is taken
			return nil
		}))
		got := p.scrape(t)
		for name, want := range map[string]float64{
			`breaker_calls_total{key="stripe",outcome="success"}`:    9,
			`breaker_calls_total{key="stripe",outcome="failure"}`:    5,
			`breaker_calls_total{key="stripe",outcome="ignored"}`:    1,
			`breaker_call_duration_seconds{key="stripe"}`:            15,
			`breaker_rejections_total{key="stripe",reason="open"}`:   4,
			`breaker_rejections_total{key="stripe",reason="busy"}`:   2,
			`breaker_transitions_total{key="stripe",to="open"}`:      1,
			`breaker_transitions_total{key="stripe",to="half-open"}`: 1,
			`breaker_transitions_total{key="stripe",to="closed"}`:    1,
			`breaker_circuits`:        1,
			`breaker_scrape_complete`: 1,
			`breaker_store_degraded`:  0,
		} {
			assert.Contains(t, got, name)
			assert.Equal(t, want, got[name], name)
		}
		assert.NoError(t, testutil.GatherAndCompare(p.registry, strings.NewReader(`
# HELP breaker_circuit_override 1 while an operator holds the circuit open or closed.
# TYPE breaker_circuit_override gauge
breaker_circuit_override{key="stripe"} 0
`), "breaker_circuit_override"))
	})
}

// A histogram has the calls in the bucket of their time.
func TestTheHistogramHasTheTimesOfCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := join(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), prombreaker.Config{Buckets: []float64{1, 10}}, breaker.Policy{})
		for _, d := range []time.Duration{0, 500 * time.Millisecond, 2 * time.Second, time.Minute} {
			_ = p.Execute(bg, "k", func(context.Context) error { time.Sleep(d); return nil })
		}
		assert.NoError(t, testutil.GatherAndCompare(p.registry, strings.NewReader(`
# HELP breaker_call_duration_seconds Time that calls took.
# TYPE breaker_call_duration_seconds histogram
breaker_call_duration_seconds_bucket{key="k",le="1"} 2
breaker_call_duration_seconds_bucket{key="k",le="10"} 3
breaker_call_duration_seconds_bucket{key="k",le="+Inf"} 4
breaker_call_duration_seconds_sum{key="k"} 62.5
breaker_call_duration_seconds_count{key="k"} 4
breaker_call_duration_seconds_bucket{key="other",le="1"} 0
breaker_call_duration_seconds_bucket{key="other",le="10"} 0
breaker_call_duration_seconds_bucket{key="other",le="+Inf"} 0
breaker_call_duration_seconds_sum{key="other"} 0
breaker_call_duration_seconds_count{key="other"} 0
`), "breaker_call_duration_seconds"))
	})
}

// Each time of a circuit's life, the state of one label is 1 and those of the
// others are 0, whoever made the transitions and whether anybody called.
func TestExactlyOneStateIsOneAtEachScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := breaker.NewMemoryStore(breaker.MemoryConfig{})
		acting, idle := join(t, store, prombreaker.Config{}, breaker.Policy{}), join(t, store, prombreaker.Config{}, breaker.Policy{})
		both := func(want string) {
			t.Helper()
			assertState(t, acting, "k", want)
			assertState(t, idle, "k", want)
		}
		acting.calls(1, "k", nil)
		both("closed")
		acting.calls(5, "k", errDown)
		both("open")
		time.Sleep(time.Minute)
		both("half-open") // by the time alone: nobody has called
		require.NoError(t, acting.call("k", nil))
		both("closed")
		require.NoError(t, idle.Force(bg, "k", breaker.Override{State: breaker.StateOpen, For: time.Hour}))
		both("open")
		assert.EqualValues(t, 1, acting.scrape(t)[`breaker_circuit_override{key="k"}`])
		time.Sleep(time.Hour)
		both("closed")
		assert.Zero(t, acting.scrape(t)[`breaker_circuit_override{key="k"}`])
	})
}

// Twenty processes see one circuit open and recover: it is counted once.
func TestAFleetCountsATransitionOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := breaker.NewMemoryStore(breaker.MemoryConfig{})
		fleet := make([]*process, 20)
		for i := range fleet {
			fleet[i] = join(t, store, prombreaker.Config{}, breaker.Policy{})
		}
		all := func(err error) {
			var wg sync.WaitGroup
			for _, p := range fleet {
				wg.Go(func() { p.calls(5, "k", err) })
			}
			wg.Wait()
		}
		sum := func(to string) (n float64) {
			for _, p := range fleet {
				n += p.scrape(t)[fmt.Sprintf("breaker_transitions_total{key=\"k\",to=%q}", to)]
			}
			return n
		}
		all(errDown)
		assert.EqualValues(t, 1, sum("open"))
		time.Sleep(time.Minute)
		all(nil)
		assert.EqualValues(t, 1, sum("half-open"))
		assert.EqualValues(t, 1, sum("closed"))
		assert.EqualValues(t, 1, sum("open"))
	})
}

// A store of at most 100 circuits meets 1,000 names: the open circuit keeps its
// series, evicted ones lose theirs.
func TestTheSeriesOfEvictedCircuitsVanish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := join(t, breaker.NewMemoryStore(breaker.MemoryConfig{MaxKeys: 100}), prombreaker.Config{MaxKeys: 5000}, breaker.Policy{})
		p.calls(5, "down", errDown)
		time.Sleep(time.Second)
		for i := range 1000 {
			p.calls(1, fmt.Sprintf("name-%d", i), nil)
		}
		p.scrape(t) // whoever was used since the last one is kept
		got := p.scrape(t)
		withSeries, withState := keysOf(got, "breaker_calls_total"), keysOf(got, "breaker_circuit_state")
		assert.LessOrEqual(t, len(withState), 100)
		assert.LessOrEqual(t, len(withSeries), 101, "and those of other")
		assert.Contains(t, withState, "down")
		assert.EqualValues(t, 5, got[`breaker_calls_total{key="down",outcome="failure"}`])
		assert.ErrorIs(t, p.call("down", nil), breaker.ErrOpen)
		assert.EqualValues(t, 100, got["breaker_circuits"])
	})
}

// keysOf is the set of the label key of a metric.
func keysOf(values map[string]float64, metric string) map[string]bool {
	keys := make(map[string]bool)
	for series := range values {
		if rest, ok := strings.CutPrefix(series, metric+`{key="`); ok {
			key, _, _ := strings.Cut(rest, `"`)
			keys[key] = true
		}
	}
	return keys
}

func TestKeysPastTheBoundAreCountedAsOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := join(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), prombreaker.Config{MaxKeys: 2}, breaker.Policy{})
		for _, key := range []string{"a", "b", "c", "d", "other"} {
			p.calls(3, key, nil)
		}
		got := p.scrape(t)
		assert.Equal(t, map[string]bool{"a": true, "b": true, "other": true}, keysOf(got, "breaker_calls_total"))
		assert.Equal(t, map[string]bool{"a": true, "b": true}, keysOf(got, "breaker_circuit_state"))
		assert.EqualValues(t, 9, got[`breaker_calls_total{key="other",outcome="success"}`])
		assert.EqualValues(t, 5, got["breaker_circuits"])
	})
}

// Any string may be a key; Prometheus takes UTF-8 only, and an empty label is none.
func TestKeysThatPrometheusCanNotWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := join(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), prombreaker.Config{}, breaker.Policy{})
		for _, key := range []string{"", "\xff", `"\xff"`, "tenant 7/{x}\n", "grün"} {
			p.calls(1, key, nil)
		}
		got := p.scrape(t)
		assert.EqualValues(t, 1, got[`breaker_calls_total{key="\"\"",outcome="success"}`])
		assert.EqualValues(t, 1, got[`breaker_calls_total{key="grün",outcome="success"}`])
		assert.EqualValues(t, 1, got[`breaker_calls_total{key="tenant 7/{x}\n",outcome="success"}`])
		assert.EqualValues(t, 1, got[`breaker_calls_total{key="\"\\xff\"",outcome="success"}`])
		assert.EqualValues(t, 1, got[`breaker_calls_total{key="other",outcome="success"}`], "its label is another's")
	})
}

func TestMetricsThatWatchNoBreakerOnlyCount(t *testing.T) {
	m, err := prombreaker.New(prombreaker.Config{})
	require.NoError(t, err)
	m.CallDone("k", breaker.Success, time.Second)
	m.CallDone("k", breaker.Undecided, time.Second)
	m.Transitioned(breaker.Transition{Key: "k", To: 9}) // of a later version: no panic
	assert.Equal(t, 6, testutil.CollectAndCount(m, "breaker_calls_total"))
	assert.Zero(t, testutil.CollectAndCount(m, "breaker_circuit_state"))
}

func TestTheNamesFollowPrometheusConventions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := join(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), prombreaker.Config{}, breaker.Policy{})
		p.calls(1, "k", nil)
		problems, err := testutil.GatherAndLint(p.registry)
		require.NoError(t, err)
		assert.Equal(t, []promlint.Problem(nil), problems)
	})
}

func TestTwoBreakersInOneRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		for _, name := range []string{"payments", "mail"} {
			p := join(t, breaker.NewMemoryStore(breaker.MemoryConfig{}), prombreaker.Config{ConstLabels: prometheus.Labels{"breaker": name}}, breaker.Policy{})
			p.calls(1, "k", nil)
			require.NoError(t, registry.Register(p.metrics))
		}
		_, err := registry.Gather()
		assert.NoError(t, err)
	})
}

func TestWrongFieldsAreNamed(t *testing.T) {
	for field, cfg := range map[string]prombreaker.Config{
		"MaxKeys":       {MaxKeys: -1},
		"ScrapeTimeout": {ScrapeTimeout: -1},
		"Namespace":     {Namespace: "my service"},
		"Buckets[1]":    {Buckets: []float64{2, 1}},
		"Buckets[0]":    {Buckets: []float64{math.NaN()}},
		"ConstLabels":   {ConstLabels: prometheus.Labels{"key": "x"}},
	} {
		_, err := prombreaker.New(cfg)
		assert.ErrorIs(t, err, breaker.ErrConfig, field)
		assert.ErrorContains(t, err, field)
	}
}

func TestCountingCostsNoAllocation(t *testing.T) {
	m, err := prombreaker.New(prombreaker.Config{MaxKeys: 1})
	require.NoError(t, err)
	rejected := &breaker.RejectedError{}
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		m.CallDone("k", breaker.Success, time.Second)
		m.CallDone("past the bound", breaker.Failure, time.Second)
		m.Rejected("k", rejected)
	}))
}

func BenchmarkCallDone(b *testing.B) {
	m, err := prombreaker.New(prombreaker.Config{})
	require.NoError(b, err)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			m.CallDone("k", breaker.Success, 20*time.Millisecond)
		}
	})
}

func Example() {
	metrics, err := prombreaker.New(prombreaker.Config{})
	if err != nil {
		panic(err)
	}
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{Observer: metrics})
	if err != nil {
		panic(err)
	}
	defer b.Close()
	metrics.Watch(b)
	prometheus.MustRegister(metrics)
	defer prometheus.Unregister(metrics)

	_ = b.Execute(context.Background(), "stripe", func(context.Context) error { return nil })
	fmt.Println(testutil.CollectAndCount(metrics, "breaker_circuit_state"), "series tell the state")
	// Output: 3 series tell the state
}
