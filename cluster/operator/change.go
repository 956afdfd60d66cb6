package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cluster/fleet"
	"github.com/penstock/penstock/plan"
)

const (
	// stepLimit is how long a change may make no progress.
	stepLimit = 2 * time.Minute
	// briefly is how long progress within a wave may be written late.
	briefly = time.Second
	// maxAtOnce is how many changes create segments at the same time.
	maxAtOnce = 4
	// keptChanges is how many finished changes of a fleet are kept, for people.
	keptChanges = 10
)

// Changes is the change controller. It takes the steps of a fleet's changes, one change after another. A change that only
// creates segments to its end does not keep the next one from creating its own: a large plan has many changes.
//
// Steps of the same kind that follow each other are taken at once: they do not depend on each other, because planner/change
// destroys nothing before its replacement serves. They are a wave. The next wave begins when all steps of the last one are in
// effect:
//
//	create   the segment is in the spec of its GPUPlan, and ready
//	retune   the spec says what the step says, and the segment is ready
//	destroy  the segment drained, and is gone from the spec
//
// If a created or retuned segment does not get ready in time, the change fails. The controller then takes back all since the
// last destroyed segment. Nothing before that can be taken back, and nothing needs to be: each wave ends with a plan that serves.
type Changes struct {
	client.Client
	// Live reads from the API server. An old status of a change would repeat steps, so the cache is not enough.
	Live client.Reader
	Now  func() time.Time
}

// Reconcile takes the next steps of a fleet's oldest unfinished change.
func (r *Changes) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	fleet := &v1alpha1.Fleet{}
	if err := r.Get(ctx, req.NamespacedName, fleet); err != nil || fleet.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	var list v1alpha1.PlanChangeList
	if err := r.List(ctx, &list, client.MatchingFields{byFleet: fleet.Name}); err != nil {
		return reconcile.Result{}, err
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.PlanChange) int {
		return cmp.Or(cmp.Compare(a.Spec.Number, b.Spec.Number), cmp.Compare(a.Name, b.Name))
	})
	left := slices.DeleteFunc(slices.Clone(list.Items), func(c v1alpha1.PlanChange) bool { return c.Status.Phase.Finished() })
	if len(left) == 0 {
		return result(0, r.prune(ctx, list.Items))
	}

	wait, failed := time.Duration(0), []error(nil)
	for i := range min(len(left), maxAtOnce) {
		p, err := r.take(ctx, fleet, &left[i])
		failed = append(failed, err)
		if p == nil {
			break
		}
		if more := p.left(); wait == 0 || more > 0 && more < wait {
			wait = more
		}
		if err != nil || i+1 < len(left) && !p.lets(&left[i+1]) {
			break
		}
	}
	return result(wait, failed...)
}

// take takes the next steps of a change. It returns nil if the cache does not know yet what became of the change.
func (r *Changes) take(ctx context.Context, fleet *v1alpha1.Fleet, known *v1alpha1.PlanChange) (*progress, error) {
	change := &v1alpha1.PlanChange{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(known), change); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if change.Status.Phase.Finished() || change.DeletionTimestamp != nil {
		return nil, nil // the cache will show it, and call again
	}
	p := &progress{change: change, now: r.Now(), plans: map[string]*v1alpha1.GPUPlan{}}
	for _, step := range p.reach() {
		if p.plans[step.GPUPlan] != nil {
			continue
		}
		plan := &v1alpha1.GPUPlan{}
		err := r.Get(ctx, client.ObjectKey{Name: step.GPUPlan}, plan)
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if err == nil {
			p.plans[plan.Name] = plan
		}
	}

	status, edited := p.next()
	var failed []error
	for _, plan := range edited {
		failed = append(failed, r.write(ctx, fleet, plan))
	}
	if status.Phase == v1alpha1.Failed {
		failed = append(failed, r.abandon(ctx, change))
	}
	if err := errors.Join(failed...); err == nil && !equality.Semantic.DeepEqual(change.Status, status) && !p.brief(status) {
		change.Status = status
		failed = append(failed, r.Status().Update(ctx, change))
	}
	return p, errors.Join(failed...)
}

// write stores an edited plan, or makes it.
func (r *Changes) write(ctx context.Context, fleet *v1alpha1.Fleet, plan *v1alpha1.GPUPlan) error {
	if plan.ResourceVersion != "" {
		return r.Update(ctx, plan)
	}
	plan.Labels = map[string]string{managedBy: operatorName, v1alpha1.FleetLabel: fleet.Name}
	plan.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(fleet, v1alpha1.GroupVersion.WithKind("Fleet"))}
	return r.Create(ctx, plan)
}

