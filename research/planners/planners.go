// Package planners lists the policies that penstock-lab compares: the product's, the one that learns
// bounds from the replay, and ParvaGPU's variants and baselines in its paper.
package planners

import (
	"fmt"
	"strings"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/pack"
	"github.com/penstock/penstock/research/planners/baseline"
	"github.com/penstock/penstock/research/planners/gpulet"
	"github.com/penstock/penstock/research/planners/igniter"
	"github.com/penstock/penstock/research/planners/migserving"
	"github.com/penstock/penstock/research/planners/parvagpu"
	"github.com/penstock/penstock/research/planners/simulated"
)

// All returns the policies, the product's first, then those that it is compared with.
func All() []plan.Policy {
	return []plan.Policy{pack.New(), simulated.New(), parvagpu.New(), single{parvagpu.New()}, parvagpu.Unoptimized(), gpulet.New(), igniter.New(), migserving.New()}
}

// Names returns the policies' names, in All's order.
func Names() (names []string) {
	for _, p := range All() {
		names = append(names, p.Name())
	}
	return names
}

// Find returns the policy of that name. The error lists the names.
func Find(name string) (plan.Policy, error) {
	for _, p := range All() {
		if p.Name() == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no policy %q; there are: %s", name, strings.Join(Names(), ", "))
}

// Solved returns the problem to check a policy's plan with. That of simulated has the plan's own
// latency bounds. gpulet and iGniter use only MPS percentages, so MIG is off for them.
func Solved(p *plan.Problem, made *plan.Plan) (*plan.Problem, error) {
	switch made.Policy {
	case gpulet.Name, igniter.Name:
		return baseline.Percent(p, made.Policy)
	case simulated.Name:
		return boundedBy(p, made), nil
	}
	return p, nil
}

// boundedBy is the problem with the latency bounds that the plan names. A bound above
// its objective is ignored.
func boundedBy(p *plan.Problem, made *plan.Plan) *plan.Problem {
	own := make(map[string]float64, len(made.Services))
	for _, s := range made.Services {
		own[s.Service] = s.LatencyBoundMS
	}
	bounded := *p
	bounded.Bound = func(s plan.Service) float64 { return min(own[s.Name], s.SLOMS) }
	return &bounded
}
