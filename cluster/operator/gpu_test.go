package operator

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// scenario is a life of segments: three are created, one is retuned, one replaces another in the same place, two go.
func scenario(w *world) {
	w.t.Helper()
	f1, f2, g1 := testSegment("f-1", "gpu-0-mig-2-0"), testSegment("f-2", "gpu-0-mig-2-4"), testSegment("g-1", "gpu-1-mig-1-0")
	g1.Port = 5002
	w.add(testChange(1, testStep(v1alpha1.Create, "n1-0", f1), testStep(v1alpha1.Create, "n2-0", f2), testStep(v1alpha1.Create, "n1-1", g1)))
	w.settle()

	f3, tuned := testSegment("f-3", "gpu-0-mig-4-0"), f2
	tuned.Batch, tuned.Throughput = 8, v1alpha1.Rate(120)
	w.add(testChange(2, testStep(v1alpha1.Retune, "n2-0", tuned), testStep(v1alpha1.Destroy, "n1-0", f1), testStep(v1alpha1.Create, "n1-0", f3),
		testStep(v1alpha1.Destroy, "n1-1", g1)))
	w.settle()
}

const scenarioEnd = `ClusterRoleBinding penstock-agent-a
DeviceTaintRule penstock-16e74a25a03eddb4
DeviceTaintRule penstock-52f78b97a6c83ad1
NetworkPolicy a/penstock
PodDisruptionBudget a/penstock
Service a/f
Service a/g
ServiceAccount a/penstock-agent
claim a/f-2: gpu-0-mig-2-4
claim a/f-3: gpu-0-mig-4-0
plan n1-0: f-3 draining false ready true peers 1 
plan n2-0: f-2 draining false ready true peers 1 
pod a/f-2: serves f
pod a/f-3: serves f
`

// A checkEnd verifies what a scenario leaves, and that nothing was made twice.
func checkEnd(t *testing.T, w *world) {
	t.Helper()
	if got := w.summary(); got != scenarioEnd {
		t.Fatalf("at the end there is\n%swant\n%swrites:\n%s", got, scenarioEnd, strings.Join(w.writes, "\n"))
	}
	for _, n := range []int64{1, 2} {
		if s := w.change(n); s.Phase != v1alpha1.Done || s.FinishedAt == nil || int(s.Done) == 0 {
			t.Fatalf("change %d: %+v", n, s)
		}
	}
	for what, times := range w.created {
		// A GPUPlan may be made again, for another segment.
		if times != 1 && !strings.Contains(what, "GPUPlan") {
			t.Fatalf("%s: %d times", what, times)
		}
	}
}

func TestScenario(t *testing.T) {
	w := testWorld(t)
	scenario(w)
	checkEnd(t, w)

	// Nothing is written in a steady minute.
	writes := len(w.writes)
	for range 60 {
		w.round()
	}
	if rest := w.writes[writes:]; len(rest) > 0 {
		t.Errorf("writes in a steady minute: %q", rest)
	}
}

// TestStop stops the operator after each of its writes. Another one continues.
func TestStop(t *testing.T) {
	whole := testWorld(t)
	scenario(whole)
	for n := 1; n <= len(whole.writes); n++ {
		w := testWorld(t)
		w.stopAt = n
		scenario(w)
		checkEnd(t, w)
	}
}

// TestConflicts lets the first attempt of each write fail, as if the object had changed.
func TestConflicts(t *testing.T) {
	w := testWorld(t)
	refused := map[string]bool{}
	w.refuse = func(write string) error {
		key := fmt.Sprint(len(w.writes), write)
		if refused[key] {
			return nil
		}
		refused[key] = true
		return apierrors.NewConflict(schema.GroupResource{}, write, nil)
	}
	scenario(w)
	checkEnd(t, w)
	if len(refused) < len(w.writes) {
		t.Errorf("%d writes were refused, want at least the %d that took place", len(refused), len(w.writes))
	}
}

// TestPeerWeights lets clients spread by throughput. Segments that serve only during a change take clients, too.
func TestPeerWeights(t *testing.T) {
	w := testWorld(t)
	scenario(w)
	weight := func(plan string) string {
		peers := get(w, plan, &v1alpha1.GPUPlan{}).Status.Segments[0].Peers
		if len(peers) != 1 {
			t.Fatalf("%s has peers %+v, want one", plan, peers)
		}
		return peers[0].Weight.String()
	}
	if f2, f3 := weight("n1-0"), weight("n2-0"); f2 != "120" || f3 != "100" {
		t.Errorf("weights are %s and %s, want 120 after the retune, and 100", f2, f3)
	}
}
