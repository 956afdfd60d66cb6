package e2e

import (
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/wire"
)

// Whole nodes with models in Python.

// withPython returns the environment of a node whose models find this tree's module and
// library. It skips the test with a message if there is no python3.
func withPython(t *testing.T) []string {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is missing: models in Python are not tested here")
	}
	return []string{
		"PENSTOCK_PYTHONPATH=" + absolute(t, "../../libml/python"), "PENSTOCK_LIBRARY=" + filepath.Join(programsIn(t), "libpenstock.so"),
		"PYTHONDONTWRITEBYTECODE=1",
	}
}

// pyDigestCard returns a card of digest.py with a role.
func pyDigestCard(t *testing.T, role string) string {
	t.Helper()
	return programCard(t, "python3", absolute(t, "testdata/digest.py"), role)
}

// floatsOf returns the values of an answer with one output of f32.
func floatsOf(t *testing.T, kind wire.Kind, payload []byte) (list []float64) {
	t.Helper()
	var c wire.Content
	must.OK(t, c.Decode(kind, payload))
	if kind == wire.KindTensors {
		c.Values = c.Tensors[0].Values().([]float32)
	}
	for _, v := range c.Values {
		list = append(list, float64(v))
	}
	return list
}

// answersOf sends 100 pictures of that many bytes and compares each answer with want.
func answersOf(t *testing.T, nd *node.Node, function string, bytes int, tolerance float64, want func(picture []byte) []float64) {
	t.Helper()
	var pictures [][]byte
	for i := range 100 {
		pictures = append(pictures, nodetest.Picture(bytes, i))
	}
	got, batches := ask(t, nd, function, pictures)
	for i, p := range pictures {
		is, should := floatsOf(t, got[i].Kind, got[i].Payload), want(p)
		if len(is) != len(should) {
			t.Fatalf("picture %d: %d values, want %d", i, len(is), len(should))
		}
		for k := range is {
			if !(math.Abs(is[k]-should[k]) <= tolerance) {
				t.Errorf("picture %d, value %d: %v, want %v", i, k, is[k], should[k])
			}
		}
	}
	if ridden := slices.Collect(maps.Keys(batches)); slices.Max(ridden) < 2 {
		t.Errorf("all rode alone: %v", batches)
	}
}

// answersMeanColour compares the answers of an example's model `colour` with the pictures.
func answersMeanColour(t *testing.T, nd *node.Node, function string) {
	t.Helper()
	const pixels, channels = 64 * 64, 3
	answersOf(t, nd, function, pixels*channels, 1e-3, func(p []byte) []float64 {
		mean := make([]float64, channels)
		for at, v := range p {
			mean[at%channels] += float64(v) / pixels
		}
		return mean
	})
}

func TestPythonExample(t *testing.T) {
	t.Parallel()
	nd := start(t, fmt.Sprintf("shares: {policy: gslice, tune: false}\nfunctions:\n"+
		"  - {name: colour, model: %s, port: 0, slo: 20s, share_percent: 50}\n", absolute(t, "../../examples/python/card.yaml")), withPython(t)...)
	answersMeanColour(t, nd, "colour")
}

func TestPythonStartErrors(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)), withPython(t)...)
	for role, want := range map[string]string{
		"init":   ": init digest: the first line",
		"memory": "out of memory: MemoryError: no room for 8",
	} {
		t.Run(role, func(t *testing.T) {
			refuses(t, nd, role, pyDigestCard(t, role), want)
		})
	}
	nodetest.Logged(t, nd, "Traceback") // at debug level
	if got := stream(t, nd, 100, func() {}); got.By[client.StatusOK] != 100 {
		t.Errorf("the neighbour: %s; want 100 ok", got)
	}
}

func TestPythonBatchFails(t *testing.T) {
	t.Parallel()
	for role, want := range map[string]string{
		"every=5": "LookupError: one of every 5",
		"exit=5":  "SystemExit: one of every 5",
	} {
		t.Run(role, func(t *testing.T) {
			badBatchesCostThemselvesOnly(t, pyDigestCard(t, role), want, withPython(t)...)
		})
	}
}

