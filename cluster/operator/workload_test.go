package operator

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/penstock/penstock/cluster/agent"
	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// A node finds the models of a volume, and starts those that the agent orders: `--models` would start all.
func TestModelVolume(t *testing.T) {
	fleet := testFleet()
	fleet.Spec.Node.Models = &v1alpha1.ModelVolume{ClaimName: "models"}
	p := &v1alpha1.GPUPlan{}
	p.Spec.Segments = []v1alpha1.Segment{{Name: "a-1", Namespace: "shop", Function: "a"}}
	pod := desired(fleet, p, "agent")[0].Pod
	if config := pod.Annotations[configAnnotation]; !strings.HasSuffix(config, "\nmodels: [/models]\n") {
		t.Errorf("the node's configuration is %q", config)
	}
	node := pod.Spec.Containers[0]
	mounted := func(m corev1.VolumeMount) bool { return m.MountPath == modelsFolder && m.ReadOnly }
	if slices.Contains(node.Args, "--models") || !slices.ContainsFunc(node.VolumeMounts, mounted) {
		t.Errorf("the node has arguments %q and mounts %+v", node.Args, node.VolumeMounts)
	}
}

// The kubelet asks the agent before it stops the node.
func TestPreStop(t *testing.T) {
	p := &v1alpha1.GPUPlan{}
	p.Spec.Segments = []v1alpha1.Segment{{Name: "a-1", Namespace: "shop", Function: "a"}}
	pod := desired(testFleet(), p, "agent")[0].Pod.Spec
	if hook := pod.Containers[0].Lifecycle.PreStop.HTTPGet; hook.Path != agent.EndPath || hook.Port.IntValue() != int(pod.Containers[1].Ports[0].ContainerPort) {
		t.Errorf("before the node stops, the kubelet gets %+v", hook)
	}
	if pod.Containers[1].Lifecycle != nil {
		t.Error("the agent does not get SIGTERM at once, so it does not know that the pod ends")
	}
}

// Both containers see a folder that belongs to the pod's user. A node refuses the volume itself, which all may write to.
func TestPrivateFolder(t *testing.T) {
	p := &v1alpha1.GPUPlan{}
	p.Spec.Segments = []v1alpha1.Segment{{Name: "a-1", Namespace: "shop", Function: "a"}}
	pod := desired(testFleet(), p, "agent")[0].Pod.Spec
	of := func(c corev1.Container) corev1.VolumeMount {
		at := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v1alpha1.RuntimeVolume })
		if at < 0 {
			t.Fatalf("container %s does not mount the volume", c.Name)
		}
		return c.VolumeMounts[at]
	}

	first := pod.InitContainers[0]
	made := first.Args[slices.Index(first.Args, "--make-folder")+1]
	for _, c := range pod.Containers {
		if m := of(c); made != of(first).MountPath+"/"+m.SubPath || m.SubPath == "" || m.MountPath != runtimeFolder {
			t.Errorf("container %s mounts %+v; the folder is %s", c.Name, m, made)
		}
	}
}
