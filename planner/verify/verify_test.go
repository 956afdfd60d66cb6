package verify_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/plantest"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/pack"
	"github.com/penstock/penstock/planner/verify"
)

// legal returns a plan that verifies.
func legal(t rapid.TB, p *plan.Problem) *plan.Plan {
	t.Helper()
	pl, err := pack.New().Plan(p)
	must.OK(t, err)
	must.OK(t, verify.Plan(p, pl))
	return pl
}

// copied returns a copy of a plan that can be changed without the original.
func copied(pl *plan.Plan) *plan.Plan {
	c := *pl
	c.Segments = slices.Clone(pl.Segments)
	c.Services = slices.Clone(pl.Services)
	c.SMsPerGPU = maps.Clone(pl.SMsPerGPU)
	return &c
}

// mutations are the ways to damage a legal plan. A mutation of a segment gets a
// random one; false means that it cannot be applied to this plan.
var mutations = []struct {
	name  string
	spoil func(p *plan.Problem, pl *plan.Plan, s *plan.Segment) bool
	// want is part of what the verifier must report.
	want string
}{
	{"another version", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool { pl.Version++; return true }, "version: 2"},
	{"no policy", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool { pl.Policy = ""; return true }, "policy: none"},
	{"another GPU model in the head", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.GPUModel = plan.Mixed
		return true
	}, `gpu_model: "mixed"`},
	{"one GPU too few", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool { pl.GPUs--; return true }, "want 0 to"},
	{"a GPU that nothing lies on", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool { pl.GPUs++; return true }, "gpus: "},
	{"a gap in the numbers", func(_ *plan.Problem, pl *plan.Plan, s *plan.Segment) bool {
		s.GPU = pl.GPUs
		return true
	}, "gpu "},
	{"a negative GPU", func(_ *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.GPU = -1; return true }, "gpu -1"},
	{"GPCs counted wrongly", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool { pl.GPCs++; return true }, "gpcs: "},
	{"another GPU", func(_ *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.GPUModel = "b200"; return true }, `"b200"`},
	{"a slot before the first", func(_ *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.Slot = -1; return true }, "slot -1"},
	{"a slot past the last", func(p *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.Slot = p.GPU.Slots; return true }, "slot "},
	{"a slot where the size may not start", func(p *plan.Problem, _ *plan.Plan, s *plan.Segment) bool {
		size, _ := p.GPU.Size(s.GPCs)
		for slot := range p.GPU.Slots {
			if !slices.Contains(size.Starts, slot) {
				s.Slot = slot
				return true
			}
		}
		return false
	}, "starts at one of"},
	{"a size that there is not", func(p *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.GPCs = p.GPU.GPCs + 1; return true }, "cannot be cut so"},
	{"a size of nothing", func(_ *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.GPCs = 0; return true }, "cannot be cut so"},
	{"a segment over another", func(_ *plan.Problem, pl *plan.Plan, s *plan.Segment) bool {
		twice := *s
		pl.Segments = append(pl.Segments, twice)
		return true
	}, "covers slot"},
	{"a batch that was not measured", func(_ *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.Batch = 3; return true }, "no such point"},
	{"processes that were not measured", func(_ *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.Processes = 77; return true }, "no such point"},
	{"more throughput than measured", func(_ *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.ThroughputRPS *= 1.01; return true }, "throughput_rps"},
	{"less latency than measured", func(_ *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.LatencyMS *= 0.99; return true }, "latency_ms"},
	{"a service that nobody wants", func(_ *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.Service = "nobody"; return true }, `service "nobody"`},
	{"a model that was not measured", func(_ *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.Model = "nothing"; return true }, `model "nothing"`},
	{"load above throughput", func(_ *plan.Problem, _ *plan.Plan, s *plan.Segment) bool {
		s.LoadRPS = s.ThroughputRPS * 1.1
		return true
	}, "load_rps"},
	{"negative load", func(_ *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.LoadRPS = -1; return true }, "load_rps"},
	{"load lost", func(_ *plan.Problem, _ *plan.Plan, s *plan.Segment) bool { s.LoadRPS *= 0.9; return true }, "its segments carry"},
	{"a segment lost", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.Segments = pl.Segments[:len(pl.Segments)-1]
		return true
	}, "its segments"},
	{"a service lost", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.Services = pl.Services[1:]
		return true
	}, "is not in services"},
	{"a service twice", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.Services = append(pl.Services, pl.Services[0])
		return true
	}, "is listed twice"},
	{"another rate", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.Services[0].RateRPS /= 2
		return true
	}, "it is planned as"},
	{"another objective", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool { pl.Services[0].SLOMS *= 2; return true }, "it is planned as"},
	{"another bound", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.Services[0].LatencyBoundMS *= 1.5
		return true
	}, "latency_bound_ms"},
	{"more assigned than there is", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.Services[0].AssignedRPS *= 1.5
		return true
	}, "assigned_rps"},
	{"another slack", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool { pl.InternalSlack += 0.01; return true }, "internal_slack"},
	{"another fragmentation", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.ExternalFragmentation -= 0.01
		return true
	}, "external_fragmentation"},
	{"another SM count", func(_ *plan.Problem, pl *plan.Plan, s *plan.Segment) bool {
		pl.SMsPerGPU[s.GPUModel]++
		return true
	}, "sms_per_gpu"},
	{"a bound above the plan", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.LowerBound = pl.GPUs + 1
		return true
	}, "lower_bound"},
	{"optimal above its bound", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.Optimal, pl.LowerBound = true, pl.GPUs-1
		return pl.GPUs > 1
	}, "optimal: true"},
	{"optimal without a bound", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.Optimal, pl.LowerBound = true, 0
		return true
	}, "optimal: true"},
	{"optimal with a bound below nothing", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.Optimal, pl.LowerBound = true, -5
		return true
	}, "lower_bound: -5"},
	{"a bound below nothing", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool { pl.LowerBound = -1; return true }, "lower_bound: -1"},
	{"not optimal at its bound", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.Optimal, pl.LowerBound = false, pl.GPUs
		return true
	}, "optimal: false"},
	{"idle GPUs that there are not", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.IdleGPUs = []int{77, -3}
		return true
	}, "idle_gpus: [77 -3]"},
	{"an idle GPU for another", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		for i := range pl.Segments {
			pl.Segments[i].GPU++
		}
		pl.IdleGPUs = []int{99}
		return true
	}, "idle_gpus: [99]"},
	{"an idle GPU after the last", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		pl.IdleGPUs = []int{pl.GPUs}
		return true
	}, "idle_gpus: ["},
	{"an idle GPU twice", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		for i := range pl.Segments {
			pl.Segments[i].GPU += 2
		}
		pl.IdleGPUs = []int{0, 0}
		return true
	}, "idle_gpus: [0 0]"},
	{"loads that are not in proportion", func(_ *plan.Problem, pl *plan.Plan, s *plan.Segment) bool {
		for i := range pl.Segments {
			if o := &pl.Segments[i]; o.Service == s.Service && o != s {
				much := min(s.LoadRPS, o.ThroughputRPS-o.LoadRPS) / 2
				s.LoadRPS -= much
				o.LoadRPS += much
				return much > 0.001*s.LoadRPS
			}
		}
		return false
	}, "in proportion to its throughput"},
	{"a problem with a service twice", func(p *plan.Problem, _ *plan.Plan, _ *plan.Segment) bool {
		p.Services = append(p.Services, p.Services[0])
		return true
	}, "the problem has it twice"},
	{"a negative delay", func(_ *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool { pl.DelayMS = -1; return true }, "delay_ms"},
	{"an objective that is stricter now", func(p *plan.Problem, pl *plan.Plan, s *plan.Segment) bool {
		for i := range p.Services {
			if p.Services[i].Name == s.Service {
				p.Services[i].SLOMS = s.LatencyMS
				pl.Services[i].SLOMS = s.LatencyMS
				pl.Services[i].LatencyBoundMS = s.LatencyMS / 2 * 0.9
			}
		}
		return true
	}, "wants less than"},
	{"a rate that is higher now", func(p *plan.Problem, pl *plan.Plan, s *plan.Segment) bool {
		for i := range p.Services {
			if p.Services[i].Name == s.Service {
				p.Services[i].RateRPS = pl.Services[i].AssignedRPS * 1.01
				pl.Services[i].RateRPS = p.Services[i].RateRPS
			}
		}
		return true
	}, "segments reach"},
	{"a fleet that is smaller now", func(p *plan.Problem, pl *plan.Plan, _ *plan.Segment) bool {
		p.Fleet = []plan.Stock{{GPU: p.GPU, Count: pl.GPUs - 1}}
		return true
	}, "the fleet has"},
}

