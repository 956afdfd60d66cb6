package cutting

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/change"
)

// OfChange finds the GPUs of a change in this machine and returns the MIG steps for
// each of the change's steps, in the change's order. An instance that the change
// creates before it destroys another one is therefore created first. The GPUs must be
// cut as in the old plan. GPUs that are already cut as in the new plan need no steps.
// GPUs that are not cut at all are cut as in the new plan, at once. A dry run also
// works if GPUs are missing or cut otherwise. It then shows the steps for GPUs that
// are cut as in the old plan.
func OfChange(old *plan.Plan, c *change.Change, open func() (mig.Session, error), dryRun bool) (*Cutting, error) {
	all := slices.Concat(old.Segments, c.Plan.Segments)
	for _, s := range c.Steps {
		all = append(all, s.Segment) // shadows, too
	}
	_, cut, err := begin(all)
	if err != nil {
		return nil, err
	}
	before, _ := wantedInstances(old.Segments)
	after, _ := wantedInstances(c.Plan.Segments)
	about := len(cut.about)
	session, gpus, err := machineGPUs(open)
	if err == nil {
		var state map[int]mig.GPU
		if state, err = cut.match(all, gpus); err != nil && c.GPUsDuring > c.GPUsBefore {
			err = fmt.Errorf("%w; name the available GPUs with --fleet to plan with them", err)
		}
		if err == nil {
			if err = cutAs(state, before); err == nil {
				cut.session = byPlace{session}
				return cut, cut.take(c.Steps, state)
			}
			if cutAs(state, after) == nil {
				cut.session = session
				return cut, nil
			}
			if cutAs(state, nil) == nil {
				cut.session = session
				cut.about = append(cut.about, "These GPUs are not cut yet, so the steps cut them for the new plan directly.")
				cut.steps, err = mig.Steps(gpus, placed(after, state))
				return cut, err
			}
		}
	}
	if !dryRun {
		return nil, fmt.Errorf("--apply: %w; see the steps with --dry-run", err)
	}
	cut.about = append(cut.about[:about], fmt.Sprintf("The steps assume GPUs that are cut as in the plan of --from; this machine has none: %v.", err))
	return cut, cut.take(c.Steps, imagined(all, before))
}

// cutAs returns an error unless GPUs are cut as wanted, and into nothing else.
func cutAs(state map[int]mig.GPU, wanted []wantedInstance) error {
	for _, number := range slices.Sorted(maps.Keys(state)) {
		g := state[number]
		var have, want []string
		for _, i := range g.Instances {
			what := fmt.Sprintf("%s at slot %d", i.Profile, i.Start)
			if len(i.Compute) != 1 || i.Compute[0].Slices != i.Slices {
				what += fmt.Sprintf(" with %d compute instances", len(i.Compute))
			}
			have = append(have, what)
		}
		for _, w := range wanted {
			if w.gpu == number {
				want = append(want, fmt.Sprintf("%s at slot %d", w.place.Profile, w.place.Start))
			}
		}
		slices.Sort(have)
		slices.Sort(want)
		if !slices.Equal(have, want) {
			return fmt.Errorf("GPU %d of the plan, %v, is cut into %s, and the plan of --from has %s: want the GPUs cut as in that plan or the new one, or all uncut",
				number, g, nothingOr(have), nothingOr(want))
		}
	}
	return nil
}

func nothingOr(list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ", ")
}

// imagined returns the GPUs of segments, cut as wanted.
func imagined(segments []plan.Segment, wanted []wantedInstance) map[int]mig.GPU {
	state := map[int]mig.GPU{}
	for _, g := range blank(segments) {
		for _, w := range wanted {
			if at := slices.IndexFunc(g.Profiles, func(p mig.Profile) bool { return p.Name == w.place.Profile }); w.gpu == g.Index && at >= 0 {
				p := g.Profiles[at]
				g.Instances = append(g.Instances, mig.Instance{Profile: p.Name, Slices: p.Slices, Start: w.place.Start, Size: p.Size,
					Compute: []mig.Compute{{Slices: p.Slices}}})
			}
		}
		state[g.Index] = g
	}
	return state
}

