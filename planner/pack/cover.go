package pack

import (
	"math"
	"sort"
)

// demand is what one service needs from its segments. A segment of item k serves gives[k] requests
// per second (0: no point of that size is within the service's latency bound). Together they must
// serve rate.
type demand struct {
	rate    float64
	gives   []float64
	memory  []float64 // MiB of a segment, by item; 0 unknown
	clients []int     // processes of a segment, by item
}

// closeEnough is the fraction of a rate that rounding may hide (throughputs are measured to six
// digits at best).
const closeEnough = 5e-10

// coverer finds cheap mixes. It solves the covering knapsack
//
//	min Σ price[k]·n[k]  with  Σ gives[k]·n[k] ≥ rate,  n whole and ≥ 0.
//
// It visits the items from the lowest price per request to the highest. It tries as many of each as
// can help, the highest count first. A branch ends if the rest of the rate, at the price of the
// best remaining item, is already too expensive. That price is the knapsack's linear bound, so no
// better mix is lost. Few branches remain: 40 to 200 for ResNet-50 of S3 × 10 (14,630 requests/s,
// some 30 segments).
//
// One coverer is reused for many demands. It is not safe for concurrent use.
type coverer struct {
	order []int     // items that serve the demand, cheapest request first
	ratio []float64 // price of a request, by position in order
	gives []float64
	price []float64
	mix   []int // by position in order
	best  []int
	cost  float64
	steps int
	found func(mix []int, cost float64) // nil: only the best is kept
	limit float64
	seen  int
}

// coverSteps ends a search that nearly equal prices make long. The mix that it found is valid. The
// knapsack's linear bound then replaces the min cost, which was not proved.
const coverSteps = 4000

func (c *coverer) prepare(d demand, price []float64) {
	c.order = c.order[:0]
	for k, gives := range d.gives {
		if gives > 0 {
			c.order = append(c.order, k)
		}
	}
	sort.SliceStable(c.order, func(i, j int) bool {
		a, b := c.order[i], c.order[j]
		return price[a]*d.gives[b] < price[b]*d.gives[a]
	})
	n := len(c.order)
	c.ratio, c.gives, c.price = resize(c.ratio, n), resize(c.gives, n), resize(c.price, n)
	if cap(c.mix) < n {
		c.mix, c.best = make([]int, n), make([]int, n)
	}
	c.mix, c.best = c.mix[:n], c.best[:n]
	for i, k := range c.order {
		c.gives[i], c.price[i] = d.gives[k], price[k]
		c.ratio[i] = price[k] / d.gives[k]
		c.mix[i] = 0
	}
	c.steps = 0
}

func resize(s []float64, n int) []float64 {
	if cap(s) < n {
		return make([]float64, n)
	}
	return s[:n]
}

// cheapest writes the cheapest mix into mix (one count per item) and returns a lower bound of the
// cost of all mixes. The bound is the mix's own cost, unless the search ran out of steps.
func (c *coverer) cheapest(d demand, price []float64, mix []int) (least float64) {
	c.prepare(d, price)
	c.cost, c.found = math.Inf(1), nil
	rate := d.rate * (1 - closeEnough)
	c.descend(0, rate, 0)
	clear(mix)
	for i, k := range c.order {
		mix[k] = c.best[i]
	}
	if c.steps > coverSteps {
		return math.Min(c.cost, rate*c.ratio[0])
	}
	return c.cost
}

// every calls found with each minimal mix that costs at most limit. In a minimal mix, no segment
// can be left out. The mix is by item and is valid only during the call. every returns false if
// mixes may be missing, because the search ran out of steps or found most mixes.
func (c *coverer) every(d demand, price []float64, limit float64, most int, found func(mix []int)) (all bool) {
	c.prepare(d, price)
	full := make([]int, len(d.gives))
	c.limit, c.seen = limit, 0
	c.found = func(mix []int, cost float64) {
		total := 0.0
		smallest := math.Inf(1)
		for i, n := range mix {
			if n > 0 {
				total += float64(n) * c.gives[i]
				smallest = math.Min(smallest, c.gives[i])
			}
		}
		if total-smallest >= d.rate*(1-closeEnough) {
			return
		}
		clear(full)
		for i, k := range c.order {
			full[k] = mix[i]
		}
		c.seen++
		found(full)
	}
	rest := most
	c.cost = math.Inf(1)
	c.descendAll(0, d.rate*(1-closeEnough), 0, rest)
	return c.steps <= coverSteps && c.seen < most
}

// countless is more segments than any mix in use has. An item that would need more is always too
// expensive.
const countless = 1e9

// segments returns how many segments of the item at position i serve left requests per second.
func (c *coverer) segments(i int, left float64) int {
	n := int(math.Min(math.Ceil(left/c.gives[i]), countless))
	if n > 0 && float64(n-1)*c.gives[i] >= left {
		n--
	}
	return n
}

func (c *coverer) descend(i int, left, cost float64) {
	c.steps++
	if c.steps > coverSteps {
		if !math.IsInf(c.cost, 1) {
			return
		}
	}
	const even = 1e-12
	most := c.segments(i, left)
	if whole := cost + float64(most)*c.price[i]; whole < c.cost-even {
		c.cost = whole
		copy(c.best, c.mix[:i])
		c.best[i] = most
		clear(c.best[i+1:])
	}
	if i == len(c.order)-1 {
		return
	}
	for n := most - 1; n >= 0; n-- {
		rest := left - float64(n)*c.gives[i]
		spent := cost + float64(n)*c.price[i]
		if spent+rest*c.ratio[i+1] >= c.cost-even || c.steps > coverSteps {
			break
		}
		c.mix[i] = n
		c.descend(i+1, rest, spent)
	}
	c.mix[i] = 0
}

func (c *coverer) descendAll(i int, left, cost float64, most int) {
	c.steps++
	if c.steps > coverSteps || c.seen >= most {
		return
	}
	need := c.segments(i, left)
	if whole := cost + float64(need)*c.price[i]; whole <= c.limit {
		c.mix[i] = need
		clear(c.mix[i+1:])
		c.found(c.mix, whole)
	}
	if i == len(c.order)-1 {
		c.mix[i] = 0
		return
	}
	for n := need - 1; n >= 0; n-- {
		rest := left - float64(n)*c.gives[i]
		spent := cost + float64(n)*c.price[i]
		if spent+rest*c.ratio[i+1] > c.limit {
			break
		}
		c.mix[i] = n
		c.descendAll(i+1, rest, spent, most)
	}
	c.mix[i] = 0
}
