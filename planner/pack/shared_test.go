package pack

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/verify"
)

// gslice returns n services of GSLICE's models on V100s, each with its own rate and SLO. A point
// takes 900 MiB, and 50 for each request of a batch: penstock profile writes memory, but those
// measurements have none.
func gslice(t testing.TB, n int) *plan.Problem {
	t.Helper()
	profiles, err := plan.ReadProfiles(os.DirFS("../../plan/testdata/gslice_v100"))
	must.OK(t, err)
	for _, byModel := range profiles {
		for _, profile := range byModel {
			for i := range profile.Points {
				profile.Points[i].MemoryMiB = 900 + 50*float64(profile.Points[i].Batch)
			}
		}
	}
	data, err := os.ReadFile("../../plan/testdata/gslice_v100_services.csv")
	must.OK(t, err)
	base, err := plan.ReadServices(bytes.NewReader(data), "gslice_v100_services.csv", "")
	must.OK(t, err)
	random := rand.New(rand.NewPCG(1, uint64(n)))
	p := &plan.Problem{GPU: gpu(t, "v100"), Profiles: profiles}
	for i := range n {
		s := base[random.IntN(len(base))]
		s.Name = fmt.Sprintf("s%05d", i)
		s.RateRPS *= 0.1 + 2*random.Float64()
		s.SLOMS *= 0.9 + random.Float64()
		p.Services = append(p.Services, s)
	}
	return p
}

func TestShareThousands(t *testing.T) {
	for _, n := range []int{1, 5, 20, 50, 100, 1000} {
		pl := planned(t, gslice(t, n))
		t.Logf("%d: %d GPUs, at least %d", n, pl.GPUs, pl.LowerBound)
		if pl.GPUs > pl.LowerBound+1+pl.LowerBound/20 {
			t.Errorf("%d services: %d GPUs, and %d proved", n, pl.GPUs, pl.LowerBound)
		}
	}
}

// Both fit together, each at its first point. No single value selects both points: because of the
// memory, one service would take its leaner point and the other would not.
func TestSharedFleetSuffices(t *testing.T) {
	g := plan.PercentGPU("mid", 10, 100, 1)
	point := func(steps int, throughput, memory float64) plan.Point {
		return plan.Point{GPCs: steps, Batch: 1, Processes: 1, ThroughputRPS: throughput, LatencyMS: 1, MemoryMiB: memory}
	}
	at := func(pt plan.Point, batch int) plan.Point { pt.Batch = batch; return pt }
	profile := func(points ...plan.Point) plan.Profile { return plan.Profile{GPU: g.Name, Points: points} }
	p := &plan.Problem{Fleet: []plan.Stock{{GPU: g, Count: 1}},
		Profiles: map[string]map[string]plan.Profile{g.Name: {
			"m0": profile(point(4, 24, 60), at(point(4, 30, 80), 2)),
			"m1": profile(point(4, 40, 40), at(point(4, 20, 10), 2)),
		}},
		Services: []plan.Service{{Name: "m0", Model: "m0", RateRPS: 18, SLOMS: 10}, {Name: "m1", Model: "m1", RateRPS: 31, SLOMS: 10}}}
	if pl := planned(t, p); pl.GPUs != 1 {
		t.Errorf("%d GPUs, want 1", pl.GPUs)
	}
	p.Services[1].RateRPS = 71
	_, err := New().Plan(p)
	var small *plan.TooSmall
	if !errors.As(err, &small) || small.Unproved || !strings.Contains(err.Error(), "is too small") {
		t.Errorf("%v: want a fleet that is proved to be too small", err)
	}
}

// sharedBrute returns the min number of GPUs of a fleet, over all mixes of all points and all ways
// to lay them out. It supports percent GPUs only and uses no bound. It returns math.MaxInt if there
// is no plan.
func sharedBrute(p *plan.Problem) int {
	type bin struct {
		stock, steps, processes int
		memory                  float64
	}
	var bins []bin
	opened := make([]int, len(p.Fleet))
	best := math.MaxInt
	var serve func(s int, from [2]int, left float64)
	serve = func(s int, from [2]int, left float64) {
		if len(bins) >= best {
			return
		}
		if left <= 0 {
			if s++; s == len(p.Services) {
				best = len(bins)
				return
			}
			serve(s, [2]int{}, p.Services[s].RateRPS)
			return
		}
		for m := from[0]; m < len(p.Fleet); m++ {
			g := p.Fleet[m].GPU
			points := p.Profiles[g.Name][p.Services[s].Model].Points
			first := 0
			if m == from[0] {
				first = from[1]
			}
			for i := first; i < len(points); i++ {
				pt := points[i]
				if pt.LatencyMS >= p.Services[s].SLOMS*0.45 {
					continue
				}
				for b := 0; b <= len(bins); b++ {
					if b == len(bins) {
						if opened[m] == p.Fleet[m].Count {
							break
						}
						bins = append(bins, bin{stock: m})
						opened[m]++
					}
					old := bins[b]
					now := bin{m, old.steps + pt.GPCs, old.processes + pt.Processes, old.memory + pt.MemoryMiB}
					if old.stock == m && now.steps <= g.Slots && now.memory <= float64(g.MemoryMiB) && (g.Clients == 0 || now.processes <= g.Clients) {
						bins[b] = now
						serve(s, [2]int{m, i}, left-pt.ThroughputRPS)
						bins[b] = old
					}
					if old.steps == 0 {
						bins = bins[:b]
						opened[m]--
						break
					}
				}
			}
		}
	}
	serve(0, [2]int{}, p.Services[0].RateRPS)
	return best
}

