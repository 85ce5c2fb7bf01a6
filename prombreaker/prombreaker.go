// Package prombreaker has Prometheus metrics of a breaker.Breaker: an Observer
// that counts, and a Collector that reads the circuits' states from their
// store when it is scraped.
//
//	metrics, err := prombreaker.New(prombreaker.Config{})
//	...
//	b, err := breaker.New(store, breaker.Config{Observer: metrics})
//	...
//	metrics.Watch(b)
//	prometheus.MustRegister(metrics)
//
// The metrics, each name after the namespace "breaker":
//
//	breaker_calls_total{key,outcome}                counter    calls made, by success, failure, ignored
//	breaker_call_duration_seconds{key}              histogram  time the calls took
//	breaker_rejections_total{key,reason}            counter    calls not made: open, busy (half-open, no slot)
//	breaker_transitions_total{key,to}               counter    changes of state that this process made
//	breaker_circuit_state{key,state}                gauge      1 for the state it is in, 0 for the two others
//	breaker_circuit_override{key}                   gauge      1 while an operator holds it open or closed
//	breaker_circuits                                gauge      circuits that the store knows
//	breaker_scrape_complete                         gauge      1 if this scrape could read all it wanted
//	breaker_store_degraded                          gauge      1 while this process goes without the store
//	breaker_store_degradations_total                counter    times that the store failed
//	breaker_store_degraded_seconds_total            counter    time spent without it
//	breaker_views                                   gauge      shared circuits that this process can act on without a command
//	breaker_view_staleness_seconds                  gauge      how long ago the oldest view was read
//	breaker_view_listening                          gauge      1 while other processes' changes are heard of
//
// Of a fleet, only the process that made a transition counts it: a sum over
// all processes counts each once. The state is the shared one, the same from
// every process. A circuit that could not be read in time has no state series
// in that scrape; there is never an old one.
package prombreaker

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/gauges"
)

// OtherKey is the value of the label key for all keys past Config.MaxKeys, and
// for a key of this very name.
const OtherKey = gauges.Other

// A Config configures Metrics. Its zero value will do.
type Config struct {
	// Namespace begins the name of every metric. Default "breaker".
	Namespace string

	// ConstLabels are on every series; they tell two Breakers of one registry
	// apart. Default none.
	ConstLabels prometheus.Labels

	// Buckets are the upper bounds of the latency histogram, in seconds,
	// rising. Default 5ms to 30s, thirteen of them.
	Buckets []float64

	// MaxKeys is how many keys have series of their own, about 30 each. The
	// calls of all others are counted together under OtherKey, which has no
	// state. A key that the store has dropped gives its place, and its series,
	// up. Default 200.
	MaxKeys int

	// ScrapeTimeout is the longest that a scrape waits for the store. Keep it
	// below Prometheus' own scrape_timeout (10s unless set). Default 1s.
	ScrapeTimeout time.Duration
}

// DefaultBuckets are the upper bounds, in seconds, that Config.Buckets defaults to.
var DefaultBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30}

// Metrics are the metrics of one Breaker: its Observer, and a Collector to
// register. Its methods may be called concurrently.
type Metrics struct {
	breaker.NopObserver
	labels *gauges.Labels[series]
	reader gauges.Reader

	calls, rejections, transitions *prometheus.CounterVec
	duration                       *prometheus.HistogramVec
	degradations                   prometheus.Counter
	state, override, circuits      *prometheus.Desc
	complete, degraded, downTime   *prometheus.Desc
	views, staleness, listening    *prometheus.Desc

	downtime gauges.Downtime
}

