// Package policies lists the policies that there are, by the names that
// `penstock plan --policy` takes.
package policies

import (
	"fmt"
	"strings"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/plan/baseline"
	"github.com/penstock/penstock/plan/gpulet"
	"github.com/penstock/penstock/plan/igniter"
	"github.com/penstock/penstock/plan/migserving"
	"github.com/penstock/penstock/plan/pack"
	"github.com/penstock/penstock/plan/parvagpu"
	"github.com/penstock/penstock/plan/simulated"
)

// Default is the policy that is taken where none is named.
const Default = "penstock"

// All are the policies, our own first, then the paper's and its variants, then the
// baselines that the paper compares with.
func All() []plan.Policy {
	return []plan.Policy{
		pack.New(), simulated.New(),
		parvagpu.New(), parvagpu.Single(), parvagpu.Unoptimized(),
		gpulet.New(), igniter.New(), migserving.New(),
	}
}

// Names are the policies' names, in All's order.
func Names() (names []string) {
	for _, p := range All() {
		names = append(names, p.Name())
	}
	return names
}

// Find is the policy of that name. The error lists the names.
func Find(name string) (plan.Policy, error) {
	for _, p := range All() {
		if p.Name() == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no policy %q; there are: %s", name, strings.Join(Names(), ", "))
}

// Shared is the problem as a policy shares its GPUs: with MIG off for gpulet and
// iGniter, which know MPS percentages alone, p itself for the others.
func Shared(policy string, p *plan.Problem) (*plan.Problem, error) {
	switch policy {
	case gpulet.Name, igniter.Name:
		return baseline.Percent(p, policy)
	}
	return p, nil
}

// Solved is the problem that a policy's plan solves, which is what the plan is to be
// checked and replayed with: p as the policy shares the GPUs, and, where the policy
// has latency bounds of its own, with these.
func Solved(p *plan.Problem, made *plan.Plan) (*plan.Problem, error) {
	p, err := Shared(made.Policy, p)
	if err == nil && made.Policy == simulated.Name {
		p = Bounded(p, made)
	}
	return p, err
}

// Bounded is a problem with the latency bounds that a plan says it was made with, as
// far as they are within the objectives.
func Bounded(p *plan.Problem, made *plan.Plan) *plan.Problem {
	own := make(map[string]float64, len(made.Services))
	for _, s := range made.Services {
		own[s.Service] = s.LatencyBoundMS
	}
	bounded := *p
	bounded.Bound = func(s plan.Service) float64 { return min(own[s.Name], s.SLOMS) }
	return &bounded
}
