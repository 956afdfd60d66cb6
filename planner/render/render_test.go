package render

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
)

var update = flag.Bool("update", false, "write the golden files anew")

func gpu(t testing.TB, name string) plan.GPU {
	t.Helper()
	g, err := plan.Lookup(name)
	must.OK(t, err)
	return g
}

// mixed is a plan on A100s, an A30 and a V100. One GPU is full, and two look the
// same. Some slots are free, and one is lost.
func mixed(t testing.TB) *plan.Plan {
	a100, a30, v100 := gpu(t, "a100-80"), gpu(t, "a30"), gpu(t, "v100")
	cams := plan.Service{Name: "cameras", Model: "resnet50", RateRPS: 1200, SLOMS: 138}
	text := plan.Service{Name: "bert", Model: "bert", RateRPS: 46, SLOMS: 4294}
	long := plan.Service{Name: "number-plates-of-lorries", Model: "mobilenetv2", RateRPS: 90.5, SLOMS: 50}
	big := plan.Point{GPCs: 4, Batch: 32, Processes: 3, ThroughputRPS: 900, LatencyMS: 61.5}
	half := plan.Point{GPCs: 3, Batch: 16, Processes: 2, ThroughputRPS: 25, LatencyMS: 1900}
	one := plan.Point{GPCs: 1, Batch: 4, Processes: 1, ThroughputRPS: 60, LatencyMS: 12}
	p := &plan.Problem{Services: []plan.Service{cams, text, long}, Fleet: []plan.Stock{{GPU: a100, Count: 3}, {GPU: a30, Count: 1}, {GPU: v100, Count: 1}}}
	pl := plan.New(p, "by hand", []plan.Segment{
		plan.SegmentOf(0, a100, 0, cams, big), plan.SegmentOf(0, a100, 4, text, half),
		plan.SegmentOf(1, a100, 0, cams, big), plan.SegmentOf(1, a100, 4, text, half),
		plan.SegmentOf(2, a100, 1, long, one), plan.SegmentOf(2, a100, 6, long, one),
		plan.SegmentOf(3, a30, 2, long, one),
		plan.SegmentOf(4, v100, 10, long, plan.Point{GPCs: 12, Batch: 8, Processes: 1, ThroughputRPS: 150, LatencyMS: 20}),
	})
	pl.DelayMS, pl.LowerBound, pl.Notes = 1.234, 2, []string{"made by hand"}
	return pl
}

func TestTable(t *testing.T) {
	var b strings.Builder
	must.OK(t, Table(&b, mixed(t)))
	golden := filepath.Join("testdata", "mixed.txt")
	if *update {
		must.OK(t, os.MkdirAll("testdata", 0o755))
		must.OK(t, os.WriteFile(golden, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	must.OK(t, err)
	if b.String() != string(want) {
		t.Errorf("the table is\n%s\nwant (go test ./planner/render -update writes it)\n%s", b.String(), want)
	}
}

// A machine without a GPU has no multiprocessors.
func TestTableCPU(t *testing.T) {
	machine := gpu(t, "cpu")
	service := plan.Service{Name: "s", Model: "m", RateRPS: 10, SLOMS: 100}
	p := &plan.Problem{GPU: machine, Services: []plan.Service{service}}
	point := plan.Point{GPCs: 40, Batch: 1, Processes: 1, ThroughputRPS: 20, LatencyMS: 10}
	drawn := plan.New(p, "penstock", []plan.Segment{plan.SegmentOf(0, machine, 0, service, point)})
	var table strings.Builder
	must.OK(t, Table(&table, drawn))
	for _, want := range []string{"40 of 100 % of the CPU", "40 % 1 × 1", "1 × 40 %"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("does not say %q:\n%s", want, table.String())
		}
	}
	if strings.Contains(table.String(), "SMs") {
		t.Errorf("speaks of SMs:\n%s", table.String())
	}
}

func TestTableProof(t *testing.T) {
	for want, edit := range map[string]func(*plan.Plan){
		"proved: no plan within": func(p *plan.Plan) { p.Optimal = true },
		"fewer than 2 GPUs":      func(*plan.Plan) {},
		"not proved\n":           func(p *plan.Plan) { p.LowerBound = 0 },
	} {
		p := mixed(t)
		edit(p)
		var b strings.Builder
		if err := Table(&b, p); err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("want %q of\n%s%v", want, b.String(), err)
		}
	}
}

func TestTableNames(t *testing.T) {
	p := mixed(t)
	rename := func(from, to string) {
		for i := range p.Services {
			if p.Services[i].Service == from {
				p.Services[i].Service = to
			}
		}
		for i := range p.Segments {
			if p.Segments[i].Service == from {
				p.Segments[i].Service = to
			}
		}
	}
	rename("cameras", "\x1b[2Jdark\n\ttab")
	rename("number-plates-of-lorries", "車のナンバープレート")
	var b strings.Builder
	must.OK(t, Table(&b, p))
	if strings.ContainsAny(b.String(), "\x1b\t") {
		t.Errorf("a name's controls are printed: %q", b.String())
	}
	width := 0
	for l := range strings.Lines(b.String()) {
		switch {
		case strings.HasPrefix(strings.TrimSpace(l), "┌"):
			width = text.StringWidth(strings.TrimRight(l, "\n"))
		case strings.ContainsAny(l, "│├└") && text.StringWidth(strings.TrimRight(l, "\n")) != width:
			t.Errorf("a line is %d wide, those above it %d:\n%s", text.StringWidth(l), width, b.String())
		}
	}
}

func TestTableSections(t *testing.T) {
	more := Section{Title: "Replay", Text: []string{"seed 1"}, Head: []string{"service", "late"}, Rows: [][]string{{"cameras", "0.1 %"}, {"bert", "12.0 %"}}}
	var b strings.Builder
	must.OK(t, Table(&b, mixed(t), more, Section{Title: "Change", Text: []string{"nothing"}}))
	want := "\nReplay\nseed 1\n" +
		"┌─────────┬────────┐\n│ service │ late   │\n├─────────┼────────┤\n│ cameras │  0.1 % │\n│ bert    │ 12.0 % │\n└─────────┴────────┘\n" +
		"\nChange\nnothing\n"
	if !strings.HasSuffix(b.String(), want) {
		t.Errorf("want at the end\n%s\nof\n%s", want, b.String())
	}
}

func TestTableNoGPU(t *testing.T) {
	for want, edit := range map[string]func(*plan.Segment){
		"no placement table":                    func(s *plan.Segment) { s.GPUModel = "a100-81" },
		"size 5 of cameras":                     func(s *plan.Segment) { s.GPCs = 5 },
		"in slot 6 of a100":                     func(s *plan.Segment) { s.Slot = 6 },
		"in slot -1":                            func(s *plan.Segment) { s.Slot = -1 },
		"size 3 of bert does not fit in slot 4": func(s *plan.Segment) { s.Slot = 2 },
	} {
		p := mixed(t)
		edit(&p.Segments[0])
		if err := Table(io.Discard, p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestTableNoSegments(t *testing.T) {
	must.OK(t, Table(io.Discard, &plan.Plan{}))
}
