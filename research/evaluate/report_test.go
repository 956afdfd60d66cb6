package evaluate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// completeReport returns a quick report of a figure as a call writes it, with invented
// numbers.
func completeReport(t *testing.T, o Options) *Report {
	t.Helper()
	r, err := newRunner(o)
	must.OK(t, err)
	for _, f := range r.figure.models() {
		r.report.Capacity = append(r.report.Capacity, Capacity{Model: f.Model, PerSecond: 100})
	}
	steps, err := r.figure.plan(o.Runs)
	must.OK(t, err)
	for _, s := range steps {
		x := Result{Case: s.c.Name, Variant: s.variant.name, Run: s.run, TookSeconds: 1}
		load := func(f Function) FunctionLoad {
			return FunctionLoad{Name: f.Name, OfferedRPS: 10, AnsweredRPS: 9, GoodputRPS: 8, Sent: 10, OK: 9, Late: 1}
		}
		switch s.c.Kind {
		case kindLoads:
			for _, level := range s.c.Levels {
				l := Load{Level: level, Seconds: 1, OfferedRPS: 10, AnsweredRPS: 9, GoodputRPS: 8}
				for _, f := range s.c.Functions {
					l.Functions = append(l.Functions, load(f))
				}
				x.Loads = append(x.Loads, l)
			}
		case kindTimeline:
			x.Timeline = &Timeline{BinSeconds: 1, Seconds: 1}
			for _, f := range s.c.Functions {
				x.Timeline.Functions = append(x.Timeline.Functions, FunctionTimeline{Name: f.Name, Bins: []Bin{{Offered: 10, OK: 9}}, Total: load(f)})
			}
		case kindBare:
			x.Points = []Point{{Model: s.c.Functions[0].Model, Batch: 1, ImagesPerSecond: 100}}
		default:
			t.Fatalf("case of kind %q", s.c.Kind)
		}
		r.report.Results = append(r.report.Results, x)
	}
	return r.report
}

