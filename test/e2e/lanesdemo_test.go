package e2e

import (
	"bytes"
	"context"
	"os/exec"
	"regexp"
	"testing"
)

// TestLanesDemo runs `make demo-lanes` for some seconds. Requests may be late on a busy machine.
func TestLanesDemo(t *testing.T) {
	if testing.Short() {
		return
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, penstock, "demo", "--lanes", "--duration", "6s", "--out", t.TempDir())
	var out, progress bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &progress
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, &out, &progress)
	}
	if line := regexp.MustCompile(`(?m)^ *\d+ s left │ \d+ of 42 models resident │ \d+ loads, \d+ evictions │ \d+ late$`); !line.Match(progress.Bytes()) {
		t.Errorf("no line shows the worker's loads:\n%s", &progress)
	}
	for _, summary := range []string{
		`(?m)^│ detect +│ +\d+ │ +\d+ │`,
		`(?m)^Memory for 22 of the [1-9]\d* MiB that the models take: [1-9]\d* loads, [1-9]\d* evictions\.$`,
		`(?m)^0 requests lost, 0 answers wrong\.$`,
	} {
		if !regexp.MustCompile(summary).Match(out.Bytes()) {
			t.Errorf("no %s in\n%s", summary, &out)
		}
	}
}
