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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cluster/fleet"
)

// A world is an API server with what Kubernetes does around it: a kubelet whose pods get ready, the controller of claims, and
// the garbage collector. The operator under test may be stopped after any write, and may see the world late.
type world struct {
	t     testing.TB
	api   client.WithWatch // what the API server has
	cache client.WithWatch // what the operator sees; nil: the same
	now   time.Time

	agents  *agents
	silence *Silence
	unready map[string]bool // pods that never get ready, by name

	writes  []string       // of the operator, such as "create Pod a/f-1"
	created map[string]int // pods and claims, by kind and name
	stopAt  int            // the operator stops after so many writes; 0: never
	stopped bool
	refuse  func(write string) error // of the API server
	after   func(write string)       // what happens after a write
	ids     int
}

var errStopped = errors.New("the operator was stopped")

func newWorld(t testing.TB, objects ...client.Object) *world {
	w := &world{
		t:       t,
		now:     time.Date(2026, 11, 29, 20, 0, 0, 0, time.UTC),
		silence: &Silence{},
		unready: map[string]bool{},
		created: map[string]int{},
	}
	w.agents = &agents{world: w, asked: map[question]int{}, behaviour: map[string]string{}, rates: map[string]float64{}, counts: map[string]*podCounter{}}
	w.api = interceptor.NewClient(newFake(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			w.ids++
			o.SetUID(types.UID(fmt.Sprintf("uid-%d", w.ids)))
			o.SetCreationTimestamp(metav1.Time{Time: w.now})
			if claim, ok := o.(*resourceapi.ResourceClaim); ok {
				claim.Status = resourceapi.ResourceClaimStatus{}
			}
			return c.Create(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			var all client.DeleteOptions
			all.ApplyOptions(opts)
			have := o.DeepCopyObject().(client.Object)
			if err := c.Get(ctx, client.ObjectKeyFromObject(o), have); err != nil {
				return err
			}
			if p := all.Preconditions; p != nil && p.UID != nil && *p.UID != have.GetUID() {
				return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), errors.New("another object has the name"))
			}
			return c.Delete(ctx, o, opts...)
		},
	})
	for _, o := range objects {
		w.must(w.api.Create(context.Background(), o))
	}
	return w
}

// All take long to make, and so would field managers.
var (
	testScheme = Scheme()
	testCodecs = serializer.NewCodecFactory(testScheme)
	testMapper = testrestmapper.TestOnlyStaticRESTMapper(testScheme)
)

func newFake(objects ...client.Object) client.WithWatch {
	tracker := clienttesting.NewObjectTracker(testScheme, testCodecs.UniversalDecoder())
	b := fake.NewClientBuilder().WithScheme(testScheme).WithRESTMapper(testMapper).WithObjectTracker(tracker).WithObjects(objects...).WithStatusSubresource(
		&v1alpha1.GPUPlan{}, &v1alpha1.PlanChange{}, &v1alpha1.Fleet{}, &v1alpha1.Function{}, &v1alpha1.Profile{},
		&resourceapi.ResourceClaim{}, &corev1.Pod{})
	for _, x := range indexes {
		b.WithIndex(x.object, x.field, x.values)
	}
	return b.Build()
}

// listed are the types that the operator's cache has.
var listed = []client.ObjectList{
	&v1alpha1.FleetList{}, &v1alpha1.FunctionList{}, &v1alpha1.PlanChangeList{}, &v1alpha1.GPUPlanList{},
	&resourceapi.ResourceClaimList{}, &resourceapi.ResourceSliceList{}, &corev1.PodList{}, &corev1.NodeList{},
	&corev1.ServiceList{}, &corev1.ServiceAccountList{}, &networkingv1.NetworkPolicyList{}, &policyv1.PodDisruptionBudgetList{},
	&rbacv1.ClusterRoleBindingList{}, &resourceapi.DeviceTaintRuleList{},
}

