package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
)

// plannedWorld is a world whose changes the planning controller makes.
type plannedWorld struct {
	*world
	planning *Planning
	maxSteps int
}

func newPlannedWorld(t *testing.T, functions ...*v1alpha1.Function) *plannedWorld {
	w := testWorld(t)
	for _, name := range []string{"f", "g"} {
		w.must(w.api.Delete(t.Context(), get(w, "a/"+name, &v1alpha1.Function{})))
	}
	fleet := get(w, "lab", &v1alpha1.Fleet{})
	fleet.Spec.Damping = v1alpha1.Damping{
		Headroom: 15, Step: 10, UpAfter: metav1.Duration{Duration: 10 * time.Second}, DownAfter: metav1.Duration{Duration: 10 * time.Minute},
		DownBelow: 70, Between: metav1.Duration{Duration: 30 * time.Second},
	}
	w.must(w.api.Update(t.Context(), fleet))
	w.add(&v1alpha1.Profile{
		ObjectMeta: metav1.ObjectMeta{Name: "resnet50"},
		Spec:       v1alpha1.ProfileSpec{Model: "resnet50", GPU: "a100-80", CSV: string(must.Get(os.ReadFile("../../plan/testdata/parvagpu/prof_data/resnet50.csv"))(t))},
	})
	for _, f := range functions {
		w.add(f)
	}
	p := &plannedWorld{world: w}
	p.restart()
	return p
}

// restart starts another operator, which remembers nothing.
func (w *plannedWorld) restart() {
	w.planning = &Planning{Client: w.client(), Agents: w.agents, Silence: w.silence, Now: func() time.Time { return w.now }, maxSteps: w.maxSteps}
}

// run lets seconds pass.
func (w *plannedWorld) run(seconds int) {
	w.t.Helper()
	for range seconds {
		_, err := w.planning.Reconcile(context.Background(), reconcile.Request{})
		if w.stopped {
			w.stopped, w.stopAt = false, 0
			w.restart()
		} else if err != nil {
			w.t.Fatalf("planning: %v", err)
		}
		w.round()
	}
}

func testRate(least, most float64) v1alpha1.RateSpec {
	if least == most {
		return v1alpha1.RateSpec{Fixed: quantity(least)}
	}
	return v1alpha1.RateSpec{Min: quantity(least), Max: quantity(most)}
}

func testFunction(name string, port int32, rate v1alpha1.RateSpec) *v1alpha1.Function {
	namespace, name, _ := strings.Cut(name, "/")
	return &v1alpha1.Function{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.FunctionSpec{Model: "resnet50", SLO: metav1.Duration{Duration: 200 * time.Millisecond}, Rate: rate, Port: port},
	}
}

func (w *plannedWorld) status(function string) v1alpha1.FunctionStatus {
	w.t.Helper()
	return get(w.world, function, &v1alpha1.Function{}).Status
}

func (w *plannedWorld) wantReady(function string) {
	w.t.Helper()
	s := w.status(function)
	if !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.Planned) || !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.Ready) || s.Segments == 0 {
		w.t.Fatalf("%s: %+v\n%s", function, s, w.summary())
	}
}

// pods are the UIDs of a function's pods.
func (w *plannedWorld) pods(function string) (all []types.UID) {
	w.t.Helper()
	var pods corev1.PodList
	w.must(w.api.List(context.Background(), &pods))
	for _, p := range pods.Items {
		if strings.HasPrefix(p.Name, function+"-") {
			all = append(all, p.UID)
		}
	}
	slices.Sort(all)
	return all
}

func (w *plannedWorld) wantCondition(function, reason, part string) {
	w.t.Helper()
	c := meta.FindStatusCondition(w.status(function).Conditions, v1alpha1.Planned)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason || !strings.Contains(c.Message, part) {
		w.t.Errorf("%s: %+v, want %s with %q", function, c, reason, part)
	}
}

