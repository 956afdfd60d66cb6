package parvagpu_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/plantest"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/verify"
	"github.com/penstock/penstock/research/planners/parvagpu"
)

func policies() []plan.Policy { return []plan.Policy{parvagpu.New(), parvagpu.Unoptimized()} }

// planned plans and verifies.
func planned(t testing.TB, policy plan.Policy, p *plan.Problem) *plan.Plan {
	t.Helper()
	pl, err := policy.Plan(p)
	if err != nil {
		t.Fatalf("%s: %v", policy.Name(), err)
	}
	if err := verify.Plan(p, pl); err != nil {
		t.Fatalf("%s: %v", policy.Name(), err)
	}
	return pl
}

// TestPublishedGPUs checks figure 5 of the paper and, for S1 to S3, the GPCs of
// the published plans.
func TestPublishedGPUs(t *testing.T) {
	for _, c := range []struct {
		scenario   string
		gpus, gpcs int
	}{
		{"S1", 2, 10}, {"S2", 3, 20}, {"S3", 5, 33}, {"S4", 7, 48}, {"S5", 13, 88}, {"S6", 16, 112},
	} {
		pl := planned(t, parvagpu.New(), plantest.Scenario(t, c.scenario))
		if pl.GPUs != c.gpus || pl.GPCs != c.gpcs {
			t.Errorf("%s: %d GPUs, %d GPCs; want %d, %d", c.scenario, pl.GPUs, pl.GPCs, c.gpus, c.gpcs)
		}
	}
}

// On S1 and S2, optimisation saves no GPU compared with relocation.
func TestOptimise(t *testing.T) {
	for _, c := range []struct {
		scenario          string
		optimised, before int
	}{
		{"S1", 2, 2}, {"S2", 3, 3}, {"S3", 5, 8}, {"S4", 7, 11}, {"S5", 13, 20}, {"S6", 16, 26},
	} {
		name, p := c.scenario, plantest.Scenario(t, c.scenario)
		with, without := planned(t, parvagpu.New(), p), planned(t, parvagpu.Unoptimized(), p)
		if with.GPUs != c.optimised || without.GPUs != c.before {
			t.Errorf("%s: %d GPUs optimised, %d not; want %d, %d", name, with.GPUs, without.GPUs, c.optimised, c.before)
		}
		if with.ExternalFragmentation > without.ExternalFragmentation {
			t.Errorf("%s: fragmentation %.3f optimised, %.3f not", name, with.ExternalFragmentation, without.ExternalFragmentation)
		}
	}
}

// Section III-E2: only a GPU that uses fewer than four GPCs is split.
func TestFourGPCs(t *testing.T) {
	for size, segments := range map[int]int{3: 3, 4: 1} { // 2 + 2 + 1 GPCs, or the segment unchanged
		p := *plantest.Scenario(t, "S1")
		points := []plan.Point{
			{GPCs: 1, Batch: 1, Processes: 1, ThroughputRPS: 10, LatencyMS: 1},
			{GPCs: 2, Batch: 1, Processes: 1, ThroughputRPS: 21, LatencyMS: 1},
			{GPCs: size, Batch: 1, Processes: 1, ThroughputRPS: 50, LatencyMS: 1},
		}
		p.Profiles = map[string]map[string]plan.Profile{p.GPU.Name: {"m": {Model: "m", GPU: p.GPU.Name, Points: points}}}
		p.Services = []plan.Service{{Name: "s", Model: "m", RateRPS: 50, SLOMS: 100}}
		if pl := planned(t, parvagpu.New(), &p); len(pl.Segments) != segments || pl.GPUs != 1 {
			t.Errorf("a GPU of one segment of size %d becomes %d segments, want %d", size, len(pl.Segments), segments)
		}
	}
}

func TestSizeThreeSlots(t *testing.T) {
	for _, name := range plantest.Scenarios {
		for _, s := range planned(t, parvagpu.New(), plantest.Scenario(t, name)).Segments {
			if s.GPCs == 3 && s.Slot != 4 {
				t.Errorf("%s: size 3 in slot %d of GPU %d, where it costs slot 3", name, s.Slot, s.GPU)
			}
		}
	}
}

func TestEveryPlanVerifies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := plantest.Draw(t)
		for _, policy := range policies() {
			pl, err := policy.Plan(p)
			if err != nil {
				t.Fatalf("%s: %v", policy.Name(), err)
			}
			if err := verify.Plan(p, pl); err != nil {
				t.Fatalf("%s: %v", policy.Name(), err)
			}
		}
	})
}

