package main

import (
	"cmp"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/penstock/penstock/bench/evaluate"
)

// drawReport draws what there is in the report NAME.json, by the kinds of its cases.
func drawReport(name string) func(dir string) error {
	return func(dir string) error {
		e, err := readEvaluation(dir, name)
		if err != nil {
			return err
		}
		if cases := e.of(evaluate.KindLoads); len(cases) > 0 {
			if err := e.drawSummary(cases); err != nil {
				return err
			}
			if err := e.drawLoads(cases); err != nil {
				return err
			}
		}
		if cases := e.of(evaluate.KindTimeline); name == "fig12c-14" {
			if err := e.drawConvergence(cases); err != nil {
				return err
			}
		} else {
			for _, c := range cases {
				if err := e.drawTimeline(c); err != nil {
					return err
				}
			}
		}
		switch name {
		case "fig2-3":
			for _, c := range e.of(evaluate.KindBare) {
				if err := e.drawKnees(c); err != nil {
					return err
				}
			}
		case "fig5-7":
			return e.drawStreams()
		}
		return nil
	}
}

// slug is a name as part of a file's.
func slug(name string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r != '-' && (r < '0' || r > '9' && r < 'a' || r > 'z') }), "-")
}

// where is what a sheet's title ends with.
func (e *evaluation) where() string { return e.Title + " (" + e.Device + ")" }

func (e *evaluation) legend(variants []string) (list []entry) {
	for _, v := range variants {
		list = append(list, entry{e.label(v), variantColour(v), false})
	}
	return list
}

// objectiveEntry is a legend's for an objective.
var objectiveEntry = entry{"objective", red, true}

// measuredVariants are the variants of cases that anything was measured with.
func (e *evaluation) measuredVariants(cases []evaluate.CaseSetting) (names []string) {
	for _, v := range e.variants(cases) {
		if slices.ContainsFunc(cases, func(c evaluate.CaseSetting) bool { return len(e.results(c.Name, v)) > 0 }) {
			names = append(names, v)
		}
	}
	return names
}

// drawSummary shows all cases at two loads: one that there is room for, and the highest.
func (e *evaluation) drawSummary(cases []evaluate.CaseSetting) error {
	variants := e.measuredVariants(cases)
	var groups []string
	var objectives []float64
	for _, c := range cases {
		groups = append(groups, c.Name)
		objectives = append(objectives, c.Functions[0].SLOMillis)
	}
	slices.Sort(objectives)
	objectives = slices.Compact(objectives)
	var colours []color.Color
	for _, v := range variants {
		colours = append(colours, variantColour(v))
	}
	var levels []float64 // of the first case that has some: they are the same in all
	for _, c := range cases {
		if levels = e.levels(c.Name); len(levels) > 0 {
			break
		}
	}
	if len(levels) == 0 {
		return nil
	}
	high := len(levels) - 1
	low := max(0, min(1, high-1))
	s := sheet{title: e.where(), legend: append(e.legend(variants), objectiveEntry), high: 6.5 * vg.Centimeter, rows: [][]*plot.Plot{nil, nil}}
	for _, i := range slices.Compact([]int{low, high}) {
		at := fmt.Sprintf("offered %.0f %% of capacity", 100*levels[i])
		share, late := small("Within the objective, "+at, "", "% of what was offered"), small("p99 of the ok answers, "+at, "", "ms")
		shares, tails := make([][]spread, len(variants)), make([][]spread, len(variants))
		least, most := slices.Min(objectives), slices.Max(objectives)
		for k, v := range variants {
			for _, c := range cases {
				own := e.levels(c.Name)
				var loads []*evaluate.Load
				if i < len(own) {
					loads = e.loads(c.Name, v, own[i])
				}
				shares[k] = append(shares[k], spreadBy(loads, within))
				t := spreadBy(loads, tail)
				tails[k] = append(tails[k], t)
				if t.runs > 0 {
					least, most = min(least, t.least), max(most, t.most)
				}
			}
		}
		if err := spreadBars(share, 0, groups, colours, shares); err != nil {
			return err
		}
		share.Y.Min, share.Y.Max = 0, 105
		logarithmic(late, max(0.1, least/1.5), most*1.5)
		if err := spreadBars(late, late.Y.Min, groups, colours, tails); err != nil {
			return err
		}
		logarithmic(late, max(0.1, least/1.5), most*1.5)
		for _, slo := range objectives {
			across(late, red, slo)
		}
		s.rows[0], s.rows[1] = append(s.rows[0], share), append(s.rows[1], late)
	}
	return s.save(e.dir, e.Figure)
}

