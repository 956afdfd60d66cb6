package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/node"
)

// load runs `penstock load` against a node. It returns its exit status, standard output and
// standard error. It calls said for each line of standard error as soon as it arrives.
func load(t *testing.T, n *node.Node, said func(line string), arguments ...string) (status int, out, complaints string) {
	t.Helper()
	cmd := exec.CommandContext(nodetest.Context(t), penstock, append([]string{"load", "--http", n.HTTP.String(), "--check=false"}, arguments...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout = &stdout
	pipe, err := cmd.StderrPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	for lines := bufio.NewScanner(io.TeeReader(pipe, &stderr)); lines.Scan(); {
		said(lines.Text())
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// TestLoadStopped checks that the exit status says that the manager stopped answering.
func TestLoadStopped(t *testing.T) {
	t.Parallel()
	n := start(t, oneFunction(nodetest.Card(t, "digest", small), ", slo: 1s")) // penstock load waits for answers for a multiple of the objective
	manager := nodetest.Child(t, n, "manager")
	defer func() {
		syscall.Kill(manager, syscall.SIGCONT)
		n.Stop()
	}()
	stopped := false
	status, _, said := load(t, n, func(line string) {
		if !stopped && strings.Contains(line, " s left") {
			stopped = true
			if err := syscall.Kill(manager, syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
		}
	}, "--rate", "fn=20", "--duration", "3s", "--warmup", "0s")
	if status != 1 || !strings.Contains(said, "cannot count lost requests: ") || !strings.Contains(said, "; the client gave up (") {
		t.Errorf("exit status %d:\n%s", status, said)
	}
}

// TestLoadRequire also checks that the load succeeds if the requirement
// is met.
func TestLoadRequire(t *testing.T) {
	t.Parallel()
	n := start(t, oneFunction(nodetest.Card(t, "digest", small)))
	status, out, said := load(t, n, func(string) {}, "--rate", "fn=20", "--duration", "1s", "--require", "answered=50%,fn:p99=10s", "-o", "json")
	var report loadgen.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if status != 0 || len(report.Requirements) != 2 || !report.Requirements[0].Met || !report.Requirements[1].Met {
		t.Errorf("exit status %d, %+v\n%s", status, report.Requirements, said)
	}
	status, _, said = load(t, n, func(string) {}, "--rate", "fn=20", "--duration", "1s", "--require", "answered=50%", "--require", "p99=1ns")
	if missed := strings.Count(said, ", want at "); status != 1 || missed != 1 || !strings.Contains(said, "penstock load: fn: p99 is ") {
		t.Errorf("exit status %d:\n%s", status, said)
	}
	for argument, want := range map[string]string{
		"p98=1s":     `penstock: --require "p98=1s": metric "p98" is unknown`,
		"fm:p99=1s":  "penstock: --require fm:p99: nothing is sent to fm, only to: fn",
		"within=0.9": `penstock: --require "within=0.9": want 0% to 100%`,
	} {
		if status, _, said := load(t, n, func(string) {}, "--require", argument); status != 1 || !strings.HasPrefix(said, want) {
			t.Errorf("%s: exit status %d, %s", argument, status, said)
		}
	}
}
