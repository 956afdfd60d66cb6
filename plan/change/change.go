package change

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/plan/pack"
	"github.com/penstock/penstock/plan/parvagpu"
	"github.com/penstock/penstock/plan/verify"
)

// A Fate says what becomes of a service.
type Fate string

const (
	// Stays: model, rate and objective are the old ones, nothing moves.
	Stays Fate = "stays"
	// Changes: the model, the rate or the objective is another.
	Changes Fate = "changes"
	// Moves: model, rate and objective are the old ones, but in a fleet that is
	// too small otherwise it makes room for others.
	Moves Fate = "moves"
	// New: it was not in the old plan.
	New Fate = "new"
	// Removed: it is not wanted any more.
	Removed Fate = "removed"
)

// A Service says what becomes of a service and of its segments.
type Service struct {
	Service string `json:"service"`
	Fate    Fate   `json:"fate"`
	// OldRateRPS and OldSLOMS are 0 where it is New, RateRPS and SLOMS where it is
	// Removed.
	OldRateRPS float64 `json:"old_rate_rps"`
	RateRPS    float64 `json:"rate_rps"`
	OldSLOMS   float64 `json:"old_slo_ms"`
	SLOMS      float64 `json:"slo_ms"`
	// Kept segments stay as they are, but for their load; Retuned ones stay where
	// they are and run another batch, number of processes or model.
	Kept      int `json:"kept"`
	Retuned   int `json:"retuned"`
	Created   int `json:"created"`
	Destroyed int `json:"destroyed"`
}

// An Op is what a Step does.
type Op string

const (
	// Create makes an instance and starts its processes.
	Create Op = "create"
	// Retune starts other processes in an instance that stays, beside the old ones
	// (shadows under MPS), and ends the old ones when the new ones serve.
	Retune Op = "retune"
	// opDestroy drains a segment and removes its instance.
	opDestroy Op = "destroy"
)

// A Step is one thing to do, done before the next begins.
type Step struct {
	Op Op `json:"op"`
	// Segment is what is created, what is destroyed, or what a retuned one becomes.
	// Loads are those of the plan that it is in; a shadow's is 0.
	Segment plan.Segment `json:"segment"`
	// Was is what a retuned segment was.
	Was *plan.Segment `json:"was,omitempty"`
	// Shadow says that the segment serves only while the change is under way. It is
	// a copy of one that must be destroyed before its successor has room.
	Shadow bool `json:"shadow,omitempty"`
	// ShortRPS is what the service then lacks of the rate that it should have,
	// since the fleet has no spare for a shadow; 0 everywhere else.
	ShortRPS float64 `json:"short_rps,omitempty"`
	// Why is a sentence for who reads it.
	Why string `json:"why"`
}

// A Spare is a place that a shadow uses for a while.
type Spare struct {
	GPU      int    `json:"gpu"`
	GPUModel string `json:"gpu_model"`
	Slot     int    `json:"slot"`
	GPCs     int    `json:"size_gpcs"`
	Service  string `json:"service"`
	// ExtraGPU says that neither plan uses the GPU: one more is needed meanwhile.
	ExtraGPU bool `json:"extra_gpu"`
}

// A Change is a new plan and the way to it.
type Change struct {
	Plan     *plan.Plan `json:"plan"`
	Services []Service  `json:"services"`
	Steps    []Step     `json:"steps"`
	Spares   []Spare    `json:"spares"`
	// GPUs in use before, after, and at most on the way.
	GPUsBefore int `json:"gpus_before"`
	GPUsAfter  int `json:"gpus_after"`
	GPUsDuring int `json:"gpus_during"`
}

// ErrOldPlan is returned, wrapped, when the old plan cannot be started from: it
// is of a policy whose rules a change does not keep, not legal, does not serve its
// own services, or is on GPUs that the problem has not.
var ErrOldPlan = errors.New("the old plan cannot be changed")

