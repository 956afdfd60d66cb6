package replay

import "math/rand/v2"

// A router chooses a server for each request of a run, exactly in proportion to the
// servers' shares (the plan's load_rps). A balancer without feedback from the segments
// can do this. It evens out the arrivals at each segment.
//
// It tracks for each server when its next request is due, counted in requests of the service.
type router struct{ due []float64 }

// newRouter makes the router of one run. The servers' shares must add up to 1.
func newRouter(servers []server, chance *rand.Rand) router {
	due := make([]float64, len(servers))
	for i := range due {
		// A random time within its first turn, so that runs do not begin in step.
		due[i] = chance.Float64() / servers[i].share
	}
	return router{due}
}

func (r router) next(servers []server) int {
	first := 0
	for i, d := range r.due {
		if d < r.due[first] {
			first = i
		}
	}
	r.due[first] += 1 / servers[first].share
	return first
}