// abandon fails the changes after one that failed: they were made for a plan that does not come. Segments that they have
// created stay until the planner ends them.
func (r *Changes) abandon(ctx context.Context, failed *v1alpha1.PlanChange) error {
	var list v1alpha1.PlanChangeList
	if err := r.Live.List(ctx, &list); err != nil {
		return err
	}
	for i := range list.Items {
		c := &list.Items[i]
		if c.Spec.Fleet != failed.Spec.Fleet || c.Spec.Number <= failed.Spec.Number || c.Status.Phase.Finished() {
			continue
		}
		c.Status.Phase = v1alpha1.Failed
		c.Status.Message = fmt.Sprintf("change %d failed before it", failed.Spec.Number)
		c.Status.FinishedAt = &metav1.Time{Time: r.Now()}
		if err := r.Status().Update(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// prune deletes finished changes, but for the last ones.
func (r *Changes) prune(ctx context.Context, finished []v1alpha1.PlanChange) error {
	var failed []error
	for i := range len(finished) - keptChanges {
		failed = append(failed, client.IgnoreNotFound(r.Delete(ctx, &finished[i])))
	}
	return errors.Join(failed...)
}

// progress is how far a change came, and what it needs next. It is a pure function of what the API server has.
type progress struct {
	change *v1alpha1.PlanChange
	plans  map[string]*v1alpha1.GPUPlan // of the steps within reach, by name
	now    time.Time
	edited []string
	soon   bool // the status is written soon
}

// reach returns the steps that next looks at: the wave, or what is taken back.
func (p *progress) reach() []v1alpha1.Step {
	from, to := p.wave()
	if p.change.Status.Phase == v1alpha1.Undoing {
		from = p.sinceDestroy(from)
	}
	return p.change.Spec.Steps[from:to]
}

// wave returns the bounds of the steps that are taken at once.
func (p *progress) wave() (from, to int) {
	steps := p.change.Spec.Steps
	from = min(max(int(p.change.Status.Done), 0), len(steps))
	for to = from; to < len(steps) && steps[to].Op == steps[from].Op; {
		to++
	}
	return from, to
}

// sinceDestroy returns the first step after the last one that destroyed a segment.
func (p *progress) sinceDestroy(from int) int {
	for from > 0 && p.change.Spec.Steps[from-1].Op != v1alpha1.Destroy {
		from--
	}
	return from
}

// left returns how long the change may still make no progress. 0: it has not begun.
func (p *progress) left() time.Duration {
	if p.soon {
		return briefly
	}
	if p.change.Status.ProgressedAt == nil {
		return 0
	}
	return max(p.change.Status.ProgressedAt.Add(stepLimit).Sub(p.now), time.Second)
}

// next returns the change's next status, and the plans to write before it.
func (p *progress) next() (v1alpha1.PlanChangeStatus, []*v1alpha1.GPUPlan) {
	status := *p.change.Status.DeepCopy()
	switch {
	case status.ProgressedAt == nil:
		status.Phase = v1alpha1.Running
		status.StartedAt = &metav1.Time{Time: p.now}
		status.ProgressedAt = status.StartedAt
	case status.Phase == v1alpha1.Undoing:
		p.undo(&status)
	default:
		p.advance(&status)
	}
	if status.Phase.Finished() {
		status.FinishedAt = &metav1.Time{Time: p.now}
	}

	var edited []*v1alpha1.GPUPlan
	for _, name := range p.edited {
		edited = append(edited, p.plans[name])
	}
	return status, edited
}

// lets reports whether the next change may create segments while this one does.
func (p *progress) lets(next *v1alpha1.PlanChange) bool {
	creates := func(s v1alpha1.Step) bool { return s.Op == v1alpha1.Create }
	from, to := p.wave()
	return p.change.Status.Phase == v1alpha1.Running && to == len(p.change.Spec.Steps) && creates(p.change.Spec.Steps[min(from, to-1)]) &&
		creates(next.Spec.Steps[0])
}

// brief reports whether a new status says too little to be written now: a change is a large object.
func (p *progress) brief(status v1alpha1.PlanChangeStatus) bool {
	was := p.change.Status
	_, to := p.wave()
	p.soon = was.ProgressedAt != nil && was.Phase == status.Phase && int(status.Done) < to && p.now.Sub(was.ProgressedAt.Time) < briefly
	return p.soon
}

// late reports whether the change has made no progress for too long.
func (p *progress) late() bool { return p.now.Sub(p.change.Status.ProgressedAt.Time) >= stepLimit }

// advance takes the steps of the wave.
func (p *progress) advance(status *v1alpha1.PlanChangeStatus) {
	from, to := p.wave()
	late := p.late()
	status.Message = ""
	for i := from; i < to; i++ {
		step := p.change.Spec.Steps[i]
		waits := ""
		switch step.Op {
		case v1alpha1.Destroy:
			waits = p.destroy(step, late)
		case v1alpha1.Retune:
			waits = p.retune(step, step.Segment)
		default:
			waits = p.create(step)
		}
		switch {
		case waits == "" && int(status.Done) == i:
			status.Done++
			status.ProgressedAt = &metav1.Time{Time: p.now}
		case waits != "" && status.Message == "":
			status.Message = fmt.Sprintf("step %d of %d, %s %s on %s: %s",
				i+1, len(p.change.Spec.Steps), step.Op, step.Segment.Name, step.GPUPlan, waits)
		}
	}
	switch {
	case from == to || int(status.Done) == len(p.change.Spec.Steps):
		status.Phase = v1alpha1.Done
	case late && int(status.Done) == from && p.change.Spec.Steps[from].Op != v1alpha1.Destroy:
		status.Phase = v1alpha1.Undoing
		status.Message += fmt.Sprintf(" (for %s)", stepLimit)
		status.ProgressedAt = &metav1.Time{Time: p.now}
		p.edited = nil
	}
}

// undo takes back the steps since the last destroyed segment. The message still says what failed.
func (p *progress) undo(status *v1alpha1.PlanChangeStatus) {
	waits := false
	for _, step := range slices.Backward(p.reach()) {
		switch {
		case step.Op == v1alpha1.Create:
			waits = p.destroy(step, p.late()) != "" || waits
		case step.Was != nil:
			// Whether the segment serves as before does not matter: it is all that can be done.
			p.retune(step, *step.Was)
		}
	}
	if !waits && len(p.edited) == 0 {
		status.Phase = v1alpha1.Failed
	}
}

// create adds a segment. Like retune and destroy, it returns what it waits for, or nothing if the step is in effect.
func (p *progress) create(step v1alpha1.Step) (waits string) {
	plan := p.plans[step.GPUPlan]
	if plan == nil {
		plan = &v1alpha1.GPUPlan{
			ObjectMeta: metav1.ObjectMeta{Name: step.GPUPlan},
			Spec:       v1alpha1.GPUPlanSpec{Fleet: p.change.Spec.Fleet, Place: step.Place},
		}
		p.plans[plan.Name] = plan
	}
	if plan.DeletionTimestamp != nil {
		return "the old plan of the GPU is being deleted"
	}
	if segmentOf(plan, step.Segment.Name) == nil {
		if other := inTheWay(plan, &step.Segment); other != "" {
			return "segment " + other + " has its place"
		}
		plan.Spec.Segments = append(plan.Spec.Segments, step.Segment)
		return p.edit(plan)
	}
	return notReady(plan, step.Segment.Name)
}

// retune makes a segment what the step, or undoing it, wants.
func (p *progress) retune(step v1alpha1.Step, want v1alpha1.Segment) (waits string) {
	plan := p.plans[step.GPUPlan]
	have := segmentOf(plan, want.Name)
	switch {
	case have == nil:
		return "the segment is gone"
	case !equality.Semantic.DeepEqual(*have, want):
		*have = want
		return p.edit(plan)
	}
	return notReady(plan, want.Name)
}

// destroy drains a segment, and then removes it. If it is late, it removes the segment with the clients that it still has.
func (p *progress) destroy(step v1alpha1.Step, late bool) (waits string) {
	plan := p.plans[step.GPUPlan]
	have := segmentOf(plan, step.Segment.Name)
	if have == nil {
		return ""
	}
	now := segmentStatus(&plan.Status, have.Name)
	switch {
	case late, have.Draining && now != nil && now.Drained:
		plan.Spec.Segments = slices.DeleteFunc(plan.Spec.Segments, func(s v1alpha1.Segment) bool { return s.Name == step.Segment.Name })
		return p.edit(plan)
	case !have.Draining:
		have.Draining = true
		return p.edit(plan)
	}
	return "clients leave it"
}

// edit marks a plan to be written. The step waits until the plan is read again.
func (p *progress) edit(plan *v1alpha1.GPUPlan) string {
	if !slices.Contains(p.edited, plan.Name) {
		p.edited = append(p.edited, plan.Name)
	}
	return "the plan is being written"
}

// inTheWay returns the segment whose place another one would take, or nothing. The planner chooses free places, but it may know
// an older version of the plan.
func inTheWay(p *v1alpha1.GPUPlan, s *v1alpha1.Segment) string {
	table, err := plan.Lookup(p.Spec.Table)
	for i := range p.Spec.Segments {
		if old := &p.Spec.Segments[i]; err == nil && fleet.Overlap(&table, old, s) {
			return old.Name
		}
	}
	return ""
}

func notReady(plan *v1alpha1.GPUPlan, segment string) string {
	now := segmentStatus(&plan.Status, segment)
	switch {
	case now == nil:
		return "the segment has no pod yet"
	case !now.Ready:
		return cmp.Or(now.Message, "the segment is not ready")
	}
	return ""
}

func segmentOf(plan *v1alpha1.GPUPlan, name string) *v1alpha1.Segment {
	if plan == nil {
		return nil
	}
	for i := range plan.Spec.Segments {
		if plan.Spec.Segments[i].Name == name {
			return &plan.Spec.Segments[i]
		}
	}
	return nil
}

// lostRace reports whether the cache was too old for a write.
func lostRace(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
}

// result reconciles again after some time, if that is not 0. After errors it does so sooner: soon if the cache was old.
func result(wait time.Duration, failed ...error) (reconcile.Result, error) {
	raced := false
	var rest []error
	for _, err := range failed {
		switch {
		case err == nil:
		case lostRace(err):
			raced = true
		default:
			rest = append(rest, err)
		}
	}
	switch err := errors.Join(rest...); {
	case err != nil:
		return reconcile.Result{}, err
	case raced:
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}
