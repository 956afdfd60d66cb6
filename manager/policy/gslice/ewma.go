package gslice

// EWMA is the exponentially weighted moving average that the paper keeps of
// latency and throughput. The zero value has seen nothing.
type EWMA struct {
	mean float64
	seen bool
}

// ewmaWeight is the weight of the newest value: the mean is of some 2/weight - 1 = 9
// values, and has forgotten nine tenths of a step after 11.
const ewmaWeight = 0.2

// Add takes the next value into the mean. The first is taken whole.
func (e *EWMA) Add(v float64) {
	if !e.seen {
		*e = EWMA{mean: v, seen: true}
		return
	}
	e.mean += ewmaWeight * (v - e.mean)
}

// Mean is the average, and whether any value was added.
func (e *EWMA) Mean() (float64, bool) { return e.mean, e.seen }
