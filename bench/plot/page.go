package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock/penstock/bench"
	"github.com/penstock/penstock/bench/planner"
)

// page is what becomes of the reports in a folder.
type page struct {
	figures  []figure
	sections []section
	inside   bool // its text is README.md in the folder, not FOLDER.md beside it
}

// file is where the page of a folder stands, and links what its links to the folder begin
// with.
func (p page) file(dir string) (file, links string) {
	if p.inside {
		return filepath.Join(dir, "README.md"), ""
	}
	return strings.TrimRight(dir, "/") + ".md", filepath.Base(dir) + "/"
}

// figure draws one report.
type figure struct {
	name string
	draw func(dir string) error
}

// section is a part of a page that a report fills.
type section struct {
	name    string
	table   func(dir string) (string, error)
	figures []string // in the folder, without .png; they are shown above the table
}

// pages are those there are, by the folder's name.
var pages = map[string]page{
	"h200": {
		[]figure{{"gather", drawGather}, {"overhead", drawOverhead}, {"swap", drawMoves}, {"limit", drawLimit}, {"fault", drawFault}},
		[]section{
			{"machine", machineTable, nil},
			{"gather", gatherTable, []string{"gather", "gather-types"}},
			{"overhead", overheadTable, []string{"overhead-throughput"}},
			{"latency", latencyTable, []string{"overhead-latency"}},
			{"swap", movesTable, []string{"swap-idle", "swap-latency"}},
			{"limit", limitTable, []string{"limit"}},
			{"fault", faultTable, []string{"fault"}},
		},
		false,
	},
	"evaluation": {append(slices.Clone(evaluationFigures), figure{weightsReport, drawWeights}), evaluationSections, true},
	"ingest": {
		[]figure{{"ingest", drawIngest}},
		[]section{
			{"machine", ingestMachineTable, nil},
			{"one-core", oneCoreTable, []string{"one-core"}},
			{"ports", portsTable, []string{"ports"}},
			{"node", nodeTable, []string{"node"}},
			{"soak", soakTable, nil},
		},
		false,
	},
	"planner": {
		[]figure{{"planner", drawPlanner}},
		[]section{
			{"machine", plannerMachineTable, nil},
			{"paper", paperTable, nil},
			{"compared", comparedTable, nil},
			{"delay", delayTable, []string{"delay"}},
			{"services", grownTable(planner.GrowServices), []string{"services-gpus", "services-delay"}},
			{"rates", grownTable(planner.GrowRates), []string{"rates-saved", "rates-gpus"}},
			{"missing", missingTable, nil},
		},
		false,
	},
}

// fill writes the tables of the reports in dir into its page, each between its two marks, which the page has, so that no number on it was copied by a hand:
//
//	<!-- begin overhead -->
//	<!-- end overhead -->
func fill(dir string, p page) error {
	page, links := p.file(dir)
	text, err := os.ReadFile(page)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	filled := string(text)
	for _, section := range p.sections {
		table, err := section.table(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			table, err = "Not measured yet.\n", nil
		case err == nil && len(section.figures) > 0:
			var shown strings.Builder
			for _, f := range section.figures {
				if _, err := os.Stat(filepath.Join(dir, f+".png")); err != nil {
					continue // nothing was measured of it yet
				}
				fmt.Fprintf(&shown, "![%s](%s%s.png)\n", f, links, f)
			}
			table = shown.String() + "\n" + table
		}
		if err != nil {
			return fmt.Errorf("table %s: %w", section.name, err)
		}
		if filled, err = between(filled, section.name, table); err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
	}
	if filled == string(text) {
		return nil
	}
	fmt.Println(page)
	return os.WriteFile(page, []byte(filled), 0o644)
}

// between replaces what stands between the marks of that name.
func between(text, name, with string) (string, error) {
	begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
	before, rest, found := strings.Cut(text, begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", fmt.Errorf("has no %q and %q", strings.TrimSpace(begin), end)
	}
	return before + begin + "\n" + with + "\n" + end + after, nil
}

// rows writes a table in Markdown; the first row is its head.
func rows(list ...[]string) string {
	var b strings.Builder
	for i, r := range list {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r, " | "))
		if i == 0 {
			fmt.Fprintf(&b, "|%s\n", strings.Repeat("---|", len(r)))
		}
	}
	return b.String()
}

// met says whether a target was reached.
func met(yes bool) string {
	if yes {
		return "yes"
	}
	return "**no**"
}

