package orchestrator

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/orchestrator/gpu"
	"github.com/penstock/penstock/orchestrator/mps"
)

// runGPUNode is runNode with a manager that wants a GPU.
func runGPUNode(t *testing.T, lives func(spec) life, f func(*node)) {
	t.Helper()
	runNode(t, lives, func(n *node) {
		n.desired.Devices = []string{"cuda"}
		f(n)
	})
}

// grouped describes a process, in its own instance, that runs on groups.
func grouped(generation uint32, role control.Role, groups ...int) control.DesiredProcess {
	p := newDesired(generation, role, 30)
	p.Instance, p.SMGroups = int(generation), groups
	return p
}

// newInstance describes a process in a new place.
func newInstance(generation uint32, role control.Role, share float64) control.DesiredProcess {
	p := newDesired(generation, role, share)
	p.Instance = int(generation)
	return p
}

func (n *node) untilProcess(generation uint32, what string, is func(control.ObservedProcess) bool) control.ObservedProcess {
	n.t.Helper()
	var found control.ObservedProcess
	n.until(what, func(o control.Observed) bool {
		for _, p := range o.Processes {
			if p.Generation == generation && is(p) {
				found = p
				return true
			}
		}
		return false
	})
	return found
}

func TestStartWaitsForGPU(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		n.machine.takes = 3 * time.Second
		n.want(newDesired(1, control.Serve, 30))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		o := n.link.observed()
		if len(n.spawner.started) != 0 || gpuOf(o) != nil || mechanismOf(o) != "" || o.Processes[0].Reason != "waiting until the GPU is found" {
			t.Errorf("after five seconds of six: %+v, %d started", o, len(n.spawner.started))
		}
		n.untilState(1, control.Active)
	})
}

func TestProcessEnvironment(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		p := newDesired(1, control.Serve, 30)
		p.Environment = map[string]string{"MODEL": "x", "CUDA_VISIBLE_DEVICES": "7"}
		n.want(p)
		q := n.untilState(1, control.Active)
		if q.SMs != 37 || len(q.SMGroups) != 0 || q.Reason != "" {
			t.Errorf("active as %+v", q)
		}
		f := n.spawner.generation(1)
		if f.spec.start.Device != fakeGPU.UUID || !slices.Equal(f.spec.start.GroupSMs, fakeGPU.GroupSMs) {
			t.Errorf("started as %+v", f.spec.start)
		}
		want := map[string]string{"MODEL": "x", "CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_MPS_PIPE_DIRECTORY": "/run/mps", "CUDA_MPS_LOG_DIRECTORY": "/run/mps-log"}
		if !reflect.DeepEqual(f.spec.environment, want) {
			t.Errorf("environment %v", f.spec.environment)
		}
		if w := f.wake(); !reflect.DeepEqual(w.Environment, map[string]string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}) || w.Governor || w.SharePercent != 30 {
			t.Errorf("woken by %+v", w)
		}
		o := n.link.observed()
		if mechanismOf(o) != "mps" || gpuOf(o) == nil || gpuOf(o).UUID != "GPU-1" || gpuOf(o).Name != "Fake" || gpuOf(o).SMs != 132 ||
			!slices.Equal(gpuOf(o).GroupSMs, fakeGPU.GroupSMs) || gpuOf(o).MemoryBytes != 100<<30 || gpuOf(o).Why != "" {
			t.Errorf("observed %+v, %+v", o, gpuOf(o))
		}
		// A GPU share sets no CPU quota, and a percentage stays for the process's life.
		n.want(newDesired(1, control.Serve, 60))
		n.untilProcess(1, "the share is noted", func(p control.ObservedProcess) bool { return p.SharePercent == 60 })
		if got := n.shares.of(key{"face", 0, 1}); got != 0 {
			t.Errorf("it has a CPU quota of %v %%", got)
		}
		if orders, _ := f.got(); !slices.Equal(orders, []control.OrderKind{control.DoWake}) {
			t.Errorf("ordered %v", orders)
		}
	})
}

// MPS's default: each process may use the whole GPU.
func TestNoShareOnGPU(t *testing.T) {
	all := func(spec) life { return life{sms: func(control.Order) int { return 132 }} }
	runGPUNode(t, all, func(n *node) {
		n.want(newInstance(1, control.Serve, 0), newInstance(2, control.Serve, 0), newInstance(3, control.Shadow, 0))
		for _, g := range []uint32{1, 2} {
			if p := n.untilState(g, control.Active); p.SMs != 132 || p.Reason != "" || p.SharePercent != 0 {
				t.Errorf("active as %+v", p)
			}
			if w := n.spawner.generation(g).wake(); len(w.Environment) != 0 || len(w.SMGroups) != 0 || w.Governor {
				t.Errorf("woken by %+v", w)
			}
		}
		if o := n.link.observed(); mechanismOf(o) != "mps" {
			t.Errorf("mechanism is %q", mechanismOf(o))
		}
		// Both are clients of one server, so a fault ends both.
		n.spawner.generation(1).fault("illegal address")
		n.untilProcess(2, "it is lost, too", func(p control.ObservedProcess) bool { return p.State == control.Failed && p.DeviceLost })
	})
	few := func(spec) life { return life{sms: func(control.Order) int { return 66 }} }
	runGPUNode(t, few, func(n *node) {
		n.want(newInstance(1, control.Serve, 0))
		if p := n.untilState(1, control.Active); p.Reason != "the process has 66 multiprocessors, and 100 % of 132 are 130 to 132" {
			t.Errorf("half of what it may use: %q", p.Reason)
		}
	})
}

