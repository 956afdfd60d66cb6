package pack

import (
	"math"

	"github.com/penstock/penstock/plan"
)

// On a GPU without MIG segments share the memory, so that the point of the highest throughput, which mostly has the
// most processes, need not be the best of its size. A value says what a point is worth: of the points of a size
// the one of the highest is used.
type value func(g plan.GPU, pt plan.Point) float64

// highest is the throughput: right wherever a segment has its memory to itself, or memory is plenty.
func highest(_ plan.GPU, pt plan.Point) float64 { return pt.ThroughputRPS }

// lean is the throughput, but points that take more of their GPU's memory than of its steps come last: the others
// pack by steps as if there were no memory.
func lean(g plan.GPU, pt plan.Point) float64 {
	if pt.MemoryMiB*float64(g.GPCs) > float64(g.MemoryMiB)*float64(pt.GPCs) {
		return -1 / pt.ThroughputRPS
	}
	return pt.ThroughputRPS
}

// weighed is the throughput for the share of a GPU that a point takes, where a part of it is counted by memory and
// the rest by steps. No GPU holds segments whose shares add up to more than 1, however they are weighed.
func weighed(part float64) value {
	return func(g plan.GPU, pt plan.Point) float64 { return pt.ThroughputRPS / share(part, g, pt) }
}

func share(part float64, g plan.GPU, pt plan.Point) float64 {
	return part*pt.MemoryMiB/float64(g.MemoryMiB) + (1-part)*float64(pt.GPCs)/float64(g.GPCs)
}

// weights are the parts that are tried. They end before 1, where segments without steps would be free.
var weights = []float64{0.2, 0.4, 0.6, 0.8, 0.95}

// leastByMemory is the lower bound that memory adds: for the weight that says most, the sum over the services of
// their cheapest mix of any points, each at its share of a GPU. It is for problems of one model of GPU.
func (in *instance) leastByMemory() int {
	g := in.stocks[0].GPU
	coverer := &coverer{}
	most := 0.0
	for _, part := range weights {
		sum := 0.0
		for _, service := range in.problem.Services {
			points, err := in.problem.Feasible(g, service)
			if err != nil {
				continue // build has found points for every service
			}
			d := demand{rate: service.RateRPS}
			var price []float64
			for _, pt := range points {
				d.gives = append(d.gives, pt.ThroughputRPS)
				price = append(price, share(part, g, pt))
			}
			sum += coverer.cheapest(d, price, make([]int, len(price)))
		}
		most = math.Max(most, sum)
	}
	return ceilGPUs(most)
}

// mindMemory tries other points where memory decides, and takes the best answer.
func (in *instance) mindMemory(best answer, ok bool) (*instance, answer, bool, error) {
	least := best.leastGPUs
	if len(in.kinds) == 1 {
		least = max(least, in.leastByMemory())
	}
	winner := in
	values := []value{lean}
	for _, part := range weights {
		values = append(values, weighed(part))
	}
	for _, v := range values {
		if ok && best.gpus == least {
			break
		}
		other, err := build(in.problem, v)
		if err != nil {
			return nil, best, false, err
		}
		if a, fits := other.solve(); fits && (!ok || a.gpus < best.gpus) {
			a.leastGPCs = 0
			winner, best, ok = other, a, true
		}
	}
	best.leastGPUs = least
	return winner, best, ok, nil
}
