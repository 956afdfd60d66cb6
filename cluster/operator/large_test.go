package operator

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// TestChangesAtOnce has a plan in several changes. Changes that create go on beside one that waits, and others do not.
func TestChangesAtOnce(t *testing.T) {
	w := onePod(t)
	w.unready["f-2"] = true
	f3 := testSegment("f-3", "gpu-1-mig-2-0")
	w.add(testChange(2, testStep(v1alpha1.Create, "n2-0", testSegment("f-2", "gpu-0-mig-2-0"))),
		testChange(3, testStep(v1alpha1.Create, "n2-1", f3)),
		testChange(4, testStep(v1alpha1.Destroy, "n2-1", f3)),
		testChange(5, testStep(v1alpha1.Create, "n1-0", testSegment("f-5", "gpu-0-mig-2-4"))))
	for range 20 {
		w.round()
	}
	for number, want := range map[int64]v1alpha1.Phase{2: v1alpha1.Running, 3: v1alpha1.Done, 4: "", 5: ""} {
		if got := w.change(number).Phase; got != want {
			t.Errorf("change %d is %q while change 2 waits, want %q", number, got, want)
		}
	}
	w.wantServing("a/f-3")

	for began := w.now; !w.change(2).Phase.Finished() && w.now.Sub(began) < 3*stepLimit; {
		w.round()
	}
	w.settle()
	for number, want := range map[int64]v1alpha1.Phase{2: v1alpha1.Failed, 3: v1alpha1.Done, 4: v1alpha1.Failed, 5: v1alpha1.Failed} {
		if got := w.change(number).Phase; got != want {
			t.Errorf("change %d is %q after change 2 has failed, want %q", number, got, want)
		}
	}
}

// TestTakenPlace has a change whose plan did not see a segment. It waits for that one, and is undone if it stays.
func TestTakenPlace(t *testing.T) {
	w := onePod(t)
	w.add(testChange(2, testStep(v1alpha1.Create, "n1-0", testSegment("f-2", "gpu-0-mig-4-0"))))
	for range 20 {
		w.round()
	}
	if c := w.change(2); c.Phase != v1alpha1.Running || !strings.Contains(c.Message, "segment f-1 has its place") {
		t.Errorf("the change is %+v, want one that waits for f-1", c)
	}
	for began := w.now; !w.change(2).Phase.Finished() && w.now.Sub(began) < 3*stepLimit; {
		w.round()
	}
	if got := len(get(w, "n1-0", &v1alpha1.GPUPlan{}).Spec.Segments); w.change(2).Phase != v1alpha1.Failed || got != 1 {
		t.Errorf("the change is %+v, and the GPU has %d segments, want f-1", w.change(2), got)
	}
	w.wantServing("a/f-1")
}

