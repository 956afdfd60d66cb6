package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/gputest"
	"github.com/penstock/penstock/internal/testing/mpsfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/nulltest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator/gpu"
)

// A whole node on a simulated GPU: a fake driver library in every process, and
// fake MPS programs. test/gpu has what only a GPU can show.

// fakeGPU builds both once, into the folder of the binaries under test.
var fakeGPU = sync.OnceValues(func() (driver string, err error) {
	dir, err := openFolder(filepath.Dir(penstock), "gpu-")
	if err != nil {
		return "", err
	}
	fashion, err := fashionTwins()
	if err != nil {
		return "", err
	}
	if driver, err = cudafake.Build(dir, cudafake.Kernels(gputest.Twins), cudafake.Kernels(nulltest.Twins), cudafake.Kernels(fashion)); err != nil {
		return "", err
	}
	if removeMPS, err = mpsfake.Build(); err != nil {
		return "", err
	}
	_, err = mpsfake.Install(dir)
	return driver, err
})

var removeMPS = func() {}

// withGPU returns the environment of a node with a GPU and, if mps is set, with
// MPS.
func withGPU(t *testing.T, mps bool) []string {
	t.Helper()
	driver, err := fakeGPU()
	if err != nil {
		t.Skipf("no fake driver: %v", err)
	}
	// On an H200 a process takes half a gigabyte before it does anything.
	cache, err := cudafake.Cache(filepath.Dir(driver))
	must.OK(t, err)
	environment := []string{cudafake.Library(driver), cudafake.Env(cudafake.Memory(16 << 30)), cache, gpu.LocksVariable + "=" + t.TempDir()}
	if mps {
		environment = append(environment, "PATH="+filepath.Dir(driver)+":"+os.Getenv("PATH"))
	}
	return environment
}

// onGPU returns a configuration of functions that the null model serves.
func onGPU(card string, functions ...string) string {
	text := "device: cuda\nlog: {level: debug}\nshares: {policy: gslice, tune: false, change: partition}\nfunctions:\n"
	for _, f := range functions {
		text += fmt.Sprintf("  - {model: %s, port: 0, %s}\n", card, f)
	}
	return text
}

// onGroups waits until every function serves on its ordered groups and returns its
// instance. No two functions may share a group.
func onGroups(t *testing.T, n *node.Node, functions ...string) map[string]control.InstanceStatus {
	t.Helper()
	at := map[string]control.InstanceStatus{}
	wait.For(t, "everybody to serve on its groups", func() bool {
		status, err := n.Status()
		if err != nil {
			return false
		}
		taken := map[int]string{}
		for _, name := range functions {
			f, ok := status.Function(name)
			if !ok {
				return false
			}
			in := f.Instances[0]
			for _, p := range in.Processes {
				for _, g := range p.SMGroups {
					if other := taken[g]; other != "" && other != name {
						t.Fatalf("%s and %s are both on group %d", other, name, g)
					}
					taken[g] = name
				}
			}
			if p, serves := in.Serving(); !serves || len(in.SMGroups) == 0 || !slices.Equal(p.SMGroups, in.SMGroups) {
				return false
			}
			at[name] = in
		}
		return true
	})
	return at
}

// active returns the process that serves an instance.
func active(in control.InstanceStatus) control.ProcessStatus {
	p, _ := in.Serving()
	return p
}

func TestGPUSharesMove(t *testing.T) {
	nd := start(t, onGPU(nodetest.Card(t, "digest", small), "name: fn, share_percent: 50", "name: other, share_percent: 50"), withGPU(t, true)...)
	before := onGroups(t, nd, "fn", "other")
	status, err := nd.Status()
	must.OK(t, err)
	if status.Devices[0].Mechanism != "mps" || status.Devices[0].GPU == nil || status.Devices[0].GPU.SMs != 132 {
		t.Fatalf("shares are held by %q on %+v, want mps on 132 multiprocessors", status.Devices[0].Mechanism, status.Devices[0].GPU)
	}
	if n := active(before["fn"]).SMs; n < 56 || n > 76 {
		t.Errorf("half of the GPU is %d multiprocessors", n)
	}
	const changes = 6
	step := 0
	got := nodetest.NewAnswers()
	c := nodetest.Dial(t, nd, "fn", client.Options{Deliver: got.Deliver(small), Timeout: 20 * time.Second})
	for i := range changes {
		nodetest.Send(t, c, small, step, 100, 2*time.Millisecond)
		step += 100
		// Shrink one first, otherwise the sum is above 100.
		small, large := "fn", "other"
		if i%2 == 1 {
			small, large = large, small
		}
		nodetest.Share(t, nd, small, 20)
		nodetest.Share(t, nd, large, 80)
	}
	got.Wait(step)
	if got.By[client.StatusOK] != step || got.Wrong > 0 {
		t.Errorf("%s; want %d right answers", got, step)
	}
	var after map[string]control.InstanceStatus
	wait.For(t, "fn to have four fifths of the GPU", func() bool {
		after = onGroups(t, nd, "fn", "other")
		return active(after["fn"]).SMs >= 98
	})
	for name := range after {
		if was, is := active(before[name]), active(after[name]); was.PID != is.PID {
			t.Errorf("%s: process %d serves, want %d still", name, is.PID, was.PID)
		}
	}
	var f control.FunctionStatus
	wait.For(t, "the moves to be counted", func() bool {
		f = nodetest.Settled(t, nd, "fn")
		return f.Swaps >= 1 // a slow machine may skip others
	})
	if f.Swaps > changes {
		t.Errorf("%d moves were counted in %d changes", f.Swaps, changes)
	}
	wait.For(t, "the metric to count what the status counts", func() bool {
		f = nodetest.Settled(t, nd, "fn")
		return nodetest.Metric(t, nd, `penstock_swap_idle_seconds_count{function="fn",mechanism="partition"}`) == float64(f.SwapIdle.Count)
	})
}

