// Package plots runs the tests of the plots, which are written in Python.
package plots

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/research/evaluate"
)

// python returns a python3 that has matplotlib: PENSTOCK_PYTHON, the one in PATH, or the
// distribution's.
func python(t *testing.T) string {
	t.Helper()

	for _, name := range []string{os.Getenv("PENSTOCK_PYTHON"), "python3", "/usr/bin/python3"} {
		if name != "" && exec.Command(name, "-c", "import matplotlib").Run() == nil {
			return name
		}
	}
	t.Skip("no python3 has matplotlib (apt-get install python3-matplotlib, or PENSTOCK_PYTHON=...): the plots are not tested here")
	return ""
}

func run(t *testing.T, args ...string) {
	t.Helper()

	c := exec.CommandContext(t.Context(), python(t), args...)
	c.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestPlots(t *testing.T) {
	inputs(t, "*.py", "../results/*/*")
	run(t, "-m", "unittest", "test_plots")
}

// TestPartialReports draws every figure four times.
func TestPartialReports(t *testing.T) {
	if testing.Short() {
		t.Skip("not with -short: it draws every figure four times")
	}
	inputs(t, "*.py", "../results/evaluation/*")
	run(t, "-m", "unittest", "test_partial")
}

// inputs reads files, so that go test runs again after they change.
func inputs(t *testing.T, patterns ...string) {
	t.Helper()

	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("find %s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			if info, err := os.Stat(file); err == nil && !info.IsDir() {
				if _, err := os.ReadFile(file); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestFigures checks that the plots know every figure that is measured: an unknown report
// is an error of theirs.
func TestFigures(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "evaluation")
	must.OK(t, os.Mkdir(dir, 0o755))
	for _, name := range evaluate.Names() {
		report := evaluate.Report{Version: 1, Figure: name}
		must.OK(t, report.Write(filepath.Join(dir, name+".json")))
	}
	run(t, "plot.py", dir)
}

// TestReportFields checks that the committed evaluation reports have only keys that the
// code writes. The plots are tested on them, so a renamed key cannot go unnoticed.
func TestReportFields(t *testing.T) {
	files, err := filepath.Glob("../results/evaluation/fig*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("find reports: %d, %v", len(files), err)
	}
	for _, file := range files {
		f, err := os.Open(file)
		must.OK(t, err)
		d := json.NewDecoder(f)
		d.DisallowUnknownFields()
		if err := d.Decode(&evaluate.Report{}); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		f.Close()
	}
}
