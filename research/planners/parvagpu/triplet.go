package parvagpu

import (
	"math"

	"github.com/penstock/penstock/plan"
)

// service is a service with the configurator's results (Table II).
type service struct {
	plan.Service
	// triplets has the best point of each feasible size, ascending by size: at
	// most one per size.
	triplets []plan.Point
	// optimal is the triplet with the most throughput per GPC, number the count
	// of full segments of it, last the segment that carries the rest.
	optimal plan.Point
	number  int
	last    plan.Point
}

// configure is Algorithm 1: TripletDecision and DemandMatching.
func configure(p *plan.Problem, gpu plan.GPU) ([]*service, error) {
	var services []*service
	for _, s := range byName(p.Services) {
		points, err := p.Feasible(gpu, s)
		if err != nil {
			return nil, err
		}
		matched := &service{Service: s, triplets: triplets(points)}
		matched.match()
		services = append(services, matched)
	}
	return services, nil
}

// triplets picks the point of the largest throughput for each size. If several
// are equal, it picks the first. Points ascend by size.
func triplets(points []plan.Point) []plan.Point {
	var best []plan.Point
	for _, pt := range points {
		n := len(best)
		switch {
		case n == 0 || best[n-1].GPCs != pt.GPCs:
			best = append(best, pt)
		case pt.ThroughputRPS > best[n-1].ThroughputRPS:
			best[n-1] = pt
		}
	}
	return best
}

// match is demand matching: full segments of the triplet with the most throughput
// per GPC (the smallest if several are equal), and the smallest size that carries
// the rest. If a rate fills its segments exactly, the last full segment counts as
// the rest.
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

// rounding is the relative rounding error of a sum of throughputs. A missing rate
// below it needs no segment.
const rounding = 1e-10

// small returns the segments of sizes 1 and 2 that together reach a throughput
// (SmallSegments, line 22):
//
//   - If size 2 has more throughput per GPC: as many full segments of size 2 as
//     possible, and size 1 for the rest.
//   - Otherwise: size 1 only.
//   - If only one of the two sizes is feasible: that size.
//
// On a GPU without MIG, sizes 1 and 2 are the two smallest measured sizes of the
// service. ok is false if neither is feasible.
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