// A report that no call can have written is neither continued nor shown.
func TestCheckReport(t *testing.T) {
	type cut struct {
		figure string
		cut    func(*Report)
		want   string
	}
	for name, test := range map[string]cut{
		"no loads":             {"fig11", func(r *Report) { r.Results[0].Loads = nil }, "has no loads"},
		"a load less":          {"fig11", func(r *Report) { x := &r.Results[0]; x.Loads = x.Loads[1:] }, "has loads of levels"},
		"a load of no time":    {"fig11", func(r *Report) { r.Results[0].Loads[1].Seconds = 0 }, "at load 2 has 0 seconds"},
		"no level":             {"fig11", func(r *Report) { r.Results[0].Loads[0].Level = 0 }, "at load 1 has level 0"},
		"a negative rate":      {"fig11", func(r *Report) { r.Results[0].Loads[0].OfferedRPS = -0.75 }, "-0.75 offered"},
		"a function's":         {"fig11", func(r *Report) { r.Results[0].Loads[0].Functions[0].GoodputRPS = -2 }, "-2 within the objective"},
		"no functions":         {"fig11", func(r *Report) { r.Results[0].Loads[0].Functions = nil }, "has functions []"},
		"requests nobody knew": {"fig11", func(r *Report) { r.Results[0].Loads[0].Functions[0].OK = 5 }, "has 10 requests sent to"},
		"capacity 0":           {"fig11", func(r *Report) { r.Capacity[0].PerSecond = 0 }, "is 0 requests a second, want more than 0"},
		"capacity -5":          {"fig11", func(r *Report) { r.Capacity[0].PerSecond = -5 }, "is -5 requests a second"},
		"no capacity":          {"fig11", func(r *Report) { r.Capacity = nil }, "rests on the capacity of"},
		"capacity twice":       {"fig11", func(r *Report) { r.Capacity = append(r.Capacity, r.Capacity[0]) }, "stands twice"},
		"a result twice":       {"fig11", func(r *Report) { r.Results = append(r.Results, r.Results[0]) }, "stands twice"},
		"no run":               {"fig11", func(r *Report) { r.Results[0].Run = 0 }, "has no number"},
		"no cases":             {"fig11", func(r *Report) { r.Cases = nil }, "none of the report's"},
		"another's variant":    {"fig11", func(r *Report) { r.Results[0].Variant = "best" }, "the case does not have"},
		"no kind":              {"fig11", func(r *Report) { r.Cases[0].Kind = "" }, `of kind ""`},
		"time that ran back":   {"fig11", func(r *Report) { r.Results[0].TookSeconds = -1 }, "took -1 s"},
		"no timeline":          {"fig16", func(r *Report) { r.Results[0].Timeline = nil }, "has no timeline"},
		"no bins":              {"fig16", func(r *Report) { r.Results[0].Timeline.Functions[0].Bins = nil }, "has no bins of"},
		"bins of no time":      {"fig16", func(r *Report) { r.Results[0].Timeline.BinSeconds = 0 }, "in bins of 0 s"},
		"a function less": {"fig16", func(r *Report) { x := r.Results[0].Timeline; x.Functions = x.Functions[1:] },
			"in its timeline has functions"},
		"no points":        {"table5", func(r *Report) { r.Results[0].Points = nil }, "has no points"},
		"a point of none":  {"table5", func(r *Report) { r.Results[0].Points[0].ImagesPerSecond = 0 }, "has 0 images a second"},
		"a total of fewer": {"fig16", func(r *Report) { r.Results[0].Timeline.Functions[0].Total.Late = 0 }, "in its timeline has 10 requests sent"},
	} {
		t.Run(name, func(t *testing.T) {
			o := quickly(t, "/nowhere/penstock", test.figure)
			r := completeReport(t, o)
			file := filepath.Join(o.Out, test.figure+".json")
			must.OK(t, r.Write(file))
			if p, err := Prepare(o); err != nil || p.Left != 0 {
				t.Fatalf("undamaged: %d left, %v", p.Left, err)
			}
			test.cut(r)
			must.OK(t, r.Write(file))
			_, err := Run(t.Context(), o)
			if err == nil {
				t.Fatal("it is gone on with")
			}
			for _, want := range []string{file, test.want, "want", "remove it"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("says %v, want %q in it", err, want)
				}
			}
		})
	}
}

// The partial data of a failed measurement is ignored, because the measurement is
// repeated.
func TestFailureComplete(t *testing.T) {
	o := quickly(t, "/nowhere/penstock", "fig11")
	r := completeReport(t, o)
	r.Results[0].Loads, r.Results[0].Error = nil, "the node did not come up"
	must.OK(t, r.Write(filepath.Join(o.Out, "fig11.json")))
	if p, err := Prepare(o); err != nil || p.Left != 1 {
		t.Errorf("%d left, %v: want one", p.Left, err)
	}
}

func TestReportIsFolder(t *testing.T) {
	o := quickly(t, "/nowhere/penstock", "fig11")
	file := filepath.Join(o.Out, "fig11.json")
	must.OK(t, os.Mkdir(file, 0o755))
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), file+" is a folder, want a file or nothing") {
		t.Errorf("a folder: %v", err)
	}
}

// The reports that the pages show are complete.
func TestCommittedReports(t *testing.T) {
	page, err := os.ReadFile("../results/evaluation/README.md")
	must.OK(t, err)
	for _, name := range Names() {
		file := filepath.Join("../results/evaluation", name+".json")
		if !strings.Contains(string(page), "\n<!-- begin "+name+" -->\n") {
			if _, err := os.Stat(file); err == nil {
				t.Errorf("%s is on no page", file)
			}
			continue // not measured yet
		}
		r, err := read(file)
		if err != nil {
			t.Error(err)
			continue
		}
		figure, err := Find(name)
		must.OK(t, err)
		if err := r.checkComplete(figure); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
