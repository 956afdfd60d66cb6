package cutting

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/internal/testing/migfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/change"
)

// driver is a machine whose GPUs change by the steps that it takes. It refuses what
// a GPU refuses. It numbers compute instances arbitrarily.
type driver struct {
	migfake.Machine
	next int
}

func (d *driver) Open() (mig.Session, error) { return d, nil }

func (d *driver) Take(s mig.Step) error {
	d.Taken = append(d.Taken, s)
	g := &d.Has[slices.IndexFunc(d.Has, func(g mig.GPU) bool { return g.UUID == s.GPU })]
	at := slices.IndexFunc(g.Instances, func(i mig.Instance) bool { return i.Start == s.Start && i.Profile == s.Profile })
	if s.Op != mig.CreateInstance && at < 0 {
		return fmt.Errorf("%v: there is none", s)
	}
	switch s.Op {
	case mig.CreateInstance:
		for _, i := range g.Instances {
			if s.Start < i.Start+i.Size && i.Start < s.Start+s.Size {
				return fmt.Errorf("%v: %s is in the way", s, i.Profile)
			}
		}
		g.Instances = append(g.Instances, mig.Instance{Profile: s.Profile, Slices: g.Profiles[slices.IndexFunc(g.Profiles, func(p mig.Profile) bool {
			return p.Name == s.Profile
		})].Slices, Start: s.Start, Size: s.Size})
	case mig.CreateCompute:
		d.next++
		g.Instances[at].Compute = append(g.Instances[at].Compute, mig.Compute{ID: d.next, Slices: s.Compute.Slices})
	case mig.DestroyCompute:
		left := slices.DeleteFunc(slices.Clone(g.Instances[at].Compute), func(c mig.Compute) bool { return c.ID == s.Compute.ID })
		if len(left) == len(g.Instances[at].Compute) {
			return fmt.Errorf("%v: there is %v", s, g.Instances[at].Compute)
		}
		g.Instances[at].Compute = left
	case mig.DestroyInstance:
		if len(g.Instances[at].Compute) > 0 {
			return fmt.Errorf("%v: in use", s)
		}
		g.Instances = slices.Delete(g.Instances, at, at+1)
	}
	return nil
}

// crowded returns a full GPU on which a must replace four small segments by a large
// one in their place, while b stays. Each of the four needs a shadow on GPU 1.
func crowded(t *testing.T) (old *plan.Plan, c *change.Change) {
	t.Helper()
	gpu, err := plan.Lookup("a100-80")
	must.OK(t, err)
	slow := plan.Point{GPCs: 1, Batch: 8, Processes: 1, ThroughputRPS: 100, LatencyMS: 80}
	other := plan.Point{GPCs: 3, Batch: 8, Processes: 1, ThroughputRPS: 160, LatencyMS: 50}
	quick := plan.Point{GPCs: 4, Batch: 8, Processes: 1, ThroughputRPS: 400, LatencyMS: 20}
	p := &plan.Problem{GPU: gpu, Profiles: map[string]map[string]plan.Profile{gpu.Name: {"m": {Model: "m", GPU: gpu.Name, Points: []plan.Point{slow, other, quick}}}},
		Services: []plan.Service{{Name: "a", Model: "m", RateRPS: 390, SLOMS: 200}, {Name: "b", Model: "m", RateRPS: 150, SLOMS: 200}}}
	segments := []plan.Segment{plan.SegmentOf(0, gpu, 4, p.Services[1], other)}
	for slot := range 4 {
		segments = append(segments, plan.SegmentOf(0, gpu, slot, p.Services[0], slow))
	}
	old = plan.New(p, "penstock", segments)
	now := *p
	now.Services = slices.Clone(p.Services)
	now.Services[0].SLOMS = 50
	if c, err = change.From(old, &now); err != nil {
		t.Fatal(err)
	}
	return old, c
}

// cutLike returns a machine of two A100s (and an A30) that are cut as in a plan.
func cutLike(t *testing.T, p *plan.Plan) *driver {
	t.Helper()
	d := &driver{Machine: *migfake.A100s(t, 2), next: 40}
	c, err := Of(p, d.Open, false)
	must.OK(t, err)
	must.OK(t, c.Do(io.Discard))
	d.Taken = nil
	return d
}

// inOrder returns the changes of instances among steps, on GPUs by their numbers.
func inOrder(steps []mig.Step, number map[string]int) (list []string) {
	for _, s := range steps {
		switch s.Op {
		case mig.CreateInstance:
			list = append(list, fmt.Sprintf("create %s at %d of %d", s.Profile, s.Start, number[s.GPU]))
		case mig.DestroyInstance:
			list = append(list, fmt.Sprintf("destroy %s at %d of %d", s.Profile, s.Start, number[s.GPU]))
		}
	}
	return list
}

