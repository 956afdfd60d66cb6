package pack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/plantest"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/verify"
)

// planned plans and verifies.
func planned(t interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}, p *plan.Problem) *plan.Plan {
	t.Helper()
	pl, err := New().Plan(p)
	must.OK(t, err)
	must.OK(t, verify.Plan(p, pl))
	if pl.LowerBound > pl.GPUs || pl.Optimal != (pl.LowerBound == pl.GPUs) {
		t.Fatalf("%d GPUs, at least %d, optimal %v", pl.GPUs, pl.LowerBound, pl.Optimal)
	}
	return pl
}

// The published plans of the paper use 2, 3, 5, 7, 13 and 16 GPUs.
func TestLimits(t *testing.T) { plantest.Limits(t, []plan.Policy{New()}) }

func TestEstimates(t *testing.T) { plantest.Estimates(t, []plan.Policy{New()}) }

func TestPublishedScenarios(t *testing.T) {
	for _, want := range []struct {
		scenario   string
		gpus, gpcs int
	}{{"S1", 2, 10}, {"S2", 3, 20}, {"S3", 5, 30}, {"S4", 7, 44}, {"S5", 12, 82}, {"S6", 15, 105}} {
		pl := planned(t, published(t, want.scenario, 1))
		t.Logf("%s: %d GPUs, %d GPCs, at least %d, %v", want.scenario, pl.GPUs, pl.GPCs, pl.LowerBound, pl.Notes)
		if pl.GPUs != want.gpus || pl.GPCs != want.gpcs || !pl.Optimal {
			t.Errorf("%s: %d GPUs, %d GPCs, optimal %v; want %d, %d, true", want.scenario, pl.GPUs, pl.GPCs, pl.Optimal, want.gpus, want.gpcs)
		}
	}
}

func TestScenarioMultiples(t *testing.T) {
	for _, scenario := range []string{"S1", "S2", "S3"} {
		for times := 1; times <= 10; times++ {
			p := published(t, scenario, float64(times))
			pl := planned(t, p)
			if !pl.Optimal {
				t.Errorf("%s × %d: %d GPUs, and only %d proved", scenario, times, pl.GPUs, pl.LowerBound)
			}
		}
	}
}

func TestPlanReproducible(t *testing.T) {
	plan := func() *plan.Plan { return planned(t, published(t, "S3", 7)) }
	if a, b := plan(), plan(); !reflect.DeepEqual(a, b) {
		t.Error("two plans of the same problem differ")
	}
}

func TestPlanThousands(t *testing.T) {
	for _, n := range []int{1, 10, 100, 1000, 10000} {
		if pl := planned(t, many(t, n, 7)); !pl.Optimal {
			t.Errorf("%d services: %d GPUs, and only %d proved", n, pl.GPUs, pl.LowerBound)
		}
	}
}

func TestMixedFleets(t *testing.T) {
	optimal, all, refused := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := drawn(t, []string{"a100-80", "a30", "v100"}, 8, true)
		pl, err := New().Plan(p)
		if small := (*plan.TooSmall)(nil); errors.As(err, &small) {
			refused++
			if small.Unproved {
				t.Fatalf("%v: so few services can be searched", err)
			}
			// The a100s are unlimited: only services that do not run on them can be too much.
			limited := 0
			for i, served := range small.Services {
				if served.PlacedRPS > served.RateRPS {
					t.Fatalf("%+v: more fits than is wanted", served)
				}
				if _, err := p.Feasible(p.Fleet[0].GPU, p.Services[i]); err != nil {
					limited++
				}
			}
			if limited == 0 {
				t.Fatalf("%v: all services run on GPUs that have no end", err)
			}
			return
		}
		must.OK(t, err)
		must.OK(t, verify.Plan(p, pl))
		if pl.LowerBound < 1 || pl.LowerBound > pl.GPUs || pl.Optimal != (pl.LowerBound == pl.GPUs) {
			t.Fatalf("%d GPUs, at least %d, optimal %v", pl.GPUs, pl.LowerBound, pl.Optimal)
		}
		all++
		if pl.Optimal {
			optimal++
		}
	})
	t.Logf("%d of %d proved optimal, %d refused", optimal, all, refused)
	if optimal*10 < all*7 {
		t.Errorf("%d of %d proved optimal: want seven tenths", optimal, all)
	}
}

// withH100 adds profiles of a GPU that is twice as fast to a problem.
func withH100(t testing.TB, p *plan.Problem) {
	g := gpu(t, "h100-80")
	p.Profiles[g.Name] = map[string]plan.Profile{}
	for model, profile := range p.Profiles["a100-80"] {
		faster := plan.Profile{Model: model, GPU: g.Name}
		for _, pt := range profile.Points {
			pt.ThroughputRPS *= 2
			pt.LatencyMS /= 2
			faster.Points = append(faster.Points, pt)
		}
		p.Profiles[g.Name][model] = faster
	}
}

