package orchestrator

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/orchestrator/guest"
)

// device returns the observed device of that name.
func (n *node) device(name string) control.ObservedDevice {
	o := n.link.observed()
	return o.Device(name)
}

// untilLost waits until a device is lost, or works again.
func (n *node) untilLost(name string, lost bool) {
	n.t.Helper()
	n.until(fmt.Sprintf("%s is lost: %v", name, lost), func(o control.Observed) bool { return (o.Device(name).Lost != "") == lost })
}

// The loss of a device ends its processes, and concerns no other device. When the device works again, it is opened again.
func TestLostDevice(t *testing.T) {
	refuse := func(err error) func(*node) {
		return func(n *node) { n.machine.gpus.Lose(fakeGPU.UUID, err) }
	}
	stopMPS := func(n *node) {
		n.machine.daemonOf(fakeGPU.UUID).set(func(d *fakeMPS) { d.state.Serving, d.state.Why = false, "no device" })
	}
	for name, c := range map[string]struct {
		fail   func(*node)
		noNVML bool
		within time.Duration
		why    string
	}{
		"NVML says that it is lost":   {fail: refuse(nvml.ErrLost), within: 500 * time.Millisecond, why: "the device is lost"},
		"NVML does not find it":       {fail: refuse(nvml.ErrNoDevice), within: 500 * time.Millisecond, why: "no such device"},
		"MPS does not start, no NVML": {fail: stopMPS, noNVML: true, within: 31 * time.Second, why: "MPS cannot be restarted for 30s: no device"},
	} {
		t.Run(name, func(t *testing.T) {
			lives := func(sp spec) life {
				l := life{sms: func(control.Order) int { return 20 }}
				if sp.key.generation == 1 {
					l.lingers = 50 * time.Second // it hangs in the driver
				}
				return l
			}
			runDevices(t, lives, func(n *node) {
				if c.noNVML {
					n.machine.noNVML = nvml.ErrUnavailable
				}
				all := []control.DesiredProcess{
					on("cuda", newInstance(1, control.Serve, 0)), on("cuda", newInstance(2, control.Shadow, 0)),
					on("cuda:1", newInstance(3, control.Serve, 0)), on(control.DeviceCPU, newInstance(4, control.Serve, 40)),
				}
				n.want(all...)
				for _, g := range []uint32{1, 3, 4} {
					n.untilState(g, control.Active)
				}
				n.untilState(2, control.Loaded)
				daemon := n.machine.daemonOf(fakeGPU.UUID)

				began := time.Now()
				c.fail(n)
				n.untilLost("cuda", true)
				if d := time.Since(began); d > c.within {
					t.Errorf("it took %v", d)
				}
				if d := n.device("cuda"); !strings.Contains(d.Lost, c.why) || d.GPU == nil || d.GPU.UUID != fakeGPU.UUID {
					t.Errorf("lost as %+v", d)
				}
				n.untilProcess(1, "it is lost", func(p control.ObservedProcess) bool { return p.DeviceLost && p.Blameless })
				n.untilProcess(2, "it has ended", func(p control.ObservedProcess) bool { return p.State == control.Failed && p.DeviceLost && p.Blameless })
				if _, signals := n.spawner.generation(1).got(); !slices.Equal(signals, []syscall.Signal{syscall.SIGKILL}) {
					t.Errorf("process 1 got %v", signals)
				}

				n.guests.mu.Lock()
				may, ended := n.guests.devices, n.guests.lost
				n.guests.mu.Unlock()
				if len(may) != 3 || !strings.Contains(may[0].Wait, c.why) || may[1].Name != "cuda:1" || may[1].Kind != guest.InMPS || may[1].Wait != "" ||
					may[2].Kind != guest.OnCPU || !slices.Equal(ended, []string{"cuda"}) {
					t.Errorf("guests may use %+v, and end on %v", may, ended)
				}

				// The process that hangs delays no others, and none starts on the lost device.
				all = append(all[2:], on("cuda:1", newInstance(5, control.Serve, 0)), on("cuda", newInstance(6, control.Serve, 0)))
				n.want(all...)
				n.untilState(5, control.Active)
				waiting := n.untilProcess(6, "it waits", func(p control.ObservedProcess) bool { return p.State == control.Starting && p.PID == 0 })
				if !strings.Contains(waiting.Reason, c.why) || !daemon.isClosed() {
					t.Errorf("it waits because of %q, the daemon is closed: %v", waiting.Reason, daemon.isClosed())
				}
				for _, g := range []uint32{3, 4} {
					if p := n.untilState(g, control.Active); p.PID != n.spawner.generation(g).id || p.DeviceLost {
						t.Errorf("process %d: %+v", g, p)
					}
				}

				time.Sleep(time.Minute)
				refuse(nil)(n)
				n.untilLost("cuda", false)
				n.untilState(6, control.Active)
				if p := n.spawner.generation(6); p.spec.start.Device != fakeGPU.UUID || n.machine.probes != 0 {
					t.Errorf("it runs on %s, %d probes", p.spec.start.Device, n.machine.probes)
				}
			})
		})
	}
}

