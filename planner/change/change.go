package change

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/pack"
	"github.com/penstock/penstock/planner/verify"
)

// A Fate is the effect of a change on a service.
type Fate string

const (
	// Stays: model, rate and objective are unchanged, and no segment moves.
	Stays Fate = "stays"
	// Changes: the model, the rate or the objective is different.
	Changes Fate = "changes"
	// Moves: model, rate and objective are unchanged, but the service makes room
	// for others in a fleet that is otherwise too small.
	Moves Fate = "moves"
	// New: the service was not in the old plan.
	New Fate = "new"
	// Removed: the service is not in the problem.
	Removed Fate = "removed"
)

// A Service is the effect of a change on a service and its segments.
type Service struct {
	Service string `json:"service"`
	Fate    Fate   `json:"fate"`
	// OldRateRPS and OldSLOMS are 0 if the service is New. RateRPS and SLOMS are
	// 0 if it is Removed.
	OldRateRPS float64 `json:"old_rate_rps"`
	RateRPS    float64 `json:"rate_rps"`
	OldSLOMS   float64 `json:"old_slo_ms"`
	SLOMS      float64 `json:"slo_ms"`
	// Kept segments stay unchanged, except for their load. Retuned ones stay in
	// place but change their batch, number of processes or model.
	Kept      int `json:"kept"`
	Retuned   int `json:"retuned"`
	Created   int `json:"created"`
	Destroyed int `json:"destroyed"`
}

// An Op is the operation of a Step.
type Op string

const (
	// Create makes an instance and starts its processes.
	Create Op = "create"
	// Retune starts other processes in an instance that stays, next to the old
	// ones (shadows under MPS). It ends the old ones when the new ones serve.
	Retune Op = "retune"
	// Destroy drains a segment and removes its instance.
	Destroy Op = "destroy"
)

// A Step is one operation. It ends before the next begins.
type Step struct {
	Op Op `json:"op"`
	// Segment is the created or destroyed segment, or the new state of a retuned
	// one. Its load is that in its plan; a shadow's load is 0.
	Segment plan.Segment `json:"segment"`
	// Was is the old state of a retuned segment.
	Was *plan.Segment `json:"was,omitempty"`
	// Shadow means that the segment serves only during the change. It is a copy
	// of a segment that must be destroyed before its successor has room.
	Shadow bool `json:"shadow,omitempty"`
	// ShortRPS is how far the service is then below the rate that it should have,
	// because the fleet has no spare for a shadow. It is 0 in all other steps.
	ShortRPS float64 `json:"short_rps,omitempty"`
	// Why is a sentence for the reader.
	Why string `json:"why"`
}

// A Spare is a place that a shadow uses temporarily.
type Spare struct {
	GPU      int    `json:"gpu"`
	GPUModel string `json:"gpu_model"`
	Slot     int    `json:"slot"`
	GPCs     int    `json:"size_gpcs"`
	Service  string `json:"service"`
	// ExtraGPU means that neither plan uses the GPU: the change temporarily needs
	// one more.
	ExtraGPU bool `json:"extra_gpu"`
}

// A Change is a new plan and the steps to it.
type Change struct {
	Plan     *plan.Plan `json:"-"`
	Services []Service  `json:"services"`
	Steps    []Step     `json:"steps"`
	Spares   []Spare    `json:"spares"`
	// GPUs in use before and after the change, and the max during it.
	GPUsBefore int `json:"gpus_before"`
	GPUsAfter  int `json:"gpus_after"`
	GPUsDuring int `json:"gpus_during"`
}

// ErrOldPlan is returned, wrapped, if the old plan cannot be changed. Its policy
// has rules that a change does not keep, it is not legal, or it does not serve its
// own services. Or it uses GPUs that the problem does not have.
var ErrOldPlan = errors.New("the old plan cannot be changed")

