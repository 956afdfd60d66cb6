//go:build gpu

package gpu

import (
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/wait"
)

// Functions with less demand than the min number of groups get that min. Kernels in
// clusters (VGG-16's) need several adjacent multiprocessors. A process that lacks them
// reports that and gets more.
func TestMinGroups(t *testing.T) {
	serveOnMinGroups(t, 25, []string{"vgg16", "vgg16-2", "resnet50", "fashion"}, `
shares: {policy: gslice, tune: false, change: partition}
functions:
  - {name: vgg16, model: `+exported(t, "vgg16")+`, port: 0, slo: 5s, share_percent: 2}
  - {name: vgg16-2, model: `+exported(t, "vgg16")+`, port: 0, slo: 5s, share_percent: 2}
  - {name: resnet50, model: `+exported(t, "resnet50")+`, port: 0, slo: 5s, share_percent: 2}
  - {name: fashion, port: 0, slo: 5s, share_percent: 2}
`)
}

// serveOnMinGroups starts a node and checks its functions of these names. They must
// serve on their own multiprocessors, at least one and at most this percentage of all.
func serveOnMinGroups(t *testing.T, most float64, names []string, config string) {
	t.Helper()
	n := start(t, config)
	total := multiprocessors(t, n)
	for _, name := range names {
		send(t, n, name, 50).flows(t)
	}
	for _, name := range names {
		var p control.ProcessStatus
		wait.For(t, name+" to have its batch sizes", func() bool {
			f, err := n.Function(name)
			serves := false
			if err == nil && len(f.Instances) > 0 {
				p, serves = f.Instances[0].Serving()
			}
			return serves && !p.WarmingUp
		})
		t.Logf("%s runs on %d of %d multiprocessors, groups %v", name, p.SMs, total, p.SMGroups)
		if p.SMs == 0 || percentOf(p.SMs, total) > most {
			t.Errorf("%s runs on %d of %d multiprocessors; want some, %g %% at most", name, p.SMs, total, most)
		}
	}
	inProcess(t, n)
	for _, name := range names {
		s := send(t, n, name, 100)
		s.flows(t)
		s.stop().answeredAll(t, 0)
	}
}