// A device that fails again and again is opened more and more rarely.
func TestFlappingDevice(t *testing.T) {
	runDevices(t, nil, func(n *node) {
		n.want(on("cuda:1", newInstance(1, control.Shadow, 0)))
		n.untilState(1, control.Loaded)
		began := time.Now()
		for range 60 {
			n.machine.gpus.Lose(fakeGPU.UUID, nvml.ErrLost)
			time.Sleep(time.Second)
			n.machine.gpus.Lose(fakeGPU.UUID, nil)
			time.Sleep(2 * time.Second)
		}
		n.untilState(1, control.Loaded)
		if opened, most := n.machine.started(fakeGPU.UUID), int(time.Since(began)/(8*time.Second)); opened < 2 || opened > most {
			t.Errorf("opened %d times in %v, want at most %d", opened, time.Since(began), most)
		}
		n.untilLost("cuda", false)
	})
}

// Nothing waits for a driver that does not answer, and its device is not lost.
func TestNVMLHangs(t *testing.T) {
	lives := func(spec) life { return life{sms: func(control.Order) int { return 20 }} }
	runDevices(t, lives, func(n *node) {
		n.want(on("cuda", newInstance(1, control.Serve, 0)), on("cuda:1", newInstance(2, control.Serve, 0)))
		n.untilState(1, control.Active)
		n.untilState(2, control.Active)
		n.machine.gpus.DelayOf(fakeGPU.UUID, 10*time.Second)
		time.Sleep(time.Second)

		began := time.Now()
		n.want(on("cuda", newInstance(1, control.Serve, 0)), on("cuda", newInstance(3, control.Serve, 0)), on("cuda:1", newInstance(4, control.Serve, 0)))
		n.untilState(3, control.Active)
		n.untilState(4, control.Active)
		n.machine.gpus.Hold(smallGPU.UUID, 1<<30)
		n.until("the other's memory is read", func(o control.Observed) bool { return o.Device("cuda:1").GPU.UsedBytes == 1<<30 })
		if d := time.Since(began); d > time.Second {
			t.Errorf("it took %v", d)
		}
		n.machine.gpus.Lose(smallGPU.UUID, nvml.ErrLost)
		n.untilLost("cuda:1", true)
		time.Sleep(time.Minute)
		if d := n.device("cuda"); d.Lost != "" {
			t.Errorf("lost: %s", d.Lost)
		}
		began = time.Now()
		n.stop()
		<-n.stopped
		if d := time.Since(began); d > time.Second {
			t.Errorf("the end took %v", d)
		}
		time.Sleep(10 * time.Second) // NVML answers
	})
}

// A device that opens slowly delays only its own processes.
func TestSlowDevice(t *testing.T) {
	lives := func(spec) life { return life{sms: func(control.Order) int { return 20 }} }
	runDevices(t, lives, func(n *node) {
		n.machine.finds = func(name string) error {
			if name == "cuda:1" {
				time.Sleep(20 * time.Second)
			}
			return nil
		}
		began := time.Now()
		n.want(on("cuda", newInstance(1, control.Serve, 0)), on("cuda:1", newInstance(2, control.Serve, 0)), on(control.DeviceCPU, newInstance(3, control.Serve, 40)))
		n.untilState(1, control.Active)
		n.untilState(3, control.Active)
		if d := time.Since(began); d > time.Second {
			t.Errorf("it took %v", d)
		}
		n.untilState(2, control.Active)
	})
}