// TestStartWrites counts what the operator writes for a segment of a GPU that starts.
func TestStartWrites(t *testing.T) {
	w := onePod(t)
	w.writes = nil
	w.add(testChange(2, testStep(v1alpha1.Create, "n2-0", testSegment("f-2", "gpu-0-mig-2-0"))))
	w.settle()
	w.wantServing("a/f-2")
	var got []string
	for _, what := range w.writes {
		if strings.HasSuffix(what, "n2-0") || strings.HasSuffix(what, "f-2") {
			got = append(got, what)
		}
	}
	want := []string{"create GPUPlan n2-0", "create ResourceClaim a/f-2", "update status of ResourceClaim a/f-2", "create Pod a/f-2",
		"update status of GPUPlan n2-0"}
	if !slices.Equal(got, want) {
		t.Errorf("writes:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestUrgent(t *testing.T) {
	peers := []v1alpha1.Peer{{Address: "10.0.0.1:5001", Weight: v1alpha1.Rate(1)}}
	base := v1alpha1.SegmentStatus{Name: "s", Pod: "s", Address: "10.0.0.2", Ready: true, Peers: peers}
	for _, test := range []struct {
		name string
		edit func(*v1alpha1.SegmentStatus)
		want bool
	}{
		{"nothing", func(*v1alpha1.SegmentStatus) {}, false},
		{"message", func(s *v1alpha1.SegmentStatus) { s.Message = "m" }, false},
		{"one more peer", func(s *v1alpha1.SegmentStatus) {
			s.Peers = append(slices.Clone(peers), v1alpha1.Peer{Address: "10.0.0.3:5001"})
		}, false},
		{"peer gone", func(s *v1alpha1.SegmentStatus) { s.Peers = nil }, true},
		{"not ready", func(s *v1alpha1.SegmentStatus) { s.Ready = false }, true},
		{"drained", func(s *v1alpha1.SegmentStatus) { s.Drained = true }, true},
		{"another address", func(s *v1alpha1.SegmentStatus) { s.Address = "10.0.0.4" }, true},
		{"another segment", func(s *v1alpha1.SegmentStatus) { s.Name = "t" }, true},
	} {
		now := base
		test.edit(&now)
		status := func(s v1alpha1.SegmentStatus) v1alpha1.GPUPlanStatus {
			return v1alpha1.GPUPlanStatus{Segments: []v1alpha1.SegmentStatus{s}}
		}
		if got := urgent(status(base), status(now)); got != test.want {
			t.Errorf("%s: urgent is %v, want %v", test.name, got, test.want)
		}
	}
}

func TestPause(t *testing.T) {
	var p pause
	began := time.Now()
	for took, want := range map[time.Duration]time.Duration{0: 0, 100 * time.Millisecond: 400 * time.Millisecond, time.Minute: maxPause} {
		ended := began.Add(took)
		p.after(began, ended)
		if got := p.left(ended); got != want {
			t.Errorf("after %s it waits %s, want %s", took, got, want)
		}
	}
}

// TestStripSlices checks that devices of two nodes share what they consume, and that the pool reads the same.
func TestStripSlices(t *testing.T) {
	slice := func(name string, slot string) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{{
			Name:     "d",
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("1Gi")}},
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "c",
				Counters: map[string]resourceapi.Counter{slot: {Value: resource.MustParse("1")}}}},
		}}}}
	}
	var consumed []*resourceapi.DeviceCounterConsumption
	for _, s := range []*resourceapi.ResourceSlice{slice("a", "memory-slice-0"), slice("b", "memory-slice-0"), slice("c", "memory-slice-1")} {
		want := newPool("d", "p", []resourceapi.ResourceSlice{*s.DeepCopy()}, nil).devices["d"].ConsumesCounters
		if _, err := Strip(s); err != nil {
			t.Fatal(err)
		}
		got := newPool("d", "p", []resourceapi.ResourceSlice{*s}, nil).devices["d"]
		if !equality.Semantic.DeepEqual(got.ConsumesCounters, want) || len(got.Capacity) > 0 {
			t.Errorf("slice %s has %+v, want counters %+v", s.Name, got, want)
		}
		consumed = append(consumed, &got.ConsumesCounters[0])
	}
	if consumed[0] != consumed[1] || consumed[0] == consumed[2] {
		t.Error("the first two devices consume the same, and the third does not")
	}
}

// TestStrip checks that the operator still sees what it reads of a pod.
func TestStrip(t *testing.T) {
	w := onePod(t)
	p := get(w, "a/f-1", &corev1.Pod{})
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	want := p.DeepCopy()
	got, err := Strip(p)
	w.must(err)
	p = got.(*corev1.Pod)
	if len(p.Spec.Containers)+len(p.ManagedFields)+len(p.Annotations) > 0 || p.Spec.NodeName != want.Spec.NodeName || !ready(p) ||
		p.Status.PodIP != want.Status.PodIP || p.Labels[v1alpha1.ServingLabel("f")] != v1alpha1.Serving || ownerPlan(p) == nil {
		t.Errorf("the pod becomes %+v", p)
	}
}