// TestPlanning makes functions serve, lets one get more requests than planned, and removes it.
func TestPlanning(t *testing.T) {
	w := newPlannedWorld(t, testFunction("a/f", 5001, testRate(100, 3000)), testFunction("b/g", 5002, testRate(200, 200)))
	w.agents.rates["f"], w.agents.rates["g"] = 80, 150
	w.run(60)
	w.wantReady("a/f")
	w.wantReady("b/g")

	before := len(w.writes)
	w.run(60)
	if more := w.writes[before:]; len(more) > 0 {
		t.Errorf("writes in a steady minute: %s", strings.Join(more, ", "))
	}

	stay, began := w.pods("g"), w.now
	w.agents.rates["f"] = 1000
	for w.status("a/f").PlannedRate.AsApproximateFloat64() < 1000 {
		if w.run(1); w.now.Sub(began) > 20*time.Second {
			t.Fatalf("after 20 s, the planned rate is %v", w.status("a/f").PlannedRate)
		}
	}
	if took := w.now.Sub(began); took < 10*time.Second-minPages { // the first page with more requests began before
		t.Errorf("planned again after %v, want 10 s of more requests", took)
	}
	w.run(20)
	w.wantReady("a/f")
	if s := w.status("a/f"); s.AssignedRate.AsApproximateFloat64() < 1000 || s.ObservedRate.AsApproximateFloat64() < 900 {
		t.Errorf("assigned %v, observed %v, want 1000", s.AssignedRate, s.ObservedRate)
	}
	if got := w.pods("g"); !slices.Equal(got, stay) {
		t.Errorf("pods of g: %v, before %v", got, stay)
	}

	w.must(w.api.Delete(t.Context(), get(w.world, "a/f", &v1alpha1.Function{})))
	w.run(60)
	if got := w.pods("f"); len(got) > 0 {
		t.Errorf("pods of a deleted function: %v", got)
	}
	if _, _, ok := w.planning.rates.Observed(types.NamespacedName{Namespace: "a", Name: "f"}); ok {
		t.Error("the operator remembers the rate of a deleted function")
	}
	w.wantReady("b/g")

	w.must(w.api.Delete(t.Context(), get(w.world, "lab", &v1alpha1.Fleet{})))
	w.run(1)
	if len(w.planning.last) > 0 {
		t.Error("the operator remembers the plan of a deleted fleet")
	}
}

// TestPlanningStopped stops the operator after each of its first writes. The fleet ends the same.
func TestPlanningStopped(t *testing.T) {
	end := func(stopAt int) string {
		w := newPlannedWorld(t, testFunction("a/f", 5001, testRate(900, 900)))
		w.stopAt = stopAt
		w.run(50)
		w.wantReady("a/f")
		for what, n := range w.created {
			if n > 1 {
				t.Errorf("stopped after write %d: %s %d times", stopAt, what, n)
			}
		}
		var changes v1alpha1.PlanChangeList
		w.must(w.api.List(t.Context(), &changes))
		return fmt.Sprint(len(changes.Items), w.status("a/f").Segments)
	}
	want := end(0)
	for stopAt := 1; stopAt <= 12; stopAt++ {
		if got := end(stopAt); got != want {
			t.Errorf("stopped after write %d: %s changes and segments, want %s", stopAt, got, want)
		}
	}
}

// throughputs are those of segments that take clients, by function.
func (w *plannedWorld) throughputs() map[string][]float64 {
	w.t.Helper()
	var plans v1alpha1.GPUPlanList
	w.must(w.api.List(context.Background(), &plans))
	all := map[string][]float64{}
	for i := range plans.Items {
		for _, m := range membersOf(&plans.Items[i]) {
			if m.takesClients() {
				all[functionKey(m.segment)] = append(all[functionKey(m.segment)], m.segment.Throughput.AsApproximateFloat64())
			}
		}
	}
	return all
}

func sum(all []float64) (total float64) {
	for _, x := range all {
		total += x
	}
	return total
}

// unfinished is the number of changes that have steps to take.
func (w *plannedWorld) unfinished() (n int) {
	w.t.Helper()
	var changes v1alpha1.PlanChangeList
	w.must(w.api.List(context.Background(), &changes))
	for _, ch := range changes.Items {
		if !ch.Status.Phase.Finished() {
			n++
		}
	}
	return n
}

