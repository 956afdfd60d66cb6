package main

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/penstock/penstock/bench/planner"
)

// look is how a policy is drawn: a variant is dashed, in the colour of what it is a
// variant of.
type look struct {
	color  color.Color
	dashed bool
}

var looks = map[string]look{
	"penstock":             {green, false},
	"penstock-sim":         {green, true},
	"parvagpu":             {blue, false},
	"parvagpu-single":      {blue, true},
	"parvagpu-unoptimized": {grey, true},
	"gpulet":               {orange, false},
	"igniter":              {purple, false},
	"mig-serving":          {red, false},
}

func lookOf(policy string) look {
	if l, ok := looks[policy]; ok {
		return l
	}
	return look{black, false}
}

// plannerReport is the two reports in one: the delays of delays.json, the counts of
// counts.json.
func plannerReport(dir string) (planner.Report, error) {
	r, err := read[planner.Report](dir, "delays")
	if err != nil {
		return r, err
	}
	counts, err := read[planner.Report](dir, "counts")
	r.Counts, r.Missing = counts.Counts, append(r.Missing, counts.Missing...)
	return r, err
}

// drawPlanner shows what `penstock bench plan` measured: delays against the number
// of services, and counts and delays as the paper's scenarios grow.
func drawPlanner(dir string) error {
	r, err := plannerReport(dir)
	if err != nil {
		return err
	}
	delay := newPlot("Delay of a plan on "+r.GPU+", by number of services", "services (logarithmic)", "delay (logarithmic)")
	for _, policy := range drawn(r.Policies) {
		var points plotter.XYs
		for _, d := range r.Delays {
			if d.Policy == policy {
				points = append(points, plotter.XY{X: float64(d.Services), Y: milliseconds(d.DelayMS)})
			}
		}
		if err := policyLine(delay, policy, points); err != nil {
			return err
		}
	}
	delay.X.Scale, delay.Y.Scale = plot.LogScale{}, plot.LogScale{}
	delay.X.Tick.Marker, delay.Y.Tick.Marker = plot.LogTicks{Prec: -1}, timeTicks(1e6)
	delay.Legend.Left = true
	delay.Y.Max *= 4 // room for the legend
	if err := save(dir, "delay", delay); err != nil {
		return err
	}
	scenarios := scenariosOf(r)
	for _, f := range []struct {
		name string
		grow planner.Grow
		x, y string
		of   func(planner.Count) float64
	}{
		{"services-gpus", planner.GrowServices, "times the services", "GPUs", gpusOf},
		{"services-delay", planner.GrowServices, "times the services", "delay (logarithmic)", delayOf},
		{"rates-gpus", planner.GrowRates, "times the rates", "GPUs", gpusOf},
	} {
		var panels []*plot.Plot
		for i, s := range scenarios {
			p := newPlot(s, f.x, f.y)
			for _, policy := range drawn(r.Policies) {
				if err := policyLine(p, policy, grown(r, s, f.grow, policy, f.of)); err != nil {
					return err
				}
			}
			p.Legend.Left = true
			if f.y == "GPUs" {
				p.Y.Min = 0
			} else {
				p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, timeTicks(1e6)
				p.Y.Max *= 8 // room for the legend
			}
			if i > 0 { // the first one's is for all
				p.Legend = plot.NewLegend()
			}
			panels = append(panels, p)
		}
		if err := saveRows(dir, f.name, inRows(panels)); err != nil {
			return err
		}
	}
	return drawSaved(dir, r, scenarios)
}

