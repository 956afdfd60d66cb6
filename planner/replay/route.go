package replay

import "math/rand/v2"

// A Routing decides to which of its service's segments a request goes.
type Routing string

const (
	// ByLoad sends requests to segments in turn, exactly in proportion to their
	// loads (the plan's load_rps). A balancer without feedback from the segments can
	// do this. It evens out the arrivals at each segment.
	ByLoad Routing = "load"
	// routeByChance draws the segment at random, weighted by the loads, as many
	// independent clients do. Arrivals at each segment are then Poisson again.
	routeByChance Routing = "chance"
	// routeByDelay sends a request to the segment that is expected to finish it
	// first, by the lengths of the queues and the running batches. A balancer in
	// front of all segments of a service that watches them can do this. It does not
	// keep to load_rps: fast segments get more while load is low.
	routeByDelay Routing = "delay"
)

// Routings returns all routings.
func Routings() []Routing { return []Routing{ByLoad, routeByChance, routeByDelay} }

// A router chooses a server for each request of a run.
type router interface {
	to(now float64, r *run) int
}

// newRouter makes the router of one run. The servers' shares must add up to 1.
func newRouter(how Routing, servers []server, chance *rand.Rand) router {
	if len(servers) == 1 {
		return only{}
	}
	switch how {
	case routeByChance:
		return byChance{}
	case routeByDelay:
		return byDelay{}
	}
	due := make([]float64, len(servers))
	for i := range due {
		// A random time within its first turn, so that runs do not begin in step.
		due[i] = chance.Float64() / servers[i].share
	}
	return byLoad{due}
}

type only struct{}

func (only) to(float64, *run) int { return 0 }

// byLoad tracks for each server when its next request is due, counted in requests of
// the service.
type byLoad struct{ due []float64 }

func (b byLoad) to(_ float64, r *run) int {
	first := 0
	for i, d := range b.due {
		if d < b.due[first] {
			first = i
		}
	}
	b.due[first] += 1 / r.servers[first].share
	return first
}

type byChance struct{}

func (byChance) to(_ float64, r *run) int {
	x := r.chance.Float64()
	for i := range r.servers {
		if x -= r.servers[i].share; x < 0 {
			return i
		}
	}
	return len(r.servers) - 1
}

type byDelay struct{}

func (byDelay) to(now float64, r *run) int {
	best, least := 0, r.servers[0].delay(now)
	for i := 1; i < len(r.servers); i++ {
		if d := r.servers[i].delay(now); d < least {
			best, least = i, d
		}
	}
	return best
}