// survives harms the serving process in the middle of 1,000 requests. config is the rest of
// the node's configuration.
func survives(t *testing.T, card string, mayFail int, harm func(active int), config ...string) {
	t.Helper()
	nd := start(t, strings.Join(config, "")+oneFunction(card), withPython(t)...)
	active, shadow := nodetest.Serving(t, nd, "fn")
	got := stream(t, nd, 1000, func() { harm(active.PID) })
	if got.Lost > 0 || got.Wrong > 0 || got.By[client.StatusFailed] > mayFail {
		t.Errorf("%s; want every request answered right, but for %d", got, mayFail)
	}
	wait.For(t, "the shadow to serve", func() bool {
		now, _ := nodetest.Serving(t, nd, "fn")
		return now.Generation >= shadow.Generation && now.PID != active.PID
	})
	nodetest.Settled(t, nd, "fn")
}

func TestPythonKilled(t *testing.T) {
	t.Parallel()
	survives(t, pyDigestCard(t, "well"), 8, func(pid int) { nodetest.Kill(t, pid) })
}

func TestPythonCrashes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "crash")
	survives(t, pyDigestCard(t, "crash="+file), 8, func(int) {
		must.OK(t, os.WriteFile(file, nil, 0o600))
	}, unconfined)
}

// The main thread is in C when the signal arrives.
func TestPythonTerminated(t *testing.T) {
	t.Parallel()
	survives(t, pyDigestCard(t, "stage"), 0, func(pid int) {
		must.OK(t, syscall.Kill(pid, syscall.SIGTERM))
	})
}

// The shadow takes over at each change of share, and the previous process drains and exits
// without an error.
func TestPythonSwap(t *testing.T) {
	t.Parallel()
	nd := start(t, oneFunction(pyDigestCard(t, "well"), ", change: shadow"), withPython(t)...)
	for _, percent := range []float64{30, 60} {
		before, shadow := nodetest.Serving(t, nd, "fn")
		got := stream(t, nd, 400, func() { nodetest.Share(t, nd, "fn", percent) })
		if got.By[client.StatusOK] != 400 || got.Wrong > 0 {
			t.Errorf("%s; want 400 right answers", got)
		}
		wait.For(t, "the shadow to serve", func() bool {
			now, _ := nodetest.Serving(t, nd, "fn")
			return now.Generation >= shadow.Generation && now.PID != before.PID
		})
		wait.For(t, "the process before it to end", func() bool { return syscall.Kill(before.PID, 0) != nil })
	}
	nodetest.Settled(t, nd, "fn")
	if strings.Contains(nd.Log(), "exit status") || strings.Contains(nd.Log(), "killed") {
		t.Error("the node's log tells of a process that did not end well")
	}
}

// digestGPUCard returns a card of digestgpu.py, with additional arguments, if any.
func digestGPUCard(t *testing.T, arguments ...string) string {
	t.Helper()
	return programCard(t, "python3", append([]string{absolute(t, "testdata/digestgpu.py"), absolute(t, "../../internal/testing/null/null.ptx")}, arguments...)...)
}

// If there is no memory for the largest batches, the program serves the others.
func TestPythonMemory(t *testing.T) {
	t.Parallel()
	nd := start(t, onGPU(digestGPUCard(t, "8"), "name: fn, slo: 20s, share_percent: 50"), append(withGPU(t, true), withPython(t)...)...)
	var now control.ProcessStatus
	wait.For(t, "it to have all that it will have", func() bool {
		f, err := nd.Function("fn")
		if err != nil || len(f.Instances) == 0 {
			return false
		}
		now, _ = f.Instances[0].Serving()
		return now.PID != 0 && !now.WarmingUp && strings.Contains(now.Reason, "none is left for batches of 8")
	})
	if !slices.Equal(now.Batches, []int{1, 2, 4}) {
		t.Errorf("it runs %v, want 1, 2 and 4: %s", now.Batches, now.Reason)
	}
	if got := stream(t, nd, 300, func() {}); got.By[client.StatusOK] != 300 || got.Wrong > 0 {
		t.Errorf("%s; want 300 right answers", got)
	}
	nodetest.Settled(t, nd, "fn")
}

