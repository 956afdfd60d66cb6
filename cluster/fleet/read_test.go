package fleet

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// TestRead finds the same GPUs with and without what was read before, whatever happens to the slices.
func TestRead(t *testing.T) {
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	slice := func(node, version string, uuids ...string) *resourceapi.ResourceSlice {
		s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node, ResourceVersion: version}, Spec: resourceapi.ResourceSliceSpec{
			Driver: "gpu.nvidia.com", NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}}}
		for _, uuid := range uuids {
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: uuid, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": text("gpu"), "uuid": text(uuid), "productName": text("NVIDIA A100-SXM4-80GB")}})
		}
		return s
	}
	f := &v1alpha1.Fleet{ObjectMeta: metav1.ObjectMeta{Name: "f"}, Spec: v1alpha1.FleetSpec{Driver: "gpu.nvidia.com"}}
	o := Objects{Fleets: []*v1alpha1.Fleet{f}, Read: &Read{}}
	for _, name := range []string{"n1", "n2"} {
		o.Nodes = append(o.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
	}

	first := slice("n1", "1", "a", "b")
	for _, step := range []struct {
		name   string
		slices []*resourceapi.ResourceSlice
		gpus   int
	}{
		{"two nodes", []*resourceapi.ResourceSlice{first, slice("n2", "2", "c")}, 3},
		{"the same", []*resourceapi.ResourceSlice{first, slice("n2", "2", "c")}, 3},
		{"a GPU is gone", []*resourceapi.ResourceSlice{slice("n1", "3", "b"), slice("n2", "2", "c")}, 2},
		{"a node is gone", []*resourceapi.ResourceSlice{slice("n2", "2", "c")}, 1},
		{"it is back", []*resourceapi.ResourceSlice{first, slice("n2", "2", "c")}, 3},
	} {
		o.Slices = step.slices
		fresh := o
		fresh.Read = nil
		got, want := o.GPUs(f), fresh.GPUs(f)
		if len(want.GPUs) != step.gpus || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %d GPUs as without memory: %+v", step.name, got, step.gpus, want)
		}
		if len(o.Read.pools) != len(step.slices) {
			t.Errorf("%s: %d pools are remembered, want %d", step.name, len(o.Read.pools), len(step.slices))
		}
	}
}
