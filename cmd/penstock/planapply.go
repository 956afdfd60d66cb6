package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/plan/render"
)

// openMIG opens this machine's driver; tests have others.
var openMIG = mig.Open

// cutting is what has to be done so that GPUs are cut as a plan has it.
type cutting struct {
	session mig.Session // nil where the steps are for GPUs that are not there
	steps   []mig.Step
	// about says which GPUs the plan's are, and what is not done here.
	about []string
}

// cut looks for the plan's GPUs in this machine and says what would change on them.
// A dry run makes do with GPUs that are not there, all uncut.
func cut(p *plan.Plan, open func() (mig.Session, error), dryRun bool) (*cutting, error) {
	c := &cutting{}
	wanted, percent := wishes(p)
	if len(wanted) == 0 {
		return nil, errors.New("--apply: the plan cuts no GPU: without MIG a share is an MPS percentage, which a process is started with")
	}
	for _, gpu := range percent {
		c.about = append(c.about, fmt.Sprintf("GPU %d of the plan is not cut: its shares are MPS percentages, which a process is started with.", gpu))
	}
	session, there, err := machineGPUs(open)
	if err == nil {
		var matched []mig.Placement
		if matched, err = c.match(p, there, wanted); err == nil {
			c.session = session
			c.steps, err = mig.Steps(there, matched)
			return c, err
		}
	}
	if !dryRun {
		return nil, fmt.Errorf("--apply: %w; --dry-run shows the steps all the same", err)
	}
	c.about = append(c.about, fmt.Sprintf("The steps are for GPUs that are uncut, since the plan's are not here: %v.", err))
	there = blank(p, wanted)
	c.steps, err = mig.Steps(there, wanted)
	return c, err
}

func machineGPUs(open func() (mig.Session, error)) (mig.Session, []mig.GPU, error) {
	session, err := open()
	if err != nil {
		return nil, nil, err
	}
	gpus, err := session.GPUs()
	return session, gpus, err
}

// wishes are the plan's segments as instances; their GPUs are named by planned.
// percent are the GPUs that are not cut.
func wishes(p *plan.Plan) (wanted []mig.Placement, percent []int) {
	for _, s := range p.Segments {
		g, err := plan.Lookup(s.GPUModel)
		if err != nil {
			continue // the verifier has seen the plan
		}
		if g.Percent {
			if n := len(percent); n == 0 || percent[n-1] != s.GPU {
				percent = append(percent, s.GPU)
			}
			continue
		}
		size, _ := g.Size(s.GPCs)
		wanted = append(wanted, mig.Placement{GPU: planned(s.GPU), Profile: size.Profile, Start: s.Slot})
	}
	return wanted, percent
}

// planned names a GPU of the plan.
func planned(gpu int) string { return fmt.Sprintf("plan-%d", gpu) }

// match gives each GPU of the plan the first GPU of this machine that is of its
// model and not taken.
func (c *cutting) match(p *plan.Plan, there []mig.GPU, wanted []mig.Placement) ([]mig.Placement, error) {
	models := map[string]string{} // by planned
	need, have := map[string]int{}, map[string]int{}
	for _, s := range p.Segments {
		if _, seen := models[planned(s.GPU)]; !seen {
			models[planned(s.GPU)] = s.GPUModel
			need[s.GPUModel]++
		}
	}
	of := make([]string, len(there))
	for i, g := range there {
		if table, err := plan.ForDevice(g.Name); err == nil {
			of[i] = table.Name
			have[table.Name]++
		}
	}
	taken := make([]bool, len(there))
	uuid := map[string]string{}
	var matched []mig.Placement
	for _, w := range wanted {
		for i := 0; i < len(there) && uuid[w.GPU] == ""; i++ {
			if !taken[i] && of[i] == models[w.GPU] {
				taken[i], uuid[w.GPU] = true, there[i].UUID
				c.about = append(c.about, fmt.Sprintf("GPU %s of the plan is %v.", strings.TrimPrefix(w.GPU, "plan-"), there[i]))
			}
		}
		if uuid[w.GPU] == "" {
			model := models[w.GPU]
			return nil, fmt.Errorf("the plan needs %d × %s with MIG, this machine has %d", need[model], model, have[model])
		}
		w.GPU = uuid[w.GPU]
		matched = append(matched, w)
	}
	return matched, nil
}

// blank are the plan's GPUs as they would be with nothing cut out of them.
func blank(p *plan.Plan, wanted []mig.Placement) (gpus []mig.GPU) {
	seen := map[int]bool{}
	for _, s := range p.Segments {
		g, err := plan.Lookup(s.GPUModel)
		if err != nil || g.Percent || seen[s.GPU] {
			continue
		}
		seen[s.GPU] = true
		var profiles []mig.Profile
		for _, size := range g.Sizes {
			profiles = append(profiles, mig.Profile{Name: size.Profile, Slices: size.GPCs, Size: size.Slots, Starts: size.Starts})
		}
		gpu := mig.Blank(1, g.Name, profiles)[0]
		gpu.Index, gpu.UUID = s.GPU, planned(s.GPU)
		gpus = append(gpus, gpu)
	}
	return gpus
}

// strings are the steps as they are printed.
func (c *cutting) strings() []string {
	list := make([]string, len(c.steps))
	for i, s := range c.steps {
		list[i] = s.String()
	}
	return list
}

func (c *cutting) section() render.Section {
	s := render.Section{Title: "Steps", Text: c.about}
	if len(c.steps) == 0 {
		s.Text = append(s.Text, "Nothing is to be done: the GPUs are cut like this.")
		return s
	}
	s.Head = []string{"step", "what"}
	for i, step := range c.strings() {
		s.Rows = append(s.Rows, []string{fmt.Sprint(i + 1), step})
	}
	return s
}

// do takes the steps, and says which it has taken.
func (c *cutting) do(progress io.Writer) error {
	return mig.Do(c.session, c.steps, func(s mig.Step) { fmt.Fprintln(progress, "done:", s) })
}
