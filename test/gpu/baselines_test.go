//go:build gpu

package gpu

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// The baselines are Penstock with PENSTOCK_LAB (docs/adr/0010-baselines.md). Each must
// give the CPU's answers and report its name, and its shadows must take over.
func TestBaselines(t *testing.T) {
	type says struct{ mechanism, change string }
	fixed := func(size int, delay time.Duration) control.Batching {
		return control.Batching{Rule: control.BatchFixed, Size: size, Delay: delay}
	}
	one := control.Batching{Rule: control.BatchOne}
	for _, c := range []struct {
		name, config string
		lab          configs.Lab
		says         says
		share        bool
	}{
		{"time slicing", "", configs.Lab{TimeSlicing: true, Batching: one}, says{"time-slicing", "none"}, false},
		{"time slicing and SLAB", "", configs.Lab{TimeSlicing: true}, says{"time-slicing", "none"}, false},
		{"default MPS", "", configs.Lab{Change: configs.ChangeNone, Batching: one}, says{"mps", "none"}, false},
		{"default MPS and SLAB", "", configs.Lab{Change: configs.ChangeNone}, says{"mps", "none"}, false},
		{"default MPS, AIMD", "", configs.Lab{Change: configs.ChangeNone, Batching: control.Batching{Rule: control.BatchAIMD}}, says{"mps", "none"}, false},
		{"default MPS, fixed batches", "", configs.Lab{Change: configs.ChangeNone, Batching: fixed(8, 5*time.Millisecond)}, says{"mps", "none"}, false},
		{"static percentages", "shares: {policy: gslice, change: shadow, tune: false}", configs.Lab{}, says{"mps", "shadow"}, true},
		{"the CPU gathers", "", configs.Lab{Change: configs.ChangeNone, CopyGather: true}, says{"mps", "none"}, false},
		{"the CPU gathers, on partitions", "shares: {policy: gslice, tune: false, change: partition}", configs.Lab{CopyGather: true, Batching: fixed(4, 0)}, says{"mps", "partition"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			share := ""
			if c.share {
				share = ", share_percent: 33"
			}
			text := c.config + "\nfunctions:\n"
			names := []string{"fashion", "face"}
			if c.lab.CopyGather {
				names = append(names, "detect") // it has the largest pictures
			}
			for _, name := range names {
				text += fmt.Sprintf("  - {name: %s, port: 0, slo: 20s%s}\n", name, share)
			}
			n := start(t, text, c.lab.Environment())
			for _, name := range names {
				t.Run(name, func(t *testing.T) { answersAsOnTheCPU(t, n, name) })
			}
			s := status(t, n)
			f, _ := s.Function("fashion")
			if is := (says{s.Devices[0].Mechanism, f.Change}); is != c.says {
				t.Errorf("status says %+v, want %+v", is, c.says)
			}
			if daemon := mpsProcess(n, mpsDaemon); (daemon != 0) != (c.says.mechanism == "mps") {
				t.Errorf("the node's MPS daemon is process %d", daemon)
			}
			active, shadow := nodetest.Serving(t, n, "fashion")
			if total := multiprocessors(t, n); (active.SMs == total) != (c.says.change == "none") {
				t.Errorf("fashion counts %d of %d multiprocessors", active.SMs, total)
			}
			nodetest.Kill(t, active.PID)
			nodetest.ShadowServes(t, n, "fashion", shadow)
			again := send(t, n, "fashion", 100)
			again.flows(t)
			again.stop().answeredAll(t, 0)
			for _, name := range names {
				nodetest.Settled(t, n, name)
			}
		})
	}
}

// Without MPS, processes take turns and have separate contexts. A fault of one does not
// affect the others.
func TestNeighbourFaultByTime(t *testing.T) {
	n := start(t, `
functions:
  - {name: fashion, port: 0, slo: 10s}
  - {name: face, port: 0, slo: 10s}
`+neighbour(t, ""), configs.Lab{TimeSlicing: true}.Environment())
	fashion, face := send(t, n, "fashion", 400), send(t, n, "face", 100)
	fashion.flows(t)
	face.flows(t)
	before := map[string]uint32{}
	for _, name := range []string{"fashion", "face", "neighbour"} {
		active, _ := nodetest.Serving(t, n, name)
		before[name] = active.Generation
	}
	bad := send(t, n, "neighbour", 200)
	wait.For(t, "another process of the neighbour", func() bool {
		f, err := n.Function("neighbour")
		if err != nil {
			return false
		}
		active, serves := f.Instances[0].Serving()
		return serves && active.Generation > before["neighbour"]
	})
	bad.stop()
	fashion.stop().answeredAll(t, 0)
	face.stop().answeredAll(t, 0)
	for _, name := range []string{"fashion", "face"} {
		if active, _ := nodetest.Serving(t, n, name); active.Generation != before[name] {
			t.Errorf("generation %d serves %s, want %d still", active.Generation, name, before[name])
		}
		nodetest.Settled(t, n, name)
	}
	if s := status(t, n); s.Devices[0].Faults.Count != 0 || s.Devices[0].Mechanism != "time-slicing" || s.Devices[0].GPU.Why != "" {
		t.Errorf("status says %+v, %+v of %s", s.Devices[0].Faults, s.Devices[0].GPU, s.Devices[0].Mechanism)
	}
	bad.mu.Lock()
	defer bad.mu.Unlock()
	if bad.by[client.StatusFailed] == 0 {
		t.Errorf("no batch of the neighbour's failed: %v", bad.by)
	}
}
