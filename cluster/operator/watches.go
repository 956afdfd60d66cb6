package operator

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// foreign admits claims that are not the operator's.
var foreign = predicate.NewPredicateFuncs(func(o client.Object) bool { return len(ownerPlan(o)) == 0 })

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// fleetOf maps a GPUPlan or a PlanChange to its fleet.
func fleetOf(_ context.Context, o client.Object) []reconcile.Request {
	switch o := o.(type) {
	case *v1alpha1.GPUPlan:
		return []reconcile.Request{request(o.Spec.Fleet)}
	case *v1alpha1.PlanChange:
		return []reconcile.Request{request(o.Spec.Fleet)}
	}
	return nil
}

// fleets maps anything to all fleets.
func fleets(r client.Reader) handler.MapFunc {
	return func(ctx context.Context, _ client.Object) []reconcile.Request {
		var list v1alpha1.FleetList
		if err := r.List(ctx, &list); err != nil {
			log.FromContext(ctx).Error(err, "list fleets")
		}
		var all []reconcile.Request
		for _, f := range list.Items {
			all = append(all, request(f.Name))
		}
		return all
	}
}

// plansOfFleet maps a fleet to its GPUPlans.
func plansOfFleet(r client.Reader) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		return plans(ctx, r, client.MatchingFields{byFleet: o.GetName()})
	}
}

// plansOfPool maps a ResourceSlice, or a claim that has devices, to the GPUPlans of their pools.
func plansOfPool(r client.Reader) handler.MapFunc {
	return func(ctx context.Context, o client.Object) (all []reconcile.Request) {
		switch o := o.(type) {
		case *resourceapi.ResourceSlice:
			return plans(ctx, r, client.MatchingFields{byPoolName: o.Spec.Pool.Name})
		case *resourceapi.ResourceClaim:
			if o.Status.Allocation != nil {
				for _, result := range o.Status.Allocation.Devices.Results {
					all = append(all, plans(ctx, r, client.MatchingFields{byPoolName: result.Pool})...)
				}
			}
		}
		return all
	}
}

func plans(ctx context.Context, r client.Reader, which ...client.ListOption) []reconcile.Request {
	var list v1alpha1.GPUPlanList
	if err := r.List(ctx, &list, append(which, client.UnsafeDisableDeepCopy)...); err != nil {
		log.FromContext(ctx).Error(err, "list GPUPlans")
	}
	var all []reconcile.Request
	for _, p := range list.Items {
		all = append(all, request(p.Name))
	}
	return all
}

// peerPlans maps a change of a GPUPlan to the plans whose segments have one of its segments as a peer, or now get one.
func peerPlans(r client.Reader) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	enqueue := func(ctx context.Context, q queue, changed []member) {
		for _, m := range changed {
			ring, err := members(ctx, r, functionKey(m.segment))
			if err != nil {
				log.FromContext(ctx).Error(err, "list the segments of a function", "function", functionKey(m.segment))
			}
			for _, plan := range listeners(neighbours(ring, m.segment.Name)) {
				q.Add(request(plan))
			}
		}
	}
	return handler.Funcs{
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, after := membersOf(e.ObjectOld.(*v1alpha1.GPUPlan)), membersOf(e.ObjectNew.(*v1alpha1.GPUPlan))
			enqueue(ctx, q, slices.Concat(without(before, after), without(after, before)))
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			enqueue(ctx, q, membersOf(e.Object.(*v1alpha1.GPUPlan)))
		},
	}
}

// without returns the members of a that are not in b as they are, apart from their peers and messages.
func without(a, b []member) []member {
	return slices.DeleteFunc(slices.Clone(a), func(m member) bool {
		return slices.ContainsFunc(b, func(n member) bool {
			return m.segment.Name == n.segment.Name && m.takesClients() == n.takesClients() && m.status.Address == n.status.Address &&
				m.segment.Port == n.segment.Port && m.segment.Throughput.Equal(n.segment.Throughput)
		})
	})
}

// listeners returns the plans of the members that look at the one after the last of the ring: those from the end on, until there
// are enough others in between.
func listeners(ring []member) (plans []string) {
	between := map[netip.Addr]bool{}
	for _, m := range slices.Backward(ring) {
		plans = append(plans, m.plan)
		if address, err := netip.ParseAddr(m.status.Address); err == nil && m.takesClients() {
			between[address] = true
		}
		if len(between) > v1alpha1.MaxPeers {
			break
		}
	}
	return plans
}

// Strip drops what the controllers do not read of an object, because the cache of a large cluster has many.
func Strip(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Pod:
		o.ManagedFields, o.Annotations = nil, nil
		o.Spec = corev1.PodSpec{NodeName: o.Spec.NodeName}
	case *corev1.Node:
		o.ManagedFields = nil
		o.Status.Images = nil
	case *resourceapi.ResourceSlice:
		o.ManagedFields = nil
		for i := range o.Spec.Devices {
			d := &o.Spec.Devices[i]
			d.Capacity = nil
			d.ConsumesCounters = same(d.ConsumesCounters)
		}
	}
	return o, nil
}

// consumptions has the counters that devices consume, by their JSON. Those of GPU 0 are the same on each node.
var consumptions sync.Map

func same(c []resourceapi.DeviceCounterConsumption) []resourceapi.DeviceCounterConsumption {
	text, err := json.Marshal(c)
	if err != nil {
		return c
	}
	known, _ := consumptions.LoadOrStore(string(text), c)
	return known.([]resourceapi.DeviceCounterConsumption)
}
