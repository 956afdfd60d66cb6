package plan

import (
	"fmt"
	"strings"
)

// NoProfile is the error if a service's model was never measured on the GPU.
type NoProfile struct {
	Service Service
	GPU     string
	// Have are the models that were measured on the GPU. On are the GPUs on which
	// the service's model was measured. Both are sorted.
	Have, On []string
}

func (e *NoProfile) Error() string {
	text := fmt.Sprintf("service %q: no profile of model %q on %s", e.Service.Name, e.Service.Model, e.GPU)
	switch {
	case len(e.On) > 0:
		return text + "; it was measured on " + strings.Join(e.On, ", ")
	case len(e.Have) > 0:
		return text + "; there are: " + strings.Join(e.Have, ", ")
	}
	return text + "; there are no profiles for " + e.GPU + " at all"
}

// Infeasible is the error if a policy's rules have no segments that can meet a
// service's objective and rate.
type Infeasible struct {
	Service Service
	GPU     string
	// BoundMS is the latency that a batch must stay below.
	BoundMS float64
	// Best is the point of the fastest batch. It is the zero Point if the profile has
	// no usable point.
	Best Point
	// Reason is a rule of the policy; empty: no batch is fast enough.
	Reason string
}

func (e *Infeasible) Error() string {
	s, b := e.Service, e.Best
	head := fmt.Sprintf("service %q (model %s on %s)", s.Name, s.Model, e.GPU)
	switch {
	case b.ThroughputRPS <= 0:
		return fmt.Sprintf("%s: no point of the profile fits into a segment's memory and serves", head)
	case e.Reason != "":
		return head + ": " + e.Reason
	}
	text := fmt.Sprintf("%s: SLO %.6g ms leaves a batch less than %.4g ms; the fastest point (%s) takes %.4g ms, %.4g ms too long",
		head, s.SLOMS, e.BoundMS, b, b.LatencyMS, b.LatencyMS-e.BoundMS)
	if e.BoundMS > 0 {
		text += fmt.Sprintf("; an SLO above %.4g ms can be met", s.SLOMS*b.LatencyMS/e.BoundMS)
	}
	return text
}

// String describes a point in messages.
func (pt Point) String() string {
	if pt.Processes == 1 {
		return fmt.Sprintf("size %d, batch %d, 1 process", pt.GPCs, pt.Batch)
	}
	return fmt.Sprintf("size %d, batch %d, %d processes", pt.GPCs, pt.Batch, pt.Processes)
}

// Served is how much of a service fits on a fleet.
type Served struct {
	Service string
	// RateRPS is the requested rate, PlacedRPS the part of it that fits.
	RateRPS, PlacedRPS float64
}

// TooSmall is the error if a fleet cannot carry all services. It reports what
// fits.
type TooSmall struct {
	Fleet []Stock
	// Services are all services in the problem's order, with the part of each
	// that fits.
	Services []Served
	// Unproved means that the policy found no plan, but that one may exist. The
	// reported parts do fit, but the fleet need not be too small.
	Unproved bool
}

func (e *TooSmall) Error() string {
	var fleet, part, none []string
	for _, s := range e.Fleet {
		fleet = append(fleet, s.String())
	}
	whole := 0
	for _, s := range e.Services {
		switch {
		case s.PlacedRPS >= s.RateRPS:
			whole++
		case s.PlacedRPS > 0:
			part = append(part, fmt.Sprintf("%s (%.6g of %.6g requests/s)", s.Service, s.PlacedRPS, s.RateRPS))
		default:
			none = append(none, s.Service)
		}
	}
	verdict := "is too small"
	if e.Unproved {
		verdict = "may be too small: no plan was found on it, but this is not proved"
	}
	text := fmt.Sprintf("the fleet (%s) %s: %d of %d services fit", strings.Join(fleet, ", "), verdict, whole, len(e.Services))
	if len(part) > 0 {
		text += "; in part: " + strings.Join(part, ", ")
	}
	if len(none) > 0 {
		text += "; not at all: " + strings.Join(none, ", ")
	}
	return text
}