// Several points per size, with memory, processes and limits that matter. Proved bounds hold, and
// few plans have more GPUs than the best.
func TestSharedBruteForce(t *testing.T) {
	worse, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := &plan.Problem{Profiles: map[string]map[string]plan.Profile{}}
		for m := range rapid.IntRange(1, 2).Draw(t, "models") {
			g := plan.PercentGPU(fmt.Sprintf("g%d", m), 6+2*m, 100, 1)
			g.Clients = rapid.IntRange(4, 8).Draw(t, "clients")
			p.Fleet = append(p.Fleet, plan.Stock{GPU: g, Count: rapid.IntRange(1, 2).Draw(t, "count")})
			p.Profiles[g.Name] = map[string]plan.Profile{}
		}
		for s := range rapid.IntRange(1, 3).Draw(t, "services") {
			name := fmt.Sprintf("m%d", s)
			for _, stock := range p.Fleet {
				profile := plan.Profile{Model: name, GPU: stock.GPU.Name}
				for batch := range 3 {
					steps := rapid.IntRange(1, 5).Draw(t, "steps")
					profile.Points = append(profile.Points, plan.Point{GPCs: steps, Batch: 1 + batch, LatencyMS: 1,
						Processes:     rapid.IntRange(1, 4).Draw(t, "processes"),
						ThroughputRPS: float64(rapid.IntRange(10*steps, 20*steps).Draw(t, "throughput")),
						MemoryMiB:     float64(rapid.IntRange(10, 70).Draw(t, "memory"))})
				}
				p.Profiles[stock.GPU.Name][name] = profile
			}
			p.Services = append(p.Services, plan.Service{Name: name, Model: name, SLOMS: 10, RateRPS: float64(rapid.IntRange(5, 60).Draw(t, "rate"))})
		}
		all++
		want := sharedBrute(p)
		pl, err := New().Plan(p)
		var small *plan.TooSmall
		if errors.As(err, &small) {
			if want != math.MaxInt {
				worse++
				if !small.Unproved {
					t.Fatalf("%v\nbrute force has %d GPUs", err, want)
				}
			}
			return
		}
		must.OK(t, err)
		must.OK(t, verify.Plan(p, pl))
		if pl.GPUs > want {
			worse++
		}
		if pl.GPUs < want || pl.LowerBound > want || pl.Optimal != (pl.LowerBound == pl.GPUs) {
			t.Fatalf("%d GPUs, at least %d, optimal %v; brute force has %d", pl.GPUs, pl.LowerBound, pl.Optimal, want)
		}
	})
	t.Logf("%d of %d are not the best", worse, all)
	if worse*10 > all {
		t.Errorf("%d of %d are not the best: want at most a tenth", worse, all)
	}
}

// MPS admits 48 processes. By steps and memory, forty segments of two processes fit a V100.
func TestMPSClients(t *testing.T) {
	g := gpu(t, "v100")
	for _, memory := range []float64{0, 100} {
		points := []plan.Point{{GPCs: 1, Batch: 1, Processes: 2, ThroughputRPS: 10, LatencyMS: 1, MemoryMiB: memory},
			{GPCs: 1, Batch: 2, Processes: 49, ThroughputRPS: 1000, LatencyMS: 1, MemoryMiB: memory}}
		p := &plan.Problem{GPU: g, Profiles: map[string]map[string]plan.Profile{"v100": {"m": {Model: "m", GPU: "v100", Points: points}}},
			Services: []plan.Service{{Name: "s", Model: "m", RateRPS: 400, SLOMS: 10}}}
		if pl := planned(t, p); pl.GPUs != 2 || !pl.Optimal {
			t.Errorf("%g MiB: %d GPUs, optimal %v; want 2 of at most 24 segments", memory, pl.GPUs, pl.Optimal)
		}
		p.Profiles["v100"]["m"] = plan.Profile{Points: points[1:]}
		var infeasible *plan.Infeasible
		if _, err := New().Plan(p); !errors.As(err, &infeasible) {
			t.Errorf("%v: want *plan.Infeasible of a point that has 49 processes", err)
		}
	}
}

// BenchmarkShared plans on V100s whose segments share memory, and on a fleet of these and of V100s
// with half of it.
func BenchmarkShared(b *testing.B) {
	for _, n := range []int{1, 10, 20, 50, 100, 1000} {
		p := gslice(b, n)
		for _, fleet := range []bool{false, true} {
			name := fmt.Sprintf("v100/services=%d", n)
			if fleet {
				name = fmt.Sprintf("fleet/services=%d", n)
				half := p.GPU
				half.Name, half.MemoryMiB = "v100-half", p.GPU.MemoryMiB/2
				half.Sizes = slices.Clone(half.Sizes)
				for i := range half.Sizes {
					half.Sizes[i].MemoryMiB = half.MemoryMiB
				}
				p.Profiles[half.Name] = p.Profiles[p.GPU.Name]
				p.Fleet = []plan.Stock{{GPU: p.GPU, Count: n/10 + 1}, {GPU: half, Count: -1}}
			}
			b.Run(name, func(b *testing.B) {
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
	}
}
