package render

import (
	"fmt"

	"github.com/penstock/penstock/planner/change"
)

// Change shows the effect of a change on each service, and its steps.
func Change(c *change.Change) Section {
	s := Section{Title: "Change", Text: []string{
		fmt.Sprintf("GPUs: %d before, %d after, at most %d on the way.", c.GPUsBefore, c.GPUsAfter, c.GPUsDuring),
	}}
	stay := 0
	for _, v := range c.Services {
		if v.Fate == change.Stays {
			stay++
			continue
		}
		s.Text = append(s.Text, fateOf(v))
	}
	s.Text = append(s.Text, fmt.Sprintf("%d of %d services stay as they are, and none of their segments moves.", stay, len(c.Services)))
	for _, v := range c.Spares {
		on := fmt.Sprintf("GPU %d", v.GPU)
		if v.ExtraGPU {
			on = fmt.Sprintf("one more %s, as GPU %d", v.GPUModel, v.GPU)
		}
		s.Text = append(s.Text, fmt.Sprintf("Spare for a shadow of %s: size %d in slot %d of %s.", v.Service, v.GPCs, v.Slot, on))
	}
	if len(c.Steps) == 0 {
		return s
	}
	s.Head = []string{"step", "do", "service", "segment", "batch × processes", "why"}
	for i, step := range c.Steps {
		g := step.Segment
		runs := fmt.Sprintf("%d × %d", g.Batch, g.Processes)
		if step.Was != nil {
			runs = fmt.Sprintf("%d × %d → %s", step.Was.Batch, step.Was.Processes, runs)
		}
		do := string(step.Op)
		if step.Shadow {
			do += " shadow"
		}
		s.Rows = append(s.Rows, []string{fmt.Sprint(i + 1), do, g.Service,
			fmt.Sprintf("size %d in slot %d of GPU %d", g.GPCs, g.Slot, g.GPU), runs, step.Why})
	}
	return s
}

// fateOf describes what happens to a service that changes.
func fateOf(v change.Service) string {
	label := fmt.Sprintf("%s %s", v.Service, map[change.Fate]string{change.Changes: "changes", change.New: "is new", change.Moves: "makes room", change.Removed: "is removed"}[v.Fate])
	switch {
	case v.Fate == change.New:
		label += fmt.Sprintf(": %s requests/s within %s ms", formatExact(v.RateRPS), formatExact(v.SLOMS))
	case v.Fate == change.Changes && v.RateRPS != v.OldRateRPS:
		label += fmt.Sprintf(", from %s to %s requests/s", formatExact(v.OldRateRPS), formatExact(v.RateRPS))
	}
	if v.Fate == change.Changes && v.SLOMS != v.OldSLOMS {
		label += fmt.Sprintf(", from an SLO of %s to %s ms", formatExact(v.OldSLOMS), formatExact(v.SLOMS))
	}
	return label + fmt.Sprintf(". Segments: %d kept, %d retuned, %d created, %d destroyed.", v.Kept, v.Retuned, v.Created, v.Destroyed)
}
