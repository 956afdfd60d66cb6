// Package policies lists the policies that there are, by the names that
// `penstock plan --policy` takes.
package policies

import (
	"fmt"
	"strings"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/plan/parvagpu"
)

// Default is the policy that is taken where none is named.
const Default = "parvagpu"

// All are the policies, our own first, then the paper's and its variants, then the
// baselines that the paper compares with.
func All() []plan.Policy {
	return []plan.Policy{
		parvagpu.New(), parvagpu.Single(), parvagpu.Unoptimized(),
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
