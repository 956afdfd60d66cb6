package chart

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cluster/guest"
	"github.com/penstock/penstock/cluster/kubetest"
	"github.com/penstock/penstock/cluster/operator"
	"github.com/penstock/penstock/internal/testing/wait"
)

// functionsOnGPU is a GPUPlan, and the pod of functions that it names.
const functionsOnGPU = `
apiVersion: penstock.io/v1alpha1
kind: GPUPlan
metadata: {name: plan}
spec:
  {fleet: pool, node: fake-0000, pool: fake-0000, gpu: GPU-1, table: a100-80, number: 0,
   segments: [{name: faces-1, namespace: default, function: faces, model: face, slo: 25ms, port: 5001, device: gpu-0, gpcs: 7,
               batch: 1, processes: 1, sharePercent: "50", throughput: "200"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: functions, namespace: default, labels: {app.kubernetes.io/managed-by: penstock-operator, penstock.io/gpuplan: plan}}
spec: {nodeName: fake-0000, containers: [{name: c, image: i}]}
`

// training is a pod as the Job in docs/kubernetes.md makes it.
const training = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: guest, namespace: lab}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: guest.penstock.io}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: training, namespace: lab}
spec:
  resourceClaims: [{name: gpu, resourceClaimTemplateName: guest}]
  containers: [{name: train, image: pytorch, resources: {claims: [{name: gpu}]}}]
