package main

import (
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/bench"
	"github.com/penstock/penstock/bench/evaluate"
)

// madeUpVariants are a variant's label and how much of what is offered it answers in time
// where there is more than there is room for.
var madeUpVariants = map[string]struct {
	label    string
	good     float64
	baseline bool
}{
	"time-slice": {"no MPS", 0.2, true}, "time-slice-slab": {"no MPS + SLAB", 0.5, true}, "mps": {"default MPS", 0.3, true},
	"mps-slab": {"MPS + SLAB", 0.7, true}, "aimd": {"AIMD", 0.6, true}, "static": {"fixed percentages", 0.75, true},
	"penstock-shadow": {"Penstock, shadows", 0.8, false}, "penstock": {"Penstock", 0.85, false}, "penstock-restart": {"stop and start", 0.4, true},
}

// madeUpEvaluation has all figures, with numbers that mean nothing.
func madeUpEvaluation(t *testing.T, dir string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, f := range evaluate.Figures() {
		r := &evaluate.Report{Version: 1, Figure: f.Name, Title: f.Title, Paper: f.Paper, Device: "made-up GPU", SMs: 132, Seed: 1, Runs: 3}
		r.Machine.Date = "2026-11-21T12:00:00Z"
		for _, c := range f.Cases {
			s := evaluate.CaseSetting{Name: c.Name, Kind: c.Kind, Variants: c.Variants}
			for _, fn := range c.Functions {
				s.Functions = append(s.Functions, evaluate.FunctionSetting{Name: fn.Name, Model: fn.Model, SLOMillis: float64(fn.SLO.Milliseconds()), Batches: fn.Batches, Weight: fn.Weight})
			}
			for _, e := range c.Events {
				s.Events = append(s.Events, evaluate.EventSetting{AtSeconds: e.At.Seconds(), What: e.What, Function: e.Function, Level: e.Level})
			}
			r.Cases = append(r.Cases, s)
			for _, v := range c.Variants {
				about := madeUpVariants[v]
				if about.label == "" {
					about.label, about.good = v, 0.6
				}
				if !slices.ContainsFunc(r.Variants, func(o evaluate.VariantSetting) bool { return o.Name == v }) {
					r.Variants = append(r.Variants, evaluate.VariantSetting{Name: v, Label: about.label, Baseline: about.baseline})
				}
				for run := 1; run <= 3; run++ {
					r.Results = append(r.Results, madeUpResult(rng, &c, v, run, about.good))
				}
			}
		}
		if err := r.Write(filepath.Join(dir, f.Name+".json")); err != nil {
			t.Fatal(err)
		}
	}
}

// madeUpWeights is Table 1 of numbers that mean nothing.
func madeUpWeights(t *testing.T, dir string) {
	t.Helper()
	r := bench.Weights{Device: "made-up GPU", BudgetBytes: 16 << 30, MostInstances: 46, Runs: 3}
	for i, name := range []string{"alexnet", "resnet50", "resnet152", "vgg19"} {
		m := bench.WeightsModel{Model: name, WeightsBytes: int64(i+1) * 50e6}
		for k, c := range []*bench.WeightsCase{&m.Private, &m.Shared} {
			c.One = bench.WeightsInstance{Batches: []int{8}, LoadMillis: 500 / float64(4*k+1), WakeMillis: 800 / float64(4*k+1), ContextMillis: 100, Bytes: int64(600e6 / (k + 1))}
			c.Ladder = bench.WeightsInstance{Batches: []int{1, 8}, LoadMillis: 900 / float64(8*k+1), WakeMillis: 3000 / float64(4*k+1), Bytes: int64(1200e6 / (k + 1))}
			c.Fit = 12 * (k + 1)
		}
		m.Prepared.LoadMillis, m.Prepared.WakeMillis, m.Uploaded.WakeMillis = 4000, 1000, 500
		r.Models = append(r.Models, m)
	}
	put(t, dir, weightsReport, r)
}

