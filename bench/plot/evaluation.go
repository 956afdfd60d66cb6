package main

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock/penstock/bench/evaluate"
)

// The reports of `penstock bench evaluate` become docs/evaluation: a sheet of plots and
// tables for each figure, and a verdict on each claim that the numbers can give. What a
// number shows is the median over the runs; the whiskers and what stands in brackets are
// the least and the most.

// evaluationFigures are those of docs/evaluation that `penstock bench evaluate` measures, in
// the paper's order.
var evaluationFigures = []figure{
	{"fig1", drawReport("fig1")},
	{"fig2-3", drawReport("fig2-3")},
	{"fig5-7", drawReport("fig5-7")},
	{"fig8", drawReport("fig8")},
	{"fig9", drawReport("fig9")},
	{"fig10a", drawReport("fig10a")},
	{"fig10b", drawReport("fig10b")},
	{"fig10-slo", drawReport("fig10-slo")},
	{"fig10-large", drawReport("fig10-large")},
	{"fig11", drawReport("fig11")},
	{"fig12ab", drawReport("fig12ab")},
	{"fig12c-14", drawReport("fig12c-14")},
	{"fig15", drawReport("fig15")},
	{"fig16", drawReport("fig16")},
	{"table5", drawReport("table5")},
}

var evaluationSections = []section{
	{"machine", evaluationMachineTable, nil},
	{"verdicts", verdictTable, nil},
	{"fig1", told("fig1", timelineTable("fig1")), drawnOf("fig1")},
	{"fig2-3", told("fig2-3", kneeTable), drawnOf("fig2-3")},
	{"fig5-7", told("fig5-7", streamsTable), drawnOf("fig5-7")},
	{"fig8", told("fig8", loadsTable("fig8")), drawnOf("fig8")},
	{"fig9", told("fig9", loadsTable("fig9")), drawnOf("fig9")},
	{"table2", efficacyTable(paperTable2, "fig8", "fig9"), nil},
	{"fig10a", told("fig10a", loadsTable("fig10a")), drawnOf("fig10a")},
	{"fig10b", told("fig10b", loadsTable("fig10b")), drawnOf("fig10b")},
	{"table3", efficacyTable(paperTable3, "fig10a", "fig10b"), nil},
	{"fig10-slo", told("fig10-slo", loadsTable("fig10-slo")), drawnOf("fig10-slo")},
	{"fig10-large", told("fig10-large", loadsTable("fig10-large")), drawnOf("fig10-large")},
	{"fig11", told("fig11", loadsTable("fig11")), drawnOf("fig11")},
	{"table4", readyTable, nil},
	{"fig12ab", told("fig12ab", loadsTable("fig12ab")), drawnOf("fig12ab")},
	{"fig12c-14", told("fig12c-14", convergenceTable), drawnOf("fig12c-14")},
	{"fig15", told("fig15", timelineTable("fig15")), drawnOf("fig15")},
	{"fig16", told("fig16", timelineTable("fig16")), drawnOf("fig16")},
	{"table5", told("table5", batchTable), nil},
	{"table1", weightsTable, []string{weightsReport}},
}

// drawnOf are the names of what is drawn of a report.
func drawnOf(name string) (names []string) {
	f, err := evaluate.Find(name)
	if err != nil {
		panic(err) // a test holds the names against each other
	}
	for _, c := range f.Cases {
		switch {
		case c.Kind == evaluate.KindLoads:
			names = append(names, name, name+"-loads")
		case name == "fig12c-14":
			names = append(names, name, name+"-batches")
		case c.Kind == evaluate.KindTimeline, name == "fig2-3":
			names = append(names, name+"-"+slug(c.Name))
		case name == "fig5-7":
			names = append(names, name)
		}
	}
	once := names[:0]
	for _, n := range names {
		if !slices.Contains(once, n) {
			once = append(once, n)
		}
	}
	return once
}

// evaluation is a report, by case and variant.
type evaluation struct {
	*evaluate.Report
	dir string
}

// readEvaluation reads the report NAME.json.
func readEvaluation(dir, name string) (*evaluation, error) {
	r, err := evaluate.Read(filepath.Join(dir, name+".json"))
	if err != nil {
		return nil, err
	}
	if r.Quick {
		return nil, fmt.Errorf("%s.json is of a trial (--quick), which shows nothing: %w", name, fs.ErrNotExist)
	}
	return &evaluation{r, dir}, nil
}

// results are a case's runs with a variant that were measured whole, in order.
func (e *evaluation) results(name, variant string) (all []*evaluate.Result) {
	for i := range e.Results {
		if r := &e.Results[i]; r.Case == name && r.Variant == variant && r.Error == "" {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *evaluate.Result) int { return cmp.Compare(a.Run, b.Run) })
	return all
}

