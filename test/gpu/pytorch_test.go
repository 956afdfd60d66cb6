//go:build gpu

package gpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// The tests compare models of the framework pytorch on a node with the same model in a
// separate process (torch_models.py).

// tree returns the root of the source tree.
func tree(t *testing.T) string {
	t.Helper()
	zoo := os.Getenv("PENSTOCK_ZOO")
	if zoo == "" {
		t.Fatal("PENSTOCK_ZOO says where the source tree's models/zoo is, and is not set")
	}
	root, err := filepath.Abs(filepath.Join(zoo, "../.."))
	must.OK(t, err)
	return root
}

// withPython makes the node's processes find the module penstock. libpenstock.so is in
// the binary's folder.
func withPython(t *testing.T) {
	t.Helper()
	t.Setenv("PENSTOCK_PYTHONPATH", filepath.Join(tree(t), "libml/python"))
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
}

var torchModels struct {
	once sync.Once
	dir  string
	err  error
}

// torchModel returns the folder of a model that torch_models.py made, once for all
// tests.
func torchModel(t *testing.T, name string) string {
	t.Helper()
	withPython(t)
	m := &torchModels
	m.once.Do(func() {
		if m.dir, m.err = os.MkdirTemp("", "penstock-torch-"); m.err != nil {
			return
		}
		c := exec.Command("python3", filepath.Join(tree(t), "test/gpu/torch_models.py"), m.dir)
		c.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(tree(t), "libml/python"))
		out, err := c.CombinedOutput()
		if err != nil {
			m.err = fmt.Errorf("torch_models.py: %w\n%s", err, out)
		}
		t.Logf("%s", out)
	})
	if m.err != nil {
		t.Fatal(m.err)
	}
	return filepath.Join(m.dir, name)
}

// samples are a model's pictures and its answers to them.
type samples struct {
	pictures [][]byte
	answers  [][]float32
}

func samplesOf(t *testing.T, folder string) samples {
	t.Helper()
	const bytes, classes = 224 * 224 * 3, 1000
	var s samples
	pictures, err := os.ReadFile(filepath.Join(folder, "pictures.bin"))
	must.OK(t, err)
	answers, err := os.ReadFile(filepath.Join(folder, "answers.f32"))
	must.OK(t, err)
	s.pictures = slices.Collect(slices.Chunk(pictures, bytes))
	for row := range slices.Chunk(answers, 4*classes) {
		s.answers = append(s.answers, float32s(row))
	}
	if len(s.pictures) == 0 || len(s.pictures) != len(s.answers) {
		t.Fatalf("%d pictures and %d answers", len(s.pictures), len(s.answers))
	}
	return s
}

