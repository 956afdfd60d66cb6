// Package planners lists the policies that penstock-lab compares: the product's, and ParvaGPU's
// variants and baselines in its paper.
package planners

import (
	"fmt"
	"strings"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner"
	"github.com/penstock/penstock/research/planners/baseline"
	"github.com/penstock/penstock/research/planners/gpulet"
	"github.com/penstock/penstock/research/planners/igniter"
	"github.com/penstock/penstock/research/planners/migserving"
	"github.com/penstock/penstock/research/planners/parvagpu"
)

// All returns the policies, the product's first, then ParvaGPU's and its baselines.
func All() []plan.Policy {
	return append(planner.All(), parvagpu.New(), single{parvagpu.New()}, parvagpu.Unoptimized(), gpulet.New(), igniter.New(), migserving.New())
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

// Solved returns the problem that a policy's plan solves, as planner.Solved does. gpulet
// and iGniter use only MPS percentages, so MIG is off for them.
func Solved(p *plan.Problem, made *plan.Plan) (*plan.Problem, error) {
	switch made.Policy {
	case gpulet.Name, igniter.Name:
		return baseline.Percent(p, made.Policy)
	}
	return planner.Solved(p, made), nil
}
