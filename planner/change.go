package planner

import (
	"fmt"
	"math"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/change"
	"github.com/penstock/penstock/planner/simulated"
)

// Change solves a problem with as few changes to an old plan as possible. The error
// wraps change.ErrOldPlan if the plan cannot be of its policy.
func Change(old *plan.Plan, problem *plan.Problem) (*change.Change, error) {
	if _, err := Find(old.Policy); err != nil {
		return nil, fmt.Errorf("%w: %w", change.ErrOldPlan, err)
	}
	if old.Policy != simulated.Name { // which learns its own bounds
		if err := ofHalf(old); err != nil {
			return nil, fmt.Errorf("%w: %w", change.ErrOldPlan, err)
		}
		half := *problem
		half.Bound = plan.HalfSLO
		problem = &half
	}
	return change.From(old, problem)
}

// ofHalf returns an error if a latency bound is not plan.HalfSLO of its objective, as
// in all policies that learn no bounds. Another bound means that the file was edited by
// hand, and that its services may miss their objectives.
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
