// Package gpulet plans as gpulet does (Choi et al., "Serving Heterogeneous Machine
// Learning Models on Multi-GPU Servers with Spatio-Temporal Sharing", USENIX ATC
// 2022; github casys-kaist/glet): at most two partitions of MPS percentages a GPU.
//
// The way of a plan (elastic partitioning):
//
//  1. Services by rate × objective, the smallest first, as the published scheduler
//     sorts them.
//  2. A service's most efficient partition (knee): the one that gains the most over
//     the next smaller, if the gain is 5 % at least.
//  3. While rate is left, the smaller of the knee and of the smallest partition
//     that carries what is left is looked for: in the rest of a GPU that has one
//     partition, the tightest first, else on a new GPU.
//  4. On a new GPU the partition is as large as it has to be. The second partition
//     of a GPU is all that the first left, however little of it is needed (section
//     II-A of ParvaGPU's paper).
//
// Partitions are of the published configuration's percentages: 20, 40, 50, 60, 80,
// 100.
//
// How far this is gpulet:
//
//   - Spatial sharing is. Temporal sharing, two services that take turns in one
//     partition, is not: ParvaGPU's comparison describes two workloads a GPU and
//     no more, and a plan has one service a segment.
//   - gpulet predicts a pair's interference from each model's use of L2 cache and
//     memory bandwidth, profiled in pairs. Nobody published those figures for
//     these models. Here a partition that is not a whole GPU is taken to be slower
//     by baseline.Pair, whoever its neighbour is. It goes into the choice only: a
//     plan's throughputs and latencies are the profile's.
//   - gpulet gives up on rates below 15 requests/s that are left. Here all of a
//     rate is met.
//   - Percentages are read from MIG sizes where there is no profile of percentages
//     (baseline.Percent).
//   - The latency bound is the problem's, which leaves more room than gpulet's own
//     (batch time and time to fill the batch within the objective): half of it.
//
// On the paper's six scenarios it takes 3, 6, 7, 10, 17, 22 GPUs: ParvaGPU saves 32 %
// of them on average, where its paper reports 46.5 %.
package gpulet

import (
	"cmp"
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/research/planners/baseline"
)

// Name is the policy's name.
const Name = "gpulet"

// percentages are the partitions that there are (resource/sim-config.json of the
// published scheduler), ascending.
var percentages = []float64{20, 40, 50, 60, 80, 100}

// gain is by how much a larger partition must serve more to be looked at for the
// knee (MIN_THRESHOLD of the published scheduler).
const gain = 1.05

type policy struct{}

// New is gpulet's planner. It plans on MPS percentages: a problem on a GPU with MIG is
// planned, and must be verified, as baseline.Percent has it.
func New() plan.Policy { return policy{} }

func (policy) Name() string { return Name }

// rest is what the first partition of a GPU left: steps from one on, and memory.
type rest struct {
	gpu, from int
	memoryMiB float64
}

func (policy) Plan(p *plan.Problem) (*plan.Plan, error) {
	p, g, err := baseline.Begin(p, Name)
	if err != nil {
		return nil, err
	}
	services := slices.Clone(p.Services)
	slices.SortFunc(services, func(a, b plan.Service) int {
		return cmp.Or(cmp.Compare(a.RateRPS*a.SLOMS, b.RateRPS*b.SLOMS), cmp.Compare(a.Name, b.Name))
	})
	var segments []plan.Segment
	rests := make([][]rest, g.GPCs) // by size
	gpus := 0
	for _, s := range services {
		t, err := saturate(p, g, s)
		if err != nil {
			return nil, err
		}
		knee := t.knee()
		for left := s.RateRPS; left > 0; {
			part := t.ideal(knee, left)
			gpu, slot, size := gpus, 0, part
			if r, ok := take(rests, part, t); ok {
				gpu, slot, size = r.gpu, r.from, g.GPCs-r.from
			} else {
				gpus++
				if part < g.GPCs {
					left := baseline.Memory(g) - t.points[part].MemoryMiB
					rests[g.GPCs-part] = append(rests[g.GPCs-part], rest{gpu, part, left})
				}
			}
			segments = append(segments, plan.SegmentOf(gpu, g, slot, s, t.points[size]))
			left -= t.served(size)
		}
	}
	return baseline.Finish(p, Name, segments,
		"gpulet without temporal sharing; MPS percentages where not measured are read from MIG sizes; partitions that share a GPU are planned to be slower than the profile, which the figures here do not show")
}