func TestServiceOrder(t *testing.T) {
	p := plantest.Scenario(t, "S6")
	for _, policy := range policies() {
		want := planned(t, policy, p)
		shuffled := *p
		shuffled.Services = append([]plan.Service(nil), p.Services...)
		rand.New(rand.NewPCG(1, 2)).Shuffle(len(shuffled.Services), func(i, j int) {
			shuffled.Services[i], shuffled.Services[j] = shuffled.Services[j], shuffled.Services[i]
		})
		got := planned(t, policy, &shuffled)
		got.Services = want.Services
		if text(t, got) != text(t, want) {
			t.Errorf("%s: another order of services gives another plan", policy.Name())
		}
	}
}

func text(t *testing.T, pl *plan.Plan) string {
	t.Helper()
	b, err := json.Marshal(pl)
	must.OK(t, err)
	return string(b)
}

func TestWithoutMIG(t *testing.T) {
	p := plantest.Percent(t)
	for _, policy := range policies() {
		pl := planned(t, policy, p)
		if pl.GPUs < 1 || pl.SMsPerGPU["v100"] != 80 {
			t.Errorf("%s: %d GPUs of %d SMs", policy.Name(), pl.GPUs, pl.SMsPerGPU["v100"])
		}
	}
}

func TestPlanErrors(t *testing.T) {
	a30, err := plan.Lookup("a30")
	must.OK(t, err)
	change := func(f func(*plan.Problem)) *plan.Problem {
		p := plantest.Scenario(t, "S1")
		f(p)
		return p
	}
	for _, c := range []struct {
		name    string
		problem *plan.Problem
		want    string
	}{
		{"objective", change(func(p *plan.Problem) { p.Services[0].SLOMS = 10 }),
			`service "bert" (model bert on a100-80): SLO 10 ms leaves a batch less than 4.5 ms; the fastest point`},
		{"profile", change(func(p *plan.Problem) { p.Services[0].Model = "gpt" }),
			`service "bert": no profile of model "gpt" on a100-80; there are: bert, densenet121`},
		{"GPU", change(func(p *plan.Problem) { p.GPU = a30 }),
			`service "bert": no profile of model "bert" on a30; it was measured on a100-80`},
		{"twice", change(func(p *plan.Problem) { p.Services[1] = p.Services[0] }), `service "bert" is listed twice`},
		{"rate", change(func(p *plan.Problem) { p.Services[0].RateRPS = 0 }), `service "bert": rate 0 requests/s: want a number above 0`},
		{"nothing", change(func(p *plan.Problem) { p.Services = nil }), "no services: want at least one"},
		{"fleet", change(func(p *plan.Problem) { p.Fleet = []plan.Stock{{GPU: p.GPU, Count: 1}} }),
			"the fleet (1 × a100-80) is too small: "},
		{"mixed fleet", change(func(p *plan.Problem) { p.Fleet = []plan.Stock{{GPU: p.GPU, Count: 1}, {GPU: a30, Count: 1}} }),
			parvagpu.ErrMixedFleet.Error()},
	} {
		for _, policy := range policies() {
			_, err := policy.Plan(c.problem)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%s: %s: %v\nwant %s", c.name, policy.Name(), err, c.want)
			}
		}
	}
}

func TestFleetTooSmall(t *testing.T) {
	p := plantest.Scenario(t, "S2")
	p.Fleet = []plan.Stock{{GPU: p.GPU, Count: 2}}
	_, err := parvagpu.New().Plan(p)
	var small *plan.TooSmall
	if !errors.As(err, &small) {
		t.Fatal(err)
	}
	fits := 0
	for _, s := range small.Services {
		if s.PlacedRPS == s.RateRPS {
			fits++
		}
	}
	if fits == 0 || fits == len(p.Services) || len(small.Services) != len(p.Services) {
		t.Errorf("%d of %d services fit: %v", fits, len(p.Services), err)
	}
}

func BenchmarkParvaGPU(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000} {
		p := plantest.Times(plantest.Scenario(b, "S3"), n)
		b.Run(p.Services[len(p.Services)-1].Name, func(b *testing.B) {
			for b.Loop() {
				if _, err := parvagpu.New().Plan(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
