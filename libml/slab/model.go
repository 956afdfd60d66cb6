package slab

import (
	"cmp"
	"math"
)

const (
	// memory is the weight that a batch keeps when the next is learned: the level
	// follows the device within some 1/(1-memory) = 7 batches.
	memory = 0.85
	// slopeTrust is how far sizes must spread, as a squared part of their mean,
	// before the slope that they show weighs as much as the remembered shape: 10 %
	// of one batch. With less, the noise of the level would be taken for slope.
	slopeTrust = 0.01
	// leastSlope is the least part of the largest batch's time that grows with its size,
	// so that no size is thought to be free.
	leastSlope = 0.01
	// tailDeviations: a normal variable is within 2.58 deviations above its mean
	// in 99.5 % of all cases, half of what a 99 % objective allows to miss.
	tailDeviations = 2.58
	// firstDeviation is assumed before the deviation is known; leastDeviation
	// always.
	firstDeviation = 0.05
	leastDeviation = 0.005
	// deviationMemory is the weight that the deviation keeps from batch to batch.
	deviationMemory = 1 - 1.0/32
	// outlier is how many deviations make a batch an outlier, and leastOutlier
	// how far off one must be at least.
	outlier      = 4
	leastOutlier = 0.10
	// mostDeviation is the largest deviation that a tail estimate believes in, so that
	// noise alone never predicts a batch late that takes half the objective on average.
	// docs/adr/0002-slab.md has what it changes.
	mostDeviation = 0.2
)

// model is a line through the recent batches: time = slope · (shape + size), in
// seconds. Its parts are remembered differently.
//
// The level is followed fast, since a share or a neighbour may change at once;
// a change of speed scales the whole line. The shape (fixed cost over cost of
// one more) is a trait of model and device: it is learned when sizes differ, and
// kept when they do not, where a plain regression would fit the noise.
//
// One batch far off the line is an outlier: its influence is clipped. A second
// one on the same side is a change: the level starts anew from it.
type model struct {
	weight     float64 // of all batches that are remembered
	size, time float64 // weighted means
	spread     float64 // weighted sum of squared deviations of size
	together   float64 // the same of size with time
	shape      float64 // fixed cost in units of the cost of one more; ≥ 0
	variance   float64 // of the relative deviation from the line
	largest    float64 // size that was ever timed: beyond it, any shape may be true
	surprise   int     // +1, -1: the last batch was an outlier above, below
}

// newModel assumes a shape of 0, all cost in proportion: the one assumption that
// never promises a larger batch too cheap.
func newModel() model { return model{variance: firstDeviation * firstDeviation} }

func (m model) deviation() float64 { return max(leastDeviation, math.Sqrt(m.variance)) }

// slope is the cost in seconds of one more.
func (m model) slope() float64 { return m.time / (m.shape + m.size) }

// at is the expected mean time of a batch of n, 0 when nothing was learned.
func (m model) at(n float64) float64 {
	if m.weight == 0 {
		return 0
	}
	return m.slope() * (m.shape + n)
}

// sizeFor is the size whose mean time is t; negative when even the fixed cost is
// more, infinite when nothing was learned.
func (m model) sizeFor(t float64) float64 {
	if m.weight == 0 {
		return math.Inf(1)
	}
	return t/m.slope() - m.shape
}

// learn is the model after a batch of n that took t seconds. wrong says that the level is
// known to be wrong before.
func (m model) learn(n, t float64, wrong bool) model {
	if m.weight == 0 {
		m.weight, m.size, m.time, m.largest = 1, n, t, n
		return m
	}
	expected := m.at(n)
	low, high := expected, expected
	if n > m.largest {
		low, high = m.time, m.time*n/m.size // all cost fixed, or none
		m.largest = n
	}
	bound := max(leastOutlier, outlier*m.deviation())
	clipped := min(max(t, low/(1+bound)), high*(1+bound))
	side := cmp.Compare(t, clipped)

	if wrong || side != 0 && side == m.surprise {
		// The device changed its speed: the line is scaled through this batch, its
		// shape stays.
		m.surprise = 0
		m.weight, m.size, m.time = 1, n, t
		m.spread, m.together = 0, 0
		return m
	}
	m.surprise, t = side, clipped
	if math.Abs(n-m.size) <= m.size/2 { // the line may be wrong far from where it was learned
		off := t/expected - 1
		m.variance += (1 - deviationMemory) * (off*off - m.variance)
	}

	m.weight = memory*m.weight + 1
	dn, dt := n-m.size, t-m.time
	m.size += dn / m.weight
	m.time += dt / m.weight
	m.spread = memory*m.spread + dn*(n-m.size)
	m.together = memory*m.together + dn*(t-m.time)

	// Ridge regression towards the remembered shape at the present level.
	trust := slopeTrust * m.size * m.size
	slope := (m.together + trust*m.slope()) / (m.spread + trust)
	slope = min(max(slope, leastSlope*m.time/m.largest), m.time/m.size)
	m.shape = max(0, m.time/slope-m.size)
	return m
}
