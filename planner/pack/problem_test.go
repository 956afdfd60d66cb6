package pack

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
)

func gpu(t testing.TB, name string) plan.GPU {
	t.Helper()
	g, err := plan.Lookup(name)
	must.OK(t, err)
	return g
}

// published returns a scenario of the paper with its published profiles, with rates multiplied by
// times.
func published(t testing.TB, scenario string, times float64) *plan.Problem {
	t.Helper()
	file := "../../plan/testdata/parvagpu/scenarios_s1_s3.csv"
	if scenario > "S3" {
		file = "../../plan/testdata/parvagpu/scenarios_s4_s6.csv"
	}
	data, err := os.ReadFile(file)
	must.OK(t, err)
	services, err := plan.ReadServices(bytes.NewReader(data), file, scenario)
	must.OK(t, err)
	profiles, err := plan.ReadProfiles(os.DirFS("../../plan/testdata/parvagpu/prof_data"))
	must.OK(t, err)
	for i := range services {
		services[i].RateRPS *= times
	}
	return &plan.Problem{GPU: gpu(t, "a100-80"), Services: services, Profiles: profiles}
}

// many returns n services drawn from S3, each with its own rate and SLO.
func many(t testing.TB, n int, seed uint64) *plan.Problem {
	p := published(t, "S3", 1)
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	services := make([]plan.Service, n)
	for i := range services {
		s := p.Services[random.IntN(len(p.Services))]
		s.Name = fmt.Sprintf("s%05d", i)
		s.RateRPS *= 0.1 + 2*random.Float64()
		s.SLOMS *= 0.8 + random.Float64()
		services[i] = s
	}
	p.Services = services
	return p
}

// drawn returns a problem with profiles that follow no rule, on any of the given GPUs, limited or
// not.
func drawn(t *rapid.T, names []string, most int, limited bool) *plan.Problem {
	p := &plan.Problem{Profiles: map[string]map[string]plan.Profile{}}
	for i, name := range names {
		g, err := plan.Lookup(name)
		must.OK(t, err)
		p.Profiles[name] = map[string]plan.Profile{}
		count := -1
		if limited && i > 0 {
			count = rapid.IntRange(1, 4).Draw(t, "count")
		}
		p.Fleet = append(p.Fleet, plan.Stock{GPU: g, Count: count})
	}
	if len(names) == 1 {
		p.GPU, p.Fleet = p.Fleet[0].GPU, nil
	}
	for i := range rapid.IntRange(1, most).Draw(t, "services") {
		name := fmt.Sprintf("m%d", i)
		served := false
		for _, stock := range p.Stocks() {
			profile := plan.Profile{Model: name, GPU: stock.GPU.Name}
			for _, size := range stock.GPU.Sizes {
				if stock.GPU.Percent && size.GPCs%5 != 0 || rapid.IntRange(0, 9).Draw(t, "measured") == 0 {
					continue
				}
				for processes := 1; processes <= 2; processes++ {
					pt := plan.Point{GPCs: size.GPCs, Batch: 8, Processes: processes,
						ThroughputRPS: float64(rapid.IntRange(5, 100).Draw(t, "throughput")*(size.GPCs+2)) / 4,
						LatencyMS:     float64(rapid.IntRange(1, 50).Draw(t, "latency"))}
					if stock.GPU.Percent {
						pt.MemoryMiB = float64(rapid.IntRange(0, stock.GPU.MemoryMiB/2).Draw(t, "memory"))
					}
					served = served || pt.LatencyMS < 45
					profile.Points = append(profile.Points, pt)
				}
			}
			p.Profiles[stock.GPU.Name][name] = profile
		}
		if served {
			p.Services = append(p.Services, plan.Service{Name: name, Model: name, SLOMS: 100,
				RateRPS: float64(rapid.IntRange(1, 600).Draw(t, "rate"))})
		}
	}
	if len(p.Services) == 0 {
		t.Skip("no service can be served")
	}
	return p
}
