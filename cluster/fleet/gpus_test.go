package fleet

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

const testDriver = "gpu.nvidia.com"

// cluster has fleet lab, of node n1 with one GPU that is not cut.
func cluster() *Objects {
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	return &Objects{
		Fleets: []*v1alpha1.Fleet{{ObjectMeta: metav1.ObjectMeta{Name: "lab", CreationTimestamp: metav1.Time{Time: start}},
			Spec: v1alpha1.FleetSpec{Driver: testDriver, NodeSelector: map[string]string{"pool": "lab"}}}},
		Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"pool": "lab"}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}},
		Slices: []*resourceapi.ResourceSlice{{ObjectMeta: metav1.ObjectMeta{Name: "s1"}, Spec: resourceapi.ResourceSliceSpec{
			Driver: testDriver, NodeName: new("n1"), Pool: resourceapi.ResourcePool{Name: "n1", Generation: 1, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": text("gpu"), "uuid": text("GPU-1"), testDriver + "/productName": text("NVIDIA A100-SXM4-80GB")}}},
		}}},
		Plans: []*v1alpha1.GPUPlan{{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"},
			Spec: v1alpha1.GPUPlanSpec{Fleet: "lab", Place: v1alpha1.Place{Node: "n1", Pool: "n1", GPU: "GPU-1", Table: "a100-80-mps"}}}},
	}
}

// TestHealth changes one thing in a cluster with a good GPU.
func TestHealth(t *testing.T) {
	rename := func(to string) func(*Objects) {
		return func(o *Objects) {
			o.Slices[0].Spec.Devices[0].Attributes["uuid"] = resourceapi.DeviceAttribute{StringValue: &to}
		}
	}
	claim := func(fleet string) func(*Objects) {
		return func(o *Objects) {
			c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "c", Labels: map[string]string{v1alpha1.FleetLabel: fleet}}}
			c.Status.Allocation = &resourceapi.AllocationResult{}
			c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{Driver: testDriver, Pool: "n1", Device: "gpu-0"}}
			o.Claims = append(o.Claims, c)
		}
	}
	taint := func(key, value string) func(*Objects) {
		return func(o *Objects) {
			o.Taints = append(o.Taints, &resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: new("n1")},
				Taint:          resourceapi.DeviceTaint{Key: key, Value: value, Effect: resourceapi.DeviceTaintEffectNoSchedule},
			}})
		}
	}
	for _, test := range []struct {
		name   string
		change func(*Objects)
		want   Health
		why    string
	}{
		{"as it should be", func(*Objects) {}, Good, ""},
		{"node not ready", func(o *Objects) { o.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown }, Lost, "node n1 is not ready"},
		{"node without conditions", func(o *Objects) { o.Nodes[0].Status.Conditions = nil }, Lost, "node n1 is not ready"},
		{"cordoned", func(o *Objects) { o.Nodes[0].Spec.Unschedulable = true }, Leaving, "cordoned"},
		{"node being deleted", func(o *Objects) { o.Nodes[0].DeletionTimestamp = &metav1.Time{Time: start} }, Leaving, "is being deleted"},
		{"node unreachable", func(o *Objects) {
			o.Nodes[0].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}}
		}, Lost, corev1.TaintNodeUnreachable},
		{"node gone", func(o *Objects) { o.Nodes = nil }, Lost, "node n1 does not exist"},
		{"node of no fleet", func(o *Objects) { o.Nodes[0].Labels = nil }, Leaving, "node n1 is not in the fleet"},
		{"driver silent", func(o *Objects) { o.Slices = nil }, Unknown, "has not published the pool n1 completely"},
		{"half a pool", func(o *Objects) { o.Slices[0].Spec.Pool.ResourceSliceCount = 2 }, Unknown, "has not published"},
		{"more slices than the pool has", func(o *Objects) {
			again := o.Slices[0].DeepCopy()
			again.Name = "s2"
			o.Slices = append(o.Slices, again)
		}, Unknown, "has not published"},
		{"half of a newer generation", func(o *Objects) {
			newer := o.Slices[0].DeepCopy()
			newer.Name, newer.Spec.Pool.Generation, newer.Spec.Pool.ResourceSliceCount, newer.Spec.Devices = "s2", 2, 2, nil
			o.Slices = append(o.Slices, newer)
		}, Good, ""},
		{"a newer generation without it", func(o *Objects) {
			newer := o.Slices[0].DeepCopy()
			newer.Name, newer.Spec.Pool.Generation, newer.Spec.Devices = "s2", 2, nil
			o.Slices = append(o.Slices, newer)
		}, Lost, "does not publish it any more"},
		{"another GPU in its place", rename("GPU-2"), Lost, "does not publish it any more"},
		{"a device without a UUID", rename(""), Lost, "does not publish it any more"},
		{"another driver's slice", func(o *Objects) { o.Slices[0].Spec.Driver = "other" }, Unknown, "has not published"},
		{"a claim of others", claim(""), Leaving, "claim other/c has device gpu-0"},
		{"a claim of the fleet", claim("lab"), Good, ""},
		{"a claim of another pool", func(o *Objects) { claim("")(o); o.Claims[0].Status.Allocation.Devices.Results[0].Pool = "n2" }, Good, ""},
		{"tainted", taint("broken", "yes"), Leaving, "has the taint broken"},
		{"the fleet's own taint", taint(v1alpha1.PoolTaint, "lab"), Good, ""},
		{"another fleet's taint", taint(v1alpha1.PoolTaint, "other"), Leaving, "has the taint " + v1alpha1.PoolTaint},
		{"its pods are silent", func(o *Objects) { o.Silent = map[string]bool{"gpu-1": true} }, Lost, "its pods do not answer"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := cluster()
			test.change(o)
			var found *GPU
			for _, g := range o.GPUs(o.Fleets[0]).GPUs {
				if g.UUID == "GPU-1" {
					found = &g
				}
			}
			if found == nil || found.Health != test.want || !strings.Contains(found.Why, test.why) || (test.why == "") != (found.Why == "") {
				t.Errorf("got %+v, want %v, %q", found, test.want, test.why)
			}
		})
	}
}

