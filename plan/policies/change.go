package policies

import (
	"fmt"
	"math"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/plan/change"
	"github.com/penstock/penstock/plan/simulated"
)

// Change moves as little of an old plan as possible to solve a problem. The error wraps
// change.ErrOldPlan if the plan cannot be of its policy.
func Change(old *plan.Plan, problem *plan.Problem) (*change.Change, error) {
	if _, err := Find(old.Policy); err != nil {
		return nil, fmt.Errorf("%w: %w", change.ErrOldPlan, err)
	}
	if old.Policy != simulated.Name { // which has learnt its own
		if err := ofHalf(old); err != nil {
			return nil, fmt.Errorf("%w: %w", change.ErrOldPlan, err)
		}
		half := *problem
		half.Bound = plan.HalfSLO
		problem = &half
	}
	return change.From(old, problem)
}

// ofHalf says whether a plan's latency bounds are those of all policies that learn
// none. A file that says otherwise was changed by hand, and what it calls served is
// not.
func ofHalf(p *plan.Plan) error {
	for i, s := range p.Services {
		want := plan.HalfSLO(plan.Service{SLOMS: s.SLOMS})
		if !(math.Abs(s.LatencyBoundMS-want) <= 1e-9*want) {
			return fmt.Errorf("services[%d]: %s has latency_bound_ms %v: policy %s plans with half of slo_ms × 0.9, which is %v",
				i, s.Service, s.LatencyBoundMS, p.Policy, want)
		}
	}
	return nil
}
