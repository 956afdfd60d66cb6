//go:build gpu

package gpu

import (
	"fmt"
	"testing"

	"github.com/penstock/penstock/wire"
)

// What Penstock is compared with is Penstock in another configuration
// (docs/adr/0010-baselines.md). Each gives the CPU's answers, says what it is, and has its
// shadows take over.
func TestEveryBaselineAnswersAsOnTheCPU(t *testing.T) {
	type says struct{ mechanism, change, batching, gather, late string }
	for _, c := range []struct {
		name, config string
		says         says
		share        bool
	}{
		{"time slicing", "mps: false\nbatching: none\nlate: run", says{"time-slicing", "none", "none", "kernel", "run"}, false},
		{"time slicing and SLAB", "mps: false", says{"time-slicing", "none", "slab", "kernel", "answer"}, false},
		{"default MPS", "shares: {change: none}\nbatching: none\nlate: run", says{"mps", "none", "none", "kernel", "run"}, false},
		{"default MPS and SLAB", "shares: {change: none}", says{"mps", "none", "slab", "kernel", "answer"}, false},
		{"default MPS, AIMD", "shares: {change: none}\nbatching: aimd", says{"mps", "none", "aimd", "kernel", "answer"}, false},
		{"default MPS, fixed batches", "shares: {change: none}\nbatching: {fixed: 8, delay: 5ms}\nlate: run",
			says{"mps", "none", "{fixed: 8, delay: 5ms}", "kernel", "run"}, false},
		{"static percentages", "shares: {change: shadow, tune: false}", says{"mps", "shadow", "slab", "kernel", "answer"}, true},
		{"the CPU gathers", "shares: {change: none}\ngather: copy", says{"mps", "none", "slab", "copy", "answer"}, false},
		{"the CPU gathers, on partitions", "shares: {tune: false}\ngather: copy\nbatching: {fixed: 4, delay: 0s}",
			says{"mps", "partition", "{fixed: 4, delay: 0s}", "copy", "answer"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			share := ""
			if c.share {
				share = ", share_percent: 33"
			}
			text := c.config + "\nfunctions:\n"
			names := []string{"fashion", "face"}
			if c.says.gather == "copy" {
				names = append(names, "detect") // whose pictures are the largest
			}
			for _, name := range names {
				text += fmt.Sprintf("  - {name: %s, port: 0, slo: 20s%s}\n", name, share)
			}
			n := start(t, text)
			for _, name := range names {
				t.Run(name, func(t *testing.T) { answersAsOnTheCPU(t, n, name) })
			}
			s := status(t, n)
			f, _ := s.Function("fashion")
			if is := (says{s.Mechanism, f.Change, f.Batching, f.Gather, f.Late}); is != c.says {
				t.Errorf("status says %+v, want %+v", is, c.says)
			}
			if daemon := mpsProcess(n, mpsDaemon); (daemon != 0) != (c.says.mechanism == "mps") {
				t.Errorf("the node's MPS daemon is process %d", daemon)
			}
			active, shadow := serving(t, n, "fashion")
			if total := multiprocessors(t, n); (active.SMs == total) != (c.says.change == "none") {
				t.Errorf("fashion counts %d of %d multiprocessors", active.SMs, total)
			}
			kill(t, active.PID)
			shadowServes(t, n, "fashion", shadow)
			again := send(t, n, "fashion", 100)
			again.flows(t)
			again.stop().answeredAll(t, 0)
			for _, name := range names {
				settled(t, n, name)
			}
		})
	}
}

// Processes that take turns have contexts of their own: one that faults takes nobody
// with it.
func TestByTimeANeighboursIllegalAccessIsItsOwn(t *testing.T) {
	n := start(t, `
mps: false
functions:
  - {name: fashion, port: 0, slo: 10s}
  - {name: face, port: 0, slo: 10s}
`+neighbour(t, ""))
	fashion, face := send(t, n, "fashion", 400), send(t, n, "face", 100)
	fashion.flows(t)
	face.flows(t)
	before := map[string]uint32{}
	for _, name := range []string{"fashion", "face", "neighbour"} {
		active, _ := serving(t, n, name)
		before[name] = active.Generation
	}
	bad := send(t, n, "neighbour", 200)
	waitFor(t, "another process of the neighbour", func() bool {
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
		if active, _ := serving(t, n, name); active.Generation != before[name] {
			t.Errorf("generation %d serves %s, want %d still", active.Generation, name, before[name])
		}
		settled(t, n, name)
	}
	if s := status(t, n); s.Faults.Count != 0 || s.Mechanism != "time-slicing" || s.Device.Why != "" {
		t.Errorf("status says %+v, %+v of %s", s.Faults, s.Device, s.Mechanism)
	}
	bad.mu.Lock()
	defer bad.mu.Unlock()
	if bad.by[wire.StatusFailed] == 0 {
		t.Errorf("no batch of the neighbour's failed: %v", bad.by)
	}
}
