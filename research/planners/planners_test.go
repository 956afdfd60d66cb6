package planners_test

import (
	"encoding/json"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/plantest"
	"github.com/penstock/penstock/planner/pack"
	"github.com/penstock/penstock/planner/replay"
	"github.com/penstock/penstock/planner/verify"
	"github.com/penstock/penstock/research/planners"
	"github.com/penstock/penstock/research/planners/parvagpu"
)

func TestLimits(t *testing.T) { plantest.Limits(t, planners.All()) }

func TestEstimates(t *testing.T) { plantest.Estimates(t, planners.All()) }

func TestSamePlanTwice(t *testing.T) {
	for _, policy := range planners.All() {
		var first string
		for range 2 {
			made, err := policy.Plan(plantest.Scenario(t, "S3"))
			if err != nil {
				t.Fatalf("%s: %v", policy.Name(), err)
			}
			text, err := json.Marshal(made)
			must.OK(t, err)
			if first != "" && string(text) != first {
				t.Errorf("%s plans\n%s\nthen\n%s", policy.Name(), first, text)
			}
			first = string(text)
		}
	}
}

// According to the paper, plans without MPS need the same GPUs on S1 to S3, and
// 7.1 and 11.1 % more on S5 and S6. (On S4 the paper has 8 GPUs without MPS;
// these algorithms need 7.)
func TestWithoutMPS(t *testing.T) {
	policy, err := planners.Find("parvagpu-single")
	must.OK(t, err)
	for scenario, gpus := range map[string]int{"S1": 2, "S2": 3, "S3": 5, "S5": 14, "S6": 18} {
		p := plantest.Scenario(t, scenario)
		made, err := policy.Plan(p)
		must.OK(t, err)
		must.OK(t, verify.Plan(p, made))
		if made.GPUs != gpus || made.Policy != policy.Name() {
			t.Errorf("%s: %d GPUs by %s, want %d", scenario, made.GPUs, made.Policy, gpus)
		}
		for _, s := range made.Segments {
			if s.Processes != 1 {
				t.Fatalf("%s: a segment of %d processes", scenario, s.Processes)
			}
		}
	}
}

// Half of the objective is enough for queueing in the paper's scenarios: ParvaGPU's
// plans leave every service some spare throughput.
func TestHalfSuffices(t *testing.T) {
	for _, scenario := range []string{"S1", "S2", "S3"} {
		p := plantest.Scenario(t, scenario)
		made, err := parvagpu.New().Plan(p)
		must.OK(t, err)
		report, err := replay.Run(p, made, replay.Config{})
		must.OK(t, err)
		for _, s := range report.Services {
			if s.Violations > 0.0001 {
				t.Errorf("%s: %.3f %% of %s's requests are missed at load %.3f", scenario, 100*s.Violations, s.Service, s.Load)
			}
		}
	}
}

// Penstock's planner needs no more GPUs than ParvaGPU's, and fewer on S3 from twice its services on.
func TestAgainstParvaGPU(t *testing.T) {
	for _, scenario := range plantest.Scenarios {
		for times := 1; times <= 10; times++ {
			p := plantest.Times(plantest.Scenario(t, scenario), times)
			ours, err := pack.New().Plan(p)
			must.OK(t, err)
			theirs, err := parvagpu.New().Plan(p)
			must.OK(t, err)
			if ours.GPUs > theirs.GPUs || scenario == "S3" && times > 1 && ours.GPUs == theirs.GPUs {
				t.Errorf("%s × %d: %d GPUs, parvagpu %d", scenario, times, ours.GPUs, theirs.GPUs)
			}
		}
	}
}
