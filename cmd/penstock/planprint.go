package main

import (
	"io"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/change"
	"github.com/penstock/penstock/planner/deploy"
	"github.com/penstock/penstock/planner/render"
	"github.com/penstock/penstock/planner/replay"
)

// printedPlan is a plan with the additional output that flags asked for
// (plan.Extra).
type printedPlan struct {
	*plan.Plan
	Change *change.Change
	Replay *replay.Report
	// Steps carry out the plan on a node. Applies says that they were requested.
	Steps   []deploy.Step
	Applies bool
}

func (p printedPlan) print(w io.Writer, output string) error {
	if output == "table" {
		return render.Table(w, p.Plan, p.sections()...)
	}
	return writeJSON(w, p.document())
}

// document is the plan with the additional output, as one object. plan.Read reads
// it.
func (p printedPlan) document() any {
	whole := struct {
		*plan.Plan
		plan.Extra
	}{Plan: p.Plan}
	if p.Change != nil {
		whole.Change = p.Change
	}
	if p.Replay != nil {
		whole.Replay = p.Replay
	}
	if p.Applies {
		steps := make([]string, len(p.Steps))
		for i, s := range p.Steps {
			steps[i] = s.String()
		}
		whole.Steps = steps
	}
	return whole
}

func (p printedPlan) sections() (list []render.Section) {
	if p.Change != nil {
		list = append(list, render.Change(p.Change))
	}
	if p.Replay != nil {
		list = append(list, render.Replay(p.Replay))
	}
	if p.Applies {
		list = append(list, deploy.Section(p.Steps))
	}
	return list
}
