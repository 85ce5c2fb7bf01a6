package prombreaker

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/breakerkit/breaker"
)

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, each := range m.collectors() {
		each.Describe(ch)
	}
	for _, each := range []*prometheus.Desc{m.state, m.override, m.circuits, m.complete, m.degraded, m.downTime,
		m.views, m.staleness, m.listening} {
		ch <- each
	}
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.rejections, m.transitions, m.duration, m.degradations}
}

// Collect implements prometheus.Collector. It reads the circuits from the
// store and takes at most Config.ScrapeTimeout, whatever the store does. The
// states come first: what they show to be gone is not counted any more.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.collectStates(ch)
	m.collectOutage(ch)
	m.collectViews(ch)
	for _, each := range m.collectors() {
		each.Collect(ch)
	}
}

func (m *Metrics) collectStates(ch chan<- prometheus.Metric) {
	reading, ok := m.reader.Read()
	if !ok {
		return
	}
	for _, s := range reading.Snapshots {
		label, own := m.labels.Label(s.Key)
		if !own {
			continue
		}
		for state := breaker.StateClosed; state <= breaker.StateHalfOpen; state++ {
			ch <- gauge(m.state, s.State == state, label, state.String())
		}
		ch <- gauge(m.override, s.Override != nil, label)
	}
	if reading.Complete || reading.Listed > 0 {
		ch <- prometheus.MustNewConstMetric(m.circuits, prometheus.GaugeValue, float64(reading.Listed))
	}
	ch <- gauge(m.complete, reading.Complete)
}

func (m *Metrics) collectOutage(ch chan<- prometheus.Metric) {
	down, total := m.downtime.Read()
	ch <- gauge(m.degraded, down)
	ch <- prometheus.MustNewConstMetric(m.downTime, prometheus.CounterValue, total.Seconds())
}

func (m *Metrics) collectViews(ch chan<- prometheus.Metric) {
	v := m.reader.Views()
	ch <- prometheus.MustNewConstMetric(m.views, prometheus.GaugeValue, float64(v.Circuits))
	ch <- prometheus.MustNewConstMetric(m.staleness, prometheus.GaugeValue, v.Staleness.Seconds())
	ch <- gauge(m.listening, v.Listening)
}

func gauge(desc *prometheus.Desc, is bool, labels ...string) prometheus.Metric {
	value := 0.0
	if is {
		value = 1
	}
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

// choose drops what the store knows no more, and returns the circuits to read:
// those with a label of their own.
func (m *Metrics) choose(listed map[string]struct{}, complete bool) (keys []string) {
	if complete {
		m.labels.Drop(func(key string) bool { _, there := listed[key]; return !there }, m.remove)
	}
	for key := range listed {
		if _, own := m.labels.Label(key); own {
			keys = append(keys, key)
		}
	}
	if len(listed) == 0 && !complete { // a store that can't list
		keys = m.labels.Keys()
	}
	return keys
}

// remove deletes all series of a label.
func (m *Metrics) remove(label string) {
	gone := prometheus.Labels{"key": label}
	m.calls.DeletePartialMatch(gone)
	m.rejections.DeletePartialMatch(gone)
	m.transitions.DeletePartialMatch(gone)
	m.duration.DeletePartialMatch(gone)
}
