// Package baseline is what the planners that ParvaGPU is compared with have in
// common (section IV-A: gpulet, iGniter, MIG-serving; each has a package beside
// this one).
//
// All three run one process a partition, keep the problem's latency bound as
// ParvaGPU does (half of the objective is for queueing in each of their papers),
// and plan on one model of GPU.
//
// gpulet and iGniter share GPUs by MPS percentages, with MIG off. Nobody published
// profiles of that for the models that ParvaGPU measured, so Percent reads them
// from the MIG sizes; its comment says how, and what is lost.
//
// Nor did anybody publish how those models disturb each other under MPS. Pair is a
// figure of our own instead, and each package says where it goes in.
package baseline

import (
	"fmt"
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
)

// Pair is by how much a batch takes longer when another busy model has the rest
// of the GPU under MPS: 2880/2480 − 1. Two VGG-19 at batch 8 on an H200, at 42 %
// of it each, serve 2,480 images/s each; 42 % of it alone serves 2,880 (measured
// with this project's own functions). VGG-19 is heavy on memory: most pairs
// disturb each other less.
const Pair = 2880.0/2480 - 1

// Stock is the one model of GPU that a problem is planned on, and how many of it
// there are, negative for as many as needed. The error says what a policy of that
// name cannot do.
func Stock(p *plan.Problem, policy string) (plan.Stock, error) {
	if stocks := p.Stocks(); len(stocks) == 1 {
		return stocks[0], nil
	}
	return plan.Stock{}, fmt.Errorf("policy %s plans on one model of GPU: want a fleet of one, or the policy penstock", policy)
}

// Memory is what the partitions of a GPU share under MPS, in MiB: infinite where the
// GPU's table does not limit it.
func Memory(g plan.GPU) float64 {
	if g.MemoryMiB == 0 {
		return math.Inf(1)
	}
	return float64(g.MemoryMiB)
}

// Finish makes the plan of these segments, or *plan.TooSmall where the problem's stock
// has fewer GPUs.
func Finish(p *plan.Problem, policy string, segments []plan.Segment, notes ...string) (*plan.Plan, error) {
	pl := plan.New(p, policy, segments)
	if err := p.Fit(pl); err != nil {
		return nil, err
	}
	pl.Notes = append(pl.Notes, notes...)
	return pl, nil
}

// Points are a service's points of one process within the bound, by size. The
// errors are those of plan.Problem's Feasible.
func Points(p *plan.Problem, g plan.GPU, s plan.Service) (map[int][]plan.Point, error) {
	points, err := p.Feasible(g, s)
	if err != nil {
		return nil, err
	}
	bySize := map[int][]plan.Point{}
	for _, pt := range points {
		if single(pt) {
			bySize[pt.GPCs] = append(bySize[pt.GPCs], pt)
		}
	}
	if len(bySize) == 0 {
		return nil, p.Unmet(g, s, single)
	}
	return bySize, nil
}

// single says whether a point is of one process.
func single(pt plan.Point) bool { return pt.Processes == 1 }

// Largest is the point of the largest throughput; the zero Point where there is
// none. Of two the faster one, of two of those the smaller batch.
func Largest(points []plan.Point) plan.Point {
	var best plan.Point
	for _, pt := range points {
		if pt.ThroughputRPS > best.ThroughputRPS || pt.ThroughputRPS == best.ThroughputRPS && pt.LatencyMS < best.LatencyMS {
			best = pt
		}
	}
	return best
}

// Begin checks a problem and returns it as Percent does, with its model of GPU.
func Begin(p *plan.Problem, policy string) (*plan.Problem, plan.GPU, error) {
	if err := p.Check(); err != nil {
		return nil, plan.GPU{}, err
	}
	p, err := Percent(p, policy)
	if err != nil {
		return nil, plan.GPU{}, err
	}
	stock, err := Stock(p, policy)
	return p, stock.GPU, err
}

