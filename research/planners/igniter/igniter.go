// Package igniter plans as iGniter does (Xu et al., "iGniter: Interference-Aware GPU
// Resource Provisioning for Predictable DNN Inference in the Cloud", IEEE TPDS 34(3),
// 2022; github icloud-ecnu/igniter). It uses MPS percentages and puts as many services
// on a GPU as fit, each with a slightly larger share to compensate for its neighbours.
//
// The steps of a plan:
//
//  1. Find a service's lower bound: the min share that meets its rate and bound alone,
//     in units of 2.5 %.
//  2. Sort services by lower bound, the largest first.
//  3. Try each on every GPU. All shares on that GPU grow by one unit each, again and
//     again, until every one meets its rate and bound next to the others, or the GPU
//     is full.
//  4. Choose the GPU on which the shares grow least, the first of equals, or a new
//     GPU.
//
// How it compares with iGniter:
//
//   - Steps 2 to 4 are its Algorithms 1 and 2.
//   - iGniter fits latency as a function of share and batch to a few samples. Here the
//     profile itself is used (with percentages from MIG sizes if none were measured:
//     baseline.Percent). So this planner is better: it does not repeat iGniter's
//     errors of prediction, which ParvaGPU's paper blames for much of its slack.
//   - The batch is the one among those measured that the service's min share needs.
//     iGniter's batch is half the objective × rate.
//   - iGniter's interference has three terms: kernel scheduling, L2 cache and power.
//     Coefficients are published for four models on a V100. Here a batch takes longer
//     by baseline.Pair for a neighbour of the share that it was measured with (42 %),
//     and in proportion for others: a model's use of the L2 cache grows with its
//     share.
//   - As in the paper, a service is not divided: a rate that no GPU carries alone is
//     refused. ParvaGPU's paper has no result of iGniter for S5 and S6 for that
//     reason.
//
// On the paper's scenarios S1 to S4 it takes 2, 4, 5, 11 GPUs, and it refuses S5 and
// S6. ParvaGPU saves 15 % of them on average; its paper reports 34.6 %.
package igniter

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/research/planners/baseline"
)

// Name is the policy's name.
const Name = "igniter"

// unitPercent is the increment of a share (r_unit of the published code).
const unitPercent = 2.5

// disturbance is the relative slowdown of a batch per part of the GPU that its
// neighbours have. baseline.Pair was measured with a neighbour of 42 %.
const disturbance = baseline.Pair / 0.42

type policy struct{}

// New returns iGniter's planner. It plans on MPS percentages: a problem on a GPU with
// MIG is planned, and must be verified, as baseline.Percent returns it.
func New() plan.Policy { return policy{} }

func (policy) Name() string { return Name }

// workload is a service with its batch and the points of that batch.
type workload struct {
	service plan.Service
	bound   float64
	// at has the point at each number of units from 0 up. Its Batch is 0 if the service
	// does not meet its bound there.
	at    []plan.Point
	lower int // units
}

// share is a workload on a GPU.
type share struct {
	*workload
	units int
}

// gpu has the shares of a GPU.
type gpu struct {
	shares []share
	steps  int // of all shares
}

// memory returns the memory of all shares, in MiB, as far as it was measured.
func memory(shares []share) float64 {
	sum := 0.0
	for _, s := range shares {
		sum += s.at[s.units].MemoryMiB
	}
	return sum
}

