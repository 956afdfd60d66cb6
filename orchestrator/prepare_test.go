package orchestrator

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/cpushare"
)

// prepareMain is `penstock prepare`: it prepares the card "good", and fails otherwise.
func prepareMain(arguments []string) int {
	value := func(flag string) string { return arguments[slices.Index(arguments, flag)+1] }
	status, err := os.ReadFile("/proc/self/status")
	if err != nil || !strings.Contains(string(status), "NoNewPrivs:\t1\n") || !strings.Contains(string(status), "CapEff:\t0000000000000000\n") {
		fmt.Fprintln(os.Stderr, "it is not confined:", err)
		return 1
	}
	if mps := os.Getenv("CUDA_MPS_PIPE_DIRECTORY"); filepath.Base(mps) != "no-mps" {
		fmt.Fprintln(os.Stderr, "it is a client of MPS")
		return 1
	}
	if _, err := os.ReadFile(value("--card")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if filepath.Base(value("--card")) != "good" || value("--device") != "GPU-fa010203-0405-0607-0809-0a0b0c0d0e0f" {
		fmt.Fprintf(os.Stderr, "cannot prepare %s for %s\n", value("--card"), value("--device"))
		return 1
	}
	f, err := os.OpenFile(filepath.Join(value("--dir"), "entry"), os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	f.Close()
	return 0
}

func TestPrepareModel(t *testing.T) {
	for name, c := range map[string]struct {
		card string
		want string
	}{
		"good": {"good", `prepared \"prepared\" \"\" <nil>`},
		"bad":  {"bad", `cannot prepare`},
	} {
		t.Run(name, func(t *testing.T) {
			fakeGPUs(t)
			n := newNode(t)
			n.desired.Devices = []string{fakeUUID[:8]}
			n.prepared = closedFolder(t)
			cards := closedFolder(t, c.card)
			cmd := n.orchestrate(cpushare.Governor, "sandbox")
			// Two processes ask for the same model.
			var wanted []control.DesiredProcess
			for g := uint32(1); g <= 2; g++ {
				p := n.child(g, control.Serve, "prepares")
				p.Instance, p.SharedWeights, p.Card = int(g), true, filepath.Join(cards, c.card)
				wanted = append(wanted, p)
			}
			n.want(wanted...)
			n.untilState(1, control.Active)
			n.untilState(2, control.Active)
			n.until("both are answered", func(control.Observed) bool {
				return strings.Count(n.log.String(), c.want) >= 2
			})
			if n.log.has("it writes prepared models") {
				t.Error("a process writes prepared models")
			}
			cmd.Process.Signal(syscall.SIGTERM)
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}
