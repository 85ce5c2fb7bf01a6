package rules

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/prombreaker"
)

const (
	alertsFile    = "../../../docs/alerts.yaml"
	dashboardFile = "../../../docs/grafana-dashboard.json"
)

var promql = parser.NewParser(parser.Options{})

// exposed returns every metric that the collector exposes, each with the names
// of its labels. Each part of a histogram is a metric.
func exposed(t *testing.T) map[string]map[string]bool {
	t.Helper()
	metrics, err := prombreaker.New(prombreaker.Config{})
	require.NoError(t, err)
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{Observer: metrics})
	require.NoError(t, err)
	metrics.Watch(b)
	require.NoError(t, b.Execute(t.Context(), "k", func(context.Context) error { return nil }))
	require.NoError(t, b.Close())
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(metrics))
	families, err := registry.Gather()
	require.NoError(t, err)
	known := make(map[string]map[string]bool)
	for _, f := range families {
		names := map[string]bool{"job": true, "instance": true} // Prometheus' own
		for _, l := range f.GetMetric()[0].GetLabel() {
			names[l.GetName()] = true
		}
		if f.GetMetric()[0].GetHistogram() == nil {
			known[f.GetName()] = names
			continue
		}
		known[f.GetName()+"_sum"], known[f.GetName()+"_count"] = names, names
		known[f.GetName()+"_bucket"] = map[string]bool{"le": true}
		for name := range names {
			known[f.GetName()+"_bucket"][name] = true
		}
	}
	return known
}

// checkNames asserts that the collector exposes each metric that expr selects,
// with the labels that it matches and groups by. It returns the metrics.
func checkNames(t *testing.T, known map[string]map[string]bool, expr string) (used []string) {
	t.Helper()
	tree, err := promql.ParseExpr(expr)
	require.NoError(t, err, expr)
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if ok {
			used = append(used, selector.Name)
			if assert.Contains(t, known, selector.Name, expr) {
				for _, m := range selector.LabelMatchers {
					if m.Name != model.MetricNameLabel {
						assert.Contains(t, known[selector.Name], m.Name, expr)
					}
				}
			}
		}
		return nil
	})
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		if aggregate, ok := node.(*parser.AggregateExpr); ok {
			for _, name := range aggregate.Grouping {
				for _, metric := range metricsOf(aggregate) {
					assert.Contains(t, known[metric], name, expr)
				}
			}
		}
		return nil
	})
	return used
}

func metricsOf(node parser.Node) (names []string) {
	parser.Inspect(node, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			names = append(names, selector.Name)
		}
		return nil
	})
	return names
}

func alerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(alertsFile, false, model.UTF8Validation, promql, slog.Default())
	require.Empty(t, errs)
	byName := make(map[string]rulefmt.Rule)
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			require.NotContains(t, byName, r.Alert)
			byName[r.Alert] = r
		}
	}
	return byName
}

func TestTheAlertsParseAndUseOnlyMetricsThereAre(t *testing.T) {
	known := exposed(t)
	rules := alerts(t)
	require.NotEmpty(t, rules)
	for name, r := range rules {
		assert.NotEmpty(t, checkNames(t, known, r.Expr), name)
		assert.NotEmpty(t, r.Annotations["summary"], name)
		assert.Contains(t, []string{"info", "warning", "critical"}, r.Labels["severity"], name)
	}
}

func TestTheDashboardParsesAndUsesOnlyMetricsThereAre(t *testing.T) {
	text, err := os.ReadFile(dashboardFile)
	require.NoError(t, err)
	var dashboard struct {
		UID        string
		Title      string
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, RefID string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	known := exposed(t)
	shown, ids := make(map[string]bool), make(map[int]bool)
	for _, p := range dashboard.Panels {
		assert.False(t, ids[p.ID], "panel %d is there twice", p.ID)
		ids[p.ID] = true
		assert.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$key", ".*").Replace(target.Expr)
			assert.NotContains(t, expr, "$", "a variable that the dashboard does not have")
			for _, name := range checkNames(t, known, expr) {
				shown[name] = true
			}
		}
	}
	for name := range known {
		base := strings.TrimSuffix(strings.TrimSuffix(name, "_sum"), "_count")
		if base != name && known[base+"_bucket"] != nil {
			continue // the buckets are shown
		}
		if name == "breaker_store_degradations_total" {
			continue // the time is shown; an alert has the count
		}
		assert.True(t, shown[name], "no panel shows %s", name)
	}
}