func TestNoShareNoQuota(t *testing.T) {
	runNode(t, nil, func(n *node) {
		n.want(newInstance(1, control.Serve, 0), newInstance(2, control.Serve, 30))
		n.untilState(1, control.Active)
		n.untilState(2, control.Active)
		if n.shares.applied(key{"face", 1, 1}) {
			t.Errorf("it has a quota, of %v %%", n.shares.of(key{"face", 1, 1}))
		}
		if got := n.shares.of(key{"face", 2, 2}); got != 30 {
			t.Errorf("its neighbour has a quota of %v %%", got)
		}
		if w := n.spawner.generation(1).wake(); w.Governor || w.SharePercent != 0 {
			t.Errorf("woken by %+v", w)
		}
	})
}

func TestNoMPS(t *testing.T) {
	all := func(spec) life { return life{sms: func(control.Order) int { return 132 }} }
	runGPUNode(t, all, func(n *node) {
		n.desired.NoMPS = true
		n.want(newInstance(1, control.Serve, 0), newInstance(2, control.Serve, 0))
		p := n.untilState(1, control.Active)
		n.untilState(2, control.Active)
		if p.Reason != "" || p.SMs != 132 || n.machine.daemon() != nil {
			t.Errorf("active as %+v, daemon %v", p, n.machine.daemon())
		}
		o := n.link.observed()
		if mechanismOf(o) != "time-slicing" || len(gpuOf(o).GroupSMs) != 0 || gpuOf(o).Why != "" {
			t.Errorf("observed %+v, %+v", o, gpuOf(o))
		}
		f := n.spawner.generation(1)
		if !strings.HasSuffix(f.spec.environment["CUDA_MPS_PIPE_DIRECTORY"], "no-mps") || len(f.wake().Environment) != 0 {
			t.Errorf("started as %+v, woken by %+v", f.spec, f.wake())
		}
		// A fault affects only its own process.
		f.fault("illegal address")
		n.untilState(1, control.Failed)
		time.Sleep(time.Second)
		if q := n.untilState(2, control.Active); q.DeviceLost {
			t.Errorf("its neighbour is %+v", q)
		}
	})
}

func TestPercentage(t *testing.T) {
	for share, want := range map[float64]string{0: "1", 0.2: "1", 12.5: "12.5", 30: "30", 100: "100"} {
		if got := gpu.Percentage(share); got != want {
			t.Errorf("of %v: %q, want %q", share, got, want)
		}
	}
}

func TestPromisedSMs(t *testing.T) {
	// The numbers of multiprocessors that MPS assigned on an H200.
	for percent, got := range map[float64]int{0.5: 8, 1: 8, 10: 12, 12.5: 16, 30: 38, 33.4: 44, 60: 78, 100: 132} {
		least, most := gpu.PromisedSMs(fakeGPU, nil, percent)
		if got < least || got > most {
			t.Errorf("%v %%: %d is not within %d to %d", percent, got, least, most)
		}
		if percent < 90 && most >= 132 {
			t.Errorf("%v %%: all would do", percent)
		}
	}
	if least, most := gpu.PromisedSMs(fakeGPU, []int{0, 15}, 30); least != 20 || most != 20 {
		t.Errorf("groups 0 and 15 promise %d to %d", least, most)
	}
}

func TestReadMemoryInterval(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		n.want(newDesired(1, control.Serve, 30))
		n.untilState(1, control.Active)
		n.machine.gpus.Hold("GPU-1", 5<<30)
		n.until("the memory is seen", func(o control.Observed) bool { return gpuOf(o).UsedBytes == 5<<30 })
		asked := n.machine.gpus.Asked()
		time.Sleep(10 * time.Second)
		if d := n.machine.gpus.Asked() - asked; d < 24 || d > 26 {
			t.Errorf("asked %d times in ten seconds", d)
		}
		// If NVML does not answer, the node keeps running, and logs it once.
		n.machine.gpus.Refuse(errors.New("busy"))
		time.Sleep(5 * time.Second)
		if got := strings.Count(n.log.String(), "cannot read the GPU's memory"); got != 1 {
			t.Errorf("complained %d times", got)
		}
	})
}

