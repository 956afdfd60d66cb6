// Package gpulet plans as gpulet does (Choi et al., "Serving Heterogeneous Machine
// Learning Models on Multi-GPU Servers with Spatio-Temporal Sharing", USENIX ATC 2022;
// github casys-kaist/glet): at most two partitions of MPS percentages per GPU.
//
// The steps of a plan (elastic partitioning):
//
//  1. Sort services by rate × objective, the smallest first, as the published
//     scheduler does.
//  2. Find a service's most efficient partition (knee): the one that gains the most
//     over the next smaller, if the gain is at least 5 %.
//  3. While rate remains, take the smaller of two partitions: the knee, and the
//     smallest that carries the remaining rate. Place it in the rest of a GPU that
//     has one partition, the tightest first, otherwise on a new GPU.
//  4. On a new GPU the partition is as large as necessary. The second partition of a
//     GPU is all that the first left, even if it needs less (section II-A of
//     ParvaGPU's paper).
//
// Partitions have the percentages of the published configuration: 20, 40, 50, 60, 80,
// 100.
//
// How it compares with gpulet:
//
//   - Spatial sharing is included. Temporal sharing, in which two services take turns
//     in one partition, is not: ParvaGPU's comparison describes at most two workloads
//     per GPU, and a plan has one service per segment.
//   - gpulet predicts a pair's interference from each model's use of L2 cache and
//     memory bandwidth, profiled in pairs. Those figures are not published for these
//     models. Here a partition that is not a whole GPU counts as slower by
//     baseline.Pair, with any neighbour. This affects only the choice: a plan's
//     throughputs and latencies are the profile's.
//   - gpulet drops a remaining rate below 15 requests/s. Here the whole rate is met.
//   - Percentages are derived from MIG sizes if there is no profile of percentages
//     (baseline.Percent).
//   - The latency bound is the problem's, half of the objective. It leaves more room
//     than gpulet's own (batch time and time to fill the batch within the objective).
//
// On the paper's six scenarios it takes 3, 6, 7, 10, 17, 22 GPUs. ParvaGPU saves 32 %
// of them on average; its paper reports 46.5 %.
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

// percentages are the possible partitions (resource/sim-config.json of the published
// scheduler), ascending.
var percentages = []float64{20, 40, 50, 60, 80, 100}

// gain is the min ratio of a larger partition's rate to the smaller one's, for the
// larger one to be considered as the knee (MIN_THRESHOLD of the published scheduler).
const gain = 1.05

type policy struct{}

// New returns gpulet's planner. It plans on MPS percentages: a problem on a GPU with
// MIG is planned, and must be verified, as baseline.Percent returns it.
func New() plan.Policy { return policy{} }

func (policy) Name() string { return Name }

// rest is what the first partition of a GPU left: the steps after it, and memory.
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

// take finds the tightest rest of at least part steps in which the service fits and
// meets its bound, the first of equals.
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

// table has a service's rates for each partition size, from 0 steps up.
type table struct {
	wholeGPU int
	points   []plan.Point // the largest throughput within the bound, undisturbed
	parts    []int        // the possible partitions, ascending
}

// saturate fills a service's table. A size that was not measured uses the point of the
// largest smaller size that was.
func saturate(p *plan.Problem, g plan.GPU, s plan.Service) (table, error) {
	points, err := baseline.Points(p, g, s)
	if err != nil {
		return table{}, err
	}
	t := table{wholeGPU: g.GPCs, points: make([]plan.Point, g.GPCs+1)}
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

// fastestOf returns the point with the shortest batch.
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

// served returns the rate that a partition counts with: disturbed, unless it is the
// whole GPU.
func (t table) served(size int) float64 {
	if size == t.wholeGPU {
		return t.points[size].ThroughputRPS
	}
	return t.points[size].ThroughputRPS / (1 + baseline.Pair)
}

// knee returns the partition that gains the most per step over the next smaller one.
// If none gains enough, it returns the smallest that serves. As in the published
// scheduler it ignores the step to the whole GPU, unless nothing smaller serves.
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

// ideal returns the partition to look for: the smallest up to the knee that carries
// the remaining rate, otherwise the knee.
func (t table) ideal(knee int, left float64) int {
	for _, part := range t.parts {
		if part < knee && t.served(part) >= left {
			return part
		}
	}
	return knee
}
