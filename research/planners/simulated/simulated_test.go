package simulated

import (
	"errors"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/pack"
	"github.com/penstock/penstock/planner/replay"
	"github.com/penstock/penstock/planner/verify"
)

// published is a problem of ParvaGPU's profiles and a scenario of its Table IV,
// with scaled rates and objectives.
func published(t testing.TB, scenario string, rates, objectives float64) *plan.Problem {
	t.Helper()
	profiles, err := plan.ReadProfiles(os.DirFS("../../../plan/testdata/parvagpu/prof_data"))
	must.OK(t, err)
	file, err := os.Open("../../../plan/testdata/parvagpu/scenarios_s1_s3.csv")
	must.OK(t, err)
	defer file.Close()
	services, err := plan.ReadServices(file, file.Name(), scenario)
	must.OK(t, err)
	for i := range services {
		services[i].RateRPS *= rates
		services[i].SLOMS *= objectives
	}
	gpu, err := plan.Lookup("a100-80")
	must.OK(t, err)
	return &plan.Problem{GPU: gpu, Services: services, Profiles: profiles}
}

// bounded is the problem with the plan's own bounds.
func bounded(p *plan.Problem, pl *plan.Plan) *plan.Problem {
	bound := map[string]float64{}
	for _, s := range pl.Services {
		bound[s.Service] = s.LatencyBoundMS
	}
	with := *p
	with.Bound = func(s plan.Service) float64 { return bound[s.Name] }
	return &with
}

func planned(t testing.TB, policy plan.Policy, p *plan.Problem) *plan.Plan {
	t.Helper()
	pl, err := policy.Plan(p)
	must.OK(t, err)
	must.OK(t, verify.Plan(bounded(p, pl), pl))
	return pl
}

// worst is the largest fraction of violations, under a seed that the policy has
// not used.
func worst(t testing.TB, p *plan.Problem, pl *plan.Plan) float64 {
	t.Helper()
	r, err := replay.Run(p, pl, replay.Config{Seed: 12345})
	must.OK(t, err)
	worst := 0.0
	for _, s := range r.Services {
		worst = max(worst, s.Violations)
	}
	return worst
}

func TestLessThanHalf(t *testing.T) {
	for _, c := range []struct {
		scenario string
		rates    float64
		half     int
		learnt   int
	}{
		{"S1", 2, 3, 2}, {"S2", 2, 5, 4}, {"S3", 10, 36, 34},
	} {
		if testing.Short() && c.half > 30 {
			continue // simulates 34 GPUs for 20 s under the race detector
		}
		p := published(t, c.scenario, c.rates, 1)
		half, learnt := planned(t, pack.New(), p), planned(t, New(), p)
		if half.GPUs != c.half || learnt.GPUs != c.learnt {
			t.Errorf("%s × %v: %d GPUs, learnt %d; want %d and %d", c.scenario, c.rates, half.GPUs, learnt.GPUs, c.half, c.learnt)
		}
		if w := worst(t, p, learnt); w > 0.011 {
			t.Errorf("%s × %v: %.2f %% are missed", c.scenario, c.rates, 100*w)
		}
		if learnt.Policy != Name || len(learnt.Notes) != 2 {
			t.Errorf("%s, %q", learnt.Policy, learnt.Notes)
		}
	}
}

func TestMoreThanHalf(t *testing.T) {
	p := published(t, "S2", 1, 0.3)
	half, learnt := planned(t, pack.New(), p), planned(t, New(), p)
	if w := worst(t, p, half); w < 0.04 {
		t.Errorf("half: %.2f %% are missed at most, want a case where it is too little", 100*w)
	}
	if w := worst(t, p, learnt); w > 0.011 {
		t.Errorf("learnt: %.2f %% are missed", 100*w)
	}
}

func TestHalfKept(t *testing.T) {
	p := published(t, "S1", 0.1, 1)
	half, learnt := planned(t, pack.New(), p), planned(t, New(), p)
	if !reflect.DeepEqual(half.Segments, learnt.Segments) || learnt.Services[0].LatencyBoundMS != plan.HalfSLO(p.Services[0]) {
		t.Errorf("%+v", learnt)
	}
	if len(learnt.Notes) != 1 || !strings.Contains(learnt.Notes[0], "half of each objective is enough") {
		t.Errorf("%q", learnt.Notes)
	}
}