// TestMoveGroups checks that a process has one order to move at a time.
func TestMoveGroups(t *testing.T) {
	lives := func(spec) life { return life{moves: 300 * time.Millisecond} }
	runGPUNode(t, lives, func(n *node) {
		n.want(grouped(1, control.Serve, 0, 1))
		p := n.untilState(1, control.Active)
		if p.SMs != 16 || !slices.Equal(p.SMGroups, []int{0, 1}) {
			t.Errorf("active as %+v", p)
		}
		f := n.spawner.generation(1)
		if w := f.wake(); w.Environment != nil || !slices.Equal(w.SMGroups, []int{0, 1}) {
			t.Errorf("woken by %+v", w)
		}
		n.want(grouped(1, control.Serve, 1, 2))
		n.untilProcess(1, "both are held", func(p control.ObservedProcess) bool { return slices.Equal(p.SMGroups, []int{0, 1, 2}) })
		n.want(grouped(1, control.Serve, 0, 1)) // and back, before it has arrived
		n.want(grouped(1, control.Serve, 3))
		if p := n.link.observed().Processes[0]; !slices.Equal(p.SMGroups, []int{0, 1, 2}) {
			t.Errorf("as it moves: %v", p.SMGroups)
		}
		n.untilProcess(1, "it moves on", func(p control.ObservedProcess) bool { return slices.Equal(p.SMGroups, []int{1, 2, 3}) })
		p = n.untilProcess(1, "it is there", func(p control.ObservedProcess) bool { return slices.Equal(p.SMGroups, []int{3}) })
		if p.SMs != 8 || p.Reason != "" {
			t.Errorf("there as %+v", p)
		}
		if orders, _ := f.got(); len(orders) != 3 { // wake, {1,2}, {3}
			t.Errorf("ordered %v", orders)
		}
	})
}

// A process with a partial warm-up moves when it has all its batch sizes. The deadline of
// its move starts then.
func TestMoveAfterWarmUp(t *testing.T) {
	early := func(groups ...int) control.DesiredProcess {
		p := grouped(1, control.Serve, groups...)
		p.PartialWarmUp = true
		return p
	}
	lives := func(spec) life { return life{warmUp: 9 * time.Second, moves: 9 * time.Second} }
	runGPUNode(t, lives, func(n *node) {
		n.want(early(0))
		p := n.untilState(1, control.Active)
		if !n.spawner.generation(1).wake().PartialWarmUp || !p.WarmingUp || !slices.Equal(p.Batches, []int{1}) || p.EphemeralBytes != 200 {
			t.Errorf("early as %+v", p)
		}
		n.want(early(1))
		time.Sleep(5 * time.Second)
		p = n.untilProcess(1, "it is whole", func(p control.ObservedProcess) bool { return !p.WarmingUp })
		if !slices.Equal(p.Batches, []int{1, 2}) || p.EphemeralBytes != 400 || !slices.Equal(p.SMGroups, []int{0, 1}) {
			t.Errorf("whole as %+v", p)
		}
		n.untilProcess(1, "it is there", func(p control.ObservedProcess) bool { return slices.Equal(p.SMGroups, []int{1}) })
		if orders, _ := n.spawner.generation(1).got(); len(orders) != 2 {
			t.Errorf("ordered %+v", orders)
		}
	})
}

func TestWarmUpTimeout(t *testing.T) {
	lives := func(spec) life { return life{warmUp: time.Hour} }
	runGPUNode(t, lives, func(n *node) {
		p := newDesired(1, control.Serve, 30)
		p.PartialWarmUp = true
		n.want(p)
		n.untilState(1, control.Active)
		time.Sleep(defaultLimits.load)
		if seen := n.untilState(1, control.Failed); !strings.Contains(seen.Reason, "not all batch sizes within") {
			t.Errorf("ended as %+v", seen)
		}
	})
}

func TestShadowGroups(t *testing.T) {
	lives := func(spec) life { return life{link: time.Second} }
	runGPUNode(t, lives, func(n *node) {
		n.want(grouped(1, control.Shadow, 0, 1))
		n.untilState(1, control.Loaded)
		n.want(grouped(1, control.Shadow, 2))
		time.Sleep(time.Second)
		f := n.spawner.generation(1)
		if orders, _ := f.got(); len(orders) != 0 {
			t.Errorf("a sleeper was ordered %v", orders)
		}
		if p := n.link.observed().Processes[0]; len(p.SMGroups) != 0 {
			t.Errorf("a sleeper holds %v", p.SMGroups)
		}
		n.want(grouped(1, control.Serve, 2, 3))
		p := n.untilState(1, control.Linking)
		if !slices.Equal(p.SMGroups, []int{2, 3}) {
			t.Errorf("as it links it holds %v", p.SMGroups)
		}
		// A change of groups meanwhile has to wait.
		n.want(grouped(1, control.Serve, 4))
		if p := n.link.observed().Processes[0]; !slices.Equal(p.SMGroups, []int{2, 3}) {
			t.Errorf("as it links it holds %v", p.SMGroups)
		}
		n.untilProcess(1, "it is there", func(p control.ObservedProcess) bool { return slices.Equal(p.SMGroups, []int{4}) })
	})
}

func TestMoveRefused(t *testing.T) {
	lives := func(spec) life { return life{staysPut: "out of memory"} }
	runGPUNode(t, lives, func(n *node) {
		n.want(grouped(1, control.Serve, 0))
		n.untilState(1, control.Active)
		n.want(grouped(1, control.Serve, 1))
		n.untilProcess(1, "it stays", func(p control.ObservedProcess) bool {
			return slices.Equal(p.SMGroups, []int{0}) && p.Reason == "out of memory"
		})
		time.Sleep(10 * time.Minute)
		if orders, signals := n.spawner.generation(1).got(); len(orders) != 2 || len(signals) != 0 {
			t.Errorf("ordered %v, signalled %v", orders, signals)
		}
	})
}

