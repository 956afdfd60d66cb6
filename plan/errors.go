package plan

import (
	"fmt"
	"strings"
)

// NoProfile is returned when a service's model was never measured on the GPU.
type NoProfile struct {
	Service Service
	GPU     string
	// Have are the models that were, On the GPUs that this one was measured on;
	// sorted.
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

// Infeasible is returned when no segment can meet a service's objective, or,
// by policies that do not divide a service, its rate.
type Infeasible struct {
	Service Service
	GPU     string
	// BoundMS is the latency that a batch had to stay under.
	BoundMS float64
	// Best is the point that comes nearest: the fastest batch where the objective
	// is not met, the largest throughput where the rate is not; the zero Point
	// where the profile has none that serves.
	Best Point
	// RateMissed says that the latency could be met and the rate could not.
	RateMissed bool
	// Reason, where not empty, says which rule of the policy keeps a service from
	// being divided.
	Reason string
}

func (e *Infeasible) Error() string {
	s, b := e.Service, e.Best
	head := fmt.Sprintf("service %q (model %s on %s)", s.Name, s.Model, e.GPU)
	switch {
	case b.ThroughputRPS <= 0:
		return fmt.Sprintf("%s: no point of the profile fits into a segment's memory and serves", head)
	case e.RateMissed:
		text := fmt.Sprintf("%s: rate %.6g requests/s: the best segment within %.4g ms a batch (%s) serves %.6g, %.6g short",
			head, s.RateRPS, e.BoundMS, b, b.ThroughputRPS, s.RateRPS-b.ThroughputRPS)
		if e.Reason != "" {
			text += "; " + e.Reason
		}
		return text
	}
	text := fmt.Sprintf("%s: SLO %.6g ms leaves a batch less than %.4g ms; the fastest point (%s) takes %.4g ms, %.4g ms too long",
		head, s.SLOMS, e.BoundMS, b, b.LatencyMS, b.LatencyMS-e.BoundMS)
	if e.BoundMS > 0 {
		text += fmt.Sprintf("; an SLO above %.4g ms can be met", s.SLOMS*b.LatencyMS/e.BoundMS)
	}
	return text
}

// String names a point as messages do.
func (pt Point) String() string {
	if pt.Processes == 1 {
		return fmt.Sprintf("size %d, batch %d, 1 process", pt.GPCs, pt.Batch)
	}
	return fmt.Sprintf("size %d, batch %d, %d processes", pt.GPCs, pt.Batch, pt.Processes)
}

// Served is how much of a service a fleet can carry.
type Served struct {
	Service string
	// RateRPS is what is wanted, PlacedRPS what fits of it.
	RateRPS, PlacedRPS float64
}

// TooSmall is returned when a fleet cannot carry all services. It says what
// fits.
type TooSmall struct {
	Fleet []Stock
	// Services are all services in the problem's order, with what fits of each.
	Services []Served
	// Unproved says that no plan was found and that there may be one: what is told
	// to fit does, but the fleet need not be too small.
	Unproved bool
}

// Fit returns *TooSmall where a plan on one model of GPU has more GPUs than the
// problem's only stock: what fits is then what lies on the first of them.
func (p *Problem) Fit(pl *Plan) error {
	count := p.Stocks()[0].Count
	if count < 0 || pl.GPUs <= count {
		return nil
	}
	placed := map[string]float64{}
	for _, s := range pl.Segments {
		if s.GPU < count {
			placed[s.Service] += s.ThroughputRPS
		}
	}
	e := &TooSmall{Fleet: p.Stocks()}
	for _, s := range p.Services {
		e.Services = append(e.Services, Served{Service: s.Name, RateRPS: s.RateRPS, PlacedRPS: min(placed[s.Name], s.RateRPS)})
	}
	return e
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
		verdict = "may be too small: no plan was found on it, and that there is none is not proved"
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
