package render

import (
	"encoding/json"
	"encoding/xml"
	"flag"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/jedib0t/go-pretty/v6/text"
	"pgregory.net/rapid"

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
	if page := html(t, drawn); !strings.Contains(page, "40 % of the CPU; batch 1") || strings.Contains(page+table.String(), "SMs") {
		t.Errorf("speaks of SMs:\n%s\n%s", page, table.String())
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
	b.Reset()
	must.OK(t, HTML(&b, mixed(t), more))
	elements(t, b.String())
	if want := `<h2>Replay</h2>
<p>seed 1</p>
<div class="wide"><table>
<thead><tr><th>service</th><th class="n">late</th></tr></thead>
<tbody>
<tr><td>cameras</td><td class="n">0.1 %</td></tr>`; !strings.Contains(b.String(), want) {
		t.Errorf("want\n%s\nof\n%s", want, b.String())
	}
}

func TestYAML(t *testing.T) {
	p := mixed(t)
	p.Services[0].Service = "on: [#" // YAML would take these for its own
	p.Services[1].Service = "0x10"
	var b strings.Builder
	must.OK(t, YAML(&b, p))
	text, err := yaml.YAMLToJSON([]byte(b.String()))
	if err != nil {
		t.Fatalf("%v:\n%s", err, b.String())
	}
	var back plan.Plan
	must.OK(t, json.Unmarshal(text, &back))
	if !reflect.DeepEqual(&back, p) {
		t.Errorf("came back as\n%+v\nwant\n%+v", back, p)
	}
}

func html(t testing.TB, p *plan.Plan) string {
	t.Helper()
	var b strings.Builder
	must.OK(t, HTML(&b, p))
	return b.String()
}

// elements counts the elements of a page by class. It fails the test if the page is
// not well-formed.
func elements(t testing.TB, text string) (classes map[string]int) {
	t.Helper()
	classes = map[string]int{}
	d := xml.NewDecoder(strings.NewReader(text))
	d.Entity = xml.HTMLEntity
	for {
		token, err := d.Token()
		if err == io.EOF {
			return classes
		}
		if err != nil {
			t.Fatalf("%v of\n%s", err, text)
		}
		if e, ok := token.(xml.StartElement); ok {
			for _, a := range e.Attr {
				if a.Name.Local == "class" {
					classes[a.Value]++
				}
			}
		}
	}
}

func TestPage(t *testing.T) {
	document := html(t, mixed(t))
	seen := elements(t, document)
	// GPUs 0 and 1 look the same. GPU 2 has five free slots and a lost one, the A30
	// has three free slots, and the V100 has two free ranges.
	want := map[string]int{"name": 4, "cell": 2 + 2 + 1 + 1, "free": 5 + 3 + 2, "lost": 1, "swatch": 3}
	for class, n := range want {
		if seen[class] != n {
			t.Errorf("%d of class %s, want %d", seen[class], class, n)
		}
	}
	for _, wantText := range []string{"GPU 0–1", "grid-column: 5 / span 4", "1fr 1fr 1fr 1fr 1fr 1fr 1fr .2fr", "number-plates-of-lorries", "made by hand", "24 SMs 8 × 1"} {
		if !strings.Contains(document, wantText) {
			t.Errorf("the page does not say %q", wantText)
		}
	}
}

func TestPageNoRequests(t *testing.T) {
	document := html(t, mixed(t))
	if found := regexp.MustCompile(`(?i)https?:|//[a-z]|src=|href=|@import|url\(|<script`).FindString(document); found != "" {
		t.Errorf("the page has %q: want nothing from elsewhere", found)
	}
}

func TestPageColours(t *testing.T) {
	document := html(t, mixed(t))
	for _, wantText := range []string{"color-scheme: light dark", "prefers-color-scheme: dark"} {
		if !strings.Contains(document, wantText) {
			t.Errorf("the page does not say %q", wantText)
		}
	}
	if strings.Contains(document, "ZgotmplZ") {
		t.Error("html/template refused a value")
	}
}

func TestPageEscapes(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := mixed(t)
		evil := `</b><script>alert(1)</script>"'` + rapid.String().Draw(r, "name")
		evil = strings.Map(func(c rune) rune { // the test parses the page as XML, which has no control characters
			if c < ' ' || c >= 0x7f && c < 0xa0 || c >= 0xfffe && c <= 0xffff || c >= 0xd800 && c < 0xe000 {
				return -1
			}
			return c
		}, evil)
		p.Services[0].Service, p.Services[0].Model, p.Notes = evil, evil, []string{evil}
		for i := range p.Segments {
			if p.Segments[i].Service == "cameras" {
				p.Segments[i].Service, p.Segments[i].Model = evil, evil
			}
		}
		text := html(t, p)
		if strings.Contains(text, "<script") {
			t.Fatal("a name became a script")
		}
		if got := elements(t, text)["cell"]; got != 6 {
			t.Fatalf("%d cells, want 6", got)
		}
	})
}

func TestTableNoGPU(t *testing.T) {
	for want, edit := range map[string]func(*plan.Segment){
		"no placement table":                    func(s *plan.Segment) { s.GPUModel = "a100-81" },
		"size 5 of cameras":                     func(s *plan.Segment) { s.GPCs = 5 },
		"in slot 6 of a100":                     func(s *plan.Segment) { s.Slot = 6 },
		"in slot -1":                            func(s *plan.Segment) { s.Slot = -1 },
		"size 3 of bert does not fit in slot 4": func(s *plan.Segment) { s.Slot = 2 },
	} {
		for form, write := range map[string]func(io.Writer, *plan.Plan, ...Section) error{"table": Table, "html": HTML} {
			p := mixed(t)
			edit(&p.Segments[0])
			if err := write(io.Discard, p); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", form, err, want)
			}
		}
	}
}

func TestTableNoSegments(t *testing.T) {
	for form, write := range map[string]func(io.Writer, *plan.Plan, ...Section) error{"table": Table, "html": HTML} {
		if err := write(io.Discard, &plan.Plan{}); err != nil {
			t.Errorf("%s: %v", form, err)
		}
	}
}