func TestInfeasibleGroups(t *testing.T) {
	lives := func(spec) life { return life{minGroups: 2, moves: time.Second} }
	runGPUNode(t, lives, func(n *node) {
		n.want(grouped(1, control.Serve, 0, 1, 2))
		n.untilState(1, control.Active)
		n.want(grouped(1, control.Serve, 1))
		n.untilProcess(1, "it stays, and says where it cannot run", func(p control.ObservedProcess) bool {
			return slices.Equal(p.SMGroups, []int{0, 1, 2}) && slices.Equal(p.InfeasibleGroups, []int{1}) && p.Reason == tooFew && p.State == control.Active
		})
		n.want(grouped(1, control.Serve, 1, 2))
		n.untilProcess(1, "it moves", func(p control.ObservedProcess) bool {
			return slices.Equal(p.SMGroups, []int{1, 2}) && p.InfeasibleGroups == nil && p.Reason == ""
		})
	})
}

// If a model answers wrongly at a share, the manager chooses another one, and the next process need
// not wait. At the same share it counts as an early failure like any other.
func TestWrongAnswers(t *testing.T) {
	lives := func(spec) life { return life{misanswers: true} }
	runGPUNode(t, lives, func(n *node) {
		var early []int
		for i, percent := range []float64{30, 28, 28, 100} {
			p := grouped(uint32(i+1), control.Serve)
			p.Instance, p.SharePercent = 0, percent
			n.want(p)
			if q := n.untilState(p.Generation, control.Failed); !q.WrongAnswers || q.DeviceLost || q.SharePercent != percent {
				t.Errorf("with %v %% it ended as %+v", percent, q)
			}
			early = append(early, strings.Count(n.log.String(), `"backoff_ms":`))
		}
		if want := []int{0, 0, 1, 2}; !slices.Equal(early, want) {
			t.Errorf("early failures after each end: %v, want %v", early, want)
		}
	})
}

// If a model has too few groups, the manager assigns more, and the next process need not
// wait. If there are no more groups, it counts as an early failure like any other.
func TestTooFewGroups(t *testing.T) {
	lives := func(spec) life { return life{minGroups: 3} }
	runGPUNode(t, lives, func(n *node) {
		var early []int
		groups := [][]int{{4}, {4, 5}, {4}, {4, 5}}
		for i, on := range groups {
			p := grouped(uint32(i+1), control.Serve, on...)
			p.Instance = 0
			n.want(p)
			q := n.untilState(p.Generation, control.Failed)
			if !slices.Equal(q.InfeasibleGroups, on) || q.DeviceLost || len(q.SMGroups) != 0 {
				t.Errorf("on groups %v it ended as %+v", on, q)
			}
			early = append(early, strings.Count(n.log.String(), `"backoff_ms":`))
		}
		if want := []int{0, 0, 1, 2}; !slices.Equal(early, want) {
			t.Errorf("early failures after each end: %v, want %v", early, want)
		}
	})
}

func TestMoveTimeout(t *testing.T) {
	lives := func(spec) life { return life{stuck: true} }
	runGPUNode(t, lives, func(n *node) {
		n.want(grouped(1, control.Serve, 0))
		n.untilState(1, control.Active)
		n.want(grouped(1, control.Serve, 1))
		time.Sleep(time.Minute)
		n.until("it moves still", func(o control.Observed) bool { return slices.Equal(o.Processes[0].SMGroups, []int{0, 1}) })
		time.Sleep(time.Minute)
		p := n.untilState(1, control.Failed)
		if !strings.Contains(p.Reason, "not on its multiprocessors within 2m0s") || len(p.SMGroups) != 0 {
			t.Errorf("ended as %+v", p)
		}
	})
}

func TestMismatchLoggedOnce(t *testing.T) {
	all := func(spec) life { return life{sms: func(control.Order) int { return 132 }} }
	runGPUNode(t, all, func(n *node) {
		n.want(newInstance(1, control.Serve, 30), grouped(2, control.Serve, 3, 15), newInstance(3, control.Serve, 100))
		for g, reason := range map[uint32]string{
			1: "the process has 132 multiprocessors, and 30 % of 132 are 37 to 41",
			2: "the process has 132 multiprocessors, and groups [3 15] have 20",
			3: "",
		} {
			if p := n.untilState(g, control.Active); p.Reason != reason {
				t.Errorf("%d: %q", g, p.Reason)
			}
		}
		time.Sleep(10 * time.Second)
		if got := strings.Count(n.log.String(), "other multiprocessors than assigned"); got != 2 {
			t.Errorf("complained %d times", got)
		}
	})
}