// drawLoads shows goodput and tail latency of each case against the load.
func (e *evaluation) drawLoads(cases []evaluate.CaseSetting) error {
	columns := min(3, len(cases))
	if len(cases) == 4 {
		columns = 2
	}
	variants := e.measuredVariants(cases)
	s := sheet{title: e.where(), legend: append(e.legend(variants), objectiveEntry, entry{"offered", light, true}), high: 5.6 * vg.Centimeter}
	for i := range cases {
		if i%columns == 0 {
			s.rows = append(s.rows, make([]*plot.Plot, columns), make([]*plot.Plot, columns))
		}
		good, late, err := e.loadPlots(&cases[i])
		if err != nil {
			return err
		}
		s.rows[i/columns*2][i%columns], s.rows[i/columns*2+1][i%columns] = good, late
	}
	return s.save(e.dir, e.Figure+"-loads")
}

func (e *evaluation) loadPlots(c *evaluate.CaseSetting) (good, late *plot.Plot, err error) {
	good, late = small(c.Name+": goodput", "", "requests/s"), small(c.Name+": p99 of the ok answers", "offered, % of capacity", "ms")
	slo := c.Functions[0].SLOMillis
	levels := e.levels(c.Name)
	least, most, top := slo, slo, 0.0
	var percents []float64
	for _, l := range levels {
		percents = append(percents, 100*l)
	}
	var offered plotter.XYs
	for _, v := range c.Variants {
		var goods, tails []spread
		for i, l := range levels {
			loads := e.loads(c.Name, v, l)
			g, t := spreadBy(loads, goodput), spreadBy(loads, tail)
			goods, tails = append(goods, g), append(tails, t)
			if t.runs > 0 {
				least, most = min(least, t.least), max(most, t.most)
			}
			if g.runs > 0 {
				top = max(top, g.most)
			}
			if len(loads) > 0 && len(offered) == i {
				offered = append(offered, plotter.XY{X: percents[i], Y: loads[0].OfferedRPS})
			}
		}
		if err := band(good, variantColour(v), false, percents, goods); err != nil {
			return nil, nil, err
		}
		if err := band(late, variantColour(v), false, percents, tails); err != nil {
			return nil, nil, err
		}
	}
	if len(offered) > 1 {
		l, err := plotter.NewLine(offered)
		if err != nil {
			return nil, nil, err
		}
		l.Color, l.Dashes = light, []vg.Length{vg.Points(4), vg.Points(2)}
		good.Add(l)
	}
	for _, p := range []*plot.Plot{good, late} {
		if len(percents) > 0 {
			p.X.Min, p.X.Max = 0, percents[len(percents)-1]*1.04
		}
	}
	good.Y.Min, good.Y.Max = 0, max(top, 1)*1.1
	logarithmic(late, max(0.1, least/1.5), most*1.5)
	across(late, red, slo)
	return good, late, nil
}

// trace is a line through points, broken where one is not a number.
func trace(p *plot.Plot, c color.Color, dashed bool, points plotter.XYs) error {
	for len(points) > 0 {
		n := slices.IndexFunc(points, func(xy plotter.XY) bool { return math.IsNaN(xy.Y) })
		if n < 0 {
			n = len(points)
		}
		if n > 1 {
			l, err := plotter.NewLine(points[:n])
			if err != nil {
				return err
			}
			l.Color, l.Width = c, vg.Points(1.3)
			if dashed {
				l.Color, l.Width, l.Dashes = c, vg.Points(1), []vg.Length{vg.Points(3), vg.Points(2)}
			}
			p.Add(l)
		}
		points = points[min(len(points), n+1):]
	}
	return nil
}

// series are a function's bins as points; NaN where by has nothing to say.
func series(t *evaluate.Timeline, f *evaluate.FunctionTimeline, by func(*evaluate.Bin) float64) (points plotter.XYs) {
	for i := range f.Bins {
		v := math.NaN()
		if f.Bins[i].Offered > 0 {
			v = by(&f.Bins[i])
		}
		points = append(points, plotter.XY{X: (float64(i) + 0.5) * t.BinSeconds, Y: v})
	}
	return points
}