// From changes an old plan, which it only reads, into one for the problem.
//
// The old plan is checked against the problem's GPUs and profiles, for its own
// rates, objectives and latency bounds. A service that changes keeps its bound
// if only the rate is another; else, and for new services, the bound is
// Problem.Bound's, or without one the same part of the objective as before
// (plan.HalfSLO for new ones). It is never more than the objective.
//
// In a fleet that cannot hold the change while the services that stay do not
// move, as few of them as are found to be needed Move: one after the other, those
// of the least GPCs first, and at last all that a plan made anew moves.
//
// The new plan is Optimal where its GPUs are the lower bound that the old plan's
// policy proves for the changed problem; a note says when a plan that the policy
// makes anew has fewer.
//
// Errors: ErrOldPlan; *plan.NoProfile, *plan.Infeasible; *plan.TooSmall when the
// fleet cannot hold the change.
func From(old *plan.Plan, p *plan.Problem) (*Change, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	its, err := policy(old)
	if err != nil {
		return nil, err
	}
	if err := check(old, p); err != nil {
		return nil, err
	}
	bounded := *p
	bounded.Bound = bounds(old, p)

	w := world{problem: &bounded, tables: tables(p)}
	before := map[string]plan.Assigned{}
	for _, s := range old.Services {
		before[s.Service] = s
	}
	change := &Change{GPUsBefore: old.GPUs, Steps: []Step{}, Spares: []Spare{}}
	wanted := map[string]plan.Service{}
	var anew []job
	var stay []plan.Service
	for _, s := range p.Services {
		wanted[s.Name] = s
		was, there := before[s.Name]
		fate := Stays
		switch {
		case !there:
			fate = New
		case was.Model != s.Model || was.RateRPS != s.RateRPS || was.SLOMS != s.SLOMS:
			fate = Changes
		}
		change.Services = append(change.Services, Service{Service: s.Name, Fate: fate,
			OldRateRPS: was.RateRPS, RateRPS: s.RateRPS, OldSLOMS: was.SLOMS, SLOMS: s.SLOMS})
		if fate == Stays {
			stay = append(stay, s)
		} else {
			anew = append(anew, job{service: s, less: there && was.Model == s.Model && s.RateRPS <= was.RateRPS && s.SLOMS >= was.SLOMS})
		}
	}
	for _, s := range old.Services {
		if _, there := wanted[s.Service]; !there {
			change.Services = append(change.Services, Service{Service: s.Service, Fate: Removed, OldRateRPS: s.RateRPS, OldSLOMS: s.SLOMS})
		}
	}
	if err := w.placeAround(old, wanted, anew, stay); err != nil {
		return nil, err
	}
	change.Plan = assemble(&bounded, old, w.all())
	if fresh, err := its.Plan(&bounded); err == nil {
		compare(change.Plan, fresh)
	}
	change.markMoved(old)
	change.GPUsAfter = change.Plan.GPUs
	change.steps(&w, old, before, wanted)
	return change, nil
}

// keeps are the policies whose rules a changed plan keeps, so that it may go by
// their names: any mix of measured points within the bound, anywhere on a GPU. The
// others have rules of their own (one process a segment, partitions of a GPU,
// bounds that were learnt for a rate), which From does not know.
var keeps = []plan.Policy{pack.New(), parvagpu.New(), parvagpu.Unoptimized()}

// policy is the old plan's, of those that a change keeps to.
func policy(old *plan.Plan) (plan.Policy, error) {
	var names []string
	for _, p := range keeps {
		if p.Name() == old.Policy {
			return p, nil
		}
		names = append(names, p.Name())
	}
	return nil, fmt.Errorf("%w: it is of policy %q, whose rules a change would break: want a plan anew, with --policy and without --from, or an old plan of %s",
		ErrOldPlan, old.Policy, strings.Join(names, ", "))
}

// check says whether the old plan can be started from.
func check(old *plan.Plan, p *plan.Problem) error {
	there := tables(p)
	for i, g := range old.Segments {
		if _, ok := there[g.GPUModel]; !ok {
			var names []string
			for _, stock := range p.Stocks() {
				names = append(names, stock.GPU.Name)
			}
			return fmt.Errorf("%w: segments[%d] is on a %s: want GPUs of %v, or a plan made without it", ErrOldPlan, i, g.GPUModel, names)
		}
	}
	as := *p
	as.Services = nil
	bound := map[string]float64{}
	for _, s := range old.Services {
		as.Services = append(as.Services, plan.Service{Name: s.Service, Model: s.Model, RateRPS: s.RateRPS, SLOMS: s.SLOMS})
		bound[s.Service] = s.LatencyBoundMS
	}
	as.Bound = func(s plan.Service) float64 { return bound[s.Name] }
	if err := verify.Plan(&as, old); err != nil {
		return fmt.Errorf("%w: %w", ErrOldPlan, err)
	}
	return nil
}

