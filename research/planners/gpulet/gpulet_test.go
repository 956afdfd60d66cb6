package gpulet_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/plantest"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/research/planners/baseline/baselinetest"
	"github.com/penstock/penstock/research/planners/gpulet"
)

func TestPublishedScenarios(t *testing.T) {
	for i, want := range []int{3, 6, 7, 10, 17, 22} {
		name := plantest.Scenarios[i]
		p, pl := baselinetest.Plan(t, gpulet.New(), plantest.Scenario(t, name))
		if pl.GPUs != want || pl.GPUModel != "a100-80-mps" || pl.Policy != "gpulet" {
			t.Errorf("%s on %d GPUs %s, want %d", name, pl.GPUs, pl.GPUModel, want)
		}
		asked, err := gpulet.New().Plan(plantest.Scenario(t, name))
		if err != nil || !reflect.DeepEqual(asked, pl) {
			t.Errorf("%s is planned otherwise when it is asked on MIG: %v", name, err)
		}
		// At most two partitions per GPU, which together fill it; a single one
		// may leave a rest.
		sizes := map[int][]int{}
		for _, s := range pl.Segments {
			sizes[s.GPU] = append(sizes[s.GPU], s.GPCs)
		}
		for gpu, list := range sizes {
			if len(list) > 2 || len(list) == 2 && list[0]+list[1] != p.GPU.GPCs {
				t.Errorf("%s: GPU %d has partitions of %v steps", name, gpu, list)
			}
		}
	}
}

func TestSecondPartition(t *testing.T) {
	p := *plantest.Scenario(t, "S1")
	p.Services = []plan.Service{{Name: "a", Model: "resnet50", RateRPS: 10, SLOMS: 200}, {Name: "b", Model: "resnet50", RateRPS: 11, SLOMS: 200}}
	_, pl := baselinetest.Plan(t, gpulet.New(), &p)
	if len(pl.Segments) != 2 || pl.Segments[0].GPCs != 11 || pl.Segments[1].GPCs != 43 || pl.GPUs != 1 {
		t.Errorf("%+v", pl.Segments)
	}
}

func TestV100(t *testing.T) {
	baselinetest.Plan(t, gpulet.New(), plantest.Percent(t))
}

func TestInfeasible(t *testing.T) {
	p := *plantest.Scenario(t, "S1")
	p.Services = []plan.Service{{Name: "fast", Model: "bert", RateRPS: 1, SLOMS: 2}}
	_, err := gpulet.New().Plan(&p)
	var infeasible *plan.Infeasible
	if !errors.As(err, &infeasible) || !strings.Contains(err.Error(), `service "fast"`) || !strings.Contains(err.Error(), "ms too long") {
		t.Errorf("%v", err)
	}
	p.Services[0].Model = "gpt"
	var missing *plan.NoProfile
	if _, err = gpulet.New().Plan(&p); !errors.As(err, &missing) {
		t.Errorf("%v", err)
	}
}

// A random problem may need more than one process, or leave no room for a
// neighbour.
func TestDrawnProblems(t *testing.T) { baselinetest.Drawn(t, gpulet.New()) }
