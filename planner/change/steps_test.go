package change

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
)

// way returns the change between two plans for one service on a GPU without MIG.
// Both are given by their segments, independently of From's choices. Every point
// that they run takes mem MiB per step.
func way(t *testing.T, gpu plan.GPU, rate, mem float64, before, after []plan.Segment) *Change {
	t.Helper()
	service := plan.Service{Name: "a", Model: "m", RateRPS: rate, SLOMS: 1000}
	p := &plan.Problem{GPU: gpu, Services: []plan.Service{service}}
	var points []plan.Point
	for _, list := range [][]plan.Segment{before, after} {
		for i := range list {
			g := &list[i]
			g.GPUModel, g.Service, g.Model, g.Processes, g.LatencyMS = gpu.Name, "a", "m", 1, 10
			pt := g.Point()
			pt.MemoryMiB = mem * float64(g.Batch)
			points = append(points, pt)
		}
	}
	p.Profiles = map[string]map[string]plan.Profile{gpu.Name: {"m": {Model: "m", GPU: gpu.Name, Points: points}}}
	old, now := plan.New(p, "penstock", before), plan.New(p, "penstock", after)
	w := &world{problem: p, tables: p.Tables(), models: map[int]string{}}
	for _, g := range slices.Concat(old.Segments, now.Segments) {
		w.models[g.GPU] = gpu.Name
	}
	c := &Change{Plan: now, GPUsBefore: old.GPUs, GPUsAfter: now.GPUs, Services: []Service{{Service: "a", Fate: Changes, RateRPS: rate, OldRateRPS: rate}}}
	c.steps(w, old, map[string]plan.Assigned{"a": old.Services[0]}, map[string]plan.Service{"a": service})
	hold(t, old, p, c)
	return c
}

func checkNoShortage(t rapid.TB, c *Change) {
	t.Helper()
	for _, s := range c.Steps {
		if s.ShortRPS > 0 {
			t.Errorf("%s: short of %v\n%v", s, s.ShortRPS, c.Steps)
		}
	}
}

// On GPUs that share their memory, there is a spare for a shadow in any change if
// GPUs are unlimited.
func TestUnlimitedGPUs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gpu := plan.PercentGPU("v100", 80, rapid.SampledFrom([]int{0, 7000, 16384}).Draw(t, "memory"), 8)
		var points []plan.Point
		for _, steps := range []int{1, 2, 3, 4, 6, 10} {
			for _, batch := range []int{1, 4, 16} {
				took := 4 + 30*float64(batch)/float64(steps)
				points = append(points, plan.Point{GPCs: steps, Batch: batch, Processes: 1, LatencyMS: took,
					ThroughputRPS: 1000 * float64(batch) / took, MemoryMiB: 1000 + 300*float64(batch)})
			}
		}
		p := &plan.Problem{GPU: gpu, Profiles: map[string]map[string]plan.Profile{"v100": {"m": {Model: "m", GPU: "v100", Points: points}}}}
		draw := func(name string) plan.Service {
			return plan.Service{Name: name, Model: "m", RateRPS: rapid.Float64Range(1, 600).Draw(t, name+" rate"), SLOMS: rapid.Float64Range(80, 1200).Draw(t, name+" SLO")}
		}
		for _, name := range []string{"a", "b", "c"} {
			p.Services = append(p.Services, draw(name))
		}
		first, err := From(&plan.Plan{Version: plan.Version, Policy: "penstock", GPUModel: gpu.Name}, p)
		must.OK(t, err)
		now := *p
		now.Services = nil
		for _, s := range p.Services {
			now.Services = append(now.Services, draw(s.Name))
		}
		c, err := From(first.Plan, &now)
		must.OK(t, err)
		hold(t, first.Plan, &now, c)
		checkNoShortage(t, c)
	})
}

// The shadow has room next to the old segment, but not next to the new one.
func TestShadowMemory(t *testing.T) {
	c := way(t, plan.PercentGPU("v100", 80, 10000, 8), 90, 1000,
		[]plan.Segment{{Slot: 0, GPCs: 4, Batch: 4, ThroughputRPS: 100}},
		[]plan.Segment{{Slot: 2, GPCs: 4, Batch: 7, ThroughputRPS: 100}})
	checkNoShortage(t, c)
	if len(c.Spares) != 1 || !c.Spares[0].ExtraGPU || c.GPUsDuring != 2 {
		t.Errorf("%+v, %d GPUs: want the shadow on a further one", c.Spares, c.GPUsDuring)
	}
}

// A segment that blocks nothing must not go because of the shadow.
func TestShadowOfBlocker(t *testing.T) {
	c := way(t, plan.PercentGPU("v100", 80, 0, 8), 150, 0,
		[]plan.Segment{{Slot: 0, GPCs: 1, Batch: 1, ThroughputRPS: 50}, {Slot: 1, GPCs: 2, Batch: 1, ThroughputRPS: 100}},
		[]plan.Segment{{Slot: 2, GPCs: 4, Batch: 1, ThroughputRPS: 200}})
	checkNoShortage(t, c)
	if len(c.Spares) != 1 || c.Spares[0].GPCs != 2 {
		t.Errorf("%+v", c.Spares)
	}
}

// 0 MiB means that memory is not limited, as on the CPU.
func TestRetuneInPlace(t *testing.T) {
	c := way(t, plan.PercentGPU("cpu", 10, 0, 1), 90, 500,
		[]plan.Segment{{Slot: 0, GPCs: 10, Batch: 1, ThroughputRPS: 100}},
		[]plan.Segment{{Slot: 0, GPCs: 10, Batch: 2, ThroughputRPS: 120}})
	if len(c.Steps) != 1 || c.Steps[0].Op != Retune {
		t.Errorf("%v: want one that is retuned", c.Steps)
	}
}
