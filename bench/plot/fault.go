package main

import (
	"fmt"

	"gonum.org/v1/plot/plotter"

	"github.com/penstock/penstock/bench"
)

// drawFault shows how long the node was without answers in each fault.
func drawFault(dir string) error {
	r, err := read[bench.Fault](dir, "fault")
	if err != nil {
		return err
	}
	p := newPlot(fmt.Sprintf("Time without answers when a neighbour's kernel faults: %s requests, %d without an answer (%s)",
		number(float64(r.Requests)), r.Answers.Unanswered, r.Device), "fault", "ms")
	silence := bars{name: "longest silence of a function, as its client saw it", color: blue}
	told := bars{name: "as the node says", color: light}
	var names []string
	for i, f := range r.Faults {
		names = append(names, fmt.Sprint(i+1))
		silence.values, silence.labels = append(silence.values, f.Longest), append(silence.labels, number(f.Longest))
		told.values = append(told.values, f.NodeMillis)
	}
	if err := grouped(p, 0, names, silence, told); err != nil {
		return err
	}
	last := float64(len(r.Faults)) - 0.5
	if err := target(p, "target: 1.5 s", plotter.XY{X: -0.5, Y: mostSilenceMillis}, plotter.XY{X: last, Y: mostSilenceMillis}); err != nil {
		return err
	}
	p.Y.Min, p.Y.Max = 0, max(p.Y.Max, mostSilenceMillis)*1.3
	return save(dir, "fault", p)
}
