package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
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