// take finds the tightest rest of at least part steps in which the service serves
// and fits, the first of equals.
func take(rests [][]rest, part int, t table) (rest, bool) {
	for size := part; size < len(rests); size++ {
		if t.served(size) == 0 {
			continue
		}
		for i, r := range rests[size] {
			if t.points[size].MemoryMiB <= r.memoryMiB {
				rests[size] = slices.Delete(rests[size], i, i+1)
				return r, true
			}
		}
	}
	return rest{}, false
}

// table is what a service can do on each partition size, from 0 steps up.
type table struct {
	whole  int
	points []plan.Point // the largest throughput within the bound, undisturbed
	parts  []int        // the partitions, ascending
}

// saturate fills a service's table. Where a size was not measured, the largest one
// below it that was is what runs there.
func saturate(p *plan.Problem, g plan.GPU, s plan.Service) (table, error) {
	points, err := baseline.Points(p, g, s)
	if err != nil {
		return table{}, err
	}
	t := table{whole: g.GPCs, points: make([]plan.Point, g.GPCs+1)}
	bound := p.BoundMS(s)
	serves := false
	for size := 1; size <= g.GPCs; size++ {
		slower := 1.0
		if size < g.GPCs {
			slower += baseline.Pair
		}
		var fit []plan.Point
		for _, pt := range points[size] {
			if pt.LatencyMS*slower < bound {
				fit = append(fit, pt)
			}
		}
		best := baseline.Largest(fit)
		if best.Batch == 0 && len(points[size]) == 0 {
			best = t.points[size-1]
		}
		t.points[size] = best
	}
	for _, percent := range percentages {
		part := int(math.Round(percent * float64(g.GPCs) / 100))
		t.parts = append(t.parts, part)
		serves = serves || t.points[part].Batch > 0
	}
	if !serves {
		return table{}, &plan.Infeasible{Service: s, GPU: g.Name, BoundMS: bound / (1 + baseline.Pair), Best: fastestOf(points)}
	}
	return t, nil
}

// fastestOf is the point with the shortest batch.
func fastestOf(points map[int][]plan.Point) plan.Point {
	var best plan.Point
	for _, list := range points {
		for _, pt := range list {
			if best.Batch == 0 || cmp.Or(cmp.Compare(pt.LatencyMS, best.LatencyMS), pt.GPCs-best.GPCs, pt.Batch-best.Batch) < 0 {
				best = pt
			}
		}
	}
	return best
}

// served is the rate that a partition is counted with: disturbed, unless it is the
// whole GPU.
func (t table) served(size int) float64 {
	if size == t.whole {
		return t.points[size].ThroughputRPS
	}
	return t.points[size].ThroughputRPS / (1 + baseline.Pair)
}

// knee is the partition that gains the most a step over the next smaller one; the
// smallest that serves where none gains enough. The step to the whole GPU is not
// looked at, as in the published scheduler, but where nothing smaller serves.
func (t table) knee() int {
	knee, most := 0, 0.0
	for i, part := range t.parts {
		have := t.served(part)
		if have == 0 {
			continue
		}
		if knee == 0 {
			knee = part
		}
		if i == 0 || i == len(t.parts)-1 {
			continue
		}
		below := t.parts[i-1]
		if before := t.served(below); have >= before*gain {
			if slope := (have - before) / float64(part-below); slope > most {
				knee, most = part, slope
			}
		}
	}
	return knee
}

// ideal is the partition to look for: the smallest up to the knee that carries what
// is left, else the knee.
func (t table) ideal(knee int, left float64) int {
	for _, part := range t.parts {
		if part < knee && t.served(part) >= left {
			return part
		}
	}
	return knee
}