// see lets the operator's cache show what the API server now has, of the types that which selects. The others stay old.
func (w *world) see(which func(client.ObjectList) bool) {
	w.t.Helper()
	var objects []client.Object
	for _, list := range listed {
		from := w.cache
		if from == nil || which(list) {
			from = w.api
		}
		list = list.DeepCopyObject().(client.ObjectList)
		w.must(from.List(context.Background(), list))
		w.must(meta.EachListItem(list, func(o runtime.Object) error {
			objects = append(objects, o.DeepCopyObject().(client.Object))
			return nil
		}))
	}
	w.cache = newFake(objects...)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// client is the operator's.
func (w *world) client() client.Client {
	write := func(verb string, o client.Object, do func() error) error {
		what := fmt.Sprintf("%s %s %s", verb, kind(o), strings.TrimPrefix(client.ObjectKeyFromObject(o).String(), "/"))
		if w.stopped {
			return errStopped
		}
		if w.refuse != nil {
			if err := w.refuse(what); err != nil {
				return err
			}
		}
		err := do()
		if err == nil {
			w.writes = append(w.writes, what)
			if verb == "create" {
				w.created[what]++
			}
			if w.after != nil {
				w.after(what)
			}
			if len(w.writes) == w.stopAt {
				w.stopped = true
				return errStopped
			}
		}
		return err
	}
	reader := func(c client.WithWatch) client.WithWatch { return cmp.Or(w.cache, c) }
	return interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return reader(c).Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			return reader(c).List(ctx, l, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return write("create", o, func() error { return c.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return write("delete", o, func() error { return c.Delete(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return write("update", o, func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return write("patch", o, func() error { return c.Patch(ctx, o, p, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return write("update "+sub+" of", o, func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return write("patch "+sub+" of", o, func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
}

func kind(o runtime.Object) string {
	name := fmt.Sprintf("%T", o)
	return name[strings.LastIndex(name, ".")+1:]
}

// A runner reconciles each object of a type.
type runner struct {
	reconciler reconcile.Reconciler
	list       client.ObjectList
}

// operator returns the controllers of an operator that has just started.
func (w *world) operator() []runner {
	c, now := w.client(), func() time.Time { return w.now }
	return []runner{
		{&Fleets{Client: c, Namespace: "penstock-system", Now: func() time.Time { return w.now }}, &v1alpha1.FleetList{}},
		{&Changes{c, w.api, now}, &v1alpha1.FleetList{}},
		{&GPUs{c, w.agents, w.silence, "agent:1", now}, &v1alpha1.GPUPlanList{}},
		{&Functions{c, events.NewFakeRecorder(100)}, &v1alpha1.FunctionList{}},
	}
}

// names returns the objects of a list's type.
func (w *world) names(list client.ObjectList) (all []client.ObjectKey) {
	list = list.DeepCopyObject().(client.ObjectList)
	w.must(w.api.List(context.Background(), list))
	w.must(meta.EachListItem(list, func(o runtime.Object) error {
		all = append(all, client.ObjectKeyFromObject(o.(client.Object)))
		return nil
	}))
	return all
}

// reconcile runs a controller for an object. Another operator starts if this one is stopped.
func (w *world) reconcile(c runner, key client.ObjectKey) time.Duration {
	w.t.Helper()
	result, err := c.reconciler.Reconcile(context.Background(), reconcile.Request{NamespacedName: key})
	switch {
	case w.stopped:
		w.stopped, w.stopAt = false, 0
		return time.Second
	case err != nil && w.refuse == nil && w.cache == nil:
		w.t.Fatalf("%T of %s: %v", c.reconciler, key, err)
	case err != nil:
		return time.Second
	}
	return result.RequeueAfter
}

// round runs each controller for each object, and then Kubernetes, in one second. It reports whether anything is to be done soon.
func (w *world) round() bool {
	w.t.Helper()
	before, soon := len(w.writes), false
	for _, c := range w.operator() {
		for _, key := range w.names(c.list) {
			after := w.reconcile(c, key)
			soon = soon || after > 0 && after <= podBackoff
		}
	}
	changed := w.kubernetes()
	w.now = w.now.Add(time.Second)
	return soon || changed || len(w.writes) > before
}

// settle runs rounds until nothing happens.
func (w *world) settle() {
	w.t.Helper()
	for range 500 {
		if !w.round() {
			return
		}
	}
	w.t.Fatalf("the operator never rests; its last writes:\n%s", strings.Join(w.writes[max(0, len(w.writes)-20):], "\n"))
}

// kubernetes runs pods, frees claims and collects garbage. It reports whether it did anything.
func (w *world) kubernetes() (changed bool) {
	w.t.Helper()
	ctx := context.Background()
	var pods corev1.PodList
	var claims resourceapi.ResourceClaimList
	w.must(w.api.List(ctx, &pods))
	w.must(w.api.List(ctx, &claims))

	// 1. The garbage collector.
	for _, list := range []client.ObjectList{&corev1.PodList{}, &resourceapi.ResourceClaimList{}} {
		list = list.DeepCopyObject().(client.ObjectList)
		w.must(w.api.List(ctx, list))
		w.must(meta.EachListItem(list, func(o runtime.Object) error {
			owner := metav1.GetControllerOf(o.(client.Object))
			if owner != nil && apierrors.IsNotFound(w.api.Get(ctx, client.ObjectKey{Name: owner.Name}, &v1alpha1.GPUPlan{})) {
				changed = true
				return w.api.Delete(ctx, o.(client.Object))
			}
			return nil
		}))
	}

	// 2. The controller of claims.
	w.must(w.api.List(ctx, &pods))
	w.must(w.api.List(ctx, &claims))
	uses := func(c *resourceapi.ResourceClaim) bool {
		return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
			return p.Namespace == c.Namespace && !ended(&p) && len(c.Status.ReservedFor) > 0 && c.Status.ReservedFor[0].UID == p.UID
		})
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		if used := len(c.Status.ReservedFor) > 0; (used || c.DeletionTimestamp != nil) && !uses(c) {
			changed = true
			c.Status = resourceapi.ResourceClaimStatus{}
			w.must(w.api.Status().Update(ctx, c))
			c.Finalizers = nil
			w.must(client.IgnoreNotFound(w.api.Update(ctx, c)))
		}
	}

	// 3. The scheduler and the kubelet.
	for i := range pods.Items {
		p := &pods.Items[i]
		var c resourceapi.ResourceClaim
		err := w.api.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: *p.Spec.ResourceClaims[0].ResourceClaimName}, &c)
		if err != nil || p.Status.PodIP != "" || ended(p) || c.Status.Allocation == nil || c.DeletionTimestamp != nil {
			continue
		}
		changed = true
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: p.Name, UID: p.UID}}
		w.must(w.api.Status().Update(ctx, &c))
		w.ids++
		p.Status.PodIP = fmt.Sprintf("10.0.%d.%d", w.ids/256, w.ids%256)
		p.Status.Phase = corev1.PodRunning
		if !w.unready[p.Name] {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		w.must(w.api.Status().Update(ctx, p))
	}
	w.check()
	return changed
}

// check verifies what must hold at all times: no part of a GPU belongs to two running pods.
func (w *world) check() {
	w.t.Helper()
	var claims resourceapi.ResourceClaimList
	w.must(w.api.List(context.Background(), &claims))
	owner := map[string]string{}
	for _, c := range claims.Items {
		if c.Status.Allocation == nil || len(c.Status.ReservedFor) == 0 {
			continue
		}
		device := c.Status.Allocation.Devices.Results[0]
		for _, part := range parts(device.Device) {
			part += " of " + device.Pool
			if other := owner[part]; other != "" {
				w.t.Fatalf("pods of claims %s and %s/%s both have %s; writes:\n%s", other, c.Namespace, c.Name, part, strings.Join(w.writes, "\n"))
			}
			owner[part] = c.Namespace + "/" + c.Name
		}
	}
}

// parts returns the memory slices of a device: those of gpu-0-mig-2-4 are the fifth and the sixth of gpu-0.
func parts(device string) (all []string) {
	var gpu, size, slot int
	if n, _ := fmt.Sscanf(device, "gpu-%d-mig-%d-%d", &gpu, &size, &slot); n < 3 {
		size, slot = 8, 0
	}
	for i := slot; i < slot+size; i++ {
		all = append(all, fmt.Sprintf("slice %d of gpu-%d", i, gpu))
	}
	return all
}

// published are the slices of a node with MIG GPUs.
func published(node string, gpus int) []client.Object {
	one := func() resource.Quantity { return resource.MustParse("1") }
	spec := resourceapi.ResourceSliceSpec{
		Driver:   defaultDriver,
		NodeName: &node,
		Pool:     resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 2},
	}
	counters := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-counters"}, Spec: spec}
	devices := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-devices"}, Spec: spec}
	for g := range gpus {
		set := fmt.Sprintf("gpu-%d", g)
		all := map[string]resourceapi.Counter{}
		for i := range 8 {
			all[fmt.Sprintf("memory-slice-%d", i)] = resourceapi.Counter{Value: one()}
		}
		counters.Spec.SharedCounters = append(counters.Spec.SharedCounters, resourceapi.CounterSet{Name: set, Counters: all})
		for size, profile := range map[int]string{1: "1g.10gb", 2: "2g.20gb", 4: "3g.40gb"} {
			for slot := 0; slot < 8; slot += max(size, 2) {
				used := map[string]resourceapi.Counter{}
				for i := slot; i < slot+size; i++ {
					used[fmt.Sprintf("memory-slice-%d", i)] = resourceapi.Counter{Value: one()}
				}
				devices.Spec.Devices = append(devices.Spec.Devices, resourceapi.Device{
					Name: fmt.Sprintf("gpu-%d-mig-%d-%d", g, size, slot),
					Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
						"type":        {StringValue: new("mig")},
						"profile":     {StringValue: new(profile)},
						"parentUUID":  {StringValue: new(fmt.Sprintf("GPU-%s-%d", node, g))},
						"productName": {StringValue: new("NVIDIA A100-SXM4-80GB")},
					},
					ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: used}},
				})
			}
		}
	}
	return []client.Object{counters, devices}
}

func testFleet() *v1alpha1.Fleet {
	return &v1alpha1.Fleet{
		ObjectMeta: metav1.ObjectMeta{Name: "lab"},
		Spec: v1alpha1.FleetSpec{
			NodeSelector: map[string]string{"pool": "lab"},
			Driver:       defaultDriver,
			Node:         v1alpha1.NodeTemplate{Image: "penstock:1"},
		},
	}
}

// testWorld is a world with a fleet of two nodes with two GPUs each, and functions f and g.
func testWorld(t testing.TB, more ...client.Object) *world {
	objects := append([]client.Object{testFleet()}, more...)
	for _, name := range []string{"n1", "n2"} {
		objects = append(objects, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": "lab"}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
		objects = append(objects, published(name, 2)...)
	}
	for i, name := range []string{"f", "g"} {
		objects = append(objects, &v1alpha1.Function{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name},
			Spec:       v1alpha1.FunctionSpec{Port: int32(5001 + i)},
		})
	}
	return newWorld(t, objects...)
}

func testSegment(name, device string) v1alpha1.Segment {
	function, _, _ := strings.Cut(name, "-")
	gpu, gpcs, slot := 0, int32(1), int32(0)
	fmt.Sscanf(device, "gpu-%d-mig-%d-%d", &gpu, &gpcs, &slot) // else it is a whole GPU
	return v1alpha1.Segment{
		Name: name, Namespace: "a", Function: function, Model: "m", Port: 5001, Device: device, GPCs: gpcs, Slot: slot,
		Processes: 1, Batch: 4, Throughput: v1alpha1.Rate(100),
	}
}

func place(node string, gpu int) v1alpha1.Place {
	return v1alpha1.Place{Node: node, Pool: node, GPU: fmt.Sprintf("GPU-%s-%d", node, gpu), Table: "a100-80"}
}

// testStep is a step such as "create", "n1-0", a segment.
func testStep(op v1alpha1.StepOp, plan string, s v1alpha1.Segment) v1alpha1.Step {
	var gpu int
	node, number, _ := strings.Cut(plan, "-")
	fmt.Sscan(number, &gpu)
	return v1alpha1.Step{Op: op, GPUPlan: plan, Place: place(node, gpu), Segment: s}
}

func testChange(number int64, steps ...v1alpha1.Step) *v1alpha1.PlanChange {
	return &v1alpha1.PlanChange{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("lab-%d", number)},
		Spec:       v1alpha1.PlanChangeSpec{Fleet: "lab", Number: number, Steps: steps},
	}
}

func (w *world) add(objects ...client.Object) {
	w.t.Helper()
	for _, o := range objects {
		w.must(w.api.Create(context.Background(), o))
	}
}

func (w *world) change(number int64) v1alpha1.PlanChangeStatus {
	w.t.Helper()
	var c v1alpha1.PlanChange
	w.must(w.api.Get(context.Background(), client.ObjectKey{Name: fmt.Sprintf("lab-%d", number)}, &c))
	return c.Status
}

func items(list client.ObjectList) (all []client.Object) {
	meta.EachListItem(list, func(o runtime.Object) error {
		all = append(all, o.(client.Object))
		return nil
	})
	return all
}

// segments describes plans, claims and pods, without what differs between runs.
func (w *world) segments() string {
	w.t.Helper()
	ctx := context.Background()
	var plans v1alpha1.GPUPlanList
	var claims resourceapi.ResourceClaimList
	var pods corev1.PodList
	w.must(errors.Join(w.api.List(ctx, &plans), w.api.List(ctx, &claims), w.api.List(ctx, &pods)))
	var lines []string
	for _, p := range plans.Items {
		for _, m := range membersOf(&p) {
			lines = append(lines, fmt.Sprintf("plan %s: %s draining %v ready %v peers %d %s",
				p.Name, m.segment.Name, m.segment.Draining, m.status.Ready, len(m.status.Peers), m.status.Message))
		}
	}
	for _, c := range claims.Items {
		device := "none"
		if c.Status.Allocation != nil {
			device = c.Status.Allocation.Devices.Results[0].Device
		}
		lines = append(lines, fmt.Sprintf("claim %s/%s: %s", c.Namespace, c.Name, device))
	}
	for _, p := range pods.Items {
		var serving []string
		for _, label := range slices.Sorted(maps.Keys(p.Labels)) {
			if f, ok := strings.CutPrefix(label, v1alpha1.ServingPrefix); ok {
				serving = append(serving, f)
			}
		}
		lines = append(lines, fmt.Sprintf("pod %s/%s: serves %s", p.Namespace, p.Name, strings.Join(serving, ",")))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// summary describes all that the operator made.
func (w *world) summary() string {
	w.t.Helper()
	lines := strings.SplitAfter(w.segments(), "\n")
	for _, list := range []client.ObjectList{
		&corev1.ServiceList{}, &corev1.ServiceAccountList{}, &rbacv1.ClusterRoleBindingList{}, &networkingv1.NetworkPolicyList{},
		&policyv1.PodDisruptionBudgetList{}, &resourceapi.DeviceTaintRuleList{},
	} {
		for _, key := range w.names(list) {
			lines = append(lines, fmt.Sprintf("%s %s\n", strings.TrimSuffix(kind(list), "List"), strings.TrimPrefix(key.String(), "/")))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// agents are hostile if a segment's behaviour says so.
type agents struct {
	world     *world
	mu        sync.Mutex // guards asked and counts
	asked     map[question]int
	behaviour map[string]string      // by segment: silent, never, garbage
	rates     map[string]float64     // requests per second, by function
	counts    map[string]*podCounter // by address
}

// podCounter counts the requests of a pod.
type podCounter struct {
	offered float64
	at      time.Time
}

// Rates divides the rate of a function equally among its pods, each of which has one segment.
func (a *agents) Rates(ctx context.Context, address string) ([]fleet.FunctionPage, error) {
	var pods corev1.PodList
	a.world.must(a.world.api.List(ctx, &pods))
	pod, function, of := "", "", map[string]float64{}
	for i := range pods.Items {
		p := &pods.Items[i]
		name, _, _ := strings.Cut(p.Name, "-")
		if of[name]++; p.Status.PodIP == address {
			pod, function = p.Name, name
		}
	}
	switch a.behaviour[pod] {
	case "silent":
		return nil, ErrSilent
	case "garbage":
		return nil, errors.New("status 418")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.counts[address]
	if c == nil {
		c = &podCounter{at: a.world.now}
		a.counts[address] = c
	}
	c.offered += a.rates[function] / of[function] * a.world.now.Sub(c.at).Seconds()
	c.at = a.world.now
	return []fleet.FunctionPage{{Name: function, Offered: uint64(c.offered)}}, nil
}

func (a *agents) Ask(_ context.Context, address, about, segment string) (bool, error) {
	q := question{about, address, segment}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[q]++
	switch a.behaviour[segment] {
	case "silent":
		return false, ErrSilent
	case "never":
		return false, nil
	case "garbage":
		return false, errors.New("status 418")
	}
	return a.asked[q] > 2, nil // it takes a while
}