// promised returns what a change describes as its effect on instances.
func promised(c *change.Change) (list []string) {
	for _, s := range c.Steps {
		if s.Op == change.Retune {
			continue
		}
		w, _ := wantedOf(s.Segment)
		list = append(list, fmt.Sprintf("%s %s at %d of %d", s.Op, w.place.Profile, w.place.Start, w.gpu))
	}
	return list
}

func TestOfChange(t *testing.T) {
	old, c := crowded(t)
	d := cutLike(t, old)
	cut, err := OfChange(old, c, d.Open, false)
	must.OK(t, err)
	must.OK(t, cut.Do(io.Discard))
	number := map[string]int{"GPU-a100-80-0": 0, "GPU-a100-80-2": 1}
	if got, want := inOrder(d.Taken, number), promised(c); !slices.Equal(got, want) {
		t.Errorf("did\n%s\nwant, as the change says,\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(c.Spares) != 4 || len(d.Has[0].Instances) != 2 || len(d.Has[2].Instances) != 0 {
		t.Errorf("%d spares, cut into %v and %v", len(c.Spares), d.Has[0].Instances, d.Has[2].Instances)
	}
	// When it runs again, nothing is left to do.
	if again, err := OfChange(old, c, d.Open, false); err != nil || len(again.steps) != 0 {
		t.Errorf("%v, %v: want nothing to do on GPUs that are cut as the new plan has it", again, err)
	}
}

func TestOfChangeDryRun(t *testing.T) {
	old, c := crowded(t)
	none := func() (mig.Session, error) { return nil, errors.New("no driver to be had") }
	cut, err := OfChange(old, c, none, true)
	must.OK(t, err)
	if got, want := inOrder(cut.steps, map[string]int{"plan-0": 0, "plan-1": 1}), promised(c); !slices.Equal(got, want) {
		t.Errorf("says\n%s\nwant, as the change says,\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s := cut.Section(); len(s.Rows) != len(cut.steps) || s.Rows[0][1] != "1" || s.Rows[2][1] != "2" || !strings.Contains(strings.Join(s.Text, " "), "cut as in the plan of --from") {
		t.Errorf("%+v", s)
	}
	if _, err := OfChange(old, c, none, false); err == nil || !strings.Contains(err.Error(), "--dry-run") {
		t.Errorf("%v, want that there is no driver, and how to see the steps", err)
	}
}

func TestOfChangeErrors(t *testing.T) {
	old, c := crowded(t)
	d := cutLike(t, old)
	d.Has[0].Instances = d.Has[0].Instances[1:]
	if _, err := OfChange(old, c, d.Open, false); err == nil || !strings.Contains(err.Error(), "GPU 0 of the plan, GPU 0 (GPU-a100-80-0), is cut into 1g.10gb at slot") ||
		!strings.Contains(err.Error(), "want the GPUs cut as in that plan or the new one, or all uncut") || len(d.Taken) > 0 {
		t.Errorf("%v, %v taken", err, d.Taken)
	}
	if dry, err := OfChange(old, c, d.Open, true); err != nil || !slices.Equal(inOrder(dry.steps, map[string]int{"plan-0": 0, "plan-1": 1}), promised(c)) {
		t.Errorf("%+v, %v: want the change's steps all the same", dry, err)
	}
	// An instance of another owner occupies the place for a shadow.
	d = cutLike(t, old)
	d.Has[2].Instances = []mig.Instance{{Profile: "7g.80gb", Slices: 7, Size: 8, Compute: []mig.Compute{{Slices: 7}}}}
	if _, err := OfChange(old, c, d.Open, false); err == nil || !strings.Contains(err.Error(), "GPU 1 of the plan, GPU 2 (GPU-a100-80-2), is cut into 7g.80gb at slot 0, and the plan of --from has nothing") {
		t.Errorf("%v", err)
	}
	// One GPU has no room for the shadows.
	one := migfake.A100s(t, 1)
	one.Has[0].Instances = cutLike(t, old).Has[0].Instances
	if _, err := OfChange(old, c, one.Open, false); err == nil || !strings.Contains(err.Error(), "needs 2 × a100-80 with MIG, this machine has 1; name the available GPUs with --fleet") {
		t.Errorf("%v", err)
	}
}

func TestOfChangeUncut(t *testing.T) {
	old, c := crowded(t)
	d := &driver{Machine: *migfake.A100s(t, 2)}
	cut, err := OfChange(old, c, d.Open, false)
	must.OK(t, err)
	if err := cut.Do(io.Discard); err != nil || len(cut.steps) != 4 || len(d.Has[0].Instances) != 2 {
		t.Errorf("%v, %v, %v", cut.steps, d.Has[0].Instances, err)
	}
}