// TestPlanningSplit stops the operator after writes of a change that has several parts. A node is cordoned for a second: the first
// parts create segments elsewhere, the last ones end those on the node. If only the first parts are written, functions have more
// segments than they need, and no other reason to change. All functions serve all the time, and nothing is left over.
func TestPlanningSplit(t *testing.T) {
	const rate = 1500
	functions := []string{"a/f", "b/g"}
	end := func(stopAt int) (writes []string) {
		w := newPlannedWorld(t, testFunction("a/f", 5001, testRate(rate, rate)), testFunction("b/g", 5002, testRate(rate, rate)))
		w.maxSteps = 2
		w.restart()
		for tries := 0; tries < 60 && (w.unfinished() > 0 || len(w.throughputs()) < len(functions)); tries++ {
			w.run(1)
		}

		cordon := func(yes bool) {
			n := get(w.world, "n1", &corev1.Node{})
			n.Spec.Unschedulable = yes
			w.must(w.api.Update(t.Context(), n))
		}
		excess := func(serve []float64) bool { return len(serve) > 1 && sum(serve)-slices.Min(serve) >= rate }
		before, began := len(w.writes), w.now
		cordon(true)
		if stopAt > 0 {
			w.stopAt = before + stopAt
		}
		for range 100 {
			w.run(1)
			cordon(false)
			serve := w.throughputs()
			for _, f := range functions {
				if sum(serve[f]) < rate {
					t.Fatalf("stopped after write %d: at %v, segments of %s serve %v", stopAt, w.now.Sub(began), f, serve[f])
				}
			}
			if w.unfinished() == 0 && !excess(serve["a/f"]) && !excess(serve["b/g"]) {
				break
			}
		}
		w.run(3) // the status follows
		for what, n := range w.created {
			if n > 1 {
				t.Errorf("stopped after write %d: %s %d times", stopAt, what, n)
			}
		}
		for _, f := range functions {
			w.wantReady(f)
			if got := w.throughputs()[f]; excess(got) {
				t.Errorf("stopped after write %d: segments of %s serve %v, want none in excess of %d", stopAt, f, got, rate)
			}
		}
		return w.writes[before:]
	}

	writes := end(0)
	parts := 0
	for _, write := range writes {
		if strings.HasPrefix(write, "create PlanChange") {
			parts++
		}
	}
	if parts < 3 {
		t.Fatalf("the change has %d parts, want at least 3:\n%s", parts, strings.Join(writes, "\n"))
	}
	stride := 1 // after the parts are written, the change is as others are (TestStop)
	for stopAt := 1; stopAt <= len(writes); stopAt += stride {
		if end(stopAt); stopAt > parts+2 {
			stride = 40
		}
	}
}