// machineTable names where each report was measured.
func machineTable(dir string) (string, error) {
	type report struct {
		Machine bench.Machine `json:"machine"`
	}
	list := [][]string{{"report", "date", "GPU", "driver, CUDA, ONNX Runtime", "CPU", "kernel", "Penstock, Go"}}
	for _, name := range []string{"gather", "overhead", "swap-shadow", "swap-partition", "limit", "fault"} {
		r, err := read[report](dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		m := r.Machine
		gpu := ""
		if len(m.GPUs) > 0 {
			gpu = fmt.Sprintf("%s, %d GB", m.GPUs[0].Name, m.GPUs[0].MemoryBytes/1e9)
		}
		list = append(list, []string{"[" + name + "](h200/" + name + ".json)", m.Date, gpu, m.Driver + ", " + m.CUDA + ", " + m.ONNXRuntime, fmt.Sprintf("%s, %d cores", m.CPU, m.CPUs), m.Kernel, m.Penstock + ", " + m.Go})
	}
	if len(list) == 1 {
		return "", fs.ErrNotExist
	}
	return rows(list...), nil
}

func gatherTable(dir string) (string, error) {
	r, err := read[bench.Gather](dir, "gather")
	if err != nil {
		return "", err
	}
	list := [][]string{{"packets", "tensor", "pictures", "payloads", "gather", "contiguous copy", "ratio", "≥ 0.80 at 32", "CPU, one copy", "a copy a packet"}}
	for _, c := range r.Cases {
		tensor := c.Tensor
		if c.Normalised {
			tensor += ", normalised"
		}
		reached := ""
		if c.Pictures == 32 {
			reached = met(c.Ratio >= 0.80)
		}
		list = append(list, []string{c.Wire, tensor, fmt.Sprint(c.Pictures), c.Alignment, fmt.Sprintf("%.1f GB/s", c.GigabytesPerSecond), fmt.Sprintf("%.1f GB/s", c.CopyGBPerSecond),
			fmt.Sprintf("%.2f", c.Ratio), reached, fmt.Sprintf("%.1f GB/s", c.CPUCopyGBPerSecond), fmt.Sprintf("%.2f GB/s", c.PieceCopyGBPerSecond)})
	}
	return rows(list...), nil
}

func overheadTable(dir string) (string, error) {
	r, err := read[bench.Overhead](dir, "overhead")
	if err != nil {
		return "", err
	}
	list := [][]string{{"model", "batch", "bare", "bare, two in flight", "busy_poll", "ports", "Penstock", "ratio", "ratio, two in flight", "≥ 0.95", "mean batch", "limited by"}}
	for _, c := range r.Cases {
		for _, w := range c.Ways {
			for _, t := range w.Throughput {
				list = append(list, []string{c.Model, fmt.Sprint(c.Batch), number(c.BareImagesPerSecond) + "/s", number(c.BareOverlappedImagesPerSecond) + "/s", fmt.Sprintf("%g ms", w.BusyPollMillis), fmt.Sprint(t.Ports),
					number(t.ImagesPerSecond) + "/s", fmt.Sprintf("%.3f", t.Ratio), fmt.Sprintf("%.3f", t.RatioOverlapped), met(t.Ratio >= bench.Enough), fmt.Sprintf("%.1f", t.MeanBatch), t.Limit})
			}
		}
	}
	return rows(list...), nil
}

// measured reports whether enough volleys rode in one batch for their percentiles to be
// anything.
func measured(l bench.LatencyCase) bool { return l.Whole > 0 && l.Whole >= l.Volleys/2 }

func latencyTable(dir string) (string, error) {
	r, err := read[bench.Overhead](dir, "overhead")
	if err != nil {
		return "", err
	}
	both := func(m bench.Micros) string { return fmt.Sprintf("%.0f / %.0f", m.P50, m.P99) }
	list := [][]string{{"model", "batch", "bare batch", "busy_poll", "added", "p50 ≤ 100", "added, with the gather", "queue", "gather", "infer", "reply", "batches"}}
	for _, c := range r.Cases {
		for _, w := range c.Ways {
			l := w.Latency
			row := []string{c.Model, fmt.Sprint(c.Batch), both(c.BareBatch), fmt.Sprintf("%g ms", w.BusyPollMillis), "", "", "", "", "", "", "", fmt.Sprintf("%d of %d", l.Whole, l.Volleys)}
			if measured(l) {
				copy(row[4:], []string{both(l.Added), met(l.Added.P50 <= mostAddedMicros), both(l.AddedWithGather), both(l.Queue), both(l.Gather), both(l.Infer), both(l.Reply)})
			}
			list = append(list, row)
		}
	}
	return fmt.Sprintf("A bare futex wake of one process by another took %s in the same run.\n\n", both(r.Floor)) + rows(list...), nil
}

func movesTable(dir string) (string, error) {
	list := [][]string{{"how", "model", "changes", "idle p50 / p99 / max", "target p99", "met", "lost", "p99 of a steady second", "p99 of the second around: median / worst", "order → served p50"}}
	restarted := false
	for _, name := range []string{"swap-partition", "swap-shadow"} {
		r, err := read[bench.Moves](dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		add := func(m bench.MovesCase, most float64) {
			goal, reached := "", ""
			if most > 0 {
				goal, reached = fmt.Sprintf("%.0f µs", most), met(m.Idle.P99 <= most)
			}
			list = append(list, []string{m.How, fmt.Sprintf("%s, batch %d", r.Model, r.Batch), fmt.Sprint(m.Moves),
				fmt.Sprintf("%s / %s / %s", span(m.Idle.P50*1e3), span(m.Idle.P99*1e3), span(m.Idle.Max*1e3)), goal, reached, fmt.Sprint(m.Lost),
				span(m.SteadyP99.P50 * 1e6), fmt.Sprintf("%s / %s", span(m.AroundP99.P50*1e6), span(m.AroundP99.Max*1e6)), span(m.Takes.P50 * 1e6)})
		}
		add(r.Change, map[string]float64{"partition": mostPartition, "shadow": mostShadowMicros}[r.Change.How])
		if r.Restart != nil && !restarted {
			restarted = true
			add(*r.Restart, 0)
		}
	}
	if len(list) == 1 {
		return "", fs.ErrNotExist
	}
	slices.SortStableFunc(list[1:], func(a, b []string) int { return order(a[0]) - order(b[0]) })
	return rows(list...), nil
}

func limitTable(dir string) (string, error) {
	r, err := read[bench.Limit](dir, "limit")
	if err != nil {
		return "", err
	}
	list := [][]string{{"by", "share", "multiprocessors", "alone", "of the whole device's", "beside " + r.Aggressor, "kept", "p99 alone", "p99 beside"}}
	for _, s := range r.Series {
		name := "MPS percentage"
		if s.Change == "partition" {
			name = "SM groups"
		}
		whole := 0.0
		for _, p := range s.Points {
			whole = max(whole, p.Alone.ImagesPerSecond)
		}
		for _, p := range s.Points {
			row := []string{name, fmt.Sprintf("%.0f %%", p.Percent), fmt.Sprint(multiprocessors(&r, &s, &p)), number(p.Alone.ImagesPerSecond) + "/s", fmt.Sprintf("%.0f %%", 100*p.Alone.ImagesPerSecond/whole), "", "", span(p.Alone.Latency.P99 * 1e3), ""}
			if p.Beside != nil {
				row[5] = number(p.Beside.ImagesPerSecond) + "/s"
				row[6] = fmt.Sprintf("%.0f %%", 100*p.Beside.ImagesPerSecond/p.Alone.ImagesPerSecond)
				row[8] = span(p.Beside.Latency.P99 * 1e3)
			}
			list = append(list, row)
		}
	}
	return rows(list...), nil
}

func faultTable(dir string) (string, error) {
	r, err := read[bench.Fault](dir, "fault")
	if err != nil {
		return "", err
	}
	list := [][]string{{"silent", "p50 / max of " + fmt.Sprint(len(r.Faults)) + " faults", "≤ 1.5 s"}}
	for _, name := range r.Functions {
		s := silenceOf(&r, name)
		list = append(list, []string{name, fmt.Sprintf("%.0f / %.0f ms", median(s), slices.Max(s)), met(slices.Max(s) <= mostSilenceMillis)})
	}
	list = append(list, []string{"as the node says, until everybody answers", fmt.Sprintf("%.0f / %.0f ms", r.Node.P50, r.Node.Max), ""})
	return rows(list...) + "\n" + rows(
		[]string{"requests", "ok", "failed", "late or busy", "without an answer", "never sent, for want of credit", "lost"},
		[]string{number(float64(r.Requests)), number(float64(r.Answers.OK)), number(float64(r.Answers.Failed)), number(float64(r.Answers.Late + r.Answers.Busy)),
			fmt.Sprint(r.Answers.Unanswered), number(float64(r.Answers.Unsent)), fmt.Sprint(r.Lost)},
	), nil
}
