package orchestrator

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/mpsfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/orchestrator/cpushare"
	"github.com/penstock/penstock/orchestrator/gpu"
	"github.com/penstock/penstock/orchestrator/mps"
)

// fakeUUID is that of the driver's only GPU.
var fakeUUID = cudafake.UUID(0)

// fakeGPUs installs a driver and an MPS that need no GPU, in a place that the test's
// processes search.
func fakeGPUs(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	library, err := cudafake.Build(dir)
	if err != nil {
		t.Skipf("no fake driver: %v", err)
	}
	remove, err := mpsfake.Build()
	must.OK(t, err)
	t.Cleanup(remove)
	programs, err := mpsfake.Install(dir)
	must.OK(t, err)
	t.Setenv("PATH", filepath.Dir(programs.Control())+":"+os.Getenv("PATH"))
	t.Setenv("PENSTOCK_LIBCUDA", library)
	t.Setenv(gpu.LocksVariable, dir)
	t.Setenv("PENSTOCK_LIBNVML", "/nowhere/libnvidia-ml.so.1")
	// The processes must not inherit a value that an operator has set.
	t.Setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "1")
}

// onFakeGPU describes a process that examines its device when it is woken.
func (n *realNode) onFakeGPU(generation uint32, share float64, groups ...int) control.DesiredProcess {
	p := n.child(generation, control.Serve, "gpu")
	p.Instance, p.SharePercent, p.SMGroups = int(generation), share, groups
	return p
}

// daemonOf returns the process id of the MPS daemon in the node's folder, 0 if there is
// none.
func (n *realNode) daemonOf() int {
	b, err := os.ReadFile(filepath.Join(n.dir, mps.OfGPU("mps", fakeUUID), "nvidia-cuda-mps-control.pid"))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}

func TestRealMPS(t *testing.T) {
	fakeGPUs(t)
	n := newNode(t)
	n.desired.Devices = []string{fakeUUID[:8]}
	cmd := n.orchestrate(cpushare.Governor)
	want := func() (p, q control.ObservedProcess) {
		n.want(n.onFakeGPU(1, 30), n.onFakeGPU(2, 100, 0, 15), n.onFakeGPU(3, 0))
		return n.untilState(1, control.Active), n.untilState(2, control.Active)
	}
	p, q := want()
	if p.SMs < 37 || p.SMs > 41 || len(p.SMGroups) != 0 || p.Reason != "" {
		t.Errorf("30 %% are %+v", p)
	}
	if q.SMs != 20 || !slices.Equal(q.SMGroups, []int{0, 15}) || q.Reason != "" {
		t.Errorf("two groups are %+v", q)
	}
	if w := n.untilState(3, control.Active); w.SMs != 132 || w.Reason != "" {
		t.Errorf("one without a share is %+v", w)
	}
	o := n.last
	if mechanismOf(o) != gpu.MPS || gpuOf(o) == nil || gpuOf(o).SMs != 132 || len(gpuOf(o).GroupSMs) != 16 || !strings.HasPrefix(gpuOf(o).UUID, "GPU-fa") {
		t.Errorf("observed %+v, %+v", o, gpuOf(o))
	}
	daemon := n.daemonOf()
	if !exists(daemon) {
		t.Fatalf("no daemon %d", daemon)
	}

	// An orchestrator that is killed leaves the daemon running, and the next one finds
	// it.
	cmd.Process.Kill()
	cmd.Wait()
	n.untilGone(p.PID)
	n.untilGone(q.PID)
	if !exists(daemon) {
		t.Error("the daemon died, too")
	}
	cmd = n.orchestrate(cpushare.Governor)
	n.startManager("second")
	n.desired.Devices = []string{fakeUUID[:8]}
	p, _ = want()
	if n.daemonOf() != daemon {
		t.Errorf("daemon %d in place of %d", n.daemonOf(), daemon)
	}

	// An orchestrator that ends normally stops the daemon.
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	n.untilGone(p.PID)
	n.untilGone(daemon)
	if _, err := os.Stat(filepath.Join(n.dir, mps.OfGPU("mps", fakeUUID))); err == nil {
		t.Error("its folder is left")
	}
}

func TestRunMissingGPU(t *testing.T) {
	fakeGPUs(t)
	n := newNode(t)
	n.desired.Devices = []string{"cuda:7"}
	cmd := n.orchestrate(cpushare.Governor)
	n.want()
	if err := cmd.Wait(); err == nil {
		t.Error("it ended well")
	}
	if !n.log.has(`open device cuda:7: cuda: no such device "cuda:7": there is cuda:0 = GPU-fa`) {
		t.Error("it does not say so")
	}
}
