// Package grafana has no code. Its folder has a dashboard for Grafana and alert rules for
// Prometheus (docs/monitoring.md), and the tests that check them.
package grafana
