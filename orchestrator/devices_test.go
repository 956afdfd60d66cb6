package orchestrator

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/gpu"
)

// runDevices runs f with a manager that wants two GPUs and the CPU.
func runDevices(t *testing.T, lives func(spec) life, f func(*node)) {
	t.Helper()
	runNode(t, lives, func(n *node) {
		n.desired.Devices = []string{"cuda", "cuda:1", control.DeviceCPU}
		f(n)
	})
}

// on puts a process on a device.
func on(device string, p control.DesiredProcess) control.DesiredProcess {
	p.Device = device
	return p
}

func TestDevices(t *testing.T) {
	lives := func(sp spec) life {
		return life{sms: func(control.Order) int { return map[string]int{fakeGPU.UUID: 37, smallGPU.UUID: 19}[sp.start.Device] }}
	}
	runDevices(t, lives, func(n *node) {
		n.want(on("cuda:1", newInstance(1, control.Serve, 30)), on(control.DeviceCPU, newInstance(2, control.Serve, 40)), on("cuda", newInstance(3, control.Serve, 30)))
		for g, want := range map[uint32]struct {
			device string
			sms    int
			quota  float64
		}{1: {smallGPU.UUID, 19, 0}, 2: {control.DeviceCPU, 0, 40}, 3: {fakeGPU.UUID, 37, 0}} {
			p := n.untilState(g, control.Active)
			f := n.spawner.generation(g)
			if f.spec.start.Device != want.device || p.SMs != want.sms || p.Reason != "" || n.shares.of(key{"face", int(g), g}) != want.quota {
				t.Errorf("process %d runs on %s as %+v, with a quota of %v", g, f.spec.start.Device, p, n.shares.of(key{"face", int(g), g}))
			}
			if visible := f.spec.environment["CUDA_VISIBLE_DEVICES"]; want.device != control.DeviceCPU && visible != want.device {
				t.Errorf("process %d sees device %q", g, visible)
			}
		}
		o := n.link.observed()
		if len(o.Devices) != 3 || o.Devices[0].GPU.UUID != fakeGPU.UUID || o.Devices[1].GPU.UUID != smallGPU.UUID || o.Devices[1].Mechanism != gpu.MPS ||
			o.Devices[2].GPU != nil || o.Devices[2].Mechanism != fakeMechanism {
			t.Errorf("observed %+v", o.Devices)
		}
	})
}

// A fault, and the end of an MPS server, concern one device. The others' processes are neither killed nor held back.
func TestDeviceFault(t *testing.T) {
	for name, fail := range map[string]func(*node){
		"a process faults": func(n *node) { n.spawner.generation(1).fault("illegal address") },
		"the server ends":  func(n *node) { n.machine.daemonOf(fakeGPU.UUID).set(func(d *fakeMPS) { d.state.Losses++ }) },
	} {
		t.Run(name, func(t *testing.T) {
			sms := func(sp spec) life { return life{sms: func(control.Order) int { return 20 }} }
			runDevices(t, sms, func(n *node) {
				all := []control.DesiredProcess{
					on("cuda", newInstance(1, control.Serve, 0)), on("cuda", newInstance(2, control.Serve, 0)),
					on("cuda:1", newInstance(3, control.Serve, 0)), on("cuda:1", newInstance(4, control.Shadow, 0)), on(control.DeviceCPU, newInstance(5, control.Serve, 40)),
				}
				n.want(all...)
				for _, g := range []uint32{1, 2, 3, 5} {
					n.untilState(g, control.Active)
				}
				n.untilState(4, control.Loaded)
				n.machine.daemonOf(fakeGPU.UUID).set(func(d *fakeMPS) { d.mute = true }) // it holds wakes on its device
				fail(n)
				synctest.Wait()
				all[3].Role = control.Serve
				n.want(all...)
				n.untilState(4, control.Active)
				time.Sleep(time.Second)
				for _, p := range n.link.observed().Processes {
					if lost := p.Generation <= 2; p.DeviceLost != lost || p.State.Ended() != lost {
						t.Errorf("%+v", p)
					}
				}
			})
		})
	}
}

// The same place on another device has its own backoff.
func TestBackoffPerDevice(t *testing.T) {
	fails := func(sp spec) life {
		if sp.start.Device == fakeGPU.UUID {
			return life{failsToLoad: "no kernel image"}
		}
		return life{sms: func(control.Order) int { return 66 }}
	}
	runDevices(t, fails, func(n *node) {
		for g := uint32(1); g <= 6; g++ {
			n.want(on("cuda", newDesired(g, control.Shadow, 0)))
			n.untilState(g, control.Failed)
		}
		began := time.Now()
		n.want(on("cuda:1", newDesired(7, control.Serve, 0)))
		n.untilState(7, control.Active)
		if d := time.Since(began); d > minBackoff {
			t.Errorf("it took %v", d)
		}
	})
}

// A device that cannot be opened, or is another one, ends the node with an error that names it.
func TestDeviceUnusable(t *testing.T) {
	for wrong, want := range map[string]string{"cuda:7": `open device cuda:7`, "GPU-1": "it is claimed"} {
		t.Run(wrong, func(t *testing.T) {
			runNode(t, nil, func(n *node) {
				n.desired.Devices = []string{"cuda", wrong}
				n.desired.Seq++
				n.messages <- n.desired
				<-n.stopped
				if n.err == nil || !strings.Contains(n.err.Error(), want) {
					t.Errorf("ended with %v, want %s", n.err, want)
				}
			})
		})
	}
}
