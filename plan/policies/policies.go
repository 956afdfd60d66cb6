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
)

// Default is the policy that is taken where none is named.
const Default = "penstock"

// All are the policies, our own first, then the paper's and its variants, then the
// baselines that the paper compares with.
func All() []plan.Policy {
	return []plan.Policy{
		pack.New(),
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

// Solved is the problem that a plan of the policy is for, which is what the plan is
// to be checked and replayed with: for gpulet and iGniter, which share GPUs by MPS
// percentages, the same with MIG off, for the others p itself.
func Solved(policy string, p *plan.Problem) (*plan.Problem, error) {
	switch policy {
	case gpulet.Name, igniter.Name:
		return baseline.Percent(p, policy)
	}
	return p, nil
}
