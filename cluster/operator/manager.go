package operator

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

const (
	managedBy     = "app.kubernetes.io/managed-by"
	appName       = "app.kubernetes.io/name"
	operatorName  = "penstock-operator"
	defaultDriver = "gpu.nvidia.com"
)

// OurPods selects the operator's pods.
var OurPods = labels.SelectorFromSet(labels.Set{managedBy: operatorName})

// Options are what an installation decides.
type Options struct {
	Namespace  string // of the operator
	AgentImage string
	// Prometheus may read the metrics of nodes; nil: only the operator may.
	Prometheus *networkingv1.NetworkPolicyPeer
}

// Scheme has the types that the operator reads and writes.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	return s
}

// Names of indexes of the cache.
const (
	byFleet    = "fleet"
	byFunction = "function" // NAMESPACE/NAME
	byPool     = "pool"     // DRIVER/POOL of slices and claims
	byPoolName = "poolname" // POOL of GPUPlans: their Fleet has the driver
	byGPUPlan  = "gpuplan"  // that owns the object
)

// indexes are those that the controllers list by.
var indexes = []struct {
	object client.Object
	field  string
	values client.IndexerFunc
}{
	{&v1alpha1.GPUPlan{}, byFleet, func(o client.Object) []string { return []string{o.(*v1alpha1.GPUPlan).Spec.Fleet} }},
	{&v1alpha1.GPUPlan{}, byFunction, func(o client.Object) []string { return functionsOf(o.(*v1alpha1.GPUPlan)) }},
	{&v1alpha1.GPUPlan{}, byPoolName, func(o client.Object) []string { return []string{o.(*v1alpha1.GPUPlan).Spec.Pool} }},
	{&v1alpha1.PlanChange{}, byFleet, func(o client.Object) []string { return []string{o.(*v1alpha1.PlanChange).Spec.Fleet} }},
	{&resourceapi.ResourceSlice{}, byPool, func(o client.Object) []string {
		s := o.(*resourceapi.ResourceSlice).Spec
		return []string{s.Driver + "/" + s.Pool.Name}
	}},
	{&resourceapi.ResourceClaim{}, byPool, func(o client.Object) []string { return poolsOf(o.(*resourceapi.ResourceClaim)) }},
	{&resourceapi.ResourceClaim{}, byGPUPlan, ownerPlan},
	{&corev1.Pod{}, byGPUPlan, ownerPlan},
}

func functionsOf(p *v1alpha1.GPUPlan) (keys []string) {
	for _, s := range p.Spec.Segments {
		keys = append(keys, functionKey(s))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func poolsOf(c *resourceapi.ResourceClaim) (keys []string) {
	if c.Status.Allocation == nil {
		return nil
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		keys = append(keys, r.Driver+"/"+r.Pool)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func ownerPlan(o client.Object) []string {
	if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "GPUPlan" {
		return []string{owner.Name}
	}
	return nil
}

// Add adds the controllers to a manager.
func Add(ctx context.Context, m manager.Manager, o Options) error {
	for _, x := range indexes {
		if err := m.GetFieldIndexer().IndexField(ctx, x.object, x.field, x.values); err != nil {
			return err
		}
	}
	c := m.GetClient()
	onSpec := builder.WithPredicates(predicate.GenerationChangedPredicate{})

	agents := NewHTTPAgents(AgentPort)
	silence := &Silence{Client: c, Agents: agents, Now: time.Now}
	if err := m.Add(silence); err != nil {
		return err
	}
	onSilence := func(h handler.EventHandler) source.Source {
		changed := make(chan event.GenericEvent, 1)
		silence.Changed = append(silence.Changed, changed)
		return source.Channel(changed, h)
	}
	everything := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{request("all")} })
	if err := builder.ControllerManagedBy(m).Named("planning").
		Watches(&v1alpha1.Fleet{}, everything, onSpec).
		Watches(&v1alpha1.Function{}, everything, onSpec).
		Watches(&v1alpha1.Profile{}, everything).
		Watches(&v1alpha1.GPUPlan{}, everything).
		Watches(&v1alpha1.PlanChange{}, everything).
		Watches(&corev1.Node{}, everything).
		Watches(&resourceapi.ResourceSlice{}, everything, onSpec).
		Watches(&resourceapi.ResourceClaim{}, everything, builder.WithPredicates(foreign)).
		Watches(&resourceapi.DeviceTaintRule{}, everything, onSpec).
		WatchesRawSource(onSilence(everything)).
		Complete(&Planning{Client: c, Agents: agents, Silence: silence, Now: time.Now}); err != nil {
		return err
	}

	gpus := &GPUs{Client: c, Agents: agents, Silence: silence, AgentImage: o.AgentImage, Now: time.Now}
	if err := builder.ControllerManagedBy(m).Named("gpu").
		For(&v1alpha1.GPUPlan{}).
		Owns(&resourceapi.ResourceClaim{}).
		Owns(&corev1.Pod{}).
		Watches(&v1alpha1.GPUPlan{}, peerPlans(c)).
		Watches(&v1alpha1.Fleet{}, handler.EnqueueRequestsFromMapFunc(plansOfFleet(c)), onSpec).
		Watches(&resourceapi.ResourceSlice{}, handler.EnqueueRequestsFromMapFunc(plansOfPool(c)), onSpec).
		Watches(&resourceapi.ResourceClaim{}, handler.EnqueueRequestsFromMapFunc(plansOfPool(c)), builder.WithPredicates(foreign)).
		WatchesRawSource(onSilence(handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request { return plans(ctx, c) }))).
		WithOptions(controller.Options{MaxConcurrentReconciles: 16}).
		Complete(gpus); err != nil {
		return err
	}

	changes := &Changes{Client: c, Live: m.GetAPIReader(), Now: time.Now}
	if err := builder.ControllerManagedBy(m).Named("change").
		For(&v1alpha1.Fleet{}, onSpec).
		Watches(&v1alpha1.PlanChange{}, handler.EnqueueRequestsFromMapFunc(fleetOf)).
		Watches(&v1alpha1.GPUPlan{}, handler.EnqueueRequestsFromMapFunc(fleetOf)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
		Complete(changes); err != nil {
		return err
	}

	functions := &Functions{Client: c, Events: m.GetEventRecorder(operatorName)}
	if err := builder.ControllerManagedBy(m).Named("function").
		For(&v1alpha1.Function{}, onSpec).
		Owns(&corev1.Service{}).
		Complete(functions); err != nil {
		return err
	}

	return builder.ControllerManagedBy(m).Named("fleet").
		For(&v1alpha1.Fleet{}, onSpec).
		Owns(&resourceapi.DeviceTaintRule{}, builder.MatchEveryOwner).
		Owns(&corev1.ServiceAccount{}, builder.MatchEveryOwner).
		Owns(&rbacv1.ClusterRoleBinding{}, builder.MatchEveryOwner).
		Owns(&networkingv1.NetworkPolicy{}, builder.MatchEveryOwner).
		Owns(&policyv1.PodDisruptionBudget{}, builder.MatchEveryOwner).
		Watches(&v1alpha1.GPUPlan{}, handler.EnqueueRequestsFromMapFunc(fleetOf), onSpec).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(fleets(c)), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&resourceapi.ResourceSlice{}, handler.EnqueueRequestsFromMapFunc(fleets(c)), onSpec).
		Complete(&Fleets{Client: c, Namespace: o.Namespace, Prometheus: o.Prometheus, Now: time.Now})
}
