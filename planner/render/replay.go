package render

import (
	"fmt"

	"github.com/penstock/penstock/planner/replay"
)

// Replay shows each service's result in a replay.
func Replay(r *replay.Report) Section {
	missed := "No request misses its objective"
	if r.Violations > 0 {
		missed = fmt.Sprintf("%s of all requests miss their objective, most of %s", fine(r.Violations), r.Worst)
	}
	s := Section{Title: "Replay", Text: []string{
		fmt.Sprintf("Poisson arrivals, seed %d. %s; processes are busy %s of the time.",
			r.Seed, missed, formatPercent(r.Utilisation)),
	}, Head: []string{"service", "SLO ms", "p50 ms", "p99 ms", "miss", "between", "not run", "of requests", "load"}}
	for _, v := range r.Services {
		s.Rows = append(s.Rows, []string{v.Service, formatExact(v.SLOMS), formatDecimal(v.P50MS), formatDecimal(v.P99MS),
			fine(v.Violations), fine(v.Low) + " – " + fine(v.High), fmt.Sprint(v.Unserved), fmt.Sprint(v.Requests), formatPercent(v.Load)})
	}
	return s
}

// fine writes a small fraction as a percentage.
func fine(part float64) string { return fmt.Sprintf("%.3g %%", 100*part) }