func TestFleetSuffices(t *testing.T) {
	p := published(t, "S3", 1)
	withH100(t, p)
	for _, c := range []struct{ a100, h100, want int }{{5, 0, 5}, {5, 1, 4}, {3, 1, 4}, {1, 2, 3}, {0, 3, 3}, {-1, 9, 3}} {
		p.Fleet = nil
		if c.a100 != 0 {
			p.Fleet = append(p.Fleet, plan.Stock{GPU: gpu(t, "a100-80"), Count: c.a100})
		}
		if c.h100 != 0 {
			p.Fleet = append(p.Fleet, plan.Stock{GPU: gpu(t, "h100-80"), Count: c.h100})
		}
		pl := planned(t, p)
		t.Logf("%d × a100, %d × h100: %d GPUs, %v", c.a100, c.h100, pl.GPUs, pl.Notes)
		if pl.GPUs != c.want || !pl.Optimal {
			t.Errorf("%d × a100, %d × h100: %d GPUs, optimal %v; want %d, true", c.a100, c.h100, pl.GPUs, pl.Optimal, c.want)
		}
	}
}

func TestFleetTooSmall(t *testing.T) {
	p := published(t, "S3", 1)
	p.Fleet = []plan.Stock{{GPU: p.GPU, Count: 3}}
	_, err := New().Plan(p)
	var small *plan.TooSmall
	if !errors.As(err, &small) {
		t.Fatalf("%v: want *plan.TooSmall", err)
	}
	t.Log(err)
	// The part that is reported to fit does fit.
	var services []plan.Service
	whole := 0
	for i, s := range small.Services {
		if s.PlacedRPS > 0 {
			service := p.Services[i]
			service.RateRPS = s.PlacedRPS
			services = append(services, service)
		}
		if s.PlacedRPS == s.RateRPS {
			whole++
		}
	}
	p.Services = services
	planned(t, p)
	if whole < 6 {
		t.Errorf("%d services fit whole on 3 GPUs, all 11 need 5", whole)
	}
	p.Fleet[0].Count = 100
	planned(t, p)
}

func TestPercentGPU(t *testing.T) {
	profiles, err := plan.ReadProfiles(os.DirFS("../../plan/testdata/gslice_v100"))
	must.OK(t, err)
	data, err := os.ReadFile("../../plan/testdata/gslice_v100_services.csv")
	must.OK(t, err)
	services, err := plan.ReadServices(bytes.NewReader(data), "gslice_v100_services.csv", "")
	must.OK(t, err)
	for times := 1; times <= 10; times++ {
		p := &plan.Problem{GPU: gpu(t, "v100"), Services: slices.Clone(services), Profiles: profiles}
		for i := range p.Services {
			p.Services[i].RateRPS *= float64(times)
		}
		pl := planned(t, p)
		t.Logf("× %d: %d GPUs, %d steps, %v", times, pl.GPUs, pl.GPCs, pl.Notes)
		if !pl.Optimal {
			t.Errorf("× %d: %d GPUs, and only %d proved", times, pl.GPUs, pl.LowerBound)
		}
	}
}

func TestSharedMemory(t *testing.T) {
	g := plan.PercentGPU("small", 40, 10000, 4)
	point := func(steps, processes int, throughput, memory float64) plan.Point {
		return plan.Point{GPCs: steps, Batch: 1, Processes: processes, ThroughputRPS: throughput, LatencyMS: 1, MemoryMiB: memory}
	}
	profile := plan.Profile{Model: "m", GPU: "small", Points: []plan.Point{
		point(1, 1, 10, 1000), point(1, 2, 11, 6000), point(2, 1, 19, 1500)}}
	p := &plan.Problem{GPU: g, Profiles: map[string]map[string]plan.Profile{"small": {"m": profile}},
		Services: []plan.Service{{Name: "s", Model: "m", RateRPS: 100, SLOMS: 10}}}
	// By steps, ten segments fit a GPU. With two processes, each takes more than half of its
	// memory.
	if pl := planned(t, p); pl.GPUs != 1 {
		t.Errorf("%d GPUs: want 1, of ten segments with one process", pl.GPUs)
	}
}

func TestErrors(t *testing.T) {
	p := published(t, "S3", 1)
	p.Services[3].SLOMS = 1
	var infeasible *plan.Infeasible
	if _, err := New().Plan(p); !errors.As(err, &infeasible) || infeasible.Service.Name != p.Services[3].Name {
		t.Errorf("%v: want *plan.Infeasible for %s", err, p.Services[3].Name)
	}
	p.Services[3].Model = "none"
	var missing *plan.NoProfile
	if _, err := New().Plan(p); !errors.As(err, &missing) {
		t.Errorf("%v: want *plan.NoProfile", err)
	}
	p = published(t, "S3", 1)
	p.Services[0].RateRPS = 1e300
	if _, err := New().Plan(p); err == nil || !strings.Contains(err.Error(), "at most 1000000 segments") {
		t.Errorf("%v: want a refusal of so many segments", err)
	}
	if _, err := New().Plan(&plan.Problem{GPU: p.GPU}); err == nil || !strings.Contains(err.Error(), "no services") {
		t.Errorf("%v: want what Check says", err)
	}
}

func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000, 10000} {
		p := many(b, n, 1)
		bench := func(name string) {
			b.Run(fmt.Sprintf("%s/services=%d", name, n), func(b *testing.B) {
				var pl *plan.Plan
				for b.Loop() {
					var err error
					if pl, err = New().Plan(p); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(pl.GPUs), "GPUs")
				b.ReportMetric(float64(pl.GPUs-pl.LowerBound), "GPUs-unproved")
			})
		}
		bench("a100")
		withH100(b, p)
		p.Fleet = []plan.Stock{{GPU: gpu(b, "h100-80"), Count: n/10 + 1}, {GPU: gpu(b, "a100-80"), Count: -1}}
		bench("fleet")
	}
}
