//go:build gpu

package gpu

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator/mps"
)

// mpsProcess finds the node's control daemon or server by its program's name. It
// returns 0 if there is none.
func mpsProcess(n *node.Node, name string) int {
	for _, p := range nodetest.Processes(n.Dir) {
		target, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(p.PID), "exe"))
		if strings.Contains(p.Command, name) || err == nil && strings.Contains(filepath.Base(target), name) {
			return p.PID
		}
	}
	return 0
}

const (
	mpsServer = "nvidia-cuda-mps-server"
	mpsDaemon = "nvidia-cuda-mps-control"
)

// comesBack kills one of MPS's processes under load and waits until both functions
// answer again. Every request must get a correct status.
func comesBack(t *testing.T, name string) {
	n := start(t, twoFunctions("auto"))
	if s := status(t, n); s.Devices[0].Mechanism != "mps" {
		t.Fatalf("shares are held by %s, want mps: %+v", s.Devices[0].Mechanism, s.Devices[0].GPU)
	}
	fashion, face := send(t, n, "fashion", 400), send(t, n, "face", 100)
	fashion.flows(t)
	face.flows(t)
	nodetest.Serving(t, n, "fashion")
	nodetest.Serving(t, n, "face")
	pid := mpsProcess(n, name)
	if pid == 0 {
		t.Fatalf("the node has no %s: %v", name, nodetest.Processes(n.Dir))
	}
	nodetest.Kill(t, pid)
	wait.For(t, "another "+name, func() bool {
		now := mpsProcess(n, name)
		return now != 0 && now != pid
	})
	fashion.flows(t)
	face.flows(t)
	nodetest.Serving(t, n, "fashion")
	nodetest.Serving(t, n, "face")
	fashion.stop().answeredAll(t, 2*8)
	face.stop().answeredAll(t, 2*8)
	t.Logf("silent for %s and %s", fashion.longestPause(), face.longestPause())
	nodetest.Settled(t, n, "fashion")
	nodetest.Settled(t, n, "face")
	// Shares are still as ordered.
	active, _ := nodetest.Serving(t, n, "fashion")
	if total := multiprocessors(t, n); active.SMs == 0 || active.SMs == total {
		t.Errorf("fashion counts %d of %d multiprocessors with a share of 40 %%", active.SMs, total)
	}
}

func TestMPSServerKilled(t *testing.T) { comesBack(t, mpsServer) }

func TestMPSDaemonKilled(t *testing.T) { comesBack(t, mpsDaemon) }

// If MPS cannot run, functions share by time, and the node reports that.
func TestTimeSharing(t *testing.T) {
	// A file is in the place of the daemon's folder.
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, mps.OfGPU("mps", uuid)), nil, 0o600))
	n := startIn(t, dir, twoFunctions("auto"))
	s := status(t, n)
	if s.Devices[0].Mechanism != "time-slicing" || s.Devices[0].GPU == nil || !strings.Contains(s.Devices[0].GPU.Why, "mps") || len(s.Devices[0].GPU.GroupSMs) > 0 {
		t.Errorf("mechanism %s, device %+v; want time-slicing, a reason and no groups", s.Devices[0].Mechanism, s.Devices[0].GPU)
	}
	if !strings.Contains(n.Log(), "take turns on the GPU") {
		t.Errorf("the log does not say that functions share by time")
	}
	fashion, face := send(t, n, "fashion", 400), send(t, n, "face", 100)
	fashion.flows(t)
	face.flows(t)
	// Without MPS a share is not enforced, so nothing moves.
	before, _ := nodetest.Serving(t, n, "fashion")
	nodetest.Share(t, n, "fashion", 20)
	wait.For(t, "the wish to be noted", func() bool {
		f, err := n.Function("fashion")
		return err == nil && f.SharePercent == 20
	})
	if now, _ := nodetest.Serving(t, n, "fashion"); now.PID != before.PID {
		t.Errorf("process %d serves, was %d", now.PID, before.PID)
	}
	fashion.stop().answeredAll(t, 0)
	face.stop().answeredAll(t, 0)
	nodetest.Settled(t, n, "fashion")
}
