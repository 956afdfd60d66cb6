package operator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// get reads an object of the API server.
func get[T client.Object](w *world, key string, o T) T {
	w.t.Helper()
	namespace, name, found := strings.Cut(key, "/")
	if !found {
		namespace, name = "", key
	}
	w.must(w.api.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: name}, o))
	return o
}

// onePod is a world in which segment f-1 serves.
func onePod(t *testing.T) *world {
	w := testWorld(t)
	w.add(testChange(1, testStep(v1alpha1.Create, "n1-0", testSegment("f-1", "gpu-0-mig-2-0"))))
	w.settle()
	return w
}

func (w *world) wantServing(pod string) {
	w.t.Helper()
	p := get(w, pod, &corev1.Pod{})
	if !ready(p) || p.Labels[v1alpha1.ServingLabel("f")] != v1alpha1.Serving {
		w.t.Errorf("pod %s does not serve; the world:\n%s", pod, w.summary())
	}
}

func (w *world) message(plan, segment string) string {
	w.t.Helper()
	if s := segmentStatus(&get(w, plan, &v1alpha1.GPUPlan{}).Status, segment); s != nil {
		return s.Message
	}
	return "no status"
}

func TestClaimDeleted(t *testing.T) {
	t.Run("kept by its pod", func(t *testing.T) {
		w := onePod(t)
		pod := get(w, "a/f-1", &corev1.Pod{})
		w.must(w.api.Delete(context.Background(), get(w, "a/f-1", &resourceapi.ResourceClaim{})))
		w.settle()
		w.wantServing("a/f-1")
		if got := get(w, "a/f-1", &corev1.Pod{}); got.UID != pod.UID {
			t.Error("the pod was replaced while it served")
		}
		if got := w.message("n1-0", "f-1"); got != "the claim is being deleted" {
			t.Errorf("message %q", got)
		}

		w.must(w.api.Delete(context.Background(), pod))
		w.settle()
		w.wantServing("a/f-1")
		if got := w.message("n1-0", "f-1"); got != "" {
			t.Errorf("message %q", got)
		}
	})
	t.Run("by force", func(t *testing.T) {
		w := onePod(t)
		c := get(w, "a/f-1", &resourceapi.ResourceClaim{})
		c.Finalizers = nil
		w.must(w.api.Update(context.Background(), c))
		w.must(w.api.Delete(context.Background(), c))
		w.settle()
		w.wantServing("a/f-1")
		if c := get(w, "a/f-1", &resourceapi.ResourceClaim{}); c.Status.Allocation == nil {
			t.Error("the new claim has no device")
		}
	})
}

// TestWrongDevice gives a claim another device than planned. It and its pod are replaced.
func TestWrongDevice(t *testing.T) {
	w := onePod(t)
	pod := get(w, "a/f-1", &corev1.Pod{})
	c := get(w, "a/f-1", &resourceapi.ResourceClaim{})
	c.Status.Allocation.Devices.Results[0].Device = "gpu-1-mig-2-4"
	w.must(w.api.Status().Update(context.Background(), c))
	w.settle()
	w.wantServing("a/f-1")
	got := get(w, "a/f-1", &resourceapi.ResourceClaim{}).Status.Allocation.Devices.Results[0].Device
	if got != "gpu-0-mig-2-0" || get(w, "a/f-1", &corev1.Pod{}).UID == pod.UID {
		t.Errorf("the segment runs on %s, want a new pod on gpu-0-mig-2-0", got)
	}
}

func TestPodEvicted(t *testing.T) {
	w := onePod(t)
	p := get(w, "a/f-1", &corev1.Pod{})
	p.Status.Phase, p.Status.Reason, p.Status.Conditions = corev1.PodFailed, "Evicted", nil
	w.must(w.api.Status().Update(context.Background(), p))
	w.round()
	if got := w.message("n1-0", "f-1"); got != "the pod has ended: Evicted" {
		t.Errorf("message %q", got)
	}
	w.settle()
	w.wantServing("a/f-1")
	if get(w, "a/f-1", &corev1.Pod{}).UID == p.UID {
		t.Error("the pod is the old one")
	}
}

