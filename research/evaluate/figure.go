package evaluate

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Figure describes, as data, which variants are compared on which cases.
type Figure struct {
	Name, Title, Paper string
	Cases              []Case
}

// Case is one workload that variants are compared on.
type Case struct {
	Name      string
	Kind      Kind
	Functions []Function
	Variants  []string
	Note      string

	// Levels are the loads of kindLoads, in order, as parts of each function's capacity and
	// weight. Traffic of the first level runs for Settle before the first measurement. Each
	// level is measured for Measure after Warmup. kindClosed has no levels: one window.
	Levels                  []float64
	Settle, Warmup, Measure time.Duration
	// Events are the events of kindTimeline, Length is its duration, and Bin the duration of
	// a bin.
	Events      []Cue
	Length, Bin time.Duration
	// Frugal leaves unrequested capacity free if shares tune themselves. Without it the node
	// distributes that capacity, and a function that runs alone has the whole device.
	Frugal bool
	// Ready is what kindBare measures of each function's model. Percents are percentages of
	// MPS, with one process per percentage.
	Ready    Ready
	Percents []float64
}

// Ready selects what is measured of a framework alone.
type Ready struct {
	Batches, Streams []int
	Duration         time.Duration
}

// Function is one function of a case.
type Function struct {
	Name, Model string
	SLO         time.Duration
	// Batches is its ladder of batch sizes, the same in all variants of a case.
	Batches []int
	// Weight is the part of the capacity that level 1 offers. PerSecond replaces it with a
	// number of requests per second that does not depend on the capacity.
	Weight    float64
	PerSecond float64 `json:",omitempty"`
	// Burst is how many requests arrive at one time; 0: each arrives by itself.
	Burst int `json:",omitempty"`
	// Percent is the function's share if shares are fixed, and its first share if they
	// change.
	Percent float64
}

// step is one run of one variant on one case.
type step struct {
	c       *Case
	variant variant
	run     int
}

// plan returns the steps in order: all of run 1 before any of run 2. Within a run all
// variants of a case are consecutive, so that compared results are measured close together
// in time. Even runs take the variants in reverse order, so that no variant always comes
// first.
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

// models returns the figure's models that need a capacity, each with all batch sizes that
// any case uses.
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

// Find returns the figure of that name.
func Find(name string) (*Figure, error) {
	all := allFigures()
	for i := range all {
		if all[i].Name == name {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("figure %q: want one of %s", name, strings.Join(Names(), ", "))
}

// Names returns the figures' names, the most useful figure to measure first.
func Names() (names []string) {
	for _, f := range allFigures() {
		names = append(names, f.Name)
	}
	return names
}

// Estimates of the parts of a step's time that do not depend on the case, measured on an
// H200.
const (
	stopTime  = time.Second
	graceTime = 200 * time.Millisecond
)

// startTime estimates how long a node takes until every batch size of these functions is
// linked.
func startTime(functions []Function) (takes time.Duration) {
	for _, f := range functions {
		takes = max(takes, readyTime(f.Model))
	}
	// They load at the same time, on CPUs that they share.
	return takes + time.Duration(len(functions))*300*time.Millisecond
}

// readyTime estimates how long a process takes to start that runs a model.
func readyTime(model string) time.Duration {
	switch model {
	case mobilenet:
		return 11 * time.Second
	case vgg16, vgg19, resnet152:
		return 4 * time.Second
	}
	return 2 * time.Second
}

// takes estimates the duration of a step.
func (c *Case) takes(v variant) time.Duration {
	switch c.Kind {
	case kindLoads:
		return startTime(c.Functions) + c.Settle + time.Duration(len(c.Levels))*(c.Warmup+c.Measure+graceTime) + stopTime
	case kindClosed:
		return startTime(c.Functions) + c.Warmup + c.Measure + stopTime
	case kindTimeline:
		return startTime(c.Functions) + c.Length + stopTime
	}
	// A percentage is fixed for a process's life; groups change in place.
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

// settings returns the report's description of the case.
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