func (policy) Plan(p *plan.Problem) (*plan.Plan, error) {
	p, g, err := baseline.Begin(p, Name)
	if err != nil {
		return nil, err
	}
	units := unitsOf(g)
	workloads := make([]*workload, len(p.Services))
	for i, s := range p.Services {
		if workloads[i], err = lowerBound(p, g, units, s); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(workloads, func(a, b *workload) int {
		return cmp.Or(units[b.lower]-units[a.lower], cmp.Compare(a.service.Name, b.service.Name))
	})
	var gpus []gpu
	for _, w := range workloads {
		best, least := -1, 0
		var grown []share
		for i := range gpus {
			shares, steps, ok := gpus[i].with(w, units, g.GPCs)
			ok = ok && memory(shares) <= baseline.Memory(g)
			if ok && (best < 0 || steps-gpus[i].steps < least) {
				best, least, grown = i, steps-gpus[i].steps, shares
			}
		}
		if best < 0 {
			gpus = append(gpus, gpu{[]share{{w, w.lower}}, units[w.lower]})
			continue
		}
		gpus[best] = gpu{grown, gpus[best].steps + least}
	}
	var segments []plan.Segment
	for i, used := range gpus {
		slot := 0
		for _, s := range used.shares {
			segments = append(segments, plan.SegmentOf(i, g, slot, s.service, s.at[s.units]))
			slot += units[s.units]
		}
	}
	return baseline.Finish(p, Name, segments,
		"MPS percentages where not measured are read from MIG sizes; services that share a GPU are planned to be slower than the profile, which the figures here do not show")
}

// unitsOf returns the steps of each number of units, from 0 up.
func unitsOf(g plan.GPU) []int {
	steps := []int{0}
	for percent := unitPercent; percent <= 100; percent += unitPercent {
		steps = append(steps, g.Steps(percent))
	}
	return steps
}

// lowerBound finds the min share that carries a service alone, and the fastest batch
// that needs only that share.
func lowerBound(p *plan.Problem, g plan.GPU, units []int, s plan.Service) (*workload, error) {
	points, err := baseline.Points(p, g, s)
	if err != nil {
		return nil, err
	}
	w := &workload{service: s, bound: p.BoundMS(s), at: make([]plan.Point, len(units))}
	var most plan.Point
	batch := 0
	for u := 1; u < len(units) && batch == 0; u++ {
		fastest := 0.0
		for _, pt := range points[units[u]] {
			if pt.ThroughputRPS > most.ThroughputRPS {
				most = pt
			}
			if pt.ThroughputRPS >= s.RateRPS && (batch == 0 || pt.LatencyMS < fastest) {
				batch, fastest, w.lower = pt.Batch, pt.LatencyMS, u
			}
		}
	}
	if batch == 0 {
		return nil, &plan.Infeasible{Service: s, GPU: g.Name, BoundMS: w.bound, Best: most, Reason: fmt.Sprintf(
			"rate %.6g requests/s: the best segment within %.4g ms per batch (%s) serves %.6g, %.6g short; iGniter does not divide a service",
			s.RateRPS, w.bound, most, most.ThroughputRPS, s.RateRPS-most.ThroughputRPS)}
	}
	for u := w.lower; u < len(units); u++ {
		for _, pt := range points[units[u]] {
			if pt.Batch == batch {
				w.at[u] = pt
			}
		}
	}
	return w, nil
}

// with returns the GPU's shares with one more workload, grown until all meet their
// rates and bounds, and their total in steps. It returns false if the GPU has no room.
func (g gpu) with(w *workload, units []int, whole int) ([]share, int, bool) {
	steps := g.steps + units[w.lower]
	if steps > whole {
		return nil, 0, false
	}
	shares := append(slices.Clone(g.shares), share{w, w.lower})
	for grew := true; grew; {
		grew = false
		before := steps // compare with the neighbours of the previous round
		for i := range shares {
			s := &shares[i]
			others := float64(before-units[s.units]) / float64(whole)
			if s.content(others) {
				continue
			}
			if s.units+1 == len(units) {
				return nil, 0, false
			}
			steps += units[s.units+1] - units[s.units]
			s.units++
			grew = true
		}
		if steps > whole {
			return nil, 0, false
		}
	}
	return shares, steps, true
}

// content reports whether a share meets its rate and bound if the other shares have
// that much of the GPU.
func (s share) content(others float64) bool {
	slower := 1 + disturbance*others
	pt := s.at[s.units]
	return pt.Batch > 0 && pt.LatencyMS*slower < s.bound && pt.ThroughputRPS >= s.service.RateRPS*slower
}
