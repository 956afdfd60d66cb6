package evaluate

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Figure is what is compared with what, as data.
type Figure struct {
	Name, Title, Paper string
	Cases              []Case
}

// Case is one thing that variants are compared on.
type Case struct {
	Name      string
	Kind      Kind
	Functions []Function
	Variants  []string
	Note      string

	// Levels are the loads of kindLoads, in order: parts of each function's capacity and
	// weight. Settle is how long traffic of the first level runs before; each is measured
	// for Measure after Warmup. kindClosed has no levels: one window.
	Levels                  []float64
	Settle, Warmup, Measure time.Duration
	// Events are kindTimeline's, Length how long it is, Bin how long a bin.
	Events      []Cue
	Length, Bin time.Duration
	// Frugal leaves free what nobody demands, where shares tune themselves; else it is
	// given away, and a function alone has all.
	Frugal bool
	// Ready is what kindBare measures of each function's model; Percents are percentages
	// of MPS, a process each.
	Ready    Ready
	Percents []float64
}

// Ready is what is measured of a framework alone.
type Ready struct {
	Batches, Streams []int
	Duration         time.Duration
}

// Function is one function of a case.
type Function struct {
	Name, Model string
	SLO         time.Duration
	// Batches is its ladder. A case's variants all have it.
	Batches []int
	// Weight is the part of the capacity that level 1 offers; or PerSecond how many requests
	// per second, whatever the capacity.
	Weight    float64
	PerSecond float64 `json:",omitempty"`
	// Percent is its share where shares are fixed, and the first one where they are not.
	Percent float64
}

// step is one run of one variant on one case.
type step struct {
	c       *Case
	variant variant
	run     int
}

// plan are the steps in order: all of run 1 before any of run 2, and within a run all
// variants of a case one after another, so that what is compared is measured close
// together. Even runs go through the variants backwards: what comes first in one run
// comes last in the next.
func (f *Figure) plan(runs int) (steps []step, err error) {
	for run := 1; run <= runs; run++ {
		for i := range f.Cases {
			c := &f.Cases[i]
			names := slices.Clone(c.Variants)
			if run%2 == 0 {
				slices.Reverse(names)
			}
			for _, name := range names {
				v, err := variantOf(name)
				if err != nil {
					return nil, fmt.Errorf("figure %s, case %s: %w", f.Name, c.Name, err)
				}
				steps = append(steps, step{c, v, run})
			}
		}
	}
	return steps, nil
}

// models are those of the figure that capacity is needed of, each with all batch sizes
// that a case has it with.
func (f *Figure) models() (all []Function) {
	for _, c := range f.Cases {
		if c.Kind != kindLoads && c.Kind != kindTimeline {
			continue
		}
		for _, fn := range c.Functions {
			if fn.PerSecond > 0 {
				continue
			}
			i := slices.IndexFunc(all, func(o Function) bool { return o.Model == fn.Model })
			if i < 0 {
				all = append(all, Function{Name: fn.Model, Model: fn.Model, SLO: capacitySLO, Batches: slices.Clone(fn.Batches)})
				continue
			}
			all[i].Batches = slices.Compact(slices.Sorted(slices.Values(append(all[i].Batches, fn.Batches...))))
		}
	}
	return all
}

// Find is the figure of that name.
func Find(name string) (*Figure, error) {
	all := allFigures()
	for i := range all {
		if all[i].Name == name {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("figure %q: want one of %s", name, strings.Join(Names(), ", "))
}

// Names are the figures' names, in the order in which they are worth measuring.
func Names() (names []string) {
	for _, f := range allFigures() {
		names = append(names, f.Name)
	}
	return names
}

// The parts of a step's time that do not depend on the case, as measured on an H200: for
// an estimate.
const (
	stopTime  = time.Second
	graceTime = 200 * time.Millisecond
)

// startTime is how long a node takes until every batch size of these functions is linked.
func startTime(functions []Function) (takes time.Duration) {
	for _, f := range functions {
		takes = max(takes, readyTime(f.Model))
	}
	// They load side by side, on CPUs that they share.
	return takes + time.Duration(len(functions))*300*time.Millisecond
}

// readyTime is how long a process takes that runs a model.
func readyTime(model string) time.Duration {
	switch model {
	case mobilenet:
		return 11 * time.Second
	case vgg16, vgg19, resnet152:
		return 4 * time.Second
	}
	return 2 * time.Second
}

// takes estimates a step.
func (c *Case) takes(v variant) time.Duration {
	switch c.Kind {
	case kindLoads:
		return startTime(c.Functions) + c.Settle + time.Duration(len(c.Levels))*(c.Warmup+c.Measure+graceTime) + stopTime
	case kindClosed:
		return startTime(c.Functions) + c.Warmup + c.Measure + stopTime
	case kindTimeline:
		return startTime(c.Functions) + c.Length + stopTime
	}
	// A percentage is a process's; groups change in place.
	processes, places := 1, 1
	switch v.by {
	case byPercentage:
		processes, places = len(c.Percents), len(c.Percents)
	case byGroups:
		places = len(groupCounts)
	}
	each := time.Duration(len(c.Ready.Batches)*len(c.Ready.Streams)) * c.Ready.Duration * 3 / 2
	var all time.Duration
	for _, f := range c.Functions {
		all += time.Duration(processes)*readyTime(f.Model) + time.Duration(places)*each
	}
	return all
}

// settings is what the case says of itself in a report.
func (c *Case) settings() CaseSetting {
	s := CaseSetting{Name: c.Name, Kind: c.Kind, Variants: c.Variants, Note: c.Note}
	for _, f := range c.Functions {
		s.Functions = append(s.Functions, FunctionSetting{Name: f.Name, Model: f.Model, SLOMillis: millis(f.SLO), Batches: f.Batches, Weight: f.Weight, PerSecond: f.PerSecond})
	}
	for _, e := range c.Events {
		s.Events = append(s.Events, EventSetting{e.At.Seconds(), e.What, e.Function, e.Level})
	}
	return s
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
