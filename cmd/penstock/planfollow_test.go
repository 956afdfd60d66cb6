package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/plan/change"
)

// driver is a machine whose GPUs change by the steps that it takes, and which
// refuses what a GPU refuses. It numbers compute instances as it likes.
type driver struct {
	machine
	next int
}

func (d *driver) open() (mig.Session, error) { return d, nil }

func (d *driver) Take(s mig.Step) error {
	d.taken = append(d.taken, s)
	g := &d.gpus[slices.IndexFunc(d.gpus, func(g mig.GPU) bool { return g.UUID == s.GPU })]
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

// crowded is a full GPU on which a must give up four small segments for a large one
// in their place, while b stays: each of the four needs a shadow on GPU 1.
func crowded(t *testing.T) (old *plan.Plan, c *change.Change) {
	t.Helper()
	gpu, err := plan.Lookup("a100-80")
	if err != nil {
		t.Fatal(err)
	}
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

// cutLike is a machine of two A100s (and an A30) that are cut as a plan has it.
func cutLike(t *testing.T, p *plan.Plan) *driver {
	t.Helper()
	d := &driver{machine: *a100s(t, 2), next: 40}
	c, err := cut(p, d.open, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.do(io.Discard); err != nil {
		t.Fatal(err)
	}
	d.taken = nil
	return d
}

// inOrder are the changes of instances among steps, on GPUs by their numbers.
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

// promised is what a change says that it does with instances.
func promised(c *change.Change) (list []string) {
	for _, s := range c.Steps {
		if s.Op == change.Retune {
			continue
		}
		w, _ := wishOf(s.Segment)
		list = append(list, fmt.Sprintf("%s %s at %d of %d", s.Op, w.place.Profile, w.place.Start, w.gpu))
	}
	return list
}

func TestAChangeIsAppliedInTheOrderThatItSays(t *testing.T) {
	old, c := crowded(t)
	d := cutLike(t, old)
	cut, err := follow(old, c, d.open, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := cut.do(io.Discard); err != nil {
		t.Fatal(err)
	}
	number := map[string]int{"GPU-a100-80-0": 0, "GPU-a100-80-2": 1}
	if got, want := inOrder(d.taken, number), promised(c); !slices.Equal(got, want) {
		t.Errorf("did\n%s\nwant, as the change says,\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(c.Spares) != 4 || len(d.gpus[0].Instances) != 2 || len(d.gpus[2].Instances) != 0 {
		t.Errorf("%d spares, cut into %v and %v", len(c.Spares), d.gpus[0].Instances, d.gpus[2].Instances)
	}
	// Once more, nothing is left to do.
	if again, err := follow(old, c, d.open, false); err != nil || len(again.steps) != 0 {
		t.Errorf("%v, %v: want nothing to do on GPUs that are cut as the new plan has it", again, err)
	}
}

func TestADryRunAwayFromGPUsStartsFromTheOldPlan(t *testing.T) {
	old, c := crowded(t)
	none := func() (mig.Session, error) { return nil, errors.New("no driver to be had") }
	cut, err := follow(old, c, none, true)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := inOrder(cut.steps, map[string]int{"plan-0": 0, "plan-1": 1}), promised(c); !slices.Equal(got, want) {
		t.Errorf("says\n%s\nwant, as the change says,\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s := cut.section(); len(s.Rows) != len(cut.steps) || s.Rows[0][1] != "1" || s.Rows[2][1] != "2" || !strings.Contains(strings.Join(s.Text, " "), "cut as the plan of --from has it") {
		t.Errorf("%+v", s)
	}
	if _, err := follow(old, c, none, false); err == nil || !strings.Contains(err.Error(), "--dry-run") {
		t.Errorf("%v, want that there is no driver, and how to see the steps", err)
	}
}

func TestAChangeOfGPUsThatAreCutOtherwiseIsRefused(t *testing.T) {
	old, c := crowded(t)
	d := cutLike(t, old)
	d.gpus[0].Instances = d.gpus[0].Instances[1:]
	if _, err := follow(old, c, d.open, false); err == nil || !strings.Contains(err.Error(), "GPU 0 of the plan, GPU 0 (GPU-a100-80-0), is cut into 1g.10gb at slot") ||
		!strings.Contains(err.Error(), "as the new one has them, or all uncut") || len(d.taken) > 0 {
		t.Errorf("%v, %v taken", err, d.taken)
	}
	if dry, err := follow(old, c, d.open, true); err != nil || !slices.Equal(inOrder(dry.steps, map[string]int{"plan-0": 0, "plan-1": 1}), promised(c)) {
		t.Errorf("%+v, %v: want the change's steps all the same", dry, err)
	}
	// Where a shadow should go there is somebody else's.
	d = cutLike(t, old)
	d.gpus[2].Instances = []mig.Instance{{Profile: "7g.80gb", Slices: 7, Size: 8, Compute: []mig.Compute{{Slices: 7}}}}
	if _, err := follow(old, c, d.open, false); err == nil || !strings.Contains(err.Error(), "GPU 1 of the plan, GPU 2 (GPU-a100-80-2), is cut into 7g.80gb at slot 0, and the plan of --from has nothing") {
		t.Errorf("%v", err)
	}
	// One GPU has no room for the shadows.
	one := a100s(t, 1)
	one.gpus[0].Instances = cutLike(t, old).gpus[0].Instances
	if _, err := follow(old, c, one.open, false); err == nil || !strings.Contains(err.Error(), "needs 2 × a100-80 with MIG, this machine has 1; --fleet") {
		t.Errorf("%v", err)
	}
}

func TestGPUsThatAreNotCutYetAreCutAsTheNewPlanHasIt(t *testing.T) {
	old, c := crowded(t)
	d := &driver{machine: *a100s(t, 2)}
	cut, err := follow(old, c, d.open, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := cut.do(io.Discard); err != nil || len(cut.steps) != 4 || len(d.gpus[0].Instances) != 2 {
		t.Errorf("%v, %v, %v", cut.steps, d.gpus[0].Instances, err)
	}
}

func TestFromAndApplyTogetherFollowTheChange(t *testing.T) {
	opened := openMIG
	t.Cleanup(func() { openMIG = opened })
	openMIG = func() (mig.Session, error) { return nil, errors.New("nothing to be had") }
	rows := "resnet50,100,100\n"
	from := file(t, "old.json", plannedWith(t, "--services", services(t, rows), "-o", "json"))
	out := plannedWith(t, "--services", services(t, rows+"vgg19,50,300\n"), "--from", from, "--apply", "--dry-run")
	if strings.Count(out, "create ") != 2+1 || strings.Contains(out, "uncut") || !strings.Contains(out, "vgg19 is new") {
		t.Errorf("want what is created for vgg19 and nothing else (an instance, its compute instance, the change's step):\n%s", out)
	}
}

// What a plan says of its own bounds is not believed: it would be served as late as
// whoever edits the file likes.
func TestAnOldPlanWithAnotherLatencyBoundIsRefused(t *testing.T) {
	rows := "resnet50,100,100\n"
	for _, policy := range []string{"penstock", "parvagpu"} {
		text := plannedWith(t, "--services", services(t, rows), "--policy", policy, "-o", "json")
		for _, bound := range []string{"99", "0", "44.9"} {
			edited := strings.Replace(text, `"latency_bound_ms": 45`, `"latency_bound_ms": `+bound, 1)
			if edited == text {
				t.Fatal(text)
			}
			_, err := penstock(t, "plan", "--profiles", published, "--services", services(t, rows), "--from", file(t, "old.json", edited))
			if err == nil || !strings.Contains(err.Error(), "resnet50 has latency_bound_ms "+bound+": policy "+policy+" plans with half of slo_ms × 0.9, which is 45") {
				t.Errorf("%s, %s: %v", policy, bound, err)
			}
		}
		// As it was, it goes on, with the bound of another objective where that is wanted.
		out := plannedWith(t, "--services", services(t, "resnet50,100,130\n"), "--from", file(t, "old.json", text), "-o", "json")
		if bound := read(t, out).Services[0].LatencyBoundMS; bound != 58.5 {
			t.Errorf("%s: %v", policy, bound)
		}
	}
}
