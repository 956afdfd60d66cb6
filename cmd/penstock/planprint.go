package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/change"
	"github.com/penstock/penstock/planner/cutting"
	"github.com/penstock/penstock/planner/render"
	"github.com/penstock/penstock/planner/replay"
)

// printedPlan is a plan with the additional output that flags asked for
// (plan.Extra).
type printedPlan struct {
	*plan.Plan
	Change *change.Change
	Replay *replay.Report
	// MIGSteps are the steps of package cutting, nil if not requested.
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
	whole, err := p.document()
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

// extras is a plan with the additional output, as one object. plan.Read reads
// it.
type extras struct {
	*plan.Plan
	plan.Extra
}

func (p printedPlan) document() (*extras, error) {
	whole := &extras{Plan: p.Plan}
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

// way is a change without its plan, because the enclosing object already has
// the plan.
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

// sections are the additional output in the form for people.
func (p printedPlan) sections() (list []render.Section) {
	if p.Change != nil {
		list = append(list, render.Change(p.Change))
	}
	if p.Replay != nil {
		list = append(list, render.Replay(p.Replay))
	}
	if p.cutting != nil {
		list = append(list, p.cutting.Section())
	}
	return list
}
