package replay

import "math/rand/v2"

// A Routing says which segment of its service a request goes to.
type Routing string

const (
	// ByLoad sends requests to segments in turn, in proportion to their loads:
	// the plan's load_rps to the letter, which a balancer can do that hears nothing
	// from the segments. It evens out the arrivals at each segment.
	ByLoad Routing = "load"
	// routeByChance draws the segment, with the loads as weights: what many clients do
	// that know nothing of each other. Arrivals at each segment are Poisson again.
	routeByChance Routing = "chance"
	// routeByDelay sends a request where it is expected to end first, by the queues'
	// lengths and the batches that run: what a balancer can do that sits in front
	// of all segments of a service and watches them. It does not keep to load_rps:
	// fast segments get more while there is little to do.
	routeByDelay Routing = "delay"
)

// Routings are all there are.
func Routings() []Routing { return []Routing{ByLoad, routeByChance, routeByDelay} }

// A router chooses a server for each request of a run.
type router interface {
	to(now float64, r *run) int
}

// newRouter makes the router of one run, whose servers' shares add up to 1.
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
		// Anywhere within its first turn, so that no run begins in step.
		due[i] = chance.Float64() / servers[i].share
	}
	return byLoad{due}
}

type only struct{}

func (only) to(float64, *run) int { return 0 }

// byLoad keeps for each server when, counted in requests of the service, its
// next is due.
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
