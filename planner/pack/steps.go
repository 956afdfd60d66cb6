package pack

import (
	"math"
	"slices"
)

// stepped is the cut of a GPU without MIG: any sizes whose steps add up to no more than the GPU
// has. Packing is one-dimensional bin packing.
type stepped struct {
	steps  int
	widths []int     // of each size, ascending
	price  []float64 // of each size: its part of the steps
}

func newStepped(steps int, widths []int) *stepped {
	c := &stepped{steps: steps, widths: widths, price: make([]float64, len(widths))}
	for k, w := range widths {
		c.price[k] = float64(w) / float64(steps)
	}
	return c
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

func (c *stepped) rules() ([][]float64, bool) { return [][]float64{c.price}, false }

// pack fills GPUs, one filling at a time.
func (c *stepped) pack(counts []int) (bins []bin) {
	left := slices.Clone(counts)
	for {
		p := c.fullest(left)
		times := math.MaxInt
		for k, n := range p {
			if n > 0 {
				times = min(times, left[k]/n)
			}
		}
		if times == math.MaxInt {
			return bins
		}
		for k, n := range p {
			left[k] -= n * times
		}
		bins = append(bins, bin{p, times})
	}
}

// fullest takes the widest segment that is left and the fullest filling that fits with it. Of
// equal fillings it takes the one with the widest segments, since narrow ones are easier to place
// later.
func (c *stepped) fullest(left []int) pattern {
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