var (
	_ breaker.Observer     = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// series are what a call touches, looked up once.
type series struct {
	outcomes [3]prometheus.Counter // Success, Failure, Ignored
	changes  [3]prometheus.Counter // to StateClosed, StateOpen, StateHalfOpen
	open     prometheus.Counter
	busy     prometheus.Counter
	duration prometheus.Observer
}

// New returns Metrics. Each wrong field of cfg is an error that names it; the
// error is a breaker.ErrConfig.
func New(cfg Config) (*Metrics, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Namespace == "" {
		cfg.Namespace = "breaker"
	}
	if cfg.Buckets == nil {
		cfg.Buckets = DefaultBuckets
	}
	if cfg.MaxKeys == 0 {
		cfg.MaxKeys = 200
	}
	if cfg.ScrapeTimeout == 0 {
		cfg.ScrapeTimeout = time.Second
	}
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: cfg.Namespace, Name: name, Help: help, ConstLabels: cfg.ConstLabels}
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(cfg.Namespace, "", name), help, labels, cfg.ConstLabels)
	}
	m := &Metrics{
		calls: prometheus.NewCounterVec(opts("calls_total",
			"Calls made, by what they said of the dependency."), []string{"key", "outcome"}),
		rejections: prometheus.NewCounterVec(opts("rejections_total",
			"Calls not made: the circuit is open, or busy being probed."), []string{"key", "reason"}),
		transitions: prometheus.NewCounterVec(opts("transitions_total",
			"Changes of a circuit's state that this process made."), []string{"key", "to"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: cfg.Namespace, Name: "call_duration_seconds", Help: "Time that calls took.",
			ConstLabels: cfg.ConstLabels, Buckets: cfg.Buckets,
		}, []string{"key"}),
		degradations: prometheus.NewCounter(opts("store_degradations_total", "Times that the store of the circuits failed.")),

		state:    desc("circuit_state", "1 for the state that the shared circuit is in, 0 for the others.", "key", "state"),
		override: desc("circuit_override", "1 while an operator holds the circuit open or closed.", "key"),
		circuits: desc("circuits", "Circuits that the store knows."),
		complete: desc("scrape_complete", "1 if all circuits with a label could be read in this scrape."),
		degraded: desc("store_degraded", "1 while this process goes without the store of the circuits."),
		downTime: desc("store_degraded_seconds_total", "Time this process spent without the store of the circuits."),

		views:     desc("views", "Shared circuits that this process can act on without a command."),
		staleness: desc("view_staleness_seconds", "How long ago the oldest view of a shared circuit was read."),
		listening: desc("view_listening", "1 while changes that other processes make are heard of."),
	}
	m.labels = gauges.NewLabels(cfg.MaxKeys, m.newSeries)
	m.reader = gauges.Reader{Limit: cfg.ScrapeTimeout, Choose: m.choose}
	return m, nil
}

func (cfg *Config) check() error {
	switch {
	case cfg.MaxKeys < 0:
		return fmt.Errorf("%w: prombreaker: MaxKeys is %d: must not be negative", breaker.ErrConfig, cfg.MaxKeys)
	case cfg.ScrapeTimeout < 0:
		return fmt.Errorf("%w: prombreaker: ScrapeTimeout is %v: must not be negative", breaker.ErrConfig, cfg.ScrapeTimeout)
	case cfg.Namespace != "" && !model.LegacyValidation.IsValidMetricName(cfg.Namespace):
		return fmt.Errorf("%w: prombreaker: Namespace is %q: not a name that Prometheus allows", breaker.ErrConfig, cfg.Namespace)
	}
	for i, bound := range cfg.Buckets {
		if math.IsNaN(bound) || i > 0 && bound <= cfg.Buckets[i-1] {
			return fmt.Errorf("%w: prombreaker: Buckets[%d] is %v: must rise", breaker.ErrConfig, i, bound)
		}
	}
	for name := range cfg.ConstLabels {
		if !model.LegacyValidation.IsValidLabelName(name) || slices.Contains([]string{"key", "outcome", "reason", "to", "state", "le"}, name) {
			return fmt.Errorf("%w: prombreaker: ConstLabels has %q: not a name that is free here", breaker.ErrConfig, name)
		}
	}
	return nil
}

// Watch sets the Breaker whose circuits are read at each scrape; without one
// there are counters only.
func (m *Metrics) Watch(b *breaker.Breaker) { m.reader.Watch(b) }

// newSeries makes all series that calls of a key can need, so that each begins
// at zero and a rate of it has no gap.
func (m *Metrics) newSeries(label string) series {
	s := series{
		open: m.rejections.WithLabelValues(label, "open"), busy: m.rejections.WithLabelValues(label, "busy"),
		duration: m.duration.WithLabelValues(label),
	}
	for o := breaker.Success; o <= breaker.Ignored; o++ {
		s.outcomes[o-breaker.Success] = m.calls.WithLabelValues(label, o.String())
	}
	for to := range s.changes {
		s.changes[to] = m.transitions.WithLabelValues(label, breaker.State(to).String())
	}
	return s
}

// CallDone implements breaker.Observer.
func (m *Metrics) CallDone(key string, o breaker.Outcome, elapsed time.Duration) {
	if o < breaker.Success || o > breaker.Ignored {
		return
	}
	s := m.labels.Use(key)
	s.outcomes[o-breaker.Success].Inc()
	s.duration.Observe(elapsed.Seconds())
}

// Rejected implements breaker.Observer.
func (m *Metrics) Rejected(key string, err *breaker.RejectedError) {
	s := m.labels.Use(key)
	if err.State == breaker.StateHalfOpen {
		s.busy.Inc()
		return
	}
	s.open.Inc()
}

// Transitioned implements breaker.Observer.
func (m *Metrics) Transitioned(t breaker.Transition) {
	if s := m.labels.Use(t.Key); int(t.To) < len(s.changes) {
		s.changes[t.To].Inc()
	}
}

// StoreDegraded implements breaker.Observer.
func (m *Metrics) StoreDegraded(error) {
	m.degradations.Inc()
	m.downtime.Begin()
}

// StoreRecovered implements breaker.Observer.
func (m *Metrics) StoreRecovered(down time.Duration) { m.downtime.End(down) }
