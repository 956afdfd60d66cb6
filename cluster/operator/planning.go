package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cluster/fleet"
	"github.com/penstock/penstock/plan"
)

const (
	// Pages of rates are read every minPages. Many pods are read less often, so that there are at most perSecond.
	minPages  = 2 * time.Second
	maxPages  = 10 * time.Second
	perSecond = 500
	// heldFor is how long a function stays as it is after a change of it failed.
	heldFor = 5 * time.Minute
)

// Planning is the planning controller. One reconcile plans all fleets, because a Function belongs to one of them.
type Planning struct {
	client.Client
	Agents  Agents
	Silence *Silence
	Now     func() time.Time

	maxSteps int // of a PlanChange

	pause  pause
	slices fleet.Read
	rates  *fleet.Rates
	readAt time.Time                      // when pages are read next
	silent sets.Set[types.NamespacedName] // pods that did not answer
	last   map[string]planned             // by fleet
	parsed map[types.UID]parsedProfile    // of the Profiles that exist
}

// parsedProfile is what a version of a Profile says. It takes longer to read than all else.
type parsedProfile struct {
	version string
	profile plan.Profile
	err     error
}

// planned is the last answer for a fleet. The same state is not planned again.
type planned struct {
	state  *fleet.State
	result *fleet.Result
}

// clusterState is what a reconcile reads. Only deep copies of it are changed.
type clusterState struct {
	fleets    v1alpha1.FleetList
	functions v1alpha1.FunctionList
	profiles  v1alpha1.ProfileList
	plans     v1alpha1.GPUPlanList
	changes   v1alpha1.PlanChangeList
	nodes     corev1.NodeList
	slices    resourceapi.ResourceSliceList
	claims    resourceapi.ResourceClaimList
	taints    resourceapi.DeviceTaintRuleList
	cut       sets.Set[string] // silent nodes
}

// Reconcile reads rates, plans each fleet, and writes the changes and what people want to know.
func (r *Planning) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if left := r.pause.left(r.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	began := r.Now()
	defer func() { r.pause.after(began, r.Now()) }()
	var c clusterState
	for _, list := range []client.ObjectList{&c.fleets, &c.functions, &c.profiles, &c.plans, &c.changes, &c.nodes, &c.slices, &c.claims, &c.taints} {
		if err := r.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return reconcile.Result{}, err
		}
	}
	if r.rates == nil {
		r.rates, r.last = fleet.NewRates(), map[string]planned{}
		r.maxSteps = cmp.Or(r.maxSteps, v1alpha1.MaxSteps)
	}
	now := r.Now()
	c.cut = r.Silence.Silent()
	if !now.Before(r.readAt) {
		pods := r.read(ctx, &c)
		r.readAt = now.Add(min(max(minPages, time.Duration(pods)*time.Second/perSecond), maxPages))
	}
	r.forget(&c)

	known, failed := r.profiles(ctx, &c)
	objects := fleet.Objects{Fleets: pointers(c.fleets.Items), Nodes: pointers(c.nodes.Items), Slices: pointers(c.slices.Items),
		Claims: pointers(c.claims.Items), Taints: pointers(c.taints.Items), Plans: pointers(c.plans.Items), Cut: c.cut, Heard: r.Silence.Heard(),
		Silent: r.silentPlans(c.plans.Items), Read: &r.slices}
	for i := range c.fleets.Items {
		if f := &c.fleets.Items[i]; f.DeletionTimestamp == nil {
			failed = append(failed, r.plan(ctx, f, &c, &objects, known))
		}
	}
	for i := range c.functions.Items {
		if f := &c.functions.Items[i]; fleet.Serving(objects.Fleets, f.Namespace) == nil {
			failed = append(failed, r.describe(ctx, f, nil, nil, fleet.Condition{Reason: v1alpha1.ReasonNoFleet,
				Message: "no fleet serves namespace " + f.Namespace + ": want a Fleet whose spec.namespaces has it, or is empty"}))
		}
	}
	return result(max(time.Second, r.readAt.Sub(now)), failed...)
}

