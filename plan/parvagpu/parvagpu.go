// Package parvagpu is ParvaGPU's planner, as its paper has it: the segment
// configurator (Algorithm 1, section III-D) and the segment allocator
// (Algorithm 2, section III-E), and the two variants of section IV-A.
//
// The way of a plan:
//
//  1. Triplets (triplet.go): for each service and size the point of the largest
//     throughput within the latency bound.
//  2. Demand matching (triplet.go): as many segments of the triplet with the
//     most throughput a GPC as the rate fills, and for the rest the smallest
//     size that carries it.
//  3. Segment relocation (allocate.go): segments by size, largest first, each
//     into the first GPU that has room where the size is preferred.
//  4. Allocation optimisation (allocate.go): from the last GPU on, what lies on
//     GPUs of less than four GPCs is split into small segments, which fill the
//     gaps of the GPUs in front.
//
// Where the paper leaves room, its published results and code decide, and what
// they would do to the harm of a plan is not done: a segment that small ones
// cannot replace stays (the published code loses it), and an optimisation that
// costs GPUs is not taken.
package parvagpu

import (
	"errors"
	"slices"
	"strings"

	"github.com/penstock/penstock/plan"
)

// ErrMixedFleet is returned for a fleet of several models of GPU: the paper's
// algorithms know one.
var ErrMixedFleet = errors.New("ParvaGPU's algorithms plan on one model of GPU: want a fleet of one, or the policy penstock")

// planner is one of the three policies.
type planner struct {
	name      string
	processes int
	optimise  bool
}

// New is ParvaGPU: the policy "parvagpu".
func New() plan.Policy {
	return planner{name: "parvagpu", processes: plan.MaxProcesses, optimise: true}
}

// Single is ParvaGPU without MPS: one process a segment ("parvagpu-single").
func Single() plan.Policy {
	return planner{name: "parvagpu-single", processes: 1, optimise: true}
}

// Unoptimized is ParvaGPU without its last stage, allocation optimisation
// ("parvagpu-unoptimized").
func Unoptimized() plan.Policy {
	return planner{name: "parvagpu-unoptimized", processes: plan.MaxProcesses}
}

// Name is the policy's name.
func (pl planner) Name() string { return pl.name }

// Plan plans; it returns the errors of plan.Policy, and ErrMixedFleet. It is
// near-linear in the number of segments.
func (pl planner) Plan(p *plan.Problem) (*plan.Plan, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	stocks := p.Stocks()
	if len(stocks) > 1 {
		return nil, ErrMixedFleet
	}
	services, err := pl.configure(p, stocks[0].GPU)
	if err != nil {
		return nil, err
	}
	relocated := newMap(stocks[0].GPU)
	for _, s := range services {
		relocated.enqueue(s, s.optimal, s.number)
		relocated.enqueue(s, s.last, 1)
	}
	relocated.allocate()
	best := relocated
	if pl.optimise {
		optimised := relocated.clone()
		optimised.optimise()
		if optimised.inUse() <= relocated.inUse() {
			best = optimised
		}
	}
	deployed := plan.New(p, pl.name, best.segments())
	if err := p.Fit(deployed); err != nil {
		return nil, err
	}
	return deployed, nil
}

// byName orders services by name, as the published profiles' order does; the
// paper names none.
func byName(services []plan.Service) []plan.Service {
	sorted := slices.Clone(services)
	slices.SortFunc(sorted, func(a, b plan.Service) int { return strings.Compare(a.Name, b.Name) })
	return sorted
}
