package share

import "time"

// Pace is a straight line through the times of an IF's batches over their sizes:
// what larger ones than were needed would take. An IF that keeps up runs small batches,
// and what it does in a busy second with those says little of what its share is good for.
// The zero value has seen nothing.
//
// A batch's size is the prepared one that ran, padding and all.
type Pace struct {
	batches, sizes, times, squares, products float64 // sums of 1, n, t, n², n·t; t in seconds
	largest                                  float64 // size that was timed, of late
}

// paceMemory is the weight that an observation's batches keep at the next.
const paceMemory = 0.7

// A line is not followed beyond so many times the largest size that was timed of late:
// where a device is not full, small sizes take the same time each, and their line promises
// the largest for nothing. The next observation, of a smaller share, has larger sizes.
const paceReach = 4

// paceSight is what is left of the largest size at each next observation: it comes but now
// and then, and is forgotten later than times are.
const paceSight = 0.9

// paceTrust is how far sizes must spread, as a squared part of their mean, before the
// slope that they show weighs as much as that of a time in proportion to the size.
const paceTrust = 0.01

// Note takes in a batch.
func (p *Pace) Note(size int, took time.Duration) {
	n, t := float64(size), took.Seconds()
	p.batches++
	p.sizes += n
	p.times += t
	p.squares += n * n
	p.products += n * t
	p.largest = max(p.largest, n)
}

// Join takes in the batches of a later time; where there were none it forgets nothing.
func (p *Pace) Join(later *Pace) {
	if later.batches == 0 {
		return
	}
	p.batches = paceMemory*p.batches + later.batches
	p.sizes = paceMemory*p.sizes + later.sizes
	p.times = paceMemory*p.times + later.times
	p.squares = paceMemory*p.squares + later.squares
	p.products = paceMemory*p.products + later.products
	p.largest = max(paceSight*p.largest, later.largest)
}

// Mean is the size that batches had on average, 1 where there were none.
func (p *Pace) Mean() float64 {
	if p.batches == 0 {
		return 1
	}
	return p.sizes / p.batches
}

// at is how many seconds a batch of n is expected to take; there must be batches. It is
// never less than the mean of smaller ones, nor more than in proportion to larger ones.
func (p *Pace) at(n int) float64 {
	size, took := p.sizes/p.batches, p.times/p.batches
	trust := paceTrust * size * size
	slope := (p.products/p.batches - size*took + trust*took/size) / (p.squares/p.batches - size*size + trust)
	slope = min(max(slope, 0), took/size)
	return took + slope*(float64(n)-size)
}

// Best is what an IF can do at most with batches of one of the sizes, in requests
// per busy second, and that size; zeros where nothing was timed, or where no size serves.
// sizes ascend. One serves where two batches fit objective: a request may come when one
// has just begun.
func (p *Pace) Best(sizes []int, objective time.Duration) (throughput float64, size int) {
	if p.batches == 0 {
		return 0, 0
	}
	for _, n := range sizes {
		took := p.at(n)
		if float64(n) > paceReach*p.largest || took <= 0 || 2*took > objective.Seconds() {
			break
		}
		if can := float64(n) / took; can > throughput {
			throughput, size = can, n
		}
	}
	return throughput, size
}
