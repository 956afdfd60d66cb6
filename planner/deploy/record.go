package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/change"
)

// Record is the plan that a node runs, and the change of it that is under way. It is saved as JSON.
type Record struct {
	// Plan is nil if no plan was carried out.
	Plan *plan.Plan `json:"plan,omitempty"`
	// GPUs are UUIDs, or names of the node's devices, by the plan's numbers.
	GPUs map[int]string `json:"gpus,omitempty"`
	Next *Next          `json:"next,omitempty"`
}

// Next is a change that is under way.
type Next struct {
	Plan  *plan.Plan     `json:"plan"`
	GPUs  map[int]string `json:"gpus"`
	Steps []Step         `json:"steps"`
	// Done is the number of steps that are in effect.
	Done int `json:"done"`
	// Failure is why the change is being undone; empty if it is not.
	Failure string `json:"failure,omitempty"`
}

// Runs reports whether the node runs the recorded plan. It does not after a restart, or if an
// operator has moved functions.
func (r *Record) Runs(m Machine) bool {
	if r.Plan == nil {
		return false
	}
	w := work{gpus: r.GPUs}
	for _, s := range r.Plan.Services {
		want, err := w.placement(s.Service, r.Plan, segmentsOf(r.Plan, s.Service))
		if err != nil || !samePlaces(want, m.Functions[s.Service]) {
			return false
		}
	}
	return true
}

// samePlaces compares placements without shares: a node with guarantees does not report them.
func samePlaces(a, b control.FunctionPlacement) bool {
	return slices.EqualFunc(a.Segments, b.Segments, func(a, b control.PlacedSegment) bool {
		return a.Device == b.Device && a.Processes == b.Processes
	})
}

// Begin computes the steps to a plan and makes them the next change. c is the change from the
// recorded plan, which the node must run; nil if there is none. It changes nothing if it fails: the
// error says what cannot be done.
func (r *Record) Begin(m Machine, pl *plan.Plan, c *change.Change) error {
	list, gpus, err := r.steps(m, pl, c)
	if err == nil {
		r.Next = &Next{Plan: pl, GPUs: gpus, Steps: list}
	}
	return err
}

// Host takes steps.
type Host struct {
	// MIG changes GPUs. It may be nil if no step does.
	MIG mig.Session
	// Devices are those that the node had before. It names others by their UUIDs.
	Devices []Device
	// Place sends an order to the node.
	Place func(context.Context, control.PlacementOrder) error
	// Save keeps the record for the next process.
	Save func(*Record) error
	// Report is called after each step, with its number from 1 and the number of all.
	Report func(n, all int, what string)
}

// Finish takes the remaining steps of the next change. If one fails, it undoes those before it, and
// returns the cause. If ctx ends, or if the record cannot be saved, it stops; another Finish
// continues.
func (r *Record) Finish(ctx context.Context, h Host) error {
	n := r.Next
	if n == nil {
		return nil
	}
	if err := h.Save(r); err != nil {
		return err
	}
	for n.Failure == "" && n.Done < len(n.Steps) {
		step := n.Steps[n.Done]
		err := h.take(ctx, step)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted after %d of %d steps; the same command continues", n.Done, len(n.Steps))
		case err != nil:
			n.Failure = fmt.Sprintf("step %d of %d: %v: %v", n.Done+1, len(n.Steps), step, err)
		default:
			n.Done++
			h.Report(n.Done, len(n.Steps), step.String())
		}
		if err := h.Save(r); err != nil {
			return err
		}
	}
	if n.Failure == "" {
		r.Plan, r.GPUs, r.Next = n.Plan, n.GPUs, nil
		return h.Save(r)
	}
	for n.Done > 0 {
		back := n.Steps[n.Done-1].inverse()
		if err := h.take(ctx, back); err != nil {
			return fmt.Errorf("%s; then undo, %v: %w; the same command continues to undo", n.Failure, back, err)
		}
		h.Report(n.Done, len(n.Steps), "undo: "+back.String())
		n.Done--
		if err := h.Save(r); err != nil {
			return err
		}
	}
	r.Next = nil
	if err := h.Save(r); err != nil {
		return err
	}
	return fmt.Errorf("%s; everything is as before", n.Failure)
}

func (h Host) take(ctx context.Context, s Step) error {
	var gpus []mig.GPU
	var err error
	if h.MIG != nil {
		if gpus, err = h.MIG.GPUs(); err != nil {
			return err
		}
	}
	if s.MIG != nil {
		return h.cut(gpus, *s.MIG)
	}
	f := s.Move.After
	if len(s.Move.Before.Segments) > 0 {
		f.Model, f.SLO = "", 0 // it keeps its own, whose names may differ
	}
	f.Segments = slices.Clone(f.Segments)
	for i := range f.Segments {
		gpu, slot, cut := strings.Cut(f.Segments[i].Device, "/")
		if !cut {
			continue
		}
		f.Segments[i].Device = ""
		for _, g := range gpus {
			for _, in := range g.Instances {
				if g.UUID == gpu && fmt.Sprint(in.Start) == slot {
					f.Segments[i].Device = in.UUID
				}
			}
		}
		if at := slices.IndexFunc(h.Devices, func(d Device) bool { return d.UUID != "" && d.UUID == f.Segments[i].Device }); at >= 0 {
			f.Segments[i].Device = h.Devices[at].Name
		}
		if f.Segments[i].Device == "" {
			return fmt.Errorf("no MIG instance at slot %s of %s: another program has destroyed it", slot, gpu)
		}
	}
	return h.Place(ctx, control.PlacementOrder{Functions: []control.FunctionPlacement{f}})
}

// cut changes a GPU, unless it is already in the state that the step leads to.
func (h Host) cut(gpus []mig.GPU, s mig.Step) error {
	var found *mig.Instance
	for _, g := range gpus {
		for i, in := range g.Instances {
			if g.UUID == s.GPU && in.Start == s.Start && in.Profile == s.Profile {
				found = &g.Instances[i]
			}
		}
	}
	if found == nil && (s.Op == mig.DestroyCompute || s.Op == mig.DestroyInstance) || found != nil && s.Op == mig.CreateInstance {
		return nil
	}
	if found == nil {
		return h.MIG.Take(s)
	}
	used, youngest := 0, -1
	for _, c := range found.Compute {
		used += c.Slices
		if c.Slices == s.Compute.Slices {
			youngest = c.ID // an instance that is created again gets another number
		}
	}
	switch {
	case s.Op == mig.CreateCompute && used+s.Compute.Slices > found.Slices, s.Op == mig.DestroyCompute && youngest < 0:
		return nil
	case s.Op == mig.DestroyCompute:
		s.Compute.ID = youngest
	}
	return h.MIG.Take(s)
}
