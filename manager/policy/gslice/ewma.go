package gslice

// ewma is the exponentially weighted moving average that the paper keeps of latency and
// throughput. The zero value has no values.
type ewma struct {
	mean  float64
	known bool
}

// ewmaWeight is the weight of the newest value. The mean covers about 2/weight - 1 = 9 values.
// After 11 values it has followed nine tenths of a step.
const ewmaWeight = 0.2

// add adds a value to the mean. The first value becomes the mean.
func (e *ewma) add(v float64) {
	if !e.known {
		*e = ewma{mean: v, known: true}
		return
	}
	e.mean += ewmaWeight * (v - e.mean)
}