// From changes an old plan, which it only reads, into one for the problem.
//
// It checks the old plan against the problem's GPUs, profiles and latency bounds,
// for the old plan's own rates and objectives.
//
// A fleet may be too small for the change unless services that stay move. Then as
// few of them Move as From finds necessary: one after the other, those with the
// fewest GPCs first. If that is not enough, everything that a new plan moves
// does.
//
// The new plan is Optimal if its number of GPUs is the lower bound that the old
// plan's policy proves for the changed problem. A note says if a new plan of that
// policy has fewer GPUs.
//
// Errors are ErrOldPlan, *plan.NoProfile and *plan.Infeasible, and *plan.TooSmall
// if the fleet cannot hold the change.
func From(old *plan.Plan, p *plan.Problem) (*Change, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	current, err := policy(old)
	if err != nil {
		return nil, err
	}
	if err := check(old, p); err != nil {
		return nil, err
	}
	w := world{problem: p, tables: p.Tables()}
	before := map[string]plan.Assigned{}
	for _, s := range old.Services {
		before[s.Service] = s
	}
	change := &Change{GPUsBefore: old.GPUs, Steps: []Step{}, Spares: []Spare{}}
	wanted := map[string]plan.Service{}
	var newJobs []job
	var stay []plan.Service
	for _, s := range p.Services {
		wanted[s.Name] = s
		was, exists := before[s.Name]
		fate := Stays
		switch {
		case !exists:
			fate = New
		case was.Model != s.Model || was.RateRPS != s.RateRPS || was.SLOMS != s.SLOMS:
			fate = Changes
		}
		change.Services = append(change.Services, Service{Service: s.Name, Fate: fate,
			OldRateRPS: was.RateRPS, RateRPS: s.RateRPS, OldSLOMS: was.SLOMS, SLOMS: s.SLOMS})
		if fate == Stays {
			stay = append(stay, s)
		} else {
			newJobs = append(newJobs, job{service: s, less: exists && was.Model == s.Model && s.RateRPS <= was.RateRPS && s.SLOMS >= was.SLOMS})
		}
	}
	for _, s := range old.Services {
		if _, exists := wanted[s.Service]; !exists {
			change.Services = append(change.Services, Service{Service: s.Service, Fate: Removed, OldRateRPS: s.RateRPS, OldSLOMS: s.SLOMS})
		}
	}
	if err := w.placeAround(old, wanted, newJobs, stay); err != nil {
		return nil, err
	}
	change.Plan = assemble(p, old, w.all())
	if fresh, err := current.Plan(p); err == nil {
		compare(change.Plan, fresh)
	}
	change.markMoved(old)
	change.GPUsAfter = change.Plan.GPUs
	change.steps(&w, old, before, wanted)
	return change, nil
}

// policy returns the old plan's policy. It has to be pack's, which allows any mix of
// measured points within the bound, anywhere on a GPU. The other policies have rules
// that From does not know, such as bounds that were learnt for a rate.
func policy(old *plan.Plan) (plan.Policy, error) {
	p := pack.New()
	if p.Name() != old.Policy {
		return nil, fmt.Errorf("%w: it is of policy %q, whose rules a change would break: make a new plan without --from, or name an old plan of %s",
			ErrOldPlan, old.Policy, p.Name())
	}
	return p, nil
}

// check returns an error if the old plan cannot be changed.
func check(old *plan.Plan, p *plan.Problem) error {
	sizes := p.Tables()
	for i, g := range old.Segments {
		if _, ok := sizes[g.GPUModel]; !ok {
			var names []string
			for _, stock := range p.Stocks() {
				names = append(names, stock.GPU.Name)
			}
			return fmt.Errorf("%w: segments[%d] is on a %s: want GPUs of %v, or a plan made without it", ErrOldPlan, i, g.GPUModel, names)
		}
	}
	as := *p
	as.Services = nil
	for _, s := range old.Services {
		as.Services = append(as.Services, plan.Service{Name: s.Service, Model: s.Model, RateRPS: s.RateRPS, SLOMS: s.SLOMS})
	}
	if err := verify.Plan(&as, old); err != nil {
		return fmt.Errorf("%w: %w", ErrOldPlan, err)
	}
	return nil
}

// compare compares a changed plan with a new plan of its policy for the same
// problem. It sets the lower bound, and notes whether the new plan has fewer
// GPUs.
func compare(pl, fresh *plan.Plan) {
	pl.LowerBound = fresh.LowerBound
	pl.Optimal = fresh.LowerBound > 0 && pl.GPUs == fresh.LowerBound
	if pl.GPUs > fresh.GPUs {
		pl.Notes = append(pl.Notes, fmt.Sprintf("a new plan without --from has %d GPUs, not %d, but moves services that stay here", fresh.GPUs, pl.GPUs))
	}
}

// markMoved marks the services that had to make room.
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

// byService returns a plan's segments by service, in order of place.
func byService(pl *plan.Plan) map[string][]plan.Segment {
	segments := make(map[string][]plan.Segment, len(pl.Services))
	for _, g := range pl.Segments {
		segments[g.Service] = append(segments[g.Service], g)
	}
	for _, list := range segments {
		slices.SortFunc(list, compareSegments)
	}
	return segments
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

// samePlace reports whether two segments are the same instance.
func samePlace(a, b plan.Segment) bool {
	return a.GPU == b.GPU && a.Slot == b.Slot && a.GPCs == b.GPCs
}

// sameWork reports whether two segments in the same place run the same model in
// the same way.
func sameWork(a, b plan.Segment) bool {
	return a.Model == b.Model && a.Batch == b.Batch && a.Processes == b.Processes
}
