// Package baselinetest tests policies that plan on percentages of GPUs.
package baselinetest

import (
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/plantest"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/verify"
	"github.com/penstock/penstock/research/planners/baseline"
)

// Plan returns the problem on percentages of its GPUs, and a policy's verified plan for it.
func Plan(t testing.TB, policy plan.Policy, p *plan.Problem) (*plan.Problem, *plan.Plan) {
	t.Helper()
	p, err := baseline.Percent(p, policy.Name())
	if err != nil {
		t.Fatal(err)
	}
	pl, err := planned(policy, p)
	if err != nil {
		t.Fatal(err)
	}
	return p, pl
}

// Drawn tests a policy with a random problem. It must return a legal plan or *plan.Infeasible,
// and the same plan each time.
func Drawn(t *testing.T, policy plan.Policy) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := baseline.Percent(plantest.Draw(t), policy.Name())
		if err != nil {
			t.Fatal(err)
		}
		pl, err := planned(policy, p)
		var infeasible *plan.Infeasible
		if errors.As(err, &infeasible) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := policy.Plan(p); !reflect.DeepEqual(pl, again) {
			t.Fatal("another plan the second time")
		}
	})
}

// planned returns a verified plan.
func planned(policy plan.Policy, p *plan.Problem) (*plan.Plan, error) {
	pl, err := policy.Plan(p)
	if err == nil {
		err = verify.Plan(p, pl)
	}
	return pl, err
}
