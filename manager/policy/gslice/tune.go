package gslice

import (
	"math"
	"time"
)

// Observation is the performance of an IF with its present share. Latency and throughput are
// averages (ewma): tune does not judge single requests.
type Observation struct {
	// Latency is the time from a complete request to the end of its batch.
	Latency time.Duration
	// Throughput is requests per busy second. In every second an IF that keeps up answers as
	// many as arrive, whatever its share.
	Throughput float64
	// ArrivalRate is complete requests per second.
	ArrivalRate float64
	// SLO is the latency objective.
	SLO time.Duration
	// AggregationBound: requests are late before they are complete. The CPU or the network is
	// the bottleneck (3.2.1), and no share helps.
	AggregationBound bool
}

// decision is an IF's demand and its reason.
type decision struct {
	percent float64 // between the minimum and 100
	why     string  // for the log: the residual that decided
}

// Reasons of demands.
const (
	whyUnobserved  = "no observation yet"
	whySet         = "set by hand"
	whyAggregation = "bound by aggregation"
	whyEnough      = "within the threshold"
	whyLatency     = "latency"
	whyThroughput  = "throughput"
)

// maxRaise bounds a raise to twice the share, the step of Fig. 16 (30 % to 60 %). Without it a
// throughput near zero would demand any multiple.
const maxRaise = 1.0

// tune is Algorithm 1, ComputeNewGPU%: it returns the demand of an IF whose share is percent.
//
//	print                                            here
//	residualL = SLO - avgL                           latency, as a part of the SLO
//	residualT = avgT - arrivalRate                   throughput, as a part of the rate
//	hold if both residuals are below the threshold   hold if neither is short nor both are over by more
//	changeFactor = MAX of both residuals             raise by the larger shortage, cut by the smaller surplus
//	relative to avgL, avgT                           relative to what makes the new share fit
//
// If time is in inverse proportion to the share, the last line means:
//
//	            latency                      throughput
//	shortage    (latency - SLO) / SLO        (rate - throughput) / throughput
//	surplus     (SLO - latency) / SLO        (throughput - rate) / throughput
func tune(percent float64, o Observation, c Config) decision {
	d := decision{percent: c.clamp(percent), why: whyEnough}
	if o.AggregationBound {
		d.why = whyAggregation
		return d
	}
	if o.SLO <= 0 || o.Latency <= 0 || !(o.Throughput > 0) || !(o.ArrivalRate >= 0) || math.IsInf(o.Throughput+o.ArrivalRate, 0) {
		d.why = whyUnobserved
		return d
	}
	const threshold = thresholdPercent / 100.0
	diffL := 1 - o.Latency.Seconds()/o.SLO.Seconds()
	diffT := math.Inf(1)
	if o.ArrivalRate > 0 {
		diffT = o.Throughput/o.ArrivalRate - 1
	}
	switch {
	case diffL < -threshold || diffT < -threshold:
		shortage := -diffL
		d.why = whyLatency
		if s := o.ArrivalRate/o.Throughput - 1; s > shortage {
			shortage, d.why = s, whyThroughput
		}
		d.percent = c.clamp(ceilTo(percent * (1 + min(shortage, maxRaise))))
	case diffL > threshold && diffT > threshold:
		surplus := diffL
		d.why = whyLatency
		if s := 1 - o.ArrivalRate/o.Throughput; s < surplus {
			surplus, d.why = s, whyThroughput
		}
		d.percent = c.clamp(ceilTo(percent * (1 - surplus)))
	}
	return d
}

// clamp limits a demand to the minimum and 100. NaN becomes the minimum.
func (c Config) clamp(percent float64) float64 {
	if !(percent > c.MinimumPercent) {
		return c.MinimumPercent
	}
	return min(percent, 100)
}
