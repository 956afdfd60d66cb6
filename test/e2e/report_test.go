package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
)

// Two runs of `penstock load` are side by side in one file, which Chromium opens without a server.
func TestReport(t *testing.T) {
	nd := start(t, "functions:\n  - {name: face, port: 0, slo: 5s}\n  - {name: fashion, port: 0, slo: 1us}\n")
	dir := t.TempDir()
	var runs []string
	for _, rate := range []string{"20", "40"} {
		command := exec.CommandContext(nodetest.Context(t), penstock, "load", "--runtime-dir", nd.Dir, "--rate", "face="+rate, "--rate", "fashion="+rate, "--duration", "1s", "--warmup", "0s", "--check=false", "-o", "json")
		text, err := command.Output()
		if err != nil {
			t.Fatalf("penstock load: %v: %s", err, text)
		}
		file := filepath.Join(dir, "rate-"+rate+".json")
		must.OK(t, os.WriteFile(file, text, 0o600))
		runs = append(runs, file)
	}
	out := filepath.Join(dir, "report.html")
	write := func(more ...string) (string, error) {
		text, err := exec.Command(penstock, append(append([]string{"report", "-o", out}, more...), runs...)...).CombinedOutput()
		return string(text), err
	}
	if text, err := write(); err != nil || strings.TrimSpace(text) != out {
		t.Fatalf("penstock report: %v: %s", err, text)
	}
	if text, err := write(); err == nil || !strings.Contains(text, "exists; choose another file with -o, or overwrite it with --force") {
		t.Errorf("the file was overwritten: %v: %s", err, text)
	}
	if text, err := write("--force"); err != nil {
		t.Errorf("penstock report --force: %v: %s", err, text)
	}

	browse(t, out, func(s *reportStep) {
		// Both functions have four charts: latency, stages, answers and rates.
		if s.Charts != 8 || !slices.Equal(s.Rows, []string{"face", "fashion"}) || !strings.HasPrefix(s.Text, "2: rate-40: p50 ") {
			t.Errorf("%d charts, rows %v, text %q", s.Charts, s.Rows, s.Text)
		}
		// fashion misses its objective in both runs: four cells each.
		if s.Bad != 8 || !slices.Contains(s.Cells, "5000") {
			t.Errorf("%d red cells in %q", s.Bad, s.Cells)
		}
	})
}

// reportStep is a line of test/browser/report.mjs.
type reportStep struct {
	Width, ScrollWidth, Charts, Bad int
	Scheme, Text                    string
	Rows, Cells, Requests, Errors   []string
	Violations                      []struct{ ID, Impact string }
}

// browse opens a report in Chromium, in light and dark colours and on a phone.
func browse(t *testing.T, file string, check func(s *reportStep)) {
	t.Helper()
	modules := os.Getenv("PENSTOCK_NODE_MODULES")
	if modules == "" {
		t.Skip("not on this machine: PENSTOCK_NODE_MODULES names no folder with playwright-core and axe-core (.ci/run installs them, and Chromium)")
	}
	screenshots := t.TempDir()
	if kept := os.Getenv("PENSTOCK_SCREENSHOTS"); kept != "" {
		screenshots = kept
	}
	command := exec.CommandContext(longContext(t), "node", absolute(t, "../browser/report.mjs"), modules, file, screenshots)
	command.Stderr = os.Stderr
	text, err := command.Output()
	if err != nil {
		t.Fatalf("report.mjs: %v", err)
	}
	steps := 0
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); steps++ {
		var s reportStep
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		check(&s)
		if len(s.Requests) != 1 || len(s.Errors) > 0 { // the file itself
			t.Errorf("%d %s: requests %q, errors %q", s.Width, s.Scheme, s.Requests, s.Errors)
		}
		if s.ScrollWidth > s.Width || len(s.Violations) > 0 {
			t.Errorf("%d %s: content is %d wide, violations %+v", s.Width, s.Scheme, s.ScrollWidth, s.Violations)
		}
	}
	if steps != 3 {
		t.Errorf("%d steps, want 3", steps)
	}
}