// typical is the run whose time line is the median by a number, the lower of two in the
// middle; nil where no run has a time line.
func typical(all []*evaluate.Result, by func(*evaluate.Result) float64) *evaluate.Result {
	all = slices.DeleteFunc(slices.Clone(all), func(r *evaluate.Result) bool { return r.Timeline == nil })
	if len(all) == 0 {
		return nil
	}
	slices.SortStableFunc(all, func(a, b *evaluate.Result) int { return cmp.Compare(by(a), by(b)) })
	return all[(len(all)-1)/2]
}

// inTime is how many requests of all functions were answered within their objectives.
func inTime(r *evaluate.Result) float64 {
	n := 0
	for i := range r.Timeline.Functions {
		for _, b := range r.Timeline.Functions[i].Bins {
			n += b.Within
		}
	}
	return float64(n)
}

// failed is how many of a case's runs with a variant failed and were not made good, and why
// the last of them did.
func (e *evaluation) failed(name, variant string) (count int, reason string) {
	for i := range e.Results {
		if r := &e.Results[i]; r.Case == name && r.Variant == variant && r.Error != "" {
			count, reason = count+1, why(r.Error)
		}
	}
	return count, reason
}

// why is the reason in a failure's text, short and on one line. The text may end with the
// node's log, a JSON object a line, in which processes say why they do not serve.
func why(text string) string {
	const most = 240
	const key = `"reason":"`
	head, _, _ := strings.Cut(text, "\n")
	if i := strings.LastIndex(text, key); i >= 0 && !strings.Contains(head, "does not serve") {
		head, _, _ = strings.Cut(text[i+len(key):], `","`)
	} else if strings.HasPrefix(text, "…") {
		head = "only the end of the node's log is left of it, in the report"
	}
	if runes := []rune(head); len(runes) > most {
		head = string(runes[:most]) + " …"
	}
	return strings.ReplaceAll(head, "|", "/")
}

// failures has a sentence for each variant that failed on a case, and for each percentage at
// which a model gave none.
func (e *evaluation) failures() (list []string) {
	for _, c := range e.Cases {
		for _, v := range c.Variants {
			for _, r := range e.results(c.Name, v) {
				for _, p := range r.Points {
					if p.Error == "" {
						continue
					}
					said := fmt.Sprintf("**%s, %s, failed** with %s at %g %%: %s", c.Name, e.label(v), p.Model, p.Percent, why(p.Error))
					if !slices.Contains(list, said) { // in another run
						list = append(list, said)
					}
				}
			}
			count, reason := e.failed(c.Name, v)
			if count == 0 {
				continue
			}
			whole := len(e.results(c.Name, v))
			times := fmt.Sprintf("in %d of %d runs", count, count+whole)
			if whole == 0 {
				times = fmt.Sprintf("in all its runs, %d", count)
			}
			list = append(list, fmt.Sprintf("**%s, %s, failed** %s: %s", c.Name, e.label(v), times, reason))
		}
	}
	return list
}