`

// TestGuests runs the driver with its own rights, and the real scheduler. A guest gets a device next to functions, and is deleted when
// the functions end.
func TestGuests(t *testing.T) {
	objects, err := render(t, full)
	ok(t, err)
	c := kubetest.Start(t, kubetest.Options{Scheduler: true, Controllers: true, Kwok: true, Manifests: []string{"crds"}})
	ctx := t.Context()
	kubectl := func(text string, arguments ...string) {
		t.Helper()
		_, err := c.Kubectl(ctx, []byte(text), arguments...)
		ok(t, err)
	}
	kubectl("", "create", "namespace", "penstock-system")
	for _, key := range []string{
		"DeviceClass/guest.penstock.io", "ClusterRole/penstock-guests", "ClusterRoleBinding/penstock-guests",
		"ValidatingAdmissionPolicy/penstock-guest-claims", "ValidatingAdmissionPolicyBinding/penstock-guest-claims",
		"ValidatingAdmissionPolicy/penstock-guest-pods", "ValidatingAdmissionPolicyBinding/penstock-guest-pods",
		"ValidatingAdmissionPolicy/penstock-guest-slices", "ValidatingAdmissionPolicyBinding/penstock-guest-slices",
	} {
		text, err := yaml.Marshal(objects[key])
		ok(t, err)
		kubectl(string(text), "create", "-f", "-")
	}
	ok(t, c.AddFakeNodes(ctx, 1, nil))
	kubectl("", "create", "namespace", "lab")
	admin, err := kubernetes.NewForConfig(c.Admin())
	ok(t, err)
	ofGuest := func(r *resourceapi.ExactDeviceRequest) { r.DeviceClassName = guest.DeviceClass }
	wait.For(t, "the policy to hold", func() bool {
		return apierrors.IsForbidden(create(t, admin, "lab", false, claimOf(ofGuest)))
	})
	if err := create(t, admin, "lab", true, claimOf(ofGuest)); !apierrors.IsForbidden(err) {
		t.Errorf("template in a namespace that may have no guests: %v", err)
	}
	kubectl("", "label", "namespace", "lab", "penstock.io/guests=true")
	wait.For(t, "the label to hold", func() bool { return create(t, admin, "lab", true, claimOf(ofGuest)) == nil })

	kubectl(functionsOnGPU, "create", "-f", "-")
	scheme := operator.Scheme()
	all, err := client.New(c.Admin(), client.Options{Scheme: scheme})
	ok(t, err)
	plan := &v1alpha1.GPUPlan{}
	ok(t, all.Get(ctx, client.ObjectKey{Name: "plan"}, plan))
	plan.Status.Segments = []v1alpha1.SegmentStatus{{Name: "faces-1", Pod: "functions"}}
	ok(t, all.Status().Update(ctx, plan))
	functions, err := admin.CoreV1().Pods("default").Get(ctx, "functions", metav1.GetOptions{})
	ok(t, err)

	dir := t.TempDir()
	volume := filepath.Join(dir, "pods", string(functions.UID), "volumes", "kubernetes.io~empty-dir", v1alpha1.RuntimeVolume, v1alpha1.PrivateFolder, v1alpha1.NodeFolder)
	ok(t, os.MkdirAll(volume, 0o755))
	ok(t, os.WriteFile(filepath.Join(volume, "gpu-busy"), make([]byte, 4096), 0o644))
	ok(t, os.MkdirAll(filepath.Join(dir, "plugins_registry"), 0o755))
	library := filepath.Join(dir, "library")
	ok(t, os.WriteFile(library, []byte("library"), 0o644))
	driver, stop := runDriver(t, c, guest.Options{Node: "fake-0000", Kubelet: dir, CDI: filepath.Join(dir, "cdi"), GPUKind: "nvidia.com/gpu", Library: library, PerGPU: 2})
	defer stop()

	kubectl(training, "create", "-f", "-")
	var claim *resourceapi.ResourceClaim
	wait.For(t, "the scheduler to allocate the guest's claim", func() bool {
		claims, err := admin.ResourceV1().ResourceClaims("lab").List(ctx, metav1.ListOptions{})
		ok(t, err)
		if len(claims.Items) != 1 || claims.Items[0].Status.Allocation == nil {
			return false
		}
		claim = &claims.Items[0]
		return true
	})
	prepared, err := driver.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim})
	ok(t, err)
	if r := prepared[claim.UID]; r.Err != nil || !slices.Contains(r.Devices[0].CDIDeviceIDs, "nvidia.com/gpu=GPU-1") {
		t.Fatalf("prepared %+v", r)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "slow-"}, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(3600)),
		ResourceClaims:                []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("guest")}},
		Containers:                    []corev1.Container{{Name: "c", Image: "i"}},
	}}
	if _, err := admin.CoreV1().Pods("lab").Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil {
		t.Error("a guest may take an hour to end")
	}

	began := time.Now()
	kubectl("", "delete", "pod", "functions", "--now", "--wait=false")
	wait.For(t, "the guest to be deleted", func() bool {
		p, err := admin.CoreV1().Pods("lab").Get(ctx, "training", metav1.GetOptions{})
		return apierrors.IsNotFound(err) || err == nil && p.DeletionTimestamp != nil
	})
	t.Logf("the guest was deleted %.1f s after its functions", time.Since(began).Seconds())
}

// runDriver runs a driver with the rights of the chart's service account.
func runDriver(t *testing.T, c *kubetest.Cluster, o guest.Options) (*guest.Driver, func()) {
	t.Helper()
	as := rest.CopyConfig(c.Admin())
	as.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:penstock-system:penstock-guests", Groups: []string{"system:serviceaccounts", "system:authenticated"},
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {o.Node}},
	}
	var err error
	o.Client, err = kubernetes.NewForConfig(as)
	ok(t, err)
	plans, err := client.New(as, client.Options{Scheme: operator.Scheme()})
	ok(t, err)
	o.Log, o.Now = zerolog.New(zerolog.NewTestWriter(t)), time.Now
	o.Plan = func(ctx context.Context, name string) (*v1alpha1.GPUPlan, error) {
		plan := &v1alpha1.GPUPlan{}
		return plan, plans.Get(ctx, client.ObjectKey{Name: name}, plan)
	}
	driver := guest.New(o)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- driver.Run(ctx) }()
	return driver, func() {
		cancel()
		ok(t, <-done)
	}
}
