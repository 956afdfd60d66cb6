package operator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// Fleets is the fleet controller. It keeps others off a fleet's GPUs, and prepares the namespaces whose functions it serves.
type Fleets struct {
	client.Client
	// Namespace is that of the operator. Its pods may read the pages of agents and nodes.
	Namespace string
	// Prometheus may read the metrics of nodes; nil: only the operator may.
	Prometheus *networkingv1.NetworkPolicyPeer
	Now        func() time.Time

	pause pause
}

// Reconcile writes what a fleet needs around its GPUPlans.
func (r *Fleets) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if left := r.pause.left(r.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	began := r.Now()
	fleet := &v1alpha1.Fleet{}
	if err := r.Get(ctx, req.NamespacedName, fleet); err != nil || fleet.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	prepared := r.prepare(ctx, fleet)
	more, tainted := r.taint(ctx, fleet)
	if more {
		return result(time.Millisecond, prepared, tainted)
	}
	r.pause.after(began, r.Now())
	return result(0, prepared, tainted)
}

// taint keeps one DeviceTaintRule per pool of the fleet's nodes. The scheduler then gives its devices to no claim that does not
// tolerate the taint. Pods that have a device already keep it: the planner plans around them. Namespaces do not wait for the
// rules of a large fleet: more says that some are left.
func (r *Fleets) taint(ctx context.Context, fleet *v1alpha1.Fleet) (more bool, err error) {
	driver := cmp.Or(fleet.Spec.Driver, defaultDriver)
	var nodes corev1.NodeList
	var published resourceapi.ResourceSliceList
	var rules resourceapi.DeviceTaintRuleList
	if err := errors.Join(
		r.List(ctx, &nodes, client.MatchingLabelsSelector{Selector: labels.SelectorFromSet(fleet.Spec.NodeSelector)}, client.UnsafeDisableDeepCopy),
		r.List(ctx, &published, client.UnsafeDisableDeepCopy),
		r.List(ctx, &rules, client.MatchingLabels{v1alpha1.FleetLabel: fleet.Name}, client.UnsafeDisableDeepCopy),
	); err != nil {
		return false, err
	}
	ours := sets.New[string]()
	for _, n := range nodes.Items {
		ours.Insert(n.Name)
	}
	pools := sets.New[string]()
	for _, s := range published.Items {
		if s.Spec.Driver == driver && s.Spec.NodeName != nil && ours.Has(*s.Spec.NodeName) {
			pools.Insert(s.Spec.Pool.Name)
		}
	}

	wanted, have := sets.New[string](), sets.New[string]()
	for i := range rules.Items {
		have.Insert(rules.Items[i].Name)
	}
	made := 0
	var failed []error
	for _, pool := range sets.List(pools) {
		sum := sha256.Sum256([]byte(fleet.Name + "/" + driver + "/" + pool)) // a pool's name has characters that others must not have
		rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "penstock-" + hex.EncodeToString(sum[:8])}}
		wanted.Insert(rule.Name)
		if !have.Has(rule.Name) {
			if made++; made > rulesAtOnce {
				more = true
				continue
			}
		}
		failed = append(failed, r.ensure(ctx, fleet, rule, func() {
			metav1.SetMetaDataLabel(&rule.ObjectMeta, v1alpha1.FleetLabel, fleet.Name)
			rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Driver: &driver, Pool: &pool}
			rule.Spec.Taint.Key = v1alpha1.PoolTaint
			rule.Spec.Taint.Value = fleet.Name
			rule.Spec.Taint.Effect = resourceapi.DeviceTaintEffectNoSchedule
		}))
	}
	for i := range rules.Items {
		if rule := &rules.Items[i]; !wanted.Has(rule.Name) && rule.DeletionTimestamp == nil {
			failed = append(failed, client.IgnoreNotFound(r.Delete(ctx, rule)))
		}
	}
	return more, errors.Join(failed...)
}