// TestPlanningFailures loses a node, and pods of a GPU.
func TestPlanningFailures(t *testing.T) {
	serving := func(w *plannedWorld, without string) {
		t.Helper()
		w.wantReady("a/f")
		var plans v1alpha1.GPUPlanList
		w.must(w.api.List(t.Context(), &plans))
		for _, p := range plans.Items {
			if p.Spec.Node == without && len(p.Spec.Segments) > 0 {
				t.Errorf("GPUPlan %s still has segments on %s", p.Name, without)
			}
		}
	}
	node := func(w *plannedWorld) string {
		t.Helper()
		var plans v1alpha1.GPUPlanList
		w.must(w.api.List(t.Context(), &plans))
		return plans.Items[0].Spec.Node
	}

	t.Run("node not ready", func(t *testing.T) {
		w := newPlannedWorld(t, testFunction("a/f", 5001, testRate(300, 300)))
		w.run(40)
		lost := node(w)
		n := get(w.world, lost, &corev1.Node{})
		n.Status.Conditions[0].Status = corev1.ConditionFalse
		w.must(w.api.Status().Update(t.Context(), n))
		w.must(w.api.Update(t.Context(), n))
		w.run(20)
		serving(w, lost)
	})
	t.Run("node silent", func(t *testing.T) {
		w := newPlannedWorld(t, testFunction("a/f", 5001, testRate(300, 300)))
		w.run(40)
		lost := node(w)
		w.silence.silent = sets.New(lost)
		w.run(10) // failures do not wait for the min time between changes
		serving(w, lost)
	})
	t.Run("all nodes not ready", func(t *testing.T) {
		w := newPlannedWorld(t, testFunction("a/f", 5001, testRate(300, 300)))
		w.run(40)
		before := w.pods("f")
		w.silence.Now = func() time.Time { return w.now }
		setReady := func(status corev1.ConditionStatus) {
			w.silence.nodes = map[string]*listener{}
			for _, name := range []string{"n1", "n2"} {
				n := get(w.world, name, &corev1.Node{})
				n.Status.Conditions[0].Status = status
				w.must(w.api.Status().Update(t.Context(), n))
				w.silence.nodes[name] = &listener{answered: w.now.Add(time.Hour)}
			}
		}
		setReady(corev1.ConditionUnknown)
		w.run(40)
		if now := w.pods("f"); len(before) == 0 || !slices.Equal(before, now) {
			t.Errorf("pods %v, before %v, although they answer", now, before)
		}
		setReady(corev1.ConditionTrue)
		w.run(20)
		w.wantReady("a/f")
	})
	t.Run("node not ready in mid-change", func(t *testing.T) {
		w := newPlannedWorld(t, testFunction("a/f", 5001, testRate(300, 300)))
		w.run(40)
		first := node(w)
		f := get(w.world, "a/f", &v1alpha1.Function{})
		f.Spec.Rate = testRate(7000, 7000)
		w.must(w.api.Update(t.Context(), f))

		// The node that the change needs, and that served nothing, fails when its pods are made.
		lost := ""
		w.after = func(write string) {
			if name, ok := strings.CutPrefix(write, "create Pod "); ok && lost == "" {
				pod := get(w.world, name, &corev1.Pod{})
				on := get(w.world, pod.Labels[v1alpha1.GPUPlanLabel], &v1alpha1.GPUPlan{}).Spec.Node
				if on == first {
					return
				}
				lost, w.unready[pod.Name] = on, true
				n := get(w.world, lost, &corev1.Node{})
				n.Status.Conditions[0].Status = corev1.ConditionFalse
				w.must(w.api.Status().Update(t.Context(), n))
				w.must(w.api.Update(t.Context(), n))
			}
		}
		w.run(40)
		if lost == "" || lost == first {
			t.Fatalf("the change made no pod on another node than %s", first)
		}
		var plans v1alpha1.GPUPlanList
		w.must(w.api.List(t.Context(), &plans))
		for _, p := range plans.Items {
			if p.Spec.Node == lost && len(p.Spec.Segments) > 0 {
				t.Errorf("GPUPlan %s still has segments on %s", p.Name, lost)
			}
		}
		if s := w.status("a/f"); s.ReadySegments == 0 || s.ReadySegments != s.Segments || w.unfinished() > 0 {
			t.Errorf("40 s after the failure: %+v; %d changes are not finished", s, w.unfinished())
		}
	})
	t.Run("cordoned", func(t *testing.T) {
		w := newPlannedWorld(t, testFunction("a/f", 5001, testRate(300, 300)))
		w.run(40)
		lost := node(w)
		n := get(w.world, lost, &corev1.Node{})
		n.Spec.Unschedulable = true
		w.must(w.api.Update(t.Context(), n))
		w.run(40)
		serving(w, lost)
	})
	t.Run("pod never ready", func(t *testing.T) {
		w := newPlannedWorld(t, testFunction("a/f", 5001, testRate(300, 300)))
		w.after = func(write string) {
			if name, ok := strings.CutPrefix(write, "create Pod a/"); ok {
				w.unready[name] = true
			}
		}
		w.run(200)
		w.wantCondition("a/f", v1alpha1.ReasonChangeFailed, "the last change failed and was undone")
	})
}