func madeUpResult(rng *rand.Rand, c *evaluate.Case, variant string, run int, good float64) evaluate.Result {
	x := evaluate.Result{Case: c.Name, Variant: variant, Run: run}
	noise := func() float64 { return 1 + 0.02*rng.NormFloat64() }
	levels := c.Levels
	if c.Kind == evaluate.KindClosed {
		levels = []float64{0}
	}
	switch c.Kind {
	case evaluate.KindLoads, evaluate.KindClosed:
		for _, level := range levels {
			l := evaluate.Load{Level: level, OfferedRPS: 10000 * level, GUE: 100 * good * noise()}
			l.WithinPercent = 100 * min(1, good/max(level, 0.01)*noise())
			l.GoodputRPS = l.OfferedRPS * l.WithinPercent / 100
			for i, f := range c.Functions {
				l.Functions = append(l.Functions, evaluate.FunctionLoad{Name: f.Name, OK: 100, AnsweredRPS: 4000 * good * noise(), P50Millis: 3 * noise(),
					P99Millis: (4 + 20*level/good + float64(i)) * noise(), BatchMillis: 2 * noise()})
			}
			x.Loads = append(x.Loads, l)
		}
	case evaluate.KindTimeline:
		t := &evaluate.Timeline{BinSeconds: c.Bin.Seconds(), Seconds: c.Length.Seconds()}
		for i, f := range c.Functions {
			begin, end := 0.0, t.Seconds
			for _, e := range c.Events {
				if e.Function == f.Name && e.What == "begin" {
					begin = e.At.Seconds()
				}
				if e.Function == f.Name && e.What == "end" {
					end = e.At.Seconds()
				}
			}
			t.Events = append(t.Events, evaluate.Event{AtSeconds: begin, What: "begin", Function: f.Name})
			slo := float64(f.SLO.Milliseconds())
			ft := evaluate.FunctionTimeline{Name: f.Name, SLOMillis: slo, T90Seconds: 0.2 / good, Swaps: 2, SwapIdleMillis: 0.05,
				Total: evaluate.FunctionLoad{P99Millis: slo * (1.3 - 0.5*good) * noise(), WithinPercent: 97 * noise(), GoodputRPS: 3000 * good}}
			for b := 0; b < int(t.Seconds/t.BinSeconds); b++ {
				at := float64(b) * t.BinSeconds
				bin := evaluate.Bin{SharePercent: 30 + 10*float64(i)}
				if at >= begin && at < end {
					n := int(1000 * t.BinSeconds)
					bin.Offered, bin.OK, bin.Within = n, n, int(float64(n)*good)
					bin.P99Millis, bin.MeanBatch, bin.LimitBatch = slo*(0.6+0.5*rng.Float64()), 8*(1-math.Exp(-(at-begin)*3))+1, 12
				}
				ft.Bins = append(ft.Bins, bin)
			}
			t.Functions = append(t.Functions, ft)
		}
		x.Timeline = t
	case evaluate.KindBare:
		percents := []float64{8, 11, 23, 47, 90, 100}
		if variant == "whole" {
			percents = []float64{100}
		}
		for _, f := range c.Functions {
			for _, b := range c.Ready.Batches {
				for _, s := range c.Ready.Streams {
					for _, p := range percents {
						one := 2000 * math.Sqrt(float64(b)) * (1 - math.Exp(-p/20)) * noise() * (1 + 0.2*float64(s-1))
						m := evaluate.Point{Model: f.Model, Batch: b, Streams: s, Percent: p, SMs: int(p * 1.32), ImagesPerSecond: one}
						m.BatchTime.P50 = float64(b) / one * 1e6 * float64(s)
						x.Points = append(x.Points, m)
					}
				}
			}
		}
	}
	return x
}

// What is measured is drawn, and has its place on the page.
func TestEveryFigureThatIsMeasuredIsDrawn(t *testing.T) {
	var drawn []string
	for _, f := range evaluationFigures {
		drawn = append(drawn, f.name)
	}
	measured := evaluate.Names()
	slices.Sort(drawn)
	slices.Sort(measured)
	if !slices.Equal(drawn, measured) {
		t.Errorf("drawn are %v, measured are %v", drawn, measured)
	}
}

