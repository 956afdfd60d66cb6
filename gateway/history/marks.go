package history

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/penstock/penstock/control"
)

// Kind is the kind of a mark.
type Kind string

// The kinds of marks.
const (
	KindSwap    Kind = "swap"    // a shadow took over, or a process moved
	KindFailure Kind = "failure" // a process ended unexpectedly
	KindHang    Kind = "hang"    // a process was killed because a request had no answer
	KindModel   Kind = "model"   // another model serves
	KindFault   Kind = "fault"   // a GPU failed under all its functions, or a device was lost or is back
	KindConfig  Kind = "config"  // the configuration changed, or cannot be followed
	KindAdded   Kind = "added"
	KindRemoved Kind = "removed"
	KindManager Kind = "manager" // another manager answers
	KindDemoted Kind = "demoted" // work begins or ends to run at the lowest priority
)

// Mark is an event on the time line.
type Mark struct {
	Number int   `json:"number"`
	Millis int64 `json:"t"`
	Kind   Kind  `json:"kind"`
	// Function is empty for an event of the whole node.
	Function string `json:"function,omitempty"`
	Text     string `json:"text"`
}

// demotedPercent is the part of the device at the lowest priority from which a function counts
// as demoted.
const demotedPercent = 5

// Marks returns what happened between two samples.
func Marks(before, after *control.Sample) (marks []Mark) {
	t := after.At.UnixMilli()
	add := func(kind Kind, function, format string, args ...any) {
		marks = append(marks, Mark{Millis: t, Kind: kind, Function: function, Text: fmt.Sprintf(format, args...)})
	}
	was, is := &before.Status, &after.Status
	if !was.Started.Equal(is.Started) {
		add(KindManager, "", "the manager was started again")
		return marks
	}
	for i := range is.Devices { // they stay the same for a manager's life
		d := &is.Devices[i]
		if d.Faults.Count > was.Devices[i].Faults.Count {
			add(KindFault, "", "the GPU %s failed under all its functions", d.Name)
		}
		if d.Lost != was.Devices[i].Lost {
			add(KindFault, "", "device %s: %s", d.Name, cmp.Or(d.Lost, "it works again"))
		}
	}
	if c := &is.Configuration; !c.Since.Equal(was.Configuration.Since) {
		if c.Followed {
			add(KindConfig, "", "the node follows the edited configuration")
		} else {
			add(KindConfig, "", "the node cannot follow the configuration: %s", c.Error)
		}
	}
	for i := range is.Functions {
		f := &is.Functions[i]
		if old, ok := was.Function(f.Name); ok {
			marks = append(marks, functionMarks(t, &old, f)...)
		} else {
			add(KindAdded, f.Name, "%s was added", f.Name)
		}
	}
	for i := range was.Functions {
		name := was.Functions[i].Name
		if _, ok := is.Function(name); !ok {
			add(KindRemoved, name, "%s was removed", name)
		}
	}
	return marks
}

func functionMarks(t int64, was, is *control.FunctionStatus) (marks []Mark) {
	add := func(kind Kind, format string, args ...any) {
		marks = append(marks, Mark{Millis: t, Kind: kind, Function: is.Name, Text: fmt.Sprintf(format, args...)})
	}
	if is.Hangs > was.Hangs {
		add(KindHang, "%s: a process hung and was killed", is.Name)
	}
	for _, failure := range newFailures(was, is) {
		add(KindFailure, "%s: process %d ended: %s", is.Name, failure.PID, failure.Reason)
	}
	switch {
	case is.Model != was.Model || is.Version != was.Version:
		add(KindModel, "%s: %s v%d replaced %s v%d%s", is.Name, is.Model, is.Version, was.Model, was.Version, idle(was, is))
	case is.Swaps > was.Swaps || !slices.Equal(serving(was), serving(is)) && len(serving(was)) > 0 && len(serving(is)) > 0:
		add(KindSwap, "%s: another process took over%s", is.Name, idle(was, is))
	}
	if demoted := isDemoted(is); demoted != isDemoted(was) {
		if demoted {
			add(KindDemoted, "%s exceeds its guarantee; the excess runs at the lowest priority", is.Name)
		} else {
			add(KindDemoted, "%s is within its guarantee again", is.Name)
		}
	}
	return marks
}

// newFailures returns the failures of a function's instances that were not there before.
func newFailures(was, is *control.FunctionStatus) (list []*control.ProcessFailure) {
	for i := range is.Instances {
		failure := is.Instances[i].LastFailure
		if failure == nil {
			continue
		}
		old := i < len(was.Instances) && was.Instances[i].LastFailure != nil && was.Instances[i].LastFailure.At.Equal(failure.At)
		if !old {
			list = append(list, failure)
		}
	}
	return list
}

// serving returns the generations that serve, by instance.
func serving(f *control.FunctionStatus) (generations []uint32) {
	for i := range f.Instances {
		if p, ok := f.Instances[i].Serving(); ok {
			generations = append(generations, p.Generation)
		}
	}
	return generations
}

// idle says how long work waited in a new hand-over; it is empty if none waited.
func idle(was, is *control.FunctionStatus) string {
	if is.SwapIdle.Count == was.SwapIdle.Count {
		return ""
	}
	return fmt.Sprintf("; requests waited %.2f ms for it", is.SwapIdle.Last/1000)
}

func isDemoted(f *control.FunctionStatus) bool {
	return f.Guarantee != nil && f.Guarantee.DemotedPercent >= demotedPercent
}
