package guest

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// PodSelector selects the pods of functions on GPUs without MIG, as they are labelled. Others can have the labels, too.
const PodSelector = "app.kubernetes.io/managed-by=penstock-operator," + v1alpha1.GPUPlanLabel + ",!" + v1alpha1.SegmentLabel

// node is a pod of functions on this machine.
type node struct {
	gpu
	ends bool // it is being deleted
}

// nodes returns the pods that their GPUPlans name. A pod is checked once, because a GPUPlan stays with its GPU. It reports
// whether pods are left to check again: a pod is there before its GPUPlan names it.
func (d *Driver) nodes(ctx context.Context, pods []*corev1.Pod) (nodes []node, again bool, err error) {
	known := map[types.UID]gpu{}
	for _, p := range pods {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		g, ok := d.known[p.UID]
		if !ok {
			plan, err := d.Plan(ctx, p.Labels[v1alpha1.GPUPlanLabel])
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, false, fmt.Errorf("read GPUPlan of pod %s/%s: %w", p.Namespace, p.Name, err)
			}
			if err != nil || !d.names(plan, p) {
				again = true
				continue
			}
			g = gpu{UUID: plan.Spec.GPU, Table: plan.Spec.Table, Pod: p.UID}
		}
		known[p.UID] = g
		nodes = append(nodes, node{gpu: g, ends: p.DeletionTimestamp != nil})
	}
	d.known = known
	return nodes, again, nil
}

// names reports whether a GPUPlan of this node has the pod. Users cannot write GPUPlans.
func (d *Driver) names(plan *v1alpha1.GPUPlan, p *corev1.Pod) bool {
	if plan.Spec.Node != d.Node {
		return false
	}
	own := map[string]bool{}
	for _, s := range plan.Spec.Segments {
		own[s.Name] = s.Namespace == p.Namespace && s.SharePercent != nil
	}
	for _, s := range plan.Status.Segments {
		if own[s.Name] && s.Pod == p.Name {
			return true
		}
	}
	return false
}
