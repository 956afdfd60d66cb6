package observe

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/dpdk/frame"
	"github.com/penstock/penstock/internal/testing/keydoc"
	"github.com/penstock/penstock/wire"
)

// metricRow is a metric as docs/metrics.md shows it.
type metricRow struct{ name, kind, help, labels string }

// descPattern reads a descriptor's only exported form.
var descPattern = regexp.MustCompile(`fqName: "(\w+)", help: "(.*)", unit: "", constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

func rowOf(t *testing.T, d *prometheus.Desc, histogram bool) metricRow {
	t.Helper()

	found := descPattern.FindStringSubmatch(d.String())
	if found == nil {
		t.Fatalf("cannot read %s", d)
	}
	kind := "gauge"
	switch {
	case histogram:
		kind = "histogram"
	case strings.HasSuffix(found[1], "_total"):
		kind = "counter"
	}
	return metricRow{name: found[1], kind: kind, help: strings.ReplaceAll(found[2], `\"`, `"`), labels: found[3]}
}

// metricRows returns all metrics of a node but those of the Go runtime and the process, by name.
func metricRows(t *testing.T) []metricRow {
	t.Helper()

	var rows []metricRow
	for _, d := range described {
		rows = append(rows, rowOf(t, d, false))
	}
	x := New(nil)
	for _, h := range []*prometheus.HistogramVec{x.request, x.stage, x.batch, x.swapIdle} {
		descriptors := make(chan *prometheus.Desc, 1)
		h.Describe(descriptors)
		rows = append(rows, rowOf(t, <-descriptors, true))
	}
	slices.SortFunc(rows, func(a, b metricRow) int { return cmp.Compare(a.name, b.name) })
	return rows
}

// words returns the values of a label.
func words[T fmt.Stringer](from, to int, value func(int) T) []string {
	var names []string
	for i := from; i < to; i++ {
		names = append(names, value(i).String())
	}
	return names
}

func TestMetricsPage(t *testing.T) {
	const page = "../../docs/metrics.md"

	var metrics strings.Builder
	metrics.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, r := range metricRows(t) {
		labels := ""
		if r.labels != "" {
			labels = "`" + strings.ReplaceAll(r.labels, ",", "`, `") + "`"
		}
		fmt.Fprintf(&metrics, "| `%s` | %s | %s | %s |\n", r.name, r.kind, labels, r.help)
	}

	drops := slices.Concat([]string{"kernel", "truncated"},
		words(int(wire.ReasonNone)+1, int(wire.NumReasons), func(i int) wire.Reason { return wire.Reason(i) }),
		words(0, len(aggregate.Stats{}.Dropped), func(i int) aggregate.Drop { return aggregate.Drop(i) }))
	var labels strings.Builder
	labels.WriteString("| label | of | values |\n|---|---|---|\n")
	for _, row := range []struct {
		label, of string
		values    []string
	}{
		{"result", "penstock_results_total", words(0, wire.NumStatuses, func(i int) wire.Status { return wire.Status(i) })},
		{"stage", "penstock_stage_seconds", stageNames[:]},
		{"reason", "penstock_source_drops_total", drops},
		{"reason", "penstock_port_frames_total", words(0, int(frame.Reasons), func(i int) frame.Reason { return frame.Reason(i) })},
		{"mechanism", "penstock_swap_idle_seconds", []string{string(configs.ChangeShadow), string(configs.ChangePartition), string(configs.ChangeRestart)}},
	} {
		fmt.Fprintf(&labels, "| `%s` | `%s` | %s |\n", row.label, row.of, strings.Join(row.values, ", "))
	}

	// Both sections are of one page, so the second is compared after the first is written.
	keydoc.Golden(t, page, keydoc.Section(t, page, "metrics", metrics.String()))
	keydoc.Golden(t, page, keydoc.Section(t, page, "labels", labels.String()))
}
