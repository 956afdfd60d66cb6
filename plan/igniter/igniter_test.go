package igniter_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/plan/baseline"
	"github.com/penstock/penstock/plan/igniter"
	"github.com/penstock/penstock/plan/plantest"
	"github.com/penstock/penstock/plan/verify"
)

// asPlanned is the problem that igniter makes of a problem, and its plan.
func asPlanned(t interface {
	Helper()
	Fatal(...any)
}, p *plan.Problem) (*plan.Problem, *plan.Plan) {
	t.Helper()
	policy := igniter.New()
	p, err := baseline.Percent(p, igniter.Name)
	if err != nil {
		t.Fatal(err)
	}
	pl, err := policy.Plan(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := verify.Plan(p, pl); err != nil {
		t.Fatal(err)
	}
	return p, pl
}

func TestThePublishedScenarios(t *testing.T) {
	for i, want := range []int{2, 4, 5, 11} {
		name := plantest.Scenarios[i]
		_, pl := asPlanned(t, plantest.Scenario(t, name))
		if pl.GPUs != want || pl.GPUModel != "a100-80-mps" || pl.Policy != "igniter" {
			t.Errorf("%s on %d GPUs %s, want %d", name, pl.GPUs, pl.GPUModel, want)
		}
		asked, err := igniter.New().Plan(plantest.Scenario(t, name))
		if err != nil || !reflect.DeepEqual(asked, pl) {
			t.Errorf("%s is planned otherwise when it is asked on MIG: %v", name, err)
		}
		if len(pl.Segments) != len(pl.Services) {
			t.Errorf("%s: %d segments for %d services: a service was divided", name, len(pl.Segments), len(pl.Services))
		}
	}
}

// Section IV-B1: "iGniter is unable to manage high request rates, leading to its
// failure to execute in S5 and S6".
func TestS5AndS6AreRefusedAsInThePaper(t *testing.T) {
	for _, name := range plantest.Scenarios[4:] {
		_, err := igniter.New().Plan(plantest.Scenario(t, name))
		var infeasible *plan.Infeasible
		if !errors.As(err, &infeasible) || !infeasible.RateMissed || !strings.Contains(err.Error(), "short; iGniter does not divide a service") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNeighboursCostAShare(t *testing.T) {
	p := *plantest.Scenario(t, "S1")
	one := plan.Service{Name: "a", Model: "vgg19", RateRPS: 300, SLOMS: 100}
	p.Services = []plan.Service{one}
	_, alone := asPlanned(t, &p)
	other := one
	other.Name = "b"
	p.Services = append(p.Services, other)
	_, both := asPlanned(t, &p)
	if alone.GPUs != 1 || both.GPUs != 1 || both.GPCs <= 2*alone.GPCs {
		t.Errorf("alone %d steps, two %d on %d GPUs", alone.GPCs, both.GPCs, both.GPUs)
	}
}

func TestOnV100sWithMeasuredPercentages(t *testing.T) {
	asPlanned(t, plantest.Percent(t))
}

func TestAnObjectiveThatNothingMeetsIsRefused(t *testing.T) {
	p := *plantest.Scenario(t, "S1")
	p.Services = []plan.Service{{Name: "fast", Model: "bert", RateRPS: 1, SLOMS: 2}}
	_, err := igniter.New().Plan(&p)
	var infeasible *plan.Infeasible
	if !errors.As(err, &infeasible) || !strings.Contains(err.Error(), `service "fast"`) || !strings.Contains(err.Error(), "ms too long") {
		t.Errorf("%v", err)
	}
	p.Services[0].Model = "gpt"
	var missing *plan.NoProfile
	if _, err = igniter.New().Plan(&p); !errors.As(err, &missing) {
		t.Errorf("%v", err)
	}
}

func TestWhateverIsDrawnIsPlannedLegallyOrRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := plantest.Draw(t)
		policy := igniter.New()
		q, err := baseline.Percent(p, igniter.Name)
		if err != nil {
			t.Fatal(err)
		}
		pl, err := policy.Plan(q)
		var infeasible *plan.Infeasible
		if errors.As(err, &infeasible) {
			return // more than one process, or a rate that no GPU carries alone
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := verify.Plan(q, pl); err != nil {
			t.Fatal(err)
		}
		if again, _ := policy.Plan(q); !reflect.DeepEqual(pl, again) {
			t.Fatal("another plan the second time")
		}
	})
}
