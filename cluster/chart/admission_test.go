package chart

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cluster/kubetest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// startWith starts an API server that has the chart's objects of some kinds, and returns clients of an administrator and of the operator.
func startWith(t *testing.T, values string, kinds ...string) (admin, operator *kubernetes.Clientset) {
	t.Helper()
	objects, err := render(t, values)
	ok(t, err)
	c := kubetest.Start(t, kubetest.Options{})
	for key, o := range objects {
		for _, kind := range kinds {
			if strings.HasPrefix(key, kind+"/") {
				text, err := yaml.Marshal(o)
				ok(t, err)
				_, err = c.Kubectl(t.Context(), text, "create", "-f", "-")
				ok(t, err)
			}
		}
	}
	admin, err = kubernetes.NewForConfig(c.Admin())
	ok(t, err)
	as := rest.CopyConfig(c.Admin())
	as.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:penstock-system:penstock-operator", Groups: []string{"system:masters"},
	}
	operator, err = kubernetes.NewForConfig(as)
	ok(t, err)
	return admin, operator
}

// claimOf returns a claim of one device, with what a test changes.
func claimOf(change func(*resourceapi.ExactDeviceRequest)) resourceapi.ResourceClaimSpec {
	r := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	change(r)
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: r}}}}
}

func tolerates(list ...resourceapi.DeviceToleration) resourceapi.ResourceClaimSpec {
	return claimOf(func(r *resourceapi.ExactDeviceRequest) { r.Tolerations = list })
}

// alternatives makes a claim's request the second of two forms.
func alternatives(spec resourceapi.ResourceClaimSpec) resourceapi.ResourceClaimSpec {
	r := spec.Devices.Requests[0].Exactly
	first := resourceapi.DeviceSubRequest{Name: "first", DeviceClassName: r.DeviceClassName, AllocationMode: r.AllocationMode, Count: r.Count}
	second := first
	second.Name, second.Tolerations = "second", r.Tolerations
	spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{first, second}}}
	return spec
}

// create creates a claim, or a template of one, that is not stored.
func create(t *testing.T, c *kubernetes.Clientset, namespace string, template bool, spec resourceapi.ResourceClaimSpec) (err error) {
	t.Helper()
	meta, options := metav1.ObjectMeta{GenerateName: "claim-"}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	if template {
		_, err = c.ResourceV1().ResourceClaimTemplates(namespace).Create(t.Context(), &resourceapi.ResourceClaimTemplate{
			ObjectMeta: meta, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}}, options)
	} else {
		_, err = c.ResourceV1().ResourceClaims(namespace).Create(t.Context(), &resourceapi.ResourceClaim{ObjectMeta: meta, Spec: spec}, options)
	}
	return err
}

func TestClaimPolicy(t *testing.T) {
	admin, operator := startWith(t, "", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
	exists, equal := resourceapi.DeviceTolerationOpExists, resourceapi.DeviceTolerationOpEqual
	pool := tolerates(resourceapi.DeviceToleration{Key: v1alpha1.PoolTaint, Operator: exists})
	wait.For(t, "the policy to hold", func() bool { return apierrors.IsForbidden(create(t, admin, "default", false, pool)) })

	for _, test := range []struct {
		name    string
		spec    resourceapi.ResourceClaimSpec
		refused bool
	}{
		{"no requests", resourceapi.ResourceClaimSpec{}, false},
		{"no toleration", tolerates(), false},
		{"other taint", tolerates(resourceapi.DeviceToleration{Key: "example.com/broken", Operator: exists}), false},
		{"the pool's taint", pool, true},
		{"its value", tolerates(resourceapi.DeviceToleration{Key: v1alpha1.PoolTaint, Operator: equal, Value: "pool"}), true},
		{"its effect", tolerates(resourceapi.DeviceToleration{Key: v1alpha1.PoolTaint, Operator: exists, Effect: resourceapi.DeviceTaintEffectNoSchedule}), true},
		{"all taints", tolerates(resourceapi.DeviceToleration{Operator: exists}), true},
		{"the second toleration", tolerates(resourceapi.DeviceToleration{Key: "example.com/broken", Operator: exists},
			resourceapi.DeviceToleration{Key: v1alpha1.PoolTaint, Operator: exists}), true},
	} {
		for _, form := range []struct {
			name               string
			template, optional bool
		}{{"claim", false, false}, {"template", true, false}, {"alternatives", false, true}, {"alternatives in a template", true, true}} {
			t.Run(test.name+"/"+form.name, func(t *testing.T) {
				spec := test.spec
				if form.optional && len(spec.Devices.Requests) > 0 {
					spec = alternatives(spec)
				}
				err := create(t, admin, "default", form.template, spec)
				switch {
				case !test.refused && err != nil:
					t.Error(err)
				case test.refused && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only Penstock's operator may use the GPUs of fleets")):
					t.Errorf("got error %v, want the policy's", err)
				}
				if err := create(t, operator, "default", form.template, spec); err != nil {
					t.Errorf("the operator: %v", err)
				}
			})
		}
	}
}