func TestTimeSharing(t *testing.T) {
	all := func(spec) life { return life{sms: func(control.Order) int { return 132 }} }
	runGPUNode(t, all, func(n *node) {
		n.machine.noMPS = &mps.Problem{Why: "nvidia-cuda-mps-control is not installed", Fix: "apt-get install it"}
		n.want(newInstance(1, control.Serve, 30), newInstance(2, control.Serve, 30), newInstance(3, control.Shadow, 30))
		p := n.untilState(1, control.Active)
		n.untilState(2, control.Active)
		if p.Reason != "" || p.SMs != 132 {
			t.Errorf("active as %+v", p)
		}
		o := n.link.observed()
		if mechanismOf(o) != "time-slicing" || len(gpuOf(o).GroupSMs) != 0 || gpuOf(o).Why != "no MPS: nvidia-cuda-mps-control is not installed; to repair: apt-get install it" {
			t.Errorf("observed %+v, %+v", o, gpuOf(o))
		}
		f := n.spawner.generation(1)
		if len(f.wake().Environment) != 0 || len(f.spec.start.GroupSMs) != 0 || f.spec.environment["CUDA_VISIBLE_DEVICES"] != "GPU-1" ||
			!strings.HasSuffix(f.spec.environment["CUDA_MPS_PIPE_DIRECTORY"], "no-mps") {
			t.Errorf("woken by %+v, started as %+v", f.wake(), f.spec)
		}
		if !strings.Contains(n.log.String(), "functions take turns on the GPU") {
			t.Error("the log does not say so")
		}
		// Each process has its own context, and loses only that.
		f.fault("illegal address")
		if p := n.untilState(1, control.Failed); !p.DeviceLost {
			t.Errorf("ended as %+v", p)
		}
		time.Sleep(time.Minute)
		n.untilState(2, control.Active)
	})
}

// MPS is not started under functions that already serve, which are no clients of it.
func TestMPSRetry(t *testing.T) {
	all := func(spec) life { return life{sms: func(control.Order) int { return 132 }} }
	runGPUNode(t, all, func(n *node) {
		n.machine.noMPS = &mps.Problem{Why: "the MPS daemon (process 7) runs, but gave no answer within 20s"}
		n.want(newInstance(1, control.Serve, 0))
		n.untilState(1, control.Active)
		if o := n.link.observed(); mechanismOf(o) != "time-slicing" || gpuOf(o).Why != "no MPS: the MPS daemon (process 7) runs, but gave no answer within 20s" {
			t.Errorf("observed %+v, %+v", o, gpuOf(o))
		}
		if !strings.Contains(n.log.String(), "restart the node to try again") {
			t.Error("the log does not say when it is tried again")
		}
		n.machine.noMPS = nil
		time.Sleep(time.Minute)
		if d := n.machine.daemon(); d != nil {
			t.Error("a daemon was started beside functions that serve")
		}
		n.replaceManager("n")
		n.want(newInstance(1, control.Serve, 0))
		n.untilState(1, control.Active)
		if o := n.link.observed(); mechanismOf(o) != "mps" || gpuOf(o).Why != "" || n.machine.daemon() == nil {
			t.Errorf("observed %+v, %+v", o, gpuOf(o))
		}
		// An MPS that runs is kept.
		d := n.machine.daemon()
		n.replaceManager("o")
		n.want(newInstance(1, control.Serve, 0))
		n.untilState(1, control.Active)
		if n.machine.daemon() != d {
			t.Error("MPS was started anew for another manager")
		}
	})
}

func TestNoGroups(t *testing.T) {
	noGroups := fakeGPU
	noGroups.GroupSMs, noGroups.NoGroups = nil, "cuGreenCtxCreate is missing"
	defer func(g gpu.Found) { fakeGPU = g }(fakeGPU)
	fakeGPU = noGroups
	runGPUNode(t, nil, func(n *node) {
		n.want(newDesired(1, control.Serve, 30))
		n.untilState(1, control.Active)
		o := n.link.observed()
		if mechanismOf(o) != "mps" || len(gpuOf(o).GroupSMs) != 0 || gpuOf(o).Why != "no partitions: cuGreenCtxCreate is missing" {
			t.Errorf("observed %+v, %+v", o, gpuOf(o))
		}
	})
}

func TestMissingGPU(t *testing.T) {
	for name, c := range map[string]struct {
		device string
		err    error
		cpu    bool
	}{
		"one by name, and no driver":        {"cuda", cuda.ErrNoDriver, false},
		"one by name that another has":      {"cuda:7", nil, false},
		"any, and no driver":                {"auto", cuda.ErrNoDriver, true},
		"any, and none":                     {"auto", cuda.ErrNoDevice, true},
		"any, and a driver that is at odds": {"auto", &cuda.Error{Op: "cuInit", Code: 803}, false},
		"any, and there is one":             {"auto", nil, false},
		"none wanted":                       {"cpu", cuda.ErrNoDriver, true},
	} {
		t.Run(name, func(t *testing.T) {
			runNode(t, nil, func(n *node) {
				n.machine.noGPU = c.err
				n.desired.Devices = []string{c.device}
				if !c.cpu && (c.err != nil || c.device != "auto") {
					n.desired.Seq++
					n.messages <- n.desired
					<-n.stopped
					if n.err == nil || !strings.Contains(n.err.Error(), "open device "+c.device+": ") {
						t.Errorf("ended: %v", n.err)
					}
					return
				}
				n.want(newDesired(1, control.Serve, 30))
				if c.err == nil && c.device == "auto" {
					n.untilState(1, control.Active)
					if o := n.link.observed(); mechanismOf(o) != "mps" || gpuOf(o) == nil {
						t.Errorf("observed %+v", o)
					}
					return
				}
				n.untilState(1, control.Active)
				f := n.spawner.generation(1)
				if o := n.link.observed(); mechanismOf(o) != fakeMechanism || gpuOf(o) != nil || f.spec.start.Device != "cpu" || len(f.spec.environment) != 0 {
					t.Errorf("observed %+v, started as %+v", o, f.spec)
				}
				if got := n.shares.of(key{"face", 0, 1}); got != 30 {
					t.Errorf("it has a quota of %v %%", got)
				}
			})
		})
	}
}