func TestGPUFault(t *testing.T) {
	t.Parallel()
	nd, log := startRecorded(t, onGPU(nodetest.Card(t, "digest", small),
		"name: fn, share_percent: 50", `name: bad, share_percent: 30, environment: {PENSTOCK_NULL: "fault_after=60"}`),
		withGPU(t, true)...)
	faults := func() control.FaultStatus {
		status, err := nd.Status()
		must.OK(t, err)
		return status.Devices[0].Faults
	}
	got := nodetest.NewAnswers()
	c := nodetest.Dial(t, nd, "fn", client.Options{Deliver: got.Deliver(small), Timeout: 20 * time.Second})
	bad := nodetest.NewAnswers()
	b := nodetest.Dial(t, nd, "bad", client.Options{Deliver: bad.Deliver(small), Timeout: 20 * time.Second})
	step, sent := 0, 0
	for fault := 1; fault <= 2; fault++ {
		active, _ := nodetest.Serving(t, nd, "fn")
		nodetest.Serving(t, nd, "bad")
		nodetest.Send(t, c, small, step, 100, 2*time.Millisecond)
		wait.For(t, "a fault", func() bool {
			nodetest.Send(t, b, small, sent, 1, 0)
			sent++
			bad.Wait(sent)
			return int(faults().Count) >= fault
		})
		nodetest.Send(t, c, small, step+100, 100, 2*time.Millisecond)
		step += 200
		got.Wait(step)
		now, _ := nodetest.Serving(t, nd, "fn")
		if now.PID == active.PID {
			t.Errorf("process %d outlived the GPU's fault", now.PID)
		}
		wait.For(t, "the next one to get the rest of its batch sizes", func() bool {
			p, _ := nodetest.Serving(t, nd, "fn")
			return len(p.Batches) > 1 && !p.WarmingUp
		})
	}
	// On a busy machine the next process comes late, and the slots may be full before.
	if rest := step - got.By[client.StatusOK] - got.By[client.StatusBusy]; got.Lost > 0 || got.Wrong > 0 || rest > 2*16 || got.By[client.StatusOK] < step/2 {
		t.Errorf("%s; want every request answered right, but for what was on the GPU", got)
	}
	if bad.Lost > 0 || bad.By[client.StatusFailed] == 0 {
		t.Errorf("the one that faults: %s; want every request answered", bad)
	}
	if n := nodetest.Metric(t, nd, `penstock_device_faults_total{device="cuda"}`); n != 2 {
		t.Errorf("%v faults, want 2", n)
	}
	// After two faults within a minute it is held back. On a slow machine that can take more faults.
	wait.For(t, "it to be held back, and refused", func() bool {
		nodetest.Send(t, b, small, sent, 1, 0)
		sent++
		bad.Wait(sent)
		return bad.By[client.StatusBusy] > 0 && strings.Contains(log.String(), "held back")
	})
	nodetest.Settled(t, nd, "fn")
	nodetest.Settled(t, nd, "bad")
}

func TestTimeSharing(t *testing.T) {
	t.Parallel()
	nd := start(t, onGPU(nodetest.Card(t, "digest", small), "name: fn, share_percent: 50"), withGPU(t, false)...)
	status, err := nd.Status()
	must.OK(t, err)
	if status.Devices[0].Mechanism != "time-slicing" || status.Devices[0].GPU == nil || !strings.Contains(status.Devices[0].GPU.Why, "MPS") || len(status.Devices[0].GPU.GroupSMs) > 0 {
		t.Errorf("mechanism %q, device %+v; want it to say that MPS is missing", status.Devices[0].Mechanism, status.Devices[0].GPU)
	}
	first, shadow := nodetest.Serving(t, nd, "fn")
	got := stream(t, nd, 200, func() { nodetest.Share(t, nd, "fn", 30) })
	if got.By[client.StatusOK] != 200 || got.Wrong > 0 {
		t.Errorf("%s; want 200 right answers", got)
	}
	nodetest.Kill(t, first.PID)
	nodetest.ShadowServes(t, nd, "fn", shadow)
	nodetest.Settled(t, nd, "fn")
}
