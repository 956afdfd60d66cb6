package plantest

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/plan"
)

// Limits tests that no policy takes a point beyond the limits of batches and processes,
// because policies must be compared on the same points.
func Limits(t *testing.T, policies []plan.Policy) {
	p := *Scenario(t, "S1")
	m := plan.Profile{Model: "m", GPU: p.GPU.Name}
	for _, size := range p.GPU.Sizes {
		for _, c := range []struct{ batch, processes int }{{4, 1}, {16, 5}, {16, 6}, {256, 1}, {300, 1}} {
			m.Points = append(m.Points, plan.Point{GPCs: size.GPCs, Batch: c.batch, Processes: c.processes,
				ThroughputRPS: float64(size.GPCs * c.batch * c.processes), LatencyMS: 5})
		}
	}
	p.Profiles = map[string]map[string]plan.Profile{p.GPU.Name: {"m": m}}
	p.Services = []plan.Service{{Name: "s", Model: "m", RateRPS: 290, SLOMS: 4000}}
	for _, policy := range policies {
		pl, err := policy.Plan(&p)
		if err != nil {
			t.Errorf("%s: %v", policy.Name(), err)
			continue
		}
		for _, s := range pl.Segments {
			if s.Batch > plan.MaxBatch || s.Processes > plan.MaxProcesses {
				t.Errorf("%s: batch %d, %d processes", policy.Name(), s.Batch, s.Processes)
			}
		}
	}
}

// Estimates tests that a plan states that its sizes were measured under MPS, and not in
// MIG instances.
func Estimates(t *testing.T, policies []plan.Policy) {
	measured := profile.Profile{Header: profile.Header{Version: 1, GPU: "a100-80", Unit: profile.GPCs, HeldBy: "mps"}}
	for _, size := range []int{1, 2, 3, 4, 7} {
		measured.Points = append(measured.Points, profile.Point{Share: size, Batch: 4, Processes: 1, Throughput: 100 * float64(size), Latency: 5e6})
	}
	p := *Scenario(t, "S1")
	p.Services = []plan.Service{{Name: "s", Model: "m", RateRPS: 250, SLOMS: 4000}}
	for _, estimated := range []bool{true, false} {
		if !estimated { // a file without a header is of real instances
			measured.Header.HeldBy = ""
		}
		m, err := plan.FromProfile("m", measured, "a100-80")
		must.OK(t, err)
		p.Profiles = map[string]map[string]plan.Profile{m.GPU: {"m": m}}
		for _, policy := range policies {
			pl, err := policy.Plan(&p)
			if err != nil {
				t.Errorf("%s: %v", policy.Name(), err)
				continue
			}
			if said := strings.Contains(strings.Join(pl.Notes, "\n"), "measured under mps"); said != estimated {
				t.Errorf("%s: says it: %t, want %t: %q", policy.Name(), said, estimated, pl.Notes)
			}
		}
	}
}
