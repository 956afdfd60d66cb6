package kubetest

import (
	"context"
	_ "embed"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:embed kwok.yaml
var kwokStages []byte

// Kwok takes nodes with this annotation.
const (
	fakeAnnotation = "kwok.x-k8s.io/node"
	fakeValue      = "fake"
)

// fakePods is the range of addresses of pods on fake nodes.
const fakePods = "10.64.0.0/10"

// writers is how many fake nodes are made at once.
const writers = 16

// AddFakeNodes adds n nodes named fake-0000, fake-0001 and so on, each with these GPUs. They are Ready. With
// Options.Kwok, their pods become Running and Ready at once, and the nodes stay Ready.
func (c *Cluster) AddFakeNodes(ctx context.Context, n int, labels map[string]string, gpus ...GPU) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for range n {
		name := fmt.Sprintf("fake-%04d", c.fakes)
		c.fakes++
		group.Go(func() error { return c.addFakeNode(ctx, name, labels, gpus) })
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("add fake nodes: %w", err)
	}
	return nil
}

func (c *Cluster) addFakeNode(ctx context.Context, name string, labels map[string]string, gpus []GPU) error {
	all := map[string]string{corev1.LabelHostname: name}
	for key, value := range labels {
		all[key] = value
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("128"),
		corev1.ResourceMemory: resource.MustParse("1Ti"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}

	node, err := c.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: all, Annotations: map[string]string{fakeAnnotation: fakeValue}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	// Kwok writes the status, too. An update without a version does not conflict with it.
	node.Status = corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}},
	}
	node.ResourceVersion = ""
	if _, err := c.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return err
	}

	published, err := resourceSlices(name, gpus)
	if err != nil {
		return err
	}
	for i, s := range published {
		_, err := c.client.ResourceV1().ResourceSlices().Create(ctx, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: DriverName, NodeName: &name, Devices: s.Devices, SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(published))},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}