// Every figure that the page shows is drawn from a report that is whole, and the page has
// all marks.
func TestTheEvaluationIsDrawnAndTold(t *testing.T) {
	page, err := os.ReadFile("../../docs/evaluation/README.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := folder(t, "evaluation")
	if err := os.WriteFile(filepath.Join(dir, "README.md"), page, 0o600); err != nil {
		t.Fatal(err)
	}
	madeUpEvaluation(t, dir)
	madeUpWeights(t, dir)
	if err := drawAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, s := range evaluationSections {
		for _, name := range s.figures {
			file, err := os.Open(filepath.Join(dir, name+".png"))
			if err != nil {
				t.Error(err)
				continue
			}
			img, err := png.DecodeConfig(file)
			file.Close()
			if err != nil || img.Width < 1000 {
				t.Errorf("%s: %d pixels wide, %v", name, img.Width, err)
			}
		}
	}
	filled, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"![fig10a](fig10a.png)", "| Alexnet & VGG-19 | 6.39 |", "made-up GPU", "| alexnet | 781 → 97 (8.05×) |", "12 → 24 (+100 %)", "No request that was accepted is lost"} {
		if !strings.Contains(string(filled), want) {
			t.Errorf("the page does not say %s", want)
		}
	}
	if keep := os.Getenv("PENSTOCK_KEEP_FIGURES"); keep != "" {
		if err := os.CopyFS(keep, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
}

// A report that is not whole yet is drawn as far as it goes: some runs, none of a case, a
// variant that failed, nothing answered at all.
func TestAPartOfAReportIsDrawn(t *testing.T) {
	if testing.Short() {
		t.Skip("draws every figure several times")
	}
	page, err := os.ReadFile("../../docs/evaluation/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, cut := range map[string]func(r *evaluate.Report){
		"nothing yet":    func(r *evaluate.Report) { r.Results = nil },
		"the first step": func(r *evaluate.Report) { r.Results = r.Results[:1] },
		"a third, half of it failures": func(r *evaluate.Report) {
			n := 0
			r.Results = slices.DeleteFunc(r.Results, func(evaluate.Result) bool { n++; return n%3 != 0 })
			for i := range r.Results {
				if i%2 == 0 {
					r.Results[i] = evaluate.Result{Case: r.Results[i].Case, Variant: r.Results[i].Variant, Run: r.Results[i].Run, Error: "the node did not come up"}
				}
			}
		},
		"no answers": func(r *evaluate.Report) {
			for i := range r.Results {
				x := &r.Results[i]
				for l := range x.Loads {
					load := &x.Loads[l]
					load.GoodputRPS, load.WithinPercent, load.GUE = 0, 0, 0
					for f := range load.Functions {
						load.Functions[f] = evaluate.FunctionLoad{Name: load.Functions[f].Name}
					}
				}
				for p := range x.Points {
					x.Points[p].ImagesPerSecond, x.Points[p].BatchTime.P50 = 0, 0
				}
				if x.Timeline == nil {
					continue
				}
				for f := range x.Timeline.Functions {
					fn := &x.Timeline.Functions[f]
					fn.Total, fn.T90Seconds = evaluate.FunctionLoad{}, 0
					for b := range fn.Bins {
						fn.Bins[b] = evaluate.Bin{Offered: fn.Bins[b].Offered}
					}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t, "evaluation")
			if err := os.WriteFile(filepath.Join(dir, "README.md"), page, 0o600); err != nil {
				t.Fatal(err)
			}
			madeUpEvaluation(t, dir)
			for _, f := range evaluationFigures {
				r, err := evaluate.Read(filepath.Join(dir, f.name+".json"))
				if err != nil {
					t.Fatal(err)
				}
				cut(r)
				if err := r.Write(filepath.Join(dir, f.name+".json")); err != nil {
					t.Fatal(err)
				}
			}
			if err := drawAll(dir); err != nil {
				t.Fatal(err)
			}
			filled, err := os.ReadFile(filepath.Join(dir, "README.md"))
			if err != nil {
				t.Fatal(err)
			}
			for _, strange := range []string{"NaN", "Inf", "%!"} {
				if i := strings.Index(string(filled), strange); i >= 0 {
					t.Errorf("the page says %q: … %s …", strange, filled[max(0, i-200):min(len(filled), i+50)])
				}
			}
		})
	}
}

// evaluationOf is a report of one case at one load: goodput of three runs of each
// variant, of 1,000 offered.
func evaluationOf(goods map[string][]float64, behind bool) *evaluation {
	r := &evaluate.Report{Figure: "fig10", Cases: []evaluate.CaseSetting{{Name: "C1", Kind: evaluate.KindLoads}}}
	for name, all := range goods {
		r.Cases[0].Variants = append(r.Cases[0].Variants, name)
		r.Variants = append(r.Variants, evaluate.VariantSetting{Name: name, Label: name, Baseline: name != "penstock"})
		for i, g := range all {
			r.Results = append(r.Results, evaluate.Result{Case: "C1", Variant: name, Run: i + 1,
				Loads: []evaluate.Load{{Level: 1, GoodputRPS: g, WithinPercent: g / 10, SenderBehind: behind}}})
		}
	}
	return &evaluation{Report: r}
}

func TestPenstockIsHeldAgainstEachBaseline(t *testing.T) {
	for _, test := range []struct {
		name                     string
		goods                    map[string][]float64
		behind                   bool
		below, above, same, said int
		verdict                  string
	}{
		{"clearly above", map[string][]float64{"penstock": {900, 910, 905}, "mps": {500, 510, 490}}, false, 0, 1, 0, 2, "misses the objective for more than 1 %: **true** (1)."},
		{"clearly below", map[string][]float64{"penstock": {400, 410, 405}, "mps": {500, 510, 490}}, false, 1, 0, 0, 2, "**false**: below in 1 of 1: C1 at 100 % beside mps (-19.0 %)."},
		{"runs overlap", map[string][]float64{"penstock": {480, 505, 495}, "mps": {500, 510, 490}}, false, 0, 0, 1, 2, "**false**: not above in 1 of 1: C1 at 100 % beside mps (-1.0 %)."},
		{"less than a percent", map[string][]float64{"penstock": {995, 996, 995}, "mps": {999, 999, 1000}}, false, 0, 0, 1, 1, "spread: **true** (1)."},
		{"the sender was late", map[string][]float64{"penstock": {400, 410, 405}, "mps": {500, 510, 490}}, true, 0, 0, 0, 0, ""},
		{"one run has no spread", map[string][]float64{"penstock": {400}, "mps": {500, 510, 490}}, false, 0, 0, 0, 0, ""},
		{"nothing to compare with", map[string][]float64{"penstock": {400, 410, 405}}, false, 0, 0, 0, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := evaluationOf(test.goods, test.behind)
			below, above, same, _ := e.compare("penstock")
			if len(below) != test.below || len(above) != test.above || len(same) != test.same {
				t.Errorf("%d below, %d above, %d the same, want %d, %d, %d", len(below), len(above), len(same), test.below, test.above, test.same)
			}
			said := e.verdicts()
			if len(said) != test.said {
				t.Errorf("says %q, want %d sentences", said, test.said)
			}
			if !strings.Contains(strings.Join(said, "\n"), test.verdict) {
				t.Errorf("says %q, want %q", said, test.verdict)
			}
		})
	}
}

// Latency around a change of share is held against the rest; the first share that is seen
// is no change.
func TestChangesOfShareAreHeldAgainstTheRest(t *testing.T) {
	timeline := &evaluate.Timeline{BinSeconds: 0.1, Seconds: 4,
		Events:    []evaluate.Event{{AtSeconds: 0, What: "share", Function: "a"}, {AtSeconds: 2, What: "share", Function: "a"}, {AtSeconds: 3, What: "rate", Function: "a"}},
		Functions: []evaluate.FunctionTimeline{{Name: "b"}}}
	for i := range 40 {
		b := evaluate.Bin{Offered: 10, OK: 10, P99Millis: 5}
		if at := float64(i) * 0.1; at > 1.85 && at < 2.45 {
			b.P99Millis = 30
		}
		timeline.Functions[0].Bins = append(timeline.Functions[0].Bins, b)
	}
	all := []*evaluate.Result{{Timeline: timeline}}
	if got := around(all, "b"); got != "30 → 5 ms" {
		t.Errorf("around a change: %s, want 30 → 5 ms", got)
	}
	timeline.Events = timeline.Events[:1]
	if got := around(all, "b"); got != "–" {
		t.Errorf("without a change: %s, want –", got)
	}
}

func TestATrialIsNotShown(t *testing.T) {
	dir := folder(t, "evaluation")
	r := &evaluate.Report{Version: 1, Figure: "fig10", Quick: true}
	if err := r.Write(filepath.Join(dir, "fig10.json")); err != nil {
		t.Fatal(err)
	}
	if err := drawAll(dir); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 1 {
		t.Errorf("drew %v from a trial", left)
	}
}

func TestSpreadsAreWrittenShort(t *testing.T) {
	for want, s := range map[string]spread{
		"–":            spreadOf([]float64{math.NaN()}),
		"3":            spreadOf([]float64{3}),
		"3 (2–5)":      spreadOf([]float64{5, 2, 3}),
		"1,000":        spreadOf([]float64{1000.1, 1000.2}),
		"4 (3–4.5) ms": spreadOf([]float64{4, math.NaN(), 3, 4.5}),
	} {
		write, unit := short, ""
		if want == "1,000" {
			write = number
		}
		if strings.HasSuffix(want, "ms") {
			unit = " ms"
		}
		if got := s.text(write, unit); got != want {
			t.Errorf("%+v is written %q, want %q", s, got, want)
		}
	}
}

// whatFailed is a report in which Penstock's runs on one of two cases failed.
func whatFailed() *evaluation {
	e := evaluationOf(map[string][]float64{"penstock": {900, 910, 905}, "mps": {500, 510, 490}}, false)
	other := evaluationOf(map[string][]float64{"mps": {500, 510, 490}}, false)
	e.Cases = append(e.Cases, evaluate.CaseSetting{Name: "C2", Kind: evaluate.KindLoads, Variants: []string{"penstock", "mps"}})
	for _, r := range other.Results {
		r.Case = "C2"
		e.Results = append(e.Results, r)
	}
	for run := 1; run <= 3; run++ {
		e.Results = append(e.Results, evaluate.Result{Case: "C2", Variant: "penstock", Run: run,
			Error: `wait: vgg16 does not serve: too | small; node last said:` + "\n" + `{"reason":"another","time":"now"}`})
	}
	e.Left = 3
	return e
}

// A variant of which no run came about answers nothing: that is below whoever answers.
func TestAVariantThatFailedIsBelowAndSaidSo(t *testing.T) {
	e := whatFailed()
	said := strings.Join(e.verdicts(), "\n")
	for _, want := range []string{"never below a baseline beyond the spread: **false**: below in 1 of 2: C2 (all runs failed).", "**false**: not above in 1 of 2: C2 (all runs failed)."} {
		if !strings.Contains(said, want) {
			t.Errorf("says %q, want %q", said, want)
		}
	}
	const want = "**C2, penstock, failed** in all its runs, 3: wait: vgg16 does not serve: too / small; node last said:"
	if got := e.failures(); len(got) != 1 || got[0] != want {
		t.Errorf("failures are %q, want %q", got, want)
	}
	if got := e.state(); got != "0 to 3 runs of each, seed 0; **3 failed**" {
		t.Errorf("there is %q of the report", got)
	}
}

// The table has the word where the numbers would be, and the reason under it.
func TestATableSaysWhatFailedAndWhy(t *testing.T) {
	dir := folder(t, "evaluation")
	e := whatFailed()
	e.Version = 1
	if err := e.Write(filepath.Join(dir, "fig10a.json")); err != nil {
		t.Fatal(err)
	}
	text, err := told("fig10a", loadsTable("fig10a"))(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| failed |", "failed** in all its runs, 3: wait: vgg16 does not serve"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table has no %q:\n%s", want, text)
		}
	}
}