func float32s(data []byte) []float32 {
	list := make([]float32, len(data)/4)
	for i := range list {
		list[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return list
}

// apartFrom returns the largest difference, relative to the largest value.
func apartFrom(want, got []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	var largest, worst float64
	for i := range want {
		largest = max(largest, math.Abs(float64(want[i])))
		if d := math.Abs(float64(got[i]) - float64(want[i])); !(d <= worst) {
			worst = d
		}
	}
	return worst / largest
}

// asks sends the pictures repeatedly until stop is called, with 16 in flight. stop
// returns what was wrong.
func (s samples) asks(t *testing.T, n *node.Node, function string, tolerance float64) (stop func()) {
	t.Helper()
	f, err := n.Function(function)
	must.OK(t, err)
	var mu sync.Mutex
	var wrong []string
	worst, count, batches := 0.0, 0, map[int]int{}
	room := make(chan struct{}, 16)
	c, err := client.Dial(t.Context(), fmt.Sprintf("127.0.0.1:%d", f.Port), client.Options{
		Timeout: 60 * time.Second, InFlight: 16, QueueLimit: 64,
		Deliver: func(r *client.Result) {
			defer func() { <-room }()
			mu.Lock()
			defer mu.Unlock()
			if r.Err != nil || r.Status != client.StatusOK {
				wrong = append(wrong, fmt.Sprintf("picture %d: %v, %v", r.Tag, r.Status, r.Err))
				return
			}
			count++
			batches[r.Batch]++
			d := apartFrom(s.answers[r.Tag], float32s(r.Payload))
			if worst = max(worst, d); !(d <= tolerance) {
				wrong = append(wrong, fmt.Sprintf("picture %d in a batch of %d is %.2g of its largest value away", r.Tag, r.Batch, d))
			}
		},
	})
	must.OK(t, err)
	stopping, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stopping:
				return
			case room <- struct{}{}:
			}
			at := i % len(s.pictures)
			if _, err := c.Send(s.pictures[at], client.RequestOptions{Tag: uint64(at)}); err != nil {
				<-room
			}
		}
	}()
	var once sync.Once
	stop = func() {
		t.Helper()
		once.Do(func() {
			close(stopping)
			<-stopped
			for range cap(room) {
				room <- struct{}{}
			}
			c.Close()
			t.Logf("%s: %d answers, the farthest %.2g of its largest value away, by batch size %v", function, count, worst, batches)
			if count == 0 || len(wrong) > 0 {
				t.Errorf("%s: %d right, %d wrong: %v", function, count-len(wrong), len(wrong), wrong[:min(5, len(wrong))])
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// round sends every picture a few times.
func (s samples) round(t *testing.T, n *node.Node, function string, tolerance float64) {
	t.Helper()
	stop := s.asks(t, n, function, tolerance)
	time.Sleep(time.Second)
	stop()
}

// Answers in f32 differ by the order of additions, which depends on the batch size.
// Those in f16 also differ by their eleven bits.
const (
	closeF32 = 1e-3
	closeF16 = 3e-2
)

func pyTorchFunction(t *testing.T, name string, percent int) (line string, s samples) {
	t.Helper()
	folder := torchModel(t, name)
	return fmt.Sprintf("  - {name: %s, model: %s, port: 0, slo: 20s, share_percent: %d}\n", name, filepath.Join(folder, "card.yaml"), percent),
		samplesOf(t, folder)
}

func TestPyTorch(t *testing.T) {
	for name, tolerance := range map[string]float64{"resnet18": closeF32, "flat": closeF32, "exported": closeF32, "half": closeF16} {
		t.Run(name, func(t *testing.T) {
			line, s := pyTorchFunction(t, name, 50)
			n := start(t, "log: {level: debug}\nshares: {policy: gslice, tune: false, change: partition}\nfunctions:\n"+line)
			active, _ := nodetest.Serving(t, n, name)
			t.Logf("%d multiprocessors, batches %v", active.SMs, active.Batches)
			s.round(t, n, name, tolerance)
			nodetest.Settled(t, n, name)
		})
	}
}

// The model moves while it serves, next to a neighbour, and every answer must be
// correct.
func TestPyTorchMoves(t *testing.T) {
	plain, s := pyTorchFunction(t, "resnet18", 40)
	half, other := pyTorchFunction(t, "half", 40)
	n := start(t, "log: {level: debug}\nshares: {policy: gslice, tune: false, change: partition}\nfunctions:\n"+plain+half)
	first, _ := nodetest.Serving(t, n, "resnet18")
	nodetest.Serving(t, n, "half")
	stop, stopOther := s.asks(t, n, "resnet18", closeF32), other.asks(t, n, "half", closeF16)
	backAndForth(t, n, 10, "resnet18", "half")
	stop()
	stopOther()
	now, _ := nodetest.Serving(t, n, "resnet18")
	if now.PID != first.PID {
		t.Errorf("process %d serves, was %d; want the same, moved in place", now.PID, first.PID)
	}
	for _, name := range []string{"resnet18", "half"} {
		f := nodetest.Settled(t, n, name)
		t.Logf("%s: %d moves, idle for a move: %+v µs", name, f.Swaps, f.SwapIdle)
	}
}

// With percentages a shadow takes over; it also does if the process is killed.
func TestPyTorchSwaps(t *testing.T) {
	line, s := pyTorchFunction(t, "resnet18", 40)
	n := start(t, "log: {level: debug}\nshares: {policy: gslice, tune: false, change: shadow}\nfunctions:\n"+line)
	nodetest.Serving(t, n, "resnet18")
	stop := s.asks(t, n, "resnet18", closeF32)
	for _, percent := range []float64{20, 50, 30} {
		swap(t, n, "resnet18", percent)
		now, _ := nodetest.Serving(t, n, "resnet18")
		t.Logf("%v %%: %d multiprocessors", percent, now.SMs)
	}
	stop()
	active, shadow := nodetest.Serving(t, n, "resnet18")
	nodetest.Kill(t, active.PID)
	nodetest.ShadowServes(t, n, "resnet18", shadow)
	s.round(t, n, "resnet18", closeF32)
	f := nodetest.Settled(t, n, "resnet18")
	t.Logf("idle for a swap: %+v µs", f.SwapIdle)
}

// A model with separate weights takes them from the node's weight server.
func TestPyTorchWeights(t *testing.T) {
	line, s := pyTorchFunction(t, "flat", 30)
	twin := strings.Replace(line, "name: flat", "name: twin", 1)
	n := start(t, "log: {level: debug}\nweights: shared\nshares: {policy: gslice, tune: false, change: partition}\nfunctions:\n"+line+twin)
	nodetest.Serving(t, n, "flat")
	nodetest.Serving(t, n, "twin")
	if got := strings.Count(n.Log(), "weights are shared"); got < 2 {
		t.Errorf("the log says %d times that weights are shared, want twice", got)
	}
	for _, name := range []string{"flat", "twin"} {
		s.round(t, n, name, closeF32)
		nodetest.Settled(t, n, name)
	}
	t.Logf("%d MiB in use with two of it", usedBytes(t)>>20)
}

// The graphs of a Python program without any framework.
func TestPythonGraphs(t *testing.T) {
	withPython(t)
	text, err := os.ReadFile(nodetest.Card(t, "digest", 2048))
	must.OK(t, err)
	command := fmt.Sprintf("command: [python3, %s, %s]", filepath.Join(tree(t), "test/e2e/testdata/digestgpu.py"), filepath.Join(tree(t), "internal/testing/null/null.ptx"))
	card := filepath.Join(t.TempDir(), "digest.yaml")
	must.OK(t, os.WriteFile(card, []byte(strings.Replace(string(text), `framework: "null"`, command, 1)), 0o600))
	n := start(t, fmt.Sprintf("shares: {policy: gslice, tune: false, change: partition}\nfunctions:\n  - {name: fn, model: %s, port: 0, share_percent: 50}\n", card))
	first, _ := nodetest.Serving(t, n, "fn")
	fn := send(t, n, "fn", 400)
	fn.flows(t)
	for _, percent := range []float64{20, 60} {
		nodetest.Share(t, n, "fn", percent)
		wait.For(t, "it to be on its groups", func() bool { return inPlace(t, n, "fn", percent) })
	}
	fn.stop().answeredAll(t, 0)
	if now, _ := nodetest.Serving(t, n, "fn"); now.PID != first.PID {
		t.Errorf("process %d serves, was %d", now.PID, first.PID)
	}
	nodetest.Settled(t, n, "fn")
}