// some is a value that is only one where it is positive.
func some(v float64) float64 {
	if v <= 0 {
		return math.NaN()
	}
	return v
}

// highest is the largest number of points.
func highest(points plotter.XYs) (most float64) {
	for _, p := range points {
		if p.Y > most { // false for NaN
			most = p.Y
		}
	}
	return most
}

// lowest is the smallest number of points.
func lowest(points plotter.XYs) float64 {
	least := math.Inf(1)
	for _, p := range points {
		if p.Y < least { // false for NaN
			least = p.Y
		}
	}
	return least
}

// drawTimeline shows the median run of each variant of a case, by what was answered in
// time, a column each: what was answered in time, how late, in which batches, and with
// which share.
func (e *evaluation) drawTimeline(c evaluate.CaseSetting) error {
	var columns []*evaluate.Result
	for _, v := range c.Variants {
		if r := typical(e.results(c.Name, v), inTime); r != nil {
			columns = append(columns, r)
		}
	}
	if len(columns) == 0 {
		return nil
	}
	s := sheet{title: fmt.Sprintf("%s, %s (%s): each variant's median run", e.Title, c.Name, e.Device), high: 4.6 * vg.Centimeter, rows: make([][]*plot.Plot, 4)}
	for i, f := range c.Functions {
		s.legend = append(s.legend, entry{f.Name, functionColour(i), false})
	}
	s.legend = append(s.legend, entry{"offered, and the batching rule's limit", light, true}, objectiveEntry)
	slo := c.Functions[0].SLOMillis
	kinds := []struct {
		title, unit string
		by, beside  func(*evaluate.Timeline) func(*evaluate.Bin) float64
	}{
		{"answered in time", "requests/s", func(t *evaluate.Timeline) func(*evaluate.Bin) float64 {
			return func(b *evaluate.Bin) float64 { return float64(b.Within) / t.BinSeconds }
		}, func(t *evaluate.Timeline) func(*evaluate.Bin) float64 {
			return func(b *evaluate.Bin) float64 { return float64(b.Offered) / t.BinSeconds }
		}},
		{"p99", "ms", plainly(func(b *evaluate.Bin) float64 { return some(b.P99Millis) }), nil},
		{"mean batch", "requests", plainly(func(b *evaluate.Bin) float64 { return some(b.MeanBatch) }), plainly(func(b *evaluate.Bin) float64 { return some(b.LimitBatch) })},
		{"share", "%", plainly(func(b *evaluate.Bin) float64 { return some(b.SharePercent) }), nil},
	}
	tops, low := make([]float64, len(kinds)), slo
	for _, r := range columns {
		for k, kind := range kinds {
			x := ""
			if k == len(kinds)-1 {
				x = "s"
			}
			p := small(e.label(r.Variant)+": "+kind.title, x, kind.unit)
			for i := range r.Timeline.Functions {
				f := &r.Timeline.Functions[i]
				points := series(r.Timeline, f, kind.by(r.Timeline))
				if kind.beside != nil {
					beside := series(r.Timeline, f, kind.beside(r.Timeline))
					if err := trace(p, light, true, beside); err != nil {
						return err
					}
					if k == 0 {
						tops[k] = max(tops[k], highest(beside))
					}
				}
				if err := trace(p, functionColour(i), false, points); err != nil {
					return err
				}
				tops[k] = max(tops[k], highest(points))
				if k == 1 {
					low = min(low, lowest(points))
				}
			}
			p.X.Min, p.X.Max = 0, r.Timeline.Seconds
			s.rows[k] = append(s.rows[k], p)
		}
	}
	tops[1], tops[3] = max(tops[1], slo), 100
	for k, row := range s.rows {
		for i, p := range row {
			p.Y.Min, p.Y.Max = 0, tops[k]*1.1
			if k == 1 { // one that waits long must not flatten the others
				logarithmic(p, max(0.1, low/1.5), tops[k]*1.5)
				across(p, red, slo)
			}
			for j, f := range columns[i].Timeline.Functions {
				for _, event := range columns[i].Timeline.Events {
					if event.Function != f.Name || event.What == "share" {
						continue
					}
					if err := upright(p, functionColour(j), event.AtSeconds); err != nil {
						return err
					}
				}
			}
		}
	}
	return s.save(e.dir, e.Figure+"-"+slug(c.Name))
}

