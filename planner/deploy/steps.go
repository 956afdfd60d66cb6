package deploy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/change"
	"github.com/penstock/penstock/planner/render"
)

// A Step is one change: of a GPU, or of a function. It says the state that it leads to, so taking
// it twice is the same as taking it once.
type Step struct {
	MIG  *mig.Step `json:"mig,omitempty"`
	Move *Move     `json:"move,omitempty"`
}

// Move gives a function other segments. Their devices are places.
type Move struct {
	Before control.FunctionPlacement `json:"before"`
	After  control.FunctionPlacement `json:"after"`
}

// inverse returns the step that undoes a step.
func (s Step) inverse() Step {
	if s.MIG != nil {
		back := s.MIG.Inverse()
		return Step{MIG: &back}
	}
	return Step{Move: &Move{Before: s.Move.After, After: s.Move.Before}}
}

// String formats the step as a line of text.
func (s Step) String() string {
	if s.MIG != nil {
		return s.MIG.String()
	}
	var places []string
	for _, g := range s.Move.After.Segments {
		text := fmt.Sprintf("%d in %s", g.Processes, g.Device)
		if g.SharePercent > 0 {
			text += fmt.Sprintf(" with %.3g %% each", g.SharePercent)
		}
		places = append(places, text)
	}
	name := s.Move.After.Name
	switch {
	case len(places) == 0:
		return "remove " + name
	case len(s.Move.Before.Segments) == 0:
		return fmt.Sprintf("start %s: %s", name, strings.Join(places, ", "))
	}
	return fmt.Sprintf("place %s: %s", name, strings.Join(places, ", "))
}

// Section shows steps.
func Section(steps []Step) render.Section {
	s := render.Section{Title: "Steps", Head: []string{"step", "what"}}
	for i, step := range steps {
		s.Rows = append(s.Rows, []string{fmt.Sprint(i + 1), step.String()})
	}
	if len(steps) == 0 {
		s.Text = []string{"Nothing to do: the node runs this plan already."}
	}
	return s
}

// work computes the steps to a plan.
type work struct {
	machine Machine
	gpus    map[int]string
	now     map[string]control.FunctionPlacement
	has     map[string][]mig.Instance // by GPU
	steps   []Step
}

// steps returns the steps to a plan, and the machine's GPUs by the plan's numbers. c is the change
// from the recorded plan; nil if the node does not run that.
//
//  1. With a change, they are its steps, in its order. Otherwise GPUs are cut, then each function of
//     the plan gets its segments. Instances that are in the way are destroyed.
//  2. Functions that the plan does not have are removed.
func (r *Record) steps(m Machine, pl *plan.Plan, c *change.Change) ([]Step, map[int]string, error) {
	w := work{machine: m, now: maps.Clone(m.Functions), has: map[string][]mig.Instance{}}
	for _, s := range pl.Services {
		if !models.NamePattern.MatchString(s.Service) {
			return nil, nil, fmt.Errorf("service %q: want a function's name: small letters, digits, - and _", s.Service)
		}
	}
	used, kept := slices.Clone(pl.Segments), map[int]string{}
	if c != nil {
		kept = r.GPUs
		for _, s := range c.Steps {
			used = append(used, s.Segment) // shadows, too
		}
	}
	var err error
	if w.gpus, err = m.match(used, kept); err != nil {
		return nil, nil, err
	}
	for _, g := range m.GPUs {
		w.has[g.UUID] = slices.Clone(g.Instances)
	}
	if c != nil {
		err = w.follow(r.Plan, pl, c)
	} else {
		for _, s := range pl.Segments {
			err = cmp.Or(err, w.create(s))
		}
	}
	for _, s := range pl.Services {
		err = cmp.Or(err, w.move(s.Service, pl, segmentsOf(pl, s.Service)))
	}
	for _, name := range slices.Sorted(maps.Keys(w.now)) {
		err = cmp.Or(err, w.move(name, pl, segmentsOf(pl, name)))
	}
	if cuts := slices.IndexFunc(w.steps, func(s Step) bool { return s.MIG != nil }); err == nil && cuts >= 0 && !m.Manage {
		err = fmt.Errorf("%v: the node's configuration does not allow it; add `mig: manage`, and `devices` in place of `device`", w.steps[cuts])
	}
	return w.steps, w.gpus, err
}

func segmentsOf(pl *plan.Plan, service string) (own []plan.Segment) {
	for _, g := range pl.Segments {
		if g.Service == service {
			own = append(own, g)
		}
	}
	return own
}

// follow takes the steps of a change from an old plan.
func (w *work) follow(old, pl *plan.Plan, c *change.Change) (err error) {
	segments := map[string][]plan.Segment{}
	for _, s := range old.Services {
		segments[s.Service] = segmentsOf(old, s.Service)
		if w.now[s.Service], err = w.placement(s.Service, old, segments[s.Service]); err != nil {
			return err
		}
	}
	for _, s := range c.Steps {
		g := s.Segment
		own := segments[g.Service]
		if s.Op == change.Create {
			if err := w.create(g); err != nil {
				return err
			}
		} else {
			own = slices.DeleteFunc(own, func(o plan.Segment) bool { return o.GPU == g.GPU && o.Slot == g.Slot })
		}
		if s.Op != change.Destroy {
			own = append(own, g)
		}
		segments[g.Service] = own
		if err := w.move(g.Service, pl, own); err != nil {
			return err
		}
		if gpu, in := w.instance(g); gpu != nil && s.Op == change.Destroy {
			w.cut(gpu, slices.DeleteFunc(slices.Clone(w.has[gpu.UUID]), func(o mig.Instance) bool { return o.Start == in.Start && o.Profile == in.Profile }))
		}
	}
	return nil
}