// fires evaluates a rule each minute over series in promtool's notation, from
// 0 to the last minute, and returns the minutes at which it fires, and for
// what.
func fires(t *testing.T, rule rulefmt.Rule, series string, last int) (minutes []int, with labels.Labels) {
	t.Helper()
	storage := promqltest.LoadedStorage(t, "load 1m\n"+series)
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 1_000_000)
	expr, err := promql.ParseExpr(rule.Expr)
	require.NoError(t, err)
	alert := rules.NewAlertingRule(rule.Alert, expr, time.Duration(rule.For), 0,
		labels.FromMap(rule.Labels), labels.FromMap(rule.Annotations), labels.EmptyLabels(), "", true, slog.New(slog.DiscardHandler))
	for minute := range last + 1 {
		at := time.Unix(0, 0).Add(time.Duration(minute) * time.Minute)
		_, err := alert.Eval(t.Context(), 0, at, rules.EngineQueryFunc(engine, storage), nil, 0)
		require.NoError(t, err)
		for _, a := range alert.ActiveAlerts() {
			if a.State == rules.StateFiring {
				minutes, with = append(minutes, minute), a.Labels
			}
		}
	}
	return minutes, with
}

func TestTheAlertsFireWhenTheyShould(t *testing.T) {
	all := alerts(t)
	fired := make(map[string]bool)
	for _, c := range []struct {
		name, alert, series string
		last, first         int // first: the minute it begins to fire; -1: never
		label, value        string
	}{
		{"closed", "BreakerCircuitNotClosed",
			`  breaker_circuit_state{key="k",state="closed"} 1x30`, 30, -1, "", ""},
		{"open, probed in vain each minute", "BreakerCircuitNotClosed",
			`  breaker_circuit_state{key="k",state="closed"} 1 1 0x30
			breaker_circuit_state{key="k",state="half-open"} 0 0 0 1 0 1 0 1 0 1 0 1 0`, 12, 7, "key", "k"},
		{"open for four minutes", "BreakerCircuitNotClosed",
			`  breaker_circuit_state{key="k",state="closed"} 1 1 0 0 0 0 1x30`, 30, -1, "", ""},
		{"opened five times", "BreakerCircuitOpensAgainAndAgain",
			`  breaker_transitions_total{key="k",to="open",instance="a"} 0 0 1 1 2 2 2x30
			breaker_transitions_total{key="k",to="open",instance="b"} 0 0 0 1 2 3 3x30`, 20, 5, "key", "k"},
		{"opened once", "BreakerCircuitOpensAgainAndAgain",
			`  breaker_transitions_total{key="k",to="open"} 0 0 1x30`, 20, -1, "", ""},
		{"a third fails", "BreakerCallsFailing",
			`  breaker_calls_total{key="k",outcome="failure"} 0+30x40
			breaker_calls_total{key="k",outcome="success"} 0+60x40`, 40, 11, "key", "k"},
		{"one in a hundred fails", "BreakerCallsFailing",
			`  breaker_calls_total{key="k",outcome="failure"} 0+1x40
			breaker_calls_total{key="k",outcome="success"} 0+100x40`, 40, -1, "", ""},
		{"all fail of hardly any", "BreakerCallsFailing",
			`  breaker_calls_total{key="k",outcome="failure"} 0+1x40
			breaker_calls_total{key="k",outcome="success"} 0x40`, 40, -1, "", ""},
		{"held for a day", "BreakerOverrideForgotten",
			`  breaker_circuit_override{key="k"} 1x1500`, 1500, 1440, "key", "k"},
		{"held for an hour", "BreakerOverrideForgotten",
			`  breaker_circuit_override{key="k"} 1x60 0x1500`, 1500, -1, "", ""},
		{"no store", "BreakerStoreDegraded",
			`  breaker_store_degraded{instance="a"} 0 1x10
			breaker_store_degraded{instance="b"} 0x10`, 10, 2, "instance", "a"},
		{"no store for a moment", "BreakerStoreDegraded",
			`  breaker_store_degraded{instance="a"} 0 1 0x10`, 10, -1, "", ""},
		{"store in and out", "BreakerStoreUnsteady",
			`  breaker_store_degradations_total{instance="a"} 0+1x60`, 60, 6, "instance", "a"},
		{"store out once", "BreakerStoreUnsteady",
			`  breaker_store_degradations_total{instance="a"} 0 1x60`, 60, -1, "", ""},
		{"scrapes incomplete", "BreakerScrapeIncomplete",
			`  breaker_scrape_complete{instance="a"} 0x30`, 30, 10, "instance", "a"},
		{"one scrape incomplete", "BreakerScrapeIncomplete",
			`  breaker_scrape_complete{instance="a"} 1 0 1x30`, 30, -1, "", ""},
		{"too many keys", "BreakerKeysWithoutSeries",
			`  breaker_calls_total{key="other",outcome="success",job="web"} 0+5x120`, 120, 61, "job", "web"},
		{"few keys", "BreakerKeysWithoutSeries",
			`  breaker_calls_total{key="other",outcome="success",job="web"} 0x120`, 120, -1, "", ""},
	} {
		t.Run(c.alert+": "+c.name, func(t *testing.T) {
			minutes, with := fires(t, all[c.alert], c.series, c.last)
			if c.first < 0 {
				assert.Empty(t, minutes)
				return
			}
			fired[c.alert] = true
			require.NotEmpty(t, minutes)
			assert.Equal(t, c.first, minutes[0])
			assert.Equal(t, c.value, with.Get(c.label))
		})
	}
	for name := range all {
		assert.True(t, fired[name], "no series make %s fire", name)
	}
}
