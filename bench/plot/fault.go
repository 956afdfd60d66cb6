package main

import (
	"fmt"
	"slices"

	"gonum.org/v1/plot/plotter"

	"github.com/penstock/penstock/bench"
)

// silenceOf are a function's silences around each fault, in milliseconds.
func silenceOf(r *bench.Fault, name string) (all []float64) {
	for _, f := range r.Faults {
		all = append(all, f.SilenceMillis[name])
	}
	return all
}

// median is of an odd number the middle one, of an even number the lower of the two.
func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	below, above := sorted[(len(sorted)-1)/2], sorted[len(sorted)/2]
	return below + (above-below)/2
}

// drawFault shows how long each function was without answers around the faults.
func drawFault(dir string) error {
	r, err := read[bench.Fault](dir, "fault")
	if err != nil {
		return err
	}
	p := newPlot(fmt.Sprintf("Time without answers when a neighbour's kernel faults: %s requests, %d without an answer (%s)",
		number(float64(r.Requests)), r.Answers.Unanswered, r.Device), "function", "ms")
	middle := bars{name: "median", color: light}
	most := bars{name: "longest", color: blue}
	for _, name := range r.Functions {
		s := silenceOf(&r, name)
		middle.values, middle.labels = append(middle.values, median(s)), append(middle.labels, number(median(s)))
		most.values, most.labels = append(most.values, slices.Max(s)), append(most.labels, number(slices.Max(s)))
	}
	if err := grouped(p, 0, r.Functions, middle, most); err != nil {
		return err
	}
	last := float64(len(r.Functions)) - 0.5
	if err := target(p, "target: 1.5 s", plotter.XY{X: -0.5, Y: mostSilenceMillis}, plotter.XY{X: last, Y: mostSilenceMillis}); err != nil {
		return err
	}
	p.Y.Min, p.Y.Max = 0, max(p.Y.Max, mostSilenceMillis)*1.3
	return save(dir, "fault", p)
}