func TestPodDeleted(t *testing.T) {
	w := onePod(t)
	w.must(w.api.Delete(context.Background(), get(w, "a/f-1", &corev1.Pod{})))
	w.settle()
	w.wantServing("a/f-1")
}

// TestPodEnds deletes a pod that takes a while to end. Its clients go to another pod, if the function has one.
func TestPodEnds(t *testing.T) {
	w := onePod(t)
	ends := func() (inService bool) {
		p := get(w, "a/f-1", &corev1.Pod{})
		if p.DeletionTimestamp == nil {
			p.Finalizers = []string{"test/ends"}
			w.must(w.api.Update(context.Background(), p))
			w.must(w.api.Delete(context.Background(), p))
		}
		w.settle()
		return get(w, "a/f-1", &corev1.Pod{}).Labels[v1alpha1.ServingLabel("f")] == v1alpha1.Serving
	}
	if !ends() {
		t.Error("the only pod of the function is not in the Service")
	}
	w.add(testChange(2, testStep(v1alpha1.Create, "n2-0", testSegment("f-2", "gpu-0-mig-2-0"))))
	w.settle()
	if ends() {
		t.Error("the pod is in the Service although another one serves")
	}
	w.wantServing("a/f-2")
}

// TestNeverReady has a change of which one segment does not get ready. Later changes of the fleet fail with it.
func TestNeverReady(t *testing.T) {
	w := onePod(t)
	w.unready["f-3"] = true
	f1 := testSegment("f-1", "gpu-0-mig-2-0")
	tuned := f1
	tuned.Batch = 16
	retune := testStep(v1alpha1.Retune, "n1-0", tuned)
	retune.Was = &f1
	w.add(testChange(2,
		retune,
		testStep(v1alpha1.Create, "n2-0", testSegment("f-2", "gpu-0-mig-2-0")),
		testStep(v1alpha1.Create, "n2-1", testSegment("f-3", "gpu-1-mig-2-0")),
		testStep(v1alpha1.Destroy, "n1-0", f1)),
		testChange(3, testStep(v1alpha1.Destroy, "n2-0", testSegment("f-2", "gpu-0-mig-2-0"))),
	)
	start := w.now
	for !w.change(2).Phase.Finished() {
		w.round()
		if w.now.Sub(start) > 3*stepLimit {
			t.Fatalf("the change does not end: %+v", w.change(2))
		}
	}
	if took := w.now.Sub(start); took < stepLimit {
		t.Errorf("the change failed after %s", took)
	}
	w.settle()

	got := w.change(2)
	if want := "step 3 of 4, create f-3 on n2-1: the pod is not ready (for 2m0s)"; got.Phase != v1alpha1.Failed || got.Message != want {
		t.Errorf("change 2 is %s with message %q, want Failed with %q", got.Phase, got.Message, want)
	}
	if got := w.change(3); got.Phase != v1alpha1.Failed || got.Message != "change 2 failed before it" || got.Done != 0 {
		t.Errorf("change 3: %+v", got)
	}
	w.wantServing("a/f-1")
	if plan := get(w, "n1-0", &v1alpha1.GPUPlan{}); len(plan.Spec.Segments) != 1 || plan.Spec.Segments[0].Batch != f1.Batch {
		t.Errorf("segments of n1-0: %+v", plan.Spec.Segments)
	}
	if s := w.summary(); strings.Contains(s, "f-2") || strings.Contains(s, "f-3") {
		t.Errorf("of the failed change there is still something:\n%s", s)
	}
}