// TestUnusable has GPUs that nothing can be planned for. The fleet says why.
func TestUnusable(t *testing.T) {
	o := cluster()
	o.Plans = nil
	product := "Abacus 3000"
	o.Slices[0].Spec.Devices[0].Attributes[testDriver+"/productName"] = resourceapi.DeviceAttribute{StringValue: &product}
	if f := o.GPUs(o.Fleets[0]); len(f.GPUs) > 0 || len(f.Unusable) != 1 || !strings.Contains(f.Unusable[0], product) {
		t.Errorf("got %+v", f)
	}
}

// TestOverlap has two fleets that select a node. The older one has it, whatever the order in which they are listed.
func TestOverlap(t *testing.T) {
	for _, first := range []bool{true, false} {
		o := cluster()
		older, younger := o.Fleets[0], o.Fleets[0].DeepCopy()
		younger.Name, younger.CreationTimestamp.Time = "a-younger", start.AddDate(0, 0, 1)
		if o.Fleets = []*v1alpha1.Fleet{older, younger}; first {
			o.Fleets = []*v1alpha1.Fleet{younger, older}
		}
		if f := o.GPUs(younger); len(f.GPUs) > 0 || f.Nodes > 0 || len(f.Overlap) != 1 || f.Overlap[0] != "n1 (fleet lab)" {
			t.Errorf("the younger fleet has %+v", f)
		}
		if f := o.GPUs(older); len(f.GPUs) != 1 || f.Nodes != 1 || len(f.Overlap) > 0 {
			t.Errorf("the older fleet has %+v", f)
		}
	}
}

// TestGPUName has UUIDs that are no names of objects. Their GPUPlans have other names, which differ.
func TestGPUName(t *testing.T) {
	names := map[string]string{}
	for _, uuid := range []string{"GPU-1", "GPU 1", "", strings.Repeat("g", 64), strings.Repeat("g", 65), "../gpu-1", "gpu_1"} {
		name := (&GPU{Pool: "n1", UUID: uuid}).Name()
		if other, twice := names[name]; twice || len(name) > 63 || strings.ContainsAny(name, " _/.") || name == "" {
			t.Errorf("%q is named %q, as %q is", uuid, name, other)
		}
		names[name] = uuid
	}
}
