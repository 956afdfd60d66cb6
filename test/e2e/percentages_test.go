package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/profiler"
	"github.com/penstock/penstock/profiler/sweep"
)

// wrongOnH200 are numbers of multiprocessors on which an H200 answers f16 models wrongly.
const wrongOnH200 = "18-28/36-60/68-116"

func answersWrongly(sms int) bool {
	return sms >= 18 && sms <= 28 || sms >= 36 && sms <= 60 || sms >= 68 && sms <= 116
}

// The first start on a GPU finds percentages at which the models answer rightly, and requests are
// answered meanwhile. No process with another one serves. The next start knows them.
func TestPercentages(t *testing.T) {
	card := nodetest.Card(t, "digest", small)
	config := fmt.Sprintf(`device: cuda
shares: {policy: gslice, interval: 1h}
functions:
  - {name: fn, model: %[1]s, port: 0, share_percent: 41, environment: {PENSTOCK_NULL: wrong=%[2]s}}
  - {name: other, model: %[1]s, port: 0, share_percent: 50, environment: {PENSTOCK_NULL: wrong=%[2]s}}
`, card, wrongOnH200)
	environment := append(withGPU(t, true), "XDG_CACHE_HOME="+t.TempDir())

	first := start(t, config, environment...)
	if got := stream(t, first, 200, func() {}); got.Lost > 0 || got.Wrong > 0 {
		t.Errorf("answers: %s", got)
	}
	rightly(t, first)
	f := nodetest.Settled(t, first, "fn")
	if f.Instances[0].LastFailure == nil || f.Instances[0].LastFailure.Generation < 3 || f.Lost > 0 {
		t.Errorf("%+v, want several processes that found their answers wrong", f)
	}
	must.OK(t, first.Stop())

	second := start(t, config, environment...)
	for name, in := range rightly(t, second) {
		if p := active(in); p.Generation != 1 || in.LastFailure != nil {
			t.Errorf("%s: %+v, want its first process to serve", name, in)
		}
	}
}

// A profile leaves out the percentages at which the model answers wrongly, also if an earlier start knows them.
func TestProfileWrongPercentages(t *testing.T) {
	card, err := models.ReadCard(nodetest.Card(t, "digest", small))
	must.OK(t, err)
	for _, e := range append(withGPU(t, true), "XDG_CACHE_HOME="+t.TempDir(), "PENSTOCK_NULL=wrong="+wrongOnH200) {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	grid := profile.Sweep{Shares: []int{20, 30}, Batches: []int{1}, Processes: []int{1, 2, 3},
		WindowSeconds: 0.1, PrecisionPercent: 50, MinWindows: 4, MaxWindows: 4, Quick: true}
	p, err := profiler.New(longContext(t), profiler.Options{
		Setup: testbed.Setup{Binary: penstock, Device: "cuda"}, Card: card, Scale: profiler.PercentScale(), Grid: grid,
	})
	must.OK(t, err)
	defer p.Close()
	for _, start := range []string{"first", "second"} {
		r, err := sweep.Run(longContext(t), p, sweep.Options{File: filepath.Join(t.TempDir(), "digest.csv"), Header: profile.Header{
			Version: profile.Version, Model: "digest", Device: "cuda", Unit: profile.Percent, Total: 100, Sweep: &grid,
		}})
		must.OK(t, err)
		// One process has 26 or 38 multiprocessors, each of two 12 or 18, each of three 8 or 12.
		if want := []profile.Wrong{{Share: 20, Processes: 1}, {Share: 30, Processes: 1}, {Share: 30, Processes: 2}}; !slices.Equal(r.Profile.Header.Wrong, want) {
			t.Errorf("%s: wrong are %+v, want %+v", start, r.Profile.Header.Wrong, want)
		}
		if len(r.Profile.Points)+len(r.Left) != 3 {
			t.Errorf("%s: points %+v, left out %v; want all others", start, r.Profile.Points, r.Left)
		}
	}
}

// rightly waits until both functions serve at right percentages.
func rightly(t *testing.T, nd *node.Node) map[string]control.InstanceStatus {
	t.Helper()
	at := map[string]control.InstanceStatus{}
	wait.For(t, "right percentages", func() bool {
		status, err := nd.Status()
		if err != nil {
			return false
		}
		for name, want := range map[string]float64{"fn": 48, "other": 50} {
			f, _ := status.Function(name)
			if len(f.Instances) == 0 {
				return false
			}
			at[name] = f.Instances[0]
			p, serves := f.Instances[0].Serving()
			if serves && answersWrongly(p.SMs) {
				t.Fatalf("%s serves on %d multiprocessors, on which it answers wrongly", name, p.SMs)
			}
			if !serves || f.Instances[0].SharePercent != want {
				return false
			}
		}
		return true
	})
	return at
}
