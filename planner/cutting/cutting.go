// Package cutting cuts the GPUs of this machine as a plan describes. It turns a plan, or
// a change from one plan to another, into steps on MIG instances.
package cutting

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/render"
)

// Cutting is the work that cuts GPUs as a plan describes.
type Cutting struct {
	session mig.Session // nil if the steps are for GPUs that this machine does not have
	steps   []mig.Step
	// about describes which GPUs the plan's are, and what is not done here.
	about []string
	// numbers has, for each step, the number (from 1) of the change's step that it belongs to.
	// It is nil if the steps belong to no change.
	numbers []int
}

// Of finds the plan's GPUs in this machine and returns the steps to cut them. open opens
// the machine's driver. A dry run also works if GPUs are missing; it assumes that all are
// uncut.
func Of(p *plan.Plan, open func() (mig.Session, error), dryRun bool) (*Cutting, error) {
	wanted, c, err := begin(p.Segments)
	if err != nil {
		return nil, err
	}
	session, gpus, err := machineGPUs(open)
	if err == nil {
		var state map[int]mig.GPU
		if state, err = c.match(p.Segments, gpus); err == nil {
			c.session = session
			c.steps, err = mig.Steps(gpus, placed(wanted, state))
			return c, err
		}
	}
	if !dryRun {
		return nil, fmt.Errorf("--apply: %w; see the steps with --dry-run", err)
	}
	c.about = append(c.about, fmt.Sprintf("The steps assume uncut GPUs; this machine does not have the plan's: %v.", err))
	gpus = blank(p.Segments)
	c.steps, err = mig.Steps(gpus, placed(wanted, nil))
	return c, err
}

// begin returns the wanted instances, and a Cutting that lists the GPUs that are not cut.
// It fails if no segment is on a GPU with MIG.
func begin(segments []plan.Segment) (wanted []wantedInstance, c *Cutting, err error) {
	wanted, percent := wantedInstances(segments)
	if len(wanted) == 0 {
		return nil, nil, errors.New("--apply: the plan cuts no GPU: without MIG a share is an MPS percentage, which a process is started with")
	}
	c = &Cutting{}
	for _, gpu := range percent {
		c.about = append(c.about, fmt.Sprintf("GPU %d of the plan is not cut: its shares are MPS percentages, which a process is started with.", gpu))
	}
	return wanted, c, nil
}

func machineGPUs(open func() (mig.Session, error)) (mig.Session, []mig.GPU, error) {
	session, err := open()
	if err != nil {
		return nil, nil, err
	}
	gpus, err := session.GPUs()
	return session, gpus, err
}

// wantedInstance is a segment as a wanted instance. gpu is the plan's number of its GPU.
type wantedInstance struct {
	gpu   int
	place mig.Placement
}

// wantedInstances returns segments as wanted instances, without their GPUs' UUIDs. percent are the
// GPUs that are not cut, ascending.
func wantedInstances(segments []plan.Segment) (wanted []wantedInstance, percent []int) {
	for _, s := range segments {
		w, ok := wantedOf(s)
		switch {
		case ok:
			wanted = append(wanted, w)
		case !slices.Contains(percent, s.GPU):
			percent = append(percent, s.GPU)
		}
	}
	slices.Sort(percent)
	return wanted, percent
}

// wantedOf returns a segment as a wanted instance; false if its GPU is not cut.
func wantedOf(s plan.Segment) (w wantedInstance, ok bool) {
	g, err := plan.Lookup(s.GPUModel)
	if err != nil || g.Percent { // the verifier has checked the plan
		return wantedInstance{}, false
	}
	size, _ := g.Size(s.GPCs)
	return wantedInstance{gpu: s.GPU, place: mig.Placement{Profile: size.Profile, Start: s.Slot}}, true
}

// placed returns the placements of wanted instances on this machine's GPUs. It names
// missing GPUs with planned.
func placed(wanted []wantedInstance, state map[int]mig.GPU) []mig.Placement {
	list := make([]mig.Placement, len(wanted))
	for i, w := range wanted {
		list[i] = w.place
		list[i].GPU = planned(w.gpu)
		if g, ok := state[w.gpu]; ok {
			list[i].GPU = g.UUID
		}
	}
	return list
}

// planned names a GPU of the plan.
func planned(gpu int) string { return fmt.Sprintf("plan-%d", gpu) }

