package report

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen"
)

// loadReport writes a report of `penstock load` into a file.
func loadReport(t *testing.T, name string, r *loadgen.Report) string {
	t.Helper()
	var text bytes.Buffer
	must.OK(t, r.WriteJSON(&text))
	return written(t, name, text.String())
}

func written(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
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
		must.OK(t, r.Add(file))
	}
	got := r.Page("test")
	if len(got.Runs) != 2 {
		t.Fatalf("runs %+v, want two", got.Runs)
	}
	before, after := got.Runs[0], got.Runs[1]
	var functions []loadgen.FunctionReport
	must.OK(t, json.Unmarshal(before.Functions, &functions))
	if before.Name != "before" || before.Note != "" || !reflect.DeepEqual(functions, []loadgen.FunctionReport{f}) {
		t.Errorf("run %+v, functions %+v, want %+v", before, functions, f)
	}
	if after.Name != "after" || after.Note != "interrupted after 1.5 s, 1 times without any answer" {
		t.Errorf("run %q: %q", after.Name, after.Note)
	}
}

func TestBadFiles(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":        {" \n", "is empty; want the output of `penstock load -o json`"},
		"no json":      {"sent 100", "invalid character 's' looking for beginning of value at byte 1"},
		"cut":          {`{"seconds": 1, "functions": [`, "unexpected end of JSON input"},
		"a list":       {`[1]`, "it is no run"},
		"a status":     {`{"functions": [{"name": "face"}]}`, "it is no run"},
		"no function":  {`{"seconds": 1, "functions": []}`, "it is no run"},
		"wrong type":   {`{"seconds": 1, "functions": [{"name": 7}]}`, "cannot unmarshal number"},
		"another kind": {`{"version": 1, "figure": "table5", "results": [{"case": "a"}]}`, "it is no run"},
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
