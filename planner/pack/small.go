package pack

import (
	"slices"
	"sort"

	"github.com/penstock/penstock/plan"
)

const (
	// fitTries is how many services after the first that does not fit are tried.
	fitTries = 48
	// fitHalving is how often the part of a rate that fits is halved.
	fitHalving = 8
)

// tooSmall reports what fits into the fleet. It serves as many services as possible from the front
// of the list, then each further one that still fits. At last it serves a part of the first that
// does not. lower is the proved number of GPUs of all services.
func (t *task) tooSmall(lower int) error {
	rates := make([]float64, len(t.services))
	front := sort.Search(len(t.services), func(n int) bool {
		for s := range rates {
			rates[s] = 0
			if s <= n {
				rates[s] = t.services[s].rate
			}
		}
		return !t.fits(rates)
	})
	for s := range t.services {
		rates[s] = 0
		if s < front {
			rates[s] = t.services[s].rate
		}
	}
	for s := front + 1; s < min(len(rates), front+fitTries); s++ {
		rates[s] = t.services[s].rate
		if !t.fits(rates) {
			rates[s] = 0
		}
	}
	if s := slices.Index(rates, 0); s >= 0 {
		least, most := 0.0, t.services[s].rate
		for range fitHalving {
			rates[s] = (least + most) / 2
			if t.fits(rates) {
				least = rates[s]
			} else {
				most = rates[s]
			}
		}
		rates[s] = least
	}

	e := &plan.TooSmall{Fleet: t.problem.Stocks(), Unproved: t.stock() < 0 || lower <= t.stock()}
	for s, service := range t.problem.Services {
		e.Services = append(e.Services, plan.Served{Service: service.Name, RateRPS: service.RateRPS, PlacedRPS: rates[s]})
	}
	return e
}

// fits reports whether a plan is found for other rates.
func (t *task) fits(rates []float64) bool {
	part, problem := *t, *t.problem
	part.problem, part.services, problem.Services = &problem, nil, nil
	for s, service := range t.services {
		if rates[s] > 0 {
			service.rate = rates[s]
			part.services = append(part.services, service)
			problem.Services = append(problem.Services, t.problem.Services[s])
		}
	}
	if len(part.services) == 0 {
		return true
	}
	segments, _ := part.solve(true)
	return segments != nil
}
