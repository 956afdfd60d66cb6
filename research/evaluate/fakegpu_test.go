package evaluate

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/gputest"
	"github.com/penstock/penstock/internal/testing/mpsfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nulltest"
	"github.com/penstock/penstock/orchestrator/gpu"
)

// fakeGPU builds the fake driver and the fake MPS programs, once per test binary.
var fakeGPU = sync.OnceValues(func() (driver string, err error) {
	if driver, err = cudafake.Build(programs, cudafake.Kernels(gputest.Twins), cudafake.Kernels(nulltest.Twins)); err != nil {
		return "", err
	}
	if removeMPS, err = mpsfake.Build(); err != nil {
		return "", err
	}
	_, err = mpsfake.Install(filepath.Dir(driver))
	return driver, err
})

var removeMPS = func() {}

// onFakeGPU returns options for a figure on a machine without a GPU. Every process loads
// a fake driver library, MPS is fake programs, and the figure's model names stand for
// models that compute nothing. Properties that only a GPU can show are measured on one.
func onFakeGPU(t *testing.T, figure string) Options {
	t.Helper()
	driver, err := fakeGPU()
	if err != nil {
		t.Skipf("no fake driver: %v", err)
	}
	o := quickly(t, builtPenstock(t), figure) // builds, for which go needs its cache
	dir := filepath.Dir(driver)
	cache, err := cudafake.Cache(dir)
	must.OK(t, err)
	for _, pair := range []string{cache, cudafake.Library(driver), cudafake.Env(cudafake.Memory(64 << 30)), gpu.LocksVariable + "=" + t.TempDir(), "PATH=" + dir + ":" + os.Getenv("PATH")} {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
	models := t.TempDir()
	for _, name := range []string{alexnet, mobilenet, resnet50, resnet152, resnext50, vgg16, vgg19, gnmt} {
		card := fmt.Sprintf("name: %s\nversion: 1\nframework: \"null\"\ninput:\n  size: [1, 1024, 1]\n  wire: {type: u8, layout: hwc}\n"+
			"  tensor: {type: u8, layout: hwc}\noutputs:\n  - {name: digest, shape: [1]}\nbatches: [1, 2, 4]\nslo: 1s\ndecoder: {name: raw}\n", name)
		must.OK(t, os.WriteFile(filepath.Join(models, name+".yaml"), []byte(card), 0o600))
	}
	o.Device, o.Models = "cuda", models
	o.Machine.GPUs = []testbed.GPU{{Name: "fake", UUID: cudafake.UUID(0)}}
	return o
}

// Measure every way of sharing a GPU: through whole nodes, and with frameworks alone.
func TestRunOnFakeGPU(t *testing.T) {
	for figure, mechanisms := range map[string]map[string]string{
		"fig10a":     {defaultMPS: "mps", timeSliceSLAB: "time-slicing", static: "mps", shadow: "mps", partition: "mps"},
		"fig15":      {partition: "mps"},
		"guarantees": {guaranteed: "mps"},
		"fig2-3":     {byPercentage: "", byGroups: ""},
	} {
		t.Run(figure, func(t *testing.T) {
			if testing.Short() && figure == "fig10a" {
				t.Skip("not with -short: it measures five nodes in turn")
			}
			if figure == "fig15" { // a function is added during this figure
				checkSeveralReceivers(t)
			}
			r, err := newRunner(onFakeGPU(t, figure))
			must.OK(t, err)
			r.figure.Cases = r.figure.Cases[:1]
			c := &r.figure.Cases[0]
			c.Variants = slices.DeleteFunc(slices.Clone(c.Variants), func(name string) bool {
				_, ok := mechanisms[name]
				return !ok
			})
			got, err := r.run(t.Context())
			must.OK(t, err)
			if got.Left != 0 || len(got.Results) != len(mechanisms) {
				t.Errorf("%d left, %d made of %v", got.Left, len(got.Results), c.Variants)
			}
			for _, x := range got.Results {
				if x.Error != "" || x.Lost != 0 || x.Mechanism != mechanisms[x.Variant] {
					t.Errorf("%s: %d lost, by %q, %q", x.Variant, x.Lost, x.Mechanism, x.Error)
				}
				checkMeasured(t, c, x)
			}
			if got.SMs != 132 {
				t.Errorf("the device has %d multiprocessors", got.SMs)
			}
		})
	}
}

// checkMeasured compares a result with its case.
func checkMeasured(t *testing.T, c *Case, x Result) {
	t.Helper()
	for _, l := range x.Loads {
		for _, f := range l.Functions {
			checkSum(t, x, f)
			// On a busy machine a function may run no batch in the measured time.
			if g := f.Guarantee; x.Variant == guaranteed && (g == nil || g.Level == 0 || f.OK > 0 && g.UsePercent <= 0) {
				t.Errorf("%s has guarantee %+v with %d answers, want a level, and that it uses the device", f.Name, g, f.OK)
			}
		}
	}
	if x.Timeline != nil {
		for _, f := range x.Timeline.Functions {
			checkSum(t, x, f.Total)
			if f.Total.Receivers != rules.MaxReceivers {
				t.Errorf("%s, %s: %d receivers, want %d", x.Variant, f.Name, f.Total.Receivers, rules.MaxReceivers)
			}
		}
	}
	switch {
	case c.Kind == kindLoads && len(x.Loads) != len(c.Levels):
		t.Errorf("%s: %d loads of %v", x.Variant, len(x.Loads), c.Levels)
	case c.Kind == kindTimeline && (x.Timeline == nil || len(x.Timeline.Functions) != len(c.Functions)):
		t.Errorf("%s: time line %+v", x.Variant, x.Timeline)
	case c.Kind == kindBare:
		places := map[string]int{byPercentage: len(c.Percents), byGroups: len(groupCounts)}[x.Variant]
		if want := places * len(c.Functions) * len(c.Ready.Batches) * len(c.Ready.Streams); len(x.Points) != want {
			t.Errorf("%s: %d points, want %d", x.Variant, len(x.Points), want)
		}
		sms := map[int]bool{}
		for _, p := range x.Points {
			if want := 100 * float64(p.SMs) / 132; x.Variant == byGroups && p.Percent != want {
				t.Errorf("%d multiprocessors are %v %%, want %v", p.SMs, p.Percent, want)
			}
			if p.Error != "" || p.ImagesPerSecond <= 0 || p.SMs < 8 || p.SMs > 132 {
				t.Errorf("%s: %+v", x.Variant, p)
			}
			sms[p.SMs] = true
		}
		if len(sms) != places {
			t.Errorf("%s: on %v multiprocessors, want %d numbers of them", x.Variant, sms, places)
		}
	}
}
