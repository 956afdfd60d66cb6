package main

import (
	"fmt"
	"math"

	"gonum.org/v1/plot/plotter"

	"github.com/penstock/penstock/bench"
)

// The targets of design.md's table that the figures show.
const (
	leastRatioPercent = 95
	mostAddedMicros   = 100
	mostShadowMicros  = 100
	mostPartition     = 10 // µs
	mostSilenceMillis = 1500
)

func drawOverhead(dir string) error {
	r, err := read[bench.Overhead](dir, "overhead")
	if err != nil {
		return err
	}
	if err := drawThroughput(dir, r); err != nil {
		return err
	}
	return drawAdded(dir, r)
}

// device is its name: some reports have its UUID.
func device(r bench.Overhead) string {
	for _, g := range r.Machine.GPUs {
		if g.UUID == r.Device {
			return g.Name
		}
	}
	return r.Device
}

func caseNames(r bench.Overhead) (names []string) {
	for _, c := range r.Cases {
		names = append(names, fmt.Sprintf("%s\nbatch %d", c.Model, c.Batch))
	}
	return names
}

// wayOf is the case's way without busy_poll (0) or with the longest (1).
func wayOf(c *bench.OverheadCase, i int) *bench.OverheadWay {
	return &c.Ways[i*(len(c.Ways)-1)]
}

// drawThroughput shows Penstock's throughput in percent of the bare framework's.
func drawThroughput(dir string, r bench.Overhead) error {
	p := newPlot("Throughput, UDP in to reply out, beside the bare framework in a closed loop ("+device(r)+")", "", "% of the bare framework")
	var bare, overlapped bars
	bare = bars{name: "bare framework", color: light}
	overlapped = bars{name: "bare, two batches in flight", color: grey}
	ours := []bars{{name: "Penstock, end to end, best number of ports", color: blue}, {name: "Penstock, busy_poll", color: green}}
	most := 100.0
	for _, c := range r.Cases {
		percent := func(v float64) float64 { return 100 * v / c.BareImagesPerSecond }
		label := func(v float64) string { return fmt.Sprintf("%.1fk", v/1000) }
		bare.values, bare.labels = append(bare.values, 100), append(bare.labels, label(c.BareImagesPerSecond))
		o := math.NaN()
		if c.BareOverlappedImagesPerSecond > 0 {
			o = percent(c.BareOverlappedImagesPerSecond)
			most = max(most, o)
		}
		overlapped.values, overlapped.labels = append(overlapped.values, o), append(overlapped.labels, label(c.BareOverlappedImagesPerSecond))
		for i := range ours {
			w := wayOf(&c, i)
			v := percent(w.Best.ImagesPerSecond)
			most = max(most, v)
			ours[i].values, ours[i].labels = append(ours[i].values, v), append(ours[i].labels, label(w.Best.ImagesPerSecond))
		}
	}
	if err := grouped(p, 0, caseNames(r), bare, overlapped, ours[0], ours[1]); err != nil {
		return err
	}
	last := float64(len(r.Cases)) - 0.5
	if err := target(p, "target: 95 %", plotter.XY{X: -0.5, Y: leastRatioPercent}, plotter.XY{X: last, Y: leastRatioPercent}); err != nil {
		return err
	}
	p.Y.Min, p.Y.Max = 0, most*1.45
	return save(dir, "overhead-throughput", p)
}

// drawAdded shows what lies between the last packet and the reply, the framework's
// own time taken off, as stages on one another.
func drawAdded(dir string, r bench.Overhead) error {
	p := newPlot("Last packet to reply, less a bare batch (median; right: busy_poll; "+device(r)+")", "", "µs")
	stages := []struct {
		bars
		of func(c *bench.OverheadCase, l *bench.LatencyCase) float64
	}{
		{bars{name: "queue: whole → batch begins", color: blue}, func(_ *bench.OverheadCase, l *bench.LatencyCase) float64 { return l.Queue.P50 }},
		{bars{name: "infer, beyond the bare framework", color: orange}, func(c *bench.OverheadCase, l *bench.LatencyCase) float64 { return max(0, l.Infer.P50-c.BareBatch.P50) }},
		{bars{name: "reply: inferred → sent", color: green}, func(_ *bench.OverheadCase, l *bench.LatencyCase) float64 { return l.Reply.P50 }},
		{bars{name: "gather (counted apart)", color: light}, func(_ *bench.OverheadCase, l *bench.LatencyCase) float64 { return l.Gather.P50 }},
	}
	most := float64(mostAddedMicros)
	var tails plotter.XYs
	for i := range r.Cases {
		c := &r.Cases[i]
		for way := range 2 {
			l, x, at := &wayOf(c, way).Latency, float64(i)+0.4*float64(way)-0.2, 0.0
			if !measured(*l) {
				continue
			}
			for _, s := range stages {
				to := at + s.of(c, l)
				if err := box(p, x, 0.28, at, to, s.color); err != nil {
					return err
				}
				at = to
			}
			tails = append(tails, plotter.XY{X: x, Y: l.Added.P99})
			most = max(most, at, l.Added.P99)
		}
	}
	for _, s := range stages {
		p.Legend.Add(s.name, swatch{s.color})
	}
	marks, err := plotter.NewScatter(tails)
	if err != nil {
		return err
	}
	marks.Color = black
	p.Add(marks)
	p.Legend.Add("p99 of all but the gather", marks)
	p.NominalX(caseNames(r)...)
	last := float64(len(r.Cases)) - 0.5
	if err := target(p, "target without the gather: 100 µs", plotter.XY{X: -0.5, Y: mostAddedMicros}, plotter.XY{X: last, Y: mostAddedMicros}); err != nil {
		return err
	}
	p.X.Min, p.X.Max = -0.5, last
	p.Y.Min, p.Y.Max = 0, most*1.6
	return save(dir, "overhead-latency", p)
}