// told is a report's table with what failed under it.
func told(name string, table func(dir string) (string, error)) func(dir string) (string, error) {
	return func(dir string) (string, error) {
		text, err := table(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		e, unread := readEvaluation(dir, name)
		if unread != nil {
			return text, err
		}
		if failures := e.failures(); len(failures) > 0 {
			return text + "\n- " + strings.Join(failures, "\n- ") + "\n", nil
		}
		return text, err
	}
}

// label is how a variant is called in a legend.
func (e *evaluation) label(variant string) string {
	for _, v := range e.Variants {
		if v.Name == variant {
			return v.Label
		}
	}
	return variant
}

// variants are those of the cases, in the report's order.
func (e *evaluation) variants(cases []evaluate.CaseSetting) (names []string) {
	for _, v := range e.Variants {
		if slices.ContainsFunc(cases, func(c evaluate.CaseSetting) bool { return slices.Contains(c.Variants, v.Name) }) {
			names = append(names, v.Name)
		}
	}
	return names
}

// of are the cases of a kind.
func (e *evaluation) of(kind evaluate.Kind) (cases []evaluate.CaseSetting) {
	for _, c := range e.Cases {
		if c.Kind == kind {
			cases = append(cases, c)
		}
	}
	return cases
}

// levels are a case's, ascending.
func (e *evaluation) levels(name string) (levels []float64) {
	for i := range e.Results {
		if e.Results[i].Case != name {
			continue
		}
		for _, l := range e.Results[i].Loads {
			levels = append(levels, l.Level)
		}
	}
	slices.Sort(levels)
	return slices.Compact(levels)
}

// loads are what a case's runs with a variant measured at a level.
func (e *evaluation) loads(name, variant string, level float64) (all []*evaluate.Load) {
	for _, r := range e.results(name, variant) {
		for i := range r.Loads {
			if r.Loads[i].Level == level {
				all = append(all, &r.Loads[i])
			}
		}
	}
	return all
}

// spread is what the runs gave of one quantity.
type spread struct {
	median, least, most float64
	runs                int
}

func spreadOf(values []float64) spread {
	values = slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(values) == 0 {
		return spread{median: math.NaN(), least: math.NaN(), most: math.NaN()}
	}
	return spread{median(values), slices.Min(values), slices.Max(values), len(values)}
}

// spreadBy is the spread of what by says of each.
func spreadBy[T any](all []T, by func(T) float64) spread {
	values := make([]float64, len(all))
	for i, x := range all {
		values[i] = by(x)
	}
	return spreadOf(values)
}

// text writes the median and, where there are several runs, least and most; then the
// unit, once.
func (s spread) text(write func(float64) string, unit string) string {
	switch {
	case s.runs == 0:
		return "–"
	case s.runs == 1 || write(s.least) == write(s.most):
		return write(s.median) + unit
	}
	return fmt.Sprintf("%s (%s–%s)%s", write(s.median), write(s.least), write(s.most), unit)
}

// below says that all runs lie under all of the other's: by more than the spread.
func (s spread) below(o spread) bool { return s.runs > 0 && o.runs > 0 && s.most < o.least }

// The quantities.
func goodput(l *evaluate.Load) float64 { return l.GoodputRPS }
func within(l *evaluate.Load) float64  { return l.WithinPercent }

// tail is the worst function's p99; NaN where one had no answer at all.
func tail(l *evaluate.Load) float64 {
	worst := 0.0
	for _, f := range l.Functions {
		if f.OK == 0 {
			return math.NaN()
		}
		worst = max(worst, f.P99Millis)
	}
	return some(worst)
}

// middle is the functions' mean p50, each weighed by its answers.
func middle(l *evaluate.Load) float64 {
	sum, count := 0.0, 0.0
	for _, f := range l.Functions {
		sum += f.P50Millis * float64(f.OK)
		count += float64(f.OK)
	}
	return sum / count
}

// behind says that the sender did not keep up in some of these.
func behind(all []*evaluate.Load) bool {
	return slices.ContainsFunc(all, func(l *evaluate.Load) bool { return l.SenderBehind })
}

// keptUp are those of them in which it did: what the others miss is not the variant's.
func keptUp(all []*evaluate.Load) []*evaluate.Load {
	return slices.DeleteFunc(slices.Clone(all), func(l *evaluate.Load) bool { return l.SenderBehind })
}

// The colours of variants are the same in all figures: what takes turns is grey, default
// MPS and what is added to it alone warm, what is fixed light blue, and Penstock green and
// blue.
var variantColours = map[string]color.Color{
	"time-slice":       grey,
	"time-slice-slab":  color.RGBA{R: 0x55, G: 0x55, B: 0x55, A: 0xff},
	"mps":              orange,
	"mps-slab":         color.RGBA{R: 0x8c, G: 0x51, B: 0x0a, A: 0xff},
	"aimd":             purple,
	"static":           color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff},
	"penstock-shadow":  blue,
	"penstock":         green,
	"penstock-restart": red,
	"mps-streams":      color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff},
	"mps-gather":       color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff},
	"fixed-1":          color.RGBA{R: 0xf4, G: 0xa5, B: 0x82, A: 0xff},
	"fixed-4":          color.RGBA{R: 0xd6, G: 0x60, B: 0x4d, A: 0xff},
	"fixed-8":          color.RGBA{R: 0xb2, G: 0x18, B: 0x2b, A: 0xff},
	"fixed-16":         color.RGBA{R: 0x67, G: 0x00, B: 0x1f, A: 0xff},
	"mps-only-slab":    purple,
	"mps-only-shares":  blue,
	"streams-1":        blue,
	"streams-2":        green,
	"percentage":       blue,
	"groups":           green,
}

func variantColour(name string) color.Color {
	if c, ok := variantColours[name]; ok {
		return c
	}
	return black // another fixed size
}

// functionColours are those of the functions of a time line, in order.
var functionColours = []color.Color{blue, orange, green, purple, red}

func functionColour(i int) color.Color { return functionColours[i%len(functionColours)] }