// move gives a function the instances of segments.
func (w *work) move(name string, pl *plan.Plan, segments []plan.Segment) error {
	after, err := w.placement(name, pl, segments)
	before := w.now[name]
	before.Name = name
	switch exists := len(before.Segments) > 0; {
	case err != nil:
		return err
	case exists && after.Model != before.Model:
		return fmt.Errorf("function %s runs model %s, and the plan has %s: run `penstock if replace` first, or `penstock if remove %[1]s`", name, before.Model, after.Model)
	case exists && after.SLO != before.SLO:
		return fmt.Errorf("function %s has the objective %v, and the plan has %v: change its `slo`, or run `penstock if remove %[1]s` first", name, before.SLO, after.SLO)
	case slices.Equal(before.Segments, after.Segments):
		return nil
	}
	w.steps = append(w.steps, Step{Move: &Move{Before: before, After: after}})
	if w.now[name] = after; len(segments) == 0 {
		delete(w.now, name)
	}
	return nil
}

// placement returns the instances of a function. A function that is not in the plan keeps its model
// and objective.
func (w *work) placement(name string, pl *plan.Plan, segments []plan.Segment) (p control.FunctionPlacement, err error) {
	p = w.now[name]
	p.Name, p.Segments = name, nil
	if at := slices.IndexFunc(pl.Services, func(s plan.Assigned) bool { return s.Service == name }); at >= 0 {
		s := pl.Services[at]
		p.Model, p.SLO = s.Model, milliseconds(s.SLOMS)
	}
	processes := 0
	for _, g := range segments {
		table, _ := plan.Lookup(g.GPUModel)
		placed := control.PlacedSegment{Device: w.gpus[g.GPU], Processes: g.Processes}
		switch {
		case !table.Percent:
			placed.Device = instancePlace(placed.Device, g.Slot)
		case g.GPCs < table.GPCs:
			placed.SharePercent = cmp.Or(g.SharePercent, 100*float64(g.GPCs)/float64(table.GPCs)) / float64(g.Processes)
		}
		p.Segments = append(p.Segments, placed)
		processes += g.Processes
	}
	if processes > configs.MaxInstances {
		return p, fmt.Errorf("service %q needs %d processes: want at most %d per function; divide its rate over two services", name, processes, configs.MaxInstances)
	}
	p.Segments = normal(p.Segments)
	return p, nil
}

// instance returns the MIG instance of a segment, and its GPU, which is nil if it is not cut.
func (w *work) instance(s plan.Segment) (g *mig.GPU, in mig.Instance) {
	table, err := plan.Lookup(s.GPUModel)
	if err != nil || table.Percent {
		return nil, in
	}
	size, _ := table.Size(s.GPCs)
	at := slices.IndexFunc(w.machine.GPUs, func(g mig.GPU) bool { return g.UUID == w.gpus[s.GPU] })
	return &w.machine.GPUs[at], mig.Instance{Profile: size.Profile, Slices: s.GPCs, Start: s.Slot, Size: size.Slots, Compute: []mig.Compute{{Slices: s.GPCs}}}
}

// create creates the instance of a segment, unless it exists or its GPU is not cut. It destroys
// instances in its way, in which nothing may run.
func (w *work) create(s plan.Segment) error {
	g, in := w.instance(s)
	switch {
	case g == nil:
		return nil
	case !g.MIG:
		return fmt.Errorf("%v: %w: %v, then apply again", g, mig.ErrMode, mig.Step{Op: mig.EnableMode, GPU: g.UUID, Index: g.Index})
	case !slices.ContainsFunc(g.Profiles, func(p mig.Profile) bool { return p.Name == in.Profile }):
		return fmt.Errorf("%s on %v: %w", in.Profile, g, mig.ErrNoProfile)
	}
	var kept []mig.Instance
	for _, other := range w.has[g.UUID] {
		switch {
		case other.Start >= in.Start+in.Size || in.Start >= other.Start+other.Size:
			kept = append(kept, other)
		case other.Profile == in.Profile && other.Start == in.Start && other.IsComplete():
			return nil
		case len(other.PIDs) > 0:
			return fmt.Errorf("process %d runs in %s at slot %d of %v, where the plan has %s: end it, or plan without this GPU (--fleet)",
				other.PIDs[0], other.Profile, other.Start, g, s.Service)
		}
	}
	w.cut(g, append(kept, in))
	return nil
}

// cut divides a GPU into other instances.
func (w *work) cut(g *mig.GPU, wanted []mig.Instance) {
	now := *g
	now.Instances = w.has[g.UUID]
	for _, step := range now.Steps(wanted) {
		w.steps = append(w.steps, Step{MIG: &step})
	}
	w.has[g.UUID] = wanted
}
