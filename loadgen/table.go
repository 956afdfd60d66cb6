package loadgen

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// unknown stands where nobody could be asked.
const unknown = "–"

// WriteTable writes the report for people: a table, then what the numbers do not
// tell by themselves.
func (r *Report) WriteTable(w io.Writer) error {
	t := table.NewWriter()
	t.SetStyle(table.StyleRounded)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"function", "SLO ms", "sent", "answered", "within SLO", "p50 ms", "p99 ms", "p99.9 ms", "goodput /s", "batch", "share", "swaps", "idle µs", "lost", "accuracy", "in process"})
	var right []table.ColumnConfig
	for column := 2; column <= 16; column++ {
		right = append(right, table.ColumnConfig{Number: column, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(right)
	for i := range r.Functions {
		f := &r.Functions[i]
		t.AppendRow(table.Row{
			f.Name, number(f.SLOMillis), f.Sent, f.Answered, fixed(f.WithinSLO, 2) + " %",
			f.latency(f.P50Millis), f.latency(f.P99Millis), f.latency(f.P999Millis), fixed(f.GoodputRPS, 1),
			fixed(f.MeanBatch, 2), f.shares(), orUnknown(f.Swaps), f.idle(), orUnknown(f.Lost),
			percentOrEmpty(f.Accuracy), percentOrEmpty(f.ReferenceAccuracy),
		})
	}
	lines := []string{t.Render()}
	for i := range r.Functions {
		lines = append(lines, r.Functions[i].remarks()...)
	}
	if n := len(r.Requirements); n > 0 {
		lines = append(lines, fmt.Sprintf("%d of %d requirements met", n-len(r.Missed()), n))
	}
	if r.Interrupted {
		lines = append(lines, fmt.Sprintf("interrupted after %.1f s", r.Seconds))
	}
	if _, err := fmt.Fprintln(w, strings.Join(lines, "\n")); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// latency is unknown when nothing was answered ok.
func (f *FunctionReport) latency(millis float64) string {
	if f.OK == 0 {
		return unknown
	}
	return fixed(millis, 2)
}

// shares is the share at the beginning and at the end.
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

// idle is the median and the longest time that the ring stood still for a swap
// with work waiting.
func (f *FunctionReport) idle() string {
	if f.SwapIdle == nil || f.SwapIdle.Count == 0 {
		return unknown
	}
	if f.SwapIdle.Count == 1 {
		return fixed(f.SwapIdle.Last, 0)
	}
	return fmt.Sprintf("%s, max %s", fixed(f.SwapIdle.P50, 0), fixed(f.SwapIdle.Max, 0))
}

func percentOrEmpty(v *float64) string {
	if v == nil {
		return ""
	}
	return fixed(*v, 2) + " %"
}

// remarks are lines for what is not as it should be, and for the answers'
// check.
func (f *FunctionReport) remarks() []string {
	var remarks []string
	add := func(format string, args ...any) {
		remarks = append(remarks, f.Name+": "+fmt.Sprintf(format, args...))
	}
	var others []string
	for _, other := range []struct {
		name  string
		count uint64
	}{
		{"late", f.Late}, {"incomplete", f.Incomplete}, {"busy", f.Busy}, {"refused", f.Refused}, {"failed", f.Failed}, {"unanswered", f.Unanswered},
	} {
		if other.count > 0 {
			others = append(others, fmt.Sprintf("%d %s", other.count, other.name))
		}
	}
	if len(others) > 0 {
		add("%d ok, %s", f.OK, strings.Join(others, ", "))
	}
	if f.Accuracy != nil {
		add("the accuracy is of %d labelled pictures", f.Labelled)
	}
	if f.GaveUp != "" {
		add("the client gave up (%d before sending): %s", f.Unsent, f.GaveUp)
	}
	if f.KernelDrops != nil && *f.KernelDrops > 0 {
		add("the kernel dropped %d datagrams", *f.KernelDrops)
	}
	if f.SendLagP99Millis > f.SLOMillis/10 {
		add("this program was late to send, by %s ms at p99: the latencies hold that", fixed(f.SendLagP99Millis, 2))
	}
	if f.Checked > 0 {
		add("%d answers compared with the same model run in process, %d differ", f.Checked, f.Wrong)
	}
	for _, difference := range f.Differences {
		add("  %s", difference)
	}
	return remarks
}

// WriteCSV writes the report's numbers, a line a function, under a heading.
func (r *Report) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	header := []string{
		"name", "slo_ms", "sent", "answered", "ok", "late", "incomplete", "busy", "refused", "failed", "unanswered",
		"within_slo", "goodput_rps", "p50_ms", "p99_ms", "p999_ms", "mean_batch", "share", "swaps", "lost", "accuracy",
		"checked", "wrong", "offered_rps", "unsent", "send_lag_p99_ms",
	}
	// The writer keeps its first error for Error.
	_ = out.Write(header)
	for _, f := range r.Functions {
		_ = out.Write([]string{
			f.Name, number(f.SLOMillis), count(f.Sent), count(f.Answered), count(f.OK), count(f.Late), count(f.Incomplete),
			count(f.Busy), count(f.Refused), count(f.Failed), count(f.Unanswered), number(f.WithinSLO), number(f.GoodputRPS),
			number(f.P50Millis), number(f.P99Millis), number(f.P999Millis), number(f.MeanBatch), numberOrNone(f.SharePercent),
			countOrNone(f.Swaps), countOrNone(f.Lost), numberOrNone(f.Accuracy), count(f.Checked), count(f.Wrong),
			number(f.OfferedRPS), count(f.Unsent), number(f.SendLagP99Millis),
		})
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
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

func countOrNone(v *uint64) string {
	if v == nil {
		return ""
	}
	return count(*v)
}

func numberOrNone(v *float64) string {
	if v == nil {
		return ""
	}
	return number(*v)
}
