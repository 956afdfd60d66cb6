package orchestrator

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/orchestrator/guest"
	"github.com/penstock/penstock/orchestrator/mps"
)

// fakeGuests is a server of guests, which a test suspects or not.
type fakeGuests struct {
	ended chan string

	mu      sync.Mutex
	devices []guest.Device
	lost    []string // the calls of Lose
	guilty  bool     // a guest inside MPS is there
	held    string   // the answer of Held
	blamed  []bool   // the calls of Fault
}

func (f *fakeGuests) Ended() <-chan string { return f.ended }
func (f *fakeGuests) Restore() error       { return nil }
func (f *fakeGuests) Close() error         { return nil }

func (f *fakeGuests) SetDevices(list []guest.Device) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices = list
}

func (f *fakeGuests) Lose(device, _ string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = append(f.lost, device)
}

func (f *fakeGuests) Fault(_, _ string, blame bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blamed = append(f.blamed, blame)
	return blame && f.guilty
}

func (f *fakeGuests) Held(string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held
}

// has returns the first device, and the calls of Fault.
func (f *fakeGuests) has() (guest.Device, []bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.devices[0], slices.Clone(f.blamed)
}

func TestGuestBlamed(t *testing.T) {
	for _, guilty := range []bool{true, false} {
		t.Run(fmt.Sprint(guilty), func(t *testing.T) {
			runGPUNode(t, nil, func(n *node) {
				n.guests.guilty = guilty
				n.startFour()
				n.spawner.generation(1).fault("illegal address")
				for _, generation := range []uint32{1, 2} {
					p := n.untilProcess(generation, "it is lost", func(p control.ObservedProcess) bool { return p.State == control.Failed && p.DeviceLost })
					if p.Blameless != guilty {
						t.Errorf("process %d is blameless: %v, want %v", generation, p.Blameless, guilty)
					}
				}
				if _, blamed := n.guests.has(); !slices.Equal(blamed, []bool{true}) {
					t.Errorf("guests were told of faults %v, want one", blamed)
				}
			})
		})
	}
}

// TestGuestEnds ends a guest that has failed the GPU while all functions are idle.
func TestGuestEnds(t *testing.T) {
	t.Run("after a fault", func(t *testing.T) {
		runGPUNode(t, nil, func(n *node) {
			n.guests.guilty = true
			n.startFour()
			n.machine.daemon().set(func(d *fakeMPS) { d.health = mps.Fault })
			n.guests.ended <- "cuda"
			n.untilProcess(1, "it is lost", func(p control.ObservedProcess) bool {
				return p.State == control.Failed && p.DeviceLost && p.Blameless
			})
			n.machine.daemon().set(func(d *fakeMPS) { d.health = mps.Well })
			n.want(newInstance(4, control.Serve, 30))
			n.untilState(4, control.Active)
			n.guests.ended <- "cuda" // of the same fault
			synctest.Wait()
			n.untilState(4, control.Active)
		})
	})
	t.Run("well", func(t *testing.T) {
		runGPUNode(t, nil, func(n *node) {
			n.startFour()
			n.guests.ended <- "cuda"
			time.Sleep(time.Second)
			synctest.Wait()
			n.untilState(1, control.Active)
			if _, blamed := n.guests.has(); len(blamed) > 0 {
				t.Errorf("guests were told of faults %v", blamed)
			}
		})
	})
}

func TestGuestMemory(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		inWorker := newInstance(2, control.Serve, 30)
		inWorker.Worker, inWorker.MemoryBytes = "cold", 8<<30
		n.want(newInstance(1, control.Serve, 30), inWorker)
		n.untilState(1, control.Active)
		n.untilState(2, control.Active)
		worker := n.spawner.generation(2).id
		n.machine.gpus.Put("GPU-1", nvml.Process{PID: worker, UsedBytes: 3 << 30, MPS: true})
		d, _ := n.guests.has()
		if d.ContextBytes != contextBytes || d.RestartBytes != contextBytes+1200 || len(d.WorkerBytes) != 1 || d.WorkerBytes[worker] != 8<<30 {
			t.Errorf("functions need %d and %d, workers %v", d.ContextBytes, d.RestartBytes, d.WorkerBytes)
		}
		if u, ok := d.Memory(); !ok || u.FreeBytes != 97<<30 || u.Processes[worker] != 3<<30 {
			t.Errorf("the GPU has %+v, %v", u, ok)
		}
		n.machine.gpus.Refuse(nvml.ErrNoDevice)
		if _, ok := d.Memory(); ok {
			t.Error("memory is known without NVML")
		}
		n.machine.gpus.Refuse(nil)
	})

	// A function finds too little memory.
	const reason = "link model: cuda: out of memory"
	runGPUNode(t, func(spec) life { return life{failsToLoad: reason} }, func(n *node) {
		n.guests.held = "guests have GPU memory: python 9 MiB"
		n.want(newInstance(1, control.Serve, 30))
		if p := n.untilState(1, control.Failed); !strings.Contains(p.Reason, reason+"; "+n.guests.held) {
			t.Errorf("failed: %q", p.Reason)
		}
	})
}

func TestGuestDevice(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		n.startFour()
		d, _ := n.guests.has()
		if d.Kind != guest.InMPS || d.Wait != "" || d.Client["CUDA_MPS_PIPE_DIRECTORY"] != "/run/mps" || d.Own["CUDA_MPS_PIPE_DIRECTORY"] != "no-mps" || d.Own["CUDA_VISIBLE_DEVICES"] != "GPU-1" {
			t.Errorf("guests may use %+v", d)
		}
		n.machine.daemon().set(func(d *fakeMPS) { d.state.Serving, d.state.Why = false, "the MPS daemon ended" })
		time.Sleep(time.Second)
		synctest.Wait()
		if d, _ := n.guests.has(); !strings.Contains(d.Wait, "the MPS daemon ended") {
			t.Errorf("without MPS guests wait for %q", d.Wait)
		}
	})
	runGPUNode(t, nil, func(n *node) {
		n.machine.noMPS = &mps.Problem{Why: "no program"}
		n.want(newInstance(1, control.Serve, 30))
		n.untilState(1, control.Active)
		if d, _ := n.guests.has(); d.Kind != guest.Beside || !strings.Contains(d.Why, "no program") || d.Own["CUDA_VISIBLE_DEVICES"] != "GPU-1" {
			t.Errorf("with time slices guests may use %+v", d)
		}
	})
	runNode(t, nil, func(n *node) {
		n.want(newDesired(1, control.Serve, 30))
		n.untilState(1, control.Active)
		if d, _ := n.guests.has(); d.Kind != guest.OnCPU || d.Wait != "" {
			t.Errorf("on a CPU guests may use %+v", d)
		}
	})
}
