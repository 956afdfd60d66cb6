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

// fewest returns the min number of GPUs that hold counts, by brute force.
func fewest(all [][]int, counts []int, known map[string]int) int {
	if !slices.ContainsFunc(counts, func(n int) bool { return n > 0 }) {
		return 0
	}
	key := fmt.Sprint(counts)
	if n, ok := known[key]; ok {
		return n
	}
	best := math.MaxInt
	for _, filling := range all {
		rest := make([]int, len(counts))
		helps := false
		for k := range filling {
			rest[k] = max(0, counts[k]-filling[k])
			helps = helps || rest[k] < counts[k]
		}
		if helps {
			best = min(best, 1+fewest(all, rest, known))
		}
	}
	known[key] = best
	return best
}

func TestPartitionRules(t *testing.T) {
	for _, name := range []string{"a100-40", "a100-80", "h100-80", "h200-141"} {
		g := gpu(t, name)
		var rules [][]float64
		for _, rule := range partitionRules(g) {
			var takes []float64
			for _, size := range g.Sizes {
				takes = append(takes, rule(plan.Point{GPCs: size.GPCs}))
			}
			rules = append(rules, takes)
		}
		for _, want := range [][]float64{{0, 0, 0, 1, 1}, {0, 1. / 3, 1. / 3, 2. / 3, 1}, {1. / 8, 1. / 4, 1. / 2, 1. / 2, 1}, {1. / 7, 2. / 7, 3. / 7, 4. / 7, 1}} {
			same := func(takes []float64) bool {
				return slices.EqualFunc(takes, want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
			}
			if !slices.ContainsFunc(rules, same) {
				t.Errorf("%s: no rule %v among %v", name, want, rules)
			}
		}
	}
}

// Segments of GPUs with MIG are laid out on the fewest GPUs, which the rules predict.
func TestPartition(t *testing.T) {
	for _, name := range []string{"a30", "a100-80", "h200-141"} {
		t.Run(name, func(t *testing.T) {
			k := kind{Stock: plan.Stock{GPU: gpu(t, name), Count: -1}}
			k.rules = rulesOf(k.GPU)
			all, known := fillings(k.GPU), map[string]int{}
			rapid.Check(t, func(t *rapid.T) {
				var list []parcel
				counts, loads := make([]int, len(k.GPU.Sizes)), make([]float64, len(k.rules))
				for i, size := range k.GPU.Sizes {
					counts[i] = rapid.IntRange(0, 5).Draw(t, "count")
					for range counts[i] {
						list = append(list, parcel{offer: &offer{point: plan.Point{GPCs: size.GPCs}}})
						for r, rule := range k.rules {
							loads[r] += rule(plan.Point{GPCs: size.GPCs})
						}
					}
				}
				boards := k.partition(list, ceil(k.use(loads)))
				if want := fewest(all, counts, known); len(boards) != want || ceil(k.use(loads)) != want {
					t.Fatalf("%v: %d GPUs, %v by the rules; want %d", counts, len(boards), k.use(loads), want)
				}
			})
		})
	}
}

// brute returns the min number of GPUs of all choices of minimal mixes.
func brute(t *task) int {
	best := math.MaxInt
	all, known := make([][][]int, len(t.kinds)), make([]map[string]int, len(t.kinds))
	counts := make([][]int, len(t.kinds))
	for m, k := range t.kinds {
		all[m], known[m], counts[m] = fillings(k.GPU), map[string]int{}, make([]int, len(k.GPU.Sizes))
	}
	seen := map[string]bool{}
	var choose func(s, from int, left float64)
	choose = func(s, from int, left float64) {
		if left <= 1e-9 {
			if s++; s < len(t.services) {
				if key := fmt.Sprint(s, counts); !seen[key] {
					seen[key] = true
					choose(s, 0, t.services[s].rate)
				}
				return
			}
			sum := 0
			for m, k := range t.kinds {
				n := fewest(all[m], counts[m], known[m])
				if k.Count >= 0 && n > k.Count {
					return
				}
				sum += n
			}
			best = min(best, sum)
			return
		}
		for i := from; i < len(t.services[s].offers); i++ {
			o := t.services[s].offers[i]
			size := slices.IndexFunc(t.kinds[o.kind].GPU.Sizes, func(size plan.Size) bool { return size.GPCs == o.point.GPCs })
			counts[o.kind][size]++
			choose(s, i, left-o.point.ThroughputRPS)
			counts[o.kind][size]--
		}
	}
	choose(0, 0, t.services[0].rate)
	return best
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
		{"fleet", []plan.Stock{{GPU: gpu(t, "a100-80"), Count: 1}, {GPU: gpu(t, "a30"), Count: -1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all, worse, proved := 0, 0, 0
			rapid.Check(t, func(t *rapid.T) {
				p := &plan.Problem{Fleet: c.stocks, Profiles: map[string]map[string]plan.Profile{}}
				for _, stock := range c.stocks {
					p.Profiles[stock.GPU.Name] = map[string]plan.Profile{}
				}
				for s := range rapid.IntRange(1, 3).Draw(t, "services") {
					name := fmt.Sprintf("m%d", s)
					for _, stock := range c.stocks {
						profile := plan.Profile{Model: name, GPU: stock.GPU.Name}
						for _, size := range stock.GPU.Sizes {
							least := 8 * size.GPCs // so that no service has too many segments for brute force
							profile.Points = append(profile.Points, plan.Point{GPCs: size.GPCs, Batch: 1, Processes: 1, LatencyMS: 1,
								ThroughputRPS: float64(rapid.IntRange(least, 2*least).Draw(t, "throughput"))})
						}
						p.Profiles[stock.GPU.Name][name] = profile
					}
					p.Services = append(p.Services, plan.Service{Name: name, Model: name, SLOMS: 10, RateRPS: float64(rapid.IntRange(1, 45).Draw(t, "rate"))})
				}
				task, err := build(p)
				must.OK(t, err)
				made, want := planned(t, p), brute(task)
				if made.LowerBound > want || made.GPUs < want || made.GPUs > want+1 {
					t.Fatalf("%d GPUs, at least %d; brute force has %d", made.GPUs, made.LowerBound, want)
				}
				all++
				if made.GPUs > want {
					worse++
				}
				if made.Optimal {
					proved++
				}
			})
			t.Logf("of %d plans, %d are not the best and %d are proved", all, worse, proved)
			if worse*100 > all || proved*10 < all*9 {
				t.Errorf("of %d plans, %d are not the best and %d are proved: want at most 1 %% and at least 90 %%", all, worse, proved)
			}
		})
	}
}
