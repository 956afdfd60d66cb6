package main

import (
	"fmt"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/penstock/penstock/bench"
)

// multiprocessors are how many a point's limit left. Groups are handed out whole, so
// they are all that the neighbour has not: a count in the middle of a move says less.
func multiprocessors(r *bench.Limit, s *bench.LimitSeries, p *bench.LimitPoint) int {
	if s.Change == "partition" && p.AggressorSMs > 0 {
		return r.SMs - p.AggressorSMs
	}
	return p.SMs
}

// drawLimit shows throughput and tail latency against the multiprocessors that a
// limit leaves, alone and beside an aggressor.
func drawLimit(dir string) error {
	r, err := read[bench.Limit](dir, "limit")
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%s, batch %d", r.Model, r.Batch)
	throughput := newPlot(what+": throughput under a limit", "multiprocessors", "images/s")
	tail := newPlot("p99 latency, beside "+r.Aggressor+" on all the rest", "multiprocessors", "ms")
	full := plotter.XY{}
	for _, s := range r.Series {
		name, c := "MPS percentage", blue
		if s.Change == "partition" {
			name, c = "SM groups of one's own", green
		}
		var alone, beside, aloneTail, besideTail plotter.XYs
		for _, p := range s.Points {
			x := float64(multiprocessors(&r, &s, &p))
			if p.SMs == 0 { // a CPU's quota
				x = p.Percent
			}
			alone = append(alone, plotter.XY{X: x, Y: p.Alone.ImagesPerSecond})
			aloneTail = append(aloneTail, plotter.XY{X: x, Y: p.Alone.Latency.P99 / 1000})
			if x > full.X {
				full = plotter.XY{X: x, Y: p.Alone.ImagesPerSecond}
			}
			if p.Beside != nil {
				beside = append(beside, plotter.XY{X: x, Y: p.Beside.ImagesPerSecond})
				besideTail = append(besideTail, plotter.XY{X: x, Y: p.Beside.Latency.P99 / 1000})
			}
		}
		if err := line(throughput, name+", alone", c, false, alone); err != nil {
			return err
		}
		if err := line(tail, name+", alone", c, false, aloneTail); err != nil {
			return err
		}
		if len(beside) == 0 {
			continue
		}
		if err := line(throughput, name+", beside "+r.Aggressor, c, true, beside); err != nil {
			return err
		}
		if err := line(tail, name+", beside", c, true, besideTail); err != nil {
			return err
		}
	}
	proportional, err := plotter.NewLine(plotter.XYs{{}, full})
	if err != nil {
		return err
	}
	proportional.Color, proportional.Dashes = grey, []vg.Length{vg.Points(1), vg.Points(2)}
	throughput.Add(proportional)
	throughput.Legend.Add("in proportion", proportional)
	throughput.Legend.Top, throughput.Legend.Left = true, true
	throughput.X.Min, throughput.Y.Min, throughput.Y.Max = 0, 0, throughput.Y.Max*1.5
	tail.X.Min, tail.Y.Min = 0, 0
	return save(dir, "limit", throughput, tail)
}