// Without NVML nothing says that an ended process's memory is free, so the device must not poll
// for it.
func TestFollowWithoutNVML(t *testing.T) {
	m := newFakeMachine()
	m.noNVML = errors.New("no NVML")
	changes := make(chan struct{}, 1)
	d := gpu.Open(func() {}, gpu.Options{Device: "cuda", NoMPS: true}, m, t.TempDir(), changes, zerolog.Nop())
	defer d.Close()
	<-changes
	d.Follow(42, 1)
	wait.For(t, "the device to forget the process", func() bool { return d.Releasing() == 0 })
}

func TestReopenDevice(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		n.want(newDesired(1, control.Serve, 30))
		n.untilState(1, control.Active)
		first := n.machine.daemon()
		// The same device: MPS stays.
		n.replaceManager("n")
		n.want(newDesired(2, control.Serve, 30))
		n.untilState(2, control.Active)
		if n.machine.daemon() != first || first.closed {
			t.Error("MPS was started again for the same device")
		}
		// The same device, now with time slicing: MPS is stopped, and started again for a
		// manager that wants it.
		n.replaceManager("p")
		n.desired.NoMPS = true
		n.want(newDesired(4, control.Serve, 0))
		n.untilState(4, control.Active)
		if o := n.link.observed(); mechanismOf(o) != gpu.TimeSlicing || n.machine.daemon() != first || !first.closed {
			t.Errorf("without MPS: observed %+v", o)
		}
		n.replaceManager("q")
		n.desired.NoMPS = false
		n.want(newDesired(5, control.Serve, 30))
		n.untilState(5, control.Active)
		if n.machine.daemon() == first {
			t.Error("MPS was not started again")
		}
		n.replaceManager("r")
		n.desired.Devices = []string{control.DeviceCPU}
		n.want(newDesired(6, control.Serve, 30))
		n.untilState(6, control.Active)
		if o := n.link.observed(); gpuOf(o) != nil || mechanismOf(o) != fakeMechanism || !n.machine.daemon().closed {
			t.Errorf("observed %+v", o)
		}
	})
}

func TestMPSEnds(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		n.want(newDesired(1, control.Serve, 30))
		n.untilState(1, control.Active)
		d := n.machine.daemon()
		n.stop()
		<-n.stopped
		if !d.closed {
			t.Error("it runs on")
		}
	})
}

func TestStopWhileOpening(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		n.machine.takes = time.Second
		n.want(newDesired(1, control.Serve, 30))
		time.Sleep(1500 * time.Millisecond) // MPS is starting
		began := time.Now()
		n.stop()
		<-n.stopped
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("it took %v", d)
		}
	})
}

// startFour starts three processes that serve and one that sleeps.
func (n *node) startFour() {
	n.t.Helper()
	n.want(newInstance(1, control.Serve, 30), newInstance(2, control.Serve, 30), newInstance(3, control.Serve, 30), newInstance(4, control.Shadow, 30))
	for g := uint32(1); g <= 3; g++ {
		n.untilState(g, control.Active)
	}
	n.untilState(4, control.Loaded)
}

// TestFaultSparesShadows checks that a device fault ends all processes but the shadows that sleep.
func TestFaultSparesShadows(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		n.startFour()
		began := time.Now()
		n.spawner.generation(1).fault("illegal address")
		synctest.Wait()
		// At once, and only the process that reported it.
		o := n.link.observed()
		if time.Since(began) != 0 || !o.Processes[0].DeviceLost || o.Processes[1].DeviceLost || o.Processes[3].DeviceLost {
			t.Errorf("at once: %+v", o.Processes)
		}
		for g := uint32(1); g <= 3; g++ {
			p := n.untilState(g, control.Failed)
			if !p.DeviceLost {
				t.Errorf("%d ended as %+v", g, p)
			}
		}
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("the idle ones lived for %v", d)
		}
		_, signals := n.spawner.generation(2).got()
		if !slices.Equal(signals, []syscall.Signal{syscall.SIGKILL}) {
			t.Errorf("an idle one was signalled %v", signals)
		}
		if p := n.link.observed().Processes[1]; !strings.Contains(p.Reason, deviceFailed) {
			t.Errorf("an idle one: %s", p.Reason)
		}
		n.untilState(4, control.Loaded)
		if got := strings.Count(n.log.String(), "the GPU failed; ending all its processes"); got != 1 {
			t.Errorf("said %d times", got)
		}
		// The loss does not count toward backoff: the next processes are started and woken
		// at once.
		began = time.Now()
		n.want(newInstance(4, control.Serve, 30), func() control.DesiredProcess { p := newInstance(5, control.Serve, 30); p.Instance = 1; return p }())
		n.untilState(4, control.Active)
		n.untilState(5, control.Active)
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("the next took %v", d)
		}
	})
}