func TestSpoiledPlans(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p := plantest.Draw(t)
				p.Services = slices.Clone(p.Services)
				pl := copied(legal(t, p))
				i := rapid.IntRange(0, len(pl.Segments)-1).Draw(t, "segment")
				if !m.spoil(p, pl, &pl.Segments[i]) {
					return
				}
				err := verify.Plan(p, pl)
				var violation *verify.Violation
				if err == nil || !errors.As(err, &violation) || !strings.Contains(err.Error(), m.want) {
					t.Fatalf("%v\nwant one with %q", err, m.want)
				}
			})
		})
	}
}

// A change leaves gaps if it empties GPUs, and these are legal.
func TestIdleGPUs(t *testing.T) {
	p := plantest.Scenario(t, "S3")
	pl := copied(legal(t, p))
	for i := range pl.Segments {
		pl.Segments[i].GPU = 2*pl.Segments[i].GPU + 1
	}
	for n := range pl.GPUs {
		pl.IdleGPUs = append(pl.IdleGPUs, 2*n)
	}
	if err := verify.Plan(p, pl); err != nil {
		t.Error(err)
	}
}

// This test reads the published files directly, without the planner's reader of
// profiles or its types.
func TestPublishedPlans(t *testing.T) {
	for _, name := range plantest.Scenarios {
		for i, s := range legal(t, plantest.Scenario(t, name)).Segments {
			text, err := os.ReadFile("../../plan/testdata/parvagpu/prof_data/" + s.Model + ".csv")
			must.OK(t, err)
			found := false
			for line := range strings.Lines(string(text)) {
				var gpcs, batch, processes int
				var each, seconds float64
				n, _ := fmt.Sscanf(line, "%d,%d,%d,%g,%g", &gpcs, &batch, &processes, &each, &seconds)
				if n == 5 && gpcs == s.GPCs && batch == s.Batch && processes == s.Processes {
					found = math.Abs(each*float64(processes)-s.ThroughputRPS) < 1e-6 && math.Abs(1000*seconds-s.LatencyMS) < 1e-6
				}
			}
			if !found {
				t.Errorf("%s: segments[%d] is not in %s.csv as %+v", name, i, s.Model, s)
			}
		}
	}
}