// rulesAtOnce is how many rules are made before the controller looks after namespaces again.
const rulesAtOnce = 50

// prepare makes what the fleet's pods need in each namespace.
func (r *Fleets) prepare(ctx context.Context, fleet *v1alpha1.Fleet) error {
	var plans v1alpha1.GPUPlanList
	if err := r.List(ctx, &plans, client.MatchingFields{byFleet: fleet.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	namespaces := sets.New[string]()
	for _, p := range plans.Items {
		for _, s := range p.Spec.Segments {
			namespaces.Insert(s.Namespace)
		}
	}
	var failed []error
	for _, namespace := range sets.List(namespaces) {
		failed = append(failed, r.prepareNamespace(ctx, fleet, namespace))
	}
	return errors.Join(failed...)
}

func (r *Fleets) prepareNamespace(ctx context.Context, fleet *v1alpha1.Fleet, namespace string) error {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "penstock"}
	pods := metav1.LabelSelector{MatchLabels: map[string]string{managedBy: operatorName}}

	// An agent reads GPUPlans, and nothing else.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: AgentName}}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: AgentName + "-" + namespace}}

	// Clients send requests to the functions' ports. The operator reads the pages of nodes and agents, Prometheus those of nodes.
	network := &networkingv1.NetworkPolicy{ObjectMeta: meta}
	anyPort := networkingv1.NetworkPolicyPort{Protocol: new(corev1.ProtocolUDP)}
	page := func(port int) networkingv1.NetworkPolicyPort {
		return networkingv1.NetworkPolicyPort{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromInt(port))}
	}
	operators := networkingv1.NetworkPolicyPeer{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: r.Namespace}},
		PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{appName: operatorName}},
	}
	pages := []networkingv1.NetworkPolicyIngressRule{
		{Ports: []networkingv1.NetworkPolicyPort{anyPort}},
		{Ports: []networkingv1.NetworkPolicyPort{page(nodePort), page(AgentPort)}, From: []networkingv1.NetworkPolicyPeer{operators}},
	}
	if r.Prometheus != nil {
		pages = append(pages, networkingv1.NetworkPolicyIngressRule{
			Ports: []networkingv1.NetworkPolicyPort{page(nodePort)}, From: []networkingv1.NetworkPolicyPeer{*r.Prometheus},
		})
	}

	// A segment's pod is never evicted while it serves. It ends when the plan no longer has the segment: `kubectl drain`
	// cordons the node, the planner then serves the functions elsewhere, and the operator deletes the pod. A budget that
	// counts pods would not know which of them may go. It is one budget for all functions, because a pod that several
	// budgets select cannot be evicted at all.
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: meta}

	return errors.Join(
		r.ensure(ctx, fleet, account, func() { account.AutomountServiceAccountToken = new(false) }),
		r.ensure(ctx, fleet, binding, func() {
			binding.RoleRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: AgentName}
			binding.Subjects = []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: AgentName}}
		}),
		r.ensure(ctx, fleet, network, func() {
			network.Spec = networkingv1.NetworkPolicySpec{
				PodSelector: pods,
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
				Ingress:     pages,
			}
		}),
		r.ensure(ctx, fleet, budget, func() {
			budget.Spec.Selector = &pods
			budget.Spec.MinAvailable = new(intstr.FromInt32(math.MaxInt32))
			budget.Spec.UnhealthyPodEvictionPolicy = new(policyv1.AlwaysAllow)
		}),
	)
}

// ensure makes an object as set wants it, and owned by the fleet. An object of several fleets has several owners.
func (r *Fleets) ensure(ctx context.Context, fleet *v1alpha1.Fleet, o client.Object, set func()) error {
	_, err := controllerutil.CreateOrUpdate(ctx, r, o, func() error {
		set()
		labels := o.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[managedBy] = operatorName
		o.SetLabels(labels)
		return controllerutil.SetOwnerReference(fleet, o, r.Scheme())
	})
	return err
}
