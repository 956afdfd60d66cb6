package pack

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
)

// brute returns the min number of GPUs and then of GPCs, of all choices of mixes. Kinds in use
// share no item.
func brute(in *instance) (gpus int, gpcs float64) {
	gpus, gpcs = math.MaxInt, math.Inf(1)
	var all [][][]int
	var known []map[string]int
	for _, s := range in.stocks {
		all = append(all, fillings(s.GPU))
		known = append(known, map[string]int{})
	}
	counts := make([]int, in.items)
	seen := make([]map[string]bool, len(in.demands))
	var choose func(s int)
	choose = func(s int) {
		if s == len(in.demands) {
			sum := 0
			for m, k := range in.kinds {
				// fewest wants one count per size of the table.
				full := make([]int, len(in.stocks[m].GPU.Sizes))
				for i, n := range k.counts(counts) {
					at := slices.IndexFunc(in.stocks[m].GPU.Sizes, func(size plan.Size) bool { return size.GPCs == in.sizes[k.first+i].GPCs })
					full[at] = n
				}
				n := fewest(all[m], full, known[m])
				if k.limit >= 0 && n > k.limit {
					return
				}
				sum += n
			}
			cost := worth(in.gpcs, counts)
			if sum < gpus || sum == gpus && cost < gpcs {
				gpus, gpcs = sum, cost
			}
			return
		}
		key := fmt.Sprint(counts)
		if seen[s] == nil {
			seen[s] = map[string]bool{}
		}
		if seen[s][key] {
			return
		}
		seen[s][key] = true
		mixes(in.demands[s], func(mix []int) {
			for k, n := range mix {
				counts[k] += n
			}
			choose(s + 1)
			for k, n := range mix {
				counts[k] -= n
			}
		})
	}
	choose(0)
	return gpus, gpcs
}

func TestBruteForce(t *testing.T) {
	small := plan.PercentGPU("small", 6, 0, 1)
	for _, c := range []struct {
		name   string
		stocks []plan.Stock
	}{
		{"a100", []plan.Stock{{GPU: gpu(t, "a100-80"), Count: -1}}},
		{"a30", []plan.Stock{{GPU: gpu(t, "a30"), Count: -1}}},
		{"steps", []plan.Stock{{GPU: small, Count: -1}}},
		{"a fleet", []plan.Stock{{GPU: gpu(t, "a100-80"), Count: 1}, {GPU: gpu(t, "a30"), Count: -1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			proved, all := 0, 0
			rapid.Check(t, func(t *rapid.T) {
				p := &plan.Problem{Fleet: c.stocks, Profiles: map[string]map[string]plan.Profile{}}
				for s := range rapid.IntRange(1, 4).Draw(t, "services") {
					name := fmt.Sprintf("m%d", s)
					for _, stock := range c.stocks {
						profile := plan.Profile{Model: name, GPU: stock.GPU.Name}
						for _, size := range stock.GPU.Sizes {
							least := 8 * size.GPCs // so that no service has too many segments for brute force
							profile.Points = append(profile.Points, plan.Point{GPCs: size.GPCs, Batch: 1, Processes: 1, LatencyMS: 1,
								ThroughputRPS: float64(rapid.IntRange(least, 2*least).Draw(t, "throughput"))})
						}
						if p.Profiles[stock.GPU.Name] == nil {
							p.Profiles[stock.GPU.Name] = map[string]plan.Profile{}
						}
						p.Profiles[stock.GPU.Name][name] = profile
					}
					p.Services = append(p.Services, plan.Service{Name: name, Model: name, SLOMS: 10, RateRPS: float64(rapid.IntRange(1, 45).Draw(t, "rate"))})
				}
				in, err := build(p)
				must.OK(t, err)
				a, ok := in.solve()
				gpus, gpcs := brute(in)
				if !ok || a.minGPUs > gpus || a.gpus < gpus {
					t.Fatalf("%v: %d GPUs, at least %d; brute force has %d", ok, a.gpus, a.minGPUs, gpus)
				}
				// Nothing is exhaustive without MIG.
				if a.gpus != gpus && (c.name != "steps" || a.gpus > gpus+1) {
					t.Fatalf("%d GPUs, brute force has %d", a.gpus, gpus)
				}
				all++
				if a.minGPUs == gpus {
					proved++
				}
				if len(in.kinds) == 1 && (a.minGPCs > gpcs+1e-6 || a.gpcs < gpcs-1e-6) {
					t.Fatalf("%v GPCs, at least %v; brute force has %v", a.gpcs, a.minGPCs, gpcs)
				}
			})
			t.Logf("%d of %d proved", proved, all)
			if proved < all {
				t.Errorf("%d of %d proved: want all", proved, all)
			}
		})
	}
}