// drawSaved shows GPUs as parts of parvagpu's, and the bound below which no plan is.
func drawSaved(dir string, r planner.Report, scenarios []string) error {
	var panels []*plot.Plot
	for i, s := range scenarios {
		p := newPlot(s+": GPUs, of parvagpu's", "times the rates", "%")
		base := map[float64]float64{}
		for _, xy := range grown(r, s, planner.GrowRates, "parvagpu", gpusOf) {
			base[xy.X] = xy.Y
		}
		part := func(policy string, of func(planner.Count) float64) (points plotter.XYs) {
			for _, xy := range grown(r, s, planner.GrowRates, policy, of) {
				if base[xy.X] > 0 {
					points = append(points, plotter.XY{X: xy.X, Y: 100 * xy.Y / base[xy.X]})
				}
			}
			return points
		}
		bound := part("penstock", func(c planner.Count) float64 { return float64(c.LowerBound) })
		if len(bound) > 0 {
			l, err := plotter.NewLine(bound)
			if err != nil {
				return err
			}
			l.Color, l.Width = light, vg.Points(6)
			p.Add(l)
			p.Legend.Add("proved lower bound", l)
		}
		for _, policy := range []string{"parvagpu", "penstock-sim", "penstock"} {
			if err := policyLine(p, policy, part(policy, gpusOf)); err != nil {
				return err
			}
		}
		p.Legend.Left, p.Legend.Top = true, false
		p.Y.Min, p.Y.Max = 50, max(p.Y.Max, 105)
		if i > 0 {
			p.Legend = plot.NewLegend()
		}
		panels = append(panels, p)
	}
	return saveRows(dir, "rates-saved", inRows(panels))
}

// inRows puts three plots into a row, or fewer where there are fewer.
func inRows(plots []*plot.Plot) [][]*plot.Plot {
	const most = 3
	rows := slices.Collect(slices.Chunk(plots, min(most, len(plots))))
	last := len(rows) - 1
	for len(rows[last]) < len(rows[0]) {
		rows[last] = append(rows[last], nil)
	}
	return rows
}

// drawn is the order in which lines are drawn: where several are the same, the
// policy that comes first is on top.
func drawn(policies []string) []string {
	order := slices.Clone(policies)
	slices.Reverse(order)
	return order
}

func gpusOf(c planner.Count) float64  { return float64(c.GPUs) }
func delayOf(c planner.Count) float64 { return milliseconds(c.DelayMS) }

// milliseconds keeps what was too short to measure on a logarithmic axis.
func milliseconds(ms float64) float64 { return max(ms, 1e-3) }

func scenariosOf(r planner.Report) (names []string) {
	for _, c := range r.Counts {
		if !slices.Contains(names, c.Scenario) {
			names = append(names, c.Scenario)
		}
	}
	return names
}

func grown(r planner.Report, scenario string, grow planner.Grow, policy string, of func(planner.Count) float64) (points plotter.XYs) {
	for _, c := range r.Counts {
		if c.Scenario == scenario && c.Grow == grow && c.Policy == policy {
			points = append(points, plotter.XY{X: float64(c.Times), Y: of(c)})
		}
	}
	return points
}

func policyLine(p *plot.Plot, policy string, points plotter.XYs) error {
	if len(points) == 0 {
		return nil
	}
	l := lookOf(policy)
	return line(p, policy, l.color, l.dashed, points)
}

func plannerMachineTable(dir string) (string, error) {
	list := [][]string{{"report", "date", "CPU", "kernel", "Penstock, Go", "limit a plan"}}
	for _, name := range []string{"delays", "counts"} {
		r, err := read[planner.Report](dir, name)
		if err != nil {
			return "", err
		}
		m := r.Machine
		list = append(list, []string{fmt.Sprintf("[%s](planner/%s.json)", name, name), m.Date, fmt.Sprintf("%s, %d cores", m.CPU, m.CPUs),
			m.Kernel, m.Penstock + ", " + m.Go, fmt.Sprintf("%.0f s", r.LimitSeconds)})
	}
	return rows(list...), nil
}

