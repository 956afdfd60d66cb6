package operator

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// TestLag runs controllers while some types of the operator's cache are old. Operators are stopped, and pods and claims are
// deleted by hand. No device ever has two pods (world.check), and at the end all is as planned.
func TestLag(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := testWorld(rapidTB{t, rt})
		f1, f2, f3 := testSegment("f-1", "gpu-0-mig-2-0"), testSegment("f-2", "gpu-0-mig-2-4"), testSegment("f-3", "gpu-0-mig-4-0")
		w.add(
			testChange(1, testStep(v1alpha1.Create, "n1-0", f1), testStep(v1alpha1.Create, "n2-0", f2)),
			testChange(2, testStep(v1alpha1.Destroy, "n1-0", f1), testStep(v1alpha1.Create, "n1-0", f3)),
		)
		w.see(func(client.ObjectList) bool { return true })
		lists := []client.ObjectList{&corev1.PodList{}, &resourceapi.ResourceClaimList{}}
		for range 30 {
			switch rapid.IntRange(0, 9).Draw(rt, "event") {
			case 0:
				w.stopAt = len(w.writes) + rapid.IntRange(1, 4).Draw(rt, "writes")
			case 1:
				list := rapid.SampledFrom(lists).Draw(rt, "type").DeepCopyObject().(client.ObjectList)
				w.must(w.api.List(context.Background(), list))
				if objects := items(list); len(objects) > 0 {
					w.must(w.api.Delete(context.Background(), rapid.SampledFrom(objects).Draw(rt, "object")))
				}
			}
			old := rapid.SliceOfN(rapid.IntRange(0, len(listed)-1), 0, 4).Draw(rt, "old types")
			i := -1
			w.see(func(client.ObjectList) bool { i++; return !slices.Contains(old, i) })
			w.round()
		}

		w.cache = nil
		w.settle()
		for _, n := range []int64{1, 2} {
			if s := w.change(n); s.Phase != v1alpha1.Done {
				rt.Fatalf("change %d: %+v", n, s)
			}
		}
		const want = `claim a/f-2: gpu-0-mig-2-4
claim a/f-3: gpu-0-mig-4-0
plan n1-0: f-3 draining false ready true peers 1 
plan n2-0: f-2 draining false ready true peers 1 
pod a/f-2: serves f
pod a/f-3: serves f
`
		// A pod whose claim was deleted goes on serving.
		if got := strings.ReplaceAll(w.segments(), "the claim is being deleted", ""); got != want {
			rt.Fatalf("at the end there is\n%swant\n%s", got, want)
		}
	})
}

// rapidTB reports failures to rapid, so that it shrinks the sequence.
type rapidTB struct {
	testing.TB
	rt *rapid.T
}

func (t rapidTB) Helper()                     {}
func (t rapidTB) Fatal(all ...any)            { t.rt.Fatal(all...) }
func (t rapidTB) Fatalf(f string, all ...any) { t.rt.Fatalf(f, all...) }