// A device that an earlier orchestrator of the node opened may be missing; its index is another GPU then.
// For another run of the node it is a mistake.
func TestLostAtRestart(t *testing.T) {
	dir := t.TempDir()
	run := func(id string, f func(*node)) {
		runOptions(t, Options{Dir: dir, Run: id}, nil, func(n *node) {
			n.desired.Devices = []string{"cuda", "cuda:1"}
			f(n)
		})
	}
	run("a", func(n *node) {
		n.want(on("cuda:1", newInstance(1, control.Shadow, 0)))
		n.untilState(1, control.Loaded)
	})
	var there atomic.Bool
	without := func(name string) error {
		if name == fakeGPU.UUID && !there.Load() {
			return fmt.Errorf("%w %q", cuda.ErrNoDevice, name)
		}
		return nil
	}
	run("a", func(n *node) {
		n.machine.finds = without
		n.want(on("cuda:1", newInstance(1, control.Shadow, 0)), on("cuda", newInstance(2, control.Shadow, 0)))
		n.untilState(1, control.Loaded)
		if d := n.device("cuda"); !strings.Contains(d.Lost, cuda.ErrNoDevice.Error()) || d.GPU != nil {
			t.Errorf("lost as %+v", d)
		}
		there.Store(true)
		n.untilState(2, control.Loaded)
		n.replaceManager("m2") // the next manager finds the same
		there.Store(false)
		n.machine.gpus.Lose(fakeGPU.UUID, nvml.ErrLost)
		n.untilLost("cuda", true)
		n.want(on("cuda:1", newInstance(3, control.Shadow, 0)))
		n.untilState(3, control.Loaded)
		n.untilLost("cuda", true)
	})
	run("b", func(n *node) {
		n.machine.noGPU = cuda.ErrNoDevice
		n.desired.Seq++
		n.messages <- n.desired
		<-n.stopped
		if n.err == nil || !strings.Contains(n.err.Error(), "open device cuda") {
			t.Errorf("ended with %v", n.err)
		}
	})
}

// A device that the manager wants later, and that cannot be opened, is lost. The node runs on.
func TestAddedDevice(t *testing.T) {
	runOptions(t, Options{Dir: t.TempDir()}, nil, func(n *node) {
		n.desired.Devices = []string{"cuda"}
		n.want(on("cuda", newInstance(1, control.Shadow, 0)))
		n.untilState(1, control.Loaded)
		var there atomic.Bool
		n.machine.finds = func(name string) error {
			if name == "cuda:1" && !there.Load() {
				return fmt.Errorf("%w %q", cuda.ErrNoDevice, name)
			}
			return nil
		}
		n.desired.Devices = []string{"cuda", "cuda:1"}
		n.want(on("cuda", newInstance(1, control.Shadow, 0)), on("cuda:1", newInstance(2, control.Shadow, 0)))
		n.untilLost("cuda:1", true)
		if p := n.untilState(1, control.Loaded); p.DeviceLost {
			t.Errorf("process 1 is %+v", p)
		}
		there.Store(true)
		n.untilState(2, control.Loaded)
	})
}

// The end of a node does not wait for a process that hangs on a lost device.
func TestEndWhileProcessHangs(t *testing.T) {
	lives := func(spec) life { return life{lingers: time.Minute} }
	runGPUNode(t, lives, func(n *node) {
		n.want(newInstance(1, control.Shadow, 30))
		n.untilState(1, control.Loaded)
		n.machine.gpus.Refuse(nvml.ErrLost)
		n.untilLost("cuda", true)
		began := time.Now()
		n.stop()
		<-n.stopped
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("the end took %v", d)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
	})
}

// A device that no process can use is lost, whatever NVML says. A single function's processes show that only if no others get
// ready there.
func TestRefusingDevice(t *testing.T) {
	lives := func(sp spec) life { return life{losesFirst: sp.key.name == "fails"} }
	fails := func(generation uint32) control.DesiredProcess {
		p := on("cuda", newDesired(generation, control.Serve, 0))
		p.IF = "fails"
		return p
	}
	for name, others := range map[string][]control.DesiredProcess{
		"alone":                 {},
		"next to one that runs": {on("cuda", newInstance(9, control.Serve, 0))},
	} {
		t.Run(name, func(t *testing.T) {
			runDevices(t, lives, func(n *node) {
				for generation := range uint32(3) {
					n.want(append(others, fails(generation+1))...)
					for _, p := range others {
						n.untilState(p.Generation, control.Active)
					}
					if n.device("cuda").Lost == "" {
						n.untilState(generation+1, control.Failed)
					}
					synctest.Wait()
				}
				if lost := n.device("cuda").Lost; len(others) > 0 && lost != "" || len(others) == 0 && !strings.Contains(lost, "no process can use it: ") {
					t.Errorf("the device is lost: %q", lost)
				}
			})
		})
	}
}