func TestTheReasonOfAFailureIsFound(t *testing.T) {
	for text, want := range map[string]string{
		"node did not come up": "node did not come up",
		"start: vgg16 does not serve: no memory\n{\"reason\":\"x\",\"time\":\"\"}": "start: vgg16 does not serve: no memory",
		"… \"}\n{\"state\":\"linking\",\"reason\":\"wrong | size\",\"time\":\"\"}": "wrong / size",
		"… \"process\"}\n{\"message\":\"process\"}\n":                              "only the end of the node's log is left of it, in the report",
		strings.Repeat("ä", 300): strings.Repeat("ä", 240) + " …",
	} {
		if got := why(text); got != want {
			t.Errorf("the reason in %q is %q, want %q", text, got, want)
		}
	}
}

// Runs in which the sender did not keep up count on neither side.
func TestARunWhoseSenderWasLateDoesNotCount(t *testing.T) {
	e := evaluationOf(map[string][]float64{"penstock": {400, 410, 405}, "mps": {500, 510, 390}}, false)
	for i := range e.Results {
		if r := &e.Results[i]; r.Variant == "mps" && r.Run == 3 {
			r.Loads[0].SenderBehind = true
		}
	}
	if below, _, same, _ := e.compare("penstock"); len(below) != 1 || len(same) != 0 {
		t.Errorf("below are %v, the same %v: want one that is below", below, same)
	}
}

