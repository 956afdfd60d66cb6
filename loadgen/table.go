package loadgen

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/loadgen/tabular"
)

// unknown is shown if the manager could not be asked.
const unknown = "–"

// columns are the columns of the table, the most important first.
var columns = slices.Concat([]tabular.Column{{Name: "function", Left: true}}, OutcomeColumns, []tabular.Column{
	{Name: "p99 ms"}, {Name: "SLO ms"}, {Name: "% in time"}, {Name: "p50 ms"}, {Name: "p99.9 ms"}, {Name: "goodput /s"}, {Name: "batch"}, {Name: "share"}, {Name: "swaps"},
})

// WriteTable writes the report for people: a table, then remarks on what the
// numbers do not show. The table has the columns that fit in width (0 for
// tabular's default of 80).
func (r *Report) WriteTable(w io.Writer, width int) error {
	var rows [][]string
	for i := range r.Functions {
		f := &r.Functions[i]
		outcomes := f.Outcomes()
		rows = append(rows, slices.Concat([]string{f.Name}, outcomes.Cells(), []string{
			f.latency(f.P99Millis), number(f.SLOMillis), fixed(f.WithinSLO, 2), f.latency(f.P50Millis), f.latency(f.P999Millis),
			fixed(f.GoodputRPS, 1), fixed(f.MeanBatch, 2), f.shares(), orUnknown(f.Swaps),
		}))
	}
	lines := []string{tabular.RenderOne(width, columns, rows)}
	for i := range r.Functions {
		lines = append(lines, r.Functions[i].remarks()...)
	}
	if r.Interrupted {
		lines = append(lines, fmt.Sprintf("interrupted after %.1f s", r.Seconds))
	}
	if _, err := fmt.Fprintln(w, strings.Join(lines, "\n")); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// latency formats a latency; it is unknown if there was no ok answer.
func (f *FunctionReport) latency(millis float64) string {
	if f.OK == 0 {
		return unknown
	}
	return fixed(millis, 2)
}

// shares formats the share at the beginning and at the end.
func (f *FunctionReport) shares() string {
	if f.SharePercent == nil {
		return unknown
	}
	last := fixed(*f.SharePercent, 1) + " %"
	if f.FirstSharePercent != nil && fixed(*f.FirstSharePercent, 1)+" %" != last {
		return fixed(*f.FirstSharePercent, 1) + " → " + last
	}
	return last
}

// idle formats how long work waited while shadows took over.
func (f *FunctionReport) idle() string {
	if f.SwapIdle.Count == 1 {
		return fixed(f.SwapIdle.Last, 0) + " µs"
	}
	return fmt.Sprintf("%s µs (p50), %s µs (max)", fixed(f.SwapIdle.P50, 0), fixed(f.SwapIdle.Max, 0))
}

// remarks returns lines about everything abnormal, and about the check of the
// answers.
func (f *FunctionReport) remarks() []string {
	var remarks []string
	add := func(format string, args ...any) {
		remarks = append(remarks, f.Name+": "+fmt.Sprintf(format, args...))
	}
	if f.SwapIdle != nil && f.SwapIdle.Count > 0 {
		add("work waited %s for a swap", f.idle())
	}
	if f.GaveUp != "" {
		add("the client gave up (%d before sending): %s", f.Unsent, f.GaveUp)
	}
	if f.KernelDrops != nil && *f.KernelDrops > 0 {
		add("the kernel dropped %d datagrams", *f.KernelDrops)
	}
	if f.SendLagP99Millis > f.SLOMillis/10 {
		add("the load generator ran %s ms behind schedule (p99); latencies include it", fixed(f.SendLagP99Millis, 2))
	}
	if f.Checked > 0 {
		add("checked %d answers (with warm-up) in this process, %d differ", f.Checked, f.Wrong)
	}
	for _, difference := range f.Differences {
		add("  %s", difference)
	}
	return remarks
}

func fixed(v float64, decimals int) string { return strconv.FormatFloat(v, 'f', decimals, 64) }

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func count(v uint64) string { return strconv.FormatUint(v, 10) }

func orUnknown(v *uint64) string {
	if v == nil {
		return unknown
	}
	return count(*v)
}
