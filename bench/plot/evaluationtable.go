package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/penstock/penstock/bench"
	"github.com/penstock/penstock/bench/evaluate"
)

func milli(v float64) string  { return short(v) + " ms" }
func rate(v float64) string   { return number(v) + "/s" }
func tenths(v float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") }

// state says how much of a report there is.
func (e *evaluation) state() string {
	failed := 0
	var runs []float64 // of each variant on each case
	for _, c := range e.Cases {
		for _, v := range c.Variants {
			count, _ := e.failed(c.Name, v)
			failed += count
			runs = append(runs, float64(len(e.results(c.Name, v))))
		}
	}
	s := spreadOf(runs)
	text := fmt.Sprintf("%.0f runs of each", s.least)
	if s.least != s.most {
		text = fmt.Sprintf("%.0f to %.0f runs of each", s.least, s.most)
	}
	text += fmt.Sprintf(", seed %d", e.Seed)
	if left := e.Left - failed; left > 0 {
		text += fmt.Sprintf("; **%d measurements are still to be made**", left)
	}
	if failed > 0 {
		text += fmt.Sprintf("; **%d failed**", failed)
	}
	return text
}

// versions are those of Penstock that measured it. The report names the last alone.
func (e *evaluation) versions() string {
	var all []string
	for _, r := range e.Results {
		if v := cmp.Or(r.Penstock, e.Machine.Penstock); v != "" && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return strings.Join(all, ", ")
}

// evaluationMachineTable names where each report was measured, and how much of it there is.
func evaluationMachineTable(dir string) (string, error) {
	list := [][]string{{"report", "paper", "measured", "GPU", "driver, CUDA, ONNX Runtime", "CPU", "Penstock"}}
	for _, f := range evaluationFigures {
		e, err := readEvaluation(dir, f.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		where := e.Machine
		where.Penstock = e.versions()
		list = append(list, machineRow(f.name, e.Paper, e.Device, e.state(), where))
	}
	row, err := weightsMachine(dir)
	if err != nil {
		return "", err
	}
	if row != nil {
		list = append(list, row)
	}
	if len(list) == 1 {
		return "", fs.ErrNotExist
	}
	return rows(list...), nil
}

// machineRow says where a report was measured.
func machineRow(name, paper, device, state string, m bench.Machine) []string {
	gpu := device
	if len(m.GPUs) > 0 {
		gpu = fmt.Sprintf("%s, %d GB", m.GPUs[0].Name, m.GPUs[0].MemoryBytes/1e9)
	}
	day, _, _ := strings.Cut(m.Date, "T")
	return []string{"[" + name + "](" + name + ".json)", paper, day + ": " + state, gpu, joined(m.Driver, m.CUDA, m.ONNXRuntime), fmt.Sprintf("%s, %d cores", m.CPU, m.CPUs), m.Penstock}
}

// joined is what there is, with commas.
func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

// loadsTable has goodput of every case, load and variant, then latency, then what is to be
// said of Penstock beside each baseline.
func loadsTable(name string) func(dir string) (string, error) {
	return func(dir string) (string, error) {
		e, err := readEvaluation(dir, name)
		if err != nil {
			return "", err
		}
		cases := e.of(evaluate.KindLoads)
		variants := e.measuredVariants(cases)
		head := []string{"", "offered"}
		for _, v := range variants {
			head = append(head, e.label(v))
		}
		goods, lates := [][]string{head}, [][]string{head}
		slow := false
		for _, c := range cases {
			for _, level := range e.levels(c.Name) {
				first := []string{c.Name, ""}
				good, late := slices.Clone(first), slices.Clone(first)
				for _, v := range variants {
					loads := e.loads(c.Name, v, level)
					if len(loads) > 0 && good[1] == "" {
						good[1] = fmt.Sprintf("%.0f %%: %s", 100*level, rate(loads[0].OfferedRPS))
						late[1] = good[1]
					}
					mark := ""
					if behind(loads) {
						mark, slow = " †", true
					}
					if count, _ := e.failed(c.Name, v); len(loads) == 0 && count > 0 {
						good, late = append(good, "failed"), append(late, "failed")
						continue
					}
					good = append(good, spreadBy(loads, goodput).text(number, "")+mark)
					late = append(late, fmt.Sprintf("%s / %s", plainOr(spreadBy(loads, middle).median), spreadBy(loads, tail).text(short, "")))
				}
				goods, lates = append(goods, good), append(lates, late)
			}
		}
		if len(goods) == 1 {
			return "", fs.ErrNotExist
		}
		text := "Goodput, requests answered within the objective a second: median of the runs (least–most).\n\n" + rows(goods...)
		if slow {
			text += "\n† In some of these runs the sender did not keep up; those do not count in the comparison.\n"
		}
		text += "\n<details><summary>Latency of the ok answers, ms: p50 / p99 of the slowest function</summary>\n\n" + rows(lates...) + "\n</details>\n"
		if each := e.byFunction(cases, variants, head); len(each) > 1 {
			text += "\n<details><summary>Goodput of each function</summary>\n\n" + rows(each...) + "\n</details>\n"
		}
		if verdicts := e.verdicts(); len(verdicts) > 0 {
			text += "\n- " + strings.Join(verdicts, "\n- ") + "\n"
		}
		return text, nil
	}
}

// byFunction has a row for each function of the cases that have several.
func (e *evaluation) byFunction(cases []evaluate.CaseSetting, variants, head []string) [][]string {
	list := [][]string{head}
	for _, c := range cases {
		if len(c.Functions) < 2 {
			continue
		}
		for _, level := range e.levels(c.Name) {
			for i, f := range c.Functions {
				row := []string{c.Name + ", " + f.Name, ""}
				for _, v := range variants {
					loads := e.loads(c.Name, v, level)
					own := func(by func(*evaluate.FunctionLoad) float64) spread {
						return spreadBy(loads, func(l *evaluate.Load) float64 {
							if i >= len(l.Functions) || l.Functions[i].Name != f.Name {
								return math.NaN()
							}
							return by(&l.Functions[i])
						})
					}
					if offered := own(func(f *evaluate.FunctionLoad) float64 { return f.OfferedRPS }); row[1] == "" && offered.runs > 0 {
						row[1] = fmt.Sprintf("%.0f %%: %s", 100*level, rate(offered.median))
					}
					if count, _ := e.failed(c.Name, v); len(loads) == 0 && count > 0 {
						row = append(row, "failed")
						continue
					}
					row = append(row, own(func(f *evaluate.FunctionLoad) float64 { return f.GoodputRPS }).text(number, ""))
				}
				list = append(list, row)
			}
		}
	}
	return list
}

func plainOr(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return short(v)
}

// leastDifference is what a difference must come to, in percent, beside runs that do not
// overlap.
const leastDifference = 1

// leastRuns are how many of each there must be: one has no spread.
const leastRuns = 2

// comparison is a variant beside a baseline, of one case at one load.
type comparison struct {
	name     string
	level    float64
	baseline string
	percent  float64 // of the baseline's goodput, above (or, negative, below) it; infinite where that is 0
	misses   bool    // the baseline has answers outside its objective
	failed   bool    // all the variant's runs failed: it answers nothing
}

func (c comparison) String() string {
	if c.failed {
		return c.name + " (all runs failed)"
	}
	if math.IsInf(c.percent, 1) {
		return fmt.Sprintf("%s at %.0f %% beside %s (which has nothing)", c.name, 100*c.level, c.baseline)
	}
	return fmt.Sprintf("%s at %.0f %% beside %s (%+.1f %%)", c.name, 100*c.level, c.baseline, c.percent)
}

// compare holds a variant's goodput against each baseline's. Neither below nor above is
// what differs by less than the runs among themselves, or by leastDifference. A variant that
// failed in all its runs has no goodput; a baseline that did is nothing to be held against.
// open is how many comparisons there are not runs enough for.
func (e *evaluation) compare(variant string) (below, above, same []comparison, open int) {
	most := 1 // levels of a case of which nothing is measured yet
	cases := e.of(evaluate.KindLoads)
	for _, c := range cases {
		most = max(most, len(e.levels(c.Name)))
	}
	for _, c := range cases {
		if !slices.Contains(c.Variants, variant) {
			continue
		}
		levels := e.levels(c.Name)
		failures, _ := e.failed(c.Name, variant)
		failed := len(e.results(c.Name, variant)) == 0 && failures >= leastRuns
		for _, v := range e.Variants {
			if !v.Baseline || !slices.Contains(c.Variants, v.Name) {
				continue
			}
			if count, _ := e.failed(c.Name, v.Name); count > 0 && len(e.results(c.Name, v.Name)) == 0 {
				continue
			}
			if len(levels) == 0 {
				open += most
			}
			for _, level := range levels {
				mine, theirs := e.loads(c.Name, variant, level), e.loads(c.Name, v.Name, level)
				if len(theirs) < leastRuns || !failed && len(mine) < leastRuns {
					open++
					continue
				}
				ours, base := spreadBy(keptUp(mine), goodput), spreadBy(keptUp(theirs), goodput)
				if failed {
					ours = spread{runs: failures}
				}
				if min(ours.runs, base.runs) < leastRuns {
					continue // the sender's fault
				}
				x := comparison{c.Name, level, v.Label, 0, spreadBy(keptUp(theirs), within).median < 99, failed}
				if ours.median != base.median {
					x.percent = 100 * (ours.median - base.median) / base.median
				}
				switch {
				case math.Abs(x.percent) < leastDifference:
					same = append(same, x)
				case ours.below(base):
					below = append(below, x)
				case base.below(ours):
					above = append(above, x)
				default:
					same = append(same, x)
				}
			}
		}
	}
	return below, above, same, open
}

// verdict is what the numbers say of the claim that a variant is never below a baseline
// beyond the spread, and above it wherever the baseline misses its objective.
type verdict struct {
	variant string
	// all are the comparisons, missing those in which the baseline misses the objective
	// for more than 1 %, open those that there are not runs enough for.
	all, missing, open int
	below              []comparison
	not                []comparison // of missing: those in which the variant is not above
}

func (e *evaluation) verdictOf(variant string) verdict {
	below, above, same, open := e.compare(variant)
	v := verdict{variant: e.label(variant), all: len(below) + len(above) + len(same), open: open, below: below}
	for _, c := range slices.Concat(below, same) {
		if c.misses {
			v.missing++
			v.not = append(v.not, c)
		}
	}
	for _, c := range above {
		if c.misses {
			v.missing++
		}
	}
	byPercent := func(a, b comparison) int { return cmp.Compare(a.percent, b.percent) }
	slices.SortFunc(v.below, byPercent)
	slices.SortFunc(v.not, byPercent)
	return v
}

// never and above are the two halves, briefly.
func (v verdict) never() string {
	if len(v.below) == 0 {
		return fmt.Sprintf("**true** (%d)", v.all) + v.more()
	}
	return fmt.Sprintf("**false**: below in %d of %d", len(v.below), v.all) + v.more()
}

func (v verdict) above() string {
	switch {
	case v.missing == 0:
		return "no baseline misses" + v.more()
	case len(v.not) == 0:
		return fmt.Sprintf("**true** (%d)", v.missing) + v.more()
	}
	return fmt.Sprintf("**false**: not above in %d of %d", len(v.not), v.missing) + v.more()
}

// more says that this is not all.
func (v verdict) more() string {
	if v.open == 0 {
		return ""
	}
	return fmt.Sprintf(" so far (open: %d)", v.open)
}

// penstocks are the variants that are Penstock whole.
var penstocks = []string{"penstock", "penstock-fine", "penstock-shadow"}

// verdicts are in sentences what the numbers say, exceptions named.
func (e *evaluation) verdicts() (list []string) {
	for _, variant := range penstocks {
		v := e.verdictOf(variant)
		if v.all == 0 {
			continue
		}
		with := func(exceptions []comparison) string {
			if len(exceptions) == 0 {
				return "."
			}
			return ": " + listed(exceptions) + "."
		}
		list = append(list, fmt.Sprintf("%s is never below a baseline beyond the spread: %s%s", v.variant, v.never(), with(v.below)))
		if v.missing > 0 {
			list = append(list, fmt.Sprintf("%s is above a baseline, beyond the spread, wherever that misses the objective for more than 1 %%: %s%s", v.variant, v.above(), with(v.not)))
		}
	}
	return list
}

// listed names the first few. A case that failed is named once.
func listed(all []comparison) string {
	const most = 6
	var names []string
	for _, c := range all {
		if name := c.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if more := len(names) - most; more > 0 {
		names = append(names[:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// verdictTable has all generated verdicts in one place.
func verdictTable(dir string) (string, error) {
	list := [][]string{{"figure", "", "never below a baseline beyond the spread (comparisons)", "above it wherever it misses the objective (comparisons)"}}
	var more, failures []string
	lost, runs := uint64(0), 0
	for _, f := range evaluationFigures {
		e, err := readEvaluation(dir, f.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		for _, variant := range penstocks {
			if v := e.verdictOf(variant); v.all > 0 {
				list = append(list, []string{f.name, v.variant, v.never(), v.above()})
			}
		}
		if f.name == "fig12c-14" {
			more = append(more, e.convergenceVerdicts()...)
		}
		for _, failure := range e.failures() {
			failures = append(failures, f.name+": "+failure)
		}
		for _, r := range e.Results {
			if r.Error == "" && len(r.Points) == 0 {
				lost, runs = lost+r.Lost, runs+1
			}
		}
	}
	if runs > 0 {
		answer := "**true**"
		if lost > 0 {
			answer = fmt.Sprintf("**false**, %d were", lost)
		}
		more = append(more, fmt.Sprintf("No request that was accepted is lost, in %d runs of all variants: %s.", runs, answer))
	}
	more = append(more, failures...)
	if len(list) == 1 && len(more) == 0 {
		return "", fs.ErrNotExist
	}
	text := ""
	if len(list) > 1 {
		text = rows(list...) + "\n"
	}
	if len(more) > 0 {
		text += "- " + strings.Join(more, "\n- ") + "\n"
	}
	return text, nil
}

func (e *evaluation) convergenceVerdicts() (list []string) {
	var late, slow []string
	cases := e.of(evaluate.KindTimeline)
	compared, judged := 0, 0
	for _, c := range cases {
		mine := e.results(c.Name, "mps-slab")
		if len(mine) == 0 {
			continue
		}
		judged++
		// Of all requests: what a node gives up as late is no answer, and in no percentile of them.
		if p := ofOnly(mine, lateShare); p.most > 1 {
			late = append(late, fmt.Sprintf("%s: %s are not", c.Name, p.text(tenths, " %")))
		}
		if other := e.results(c.Name, "aimd"); len(other) > 0 {
			compared++
			if a, b := ofOnly(mine, t90Millis), ofOnly(other, t90Millis); !a.below(b) {
				slow = append(slow, fmt.Sprintf("%s: %s beside %s", c.Name, a.text(short, " ms"), b.text(short, " ms")))
			}
		}
	}
	if compared > 0 {
		list = append(list, claim("SLAB finds its batch sooner than AIMD, beyond the spread, at each objective", slow))
	}
	if judged > 0 {
		list = append(list, claim("99 % of all requests are answered within the objective with SLAB, the time line's beginning included", late))
	}
	return list
}

func totalTail(f *evaluate.FunctionTimeline) float64 { return some(f.Total.P99Millis) }

// efficacy is the paper's numbers for one row of Table 2 or 3.
type efficacy struct {
	name, ours                string // as the paper has it, and the case here
	plain, batching, combined float64
}

// Table 2 and Table 3 of the paper: GUE of default MPS, MPS + SLAB and GSLICE.
var (
	paperTable2 = []efficacy{
		{"Alexnet", "alexnet", 235.75, 382.4, 579.41},
		{"Mobilenet", "mobilenetv2", 330.0, 341.2, 379.55},
		{"ResNet-50", "resnet50", 29.08, 42.4, 47.93},
		{"VGG-19", "vgg19", 4.96, 5.11, 5.25},
		{"VGG-16", "vgg16", 3.79, 11.13, 12.49},
		{"GNMT", "gnmt", 1.97, 6.66, 6.74},
	}
	paperTable3 = []efficacy{
		{"Alexnet & ResNet-50", "C1", 38.82, 72.69, 94.04},
		{"Alexnet & VGG-19", "C2", 6.39, 15.76, 44.79},
		{"3 IFs", "C3", 3.38, 7.83, 24.59},
		{"4 IFs", "C4", 2.01, 7.29, 19.98},
	}
)

// efficacyTable puts the paper's efficacies beside ours at the load next to capacity, from
// those of the reports that there are.
func efficacyTable(paper []efficacy, names ...string) func(dir string) (string, error) {
	return func(dir string) (string, error) {
		var reports []*evaluation
		for _, name := range names {
			e, err := readEvaluation(dir, name)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
			if err == nil {
				reports = append(reports, e)
			}
		}
		list := [][]string{{"", "paper: default MPS", "MPS + SLAB", "GSLICE", "GSLICE over default MPS", "here, offered", "default MPS", "MPS + SLAB", "Penstock", "Penstock over default MPS"}}
		for _, p := range paper {
			i := slices.IndexFunc(reports, func(e *evaluation) bool { return len(e.levels(p.ours)) > 0 })
			if i < 0 {
				continue
			}
			e, levels := reports[i], reports[i].levels(p.ours)
			level := slices.MinFunc(levels, func(a, b float64) int { return cmp.Compare(math.Abs(a-1), math.Abs(b-1)) })
			row := []string{p.name, short(p.plain), short(p.batching), short(p.combined), fmt.Sprintf("%+.0f %%", 100*(p.combined/p.plain-1)), fmt.Sprintf("%.0f %%", 100*level)}
			var first, last spread
			for _, v := range []string{"mps", "mps-slab", "penstock"} {
				s := spreadBy(e.loads(p.ours, v, level), func(l *evaluate.Load) float64 { return l.GUE })
				row = append(row, s.text(short, ""))
				if v == "mps" {
					first = s
				}
				last = s
			}
			list = append(list, append(row, gained(last, first)))
		}
		if len(list) == 1 {
			return "", fs.ErrNotExist
		}
		return rows(list...), nil
	}
}

// phase is a part of a time line between two of its events.
type phase struct{ from, to float64 }

// phases are a case's: each begins with an event.
func phases(c evaluate.CaseSetting, length float64) (all []phase) {
	at := map[float64]bool{0: true}
	for _, e := range c.Events {
		at[e.AtSeconds] = true
	}
	starts := slices.Sorted(maps.Keys(at))
	for i, s := range starts {
		end := length
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		all = append(all, phase{s, end})
	}
	return all
}

// during is what a function answered in time in a phase, a second and in percent of what
// was offered.
func during(r *evaluate.Result, name string, p phase) (rate, percent float64) {
	for i := range r.Timeline.Functions {
		f := &r.Timeline.Functions[i]
		if f.Name != name {
			continue
		}
		inTime, offered := 0, 0
		for k, b := range f.Bins {
			if at := (float64(k) + 0.5) * r.Timeline.BinSeconds; at >= p.from && at < p.to {
				inTime, offered = inTime+b.Within, offered+b.Offered
			}
		}
		if offered == 0 {
			return math.NaN(), math.NaN()
		}
		return float64(inTime) / (p.to - p.from), 100 * float64(inTime) / float64(offered)
	}
	return math.NaN(), math.NaN()
}

// timelineTable has a row for each variant and function, and a column for each phase.
func timelineTable(name string) func(dir string) (string, error) {
	return func(dir string) (string, error) {
		e, err := readEvaluation(dir, name)
		if err != nil {
			return "", err
		}
		var text strings.Builder
		for _, c := range e.of(evaluate.KindTimeline) {
			var list [][]string
			for _, v := range c.Variants {
				all := slices.DeleteFunc(e.results(c.Name, v), func(r *evaluate.Result) bool { return r.Timeline == nil })
				if len(all) == 0 {
					continue
				}
				parts := phases(c, all[0].Timeline.Seconds)
				if list == nil {
					head := []string{c.Name, "function"}
					for _, p := range parts {
						head = append(head, fmt.Sprintf("%g–%g s, in time", p.from, p.to))
					}
					list = [][]string{append(head, "p99 of the ok answers", "p99 around changes of share → else", "swaps and moves", "longest standstill", "lost")}
				}
				for _, f := range c.Functions {
					row := []string{e.label(v), fmt.Sprintf("%s, %s", f.Name, milli(f.SLOMillis))}
					for _, p := range parts {
						share := spreadBy(all, func(r *evaluate.Result) float64 { _, s := during(r, f.Name, p); return s })
						made := spreadBy(all, func(r *evaluate.Result) float64 { n, _ := during(r, f.Name, p); return n })
						if share.runs == 0 {
							row = append(row, "")
							continue
						}
						row = append(row, fmt.Sprintf("%s; %s", made.text(number, "/s"), tenths(share.median)+" %"))
					}
					list = append(list, append(row,
						ofFunction(all, f.Name, totalTail).text(short, " ms"),
						around(all, f.Name),
						ofFunction(all, f.Name, func(f *evaluate.FunctionTimeline) float64 { return float64(f.Swaps) }).text(short, ""),
						ofFunction(all, f.Name, func(f *evaluate.FunctionTimeline) float64 { return some(f.SwapIdleMillis) }).text(short, " ms"),
						spreadBy(all, func(r *evaluate.Result) float64 { return float64(r.Lost) }).text(short, "")))
				}
			}
			if list != nil {
				fmt.Fprintf(&text, "%s\n", rows(list...))
			}
			if say := e.ends(c); len(say) > 0 && (name == "fig15" || name == "fig16") {
				fmt.Fprintf(&text, "- %s\n\n", strings.Join(say, "\n- "))
			}
		}
		if text.Len() == 0 {
			return "", fs.ErrNotExist
		}
		return strings.TrimRight(text.String(), "\n") + "\n", nil
	}
}

// A change of share is felt from a little before it is seen, which is every 50 ms, until a
// while after.
const (
	feltBefore = 0.2 // s
	feltAfter  = 0.5
)

// around is a function's p99 in the bins around changes of share, whosever, and in the
// others: medians of bins, and of runs.
func around(all []*evaluate.Result, name string) string {
	near, far := make([]float64, 0, len(all)), make([]float64, 0, len(all))
	for _, r := range all {
		var felt, other []float64
		begun := map[string]bool{} // its first share is no change
		var changes []float64
		for _, e := range r.Timeline.Events {
			if e.What == "share" {
				if begun[e.Function] {
					changes = append(changes, e.AtSeconds)
				}
				begun[e.Function] = true
			}
		}
		for i := range r.Timeline.Functions {
			f := &r.Timeline.Functions[i]
			if f.Name != name {
				continue
			}
			for k, b := range f.Bins {
				if b.OK == 0 {
					continue
				}
				from := float64(k) * r.Timeline.BinSeconds
				to := from + r.Timeline.BinSeconds
				if slices.ContainsFunc(changes, func(at float64) bool { return to > at-feltBefore && from < at+feltAfter }) {
					felt = append(felt, b.P99Millis)
				} else {
					other = append(other, b.P99Millis)
				}
			}
		}
		near, far = append(near, spreadOf(felt).median), append(far, spreadOf(other).median)
	}
	n, f := spreadOf(near), spreadOf(far)
	if n.runs == 0 || f.runs == 0 {
		return "–"
	}
	return n.text(short, "") + " → " + f.text(short, " ms")
}

// ends says of each variant whether at the end, in the last quarter, all is answered in
// time.
func (e *evaluation) ends(c evaluate.CaseSetting) (list []string) {
	for _, v := range c.Variants {
		all := slices.DeleteFunc(e.results(c.Name, v), func(r *evaluate.Result) bool { return r.Timeline == nil })
		if len(all) == 0 {
			continue
		}
		length := all[0].Timeline.Seconds
		var less []string
		for _, f := range c.Functions {
			s := spreadBy(all, func(r *evaluate.Result) float64 {
				_, p := during(r, f.Name, phase{0.75 * length, length})
				return p
			})
			if s.runs > 0 && s.median < 99 {
				less = append(less, f.Name+" "+s.text(tenths, " %"))
			}
		}
		answer := "**true**."
		if len(less) > 0 {
			answer = "**false**: " + strings.Join(less, ", ") + "."
		}
		list = append(list, fmt.Sprintf("%s answers 99 %% in time in the last quarter: %s", e.label(v), answer))
	}
	return list
}

// ofFunction is the spread over runs of what by says of a function.
func ofFunction(all []*evaluate.Result, name string, by func(*evaluate.FunctionTimeline) float64) spread {
	return spreadBy(all, func(r *evaluate.Result) float64 {
		for i := range r.Timeline.Functions {
			if r.Timeline.Functions[i].Name == name {
				return by(&r.Timeline.Functions[i])
			}
		}
		return math.NaN()
	})
}

func convergenceTable(dir string) (string, error) {
	e, err := readEvaluation(dir, "fig12c-14")
	if err != nil {
		return "", err
	}
	list := [][]string{{"objective", "rule", "t90", "goodput", "p99 of the ok answers", "not within the objective", "mean batch"}}
	for _, c := range e.of(evaluate.KindTimeline) {
		for _, v := range c.Variants {
			all := e.results(c.Name, v)
			if len(all) == 0 {
				continue
			}
			list = append(list, []string{c.Name, e.label(v), ofOnly(all, t90Millis).text(short, " ms"), ofOnly(all, goodRate).text(number, "/s"), ofOnly(all, totalTail).text(short, " ms"),
				ofOnly(all, lateShare).text(tenths, " %"), ofOnly(all, func(f *evaluate.FunctionTimeline) float64 { return f.Total.MeanBatch }).text(short, "")})
		}
	}
	if len(list) == 1 {
		return "", fs.ErrNotExist
	}
	text := rows(list...)
	if say := e.convergenceVerdicts(); len(say) > 0 {
		text += "\n- " + strings.Join(say, "\n- ") + "\n"
	}
	return text, nil
}

// claim is a sentence with its answer: true, or what speaks against it.
func claim(text string, against []string) string {
	if len(against) == 0 {
		return text + ": **true**."
	}
	return text + ": **false**, " + strings.Join(against, "; ") + "."
}

// enough of the whole device's throughput is where more multiprocessors buy little.
const enough = 0.9

// paperKnees are the knees of 2.1.3, for batches of one.
var paperKnees = map[string]string{"resnet50": "about 60 %", "vgg19": "after 70 %", "gnmt": "after 70 %", "alexnet": "30 %"}

// kneeTable has for each model and batch size the least part of the multiprocessors that
// was measured to give nine tenths of what all give.
func kneeTable(dir string) (string, error) {
	e, err := readEvaluation(dir, "fig2-3")
	if err != nil {
		return "", err
	}
	list := [][]string{{"model", "batch", "whole device", "knee, MPS percentage", "knee, SM groups", "paper's knee, V100"}}
	var against []string
	knees := 0
	for _, c := range e.of(evaluate.KindBare) {
		for _, f := range c.Functions {
			before := map[string]float64{}
			for _, b := range f.Batches {
				row := []string{f.Model, fmt.Sprint(b), "–"}
				var measured bool
				for _, v := range []string{"percentage", "groups"} {
					xs, all := e.byShare(c.Name, v, f.Model, b)
					const allOfIt = 99 // %: without it there is nothing that the others are parts of
					if len(xs) == 0 || xs[len(xs)-1] < allOfIt {
						row = append(row, "–")
						continue
					}
					measured = true
					const few = 3 // places say nothing of a knee between them
					whole := spreadBy(all[len(all)-1], speed)
					if v == "percentage" || row[2] == "–" {
						row[2] = fmt.Sprintf("%s, %s", whole.text(number, "/s"), milli(spreadBy(all[len(all)-1], batchMillis).median))
					}
					if len(xs) < few {
						row = append(row, "–")
						continue
					}
					at := slices.IndexFunc(all, func(p []evaluate.Point) bool { return spreadBy(p, speed).median >= enough*whole.median })
					knees++
					row = append(row, fmt.Sprintf("%.0f %%", xs[at]))
					if xs[at] < before[v] {
						against = append(against, fmt.Sprintf("%s at %d by %s", f.Model, b, e.label(v)))
					}
					before[v] = xs[at]
				}
				if !measured {
					continue
				}
				paper := ""
				if b == 1 {
					paper = paperKnees[f.Model]
				}
				list = append(list, append(row, paper))
			}
		}
	}
	if len(list) == 1 {
		return "", fs.ErrNotExist
	}
	text := rows(list...)
	if knees > 0 {
		text += "\n- " + claim("A larger batch never has its knee at fewer multiprocessors", against) + "\n"
	}
	return text, nil
}

// paperTable5 is the paper's throughput (images/s) and latency (ms) by batch size.
var paperTable5 = []struct {
	name, model string
	batch       int
	rate, late  float64
}{
	{"ResNet-50", "resnet50", 8, 816, 9.75}, {"ResNet-50", "resnet50", 16, 1088, 14.5}, {"ResNet-50", "resnet50", 32, 1152, 25.9},
	{"VGG-19", "vgg19", 8, 264, 30.54}, {"VGG-19", "vgg19", 16, 400, 40.95}, {"VGG-19", "vgg19", 32, 512, 63.12},
}

// batchTable is Table 5.
func batchTable(dir string) (string, error) {
	e, err := readEvaluation(dir, "table5")
	if err != nil {
		return "", err
	}
	list := [][]string{{"model", "batch", "paper", "paper, a batch", "here, one stream", "a batch", "two streams", "a batch"}}
	speeds := map[string][]float64{} // by model, of one stream, batches ascending
	for _, p := range paperTable5 {
		row := []string{p.name, fmt.Sprint(p.batch), rate(p.rate), milli(p.late)}
		found := false
		for streams := 1; streams <= 2; streams++ {
			var points []evaluate.Point
			for _, c := range e.of(evaluate.KindBare) {
				points = append(points, e.ready(c, p.model, p.batch, streams)...)
			}
			found = found || len(points) > 0
			if streams == 1 {
				speeds[p.name] = append(speeds[p.name], spreadBy(points, speed).median)
			}
			row = append(row, spreadBy(points, speed).text(number, "/s"), spreadBy(points, batchMillis).text(short, " ms"))
		}
		if found {
			list = append(list, row)
		}
	}
	if len(list) == 1 {
		return "", fs.ErrNotExist
	}
	var against, grows []string
	for _, name := range slices.Sorted(maps.Keys(speeds)) {
		s := speeds[name]
		first, second := 100*(s[1]/s[0]-1), 100*(s[2]/s[1]-1)
		if math.IsNaN(first) || math.IsNaN(second) {
			continue
		}
		told := fmt.Sprintf("%s %+.0f %% and %+.0f %%", name, first, second)
		grows = append(grows, told)
		if first <= second {
			against = append(against, told)
		}
	}
	text := rows(list...)
	if len(grows) > 0 {
		text += fmt.Sprintf("\n- %s From 8 to 16 and from 16 to 32: %s.\n", claim("Throughput grows more from 8 to 16 than from 16 to 32", against), strings.Join(grows, "; "))
	}
	return text, nil
}

// streamsTable has what a second stream gives ready batches, and functions beside each
// other.
func streamsTable(dir string) (string, error) {
	e, err := readEvaluation(dir, "fig5-7")
	if err != nil {
		return "", err
	}
	list := [][]string{{"model", "batch", "one stream", "a batch", "two streams", "a batch", "gained", "a batch takes longer by"}}
	var against []string
	for _, c := range e.of(evaluate.KindBare) {
		for _, f := range c.Functions {
			before := math.NaN()
			for _, b := range f.Batches {
				one, two := e.ready(c, f.Model, b, 1), e.ready(c, f.Model, b, 2)
				if len(one)+len(two) == 0 {
					continue
				}
				r1, r2, t1, t2 := spreadBy(one, speed), spreadBy(two, speed), spreadBy(one, batchMillis), spreadBy(two, batchMillis)
				if more := r2.median / r1.median; more >= before {
					against = append(against, fmt.Sprintf("%s at %d", f.Model, b))
				} else {
					before = more
				}
				list = append(list, []string{f.Model, fmt.Sprint(b), r1.text(number, "/s"), t1.text(short, " ms"), r2.text(number, "/s"), t2.text(short, " ms"),
					gained(r2, r1), gained(t2, t1)})
			}
		}
	}
	beside := [][]string{{"", "function", "answered", "of alone", "p99"}}
	closed := e.of(evaluate.KindClosed)
	for _, c := range closed {
		for _, v := range c.Variants {
			all := e.results(c.Name, v)
			for _, f := range c.Functions {
				if len(all) == 0 {
					continue
				}
				beside = append(beside, []string{c.Name + ", " + e.label(v), f.Name, spreadBy(all, func(r *evaluate.Result) float64 { return answered(r, f.Name) }).text(number, "/s"),
					e.ofAlone(closed, f, all).text(tenths, " %"), spreadBy(all, func(r *evaluate.Result) float64 { return tailOf(r, f.Name) }).text(short, " ms")})
			}
		}
	}
	if len(list)+len(beside) == 2 {
		return "", fs.ErrNotExist
	}
	text := ""
	if len(list) > 1 {
		text = rows(list...) + "\n- " + claim("A second stream brings a larger batch less", against) + "\n"
	}
	if len(beside) > 1 {
		text += "\n" + rows(beside...)
	}
	return text, nil
}

// gained is how much more the first is, in percent.
func gained(a, b spread) string {
	if a.runs == 0 || b.runs == 0 || b.median == 0 {
		return "–"
	}
	return fmt.Sprintf("%+.0f %%", 100*(a.median/b.median-1))
}

// tailOf is a function's p99 in a closed loop.
func tailOf(r *evaluate.Result, name string) float64 {
	for _, l := range r.Loads {
		for _, f := range l.Functions {
			if f.Name == name {
				return some(f.P99Millis)
			}
		}
	}
	return math.NaN()
}

// Table 4 of the paper: by how many percent GSLICE was better than the TensorRT server.
var paperTable4 = []struct {
	batch      int
	rate, late float64
}{{1, 73.85, -7.52}, {4, 31.43, 23.96}, {8, 50.83, 34.12}, {16, 92.34, 45.64}}

// readyTable stands in Table 4's place: batches as they come, on two streams, beside
// batches of a fixed size with a delay, at the highest load; the time is that of a ready
// batch, gather and infer.
func readyTable(dir string) (string, error) {
	e, err := readEvaluation(dir, "fig11")
	if err != nil {
		return "", err
	}
	list := [][]string{{"batches of at most", "paper over TensorRT server: throughput", "latency", "here, fixed with a delay", "a batch", "Penstock's way", "a batch", "throughput", "latency of a batch"}}
	for _, p := range paperTable4 {
		name := fmt.Sprintf("batches of at most %d", p.batch)
		levels := e.levels(name)
		if len(levels) == 0 {
			continue
		}
		high := levels[len(levels)-1]
		ready := func(l *evaluate.Load) float64 { return some(l.Functions[0].BatchMillis) }
		fixed, ours := e.loads(name, fmt.Sprintf("fixed-%d", p.batch), high), e.loads(name, "streams-2", high)
		f, o, ft, ot := spreadBy(fixed, goodput), spreadBy(ours, goodput), spreadBy(fixed, ready), spreadBy(ours, ready)
		better := "–"
		if ft.runs > 0 && ot.runs > 0 {
			better = fmt.Sprintf("%+.0f %%", 100*(1-ot.median/ft.median))
		}
		list = append(list, []string{fmt.Sprint(p.batch), fmt.Sprintf("%+.1f %%", p.rate), fmt.Sprintf("%+.1f %%", p.late), f.text(number, "/s"), ft.text(short, " ms"), o.text(number, "/s"), ot.text(short, " ms"), gained(o, f), better})
	}
	if len(list) == 1 {
		return "", fs.ErrNotExist
	}
	return rows(list...), nil
}
