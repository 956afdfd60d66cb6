package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

const (
	// pollInterval is how often agents are asked while segments start or drain.
	pollInterval = 200 * time.Millisecond
	// podBackoff is the min age of a pod that has ended, before another one replaces it.
	podBackoff = 10 * time.Second
	// statusDelay is how long news that only people read, and more peers, may wait. Segments that start have much of both.
	statusDelay = 3 * time.Second
)

// GPUs is the GPU controller. A segment goes through these states:
//
//	planned -> claim -> allocated -> pod -> ready, in the Service -> draining, out of the Service -> drained -> removed
//
// Each reconciliation takes each workload one state further at most.
type GPUs struct {
	client.Client
	Agents     Agents
	Silence    *Silence
	AgentImage string
	Now        func() time.Time
}

// A gpu is a GPUPlan, and what Kubernetes has of it.
type gpu struct {
	plan      *v1alpha1.GPUPlan
	workloads []workload
	pool      func() (*pool, error) // read when it is needed
	claims    map[client.ObjectKey]*resourceapi.ResourceClaim
	pods      map[client.ObjectKey]*corev1.Pod
	prepares  bool // a namespace has no service account yet
	moved     bool // a claim or a pod was made or allocated just now
}

// Reconcile compares a GPU's workloads with its plan, changes them, and writes the status.
func (r *GPUs) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	plan, fleet := &v1alpha1.GPUPlan{}, &v1alpha1.Fleet{}
	if err := r.Get(ctx, req.NamespacedName, plan); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if err := r.Get(ctx, client.ObjectKey{Name: plan.Spec.Fleet}, fleet); err != nil || plan.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // the garbage collector deletes all
	}
	g, err := r.observe(ctx, fleet, plan)
	if err != nil {
		return reconcile.Result{}, err
	}
	status := g.status(ask(ctx, r.Agents, g.questions()))
	if err := r.addPeers(ctx, plan, &status); err != nil {
		return reconcile.Result{}, err
	}

	failed := []error{r.removeRest(ctx, g)}
	for _, w := range g.workloads {
		message, err := r.advance(ctx, g, w, status)
		if err != nil && !apierrors.IsConflict(err) {
			message = err.Error()
		}
		failed = append(failed, err)
		for _, s := range w.Segments {
			now := segmentStatus(&status, s.Name)
			if now.Message = message; message == "" && !now.Ready && !s.Draining {
				now.Message = "the pod does not serve the function yet"
			}
		}
	}

	switch now := r.Now(); {
	case equality.Semantic.DeepEqual(plan.Status, status):
		if len(g.workloads)+len(g.claims)+len(g.pods) == 0 {
			// The GPU is free. The object stays if a segment was planned in the meantime.
			failed = append(failed, r.Delete(ctx, plan, client.Preconditions{ResourceVersion: &plan.ResourceVersion}))
		}
	case g.young(now) && !urgent(plan.Status, status):
		return result(min(cmp.Or(g.wait(now), statusDelay), statusDelay), failed...)
	default:
		plan.Status = status
		failed = append(failed, r.Status().Update(ctx, plan))
	}
	return result(g.wait(r.Now()), failed...)
}

// observe reads what the cache has of a GPU. Only deep copies of it are changed.
func (r *GPUs) observe(ctx context.Context, fleet *v1alpha1.Fleet, plan *v1alpha1.GPUPlan) (*gpu, error) {
	var claims resourceapi.ResourceClaimList
	var pods corev1.PodList
	if err := errors.Join(
		r.List(ctx, &claims, client.MatchingFields{byGPUPlan: plan.Name}, client.UnsafeDisableDeepCopy),
		r.List(ctx, &pods, client.MatchingFields{byGPUPlan: plan.Name}, client.UnsafeDisableDeepCopy),
	); err != nil {
		return nil, err
	}

	g := &gpu{
		plan:      plan,
		workloads: desired(fleet, plan, r.AgentImage),
		pool:      sync.OnceValues(func() (*pool, error) { return r.pool(ctx, fleet, plan) }),
		claims:    map[client.ObjectKey]*resourceapi.ResourceClaim{},
		pods:      map[client.ObjectKey]*corev1.Pod{},
	}
	for i := range claims.Items {
		g.claims[client.ObjectKeyFromObject(&claims.Items[i])] = &claims.Items[i]
	}
	for i := range pods.Items {
		g.pods[client.ObjectKeyFromObject(&pods.Items[i])] = &pods.Items[i]
	}
	return g, nil
}