// Percent is the problem on the same GPUs with MIG off: "a100-80" becomes
// "a100-80-mps". A problem that is on percent GPUs already is returned as it is,
// and profiles that were measured there are taken as they are.
//
// Where there are none, they are read from the MIG sizes, one process each:
//
//   - A size's multiprocessors are what counts: a 2g of an A100 stands for 28 of
//     108, or 26 %.
//   - Between two sizes throughput is linear in the multiprocessors, and latency
//     in their reciprocal, which is how iGniter models it (latency falls as
//     1/share; ParvaGPU interpolates in its Figure 4, too).
//   - Below the smallest size nothing is known, and nothing is planned. Above the
//     largest (98 of an A100's 108) more multiprocessors bring nothing.
//   - A MIG size has its part of the memory and its bandwidth to itself, and under
//     MPS both are shared: batches that ran out of memory in a small instance
//     might fit, and are left out, and neighbours disturb each other, for which
//     the policies leave room.
func Percent(p *plan.Problem, policy string) (*plan.Problem, error) {
	stock, err := Stock(p, policy)
	if err != nil {
		return nil, err
	}
	from := stock.GPU
	if from.Percent {
		return p, nil
	}
	to, err := plan.Lookup(from.Name + "-mps")
	if err != nil {
		return nil, fmt.Errorf("policy %s plans %s with MIG off: %w", policy, from.Name, err)
	}
	of := *p
	of.GPU = to
	if len(p.Fleet) > 0 {
		of.Fleet = []plan.Stock{{GPU: to, Count: stock.Count}}
	}
	of.Profiles = map[string]map[string]plan.Profile{}
	for name, profiles := range p.Profiles {
		of.Profiles[name] = profiles
	}
	models := map[string]plan.Profile{}
	for model, profile := range p.Profiles[from.Name] {
		models[model] = interpolate(profile, from, to)
	}
	for model, measured := range p.Profiles[to.Name] {
		models[model] = measured
	}
	of.Profiles[to.Name] = models
	return &of, nil
}

// interpolate reads a profile of percentages from one of MIG sizes.
func interpolate(profile plan.Profile, from, to plan.GPU) plan.Profile {
	type measured struct {
		sms int
		plan.Point
	}
	byBatch := map[int][]measured{}
	for _, pt := range profile.Points {
		size, ok := from.Size(pt.GPCs)
		if ok && pt.Processes == 1 && pt.ThroughputRPS > 0 {
			byBatch[pt.Batch] = append(byBatch[pt.Batch], measured{size.SMs, pt})
		}
	}
	var batches []int
	for batch, points := range byBatch {
		slices.SortFunc(points, func(a, b measured) int { return a.sms - b.sms })
		batches = append(batches, batch)
	}
	slices.Sort(batches)
	out := plan.Profile{Model: profile.Model, GPU: to.Name, HeldBy: profile.HeldBy}
	for _, size := range to.Sizes {
		for _, batch := range batches {
			points := byBatch[batch]
			at, exact := slices.BinarySearchFunc(points, size.SMs, func(m measured, sms int) int { return m.sms - sms })
			var pt plan.Point
			switch {
			case exact:
				pt = points[at].Point
			case at == 0:
				continue
			case at == len(points):
				pt = points[at-1].Point
			default:
				low, high := points[at-1], points[at]
				s, l, h := float64(size.SMs), float64(low.sms), float64(high.sms)
				up := (s - l) / (h - l)           // of the way in multiprocessors
				down := (1/l - 1/s) / (1/l - 1/h) // of the way in their reciprocals
				pt = plan.Point{Batch: batch, Processes: 1,
					ThroughputRPS: low.ThroughputRPS + up*(high.ThroughputRPS-low.ThroughputRPS),
					LatencyMS:     low.LatencyMS + down*(high.LatencyMS-low.LatencyMS),
					MemoryMiB:     max(low.MemoryMiB, high.MemoryMiB)}
			}
			pt.GPCs = size.GPCs
			out.Points = append(out.Points, pt)
		}
	}
	return out
}