// plainly is a value that no time line is asked for.
func plainly(by func(*evaluate.Bin) float64) func(*evaluate.Timeline) func(*evaluate.Bin) float64 {
	return func(*evaluate.Timeline) func(*evaluate.Bin) float64 { return by }
}

// only is a time line's one function, nil where there is none.
func only(r *evaluate.Result) *evaluate.FunctionTimeline {
	if r.Timeline == nil || len(r.Timeline.Functions) == 0 {
		return nil
	}
	return &r.Timeline.Functions[0]
}

// ofOnly is the spread over runs of what by says of their one function.
func ofOnly(all []*evaluate.Result, by func(*evaluate.FunctionTimeline) float64) spread {
	return spreadBy(all, func(r *evaluate.Result) float64 {
		if f := only(r); f != nil {
			return by(f)
		}
		return math.NaN()
	})
}

// The quantities of a convergence.
func t90Millis(f *evaluate.FunctionTimeline) float64 { return some(1000 * f.T90Seconds) }
func lateShare(f *evaluate.FunctionTimeline) float64 { return 100 - f.Total.WithinPercent }
func goodRate(f *evaluate.FunctionTimeline) float64  { return f.Total.GoodputRPS }

// drawConvergence shows how fast each rule finds its batch, and what it has of it.
func (e *evaluation) drawConvergence(cases []evaluate.CaseSetting) error {
	variants := e.measuredVariants(cases)
	var groups []string
	var colours []color.Color
	for _, c := range cases {
		groups = append(groups, c.Name)
	}
	for _, v := range variants {
		colours = append(colours, variantColour(v))
	}
	bars := sheet{title: e.where(), legend: e.legend(variants), high: 7 * vg.Centimeter, rows: [][]*plot.Plot{nil}}
	for _, kind := range []struct {
		title, unit string
		by          func(*evaluate.FunctionTimeline) float64
	}{{"Until 90 % of the final batch", "ms", t90Millis}, {"Goodput", "requests/s", goodRate}, {"Not answered within the objective", "% of what was offered", lateShare}} {
		p := small(kind.title, "objective", kind.unit)
		most := 0.0
		values := make([][]spread, len(variants))
		for k, v := range variants {
			for _, c := range cases {
				x := ofOnly(e.results(c.Name, v), kind.by)
				values[k] = append(values[k], x)
				if x.runs > 0 {
					most = max(most, x.most)
				}
			}
		}
		if err := spreadBars(p, 0, groups, colours, values); err != nil {
			return err
		}
		p.Y.Min, p.Y.Max = 0, max(most*1.1, 1e-3)
		bars.rows[0] = append(bars.rows[0], p)
	}
	if err := bars.save(e.dir, e.Figure); err != nil {
		return err
	}
	lines := sheet{title: e.where() + ": each rule's median run", legend: append(e.legend(variants), objectiveEntry), high: 5.6 * vg.Centimeter, rows: [][]*plot.Plot{nil, nil}}
	for _, c := range cases {
		slo := c.Functions[0].SLOMillis
		batch, late := small(c.Name+": mean batch", "", "requests"), small(c.Name+": p99", "s", "ms")
		most, worst := 1.0, slo
		for _, v := range variants {
			r := typical(e.results(c.Name, v), func(r *evaluate.Result) float64 {
				if f := only(r); f != nil {
					return f.T90Seconds
				}
				return 0
			})
			if r == nil || only(r) == nil {
				continue
			}
			t := r.Timeline
			sizes := series(t, only(r), func(b *evaluate.Bin) float64 { return some(b.MeanBatch) })
			tails := series(t, only(r), func(b *evaluate.Bin) float64 { return some(b.P99Millis) })
			most, worst = max(most, highest(sizes)), max(worst, highest(tails))
			if err := cmp.Or(trace(batch, variantColour(v), false, sizes), trace(late, variantColour(v), false, tails)); err != nil {
				return err
			}
			batch.X.Min, batch.X.Max, late.X.Min, late.X.Max = 0, t.Seconds, 0, t.Seconds
		}
		batch.Y.Min, batch.Y.Max = 0, most*1.1
		late.Y.Min, late.Y.Max = 0, worst*1.1
		across(late, red, slo)
		lines.rows[0], lines.rows[1] = append(lines.rows[0], batch), append(lines.rows[1], late)
	}
	return lines.save(e.dir, e.Figure+"-batches")
}