// TestPlanningRefuses gives functions that cannot be planned a condition each.
func TestPlanningRefuses(t *testing.T) {
	unknown := testFunction("a/unknown", 5001, testRate(100, 100))
	unknown.Spec.Model = "no-such-model"
	fast := testFunction("a/fast", 5002, testRate(100, 100))
	fast.Spec.SLO.Duration = time.Millisecond
	large := testFunction("a/large", 5003, testRate(1e6, 1e6))
	twice := testFunction("a/twice", 5004, testRate(100, 100))
	w := newPlannedWorld(t, unknown, fast, large, testFunction("a/f", 5004, testRate(100, 100)))
	w.now = w.now.Add(time.Second)
	w.add(twice)
	w.run(60)
	w.wantCondition("a/twice", v1alpha1.ReasonConflict, "function f of the namespace, which is older, has it")
	w.wantReady("a/f")
	w.wantCondition("a/unknown", v1alpha1.ReasonNoProfile, "no-such-model")
	w.wantCondition("a/fast", v1alpha1.ReasonInfeasible, "fast")
	w.wantCondition("a/large", v1alpha1.ReasonFleetTooSmall, "of 1e+06 requests/s")
}

// TestProfileEdited reads a Profile again when it was edited, and only then.
func TestProfileEdited(t *testing.T) {
	w := newPlannedWorld(t, testFunction("a/f", 5001, testRate(100, 100)))
	points := func() *plan.Point {
		c := clusterState{}
		w.must(errors.Join(w.api.List(t.Context(), &c.functions), w.api.List(t.Context(), &c.profiles)))
		known, _ := w.planning.profiles(t.Context(), &c)
		return &known["a100-80"]["resnet50"].Points[0]
	}
	w.run(5)
	if points() != points() {
		t.Error("a Profile that stays the same was read twice")
	}
	p := get(w.world, "resnet50", &v1alpha1.Profile{})
	p.Spec.CSV = "no profile"
	w.must(w.api.Update(t.Context(), p))
	w.run(5)
	if p := get(w.world, "resnet50", &v1alpha1.Profile{}); !meta.IsStatusConditionFalse(p.Status.Conditions, v1alpha1.Valid) {
		t.Errorf("an edited Profile was not read: %+v", p.Status)
	}
}

// BenchmarkProfiles50 reads 50 Profiles for 10,000 functions, as each reconcile does.
func BenchmarkProfiles50(b *testing.B) {
	text := string(must.Get(os.ReadFile("../../plan/testdata/parvagpu/prof_data/resnet50.csv"))(b))
	w := newWorld(b)
	for i := range 50 {
		w.add(&v1alpha1.Profile{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i)}, Spec: v1alpha1.ProfileSpec{Model: fmt.Sprintf("m%d", i), GPU: "a100-80", CSV: text}})
	}
	c := clusterState{}
	for i := range 10_000 {
		c.functions.Items = append(c.functions.Items, v1alpha1.Function{Spec: v1alpha1.FunctionSpec{Model: fmt.Sprintf("m%d", i%50)}})
	}
	r := &Planning{Client: w.client(), Silence: &Silence{}}
	for range 3 { // the first times write finalizers and conditions
		w.must(w.api.List(b.Context(), &c.profiles))
		r.profiles(b.Context(), &c)
	}
	for b.Loop() {
		if known, failed := r.profiles(b.Context(), &c); len(known["a100-80"]) != 50 || errors.Join(failed...) != nil {
			b.Fatalf("%d profiles, %v", len(known["a100-80"]), failed)
		}
	}
}

// TestProfileInUse keeps a deleted Profile while a Function has its model.
func TestProfileInUse(t *testing.T) {
	w := newPlannedWorld(t, testFunction("a/f", 5001, testRate(100, 100)))
	w.run(5)
	p := get(w.world, "resnet50", &v1alpha1.Profile{})
	if !slices.Contains(p.Finalizers, v1alpha1.InUseFinalizer) || !meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.Valid) {
		t.Fatalf("%v, %+v", p.Finalizers, p.Status)
	}
	w.must(w.api.Delete(t.Context(), p))
	w.run(40)
	w.wantReady("a/f")
	w.must(w.api.Delete(t.Context(), get(w.world, "a/f", &v1alpha1.Function{})))
	w.run(60)
	if left := w.names(&v1alpha1.ProfileList{}); len(left) > 0 {
		t.Errorf("%v is kept without functions", left)
	}
}
