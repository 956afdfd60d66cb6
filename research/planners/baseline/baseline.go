// Package baseline is the common part of the planners that ParvaGPU is compared with:
// gpulet, iGniter and MIG-serving (section IV-A). Each has its own package in the
// parent folder.
//
// All three run one process per partition and plan on one model of GPU. They keep the
// problem's latency bound as ParvaGPU does: each of their papers reserves half of the
// objective for queueing.
//
// gpulet and iGniter share GPUs by MPS percentages, with MIG off. No such profiles are
// published for the models that ParvaGPU measured. Percent therefore derives them from
// the MIG sizes; its comment explains how, and what is lost.
//
// It is not published either how those models disturb each other under MPS. Pair is
// our own measurement instead, and each package explains where it uses Pair.
package baseline

import (
	"fmt"
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/research/planners/fleet"
)

// Pair is the relative slowdown of a batch if another busy model has the rest of the
// GPU under MPS: 2880/2480 − 1. Two VGG-19 at batch 8 on an H200, with 42 % of it
// each, serve 2,480 images/s each. With 42 % of it alone, one serves 2,880 (measured
// with this project's own functions). VGG-19 uses much memory bandwidth: most pairs
// disturb each other less.
const Pair = 2880.0/2480 - 1

// Stock returns the one model of GPU that a problem is planned on, and its number of
// GPUs, negative for as many as needed. The error says what the named policy cannot
// do.
func Stock(p *plan.Problem, policy string) (plan.Stock, error) {
	if stocks := p.Stocks(); len(stocks) == 1 {
		return stocks[0], nil
	}
	return plan.Stock{}, fmt.Errorf("policy %s plans on one model of GPU: want a fleet of one, or the policy penstock", policy)
}

// Memory returns the memory that the partitions of a GPU share under MPS, in MiB. It
// is infinite if the GPU's table has no limit.
func Memory(g plan.GPU) float64 {
	if g.MemoryMiB == 0 {
		return math.Inf(1)
	}
	return float64(g.MemoryMiB)
}

// Finish makes the plan of these segments. It returns *plan.TooSmall if the problem's
// stock has too few GPUs.
func Finish(p *plan.Problem, policy string, segments []plan.Segment, notes ...string) (*plan.Plan, error) {
	pl := plan.New(p, policy, segments)
	if err := fleet.Fit(p, pl); err != nil {
		return nil, err
	}
	pl.Notes = append(pl.Notes, notes...)
	return pl, nil
}

// Points returns a service's points with one process within the bound, by size. The
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

// single reports whether a point has one process.
func single(pt plan.Point) bool { return pt.Processes == 1 }

// Largest returns the point with the largest throughput, or the zero Point if there is
// none. Among equals it prefers the shorter latency, then the smaller batch.
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

// Percent returns the problem on the same GPUs with MIG off: "a100-80" becomes
// "a100-80-mps". A problem on percent GPUs is returned unchanged, and profiles that
// were measured on them are used unchanged.
//
// If there are no such profiles, Percent derives them from the MIG sizes with one
// process each:
//
//   - A size counts by its multiprocessors: a 2g of an A100 stands for 28 of 108, or
//     26 %.
//   - Between two sizes, throughput is linear in the multiprocessors and latency is
//     linear in their reciprocal. This is iGniter's model (latency falls as 1/share;
//     ParvaGPU interpolates in its Figure 4, too).
//   - Below the smallest size nothing is known, so nothing is planned. Above the
//     largest (98 of an A100's 108) more multiprocessors have no effect.
//   - A MIG size has its own memory and bandwidth; under MPS both are shared.
//     Therefore batches that ran out of memory in a small instance might fit, but are
//     left out. Neighbours also disturb each other, and the policies leave room for
//     that.
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
	copied := *p
	copied.GPU = to
	if len(p.Fleet) > 0 {
		copied.Fleet = []plan.Stock{{GPU: to, Count: stock.Count}}
	}
	copied.Profiles = map[string]map[string]plan.Profile{}
	for name, profiles := range p.Profiles {
		copied.Profiles[name] = profiles
	}
	models := map[string]plan.Profile{}
	for model, profile := range p.Profiles[from.Name] {
		models[model] = interpolate(profile, from, to)
	}
	for model, measured := range p.Profiles[to.Name] {
		models[model] = measured
	}
	copied.Profiles[to.Name] = models
	return &copied, nil
}

// interpolate derives a profile of percentages from one of MIG sizes.
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
				up := (s - l) / (h - l)           // position between the sizes, in multiprocessors
				down := (1/l - 1/s) / (1/l - 1/h) // position in their reciprocals
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