// batchColours are those of batch sizes, light to dark.
var batchColours = []color.Color{
	color.RGBA{R: 0x9e, G: 0xca, B: 0xe1, A: 0xff}, orange, green, purple, blue, red, black,
}

// points are a case's bare measurements with a variant, of a model, by batch and streams.
func (e *evaluation) points(name, variant, model string) (all []evaluate.Point) {
	for _, r := range e.results(name, variant) {
		for _, p := range r.Points {
			if p.Model == model && p.Error == "" && p.ImagesPerSecond > 0 {
				all = append(all, p)
			}
		}
	}
	return all
}

// drawKnees shows throughput and time of a batch against the multiprocessors.
func (e *evaluation) drawKnees(c evaluate.CaseSetting) error {
	batches := c.Functions[0].Batches
	s := sheet{title: fmt.Sprintf("%s: %s (%s)", e.Title, c.Name, e.Device), high: 7 * vg.Centimeter}
	for i, b := range batches {
		s.legend = append(s.legend, entry{fmt.Sprintf("batch %d", b), batchColours[i%len(batchColours)], false})
	}
	s.legend = append(s.legend, entry{"solid: MPS percentage", black, false}, entry{"dashed: SM groups", black, true})
	rates, times := []*plot.Plot{}, []*plot.Plot{}
	for _, f := range c.Functions {
		rate, took := small(f.Model+": throughput", "multiprocessors, %", "requests/s"), small(f.Model+": a batch", "multiprocessors, %", "ms")
		least, most := math.Inf(1), 0.0
		for _, v := range c.Variants {
			for i, b := range batches {
				xs, all := e.byShare(c.Name, v, f.Model, b)
				var speeds, latencies []spread
				for _, points := range all {
					l := spreadBy(points, batchMillis)
					speeds, latencies = append(speeds, spreadBy(points, speed)), append(latencies, l)
					if l.runs > 0 {
						least, most = min(least, l.least), max(most, l.most)
					}
				}
				colour := batchColours[i%len(batchColours)]
				if err := cmp.Or(band(rate, colour, v == "groups", xs, speeds), band(took, colour, v == "groups", xs, latencies)); err != nil {
					return err
				}
			}
		}
		rate.X.Min, rate.X.Max, took.X.Min, took.X.Max = 0, 102, 0, 102
		rate.Y.Min, rate.Y.Max = 0, rate.Y.Max*1.05
		if most > 0 {
			logarithmic(took, least/1.3, most*1.3)
		}
		rates, times = append(rates, rate), append(times, took)
	}
	s.rows = [][]*plot.Plot{rates, times}
	if len(rates) == 1 {
		s.rows = [][]*plot.Plot{{rates[0], times[0]}}
	}
	return s.save(e.dir, e.Figure+"-"+slug(c.Name))
}

// byShare are the percentages of multiprocessors that a batch size was measured on,
// ascending, and the measurements of all runs there.
func (e *evaluation) byShare(name, variant, model string, batch int) (xs []float64, all [][]evaluate.Point) {
	found := map[float64][]evaluate.Point{}
	for _, p := range e.points(name, variant, model) {
		if p.Batch != batch {
			continue
		}
		x := p.Percent
		if p.SMs > 0 && e.SMs > 0 { // what it counts says more than what was ordered
			x = 100 * float64(p.SMs) / float64(e.SMs)
		}
		found[x] = append(found[x], p)
	}
	for x := range found {
		xs = append(xs, x)
	}
	slices.Sort(xs)
	for _, x := range xs {
		all = append(all, found[x])
	}
	return xs, all
}