// bounds are the latency bounds of the changed plan, see From.
func bounds(old *plan.Plan, p *plan.Problem) func(plan.Service) float64 {
	before := make(map[string]plan.Assigned, len(old.Services))
	for _, s := range old.Services {
		before[s.Service] = s
	}
	return func(s plan.Service) float64 {
		was, there := before[s.Name]
		bound := p.BoundMS(s)
		switch {
		case there && was.SLOMS == s.SLOMS && was.Model == s.Model:
			bound = was.LatencyBoundMS
		case there && p.Bound == nil:
			bound = was.LatencyBoundMS / was.SLOMS * s.SLOMS
		}
		return min(bound, s.SLOMS)
	}
}

// compare tells a changed plan what is known from the one that its policy makes
// anew of the same problem: the lower bound, and whether that one has fewer GPUs.
func compare(pl, fresh *plan.Plan) {
	pl.LowerBound = fresh.LowerBound
	pl.Optimal = fresh.LowerBound > 0 && pl.GPUs == fresh.LowerBound
	switch {
	case pl.GPUs == fresh.GPUs && pl.GPCs == fresh.GPCs:
		pl.Notes = fresh.Notes
	case pl.Optimal:
		pl.Notes = []string{fmt.Sprintf("no plan has fewer GPUs than %d: proved", pl.GPUs)}
	case pl.GPUs > fresh.GPUs:
		pl.Notes = []string{fmt.Sprintf("a plan made anew has %d GPUs, not %d; it moves services that stay here", fresh.GPUs, pl.GPUs)}
	case fresh.LowerBound > 0:
		pl.Notes = []string{fmt.Sprintf("no plan has fewer GPUs than %d: proved; that none has fewer than %d is not", fresh.LowerBound, pl.GPUs)}
	}
}

// markMoved finds the services that had to make room.
func (c *Change) markMoved(old *plan.Plan) {
	before, after := byService(old), byService(c.Plan)
	for i := range c.Services {
		s := &c.Services[i]
		same := func(a, b plan.Segment) bool { return samePlace(a, b) && sameWork(a, b) }
		if s.Fate == Stays && !slices.EqualFunc(before[s.Service], after[s.Service], same) {
			s.Fate = Moves
		}
	}
}

// byService has a plan's segments of each service, in order of place.
func byService(pl *plan.Plan) map[string][]plan.Segment {
	of := make(map[string][]plan.Segment, len(pl.Services))
	for _, g := range pl.Segments {
		of[g.Service] = append(of[g.Service], g)
	}
	for _, list := range of {
		slices.SortFunc(list, compareSegments)
	}
	return of
}

func tables(p *plan.Problem) map[string]plan.GPU {
	t := map[string]plan.GPU{}
	for _, stock := range p.Stocks() {
		t[stock.GPU.Name] = stock.GPU
	}
	return t
}

// assemble makes the plan of the segments, which keep their GPUs' numbers.
func assemble(p *plan.Problem, old *plan.Plan, segments []plan.Segment) *plan.Plan {
	used := map[int]bool{}
	last := -1
	for _, g := range segments {
		used[g.GPU] = true
		last = max(last, g.GPU)
	}
	var numbers, idle []int
	for n := range last + 1 {
		if used[n] {
			numbers = append(numbers, n)
		} else {
			idle = append(idle, n)
		}
	}
	pl := plan.New(p, old.Policy, segments)
	for i := range pl.Segments {
		pl.Segments[i].GPU = numbers[pl.Segments[i].GPU]
	}
	pl.IdleGPUs = idle
	return pl
}

// compareSegments orders segments by place.
func compareSegments(a, b plan.Segment) int { return cmp.Or(a.GPU-b.GPU, a.Slot-b.Slot) }

// samePlace says whether two segments are the same instance.
func samePlace(a, b plan.Segment) bool {
	return a.GPU == b.GPU && a.Slot == b.Slot && a.GPCs == b.GPCs
}

// sameWork says whether two segments of the same place run the same.
func sameWork(a, b plan.Segment) bool {
	return a.Model == b.Model && a.Batch == b.Batch && a.Processes == b.Processes
}