// pool reads the devices of a GPU's pool, and the claims that have them.
func (r *GPUs) pool(ctx context.Context, fleet *v1alpha1.Fleet, plan *v1alpha1.GPUPlan) (*pool, error) {
	driver := cmp.Or(fleet.Spec.Driver, defaultDriver)
	in := client.MatchingFields{byPool: driver + "/" + plan.Spec.Pool}
	var published resourceapi.ResourceSliceList
	var allocated resourceapi.ResourceClaimList
	if err := errors.Join(r.List(ctx, &published, in, client.UnsafeDisableDeepCopy), r.List(ctx, &allocated, in, client.UnsafeDisableDeepCopy)); err != nil {
		return nil, err
	}
	return newPool(driver, plan.Spec.Pool, published.Items, allocated.Items), nil
}

// removeRest deletes the pods and claims of segments that are no longer planned.
func (r *GPUs) removeRest(ctx context.Context, g *gpu) error {
	planned := map[client.ObjectKey]bool{}
	for _, w := range g.workloads {
		planned[w.key()] = true
	}
	var failed []error
	for key, p := range g.pods {
		if !planned[key] {
			failed = append(failed, r.remove(ctx, p))
		}
	}
	for key, c := range g.claims {
		if !planned[key] {
			failed = append(failed, r.remove(ctx, c))
		}
	}
	return errors.Join(failed...)
}

// remove deletes an object, unless it is being deleted. It leaves a newer object of the same name alone.
func (r *GPUs) remove(ctx context.Context, o client.Object) error {
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	uid := o.GetUID()
	return client.IgnoreNotFound(r.Delete(ctx, o, client.Preconditions{UID: &uid}))
}

// advance takes a workload to its next state. The message says what the workload waits for.
func (r *GPUs) advance(ctx context.Context, g *gpu, w workload, status v1alpha1.GPUPlanStatus) (message string, err error) {
	claim, pod := g.claims[w.key()], g.pods[w.key()]
	switch {
	case pod != nil && pod.DeletionTimestamp != nil:
		return "the pod is being deleted", r.release(ctx, w, pod)
	case pod != nil && ended(pod):
		message = "the pod has ended: " + cmp.Or(pod.Status.Message, pod.Status.Reason, string(pod.Status.Phase))
		if r.Now().Before(pod.CreationTimestamp.Add(podBackoff)) {
			return message, nil
		}
		return message, r.remove(ctx, pod)
	case pod == nil && !w.open():
		return "", nil // it drains, and nothing is left to drain
	}

	if claim == nil {
		claim = w.Claim.DeepCopy()
		if err := r.Create(ctx, claim); err != nil {
			return "", fmt.Errorf("create claim: %w", err)
		}
		g.moved = true
	}
	switch {
	case claim.DeletionTimestamp != nil:
		// The pod keeps its device, and Kubernetes keeps the claim, until the pod ends. Then the controller makes new ones.
		return "the claim is being deleted", r.label(ctx, w, pod, status)
	case claim.Status.Allocation == nil:
		return r.allocate(ctx, g, w, claim)
	case !allocatedTo(claim, w.Claim):
		// An allocation cannot change. Replace the claim, and the pod that uses it.
		if pod != nil {
			err = r.remove(ctx, pod)
		}
		return "the claim has another device than the plan", errors.Join(err, r.remove(ctx, claim))
	case pod == nil:
		return r.start(ctx, g, w, claim)
	}
	return waitsFor(pod), r.label(ctx, w, pod, status)
}

// allocate gives a claim its planned device.
func (r *GPUs) allocate(ctx context.Context, g *gpu, w workload, c *resourceapi.ResourceClaim) (message string, err error) {
	planned := w.Claim.Status.Allocation
	pool, err := g.pool()
	if err != nil {
		return "", err
	}
	if message := pool.taken(c, w.device()); message != "" {
		return message, nil
	}
	c = c.DeepCopy()
	if len(c.Finalizers) == 0 { // Kubernetes took it with the allocation, when a pod ended
		c.Finalizers = w.Claim.Finalizers
		if err := r.Update(ctx, c); err != nil {
			return "", fmt.Errorf("add finalizer to claim: %w", err)
		}
	}
	c.Status.Allocation = planned.DeepCopy()
	c.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: r.Now()}
	if err := r.Status().Update(ctx, c); err != nil {
		return "", fmt.Errorf("allocate device %s to claim: %w", w.device(), err)
	}
	pool.add(c)
	g.moved = true
	return "the claim is being allocated", nil
}

