package igniter_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/plantest"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/research/planners/baseline/baselinetest"
	"github.com/penstock/penstock/research/planners/igniter"
)

func TestPublishedScenarios(t *testing.T) {
	for i, want := range []int{2, 4, 5, 11} {
		name := plantest.Scenarios[i]
		_, pl := baselinetest.Plan(t, igniter.New(), plantest.Scenario(t, name))
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
func TestScenariosS5S6(t *testing.T) {
	for _, name := range plantest.Scenarios[4:] {
		_, err := igniter.New().Plan(plantest.Scenario(t, name))
		var infeasible *plan.Infeasible
		if !errors.As(err, &infeasible) || !strings.Contains(err.Error(), "short; iGniter does not divide a service") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInterference(t *testing.T) {
	p := *plantest.Scenario(t, "S1")
	one := plan.Service{Name: "a", Model: "vgg19", RateRPS: 300, SLOMS: 100}
	p.Services = []plan.Service{one}
	_, alone := baselinetest.Plan(t, igniter.New(), &p)
	other := one
	other.Name = "b"
	p.Services = append(p.Services, other)
	_, both := baselinetest.Plan(t, igniter.New(), &p)
	if alone.GPUs != 1 || both.GPUs != 1 || both.GPCs <= 2*alone.GPCs {
		t.Errorf("alone %d steps, two %d on %d GPUs", alone.GPCs, both.GPCs, both.GPUs)
	}
}

func TestV100(t *testing.T) {
	baselinetest.Plan(t, igniter.New(), plantest.Percent(t))
}

func TestInfeasible(t *testing.T) {
	p := *plantest.Scenario(t, "S1")
	p.Services = []plan.Service{{Name: "fast", Model: "bert", RateRPS: 1, SLOMS: 2}}
	_, err := igniter.New().Plan(&p)
	var infeasible *plan.Infeasible
	if !errors.As(err, &infeasible) || !strings.Contains(err.Error(), `service "fast"`) || !strings.Contains(err.Error(), "ms too long") {
		t.Errorf("%v", err)
	}
	p.Services[0] = plan.Service{Name: "large", Model: "vgg19", RateRPS: 100000, SLOMS: 200}
	if _, err = igniter.New().Plan(&p); err == nil || !strings.Contains(err.Error(), "rate 100000 requests/s: the best segment within 90 ms per batch") {
		t.Errorf("a rate that is not divided: %v", err)
	}
	p.Services[0].Model = "gpt"
	var missing *plan.NoProfile
	if _, err = igniter.New().Plan(&p); !errors.As(err, &missing) {
		t.Errorf("%v", err)
	}
}

// A random problem may need more than one process, or a rate that no GPU carries
// alone.
func TestDrawnProblems(t *testing.T) { baselinetest.Drawn(t, igniter.New()) }
