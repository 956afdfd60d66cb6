package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock/penstock/plan"
)

// many is a state with functions of the published models, and more GPUs than they need.
func many(t testing.TB, functions int) *State {
	s := &State{Fleet: "f", GPUs: gpus("a100-80", 2*functions), Profiles: profiles(t)}
	models := make([]string, 0, len(s.Profiles["a100-80"]))
	for model := range s.Profiles["a100-80"] {
		models = append(models, model)
	}
	slices.Sort(models)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range functions {
		f := function(fmt.Sprintf("n%d/f%d", i%20, i), models[r.IntN(len(models))], 0)
		f.Port = int32(1024 + i/20)
		best := 0.0
		for _, pt := range s.Profiles["a100-80"][f.Model].Points {
			if pt.LatencyMS < plan.HalfSLO(f.service(1)) {
				best = max(best, pt.ThroughputRPS)
			}
		}
		f.Rate = whole(best * (0.01 + 0.3*r.Float64()))
		s.Functions = append(s.Functions, f)
	}
	return s
}

// BenchmarkPlan10000 is the first plan of 10,000 functions.
func BenchmarkPlan10000(b *testing.B) {
	s := many(b, 10_000)
	for b.Loop() {
		r := Next(s)
		if !r.Fleet.OK {
			b.Fatal(r.Fleet.Message)
		}
		b.ReportMetric(float64(len(r.Steps)), "segments")
	}
}

// BenchmarkChange10000 changes the rates of 1 % of them by up to a fifth.
func BenchmarkChange10000(b *testing.B) {
	s := many(b, 10_000)
	apply(s, Next(s))
	r := rand.New(rand.NewPCG(2, 1))
	for i := range s.Functions {
		if i%100 == 0 {
			s.Functions[i].Rate = whole(s.Functions[i].Rate * (0.8 + 0.4*r.Float64()))
		}
	}
	for b.Loop() {
		r := Next(s)
		if !r.Fleet.OK {
			b.Fatal(r.Fleet.Message)
		}
		b.ReportMetric(float64(len(r.Steps)), "steps")
	}
}

// BenchmarkSteady10000 is the same state again.
func BenchmarkSteady10000(b *testing.B) {
	s := many(b, 10_000)
	apply(s, Next(s))
	for b.Loop() {
		if r := Next(s); len(r.Steps) > 0 {
			b.Fatalf("%d steps", len(r.Steps))
		}
	}
}
