package main

import (
	"errors"
	"image/color"
	"io/fs"
	"math"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/penstock/penstock/bench"
)

// drawMoves shows how long the stream stands still, and what the second around a
// change looks like, for all ways of changing a share that were measured.
func drawMoves(dir string) error {
	var cases []bench.MovesCase
	device := ""
	for _, name := range []string{"swap-partition", "swap-shadow"} {
		r, err := read[bench.Moves](dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		device = r.Device
		cases = append(cases, r.Change)
		if r.Restart != nil && !slices.ContainsFunc(cases, func(c bench.MovesCase) bool { return c.How == r.Restart.How }) {
			cases = append(cases, *r.Restart)
		}
	}
	if len(cases) == 0 {
		return fs.ErrNotExist
	}
	slices.SortStableFunc(cases, func(a, b bench.MovesCase) int { return order(a.How) - order(b.How) })

	idle := newPlot("How long the stream stands still when a share changes under load ("+device+")", "how long, at most", "% of the changes")
	idle.X.Scale, idle.X.Tick.Marker = plot.LogScale{}, timeTicks(time.Microsecond)
	least, most := math.Inf(1), 0.0
	for _, c := range cases {
		sorted := slices.Sorted(slices.Values(c.Every))
		var points plotter.XYs
		for i, v := range sorted {
			v = max(v, 0.1)
			points = append(points, plotter.XY{X: v, Y: 100 * float64(i+1) / float64(len(sorted))})
			least, most = min(least, v), max(most, v)
		}
		l, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		l.Color, l.Width, l.StepStyle = colorOf(c.How), vg.Points(2), plotter.PostStep
		idle.Add(l)
		idle.Legend.Add(c.How+" ("+number(float64(c.Moves))+", "+number(float64(c.Lost))+" requests lost)", l)
	}
	for _, t := range []struct {
		name string
		at   float64
	}{{"target, partition: p99 ≤ 10 µs", mostPartition}, {"target, shadow: p99 ≤ 100 µs", mostShadowMicros}} {
		if err := target(idle, t.name, plotter.XY{X: t.at, Y: 0}, plotter.XY{X: t.at, Y: 100}); err != nil {
			return err
		}
	}
	idle.Legend.Left = true
	idle.X.Min, idle.X.Max = min(least, mostPartition)/2, max(most, mostShadowMicros)*2
	idle.Y.Min, idle.Y.Max = 0, 150 // room for the legend
	idle.Y.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 25, Label: "25"}, {Value: 50, Label: "50"}, {Value: 75, Label: "75"}, {Value: 100, Label: "100"}}
	if err := save(dir, "swap-idle", idle); err != nil {
		return err
	}

	around := newPlot("p99 latency of the second around a change, beside a steady second ("+device+")", "", "p99 latency (logarithmic)")
	names := make([]string, len(cases))
	series := []bars{
		{name: "a steady second, median", color: light},
		{name: "the second around a change, median", color: blue},
		{name: "the worst of them", color: orange},
	}
	least, most = math.Inf(1), 0
	for i, c := range cases {
		names[i] = c.How
		for s, v := range []float64{c.SteadyP99.P50, c.AroundP99.P50, c.AroundP99.Max} {
			series[s].values, series[s].labels = append(series[s].values, v), append(series[s].labels, span(v*1e6))
			least, most = min(least, v), max(most, v)
		}
	}
	base := math.Pow(10, math.Floor(math.Log10(least/1.5)))
	if err := grouped(around, base, names, series...); err != nil {
		return err
	}
	around.Y.Scale, around.Y.Tick.Marker = plot.LogScale{}, timeTicks(time.Millisecond)
	around.Y.Min, around.Y.Max = base, most*20 // room for the legend
	return save(dir, "swap-latency", around)
}

func order(how string) int { return slices.Index([]string{"partition", "shadow", "restart"}, how) }

func colorOf(how string) color.Color {
	switch how {
	case "partition":
		return green
	case "shadow":
		return blue
	}
	return grey
}