// On a GPU (a fake here) no batch runs Python. The program hands over graphs, and the
// graphs that it captured once move with the process.
func TestPythonOnGPU(t *testing.T) {
	t.Parallel()
	nd := start(t, onGPU(digestGPUCard(t), "name: fn, slo: 20s, share_percent: 50"), append(withGPU(t, true), withPython(t)...)...)
	all := func() {
		t.Helper()
		if got := stream(t, nd, 300, func() {}); got.By[client.StatusOK] != 300 || got.Wrong > 0 {
			t.Errorf("%s; want 300 right answers", got)
		}
	}
	all()
	before, _ := nodetest.Serving(t, nd, "fn")
	for _, percent := range []float64{20, 60, 30} {
		got := stream(t, nd, 300, func() {
			nodetest.Share(t, nd, "fn", percent)
			onGroups(t, nd, "fn")
		})
		if got.By[client.StatusOK] != 300 || got.Wrong > 0 {
			t.Errorf("%s; want 300 right answers beside the move", got)
		}
	}
	now, shadow := nodetest.Serving(t, nd, "fn")
	if now.PID != before.PID {
		t.Errorf("process %d serves, want %d, which moved", now.PID, before.PID)
	}
	// Two slots, four batch sizes.
	nodetest.Logged(t, nd, "captured 8 graphs")
	if strings.Contains(nd.Log(), "captured 9 graphs") {
		t.Error("want 8 graphs captured in a process, whatever its moves")
	}
	nodetest.Kill(t, now.PID)
	nodetest.ShadowServes(t, nd, "fn", shadow)
	all()
	nodetest.Settled(t, nd, "fn")
}

// withPyTorch is withPython for a python3 with PyTorch. If there is none it skips the test
// with a message.
func withPyTorch(t *testing.T) (interpreter string, environment []string) {
	t.Helper()
	environment = withPython(t)
	for _, name := range []string{os.Getenv("PENSTOCK_PYTHON"), "python3", "/usr/bin/python3"} {
		if name == "" {
			continue
		}
		if err := exec.CommandContext(nodetest.Context(t), name, "-c", "import torch").Run(); err == nil {
			return name, append(environment, "PENSTOCK_PYTHON="+name)
		}
	}
	t.Skip("no python3 has PyTorch (apt-get install python3-torch, or PENSTOCK_PYTHON=...): the framework pytorch is not tested here")
	return "", nil
}

// python runs Python code with the module's folder in its path.
func python(t *testing.T, interpreter string, environment []string, arguments ...string) {
	t.Helper()
	c := exec.CommandContext(nodetest.Context(t), interpreter, arguments...)
	c.Env = append(os.Environ(), environment...)
	for _, e := range environment {
		if folder, ok := strings.CutPrefix(e, "PENSTOCK_PYTHONPATH="); ok {
			c.Env = append(c.Env, "PYTHONPATH="+folder)
		}
	}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("python %v: %v\n%s", arguments, err, out)
	}
}

// quadrantsCard returns the example's card in a separate folder, with the model that the
// example's program writes. The replacements change the card.
func quadrantsCard(t *testing.T, interpreter string, environment []string, oldnew ...string) string {
	t.Helper()
	dir := t.TempDir()
	python(t, interpreter, environment, absolute(t, "../../examples/pytorch/quadrants.py"), filepath.Join(dir, "quadrants.pt"))
	text, err := os.ReadFile("../../examples/pytorch/card.yaml")
	must.OK(t, err)
	path := filepath.Join(dir, "card.yaml")
	must.OK(t, os.WriteFile(path, []byte(strings.NewReplacer(oldnew...).Replace(string(text))), 0o600))
	return path
}