// drawStreams shows what a second stream gives ready batches, and two models beside each
// other by each way of sharing.
func (e *evaluation) drawStreams() error {
	s := sheet{title: e.where(), high: 7 * vg.Centimeter, rows: [][]*plot.Plot{nil},
		legend: []entry{{"one stream", light, false}, {"two streams", green, false}, {"alexnet", blue, false}, {"resnext50", orange, false}}}
	for _, c := range e.of(evaluate.KindBare) {
		rate, took := small("Ready batches: throughput", "", "% of one stream's"), small("Ready batches: time of one", "", "% of one stream's")
		var groups []string
		rates, times := make([][]spread, 2), make([][]spread, 2)
		most := 100.0
		for _, f := range c.Functions {
			for _, b := range f.Batches {
				groups = append(groups, fmt.Sprintf("%s\n%d", f.Model, b))
				one := e.ready(c, f.Model, b, 1)
				for i := range 2 {
					points := e.ready(c, f.Model, b, i+1)
					r := part(points, one, speed)
					t := part(points, one, batchMillis)
					rates[i], times[i] = append(rates[i], r), append(times[i], t)
					if r.runs > 0 {
						most = max(most, r.most, t.most)
					}
				}
			}
		}
		colours := []color.Color{light, green}
		if err := cmp.Or(spreadBars(rate, 0, groups, colours, rates), spreadBars(took, 0, groups, colours, times)); err != nil {
			return err
		}
		for _, p := range []*plot.Plot{rate, took} {
			across(p, grey, 100)
			p.Y.Min, p.Y.Max = 0, most*1.05
			p.X.Tick.Label.Font = sans(7)
			s.rows[0] = append(s.rows[0], p)
		}
	}
	beside, err := e.besidePlot()
	if err != nil {
		return err
	}
	if beside != nil {
		s.rows[0] = append(s.rows[0], beside)
	}
	if len(s.rows[0]) == 0 {
		return nil
	}
	return s.save(e.dir, e.Figure)
}

// ready are the bare measurements of a batch size on so many streams, whole device.
func (e *evaluation) ready(c evaluate.CaseSetting, model string, batch, streams int) (all []evaluate.Point) {
	for _, v := range c.Variants {
		for _, p := range e.points(c.Name, v, model) {
			if p.Batch == batch && p.Streams == streams {
				all = append(all, p)
			}
		}
	}
	return all
}

func speed(p evaluate.Point) float64       { return some(p.ImagesPerSecond) }
func batchMillis(p evaluate.Point) float64 { return some(p.BatchTime.P50 / 1000) }

// part is the spread of all in percent of the median of another.
func part(all, of []evaluate.Point, by func(evaluate.Point) float64) spread {
	whole := spreadBy(of, by).median
	return spreadBy(all, func(p evaluate.Point) float64 { return 100 * by(p) / whole })
}

// besidePlot shows functions in closed loops beside each other, in percent of what each
// does alone; nil where that was not measured.
func (e *evaluation) besidePlot() (*plot.Plot, error) {
	cases := e.of(evaluate.KindClosed)
	i := slices.IndexFunc(cases, func(c evaluate.CaseSetting) bool { return len(c.Functions) > 1 })
	if i < 0 {
		return nil, nil
	}
	c := cases[i]
	p := small("Together in closed loops", "", "% of alone")
	variants := e.measuredVariants([]evaluate.CaseSetting{c})
	var groups []string
	values := make([][]spread, len(c.Functions))
	most := 100.0
	for _, v := range variants {
		groups = append(groups, strings.ReplaceAll(e.label(v), " + ", "\n+ "))
		for k, f := range c.Functions {
			x := e.ofAlone(cases, f, e.results(c.Name, v))
			values[k] = append(values[k], x)
			if x.runs > 0 {
				most = max(most, x.most)
			}
		}
	}
	if len(variants) == 0 {
		return nil, nil
	}
	if err := spreadBars(p, 0, groups, functionColours[:len(c.Functions)], values); err != nil {
		return nil, err
	}
	p.X.Tick.Label.Font = sans(7)
	across(p, grey, 100)
	p.Y.Min, p.Y.Max = 0, most*1.05
	return p, nil
}

// ofAlone is what a function did in these runs, in percent of what it does alone in a
// case of its own.
func (e *evaluation) ofAlone(cases []evaluate.CaseSetting, f evaluate.FunctionSetting, results []*evaluate.Result) spread {
	alone := math.NaN()
	for _, c := range cases {
		if len(c.Functions) == 1 && c.Functions[0].Model == f.Model && len(c.Variants) > 0 {
			alone = spreadBy(e.results(c.Name, c.Variants[0]), func(r *evaluate.Result) float64 { return answered(r, c.Functions[0].Name) }).median
		}
	}
	return spreadBy(results, func(r *evaluate.Result) float64 { return 100 * answered(r, f.Name) / alone })
}

// answered is a function's rate in a closed loop; NaN where there is none.
func answered(r *evaluate.Result, name string) float64 {
	for _, l := range r.Loads {
		for _, f := range l.Functions {
			if f.Name == name {
				return f.AnsweredRPS
			}
		}
	}
	return math.NaN()
}
