package report

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/gateway/page"
	"github.com/penstock/penstock/loadgen"
)

// loadReport writes a report of `penstock load` into a file.
func loadReport(t *testing.T, name string, r *loadgen.Report) string {
	t.Helper()
	var text bytes.Buffer
	if err := r.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	return written(t, name, text.String())
}

func written(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestLoadReports(t *testing.T) {
	lost := uint64(2)
	f := loadgen.FunctionReport{
		Name: "face", SLOMillis: 25, Sent: 100, Answered: 97, OK: 90, Late: 1, Incomplete: 2, Busy: 1, Refused: 1, Failed: 2, Unanswered: 3,
		WithinSLO: 88, GoodputRPS: 44, OfferedRPS: 50, P50Millis: 2, P99Millis: 30, MeanBatch: 1.5, Lost: &lost,
		Stages: map[string]loadgen.StageReport{"infer": {P50: 1, P99: 3}},
	}
	var r Report
	for _, file := range []string{
		loadReport(t, "before.json", &loadgen.Report{Seconds: 2, Functions: []loadgen.FunctionReport{f}}),
		loadReport(t, "after.json", &loadgen.Report{Seconds: 1.5, Interrupted: true, Outages: make([]loadgen.Outage, 1), Functions: []loadgen.FunctionReport{f}}),
	} {
		if err := r.Add(file); err != nil {
			t.Fatal(err)
		}
	}
	want := page.Function{
		Name: "face", SLOMillis: 25, Sent: 100, OK: 90, Late: 1, Incomplete: 2, Busy: 1, Refused: 1, Failed: 2, Unanswered: 3,
		OfferedRPS: 50, GoodputRPS: 44, WithinPercent: 88, P50Millis: 2, P99Millis: 30, MeanBatch: 1.5, Lost: &lost,
		Stages: map[string]page.Stage{"infer": {P50: 1, P99: 3}},
	}
	got := r.Page("test")
	if len(got.Groups) != 1 || len(got.Groups[0].Runs) != 2 {
		t.Fatalf("groups %+v, want one with two runs", got.Groups)
	}
	before, after := got.Groups[0].Runs[0], got.Groups[0].Runs[1]
	if before.Name != "before" || before.Note != "" || !reflect.DeepEqual(before.Functions, []page.Function{want}) {
		t.Errorf("run %+v, want %+v", before, want)
	}
	if after.Name != "after" || after.Note != "interrupted after 1.5 s, 1 times without any answer" {
		t.Errorf("run %q: %q", after.Name, after.Note)
	}
}

// Each result of the repository that has requests can be shown.
func TestLabResults(t *testing.T) {
	files, err := filepath.Glob("../../../research/results/*/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d results, %v", len(files), err)
	}
	shown, timelines := 0, 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte(`"figure"`)) || !bytes.Contains(text, []byte(`"offered_rps"`)) {
			continue
		}
		var r Report
		if err := r.Add(file); err != nil {
			t.Error(err)
			continue
		}
		shown++
		for _, g := range r.groups {
			for _, run := range g.Runs {
				if len(run.Functions) == 0 {
					t.Errorf("%s: %s %s has no functions", file, g.Name, run.Name)
				}
				for _, f := range run.Functions {
					ended := f.OK + f.Late + f.Incomplete + f.Busy + f.Refused + f.Failed + f.Unanswered
					if f.Name == "" || f.Sent != ended || f.OK > 0 && f.P99Millis == 0 {
						t.Errorf("%s: %s %s: %+v", file, g.Name, run.Name, f)
					}
					if len(f.Bins) > 0 && f.BinSeconds > 0 {
						timelines++
					}
				}
			}
		}
	}
	if shown < 5 || timelines == 0 {
		t.Errorf("%d results with %d time lines", shown, timelines)
	}
}

// Runs of the same case of two files are side by side.
func TestLabGroups(t *testing.T) {
	const text = `{"version": 1, "figure": "f", "title": "A title", "quick": true, "variants": [{"name": "v", "label": "A variant"}], "results": [
		{"case": "C1", "variant": "v", "run": 1, "loads": [{"level": 0.5, "functions": [{"name": "a", "within_percent": 40}]}, {"functions": [{"name": "a"}]}]},
		{"case": "C2", "variant": "w", "run": 1, "error": "no node"}]}`
	var r Report
	for _, name := range []string{"old.json", "new.json"} {
		if err := r.Add(written(t, name, text)); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for _, run := range r.groups[0].Runs {
		names = append(names, run.Name)
	}
	want := []string{"old: A variant, run 1, load 0.5", "old: A variant, run 1", "new: A variant, run 1, load 0.5", "new: A variant, run 1"}
	if len(r.groups) != 1 || r.groups[0].Name != "A title: C1" || !slices.Equal(names, want) {
		t.Errorf("groups %+v", r.groups)
	}
	if run := r.groups[0].Runs[0]; run.Functions[0].WithinPercent != 40 || !strings.Contains(run.Note, "quick") {
		t.Errorf("run %+v", run)
	}
}

func TestBadFiles(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":           {" \n", "is empty; want the output of `penstock load -o json`"},
		"no json":         {"sent 100", "invalid character 's' looking for beginning of value at byte 1"},
		"cut":             {`{"seconds": 1, "functions": [`, "unexpected end of JSON input"},
		"a list":          {`[1]`, "it is no run"},
		"a status":        {`{"functions": [{"name": "face"}]}`, "it is no run"},
		"no function":     {`{"seconds": 1, "functions": []}`, "it is no run"},
		"wrong type":      {`{"seconds": 1, "functions": [{"name": 7}]}`, "cannot unmarshal number"},
		"another version": {`{"version": 9, "figure": "fig1", "results": []}`, "it has version 9, want 1"},
		"no requests":     {`{"version": 1, "figure": "table5", "results": [{"case": "a"}]}`, "no complete run with requests"},
	} {
		file := written(t, "run.json", c.text)
		if err := new(Report).Add(file); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want %q and the file", name, err, c.want)
		}
	}
	if err := new(Report).Add(filepath.Join(t.TempDir(), "none.json")); err == nil || !strings.Contains(err.Error(), "none.json") {
		t.Errorf("missing file: %v", err)
	}
	if err := new(Report).Add(t.TempDir()); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("folder: %v", err)
	}
}
