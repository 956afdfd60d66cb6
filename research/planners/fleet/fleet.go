// Package fleet says whether the plans of the paper's policies, which know no fleet, fit on one.
package fleet

import "github.com/penstock/penstock/plan"

// Fit returns *plan.TooSmall if a plan on one model of GPU uses more GPUs than the
// problem's only stock has. It then reports the segments on the first GPUs as
// what fits.
func Fit(p *plan.Problem, pl *plan.Plan) error {
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
	e := &plan.TooSmall{Fleet: p.Stocks()}
	for _, s := range p.Services {
		e.Services = append(e.Services, plan.Served{Service: s.Name, RateRPS: s.RateRPS, PlacedRPS: min(placed[s.Name], s.RateRPS)})
	}
	return e
}