// take turns a change's steps into MIG steps on this machine's GPUs. is has the GPUs
// by the plan's numbers. A segment that is retuned stays in its instance. If a GPU
// would refuse a step, take returns an error of package mig.
func (c *Cutting) take(steps []change.Step, state map[int]mig.GPU) error {
	r := recutting{gpus: state, now: map[int][]mig.Placement{}, asked: map[int]bool{}}
	for number, g := range state {
		for _, i := range g.Instances {
			r.now[number] = append(r.now[number], mig.Placement{GPU: g.UUID, Profile: i.Profile, Start: i.Start})
		}
	}
	c.numbers = []int{}
	for i, s := range steps {
		w, ok := wantedOf(s.Segment)
		if !ok || s.Op == change.Retune {
			continue
		}
		list, err := r.step(w, s.Op == change.Create)
		if err != nil {
			return fmt.Errorf("step %d of the change: %w", i+1, err)
		}
		for _, taken := range list {
			c.steps, c.numbers = append(c.steps, taken), append(c.numbers, i+1)
		}
	}
	return nil
}

// recutting is the state of the GPUs after some of a change's steps. Its maps have the
// plan's numbers of GPUs as keys.
type recutting struct {
	gpus  map[int]mig.GPU // as they were before the change
	now   map[int][]mig.Placement
	asked map[int]bool // MIG mode is already being enabled
}

// step creates or destroys an instance.
func (r *recutting) step(w wantedInstance, create bool) (list []mig.Step, err error) {
	g := r.gpus[w.gpu]
	place := placed([]wantedInstance{w}, r.gpus)[0]
	if create {
		if !g.MIG && !r.asked[w.gpu] {
			r.asked[w.gpu] = true
			list = append(list, mig.Step{Op: mig.EnableMode, GPU: g.UUID, Index: g.Index})
		}
		r.now[w.gpu] = append(r.now[w.gpu], place)
		uncut := g
		uncut.Instances = nil
		if _, err := mig.Steps([]mig.GPU{uncut}, r.now[w.gpu]); err != nil {
			return nil, err
		}
	} else {
		r.now[w.gpu] = slices.DeleteFunc(r.now[w.gpu], func(p mig.Placement) bool { return p == place })
	}

	at := slices.IndexFunc(g.Profiles, func(p mig.Profile) bool { return p.Name == place.Profile })
	if at < 0 {
		return nil, fmt.Errorf("%s on %v: %w", place.Profile, g, mig.ErrNoProfile)
	}
	p := g.Profiles[at]
	outer := mig.Step{GPU: g.UUID, Index: g.Index, Profile: p.Name, Number: p.Number, Start: place.Start, Size: p.Size}
	inner := outer
	inner.Compute = mig.Compute{Slices: p.Slices}
	if create {
		outer.Op, inner.Op = mig.CreateInstance, mig.CreateCompute
		return append(list, outer, inner), nil
	}
	outer.Op, inner.Op = mig.DestroyInstance, mig.DestroyCompute
	return append(list, inner, outer), nil
}

// byPlace is a session that finds the compute instance to destroy by its place. The
// driver assigns numbers when it creates instances, so those of a shadow are known
// only during the change.
type byPlace struct{ mig.Session }

func (b byPlace) Take(s mig.Step) error {
	if s.Op != mig.DestroyCompute {
		return b.Session.Take(s)
	}
	gpus, err := b.GPUs()
	if err != nil {
		return fmt.Errorf("%v: %w", s, err)
	}
	for _, g := range gpus {
		for _, i := range g.Instances {
			if g.UUID == s.GPU && i.Start == s.Start && i.Profile == s.Profile && len(i.Compute) == 1 {
				s.Compute.ID = i.Compute[0].ID
				return b.Session.Take(s)
			}
		}
	}
	return fmt.Errorf("%v: it is not there", s)
}
