//go:build gpu

package gpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// The first start of two f16 models finds percentages of the GPU at which they answer rightly. Meanwhile
// every request is answered, and all answers are those of the CPU. The next start begins there.
//
// The test takes two to four minutes, with all percentages that it tries. Alone:
//
//	test/gpu/run.sh export resnet50 vgg19
//	test/gpu/run.sh exec gpu.test -test.run 'TestRightPercentages$' -test.timeout 10m
func TestRightPercentages(t *testing.T) {
	const a, b = "resnet50", "vgg19"
	config := fmt.Sprintf("shares: {policy: gslice, tune: false}\nfunctions:\n"+
		"  - {name: a, model: %s, port: 0, slo: 5s, share_percent: 30}\n  - {name: b, model: %s, port: 0, slo: 5s, share_percent: 30}\n", exported(t, a), exported(t, b))
	cache := t.TempDir()

	n := start(t, config, "XDG_CACHE_HOME="+cache)
	began := time.Now()
	streams := []*stream{send(t, n, "a", 50), send(t, n, "b", 50)}
	settles(t, n, "a", "b")
	t.Logf("settled after %s", time.Since(began).Round(time.Second))
	for _, order := range []struct {
		name    string
		percent float64
	}{{"b", 8}, {"a", 80}, {"a", 20}, {"b", 50}} {
		began := time.Now()
		nodetest.Share(t, n, order.name, order.percent)
		settles(t, n, "a", "b")
		right(t, n)
		t.Logf("%s, ordered to %v %%: %s after %s", order.name, order.percent, found(t, n), time.Since(began).Round(time.Second))
	}
	for _, s := range streams {
		s.stop().answeredAll(t, 0)
		t.Logf("%s, longest pause %s", s, s.longestPause())
	}
	before := found(t, n)
	nodetest.Settled(t, n, "a")
	nodetest.Settled(t, n, "b")
	must.OK(t, n.Stop())
	text, err := os.ReadFile(filepath.Join(cache, "penstock", "percentages-"+uuid+".json"))
	must.OK(t, err)
	t.Logf("%s before the end; learned %s", before, text)

	second := start(t, config, "XDG_CACHE_HOME="+cache)
	settles(t, second, "a", "b")
	for _, name := range []string{"a", "b"} {
		f, err := second.Function(name)
		must.OK(t, err)
		if p, _ := f.Instances[0].Serving(); p.Generation != 1 || f.Instances[0].LastFailure != nil {
			t.Errorf("%s: generation %d serves, last failure %+v; want the first process of the second start", name, p.Generation, f.Instances[0].LastFailure)
		}
	}
	right(t, second)
	t.Logf("second start: %s", found(t, second))
}

// settles waits until these functions have had the same process for longer than a try takes.
func settles(t *testing.T, n *node.Node, names ...string) {
	t.Helper()
	const quiet = 8 * time.Second
	before, since := "", time.Now()
	wait.For(t, "the functions to settle", func() bool {
		now := ""
		for _, name := range names {
			f, err := n.Function(name)
			if err != nil || len(f.Instances) == 0 {
				return false
			}
			p, serves := f.Instances[0].Serving()
			if !serves {
				since = time.Now()
			}
			now += fmt.Sprintf("%s %v %d %v;", name, serves, p.Generation, lastGeneration(f.Instances[0]))
		}
		if now != before {
			before, since = now, time.Now()
		}
		return time.Since(since) > quiet
	})
}

// lastGeneration returns the newest process of an instance, or the last one that failed.
func lastGeneration(in control.InstanceStatus) (last uint32) {
	for _, p := range in.Processes {
		last = max(last, p.Generation)
	}
	if in.LastFailure != nil {
		last = max(last, in.LastFailure.Generation)
	}
	return last
}

// right checks the answers of both functions with the same models on the CPU.
func right(t *testing.T, n *node.Node) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), penstock, "load", "--runtime-dir", n.Dir, "--models", os.Getenv("PENSTOCK_MODELS"),
		"--rate", "a=20", "--rate", "b=20", "--duration", "3s").CombinedOutput()
	if err != nil {
		t.Errorf("answers: %v", err)
	}
	t.Logf("%s", out)
}

// found describes the shares of both functions.
func found(t *testing.T, n *node.Node) (text string) {
	t.Helper()
	for _, name := range []string{"a", "b"} {
		f, err := n.Function(name)
		must.OK(t, err)
		p, _ := f.Instances[0].Serving()
		text += fmt.Sprintf("%s has %v %% on %d multiprocessors, ", name, f.Instances[0].SharePercent, p.SMs)
	}
	return text
}