// TestStranger lets another claim take a device, or one that overlaps, before or after the operator looked.
func TestStranger(t *testing.T) {
	stranger := func(device string, when time.Time) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "stranger"},
			Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
				AllocationTimestamp: &metav1.Time{Time: when},
				Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
					Request: "r", Driver: defaultDriver, Pool: "n1", Device: device,
				}}},
			}},
		}
	}
	for name, c := range map[string]struct {
		device string
		after  string // the operator's write that the stranger comes after
		early  time.Duration
		serves bool
	}{
		"before the claim":                   {"gpu-0-mig-2-0", "", 0, false},
		"overlaps":                           {"gpu-0-mig-4-0", "", 0, false},
		"next to it":                         {"gpu-0-mig-2-2", "", 0, true},
		"another GPU":                        {"gpu-1-mig-2-0", "", 0, true},
		"between the claim and the device":   {"gpu-0-mig-2-0", "create ResourceClaim a/f-1", time.Minute, false},
		"first, but seen later":              {"gpu-0-mig-2-0", "update status of ResourceClaim a/f-1", time.Minute, false},
		"later":                              {"gpu-0-mig-2-0", "update status of ResourceClaim a/f-1", -time.Minute, true},
		"later than the pod":                 {"gpu-0-mig-2-0", "create Pod a/f-1", -time.Minute, true},
		"no time, so it may have been first": {"gpu-0-mig-2-0", "update status of ResourceClaim a/f-1", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := testWorld(t)
			come := func() {
				claim := stranger(c.device, w.now.Add(-c.early))
				status := claim.Status
				if c.early == 0 {
					status.Allocation.AllocationTimestamp = nil
				}
				w.add(claim)
				claim.Status = status
				w.must(w.api.Status().Update(context.Background(), claim))
			}
			w.after = func(write string) {
				if write == c.after {
					c.after = "never again"
					come()
				}
			}
			if c.after == "" {
				come()
			}
			w.add(testChange(1, testStep(v1alpha1.Create, "n1-0", testSegment("f-1", "gpu-0-mig-2-0"))))
			for range 20 {
				w.round()
			}
			serves := strings.Contains(w.summary(), "pod a/f-1: serves f")
			if serves != c.serves {
				t.Fatalf("serves: %v, want %v; the world:\n%swrites:\n%s", serves, c.serves, w.summary(), strings.Join(w.writes, "\n"))
			}
			if c.serves {
				return
			}
			if got, want := w.change(1).Message, "is taken by claim other/stranger"; !strings.Contains(got, want) {
				t.Errorf("message %q, want %q in it", got, want)
			}
			if w.created["create Pod a/f-1"] > 0 {
				t.Error("a pod was made")
			}

			// The stranger goes. The segment gets the device.
			w.must(w.api.Delete(context.Background(), get(w, "other/stranger", &resourceapi.ResourceClaim{})))
			w.settle()
			w.wantServing("a/f-1")
		})
	}
}

// TestEditedByHand edits a GPUPlan. The pods follow.
func TestEditedByHand(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*v1alpha1.GPUPlan)
		want []string // lines of the summary
	}{
		"another device": {
			func(p *v1alpha1.GPUPlan) { p.Spec.Segments[0].Device = "gpu-0-mig-2-4" },
			[]string{"claim a/f-1: gpu-0-mig-2-4", "pod a/f-1: serves f"},
		},
		"no segment": {
			func(p *v1alpha1.GPUPlan) { p.Spec.Segments = nil },
			nil,
		},
		"a device that does not exist": {
			func(p *v1alpha1.GPUPlan) { p.Spec.Segments[0].Device = "gpu-7" },
			[]string{"claim a/f-1: none", "plan n1-0: f-1 draining false ready false peers 0 driver gpu.nvidia.com publishes no device gpu-7 in pool n1"},
		},
		"two segments on one device": {
			func(p *v1alpha1.GPUPlan) {
				p.Spec.Segments = append(p.Spec.Segments, testSegment("f-9", "gpu-0-mig-1-0"))
			},
			[]string{
				"claim a/f-1: gpu-0-mig-2-0", "claim a/f-9: none",
				"plan n1-0: f-1 draining false ready true peers 0 ",
				"plan n1-0: f-9 draining false ready false peers 1 device gpu-0-mig-1-0 is taken by claim a/f-1",
				"pod a/f-1: serves f",
			},
		},
		"draining": {
			func(p *v1alpha1.GPUPlan) { p.Spec.Segments[0].Draining = true },
			[]string{"plan n1-0: f-1 draining true ready true peers 0 ", "pod a/f-1: serves "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := onePod(t)
			plan := get(w, "n1-0", &v1alpha1.GPUPlan{})
			c.edit(plan)
			w.must(w.api.Update(context.Background(), plan))
			w.settle()
			summary := strings.Split(w.summary(), "\n")
			for _, line := range c.want {
				if !slices.Contains(summary, line) {
					t.Errorf("no line %q in\n%s", line, w.summary())
				}
			}
			if c.want == nil && strings.Contains(w.summary(), "f-1") {
				t.Errorf("there is still something of the segment:\n%s", w.summary())
			}
		})
	}
}

