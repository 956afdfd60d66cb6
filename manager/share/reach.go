package share

import (
	"math"
	"time"
)

// Reach is how quickly an IF's model answers one request: the least time that one took, at
// each share that was tried. From these follows what it would take at least with the whole
// device. The zero value has seen nothing.
//
// The least and not the mean: on a busy machine a time is often too long and never too
// short.
type Reach struct {
	tried [reachSteps]trial
}

// trial is what shares of about the same size showed.
type trial struct {
	percent, least float64 // the least time in seconds, and the share that it is of
	batches        int
}

const (
	// Shares within a factor of reachStep are about the same: from 5 to 100 % that is 14
	// of them, smaller ones count as the first.
	reachStep  = 1.25
	reachSteps = 14
	// reachEnough batches at a share show its least time: one that the machine's other
	// work leaves alone is among them.
	reachEnough = 8
	// reachDoubt is how much too long a least time may be, as a part of it: the machine's
	// other work slows what runs beside it. Where two shares are close, all that the step
	// between them seems to have brought, or not, may be that.
	reachDoubt = 0.1
)

// Note takes in batches of the smallest size at a share, the quickest of which took least.
func (r *Reach) Note(percent float64, batches int, least time.Duration) {
	if batches < 1 || least <= 0 || !(percent > 0) {
		return
	}
	step := reachSteps - 1 - int(math.Log(100/min(percent, 100))/math.Log(reachStep))
	t := &r.tried[max(0, step)]
	if t.batches == 0 || least.Seconds() < t.least {
		t.percent, t.least = percent, least.Seconds()
	}
	t.batches += batches
}

// Best is the largest share that enough is known of, in percent, and the least time that one
// request took with it. With the whole device it would take whole at least. All are 0 where
// nothing is known.
//
// More of a device never makes a batch quicker than in proportion, and makes it quicker by
// less and less: what the step from the smallest share to the largest brought at most, the
// rest brings at most.
func (r *Reach) Best() (percent float64, least, whole time.Duration) {
	var low, high *trial
	quickest := math.Inf(1)
	for i := range r.tried {
		if t := &r.tried[i]; t.batches >= reachEnough {
			if low == nil {
				low = t
			}
			high, quickest = t, min(quickest, t.least) // what a smaller share did a larger one does
		}
	}
	if high == nil {
		return 0, 0, 0
	}
	gain := 1.0 // time is the share to the power of -gain
	if high.percent >= reachStep*low.percent {
		gain = min(max(math.Log((1+reachDoubt)*low.least/quickest)/math.Log(high.percent/low.percent), 0), 1)
	}
	at := quickest * math.Pow(min(high.percent, 100)/100, gain)
	return high.percent, time.Duration(quickest * 1e9), time.Duration(at * 1e9)
}
