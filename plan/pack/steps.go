package pack

import (
	"math"
	"slices"
)

// stepped is the cut of a GPU without MIG: any sizes whose steps add up to no more than the GPU
// has. Packing is one-dimensional bin packing.
type stepped struct {
	steps  int
	widths []int // of each size, ascending
	prices [][]float64
}

func newStepped(steps int, widths []int) *stepped {
	c := &stepped{steps: steps, widths: widths}
	// In proportion to steps: a GPU holds no more than it has.
	c.rule(func(w int) float64 { return float64(w) / float64(steps) })
	// Martello and Toth's L2. A width above steps−t shares its GPU with no width of at least t, so
	// it counts as a whole GPU. Widths below t count as 0.
	for t := 1; 2*t <= steps; t++ {
		c.rule(func(w int) float64 {
			switch {
			case w > steps-t:
				return 1
			case w < t:
				return 0
			}
			return float64(w) / float64(steps)
		})
	}
	// Fekete and Schepers' u(k): a size counts as rounded down to a k-th of the GPU. If
	// (k+1)·w/steps is whole, it counts unchanged.
	for k := 1; k <= 6; k++ {
		c.rule(func(w int) float64 {
			if (k+1)*w%steps == 0 {
				return float64(w) / float64(steps)
			}
			return float64((k+1)*w/steps) / float64(k)
		})
	}
	return c
}

// rule adds a dual feasible function, unless an existing rule is at least as strong.
func (c *stepped) rule(of func(width int) float64) {
	price := make([]float64, len(c.widths))
	for k, w := range c.widths {
		price[k] = of(w)
	}
	for _, other := range c.prices {
		if dominated(price, other) {
			return
		}
	}
	c.prices = append(c.prices, price)
}

// values fills best[s] with the highest value of a pattern of at most s steps. It fills last[s]
// with a size that begins this pattern (-1: the best of s−1 steps).
func (c *stepped) values(price []float64) (best []float64, last []int) {
	best, last = make([]float64, c.steps+1), make([]int, c.steps+1)
	last[0] = -1
	for s := 1; s <= c.steps; s++ {
		best[s], last[s] = best[s-1], -1
		for k, w := range c.widths {
			if w <= s && best[s-w]+price[k] > best[s]+1e-15 {
				best[s], last[s] = best[s-w]+price[k], k
			}
		}
	}
	return best, last
}

func (c *stepped) dearest(price []float64) (float64, pattern) {
	best, last := c.values(price)
	p := make(pattern, len(c.widths))
	for s := c.steps; s > 0; {
		if last[s] < 0 {
			s--
			continue
		}
		p[last[s]]++
		s -= c.widths[last[s]]
	}
	return best[c.steps], p
}

// common returns one pattern per size, with as many segments as fit.
func (c *stepped) common() []pattern {
	patterns := make([]pattern, len(c.widths))
	for k, w := range c.widths {
		patterns[k] = make(pattern, len(c.widths))
		patterns[k][k] = c.steps / w
	}
	return patterns
}

// lift gives each size the value of the best filling of its width. A pattern with the size could
// hold that filling instead, so no pattern gets more expensive. What is left below budget raises
// all prices by the same factor.
func (c *stepped) lift(price []float64, budget float64) {
	best, _ := c.values(price)
	for k, w := range c.widths {
		price[k] = math.Max(price[k], best[w])
	}
	if top := best[c.steps]; top > 0 && top < budget {
		for k := range price {
			price[k] *= budget / top
		}
	}
}

func (c *stepped) rules() ([][]float64, bool) { return c.prices, false }

func (c *stepped) minGPUs(counts []int) int {
	most := 0.0
	for _, price := range c.prices {
		most = math.Max(most, worth(price, counts))
	}
	return ceilGPUs(most)
}

// pack fills GPUs, one filling at a time, and starts each with the widest segment that is left. It
// packs twice: once it adds the next widest segment that fits (first fit decreasing), and once
// whatever fills the GPU best. The better result counts.
func (c *stepped) pack(counts []int) (bins []bin, exact bool) {
	least := c.minGPUs(counts)
	var best []bin
	fewest := math.MaxInt
	for _, fill := range []func(left []int) pattern{c.fillFullest, c.fillWidest} {
		bins, gpus := c.packBy(counts, fill)
		if gpus < fewest {
			best, fewest = bins, gpus
		}
		if fewest == least {
			break
		}
	}
	return best, fewest == least
}

func (c *stepped) packBy(counts []int, fill func(left []int) pattern) (bins []bin, gpus int) {
	left := slices.Clone(counts)
	for {
		p := fill(left)
		times := math.MaxInt
		for k, n := range p {
			if n > 0 {
				times = min(times, left[k]/n)
			}
		}
		if times == math.MaxInt {
			return bins, gpus
		}
		for k, n := range p {
			left[k] -= n * times
		}
		bins = append(bins, bin{p, times})
		gpus += times
	}
}

func (c *stepped) fillWidest(left []int) pattern {
	p := make(pattern, len(left))
	room := c.steps
	for k := len(left) - 1; k >= 0; k-- {
		p[k] = min(left[k], room/c.widths[k])
		room -= p[k] * c.widths[k]
	}
	return p
}

// fillFullest takes the widest segment that is left and the fullest filling that fits with it. Of
// equal fillings it takes the one with the widest segments, since narrow ones are easier to place
// later.
func (c *stepped) fillFullest(left []int) pattern {
	p := make(pattern, len(left))
	widest := len(left) - 1
	for widest >= 0 && left[widest] == 0 {
		widest--
	}
	if widest < 0 {
		return p
	}
	p[widest] = 1
	room := c.steps - c.widths[widest]
	// reach[s] is the size that was added to reach s steps, in order from the widest; -2 not
	// reached, -1 start.
	reach := make([]int, room+1)
	used := make([]int, room+1)
	for s := range reach {
		reach[s] = -2
	}
	reach[0] = -1
	for k := widest; k >= 0; k-- {
		have := left[k] - p[k]
		w := c.widths[k]
		if have <= 0 || w > room {
			continue
		}
		clear(used)
		for s := w; s <= room; s++ {
			if reach[s] == -2 && reach[s-w] != -2 && used[s-w] < have {
				reach[s] = k
				used[s] = used[s-w] + 1
			}
		}
	}
	s := room
	for reach[s] == -2 {
		s--
	}
	for reach[s] >= 0 {
		k := reach[s]
		p[k]++
		s -= c.widths[k]
	}
	return p
}

func (c *stepped) slots(counts pattern) []place {
	var places []place
	at := 0
	for k := len(counts) - 1; k >= 0; k-- {
		for range counts[k] {
			places = append(places, place{k, at})
			at += c.widths[k]
		}
	}
	return places
}