// start creates a pod. The cache has shown that the claim has the device, so it shows each claim that had it earlier, too.
func (r *GPUs) start(ctx context.Context, g *gpu, w workload, c *resourceapi.ResourceClaim) (message string, err error) {
	account := client.ObjectKey{Namespace: w.Pod.Namespace, Name: AgentName}
	if err := r.Get(ctx, account, &corev1.ServiceAccount{}); err != nil {
		g.prepares = apierrors.IsNotFound(err)
		return "the namespace is being prepared", client.IgnoreNotFound(err)
	}
	pool, err := g.pool()
	if err != nil {
		return "", err
	}
	if message := pool.taken(c, w.device()); message != "" {
		return message, r.remove(ctx, c)
	}
	pod := w.Pod.DeepCopy()
	if s := w.Segments[0]; s.SharePercent == nil && !s.Draining { // it serves as soon as the pod is ready
		pod.Labels[v1alpha1.ServingLabel(s.Function)] = v1alpha1.Serving
	}
	if err := r.Create(ctx, pod); err != nil {
		return "", fmt.Errorf("create pod: %w", err)
	}
	g.moved = true
	return "the pod is being created", nil
}

// label puts a pod into the Services of the functions that it serves, and takes it out of those of functions that drain.
//
// A pod that is not ready keeps its labels, because Kubernetes sends it no requests. A pod that drains loses them and stays
// ready: kube-proxy then sends new flows elsewhere, and lets the old ones be. Those on a silent node get none ([Silence]).
func (r *GPUs) label(ctx context.Context, w workload, pod *corev1.Pod, status v1alpha1.GPUPlanStatus) error {
	if pod == nil {
		return nil
	}
	changed := pod.DeepCopy()
	open, serves := w.functions(status)
	maps.DeleteFunc(changed.Labels, func(label, _ string) bool {
		function, ok := strings.CutPrefix(label, v1alpha1.ServingPrefix)
		return ok && !open[function]
	})
	if !r.Silence.Silent().Has(pod.Spec.NodeName) {
		for function := range serves {
			changed.Labels[v1alpha1.ServingLabel(function)] = v1alpha1.Serving
		}
	}
	if maps.Equal(pod.Labels, changed.Labels) {
		return nil
	}
	return r.Patch(ctx, changed, client.MergeFrom(pod))
}

// release takes a pod that is being deleted out of the Services of functions that other pods serve, too. kube-proxy leaves a pod
// that ends its flows, so its clients would stay until it stops.
func (r *GPUs) release(ctx context.Context, w workload, pod *corev1.Pod) error {
	changed := pod.DeepCopy()
	for _, s := range w.Segments {
		all, err := members(ctx, r, functionKey(s))
		if err != nil {
			return err
		}
		if slices.ContainsFunc(all, func(m member) bool { return m.takesClients() && m.status.Pod != pod.Name }) {
			delete(changed.Labels, v1alpha1.ServingLabel(s.Function))
		}
	}
	if maps.Equal(pod.Labels, changed.Labels) {
		return nil
	}
	return client.IgnoreNotFound(r.Patch(ctx, changed, client.MergeFrom(pod)))
}

// young reports whether a claim or pod is so new that it soon changes.
func (g *gpu) young(now time.Time) bool {
	after := now.Add(-statusDelay)
	for _, c := range g.claims {
		g.moved = g.moved || c.CreationTimestamp.After(after)
	}
	for _, p := range g.pods {
		g.moved = g.moved || p.CreationTimestamp.After(after)
	}
	return g.moved
}

// urgent reports whether a status has news for programs: which segments serve or have drained, and peers that are gone.
func urgent(was, is v1alpha1.GPUPlanStatus) bool {
	if slices.ContainsFunc(was.Segments, func(s v1alpha1.SegmentStatus) bool { return segmentStatus(&is, s.Name) == nil }) {
		return true
	}
	return slices.ContainsFunc(is.Segments, func(s v1alpha1.SegmentStatus) bool {
		old := segmentStatus(&was, s.Name)
		if old == nil {
			old = &v1alpha1.SegmentStatus{}
		}
		return s.Ready != old.Ready || s.Drained != old.Drained || s.Address != old.Address && old.Address != "" ||
			slices.ContainsFunc(old.Peers, func(p v1alpha1.Peer) bool { return !slices.Contains(s.Peers, p) })
	})
}

// wait returns when to look again although nothing changed in Kubernetes. 0: not at all.
func (g *gpu) wait(now time.Time) time.Duration {
	if g.prepares || len(g.questions()) > 0 {
		return pollInterval
	}
	for _, p := range g.pods {
		if left := p.CreationTimestamp.Add(podBackoff).Sub(now); ended(p) && left > 0 {
			return left
		}
	}
	return 0
}
