package residency

import "time"

// Arrivals tells whether requests come at regular intervals. The zero value has seen none.
type Arrivals struct {
	last    int64
	period  float64 // mean of the intervals, in nanoseconds; newer ones count more
	spread  float64 // mean of their distances from period
	regular int     // intervals in a row that were like period, at most enoughRegular
}

const (
	// enoughRegular is how many regular intervals in a row make a periodic stream.
	enoughRegular = 4
	// maxSpread is the greatest spread of a periodic stream, as a part of its period. A camera
	// keeps its interval much better than that; the intervals of random arrivals have 0.74.
	maxSpread = 0.1
	// newest is the weight of the newest interval in the means.
	newest = 0.25
)

// Observe returns the arrivals after one more request, at a time in nanoseconds that does not
// decrease.
func (a Arrivals) Observe(now int64) Arrivals {
	interval := float64(now - a.last)
	switch {
	case a.last == 0:
		return Arrivals{last: now}
	case a.period == 0:
		return Arrivals{last: now, period: interval, spread: 0}
	}
	off := interval - a.period
	if off < 0 {
		off = -off
	}
	a.last = now
	if off > 4*maxSpread*a.period { // another stream, or none
		return Arrivals{last: now, period: interval}
	}
	a.spread += newest * (off - a.spread)
	a.period += newest * (interval - a.period)
	a.regular = min(a.regular+1, enoughRegular)
	return a
}

// Expected returns when the next request should come, and the period of the stream. The period is
// 0 if the requests are not periodic.
func (a Arrivals) Expected() (next int64, period time.Duration) {
	if a.regular < enoughRegular || a.spread > maxSpread*a.period {
		return 0, 0
	}
	return a.last + int64(a.period), time.Duration(a.period)
}