func TestWakeDuringFault(t *testing.T) {
	lives := func(sp spec) life { return life{lingers: 10 * time.Second} }
	runGPUNode(t, lives, func(n *node) {
		n.startFour()
		n.spawner.generation(1).fault("illegal address")
		synctest.Wait()
		began := time.Now()
		n.want(newInstance(1, control.Serve, 30), newInstance(2, control.Serve, 30), newInstance(3, control.Serve, 30), newInstance(4, control.Serve, 30))
		n.untilState(4, control.Active)
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("it took %v", d)
		}
		// A late end of an old process has no effect on the new ones.
		n.untilState(2, control.Failed)
		n.untilState(3, control.Failed)
		n.untilState(4, control.Active)
	})
}

// TestFaultBeforeUse checks that a fault of a process that never used the device ends only that process.
func TestFaultBeforeUse(t *testing.T) {
	for name, c := range map[string]struct {
		health mps.Health
		mute   bool
		all    bool
	}{
		"the server is well": {health: mps.Well},
		"it has failed":      {health: mps.Fault, all: true},
		"it is gone":         {health: mps.Gone, all: true},
		"it says nothing":    {mute: true},
	} {
		t.Run(name, func(t *testing.T) {
			lives := func(sp spec) life { return life{losesFirst: sp.key.generation == 4} }
			runGPUNode(t, lives, func(n *node) {
				n.startFour()
				n.machine.daemon().set(func(d *fakeMPS) { d.health, d.mute = c.health, c.mute })
				n.want(newInstance(1, control.Serve, 30), newInstance(2, control.Serve, 30), newInstance(3, control.Serve, 30), newInstance(4, control.Serve, 30))
				n.untilState(4, control.Failed)
				time.Sleep(time.Second)
				synctest.Wait()
				for _, p := range n.link.observed().Processes {
					if p.DeviceLost != c.all || p.State.Ended() != (c.all || p.Generation == 4) {
						t.Errorf("%+v", p)
					}
				}
			})
		})
	}
}

func TestMPSServerDies(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		n.startFour()
		began := time.Now()
		n.machine.daemon().set(func(d *fakeMPS) { d.state.Losses++ })
		synctest.Wait()
		if p := n.link.observed().Processes; time.Since(began) != 0 || !p[0].DeviceLost || !p[1].DeviceLost || !p[2].DeviceLost || p[3].DeviceLost {
			t.Errorf("at once: %+v", p)
		}
		for g := uint32(1); g <= 3; g++ {
			if p := n.untilState(g, control.Failed); !p.DeviceLost {
				t.Errorf("%d ended as %+v", g, p)
			}
		}
		n.untilState(4, control.Loaded)
		// One loss is counted once.
		n.want(newInstance(4, control.Serve, 30))
		n.untilState(4, control.Active)
		time.Sleep(time.Minute)
		n.untilState(4, control.Active)
	})
}

// The clients notice a server's death before the orchestrator does.
func TestWakeWaitsForServer(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		n.startFour()
		n.machine.daemon().set(func(d *fakeMPS) { d.health = mps.Gone })
		n.spawner.generation(1).fault("no server")
		synctest.Wait()
		n.want(newInstance(4, control.Serve, 30))
		n.untilProcess(4, "it says what it waits for", func(p control.ObservedProcess) bool { return p.Reason == "waiting for MPS: its server ended" })
		n.machine.daemon().set(func(d *fakeMPS) {
			d.state.Serving, d.state.Why = false, "the MPS server ended"
			d.state.Losses++
		})
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		n.untilState(4, control.Loaded)
		n.machine.daemon().set(func(d *fakeMPS) { d.state.Serving, d.health = true, mps.Well })
		began := time.Now()
		n.untilState(4, control.Active)
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("it took %v", d)
		}
	})
}

// A process learns of the server's end before the daemon does.
func TestServerEndTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		dies bool
		max  time.Duration
	}{
		"it ends":                 {dies: true, max: 200 * time.Millisecond},
		"it was something else's": {dies: false, max: serverEndTimeout + 100*time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			runGPUNode(t, func(sp spec) life { return life{blameless: true} }, func(n *node) {
				n.startFour()
				n.spawner.generation(1).fault("the MPS server failed during the call")
				synctest.Wait()
				n.want(newInstance(4, control.Serve, 30))
				began := time.Now()
				n.untilProcess(4, "it says what it waits for", func(p control.ObservedProcess) bool { return p.Reason == "waiting for MPS: its server ended" })
				if c.dies {
					time.Sleep(50 * time.Millisecond)
					n.machine.daemon().set(func(d *fakeMPS) {
						d.state.Serving, d.state.Why = false, "the MPS server ended"
						d.state.Losses++
					})
					time.Sleep(50 * time.Millisecond)
					synctest.Wait()
					n.untilState(4, control.Loaded)
					n.machine.daemon().set(func(d *fakeMPS) { d.state.Serving = true })
				}
				n.untilState(4, control.Active)
				if d := time.Since(began); d > c.max {
					t.Errorf("it took %v", d)
				}
				for _, p := range n.link.observed().Processes {
					if p.DeviceLost && !p.Blameless {
						t.Errorf("%d is to blame: %+v", p.Generation, p)
					}
				}
			})
		})
	}
}

