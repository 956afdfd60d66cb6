package operator

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// TestPlansOfPool wakes the GPUPlans of a pool whose devices or claims change, and no others.
func TestPlansOfPool(t *testing.T) {
	w := testWorld(t)
	w.add(testChange(1, testStep(v1alpha1.Create, "n1-0", testSegment("f-1", "gpu-0-mig-2-0")),
		testStep(v1alpha1.Create, "n1-1", testSegment("f-2", "gpu-1-mig-2-0")), testStep(v1alpha1.Create, "n2-0", testSegment("f-3", "gpu-0-mig-2-0"))))
	w.settle()

	claim := func(pools ...string) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
		for _, pool := range pools {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
				resourceapi.DeviceRequestAllocationResult{Driver: defaultDriver, Pool: pool, Device: "gpu-0"})
		}
		return c
	}
	for _, test := range []struct {
		name   string
		object client.Object
		want   []string
	}{
		{"a slice", published("n1", 2)[1], []string{"n1-0", "n1-1"}},
		{"a slice of another pool", published("n3", 2)[1], nil},
		{"a claim of two pools", claim("n1", "n2"), []string{"n1-0", "n1-1", "n2-0"}},
		{"a claim without devices", &resourceapi.ResourceClaim{}, nil},
	} {
		var got []string
		for _, r := range plansOfPool(w.api)(t.Context(), test.object) {
			got = append(got, r.Name)
		}
		if slices.Sort(got); !slices.Equal(got, test.want) {
			t.Errorf("%s wakes %v, want %v", test.name, got, test.want)
		}
	}
}
