// Package parvagpu is ParvaGPU's planner as described in its paper. It consists of
// the segment configurator (Algorithm 1, section III-D) and the segment allocator
// (Algorithm 2, section III-E).
//
// A plan is made in four steps:
//
//  1. Triplets (triplet.go): for each service and size, choose the point of the
//     largest throughput within the latency bound.
//  2. Demand matching (triplet.go): fill as many segments of the triplet with the
//     most throughput per GPC as the rate needs. The smallest size that carries the
//     rest takes the rest.
//  3. Segment relocation (allocate.go): place segments by size, largest first, each
//     into the first GPU that has room for its size.
//  4. Allocation optimisation (allocate.go): from the last GPU on, split the
//     segments of GPUs that use fewer than four GPCs into small ones. These fill the
//     gaps of the GPUs before.
//
// If the paper leaves a choice open, the package follows its published results
// and code, with two exceptions that would make a plan worse. A segment that
// small ones cannot replace stays (the published code loses it). An
// optimisation that costs GPUs is dropped.
package parvagpu

import (
	"errors"
	"slices"
	"strings"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/research/planners/fleet"
)

// ErrMixedFleet is returned for a fleet of several GPU models: the paper's
// algorithms plan on one model only.
var ErrMixedFleet = errors.New("ParvaGPU's algorithms plan on one model of GPU: want a fleet of one, or the policy penstock")

type planner struct {
	name     string
	optimise bool
}

// New is ParvaGPU: the policy "parvagpu".
func New() plan.Policy {
	return planner{name: "parvagpu", optimise: true}
}

// Unoptimized is ParvaGPU without its last stage, allocation optimisation, as section IV-A
// compares it ("parvagpu-unoptimized").
func Unoptimized() plan.Policy { return planner{name: "parvagpu-unoptimized"} }

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
	services, err := configure(p, stocks[0].GPU)
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
	if err := fleet.Fit(p, deployed); err != nil {
		return nil, err
	}
	return deployed, nil
}

// byName orders services by name, like the published profiles. The paper does
// not specify an order.
func byName(services []plan.Service) []plan.Service {
	sorted := slices.Clone(services)
	slices.SortFunc(sorted, func(a, b plan.Service) int { return strings.Compare(a.Name, b.Name) })
	return sorted
}
