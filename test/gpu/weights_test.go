//go:build gpu

package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/onnxtest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator/mps"
)

// Run the suite of onnx again with weights that are mapped read-only, so that every
// write to them faults.
func TestSharedWeights(t *testing.T) {
	var cards []*models.Card
	for _, card := range onnxtest.Zoo(t) {
		if card.Name == "fashion" { // the others run partly on the CPU, or in different kernels each time
			cards = append(cards, card)
		}
	}
	for _, name := range []string{"mobilenetv2", "resnet50", "vgg19"} {
		card, err := models.ReadCard(exported(t, name))
		must.OK(t, err)
		small := *card
		small.Batches = card.Batches[:min(4, len(card.Batches))]
		cards = append(cards, &small)
	}
	onnxtest.RunShared(t, cards...)
}

// sharing starts a node on which each of these functions shares its weights. cache is
// the folder of prepared models.
func sharing(t *testing.T, cache string, functions ...string) *node.Node {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", cache)
	text := "weights: shared\nlog: {level: debug}\nshares: {policy: gslice, tune: false, change: shadow}\nfunctions:\n"
	for i, model := range functions {
		// 30 multiprocessors, for which cuBLAS is correct in f16 (docs/adr/0007).
		text += fmt.Sprintf("  - {name: f%d, model: %s, port: 0, slo: 5s, share_percent: 24}\n", i, exported(t, model))
	}
	return start(t, text)
}

// held waits until the weight server has that many files, and returns its status.
func held(t *testing.T, n *node.Node, files int) (w control.WeightsHeld) {
	t.Helper()
	wait.For(t, fmt.Sprintf("%d files to be held", files), func() bool {
		s := status(t, n)
		if s.Devices[0].GPU == nil || s.Devices[0].GPU.Weights == nil {
			return false
		}
		w = *s.Devices[0].GPU.Weights
		return w.Files == files
	})
	return w
}

// weightServer returns the process id of the node's weight server.
func weightServer(t *testing.T, n *node.Node) int {
	t.Helper()
	pid := 0
	wait.For(t, "a holder", func() bool {
		for _, p := range nodetest.Processes(n.Dir) {
			if p.Command == "weights" {
				pid = p.PID
			}
		}
		return pid != 0
	})
	return pid
}

// Two functions of one model and their shadows hold its weights once. A shadow that is
// woken reads none.
func TestWeightsHeldOnce(t *testing.T) {
	n := sharing(t, t.TempDir(), "vgg19", "vgg19", "resnet50")
	for _, name := range []string{"f0", "f1", "f2"} {
		nodetest.Serving(t, n, name)
	}
	w := held(t, n, 2)
	about, err := os.Stat(filepath.Join(filepath.Dir(exported(t, "vgg19")), "model.onnx"))
	must.OK(t, err)
	if w.Bytes < about.Size() || w.Bytes > 2*about.Size() {
		t.Errorf("%d bytes are held, a VGG-19 alone has %d", w.Bytes, about.Size())
	}
	if strings.Contains(n.Log(), "weights are not shared") {
		t.Error("a process has weights of its own")
	}
	load := send(t, n, "f0", 200)
	load.flows(t)
	for _, percent := range []float64{12, 24} { // 14 multiprocessors, and 30
		before, _ := nodetest.Serving(t, n, "f0")
		nodetest.Share(t, n, "f0", percent)
		wait.For(t, "the shadow to serve", func() bool {
			now, _ := nodetest.Serving(t, n, "f0")
			return now.PID != before.PID
		})
	}
	load.stop().answeredAll(t, 0)
	held(t, n, 2)
	nodetest.Settled(t, n, "f0")
	t.Logf("held %d MiB; silent for %s: %s", w.Bytes>>20, load.longestPause(), load)
}

// A weight server that is killed affects no function. Mapped weights stay, it is
// restarted, and the next process makes it load again.
func TestWeightServerKilled(t *testing.T) {
	n := sharing(t, t.TempDir(), "resnet50", "vgg19")
	load := send(t, n, "f0", 300)
	load.flows(t)
	nodetest.Serving(t, n, "f0")
	nodetest.Serving(t, n, "f1")
	held(t, n, 2)
	for range 3 {
		before := weightServer(t, n)
		nodetest.Kill(t, before)
		wait.For(t, "another holder", func() bool { return weightServer(t, n) != before })
		load.flows(t)
	}
	held(t, n, 0)
	load.stop().answeredAll(t, 0)
	active, _ := nodetest.Serving(t, n, "f1")
	nodetest.Kill(t, active.PID) // its shadow requests weights from the new weight server
	wait.For(t, "the shadow to serve", func() bool {
		now, _ := nodetest.Serving(t, n, "f1")
		return now.PID != active.PID
	})
	held(t, n, 1)
	nodetest.Settled(t, n, "f0")
	t.Logf("silent for %s: %s", load.longestPause(), load)
}

// If no weight server can be started, every process has its own weights.
func TestNoWeightServer(t *testing.T) {
	dir := t.TempDir()
	// A folder in the socket's place.
	must.OK(t, os.MkdirAll(filepath.Join(dir, "weights", mps.OfGPU("weights", uuid), "x"), 0o700))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	n := startIn(t, dir, fmt.Sprintf("weights: shared\nshares: {policy: gslice, tune: false, change: partition}\nfunctions:\n  - {name: f0, model: %s, port: 0, slo: 5s, share_percent: 50}\n", exported(t, "resnet50")))
	load := send(t, n, "f0", 200)
	load.flows(t)
	nodetest.Serving(t, n, "f0")
	load.stop().answeredAll(t, 0)
	if !strings.Contains(n.Log(), "weights are not shared") {
		t.Error("the log does not say so")
	}
}

// A fault under MPS ends all processes. The weights stay, and the next processes find
// them.
func TestWeightsAfterFault(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	n := start(t, fmt.Sprintf(`
weights: shared
log: {level: debug}
shares: {policy: gslice, tune: false, change: partition}
functions:
  - {name: f0, model: %s, port: 0, slo: 10s, share_percent: 40}
  - {name: f1, model: %s, port: 0, slo: 10s, share_percent: 40}
`, exported(t, "resnet50"), exported(t, "vgg19"))+neighbour(t, ", share_percent: 20"))
	f0, f1 := send(t, n, "f0", 200), send(t, n, "f1", 100)
	f0.flows(t)
	f1.flows(t)
	for _, name := range []string{"f0", "f1", "neighbour"} {
		nodetest.Serving(t, n, name)
	}
	before := held(t, n, 2)
	pid := weightServer(t, n)
	neighbourFaults(t, n)
	f0.flows(t)
	f1.flows(t)
	for _, name := range []string{"f0", "f1"} {
		nodetest.Serving(t, n, name)
	}
	if after := held(t, n, 2); after != before || weightServer(t, n) != pid {
		t.Errorf("held %+v before the fault, %+v after it", before, after)
	}
	f0.stop().answeredAll(t, 2*8)
	f1.stop().answeredAll(t, 2*8)
	t.Logf("silent for %s and %s", f0.longestPause(), f1.longestPause())
}