// forget drops what is remembered of objects that no longer exist.
func (r *Planning) forget(c *clusterState) {
	functions := map[types.NamespacedName]bool{}
	for i := range c.functions.Items {
		functions[types.NamespacedName{Namespace: c.functions.Items[i].Namespace, Name: c.functions.Items[i].Name}] = true
	}
	r.rates.Keep(functions)
	fleets := sets.New[string]()
	for i := range c.fleets.Items {
		fleets.Insert(c.fleets.Items[i].Name)
	}
	maps.DeleteFunc(r.last, func(name string, _ planned) bool { return !fleets.Has(name) })
}

func pointers[T any](items []T) []*T {
	all := make([]*T, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return all
}

// read reads the pages of all pods that serve, and returns their number. Silent nodes are not asked.
func (r *Planning) read(ctx context.Context, c *clusterState) (pods int) {
	addresses := map[types.NamespacedName]string{}
	for i := range c.plans.Items {
		if c.cut.Has(c.plans.Items[i].Spec.Node) {
			continue
		}
		for _, m := range membersOf(&c.plans.Items[i]) {
			if m.status.Ready && m.status.Address != "" {
				addresses[types.NamespacedName{Namespace: m.segment.Namespace, Name: m.status.Pod}] = m.status.Address
			}
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var pages []fleet.Page
	silent := sets.New[types.NamespacedName]()
	slots := make(chan struct{}, 256)
	for pod, address := range addresses {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			functions, err := r.Agents.Rates(ctx, address)
			at := r.Now()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				pages = append(pages, fleet.Page{Pod: pod, Functions: functions, At: at})
			case errors.Is(err, ErrSilent):
				silent.Insert(pod)
			}
		})
	}
	wg.Wait()
	if 2*silent.Len() > len(addresses) {
		silent = nil // the operator is cut off, not the pods
	}
	r.silent = silent
	r.rates.Read(pages)
	return len(addresses)
}

// silentPlans returns the GPUPlans none of whose pods answers.
func (r *Planning) silentPlans(plans []v1alpha1.GPUPlan) map[string]bool {
	all := map[string]bool{}
	for i := range plans {
		pods, silent := 0, 0
		for _, m := range membersOf(&plans[i]) {
			pods++
			if r.silent.Has(types.NamespacedName{Namespace: m.segment.Namespace, Name: m.status.Pod}) {
				silent++
			}
		}
		all[plans[i].Name] = pods > 0 && silent == pods
	}
	return all
}

// profiles reads the Profiles, and writes their status.
func (r *Planning) profiles(ctx context.Context, c *clusterState) (map[string]map[string]plan.Profile, []error) {
	used := sets.New[string]()
	for _, f := range c.functions.Items {
		used.Insert(f.Spec.Model)
	}
	known := map[string]map[string]plan.Profile{}
	var failed []error
	all := pointers(c.profiles.Items)
	slices.SortFunc(all, func(a, b *v1alpha1.Profile) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	parsed := make(map[types.UID]parsedProfile, len(all))
	for _, old := range all {
		valid := fleet.Condition{OK: true, Reason: v1alpha1.ReasonRead, Message: "the file was read"}
		file := r.parsed[old.UID]
		if file.version != old.ResourceVersion {
			file.version = old.ResourceVersion
			file.profile, file.err = fleet.ReadProfile(old)
		}
		parsed[old.UID] = file
		to, err := file.profile, file.err
		if _, twice := known[old.Spec.GPU][old.Spec.Model]; err == nil && twice {
			err = fmt.Errorf("an older Profile has model %s on %s: delete one of them", old.Spec.Model, old.Spec.GPU)
		}
		if err != nil {
			valid = fleet.Condition{Reason: v1alpha1.ReasonUnreadable, Message: err.Error()}
		} else {
			if known[old.Spec.GPU] == nil {
				known[old.Spec.GPU] = map[string]plan.Profile{}
			}
			known[old.Spec.GPU][old.Spec.Model] = to
		}
		inUse := fleet.Condition{OK: used.Has(old.Spec.Model), Reason: v1alpha1.ReasonUnused, Message: "no Function has the model"}
		if inUse.OK {
			inUse.Reason, inUse.Message = v1alpha1.ReasonUsed, "Functions have the model"
		}
		p := old.DeepCopy()
		p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return f == v1alpha1.InUseFinalizer })
		if inUse.OK && (p.DeletionTimestamp == nil || len(p.Finalizers) < len(old.Finalizers)) {
			p.Finalizers = append(p.Finalizers, v1alpha1.InUseFinalizer)
		}
		if !slices.Equal(p.Finalizers, old.Finalizers) {
			failed = append(failed, r.Patch(ctx, p, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})))
			continue // the status follows when the cache shows it
		}
		p.Status.ObservedGeneration = p.Generation
		condition(&p.Status.Conditions, v1alpha1.Valid, p.Generation, valid)
		condition(&p.Status.Conditions, v1alpha1.InUse, p.Generation, inUse)
		if !equality.Semantic.DeepEqual(p.Status, old.Status) {
			failed = append(failed, r.Status().Patch(ctx, p, client.MergeFrom(old)))
		}
	}
	r.parsed = parsed
	return known, failed
}