func delayTable(dir string) (string, error) {
	r, err := plannerReport(dir)
	if err != nil {
		return "", err
	}
	var sizes []int
	took := map[string]map[int]planner.Delay{}
	for _, d := range r.Delays {
		if !slices.Contains(sizes, d.Services) {
			sizes = append(sizes, d.Services)
		}
		if took[d.Policy] == nil {
			took[d.Policy] = map[int]planner.Delay{}
		}
		took[d.Policy][d.Services] = d
	}
	slices.Sort(sizes)
	list := [][]string{append([]string{"services"}, r.Policies...)}
	for _, n := range sizes {
		row := []string{number(float64(n))}
		for _, policy := range r.Policies {
			d, ok := took[policy][n]
			if !ok {
				row = append(row, "–")
				continue
			}
			row = append(row, fmt.Sprintf("%s / %s", span(d.DelayMS*1e6), number(float64(d.GPUs))))
		}
		list = append(list, row)
	}
	return rows(list...), nil
}

func grownTable(grow planner.Grow) func(dir string) (string, error) {
	return func(dir string) (string, error) {
		r, err := plannerReport(dir)
		if err != nil {
			return "", err
		}
		head := append([]string{"scenario", "times " + string(grow)}, r.Policies...)
		list := [][]string{append(head, "proved bound")}
		type place struct {
			scenario string
			times    int
		}
		var places []place
		of := map[place]map[string]planner.Count{}
		for _, c := range r.Counts {
			if c.Grow != grow {
				continue
			}
			at := place{c.Scenario, c.Times}
			if of[at] == nil {
				places, of[at] = append(places, at), map[string]planner.Count{}
			}
			of[at][c.Policy] = c
		}
		slices.SortStableFunc(places, func(a, b place) int {
			if n := strings.Compare(a.scenario, b.scenario); n != 0 {
				return n
			}
			return a.times - b.times
		})
		for _, at := range places {
			row := []string{at.scenario, fmt.Sprint(at.times)}
			bound := 0
			for _, policy := range r.Policies {
				c, ok := of[at][policy]
				if !ok {
					row = append(row, "–")
					continue
				}
				bound = max(bound, c.LowerBound)
				said := fmt.Sprint(c.GPUs)
				if c.Optimal {
					said = "**" + said + "**"
				}
				row = append(row, said)
			}
			list = append(list, append(row, fmt.Sprint(bound)))
		}
		return rows(list...), nil
	}
}

// comparedTable says how many GPUs each policy takes on average, of parvagpu's.
func comparedTable(dir string) (string, error) {
	r, err := plannerReport(dir)
	if err != nil {
		return "", err
	}
	type place struct {
		scenario string
		grow     planner.Grow
		times    int
	}
	base := map[place]planner.Count{}
	for _, c := range r.Counts {
		if c.Policy == "parvagpu" {
			base[place{c.Scenario, c.Grow, c.Times}] = c
		}
	}
	list := [][]string{{"policy", "GPUs, of parvagpu's: services grow", "rates grow", "plans", "with fewer GPUs", "with more", "proved optimal", "internal slack", "external fragmentation"}}
	for _, policy := range r.Policies {
		part, n := map[planner.Grow]float64{}, map[planner.Grow]float64{}
		fewer, more, optimal, plans := 0, 0, 0, 0
		slack, fragmentation := 0.0, 0.0
		for _, c := range r.Counts {
			b, ok := base[place{c.Scenario, c.Grow, c.Times}]
			if c.Policy != policy || !ok {
				continue
			}
			plans++
			part[c.Grow] += float64(c.GPUs) / float64(b.GPUs)
			n[c.Grow]++
			slack, fragmentation = slack+c.InternalSlack, fragmentation+c.ExternalFragmentation
			switch {
			case c.GPUs < b.GPUs:
				fewer++
			case c.GPUs > b.GPUs:
				more++
			}
			if c.Optimal {
				optimal++
			}
		}
		if plans == 0 {
			continue
		}
		mean := func(g planner.Grow) string {
			if n[g] == 0 {
				return "–"
			}
			return fmt.Sprintf("%.1f %%", 100*part[g]/n[g])
		}
		list = append(list, []string{policy, mean(planner.GrowServices), mean(planner.GrowRates), fmt.Sprint(plans), fmt.Sprint(fewer), fmt.Sprint(more), fmt.Sprint(optimal),
			fmt.Sprintf("%.1f %%", 100*slack/float64(plans)), fmt.Sprintf("%.1f %%", math.Abs(100*fragmentation/float64(plans)))})
	}
	return rows(list...), nil
}

