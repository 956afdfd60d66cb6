package policies_test

import (
	"testing"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/plan/plantest"
	"github.com/penstock/penstock/plan/policies"
)

// Policies are compared on the same points: what one may not take, none may.
func TestNoPolicyTakesAPointBeyondTheLimits(t *testing.T) {
	p := *plantest.Scenario(t, "S1")
	m := plan.Profile{Model: "m", GPU: p.GPU.Name}
	for _, size := range p.GPU.Sizes {
		for _, c := range []struct{ batch, processes int }{{4, 1}, {16, 5}, {16, 6}, {256, 1}, {300, 1}} {
			m.Points = append(m.Points, plan.Point{GPCs: size.GPCs, Batch: c.batch, Processes: c.processes,
				ThroughputRPS: float64(size.GPCs * c.batch * c.processes), LatencyMS: 5})
		}
	}
	p.Profiles = map[string]map[string]plan.Profile{p.GPU.Name: {"m": m}}
	p.Services = []plan.Service{{Name: "s", Model: "m", RateRPS: 290, SLOMS: 4000}}
	for _, policy := range policies.All() {
		pl, err := policy.Plan(&p)
		if err != nil {
			t.Errorf("%s: %v", policy.Name(), err)
			continue
		}
		for _, s := range pl.Segments {
			if s.Batch > plan.MostBatch || s.Processes > plan.MostProcesses {
				t.Errorf("%s: batch %d, %d processes", policy.Name(), s.Batch, s.Processes)
			}
		}
	}
}