// match assigns one of this machine's GPUs of the right model to each GPU that segments
// use. A GPU always keeps its number, even if GPUs before it are now empty
// (plan.Plan.IdleGPUs). match therefore assigns by number, not counting GPUs of other
// models. If there are not that many, it assigns the remaining GPUs.
func (c *Cutting) match(segments []plan.Segment, gpus []mig.GPU) (map[int]mig.GPU, error) {
	models, have := modelsOf(segments), byModel(gpus)
	numbers := slices.Sorted(maps.Keys(models))
	for _, number := range numbers {
		model := models[number]
		if need := count(numbers, func(n int) bool { return models[n] == model }); len(have[model]) < need {
			return nil, fmt.Errorf("the plan needs %d × %s with MIG, this machine has %d", need, model, len(have[model]))
		}
	}

	state := map[int]mig.GPU{}
	taken := map[string]bool{} // by UUID
	take := func(number int, g mig.GPU) {
		if _, done := state[number]; !done && !taken[g.UUID] {
			state[number], taken[g.UUID] = g, true
		}
	}
	for i, number := range numbers {
		others := count(numbers[:i], func(n int) bool { return models[n] != models[number] })
		if gpus, at := have[models[number]], number-others; at < len(gpus) {
			take(number, gpus[at])
		}
	}
	for _, number := range numbers {
		for _, g := range have[models[number]] {
			take(number, g)
		}
		c.about = append(c.about, fmt.Sprintf("GPU %d of the plan is %v.", number, state[number]))
	}
	return state, nil
}

// modelsOf returns the models of the GPUs that segments cut, by the plan's numbers.
func modelsOf(segments []plan.Segment) map[int]string {
	models := map[int]string{}
	for _, s := range segments {
		if _, cut := wantedOf(s); cut {
			models[s.GPU] = s.GPUModel
		}
	}
	return models
}

// byModel returns the GPUs of each model that has a placement table.
func byModel(gpus []mig.GPU) map[string][]mig.GPU {
	have := map[string][]mig.GPU{}
	for _, g := range gpus {
		if table, err := plan.ForDevice(g.Name); err == nil {
			have[table.Name] = append(have[table.Name], g)
		}
	}
	return have
}

func count(list []int, matches func(int) bool) (n int) {
	for _, v := range list {
		if matches(v) {
			n++
		}
	}
	return n
}

// blank returns the GPUs of segments as if nothing were cut out of them.
func blank(segments []plan.Segment) (gpus []mig.GPU) {
	seen := map[int]bool{}
	for _, s := range segments {
		g, err := plan.Lookup(s.GPUModel)
		if err != nil || g.Percent || seen[s.GPU] {
			continue
		}
		seen[s.GPU] = true
		gpu := mig.Blank(1, g.Name, profilesOf(g))[0]
		gpu.Index, gpu.UUID = s.GPU, planned(s.GPU)
		gpus = append(gpus, gpu)
	}
	return gpus
}

// profilesOf returns a placement table in mig's form, without NVML's numbers.
func profilesOf(g plan.GPU) (list []mig.Profile) {
	for _, size := range g.Sizes {
		list = append(list, mig.Profile{Name: size.Profile, Slices: size.GPCs, Size: size.Slots, Starts: size.Starts})
	}
	return list
}

// Strings returns the printed form of the steps.
func (c *Cutting) Strings() []string {
	list := make([]string, len(c.steps))
	for i, s := range c.steps {
		list[i] = s.String()
	}
	return list
}

// Section shows the steps.
func (c *Cutting) Section() render.Section {
	s := render.Section{Title: "Steps", Text: c.about}
	if len(c.steps) == 0 {
		s.Text = append(s.Text, "Nothing to do: the GPUs are already cut like this.")
		return s
	}
	if c.numbers != nil {
		s.Head = []string{"step", "of the change's", "what"}
		for i, step := range c.Strings() {
			s.Rows = append(s.Rows, []string{fmt.Sprint(i + 1), fmt.Sprint(c.numbers[i]), step})
		}
		return s
	}
	s.Head = []string{"step", "what"}
	for i, step := range c.Strings() {
		s.Rows = append(s.Rows, []string{fmt.Sprint(i + 1), step})
	}
	return s
}

// Do takes the steps and prints each one that it has taken.
func (c *Cutting) Do(progress io.Writer) error {
	return mig.Do(c.session, c.steps, func(s mig.Step) { fmt.Fprintln(progress, "done:", s) })
}