// missingTable says which plans there are not, and why.
func missingTable(dir string) (string, error) {
	r, err := plannerReport(dir)
	if err != nil {
		return "", err
	}
	if len(r.Missing) == 0 {
		return "None.\n", nil
	}
	list := [][]string{{"policy", "plans that there are not", "the first of them, and why"}}
	for _, policy := range r.Policies {
		var of []planner.Missing
		for _, m := range r.Missing {
			if m.Policy == policy {
				of = append(of, m)
			}
		}
		if len(of) == 0 {
			continue
		}
		what := number(float64(of[0].Services)) + " services"
		if of[0].Scenario != "" {
			what = fmt.Sprintf("%s, %s × %d", of[0].Scenario, of[0].Grow, of[0].Times)
		}
		list = append(list, []string{policy, fmt.Sprint(len(of)), what + ": " + of[0].Why})
	}
	return rows(list...), nil
}

// published is what ParvaGPU's paper says that ParvaGPU saves of a policy's GPUs, in
// percent: on its six scenarios (IV-B1; iGniter's four), and on S5 with one to ten
// times the services (IV-D1).
var published = map[string]struct{ scenarios, grown float64 }{
	"gpulet":          {46.5, 45.2},
	"igniter":         {34.6, 0},
	"mig-serving":     {41.0, 30},
	"parvagpu-single": {0, 7.4},
}

// paperTable has the GPUs of each policy for the paper's scenarios as they are, and
// what parvagpu saves beside what the paper says that it does.
func paperTable(dir string) (string, error) {
	r, err := plannerReport(dir)
	if err != nil {
		return "", err
	}
	gpus := func(policy, scenario string, times int) (int, bool) {
		for _, c := range r.Counts {
			if c.Policy == policy && c.Scenario == scenario && c.Grow == planner.GrowServices && c.Times == times {
				return c.GPUs, true
			}
		}
		return 0, false
	}
	// saves is the mean of 1 − parvagpu's GPUs / the policy's, where both have plans.
	saves := func(policy string, scenarios []string, most int) string {
		sum, n := 0.0, 0
		for _, s := range scenarios {
			for times := 1; times <= most; times++ {
				ours, have := gpus("parvagpu", s, times)
				theirs, had := gpus(policy, s, times)
				if have && had {
					sum, n = sum+1-float64(ours)/float64(theirs), n+1
				}
			}
		}
		if n == 0 {
			return "–"
		}
		return fmt.Sprintf("%.1f %%", 100*sum/float64(n))
	}
	paper := func(percent float64) string {
		if percent == 0 {
			return ""
		}
		return fmt.Sprintf("%.1f %%", percent)
	}
	scenarios := scenariosOf(r)
	list := [][]string{slices.Concat([]string{"policy"}, scenarios, []string{"ParvaGPU saves, mean", "paper", "on S5 × 1 to 10", "paper"})}
	for _, policy := range r.Policies {
		row := []string{policy}
		for _, s := range scenarios {
			n, ok := gpus(policy, s, 1)
			if !ok {
				row = append(row, "–")
				continue
			}
			row = append(row, fmt.Sprint(n))
		}
		p := published[policy]
		list = append(list, append(row, saves(policy, scenarios, 1), paper(p.scenarios), saves(policy, []string{"S5"}, 10), paper(p.grown)))
	}
	return rows(list...), nil
}