func condition(all *[]metav1.Condition, name string, generation int64, c fleet.Condition) {
	status := metav1.ConditionFalse
	if c.OK {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(all, metav1.Condition{Type: name, Status: status, Reason: c.Reason, Message: c.Message, ObservedGeneration: generation})
}

// plan plans one fleet.
func (r *Planning) plan(ctx context.Context, f *v1alpha1.Fleet, c *clusterState, o *fleet.Objects, known map[string]map[string]plan.Profile) error {
	now := r.Now()
	var changes []*v1alpha1.PlanChange
	for i := range c.changes.Items {
		if ch := &c.changes.Items[i]; ch.Spec.Fleet == f.Name {
			changes = append(changes, ch)
		}
	}
	slices.SortFunc(changes, func(a, b *v1alpha1.PlanChange) int { return cmp.Compare(a.Spec.Number, b.Spec.Number) })

	seen := o.GPUs(f)
	s := r.state(f, c, o, known, seen, changes)
	var open []v1alpha1.Step
	var unfinished []*v1alpha1.PlanChange
	var lastChange time.Time
	number, cut := int64(0), false
	for _, ch := range changes {
		number, cut = ch.Spec.Number, ch.Spec.More && ch.Status.Phase == v1alpha1.Done
		if lastChange = ch.CreationTimestamp.Time; !ch.Status.Phase.Finished() {
			open, unfinished = append(open, ch.Spec.Steps...), append(unfinished, ch)
		}
	}
	memory := r.last[f.Name]
	switch {
	case len(unfinished) > 0:
		if why := s.Overtaken(open); why != "" {
			return r.overtake(ctx, unfinished, why)
		}
	case now.Sub(lastChange) < f.Spec.Damping.Between.Duration && !s.Urgent() && !cut:
	case memory.state == nil || !reflect.DeepEqual(memory.state, s):
		memory = planned{s, fleet.Next(s)}
		r.last[f.Name] = memory
		if err := r.write(ctx, f, memory.result.Steps, number); err != nil {
			delete(r.last, f.Name)
			return err
		}
	}
	if memory.result == nil {
		return nil // another operator has begun a change
	}
	return r.report(ctx, f, c, o, seen, memory.result)
}

// state returns what a fleet's plan depends on.
func (r *Planning) state(f *v1alpha1.Fleet, c *clusterState, o *fleet.Objects, known map[string]map[string]plan.Profile, seen fleet.Fleet, changes []*v1alpha1.PlanChange) *fleet.State {
	s := &fleet.State{Fleet: f.Name, GPUs: seen.GPUs, Profiles: known, Limits: map[string]int{}, Dead: map[string]bool{}}
	for _, n := range f.Spec.Namespaces {
		if n.MaxGPCs > 0 {
			s.Limits[n.Name] = int(n.MaxGPCs)
		}
	}
	for i := range c.plans.Items {
		p := &c.plans.Items[i]
		if p.Spec.Fleet != f.Name {
			continue
		}
		s.Plans = append(s.Plans, &v1alpha1.GPUPlan{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: p.Spec})
		for _, m := range membersOf(p) {
			if c.cut.Has(p.Spec.Node) || r.silent.Has(types.NamespacedName{Namespace: m.segment.Namespace, Name: m.status.Pod}) {
				s.Dead[m.segment.Name] = true
			}
		}
	}
	held := map[types.NamespacedName]string{}
	for _, ch := range changes {
		s.Abandoned = ch.Status.Phase == v1alpha1.Failed || ch.Spec.More
		// An overtaken change failed by no function's fault.
		if ch.Status.Phase == v1alpha1.Failed && strings.HasPrefix(ch.Status.Message, "step ") &&
			int(ch.Status.Done) < len(ch.Spec.Steps) && ch.Status.FinishedAt != nil && r.Now().Sub(ch.Status.FinishedAt.Time) < heldFor {
			g := ch.Spec.Steps[ch.Status.Done].Segment
			held[types.NamespacedName{Namespace: g.Namespace, Name: g.Function}] = "the last change failed and was undone: " + ch.Status.Message
		}
	}
	rule := fleet.Rule(f.Spec.Damping)
	for i := range c.functions.Items {
		fn := &c.functions.Items[i]
		if fn.DeletionTimestamp != nil || fleet.Serving(o.Fleets, fn.Namespace) != f {
			continue
		}
		name := types.NamespacedName{Namespace: fn.Namespace, Name: fn.Name}
		one := fleet.Function{NamespacedName: name, Model: fn.Spec.Model, SLO: fn.Spec.SLO.Duration, Port: fn.Spec.Port, Priority: fn.Spec.Priority,
			Created: fn.CreationTimestamp.Time, Rate: max(0.001, r.rates.Want(fn, rule)), Held: held[name]}
		if q := fn.Status.PlannedRate; q != nil {
			one.Planned = float64(q.MilliValue()) / 1000
		}
		s.Functions = append(s.Functions, one)
	}
	return s
}

// overtake gives up unfinished changes. The next reconcile plans again.
func (r *Planning) overtake(ctx context.Context, changes []*v1alpha1.PlanChange, why string) error {
	for _, old := range changes {
		ch := old.DeepCopy()
		ch.Status.Phase, ch.Status.Message, ch.Status.FinishedAt = v1alpha1.Failed, "overtaken: "+why, &metav1.Time{Time: r.Now()}
		if err := r.Status().Update(ctx, ch); err != nil {
			return err
		}
	}
	return nil
}

// write makes PlanChanges of steps. If it does not write all of them, the last one says so (More). Their names follow from
// their numbers, so that two operators cannot both write one.
func (r *Planning) write(ctx context.Context, f *v1alpha1.Fleet, steps []v1alpha1.Step, number int64) error {
	fleet.Name(steps, f.Name, r.Now())
	left := len(steps)
	for part := range slices.Chunk(steps, r.maxSteps) {
		number++
		left -= len(part)
		err := r.Create(ctx, &v1alpha1.PlanChange{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", f.Name, number), Labels: map[string]string{managedBy: operatorName, v1alpha1.FleetLabel: f.Name},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(f, v1alpha1.GroupVersion.WithKind("Fleet"))}},
			Spec: v1alpha1.PlanChangeSpec{Fleet: f.Name, Number: number, Steps: part, More: left > 0},
		})
		if err != nil {
			return fmt.Errorf("write change %d: %w", number, err)
		}
	}
	return nil
}

// report writes the status of a fleet and its functions.
func (r *Planning) report(ctx context.Context, f *v1alpha1.Fleet, c *clusterState, o *fleet.Objects, seen fleet.Fleet, res *fleet.Result) error {
	now := f.DeepCopy()
	now.Status.ObservedGeneration = f.Generation
	now.Status.GPUs, now.Status.UsedGPUs, now.Status.Segments, now.Status.Functions = 0, 0, 0, int32(len(res.Rates))
	for _, g := range seen.GPUs {
		if g.Health == fleet.Good {
			now.Status.GPUs++
		}
	}
	of := map[string][]member{}
	for i := range c.plans.Items {
		if p := &c.plans.Items[i]; p.Spec.Fleet == f.Name && len(p.Spec.Segments) > 0 {
			now.Status.UsedGPUs++
			now.Status.Segments += int32(len(p.Spec.Segments))
			for _, s := range p.Spec.Segments {
				m := member{plan: p.Name, segment: s}
				if status := segmentStatus(&p.Status, s.Name); status != nil {
					m.status = *status
				}
				of[functionKey(s)] = append(of[functionKey(s)], m)
			}
		}
	}
	answer := res.Fleet
	switch {
	case seen.Nodes == 0:
		answer = fleet.Condition{Reason: v1alpha1.ReasonNoNodes, Message: "no node of its own has the labels of spec.nodeSelector"}
	case len(seen.GPUs) == 0:
		answer = fleet.Condition{Reason: v1alpha1.ReasonNoGPUs, Message: fmt.Sprintf("driver %s publishes no GPU that can be planned for: %.1000s", f.Spec.Driver, strings.Join(seen.Unusable, "; "))}
	}
	condition(&now.Status.Conditions, v1alpha1.Planned, f.Generation, answer)
	overlap := fleet.Condition{Reason: v1alpha1.ReasonNoOverlap, Message: "its nodes are its own"}
	if len(seen.Overlap) > 0 {
		overlap = fleet.Condition{OK: true, Reason: v1alpha1.ReasonOverlap, Message: fmt.Sprintf("older fleets have nodes that it selects: %.1000s", strings.Join(seen.Overlap, ", "))}
	}
	condition(&now.Status.Conditions, v1alpha1.Overlap, f.Generation, overlap)
	var failed []error
	if !equality.Semantic.DeepEqual(now.Status, f.Status) {
		failed = append(failed, r.Status().Patch(ctx, now, client.MergeFrom(f)))
	}
	for i := range c.functions.Items {
		fn := &c.functions.Items[i]
		key := fn.Namespace + "/" + fn.Name
		if answer, ok := res.Conditions[key]; ok && fleet.Serving(o.Fleets, fn.Namespace) == f {
			rate := res.Rates[key]
			failed = append(failed, r.describe(ctx, fn, &rate, of[key], answer))
		}
	}
	return errors.Join(failed...)
}

// describe writes the status of a function. A rate that was observed is written if it differs by a tenth.
func (r *Planning) describe(ctx context.Context, old *v1alpha1.Function, rate *float64, members []member, answer fleet.Condition) error {
	f := old.DeepCopy()
	f.Status.ObservedGeneration = f.Generation
	f.Status.PlannedRate = nil
	if rate != nil {
		f.Status.PlannedRate = quantity(*rate)
	}
	observed, lie, ok := r.rates.Observed(types.NamespacedName{Namespace: f.Namespace, Name: f.Name})
	if q := f.Status.ObservedRate; ok && (q == nil || math.Abs(observed-q.AsApproximateFloat64()) > q.AsApproximateFloat64()/10) {
		f.Status.ObservedRate = quantity(observed)
	}
	if lie != "" {
		answer.Message += "; " + lie
	}
	assigned := 0.0
	f.Status.Segments, f.Status.ReadySegments = int32(len(members)), 0
	for _, m := range members {
		assigned += m.segment.Throughput.AsApproximateFloat64()
		if m.status.Ready {
			f.Status.ReadySegments++
		}
	}
	f.Status.AssignedRate = quantity(assigned)
	ready := fleet.Condition{Reason: v1alpha1.ReasonStarting, Message: "segments are not ready yet"}
	switch {
	case len(members) == 0:
		ready = fleet.Condition{Reason: v1alpha1.ReasonNotPlanned, Message: "it has no segments"}
	case f.Status.ReadySegments == f.Status.Segments:
		ready = fleet.Condition{OK: true, Reason: v1alpha1.ReasonServing, Message: "all segments serve"}
	}
	condition(&f.Status.Conditions, v1alpha1.Planned, f.Generation, answer)
	condition(&f.Status.Conditions, v1alpha1.Ready, f.Generation, ready)
	if equality.Semantic.DeepEqual(f.Status, old.Status) {
		return nil
	}
	return r.Status().Patch(ctx, f, client.MergeFrom(old))
}

func quantity(rate float64) *resource.Quantity {
	q := v1alpha1.Rate(rate)
	return &q
}