func TestWakeWaitsForMPS(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		n.want(newDesired(1, control.Shadow, 30))
		n.untilState(1, control.Loaded)
		n.machine.daemon().set(func(d *fakeMPS) { d.state.Serving, d.state.Why = false, "the MPS daemon ended" })
		synctest.Wait()
		n.want(newDesired(1, control.Serve, 30))
		n.untilProcess(1, "it says what it waits for", func(p control.ObservedProcess) bool { return p.Reason == "waiting for MPS: the MPS daemon ended" })
		time.Sleep(time.Minute)
		n.untilState(1, control.Loaded)
		n.machine.daemon().set(func(d *fakeMPS) { d.state.Serving = true })
		began := time.Now()
		n.untilState(1, control.Active)
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("it took %v", d)
		}
	})
}

func TestWakeWaitsForMemory(t *testing.T) {
	for name, c := range map[string]struct {
		held     int64 // bytes of the GPU that others hold
		listed   time.Duration
		min, max time.Duration // until the process is awake
	}{
		"there is enough":          {held: 0, listed: time.Hour, max: 50 * time.Millisecond},
		"it is short":              {held: 100<<30 - 256<<20, listed: 500 * time.Millisecond, min: 500 * time.Millisecond, max: 600 * time.Millisecond},
		"it is short for too long": {held: 100<<30 - 256<<20, listed: time.Hour, min: 2 * time.Second, max: 2200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			lives := func(sp spec) life {
				return life{dies: time.Duration(2-sp.key.generation) * 10 * time.Second, how: exit{code: 1}}
			}
			runGPUNode(t, lives, func(n *node) {
				n.want(newDesired(1, control.Serve, 30), newDesired(2, control.Shadow, 30))
				n.untilState(1, control.Active)
				n.untilState(2, control.Loaded)
				first := n.spawner.generation(1)
				n.machine.gpus.Hold("GPU-1", c.held)
				n.machine.gpus.Put("GPU-1", nvml.Process{PID: first.id, UsedBytes: 1 << 20, MPS: true})
				n.untilState(1, control.Failed)
				time.AfterFunc(c.listed, func() { n.machine.gpus.Remove(first.id) })
				died := time.Now()
				n.want(newDesired(2, control.Serve, 30))
				n.untilState(2, control.Active)
				if d := time.Since(died); d < c.min-50*time.Millisecond || d > c.max+50*time.Millisecond {
					t.Errorf("it was awake after %v", d)
				}
			})
		})
	}
}

// TestGPULeaks applies random desired states to processes with
// random lives, on a GPU that faults. runGPUNode checks that no process and no daemon is left.
func TestGPULeaks(t *testing.T) {
	for range 30 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			lives := func(sp spec) life {
				r := rand.New(rand.NewPCG(seed, uint64(sp.key.generation)))
				ms := func(n int) time.Duration { return time.Duration(r.IntN(n)) * time.Millisecond }
				maybe := func() bool { return r.IntN(6) == 0 }
				l := life{
					handshake: ms(300), load: ms(1000), link: ms(1000), drains: ms(6000), lingers: ms(500), moves: ms(2000),
					ignoreDrain: maybe(), ignoreTerm: maybe(), ignoreOrders: maybe(), stuck: maybe(), losesFirst: maybe(),
				}
				if maybe() {
					l.staysPut = "no"
				}
				if maybe() {
					l.dies, l.how = ms(20000)+1, exit{code: r.IntN(2)}
				}
				return l
			}
			runGPUNode(t, lives, func(n *node) {
				generation := uint32(0)
				var processes []control.DesiredProcess
				for i := range 40 {
					switch r.IntN(8) {
					case 0, 1:
						generation++
						p := grouped(generation, []control.Role{control.Shadow, control.Serve}[r.IntN(2)])
						p.Instance = r.IntN(3)
						processes = append(slices.Clone(processes), p)
					case 2:
						if len(processes) > 0 {
							processes = slices.Delete(slices.Clone(processes), 0, 1)
						}
					case 3, 4:
						if len(processes) > 0 {
							processes = slices.Clone(processes)
							p := &processes[r.IntN(len(processes))]
							p.Role, p.SMGroups = control.Serve, []int{r.IntN(8), 8 + r.IntN(8)}
						}
					case 5:
						if living := n.spawner.living(); len(living) > 0 {
							select {
							case living[r.IntN(len(living))].faulted <- "fault":
							default:
							}
						}
					case 6:
						d := n.machine.daemon()
						if d == nil {
							continue
						}
						d.set(func(d *fakeMPS) {
							d.state.Serving, d.health = r.IntN(2) == 0, mps.Health(r.IntN(3))
							d.state.Losses += uint64(r.IntN(2))
						})
					case 7:
						if r.IntN(4) == 0 {
							n.replaceManager(fmt.Sprint("m", i))
							n.desired.NoMPS = r.IntN(4) == 0
							processes = nil
						}
					}
					n.want(processes...)
					time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
				}
			})
		})
	}
}
