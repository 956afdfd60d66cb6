package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/plan/change"
	"github.com/penstock/penstock/plan/cutting"
	"github.com/penstock/penstock/plan/render"
	"github.com/penstock/penstock/plan/replay"
)

// printedPlan is a plan and what more was asked about it (plan.Beside).
type printedPlan struct {
	*plan.Plan
	Change *change.Change
	Replay *replay.Report
	// MIGSteps are cutting's, which is nil where they were not asked for.
	MIGSteps []string
	cutting  *cutting.Cutting
}

func (p printedPlan) print(w io.Writer, output string) error {
	switch output {
	case "html":
		return render.HTML(w, p.Plan, p.sections()...)
	case "table":
		return render.Table(w, p.Plan, p.sections()...)
	}
	whole, err := p.whole()
	if err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	if output == "yaml" {
		return render.YAML(w, whole)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(whole); err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	return nil
}

// besides is a plan and what was asked about it, in one object, which plan.Read
// reads.
type besides struct {
	*plan.Plan
	plan.Beside
}

func (p printedPlan) whole() (*besides, error) {
	whole := &besides{Plan: p.Plan}
	for _, more := range []struct {
		asked bool
		what  any
		in    *json.RawMessage
	}{
		{p.Change != nil, wayOf(p.Change), &whole.Change},
		{p.Replay != nil, p.Replay, &whole.Replay},
		{p.cutting != nil, p.MIGSteps, &whole.MIGSteps},
	} {
		if !more.asked {
			continue
		}
		text, err := json.Marshal(more.what)
		if err != nil {
			return nil, err
		}
		*more.in = text
	}
	return whole, nil
}

// way is a change without the plan that it leads to, which stands around it.
type way struct {
	Services   []change.Service `json:"services"`
	Steps      []change.Step    `json:"steps"`
	Spares     []change.Spare   `json:"spares"`
	GPUsBefore int              `json:"gpus_before"`
	GPUsAfter  int              `json:"gpus_after"`
	GPUsDuring int              `json:"gpus_during"`
}

func wayOf(c *change.Change) *way {
	if c == nil {
		return nil
	}
	return &way{c.Services, c.Steps, c.Spares, c.GPUsBefore, c.GPUsAfter, c.GPUsDuring}
}

// sections are what more was asked, for who reads it.
func (p printedPlan) sections() (list []render.Section) {
	if p.Change != nil {
		list = append(list, changeSection(p.Change))
	}
	if p.Replay != nil {
		list = append(list, replaySection(p.Replay))
	}
	if p.cutting != nil {
		list = append(list, p.cutting.Section())
	}
	return list
}

func changeSection(c *change.Change) render.Section {
	s := render.Section{Title: "Change", Text: []string{
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

// fateOf says what becomes of a service that does not stay as it is.
func fateOf(v change.Service) string {
	said := fmt.Sprintf("%s %s", v.Service, map[change.Fate]string{change.Changes: "changes", change.New: "is new", change.Moves: "makes room", change.Removed: "is removed"}[v.Fate])
	switch {
	case v.Fate == change.New:
		said += fmt.Sprintf(": %s requests/s within %s ms", render.Exact(v.RateRPS), render.Exact(v.SLOMS))
	case v.Fate == change.Changes && v.RateRPS != v.OldRateRPS:
		said += fmt.Sprintf(", from %s to %s requests/s", render.Exact(v.OldRateRPS), render.Exact(v.RateRPS))
	}
	if v.Fate == change.Changes && v.SLOMS != v.OldSLOMS {
		said += fmt.Sprintf(", from an SLO of %s to %s ms", render.Exact(v.OldSLOMS), render.Exact(v.SLOMS))
	}
	return said + fmt.Sprintf(". Segments: %d kept, %d retuned, %d created, %d destroyed.", v.Kept, v.Retuned, v.Created, v.Destroyed)
}

func replaySection(r *replay.Report) render.Section {
	missed := "No request misses its objective"
	if r.Violations > 0 {
		missed = fmt.Sprintf("%s of all requests miss their objective, most of %s", fine(r.Violations), r.Worst)
	}
	s := render.Section{Title: "Replay", Text: []string{
		fmt.Sprintf("Poisson arrivals, seed %d; routing %s, rule %s. %s; processes are busy %s of the time.",
			r.Seed, r.Routing, r.Rule, missed, render.Percent(r.Utilisation)),
	}, Head: []string{"service", "SLO ms", "p50 ms", "p99 ms", "miss", "between", "late", "not run", "of requests", "load"}}
	for _, v := range r.Services {
		s.Rows = append(s.Rows, []string{v.Service, render.Exact(v.SLOMS), render.Decimal(v.P50MS), render.Decimal(v.P99MS),
			fine(v.Violations), fine(v.Low) + " – " + fine(v.High), fmt.Sprint(v.Late), fmt.Sprint(v.Unserved), fmt.Sprint(v.Requests), render.Percent(v.Load)})
	}
	return s
}

// fine is a small part of one in percent.
func fine(part float64) string { return fmt.Sprintf("%.3g %%", 100*part) }
