package share

import (
	"math"
	"time"
)

// Observation is how an IF did with its present share. Latency and throughput are
// averages (EWMA); Tune does not judge single requests.
type Observation struct {
	// Latency is from a whole request to the end of its batch.
	Latency time.Duration
	// Doubt is how far Latency may be off by chance: what is within it of the objective is no
	// residual.
	Doubt time.Duration
	// Throughput is requests per busy second at the current batch size. Not per
	// second: an IF that keeps up answers as many as arrive, whatever its share.
	Throughput float64
	// ArrivalRate is whole requests per second.
	ArrivalRate float64
	// SLO is the latency objective.
	SLO time.Duration
	// Fits says that two batches of some size fit the objective, and throughput is that of
	// such batches at least: where that is short, requests are late for their queue, and how
	// late says nothing of how much is short.
	Fits bool
	// AggregationBound says that requests are late before they are whole: the
	// CPU or the network is the bottleneck (3.2.1) and no share helps.
	AggregationBound bool
}

// met reports whether neither residual is negative: Tune holds an IF that misses
// its objective by less than the threshold, too.
func (o Observation) met() bool {
	return o.Latency <= o.SLO && o.Throughput >= o.ArrivalRate
}

// Direction is what Tune decided.
type Direction int8

// The directions.
const (
	Cut   Direction = -1
	Hold  Direction = 0
	Raise Direction = 1
)

// Decision is an IF's demand and why.
type Decision struct {
	// Percent is the demand, between the minimum and 100.
	Percent   float64
	Direction Direction
	// Why is a line for the log and the dashboard; it names the residual that
	// decided.
	Why string
}

// The reasons.
const (
	whyUnobserved  = "no observation yet"
	whySet         = "set by hand"
	whyAggregation = "bound by aggregation"
	whyEnough      = "within the threshold"
	whyLatency     = "latency"
	whyThroughput  = "throughput"
	whySilent      = "nothing comes: lent to who lacks it"
	whyVain        = "no share meets its objective: lent to who lacks it"
	whyReturns     = "requests come again"
)

// mostRaise bounds a raise to twice the share. A throughput near zero asks for
// any multiple; a step of two is the one of Fig. 16 (30 % to 60 %), and the next
// follows after the hold-down if it was not enough.
const mostRaise = 1.0

// Tune is Algorithm 1: the demand of an IF whose share is currentPercent.
//
// It is raised by the larger relative shortage when latency or throughput is
// short by more than the threshold (by throughput's where that is short and batches
// fit), cut by the smaller relative surplus when both are over by more than it, and
// else held. "Relative" is what makes the new share fit where time is in inverse
// proportion to the share:
//
//	            latency                      throughput
//	shortage    (latency - SLO) / SLO        (rate - throughput) / throughput
//	surplus     (SLO - latency) / SLO        (throughput - rate) / throughput
//
// A shortage s needs the share · (1 + s), a surplus s leaves enough with the
// share · (1 - s). Of latency's residual only what is beyond doubt counts. A cut leaves HeadroomPercent on top of that; only ThresholdPercent where
// batches fit and throughput decides: that is short before latency is, and its rate has a
// margin for bursts already. A shortage within the threshold would never be made good.
func Tune(currentPercent float64, o Observation, c Config) Decision {
	d := Decision{Percent: c.clamp(currentPercent), Why: whyEnough}
	if o.AggregationBound {
		d.Why = whyAggregation
		return d
	}
	if o.SLO <= 0 || o.Latency <= 0 || !(o.Throughput > 0) || !(o.ArrivalRate >= 0) || math.IsInf(o.Throughput+o.ArrivalRate, 0) {
		d.Why = whyUnobserved
		return d
	}
	threshold := c.ThresholdPercent / 100
	// The residuals of the paper's print, diffL% and diffT%.
	latency := 1 - o.Latency.Seconds()/o.SLO.Seconds()
	latency = math.Copysign(max(0, math.Abs(latency)-o.Doubt.Seconds()/o.SLO.Seconds()), latency)
	throughput := math.Inf(1)
	if o.ArrivalRate > 0 {
		throughput = o.Throughput/o.ArrivalRate - 1
	}
	switch {
	case latency < -threshold || throughput < -threshold:
		shortage, why := -latency, whyLatency
		if s := o.ArrivalRate/o.Throughput - 1; s > shortage || o.Fits && throughput < -threshold {
			shortage, why = s, whyThroughput
		}
		d.Direction, d.Why = Raise, why
		d.Percent = c.clamp(ceilTo(currentPercent * (1 + min(shortage, mostRaise))))
	case latency > threshold && throughput > threshold:
		surplus, why := latency, whyLatency
		if s := 1 - o.ArrivalRate/o.Throughput; s < surplus {
			surplus, why = s, whyThroughput
		}
		headroom := c.HeadroomPercent
		if o.Fits && why == whyThroughput {
			headroom = min(headroom, c.ThresholdPercent)
		}
		left := (1 - surplus) * (1 + headroom/100)
		if left >= 1 {
			return d
		}
		d.Direction, d.Why = Cut, why
		d.Percent = c.clamp(ceilTo(currentPercent * left))
	}
	return d
}

// clamp brings a demand between the minimum and 100; what is no number is the
// minimum.
func (c Config) clamp(percent float64) float64 {
	if !(percent > c.MinimumPercent) {
		return c.MinimumPercent
	}
	return min(percent, 100)
}