// What has not been measured often enough yet is said beside what has.
func TestAVerdictSaysHowMuchIsOpen(t *testing.T) {
	e := evaluationOf(map[string][]float64{"penstock": {900, 910, 905}, "mps": {500, 510, 490}, "aimd": {500}}, false)
	if got, want := e.verdictOf("penstock").never(), "**true** (1) so far (open: 1)"; got != want {
		t.Errorf("the verdict is %q, want %q", got, want)
	}
}

// A node gives up what would be late, which no percentile of its answers shows.
func TestWhatWasGivenUpIsOutsideTheObjective(t *testing.T) {
	line := &evaluate.Timeline{Functions: []evaluate.FunctionTimeline{{Name: "vgg19", SLOMillis: 25,
		Total: evaluate.FunctionLoad{P99Millis: 20, WithinPercent: 60}}}}
	e := &evaluation{Report: &evaluate.Report{Figure: "fig12c-14",
		Cases:   []evaluate.CaseSetting{{Name: "25 ms", Kind: evaluate.KindTimeline, Functions: []evaluate.FunctionSetting{{Name: "vgg19", SLOMillis: 25}}}},
		Results: []evaluate.Result{{Case: "25 ms", Variant: "mps-slab", Run: 1, Timeline: line}}}}
	if said := strings.Join(e.convergenceVerdicts(), "\n"); !strings.Contains(said, "**false**, 25 ms: 40 % are not") {
		t.Errorf("says %q, want that 40 %% are not within the objective", said)
	}
}

