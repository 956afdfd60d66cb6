//go:build gpu

package gpu

import (
	"testing"

	"github.com/penstock/penstock/control"
)

// Functions that demand less than any process can run on get the least that it does run
// on, coarse groups or fine ones: kernels in clusters (VGG-16's) need several
// multiprocessors side by side, and a process that lacks them says so and is given more.
func TestFunctionsServeOnTheLeastGroupsTheyRunOn(t *testing.T) {
	for _, grain := range []string{"0", "2"} {
		t.Run("sm_grain "+grain, func(t *testing.T) {
			names := []string{"vgg16", "vgg16-2", "resnet50", "fashion"}
			n := start(t, `
shares: {tune: false, change: partition, sm_grain: `+grain+`}
functions:
  - {name: vgg16, model: `+exported(t, "vgg16")+`, port: 0, slo: 5s, share_percent: 2}
  - {name: vgg16-2, model: `+exported(t, "vgg16")+`, port: 0, slo: 5s, share_percent: 2}
  - {name: resnet50, model: `+exported(t, "resnet50")+`, port: 0, slo: 5s, share_percent: 2}
  - {name: fashion, port: 0, slo: 5s, share_percent: 2}
`)
			total := multiprocessors(t, n)
			for _, name := range names {
				send(t, n, name, 50).flows(t)
			}
			for _, name := range names {
				var p control.ProcessStatus
				waitFor(t, name+" to have its batch sizes", func() bool {
					f, err := n.Function(name)
					serves := false
					if err == nil && len(f.Instances) > 0 {
						p, serves = f.Instances[0].Serving()
					}
					return serves && !p.Growing
				})
				t.Logf("%s runs on %d of %d multiprocessors, groups %v", name, p.SMs, total, p.SMGroups)
				if p.SMs == 0 || percentOf(p.SMs, total) > 25 {
					t.Errorf("%s runs on %d of %d multiprocessors; want some, a quarter at most", name, p.SMs, total)
				}
			}
			apart(t, n)
			for _, name := range names {
				s := send(t, n, name, 100)
				s.flows(t)
				s.stop().answeredAll(t, 0)
			}
		})
	}
}