func TestReproducible(t *testing.T) {
	p := published(t, "S1", 1, 0.15)
	first := planned(t, New(), p)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if again := planned(t, New(), p); !reflect.DeepEqual(first, again) {
		t.Errorf("%+v\n%+v", first, again)
	}
}

// slow is a service that takes 90 of 100 ms for one request, on any segment.
func slow(rate float64) *plan.Problem {
	gpu, _ := plan.Lookup("a100-80")
	points := []plan.Point{{GPCs: 1, Batch: 1, Processes: 1, ThroughputRPS: 1000.0 / 90, LatencyMS: 90}}
	return &plan.Problem{GPU: gpu, Services: []plan.Service{{Name: "s", Model: "m", RateRPS: rate, SLOMS: 100}},
		Profiles: map[string]map[string]plan.Profile{gpu.Name: {"m": {Model: "m", GPU: gpu.Name, Points: points}}}}
}

func TestTightObjective(t *testing.T) {
	p := slow(0.01)
	if _, err := pack.New().Plan(p); err == nil {
		t.Fatal("half of 100 ms is less than 90 ms")
	}
	if pl := planned(t, New(), p); pl.GPUs != 1 || pl.Services[0].LatencyBoundMS != 100 {
		t.Errorf("%+v", pl)
	}
}

func TestUnmet(t *testing.T) {
	_, err := New().Plan(slow(0.5)) // one request in twenty arrives while another one runs
	var unmet *Unmet
	if !errors.As(err, &unmet) || unmet.Service.Name != "s" || unmet.MinViolations <= unmet.Threshold {
		t.Fatal(err)
	}
	if !strings.Contains(err.Error(), `service "s": SLO 100 ms at 0.5 requests/s: `) {
		t.Error(err)
	}
	p := slow(1)
	p.Services[0].SLOMS = 90
	var infeasible *plan.Infeasible
	if _, err := New().Plan(p); !errors.As(err, &infeasible) || infeasible.BoundMS != 90 {
		t.Error(err)
	}
}

func TestFleetTooSmall(t *testing.T) {
	p := published(t, "S2", 1, 0.15)
	p.Fleet = []plan.Stock{{GPU: p.GPU, Count: 1}}
	_, err := New().Plan(p)
	var small *plan.TooSmall
	if !errors.As(err, &small) {
		t.Fatal(err)
	}
	for i, s := range small.Services {
		if s.RateRPS != p.Services[i].RateRPS || s.PlacedRPS > s.RateRPS {
			t.Errorf("%+v", s)
		}
	}
}

// For any problem, the plan is legal within its own bounds, and its violations
// stay within the threshold.
func TestPlansHold(t *testing.T) {
	if testing.Short() {
		t.Skip("not with -short: it plans at random for half a minute")
	}
	all := published(t, "S2", 1, 1)
	rapid.Check(t, func(t *rapid.T) {
		p := *all
		p.Services = nil
		for range rapid.IntRange(1, 2).Draw(t, "services") {
			s := rapid.SampledFrom(all.Services).Draw(t, "service")
			s.RateRPS *= rapid.Float64Range(0.01, 3).Draw(t, "rate")
			s.SLOMS *= rapid.Float64Range(0.1, 1.5).Draw(t, "SLO")
			if len(p.Services) == 0 || p.Services[0].Name != s.Name {
				p.Services = append(p.Services, s)
			}
		}
		quick := replay.Config{Requests: 3000, MinRuns: 3, MaxRuns: 10}
		pl, err := simulatedPolicy{Threshold: 0.02, Replay: quick}.Plan(&p)
		var unmet *Unmet
		var infeasible *plan.Infeasible
		if errors.As(err, &unmet) || errors.As(err, &infeasible) {
			return
		}
		must.OK(t, err)
		with := bounded(&p, pl)
		must.OK(t, verify.Plan(with, pl))
		quick.Seed = 1
		r, err := replay.Run(with, pl, quick)
		must.OK(t, err)
		for _, s := range r.Services {
			if s.High > 0.02 || s.LatencyBoundMS > s.SLOMS {
				t.Fatalf("%+v", s)
			}
		}
	})
}
