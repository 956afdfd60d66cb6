package kubetest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/penstock/penstock/internal/testing/wait"
)

// atMost fails the test if something took longer than docs/kubernetes.md says.
func atMost(t *testing.T, what string, took, goal time.Duration) {
	t.Helper()
	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("%s after %.2f s; load of the machine: %.4s", what, took.Seconds(), load)
	if took > goal {
		t.Errorf("%s after %s, want %s at most", what, took, goal)
	}
}

func TestNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("not with -short: make test-cluster runs it")
	}

	began := time.Now()
	c := Start(t, Options{Scheduler: true, Controllers: true})
	err := c.StartNodes(t.Context(), 2, NodeOptions{Labels: map[string]string{"pool": "a"}, GPUs: []GPU{{}, {Uncut: true}}})
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	atMost(t, "two nodes are ready", time.Since(began), 20*time.Second)
	node := c.Nodes()[0]
	client := clientOf(t, c.Admin())

	began = time.Now()
	runPod(t, c, "first", map[string]string{"pool": "a"})
	atMost(t, "a pod is ready", time.Since(began), 3*time.Second)

	t.Run("device", func(t *testing.T) {
		claimDevice(t, c, "mig", node.Name, `device.attributes["gpu.nvidia.com"].profile == "3g.40gb"`)
		wait.For(t, "the pod's variable", func() bool { return hasProcess(t, DeviceVariable+"=gpu-0-mig-3g40gb-") })
		claimDevice(t, c, "whole", node.Name, `device.attributes["gpu.nvidia.com"].type == "gpu"`)
		wait.For(t, "the pod's variable", func() bool { return hasProcess(t, DeviceVariable+"=gpu-1") })
	})

	t.Run("wrong device", func(t *testing.T) {
		node.Driver.SetFaults(Faults{Wrong: true})
		defer node.Driver.SetFaults(Faults{})
		claimDevice(t, c, "wrong", node.Name, `device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`)
		wait.For(t, "the wrong variable", func() bool { return hasProcess(t, DeviceVariable+"=not-gpu-0-mig-1g10gb-") })
	})

	t.Run("driver refuses", func(t *testing.T) {
		node.Driver.SetFaults(Faults{Refuse: errors.New("the GPU is busy")})
		createClaim(t, c, "refused", node.Name, `device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`)
		wait.For(t, "an event", func() bool {
			events, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=refused"})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events.Items {
				if strings.Contains(e.Message, "the GPU is busy") {
					return true
				}
			}
			return false
		})
		node.Driver.SetFaults(Faults{})
		awaitPod(t, c, "refused")
	})

	t.Run("driver gone", func(t *testing.T) {
		node.Driver.Stop()
		createClaim(t, c, "orphan", node.Name, `device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`)
		if err := node.Driver.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		awaitPod(t, c, "orphan")
	})

	t.Run("GPU gone", func(t *testing.T) {
		if err := node.Driver.SetGPUs(t.Context(), GPU{Gone: true}, GPU{Uncut: true}); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "one device", func() bool {
			slices, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{
				FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node.Name,
			})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, s := range slices.Items {
				for _, d := range s.Spec.Devices {
					names = append(names, d.Name)
				}
			}
			return len(names) == 1 && names[0] == "gpu-1"
		})
	})

	t.Run("restarts", func(t *testing.T) {
		before := getPod(t, c, "first")
		for _, p := range []*Process{node.Containerd, node.Kubelet, node.Proxy} {
			p.Kill()
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			if err := node.AwaitContainerd(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		runPod(t, c, "second", map[string]string{corev1.LabelHostname: node.Name})
		after := getPod(t, c, "first")
		if before.UID != after.UID || after.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("the first pod was restarted: %v", after.Status)
		}
	})

	t.Run("cut off", func(t *testing.T) {
		if err := node.Cut(); err != nil {
			t.Fatal(err)
		}
		ready := func() bool { return node.ready(t.Context()) == nil }
		wait.For(t, "the node to be NotReady", func() bool { return !ready() })
		if err := node.Mend(); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "the node to be Ready again", ready)
	})
}

// claimDevice runs a pod with a claim.
func claimDevice(t *testing.T, c *Cluster, name, node, selector string) {
	t.Helper()
	createClaim(t, c, name, node, selector)
	awaitPod(t, c, name)
}

func createClaim(t *testing.T, c *Cluster, name, node, selector string) {
	t.Helper()
	manifest := fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: test}
spec: {selectors: [{cel: {expression: "device.driver == 'gpu.nvidia.com'"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: %[1]s}
spec: {devices: {requests: [{name: segment, exactly: {deviceClassName: test, selectors: [{cel: {expression: '%[2]s'}}]}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: %[3]s}
  resourceClaims: [{name: gpu, resourceClaimName: %[1]s}]
  containers:
  - {name: pause, image: "%[4]s", imagePullPolicy: Never, resources: {claims: [{name: gpu}]}}
`, name, selector, node, pauseName)
	if _, err := c.Kubectl(t.Context(), []byte(manifest), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

func getPod(t *testing.T, c *Cluster, name string) *corev1.Pod {
	t.Helper()
	pod, err := clientOf(t, c.Admin()).CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// hasProcess reports whether a process has a variable that begins so.
func hasProcess(t *testing.T, variable string) bool {
	t.Helper()
	for _, pid := range processes(t, "/pause") {
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && strings.Contains("\x00"+string(environment), "\x00"+variable) {
			return true
		}
	}
	return false
}

// A pool of published devices must be accepted by the API server, and its names be those that the planner reads.
func TestResourceSlices(t *testing.T) {
	slices, err := resourceSlices("n", []GPU{{}, {Gone: true}, {Product: "NVIDIA H100 80GB HBM3"}, {Uncut: true}})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range slices[1].Devices {
		names[d.Name] = true
	}
	for _, name := range []string{"gpu-0-mig-7g80gb-0", "gpu-0-mig-1g10gb-6", "gpu-2-mig-3g40gb-4", "gpu-3"} {
		if !names[name] {
			t.Errorf("no device %s among %v", name, names)
		}
	}
	if len(slices[0].SharedCounters) != 2 || len(slices[1].Devices) != 14+14+1 {
		t.Errorf("%d counter sets, %d devices", len(slices[0].SharedCounters), len(slices[1].Devices))
	}

	if _, err := resourceSlices("n", make([]GPU, 9)); err == nil {
		t.Error("nine GPUs have more counters than an object may have")
	}
	if _, err := resourceSlices("n", []GPU{{Product: "NVIDIA Nonesuch"}}); err == nil {
		t.Error("an unknown product has no places")
	}
}