// A percentage at which a model answers wrongly is told once, however many runs found it.
func TestAPercentageThatFailedIsSaid(t *testing.T) {
	e := &evaluation{Report: &evaluate.Report{Cases: []evaluate.CaseSetting{{Name: "models", Kind: evaluate.KindBare, Variants: []string{"percentage"}}}}}
	for run := 1; run <= 2; run++ {
		e.Results = append(e.Results, evaluate.Result{Case: "models", Variant: "percentage", Run: run,
			Points: []evaluate.Point{{Model: "vgg19", Batch: 1, Percent: 50}, {Model: "vgg19", Percent: 8, Error: "wrong answers"}}})
	}
	const want = "**models, percentage, failed** with vgg19 at 8 %: wrong answers"
	if got := e.failures(); len(got) != 1 || got[0] != want {
		t.Errorf("failures are %q, want %q", got, want)
	}
}

// A time line that is drawn is the run in the middle, whichever came first.
func TestTheTypicalRunIsTheMedian(t *testing.T) {
	of := func(within ...int) (all []*evaluate.Result) {
		for i, n := range within {
			r := &evaluate.Result{Run: i + 1}
			if n >= 0 {
				half := evaluate.FunctionTimeline{Bins: []evaluate.Bin{{Within: n / 2}}}
				r.Timeline = &evaluate.Timeline{Functions: []evaluate.FunctionTimeline{half, half}}
			}
			all = append(all, r)
		}
		return all
	}
	for _, c := range []struct {
		within []int
		want   int // a run; 0 for none
	}{
		{nil, 0}, {[]int{-1}, 0}, {[]int{10}, 1}, {[]int{-1, 10}, 2},
		{[]int{10, 40}, 1}, {[]int{40, 10}, 2}, {[]int{10, 40, 30}, 3}, {[]int{30, 10, 40}, 1}, {[]int{-1, 40, 10, 30}, 4},
	} {
		got := 0
		if r := typical(of(c.within...), inTime); r != nil {
			got = r.Run
		}
		if got != c.want {
			t.Errorf("of %v it is run %d, want %d", c.within, got, c.want)
		}
	}
}
