// Package planner has the policies that turn a problem into a plan (package plan), by the
// names that `penstock plan --policy` takes. Its subfolders have one policy each, and what
// works with finished plans: verify, replay, change, render and deploy.
package planner

import (
	"fmt"
	"strings"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/pack"
	"github.com/penstock/penstock/planner/simulated"
)

// Default is the policy if none is named.
const Default = "penstock"

// All are the policies, the default first.
func All() []plan.Policy {
	return []plan.Policy{pack.New(), simulated.New()}
}

// Names are the policies' names, in All's order.
func Names() (names []string) {
	for _, p := range All() {
		names = append(names, p.Name())
	}
	return names
}

// Find returns the policy of that name. The error lists all names.
func Find(name string) (plan.Policy, error) {
	for _, p := range All() {
		if p.Name() == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no policy %q; there are: %s", name, strings.Join(Names(), ", "))
}

// Solved returns the problem to check and replay a policy's plan with. This is p, with
// the plan's own latency bounds if the policy has any.
func Solved(p *plan.Problem, made *plan.Plan) *plan.Problem {
	if made.Policy == simulated.Name {
		return boundedBy(p, made)
	}
	return p
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
