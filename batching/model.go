package batching

import (
	"cmp"
	"math"
)

const (
	// batchMemory is the weight that a batch keeps when the next one is learned. So the level
	// follows the device within about 1/(1-memory) = 7 batches.
	batchMemory = 0.85
	// slopeTrust is the spread of sizes, as a squared part of their mean, at which the
	// measured slope weighs as much as the remembered shape. It is 10 % of one batch,
	// squared. With less, noise of the level would look like a slope.
	slopeTrust = 0.01
	// minSlope is the minimum part of the largest batch's time that grows with its
	// size, so that no size seems free.
	minSlope = 0.01
	// tailDeviations: 99.5 % of a normal distribution is less than 2.58 deviations above
	// its mean. The rest is half of what a 99 % objective may miss.
	tailDeviations = 2.58
	// firstDeviation is assumed before the deviation is known. minDeviation is the
	// minimum at all times.
	firstDeviation = 0.05
	minDeviation   = 0.005
	// deviationMemory is the weight that the deviation keeps from batch to batch.
	deviationMemory = 1 - 1.0/32
	// outlier is the number of deviations that makes a batch an outlier. minOutlier is
	// the minimum relative distance of one.
	outlier    = 4
	minOutlier = 0.10
	// maxDeviation is the maximum deviation in a tail estimate. Without it, noise alone
	// could predict as late a batch that takes half the objective on average.
	// docs/adr/0002-slab.md shows its effect.
	maxDeviation = 0.2
)

// model is a line through the recent batches: time = slope · (shape + size), in seconds.
// It remembers its two parts differently.
//
// The level follows quickly, because a share or a neighbour may change at once; a change
// of speed scales the whole line. The shape (fixed cost over the cost of one more
// request) is a property of model and device. It is learned when sizes differ and kept
// when they do not; a plain regression would then fit the noise.
//
// One batch far off the line is an outlier, and its influence is clipped. A second one on
// the same side is a change: the level restarts from it.
type model struct {
	weight     float64 // of all remembered batches
	size, time float64 // weighted means
	spread     float64 // weighted sum of squared deviations of size
	together   float64 // the same for size and time
	shape      float64 // fixed cost in units of the cost of one more request; ≥ 0
	variance   float64 // of the relative deviation from the line
	largest    float64 // maximum size ever timed: beyond it, any shape is possible
	surprise   int     // +1, -1: the last batch was an outlier above, below
}

// newModel assumes a shape of 0: all cost is in proportion to size. Only this assumption
// never underestimates a larger batch.
func newModel() model { return model{variance: firstDeviation * firstDeviation} }

func (m model) deviation() float64 { return max(minDeviation, math.Sqrt(m.variance)) }

// slope is the cost in seconds of one more request.
func (m model) slope() float64 { return m.time / (m.shape + m.size) }

// at is the expected mean time of a batch of n, 0 if nothing was learned.
func (m model) at(n float64) float64 {
	if m.weight == 0 {
		return 0
	}
	return m.slope() * (m.shape + n)
}

// sizeFor is the size whose mean time is t. It is negative if the fixed cost alone
// exceeds t, and infinite if nothing was learned.
func (m model) sizeFor(t float64) float64 {
	if m.weight == 0 {
		return math.Inf(1)
	}
	return t/m.slope() - m.shape
}

// learn returns the model after a batch of n that took t seconds. wrong means that the
// line is already known to be wrong at n. For a size that was never timed that says
// nothing about the level.
func (m model) learn(n, t float64, wrong bool) model {
	if m.weight == 0 {
		m.weight, m.size, m.time, m.largest = 1, n, t, n
		return m
	}
	expected := m.at(n)
	low, high := expected, expected
	untimed := n > m.largest
	if untimed {
		low, high = m.time, m.time*n/m.size // all cost fixed, or none
	}
	bound := max(minOutlier, outlier*m.deviation())
	clipped := min(max(t, low/(1+bound)), high*(1+bound))
	side := cmp.Compare(t, clipped)

	m.largest = max(m.largest, n)
	if wrong && (!untimed || side < 0) || side != 0 && side == m.surprise {
		// The device has changed its speed: scale the line through this batch and keep
		// its shape.
		m.surprise = 0
		m.weight, m.size, m.time = 1, n, t
		m.spread, m.together = 0, 0
		return m
	}
	m.surprise, t = side, clipped
	if math.Abs(n-m.size) <= m.size/2 { // far from where it was learned, the line may be wrong
		off := t/expected - 1
		m.variance += (1 - deviationMemory) * (off*off - m.variance)
	}

	m.weight = batchMemory*m.weight + 1
	dn, dt := n-m.size, t-m.time
	m.size += dn / m.weight
	m.time += dt / m.weight
	m.spread = batchMemory*m.spread + dn*(n-m.size)
	m.together = batchMemory*m.together + dn*(t-m.time)

	// Ridge regression towards the remembered shape at the present level.
	trust := slopeTrust * m.size * m.size
	slope := (m.together + trust*m.slope()) / (m.spread + trust)
	slope = min(max(slope, minSlope*m.time/m.largest), m.time/m.size)
	m.shape = max(0, m.time/slope-m.size)
	return m
}