const quadrantsSide = 64

// quadrants returns the answer of the example's network.
func quadrants(p []byte) []float64 {
	luma := []float64{0.299, 0.587, 0.114}
	const half = quadrantsSide / 2
	answer := make([]float64, 4)
	for y := range quadrantsSide {
		for x := range quadrantsSide {
			for c, weight := range luma {
				answer[y/half*2+x/half] += weight * float64(p[(y*quadrantsSide+x)*3+c]) / (half * half)
			}
		}
	}
	return answer
}

func answersQuadrants(t *testing.T, nd *node.Node, function string) {
	t.Helper()
	answersOf(t, nd, function, quadrantsSide*quadrantsSide*3, 1e-2, quadrants)
}

func TestPyTorch(t *testing.T) {
	t.Parallel()
	interpreter, environment := withPyTorch(t)
	card := quadrantsCard(t, interpreter, environment)
	nd := start(t, fmt.Sprintf("log: {level: debug}\nshares: {policy: gslice, tune: false}\nfunctions:\n"+
		"  - {name: fn, model: %s, port: 0, slo: 20s, share_percent: 50}\n", card), environment...)
	answersQuadrants(t, nd, "fn")
	active, shadow := nodetest.Serving(t, nd, "fn")
	if bytes := nodetest.Metric(t, nd, `penstock_model_persistent_bytes{function="fn"}`); bytes != 3*4 {
		t.Errorf("the model has %v bytes, want 12: three weights", bytes)
	}
	nodetest.Kill(t, active.PID)
	nodetest.ShadowServes(t, nd, "fn", shadow)
	answersQuadrants(t, nd, "fn")
	nodetest.Settled(t, nd, "fn")
}

const pairsCard = `name: pairs
version: 1
framework: pytorch
model: pairs.pt
inputs:
  - {name: weights, type: i8, shape: [2, 8]}
  - {name: levels, type: u8, shape: [16]}
outputs:
  - {name: sums, shape: [2]}
batches: [1, 4]
slo: 50ms
decoder: {name: raw}
`

const pairsModel = `import sys, torch
class Pairs(torch.nn.Module):
    def forward(self, weights, levels):
        return (weights.float() * levels.view(-1, 2, 8)).sum(2)
example = torch.zeros(1, 2, 8, dtype=torch.int8), torch.zeros(1, 16, dtype=torch.uint8)
torch.jit.save(torch.jit.trace(Pairs().eval(), example), sys.argv[1])`

// A model takes its inputs in the card's order.
func TestPyTorchInputs(t *testing.T) {
	t.Parallel()
	interpreter, environment := withPyTorch(t)
	dir := t.TempDir()
	python(t, interpreter, environment, "-c", pairsModel, filepath.Join(dir, "pairs.pt"))
	must.OK(t, os.WriteFile(filepath.Join(dir, "card.yaml"), []byte(pairsCard), 0o600))
	nd := start(t, fmt.Sprintf("shares: {policy: gslice, tune: false}\nfunctions:\n  - {name: fn, model: %s/card.yaml, port: 0, slo: 20s, share_percent: 50}\n", dir), environment...)
	answersOf(t, nd, "fn", 16+16, 0, func(p []byte) []float64 {
		sums := make([]float64, 2)
		for i, level := range p[16:] {
			sums[i/8] += float64(int8(p[i])) * float64(level)
		}
		return sums
	})
}

