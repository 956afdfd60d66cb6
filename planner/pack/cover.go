package pack

import (
	"cmp"
	"math"
	"slices"
)

// closeEnough is the fraction of a rate that rounding may hide (throughputs are measured to six
// digits at best).
const closeEnough = 5e-10

// coverSteps ends a search that nearly equal prices make long.
const coverSteps = 4000

// cover finds the mixes of a service that cost at most slack more than the cheapest one:
//
//	min Σ price × n  with  Σ throughput × n ≥ rate,  n whole and ≥ 0.
//
// It visits the offers from the lowest price per request to the highest, and tries as many of each
// as can help. A branch ends if the rest of the rate costs too much even at the best price of the
// remaining offers.
type cover struct {
	*service
	price []float64
	slack float64
	// found is called for each mix: the number of segments per offer. It is valid during the call.
	found func(mix []int, cost float64)

	order []int
	mix   []int
	least float64
	steps int
}

// search returns a lower bound of the cost of all mixes: that of the cheapest mix, unless the
// search was too long.
func (c *cover) search() float64 {
	ratio := func(k int) float64 { return c.price[k] / c.offers[k].point.ThroughputRPS }
	c.order = make([]int, len(c.offers))
	for i := range c.order {
		c.order[i] = i
	}
	slices.SortStableFunc(c.order, func(a, b int) int { return cmp.Compare(ratio(a), ratio(b)) })
	c.mix, c.least, c.steps = make([]int, len(c.offers)), math.Inf(1), 0
	rate := c.rate * (1 - closeEnough)
	c.visit(0, rate, 0)
	if c.steps > coverSteps {
		return min(c.least, rate*ratio(c.order[0]))
	}
	return c.least
}

func (c *cover) visit(i int, left, cost float64) {
	c.steps++
	k := c.order[i]
	gives, price := c.offers[k].point.ThroughputRPS, c.price[k]
	most := int(math.Ceil(left / gives))
	if whole := cost + float64(most)*price; whole <= c.least+c.slack {
		c.mix[k] = most
		c.found(c.mix, whole)
		c.least = min(c.least, whole)
	}
	if i+1 < len(c.order) {
		next := c.order[i+1]
		ratio := c.price[next] / c.offers[next].point.ThroughputRPS
		for n := most - 1; n >= 0 && c.steps <= coverSteps; n-- {
			rest, spent := left-float64(n)*gives, cost+float64(n)*price
			if spent+rest*ratio > c.least+c.slack {
				break
			}
			c.mix[k] = n
			c.visit(i+1, rest, spent)
		}
	}
	c.mix[k] = 0
}
