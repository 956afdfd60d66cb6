package migserving_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/plantest"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/verify"
	"github.com/penstock/penstock/research/planners/migserving"
)

func TestPublishedScenarios(t *testing.T) {
	for i, want := range []int{4, 6, 7, 10, 16, 19} {
		name := plantest.Scenarios[i]
		p := plantest.Scenario(t, name)
		pl, err := migserving.New().Plan(p)
		must.OK(t, err)
		if err := verify.Plan(p, pl); err != nil {
			t.Error(err)
		}
		if pl.GPUs != want || pl.Policy != "mig-serving" {
			t.Errorf("%s on %d GPUs, want %d", name, pl.GPUs, want)
		}
		for _, s := range pl.Segments {
			if s.Processes != 1 {
				t.Errorf("%s: %+v", name, s)
			}
		}
	}
}

func TestWithoutMIG(t *testing.T) {
	_, err := migserving.New().Plan(plantest.Percent(t))
	if err == nil || !strings.Contains(err.Error(), "v100 has not") {
		t.Errorf("%v", err)
	}
}

func TestDrawnProblems(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := plantest.Draw(t)
		pl, err := migserving.New().Plan(p)
		var infeasible *plan.Infeasible
		if p.GPU.Percent || errors.As(err, &infeasible) {
			return // no MIG, or more than one process needed
		}
		must.OK(t, err)
		must.OK(t, verify.Plan(p, pl))
		if again, _ := migserving.New().Plan(p); !reflect.DeepEqual(pl, again) {
			t.Fatal("another plan the second time")
		}
	})
}