// Other file formats contain the same model.
func TestPyTorchFrozen(t *testing.T) {
	t.Parallel()
	interpreter, environment := withPyTorch(t)
	for name, write := range map[string]func(t *testing.T, dir string){
		"frozen": func(t *testing.T, dir string) {
			python(t, interpreter, environment, "-c", "import sys, torch\nf = sys.argv[1]\ntorch.jit.save(torch.jit.freeze(torch.jit.load(f).eval()), f)",
				filepath.Join(dir, "quadrants.pt"))
		},
		"flat": func(t *testing.T, dir string) {
			python(t, interpreter, environment, "-m", "penstock_model.pytorch", "flat", filepath.Join(dir, "quadrants.pt"), filepath.Join(dir, "quadrants.pt"))
			if _, err := os.Stat(filepath.Join(dir, "quadrants.pt.weights")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			card := quadrantsCard(t, interpreter, environment)
			write(t, filepath.Dir(card))
			nd := start(t, fmt.Sprintf("shares: {policy: gslice, tune: false}\nfunctions:\n  - {name: fn, model: %s, port: 0, slo: 20s, share_percent: 50}\n", card), environment...)
			answersQuadrants(t, nd, "fn")
		})
	}
}

func TestPyTorchModelMismatch(t *testing.T) {
	t.Parallel()
	interpreter, environment := withPyTorch(t)
	nd := start(t, oneFunction(nodetest.Card(t, "digest", small)), environment...)
	for name, c := range map[string]struct {
		oldnew []string
		model  string // Python code that writes another model to f
		want   []string
	}{
		"outputs": {oldnew: []string{"shape: [4]", "shape: [5]"}, want: []string{"output brightness", "[1, 4]", "[1, 5]"}},
		"input":   {oldnew: []string{"size: [64, 64, 3]", "size: [64, 64, 1]"}, want: []string{"does not take [1, 1, 64, 64] of f32"}},
		"type":    {oldnew: []string{"tensor: {type: f32", "tensor: {type: f16"}, want: []string{"does not take", "of f16", "its weights are float32"}},
		"number": {oldnew: []string{"  - {name: brightness, shape: [4]}", "  - {name: brightness, shape: [4]}\n  - {name: other, shape: [1]}"},
			want: []string{"model gives 1 outputs, and the card has 2"}},
		"pickle": {model: "torch.save(torch.nn.Linear(1, 1), f)", want: []string{"quadrants.pt", "pickled Python object"}},
		"bytes":  {model: "open(f, 'wb').write(b'no archive')", want: []string{"quadrants.pt", "is neither of torch.jit.save"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			card := quadrantsCard(t, interpreter, environment, c.oldnew...)
			if c.model != "" {
				python(t, interpreter, environment, "-c", "import sys, torch\nf = sys.argv[1]\n"+c.model, filepath.Join(filepath.Dir(card), "quadrants.pt"))
			}
			refuses(t, nd, name, card, c.want...)
		})
	}
}

// If PyTorch is missing, the function's state says so, and the other functions are not
// affected.
func TestPyTorchMissing(t *testing.T) {
	t.Parallel()
	environment := withPython(t)
	card := filepath.Join(t.TempDir(), "card.yaml")
	text, err := os.ReadFile("../../examples/pytorch/card.yaml")
	must.OK(t, err)
	must.OK(t, os.WriteFile(card, text, 0o600))
	must.OK(t, os.WriteFile(filepath.Join(filepath.Dir(card), "quadrants.pt"), []byte("never read"), 0o600))
	for name, c := range map[string]struct{ interpreter, want string }{
		"no interpreter": {"/nowhere/python3", "PENSTOCK_PYTHON is /nowhere/python3"},
		"no torch":       {withoutTorch(t), "has no PyTorch"},
	} {
		t.Run(name, func(t *testing.T) {
			nd := start(t, unconfined+oneFunction(nodetest.Card(t, "digest", small)), append(environment, "PENSTOCK_PYTHON="+c.interpreter)...)
			refuses(t, nd, "torch", card, c.want)
			if got := stream(t, nd, 100, func() {}); got.By[client.StatusOK] != 100 {
				t.Errorf("the neighbour: %s; want 100 ok", got)
			}
		})
	}
}

// withoutTorch returns a python3 that does not find PyTorch: the installed one, configured
// not to search the folders of installed packages.
func withoutTorch(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	must.OK(t, err)
	script := filepath.Join(t.TempDir(), "python3")
	must.OK(t, os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\nexec %s -S \"$@\"\n", path), 0o700))
	return script
}
