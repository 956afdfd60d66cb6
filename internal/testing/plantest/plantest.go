// Package plantest has problems for tests of policies: the published scenarios, and random
// ones on every kind of GPU.
package plantest

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
)

// Scenarios are the names of the paper's six scenarios (Table IV), for Scenario.
var Scenarios = []string{"S1", "S2", "S3", "S4", "S5", "S6"}

// testdata is plan/testdata of the repository that the test runs in. The binary may not know
// its path: -trimpath removes it.
var testdata = sync.OnceValue(func() string {
	dir, _ := os.Getwd()
	for ; filepath.Dir(dir) != dir; dir = filepath.Dir(dir) {
		folder := filepath.Join(dir, "plan", "testdata")
		if _, err := os.Stat(folder); err == nil {
			return folder
		}
	}
	return "plan/testdata"
})

// published returns the published profiles of an A100-80GB. Tests share them and must not
// change them.
var published = sync.OnceValues(func() (map[string]map[string]plan.Profile, error) {
	return plan.ReadProfiles(os.DirFS(filepath.Join(testdata(), "parvagpu", "prof_data")))
})

// v100Profiles returns GSLICE's profiles of a V100.
var v100Profiles = sync.OnceValues(func() (map[string]map[string]plan.Profile, error) {
	return plan.ReadProfiles(os.DirFS(filepath.Join(testdata(), "gslice_v100")))
})

// Scenario returns one of the paper's scenarios, with an unlimited number of A100-80GBs.
func Scenario(t testing.TB, name string) *plan.Problem {
	t.Helper()
	file := "scenarios_s1_s3.csv"
	if name > "S3" {
		file = "scenarios_s4_s6.csv"
	}
	profiles, err := published()
	must.OK(t, err)
	return &plan.Problem{GPU: gpu(t, "a100-80"), Profiles: profiles,
		Services: services(t, filepath.Join("parvagpu", file), name)}
}

// Percent returns a problem on V100s without MIG.
func Percent(t testing.TB) *plan.Problem {
	t.Helper()
	profiles, err := v100Profiles()
	must.OK(t, err)
	return &plan.Problem{GPU: gpu(t, "v100"), Profiles: profiles, Services: services(t, "gslice_v100_services.csv", "")}
}

func gpu(t testing.TB, name string) plan.GPU {
	g, err := plan.Lookup(name)
	must.OK(t, err)
	return g
}

func services(t testing.TB, file, scenario string) []plan.Service {
	f, err := os.Open(filepath.Join(testdata(), file))
	must.OK(t, err)
	defer f.Close()
	list, err := plan.ReadServices(f, file, scenario)
	must.OK(t, err)
	return list
}

// Times returns a problem with n copies of each service, as Fig. 10 multiplies services. The
// copies of "bert" are "bert", "bert-2", "bert-3", ...
func Times(p *plan.Problem, n int) *plan.Problem {
	q := *p
	q.Services = nil
	for i := range n {
		for _, s := range p.Services {
			if i > 0 {
				s.Name = fmt.Sprintf("%s-%d", s.Name, i+1)
			}
			q.Services = append(q.Services, s)
		}
	}
	return &q
}

// Draw draws a problem that has a plan. It has up to eight services on an unlimited number
// of one model of GPU, with any of the tables. The profiles are random with some missing
// points; each service has at least one point within its bound.
func Draw(t *rapid.T) *plan.Problem {
	g := rapid.SampledFrom(plan.GPUs()).Draw(t, "GPU")
	models := map[string]plan.Profile{}
	for i := range rapid.IntRange(1, 4).Draw(t, "models") {
		name := fmt.Sprintf("model%d", i)
		models[name] = drawProfile(t, name, g)
	}
	p := &plan.Problem{GPU: g, Profiles: map[string]map[string]plan.Profile{g.Name: models}}
	for i := range rapid.IntRange(1, 8).Draw(t, "services") {
		p.Services = append(p.Services, drawService(t, fmt.Sprintf("service%d", i), models))
	}
	return p
}

// drawProfile draws a model's profile. Time and memory of a batch grow with the batch; time
// shrinks with the size up to a knee.
func drawProfile(t *rapid.T, name string, g plan.GPU) plan.Profile {
	profile := plan.Profile{Model: name, GPU: g.Name}
	fixed := rapid.Float64Range(0.1, 5).Draw(t, "ms a batch")
	each := rapid.Float64Range(0.05, 5).Draw(t, "ms an image on the whole GPU")
	knee := rapid.Float64Range(0.05, 1).Draw(t, "knee")
	memory := rapid.SampledFrom([]float64{0, 0, 100, 3000}).Draw(t, "MiB a process")
	sizes := g.Sizes
	if g.Percent {
		sizes = nil
		for tenth := 1; tenth <= 10; tenth++ {
			size, _ := g.Size(g.Steps(float64(10 * tenth)))
			sizes = append(sizes, size)
		}
	}
	for _, size := range sizes {
		share := min(float64(size.GPCs)/float64(g.GPCs), knee)
		for batch := 1; batch <= 16; batch *= 4 {
			for processes := 1; processes <= 3; processes += 2 {
				// Every point may be missing except one, so that the profile is never empty.
				first := len(profile.Points) == 0
				if !first && rapid.IntRange(0, 9).Draw(t, "missing") == 0 {
					continue
				}
				ms := (fixed + each*float64(batch)/share) * math.Pow(float64(processes), 0.8)
				profile.Points = append(profile.Points, plan.Point{GPCs: size.GPCs, Batch: batch, Processes: processes,
					LatencyMS: ms, ThroughputRPS: float64(batch*processes) * 1000 / ms, MemoryMiB: memory * float64(processes)})
			}
		}
	}
	return profile
}

// drawService draws a service of a model with a rate of up to a few GPUs. At least the
// model's fastest point meets its objective.
func drawService(t *rapid.T, name string, models map[string]plan.Profile) plan.Service {
	model := fmt.Sprintf("model%d", rapid.IntRange(0, len(models)-1).Draw(t, "model"))
	fastest, most := math.Inf(1), 0.0
	for _, pt := range models[model].Points {
		if pt.Processes == 1 {
			fastest = min(fastest, pt.LatencyMS)
		}
		most = max(most, pt.ThroughputRPS)
	}
	slo := fastest / 0.45 * rapid.Float64Range(1.01, 20).Draw(t, "slack")
	rate := most * rapid.Float64Range(0.01, 3).Draw(t, "rate")
	return plan.Service{Name: name, Model: model, RateRPS: rate, SLOMS: slo}
}
