package parvagpu

import (
	"math"

	"github.com/penstock/penstock/plan"
)

// service is a service with what the configurator found for it (Table II).
type service struct {
	plan.Service
	// triplets has the best point of each size that serves, ascending by size: at
	// most one a size.
	triplets []plan.Point
	// optimal is the triplet of the most throughput a GPC, number how many
	// segments of it are filled, last the segment that carries the rest.
	optimal plan.Point
	number  int
	last    plan.Point
}

// configure is Algorithm 1: TripletDecision and DemandMatching.
func (pl planner) configure(p *plan.Problem, gpu plan.GPU) ([]*service, error) {
	var services []*service
	for _, s := range byName(p.Services) {
		points, err := p.Feasible(gpu, s)
		if err != nil {
			return nil, err
		}
		triplets := pl.triplets(points)
		if len(triplets) == 0 {
			return nil, p.Unmet(gpu, s, pl.allows)
		}
		matched := &service{Service: s, triplets: triplets}
		matched.match()
		services = append(services, matched)
	}
	return services, nil
}

// triplets picks the point of the largest throughput of each size; of equal
// ones the first. Points ascend by size.
func (pl planner) triplets(points []plan.Point) []plan.Point {
	var best []plan.Point
	for _, pt := range points {
		n := len(best)
		switch {
		case !pl.allows(pt):
		case n == 0 || best[n-1].GPCs != pt.GPCs:
			best = append(best, pt)
		case pt.ThroughputRPS > best[n-1].ThroughputRPS:
			best[n-1] = pt
		}
	}
	return best
}

// allows says whether the policy looks at a point at all.
func (pl planner) allows(pt plan.Point) bool { return pt.Processes <= pl.processes }

// match is demand matching: filled segments of the triplet with the most
// throughput a GPC (of equal ones the smallest), and the smallest size that
// carries what is left. A rate that fills its segments exactly leaves a whole
// one to the last.
func (s *service) match() {
	perGPC := func(pt plan.Point) float64 { return pt.ThroughputRPS / float64(pt.GPCs) }
	s.optimal = s.triplets[0]
	for _, pt := range s.triplets[1:] {
		if perGPC(pt) > perGPC(s.optimal) {
			s.optimal = pt
		}
	}
	s.number = max(0, int(math.Ceil(s.RateRPS/s.optimal.ThroughputRPS))-1)
	left := s.RateRPS - float64(s.number)*s.optimal.ThroughputRPS
	s.last = s.optimal
	for _, pt := range s.triplets {
		if pt.ThroughputRPS >= left {
			s.last = pt
			break
		}
	}
}

// rounding is the part of a rate that sums of throughputs may miss or exceed it
// by: no segment is spent on it.
const rounding = 1e-10

// small are the segments of sizes 1 and 2 that together reach a throughput
// (SmallSegments, line 22): of size 2 as many as it fills and of size 1 for the
// rest where size 2 serves more a GPC, else of size 1 alone; of the one size
// where the other does not serve. Sizes 1 and 2 of a GPU without MIG are the two
// smallest that the service was measured at. ok is false where neither serves.
func (s *service) small(g plan.GPU, throughput float64) (segments []plan.Point, ok bool) {
	if throughput <= rounding*s.RateRPS {
		return nil, true
	}
	fill := func(pt plan.Point, n int) {
		for range n {
			segments = append(segments, pt)
			throughput -= pt.ThroughputRPS
		}
	}
	one, two := s.smallSizes(g)
	switch {
	case one == nil && two == nil:
		return nil, false
	case two == nil:
		fill(*one, int(math.Ceil(throughput/one.ThroughputRPS)))
	case one == nil:
		fill(*two, int(math.Ceil(throughput/two.ThroughputRPS)))
	default:
		if two.ThroughputRPS*float64(one.GPCs) > one.ThroughputRPS*float64(two.GPCs) {
			fill(*two, int(throughput/two.ThroughputRPS))
		}
		if throughput > rounding*s.RateRPS {
			fill(*one, int(math.Ceil(throughput/one.ThroughputRPS)))
		}
	}
	return segments, true
}

func (s *service) smallSizes(g plan.GPU) (one, two *plan.Point) {
	for i := range s.triplets {
		pt := &s.triplets[i]
		switch {
		case g.Percent && i == 0, !g.Percent && pt.GPCs == 1:
			one = pt
		case g.Percent && i == 1, !g.Percent && pt.GPCs == 2:
			two = pt
		}
	}
	return one, two
}
