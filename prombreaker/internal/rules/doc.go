// Package rules tests docs/alerts.yaml and docs/grafana-dashboard.json with
// Prometheus' own parsers and engine. It is a module of its own, so that no
// user of prombreaker has Prometheus among its dependencies.
package rules
