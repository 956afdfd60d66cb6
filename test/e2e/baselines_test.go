package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/wire"
)

// What Penstock is compared with is Penstock in another configuration
// (docs/adr/0010-baselines.md): each answers every request, and says what it is.
func TestEveryBaselineAnswersEveryRequest(t *testing.T) {
	const n = 240
	card := nullCard(t, "digest", small)
	type says struct{ mechanism, change, batching, gather, late string }
	for _, c := range []struct {
		name   string
		config string // of the node, beside its functions
		gpu    bool
		says   says
		most   float64 // the batch limit, where the rule has one
	}{
		{"on a CPU, no shares", "shares: {change: none}", false, says{"", "none", "slab", "", "answer"}, 0},
		{"on a CPU, static percentages", "shares: {change: in-place, tune: false}", false, says{"", "in-place", "slab", "", "answer"}, 0},
		{"on a CPU, AIMD", "batching: aimd", false, says{"", "shadow", "aimd", "", "answer"}, 0},
		{"on a CPU, one request a batch", "batching: none\nlate: run", false, says{"", "shadow", "none", "", "run"}, 1},
		{"on a CPU, fixed batches", "batching: {fixed: 4, delay: 3ms}", false, says{"", "shadow", "{fixed: 4, delay: 3ms}", "", "answer"}, 4},
		{"time slicing", "device: cuda\nmps: false", true, says{"time-slicing", "none", "slab", "kernel", "answer"}, 0},
		{"time slicing, one request a batch, every one run", "device: cuda\nmps: false\nbatching: none\nlate: run\ngather: copy", true,
			says{"time-slicing", "none", "none", "copy", "run"}, 1},
		{"default MPS", "device: cuda\nshares: {change: none}\nbatching: none\nlate: run", true, says{"mps", "none", "none", "kernel", "run"}, 1},
		{"default MPS and SLAB", "device: cuda\nshares: {change: none}", true, says{"mps", "none", "slab", "kernel", "answer"}, 0},
		{"default MPS and fixed batches", "device: cuda\nshares: {change: none}\nbatching: {fixed: 8, delay: 2ms}\nlate: run", true,
			says{"mps", "none", "{fixed: 8, delay: 2ms}", "kernel", "run"}, 8},
		{"static percentages", "device: cuda\nshares: {change: shadow, tune: false}", true, says{"mps", "shadow", "slab", "kernel", "answer"}, 0},
		{"AIMD on partitions", "device: cuda\nbatching: aimd", true, says{"mps", "partition", "aimd", "kernel", "answer"}, 0},
		{"the CPU gathers, on partitions", "device: cuda\ngather: copy", true, says{"mps", "partition", "slab", "copy", "answer"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			share := ", share_percent: 30"
			if c.says.change == "none" {
				share = ""
			}
			text := c.config + fmt.Sprintf("\nlog: {level: debug}\nfunctions:\n  - {name: fn, model: %s, port: 0%s}\n  - {name: other, model: %s, port: 0%s}\n", card, share, card, share)
			var environment []string
			if c.gpu {
				environment = withGPU(t, true)
			}
			nd := start(t, text, environment...)
			first, shadow := serving(t, nd, "fn")
			got := stream(t, nd, n, func() {})
			if got.by[wire.StatusOK] != n || got.wrong > 0 || got.lost > 0 {
				t.Errorf("%s; want %d right answers", got, n)
			}
			status, err := nd.Status()
			if err != nil {
				t.Fatal(err)
			}
			f, _ := status.Function("fn")
			is := says{status.Mechanism, f.Change, f.Batching, f.Gather, f.Late}
			if !c.gpu {
				is.mechanism = ""
			}
			if is != c.says {
				t.Errorf("status says %+v, want %+v", is, c.says)
			}
			if c.most > 0 && f.Limit != c.most {
				t.Errorf("batches of %v, want %v", f.Limit, c.most)
			}
			if in := f.Instances[0]; in.Whole != (c.says.change == "none") || in.Whole && f.SharePercent != 100 {
				t.Errorf("a share of %v %%, the whole device %v", f.SharePercent, in.Whole)
			}
			if c.gpu && c.says.change == "none" && first.SMs != status.Device.SMs {
				t.Errorf("it counts %d multiprocessors of %d", first.SMs, status.Device.SMs)
			}
			// A process that dies has its shadow take over, whatever is compared.
			kill(t, first.PID)
			shadowServes(t, nd, "fn", shadow)
			settled(t, nd, "fn")
		})
	}
}

// Processes that take turns have contexts of their own: one that faults takes nobody with
// it, and nobody is asked how an MPS server is.
func TestByTimeAFaultIsItsProcesssOwn(t *testing.T) {
	card := nullCard(t, "digest", small)
	nd := start(t, fmt.Sprintf(`
device: cuda
mps: false
functions:
  - {name: fn, model: %s, port: 0}
  - {name: bad, model: %s, port: 0, environment: {PENSTOCK_NULL: "fault_after=30"}}
`, card, card), withGPU(t, true)...)
	first, _ := serving(t, nd, "fn")
	faulty, _ := serving(t, nd, "bad")
	bad := newAnswers()
	b := dial(t, nd, "bad", client.Options{Deliver: bad.deliver(small), Timeout: 20 * time.Second})
	sent := 0
	got := stream(t, nd, 200, func() {
		waitFor(t, "another process of the one that faults", func() bool {
			send(t, b, small, sent, 1, 2*time.Millisecond)
			sent++
			f, err := nd.Function("bad")
			if err != nil {
				return false
			}
			now, ok := f.Instances[0].Serving()
			return ok && now.Generation > faulty.Generation
		})
	})
	bad.wait(sent)
	if bad.lost > 0 || bad.by[wire.StatusFailed] == 0 {
		t.Errorf("the one that faults: %s; want every request answered, one batch at least failed", bad)
	}
	if got.by[wire.StatusOK] != 200 || got.wrong > 0 {
		t.Errorf("its neighbour: %s; want 200 right answers", got)
	}
	if now, _ := serving(t, nd, "fn"); now.PID != first.PID {
		t.Errorf("process %d serves the neighbour, want %d still", now.PID, first.PID)
	}
	status, err := nd.Status()
	if err != nil {
		t.Fatal(err)
	}
	if status.Faults.Count != 0 || status.Device.Why != "" {
		t.Errorf("status says %+v of %+v", status.Faults, status.Device)
	}
	settled(t, nd, "fn")
	settled(t, nd, "bad")
}