// The published map of S4 has a segment of size 2 in slot 0 and one of size 1 in
// slot 1 of the same GPU. See deployment/SLO4/SLO4_ParvaGPU_deploy.csv, GPU 3.
func TestPublishedOverlap(t *testing.T) {
	pl := &plan.Plan{GPUs: 1, GPCs: 7, Segments: []plan.Segment{
		{GPUModel: "a100-80", Slot: 4, GPCs: 3}, {GPUModel: "a100-80", Slot: 0, GPCs: 2},
		{GPUModel: "a100-80", Slot: 1, GPCs: 1}, {GPUModel: "a100-80", Slot: 6, GPCs: 1},
	}}
	err := verify.Layout(pl)
	for _, want := range []string{"segments[2]: covers slot 1 of gpu 0, which segments[1] covers", "segments[3]: covers slot 6 of gpu 0, which segments[0] covers"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

// Figure 1 of the paper and NVIDIA's guide: how an A100 can be cut. Size 3 in
// slot 0 also takes slot 3.
func TestLayoutA100(t *testing.T) {
	type part struct{ slot, gpcs int }
	for _, c := range []struct {
		name  string
		parts []part
		legal bool
	}{
		{"7", []part{{0, 7}}, true},
		{"4-3", []part{{0, 4}, {4, 3}}, true},
		{"4-2-1", []part{{0, 4}, {4, 2}, {6, 1}}, true},
		{"4-1-1-1", []part{{0, 4}, {4, 1}, {5, 1}, {6, 1}}, true},
		{"3-3", []part{{0, 3}, {4, 3}}, true},
		{"3-3-1", []part{{0, 3}, {4, 3}, {3, 1}}, false},
		{"3-2-1", []part{{0, 3}, {4, 2}, {6, 1}}, true},
		{"2-2-3", []part{{0, 2}, {2, 2}, {4, 3}}, true},
		{"2-2-2-1", []part{{0, 2}, {2, 2}, {4, 2}, {6, 1}}, true},
		{"1-1-1-1-3", []part{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 3}}, true},
		{"seven of 1", []part{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}}, true},
		{"eight of 1", []part{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}, {7, 1}}, false},
		{"4 in slot 4", []part{{4, 4}}, false},
		{"2 in slot 5, as the paper has it", []part{{5, 2}}, false},
		{"2 in slot 6", []part{{6, 2}}, false},
		{"5", []part{{0, 5}}, false},
		{"7 and 1", []part{{0, 7}, {6, 1}}, false},
	} {
		pl := &plan.Plan{GPUs: 1}
		for _, part := range c.parts {
			pl.GPCs += part.gpcs
			pl.Segments = append(pl.Segments, plan.Segment{GPUModel: "a100-40", Slot: part.slot, GPCs: part.gpcs})
		}
		if err := verify.Layout(pl); (err == nil) != c.legal {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Without MIG, all segments share a GPU's memory.
func TestSharedMemory(t *testing.T) {
	g := plan.PercentGPU("tiny", 4, 1000, 2)
	point := plan.Point{GPCs: 1, Batch: 1, Processes: 1, ThroughputRPS: 100, LatencyMS: 1, MemoryMiB: 600}
	p := &plan.Problem{GPU: g, Profiles: map[string]map[string]plan.Profile{"tiny": {"m": {Model: "m", GPU: "tiny", Points: []plan.Point{point}}}},
		Services: []plan.Service{{Name: "a", Model: "m", RateRPS: 150, SLOMS: 10}}}
	segments := func(second int) []plan.Segment {
		return []plan.Segment{plan.SegmentOf(0, g, 0, p.Services[0], point), plan.SegmentOf(second, g, 1, p.Services[0], point)}
	}
	if err := verify.Plan(p, plan.New(p, "test", segments(0))); err == nil || !strings.Contains(err.Error(), "gpu 0 holds 1200 MiB with it: tiny has 1000") {
		t.Errorf("two segments of 600 MiB on 1000: %v", err)
	}
	if err := verify.Plan(p, plan.New(p, "test", segments(1))); err != nil {
		t.Errorf("on two GPUs: %v", err)
	}
	if pl := legal(t, p); pl.GPUs != 2 {
		t.Errorf("the policy puts them on %d GPUs, want 2", pl.GPUs)
	}
}

// MPS admits 48 clients per GPU; a 49th process fails to open it.
func TestMPSLimit(t *testing.T) {
	g, err := plan.Lookup("v100")
	if err != nil || g.Clients != 48 {
		t.Fatalf("v100 takes %d clients, %v: want 48", g.Clients, err)
	}
	point := plan.Point{GPCs: 4, Batch: 1, Processes: 7, ThroughputRPS: 100, LatencyMS: 1}
	p := &plan.Problem{GPU: g, Profiles: map[string]map[string]plan.Profile{"v100": {"m": {Model: "m", GPU: "v100", Points: []plan.Point{point}}}},
		Services: []plan.Service{{Name: "a", Model: "m", RateRPS: 100, SLOMS: 10}}}
	for n := 1; n <= 8; n++ {
		var segments []plan.Segment
		for i := range n {
			segments = append(segments, plan.SegmentOf(0, g, 4*i, p.Services[0], point))
		}
		err := verify.Plan(p, plan.New(p, "test", segments))
		want := fmt.Sprintf("segments[%d]: gpu 0 has %d processes with it: MPS takes 48 on v100", n-1, 7*n)
		if 7*n <= 48 && err != nil || 7*n > 48 && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d × 7 processes: %v", n, err)
		}
	}
}

// A size with 0 MiB has no memory limit.
func TestUnlimitedMemory(t *testing.T) {
	g := plan.GPU{Name: "tiny", SMs: 10, Slots: 1, GPCs: 1, Sizes: []plan.Size{{GPCs: 1, Slots: 1, SMs: 10, Starts: []int{0}}}}
	point := plan.Point{GPCs: 1, Batch: 1, Processes: 1, ThroughputRPS: 100, LatencyMS: 1, MemoryMiB: 600}
	p := &plan.Problem{GPU: g, Profiles: map[string]map[string]plan.Profile{"tiny": {"m": {Model: "m", GPU: "tiny", Points: []plan.Point{point}}}},
		Services: []plan.Service{{Name: "a", Model: "m", RateRPS: 50, SLOMS: 10}}}
	if err := verify.Plan(p, plan.New(p, "test", []plan.Segment{plan.SegmentOf(0, g, 0, p.Services[0], point)})); err != nil {
		t.Error(err)
	}
}
