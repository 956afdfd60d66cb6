package operator

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// ready reports whether Kubernetes sends requests to a pod.
func ready(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && hasCondition(p, corev1.PodReady)
}

func hasCondition(p *corev1.Pod, name corev1.PodConditionType) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == name && c.Status == corev1.ConditionTrue
	})
}

// ended reports whether a pod will never run again.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// waitsFor says why a pod is not ready; empty if it is.
func waitsFor(p *corev1.Pod) string {
	if ready(p) {
		return ""
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "the pod is not scheduled: " + c.Message
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return fmt.Sprintf("container %s waits: %s", c.Name, cmp.Or(w.Message, w.Reason))
		}
	}
	return "the pod is not ready"
}

// was returns the last known status of a segment. It is the zero value if there is none.
func (g *gpu) was(segment string) v1alpha1.SegmentStatus {
	if s := segmentStatus(&g.plan.Status, segment); s != nil {
		return *s
	}
	return v1alpha1.SegmentStatus{}
}

func segmentStatus(status *v1alpha1.GPUPlanStatus, name string) *v1alpha1.SegmentStatus {
	for i := range status.Segments {
		if status.Segments[i].Name == name {
			return &status.Segments[i]
		}
	}
	return nil
}

// questions returns what only agents know: whether a segment has drained, and whether a segment of a pod with several serves.
// Once an answer was yes, there is no question until the pod is another one.
func (g *gpu) questions() []question {
	var all []question
	for _, w := range g.workloads {
		pod := g.pods[w.key()]
		if pod == nil || pod.DeletionTimestamp != nil || ended(pod) || pod.Status.PodIP == "" {
			continue
		}
		for _, s := range w.Segments {
			was := g.was(s.Name)
			switch {
			case s.Draining && !was.Drained:
				all = append(all, question{drained, pod.Status.PodIP, s.Name})
			case !s.Draining && s.SharePercent != nil && ready(pod) && !(was.Ready && was.Address == pod.Status.PodIP):
				all = append(all, question{serves, pod.Status.PodIP, s.Name})
			}
		}
	}
	return all
}

// status returns the status of a GPU's segments, without messages and peers. yes has the questions that agents affirmed.
func (g *gpu) status(yes map[question]bool) v1alpha1.GPUPlanStatus {
	status := v1alpha1.GPUPlanStatus{ObservedGeneration: g.plan.Generation}
	for _, w := range g.workloads {
		pod := g.pods[w.key()]
		for _, s := range w.Segments {
			was, now := g.was(s.Name), v1alpha1.SegmentStatus{Name: s.Name}
			if pod != nil {
				now.Pod, now.Address = pod.Name, pod.Status.PodIP
				now.Ready = ready(pod) && (s.SharePercent == nil || was.Ready && was.Address == now.Address ||
					yes[question{serves, now.Address, s.Name}])
			}
			gone := pod == nil || pod.DeletionTimestamp != nil || ended(pod) || now.Address == ""
			now.Drained = s.Draining && (was.Drained || gone || yes[question{drained, now.Address, s.Name}])
			status.Segments = append(status.Segments, now)
		}
	}
	return status
}

// A member is a segment of a function, anywhere in the cluster.
type member struct {
	plan    string
	segment v1alpha1.Segment
	status  v1alpha1.SegmentStatus
}

// takesClients reports whether other segments may send clients to this one.
func (m member) takesClients() bool {
	return m.status.Ready && !m.segment.Draining
}

// membersOf returns the segments of a plan that have a status.
func membersOf(p *v1alpha1.GPUPlan) (all []member) {
	for _, s := range p.Spec.Segments {
		if now := segmentStatus(&p.Status, s.Name); now != nil {
			all = append(all, member{p.Name, s, *now})
		}
	}
	return all
}

// members returns the segments of a function, in the order of their names.
func members(ctx context.Context, r client.Reader, function string) (all []member, err error) {
	var plans v1alpha1.GPUPlanList
	if err := r.List(ctx, &plans, client.MatchingFields{byFunction: function}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	for i := range plans.Items {
		for _, m := range membersOf(&plans.Items[i]) {
			if functionKey(m.segment) == function {
				all = append(all, m)
			}
		}
	}
	slices.SortFunc(all, func(a, b member) int { return cmp.Compare(a.segment.Name, b.segment.Name) })
	return all, nil
}

// neighbours returns the members after a segment, in a ring. A segment has only the next ones as peers, so that a change
// concerns few GPUPlans, however many segments a function has.
func neighbours(ring []member, segment string) []member {
	i, found := slices.BinarySearchFunc(ring, segment, func(m member, name string) int { return cmp.Compare(m.segment.Name, name) })
	before, after := ring[:i], ring[i:]
	if found {
		after = after[1:]
	}
	return slices.Concat(after, before)
}

// peers returns the next segments in the ring that take new clients. Weights are throughputs, as a node's own weight is: a plan
// loads all segments of a function to the same part of their throughput. So a weight changes only with its segment.
func peers(self netip.Addr, next []member) []v1alpha1.Peer {
	var all []v1alpha1.Peer
	seen := map[netip.Addr]bool{self: true}
	for _, m := range next {
		address, err := netip.ParseAddr(m.status.Address)
		if err != nil || seen[address] || !m.takesClients() {
			continue
		}
		seen[address] = true
		all = append(all, v1alpha1.Peer{
			Address: netip.AddrPortFrom(address, uint16(m.segment.Port)).String(),
			Weight:  m.segment.Throughput,
		})
		if len(all) == v1alpha1.MaxPeers {
			break
		}
	}
	return all
}

// addPeers tells each segment of a plan where else its function is served.
func (r *GPUs) addPeers(ctx context.Context, plan *v1alpha1.GPUPlan, status *v1alpha1.GPUPlanStatus) error {
	for _, s := range plan.Spec.Segments {
		ring, err := members(ctx, r, functionKey(s))
		if err != nil {
			return err
		}
		now := segmentStatus(status, s.Name)
		self, _ := netip.ParseAddr(now.Address) // a segment without an address has no peer at its own
		now.Peers = peers(self, neighbours(ring, s.Name))
	}
	return nil
}