// TestDrain has agents that do not say that clients have left.
func TestDrain(t *testing.T) {
	for behaviour, limit := range map[string]time.Duration{
		"":        20 * time.Second,
		"silent":  20 * time.Second,
		"never":   stepLimit + 20*time.Second,
		"garbage": stepLimit + 20*time.Second,
	} {
		t.Run(behaviour, func(t *testing.T) {
			w := onePod(t)
			w.agents.behaviour["f-1"] = behaviour
			w.add(testChange(2, testStep(v1alpha1.Destroy, "n1-0", testSegment("f-1", "gpu-0-mig-2-0"))))
			start, left := w.now, time.Time{}
			for !w.change(2).Phase.Finished() && w.now.Sub(start) < 2*stepLimit {
				w.round()
				if left.IsZero() && strings.Contains(w.summary(), "pod a/f-1: serves \n") {
					left = w.now
				}
			}
			if took := w.now.Sub(start); w.change(2).Phase != v1alpha1.Done || took > limit {
				t.Errorf("after %s: %+v", took, w.change(2))
			}
			if left.IsZero() {
				t.Error("the pod was not taken out of the Service before it ended")
			}
		})
	}
}

// TestShared has segments of two namespaces on GPUs without MIG. Each namespace has a pod of its own.
func TestShared(t *testing.T) {
	w := testWorld(t)
	shared := func(name, namespace, device string) v1alpha1.Segment {
		s := testSegment(name, device)
		s.Namespace, s.SharePercent = namespace, new(v1alpha1.Rate(40))
		return s
	}
	whole := published("n1", 0)[1].(*resourceapi.ResourceSlice)
	whole.Name, whole.Spec.Pool.Name = "whole", "n3"
	whole.Spec.Devices = []resourceapi.Device{{Name: "gpu-0"}, {Name: "gpu-1"}}
	w.add(whole)
	w.agents.behaviour["g-1"] = "never" // it does not serve yet
	for i, c := range []struct{ plan, name, namespace, device string }{{"n3-0", "f-1", "a", "gpu-0"}, {"n3-0", "g-1", "a", "gpu-0"}, {"n3-1", "f-2", "b", "gpu-1"}} {
		step := testStep(v1alpha1.Create, c.plan, shared(c.name, c.namespace, c.device))
		step.Place.Table = "v100"
		w.add(testChange(int64(i+1), step))
	}
	for range 20 {
		w.round()
	}
	pod := "n3-0-a-" + workloadName(get(w, "n3-0", &v1alpha1.GPUPlan{}), shared("f-1", "a", ""))[len("n3-0-a-"):]
	if got := w.summary(); !strings.Contains(got, fmt.Sprintf("pod a/%s: serves f\n", pod)) {
		t.Errorf("function f does not serve, or g does; the world:\n%s", got)
	}
	delete(w.agents.behaviour, "g-1")
	w.settle()
	got := w.summary()
	if !strings.Contains(got, fmt.Sprintf("pod a/%s: serves f,g\n", pod)) || strings.Count(got, "pod ") != 2 || strings.Count(got, "claim ") != 2 {
		t.Errorf("the world:\n%s", got)
	}

	// A second namespace on a GPU gets no part of it: Kubernetes gives a device to one claim.
	w.add(testChange(4, testStep(v1alpha1.Create, "n3-0", shared("f-3", "b", "gpu-0"))))
	for range 10 {
		w.round()
	}
	if got := w.message("n3-0", "f-3"); got != "device gpu-0 is taken by claim a/"+pod {
		t.Errorf("message %q", got)
	}
}
