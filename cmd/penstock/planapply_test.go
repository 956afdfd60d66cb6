package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/plan"
)

// machine is one with GPUs that take what steps they are told to.
type machine struct {
	gpus  []mig.GPU
	taken []mig.Step
	fail  int // the step, from 1, that fails
}

func (m *machine) GPUs() ([]mig.GPU, error) { return m.gpus, nil }

func (m *machine) Take(s mig.Step) error {
	if m.fail--; m.fail == 0 {
		return fmt.Errorf("%v: it does not please me", s)
	}
	m.taken = append(m.taken, s)
	return nil
}

// a100s is a machine of that many, uncut, and an A30 among them.
func a100s(t *testing.T, n int) *machine {
	t.Helper()
	m := &machine{}
	for i := range n + 1 {
		name, product := "a100-80", "NVIDIA A100-SXM4-80GB"
		if i == 1 {
			name, product = "a30", "NVIDIA A30"
		}
		table, err := plan.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		g := mig.Blank(1, product, profilesOf(table))[0]
		g.Index, g.UUID = i, fmt.Sprintf("GPU-%s-%d", name, i)
		m.gpus = append(m.gpus, g)
	}
	return m
}

func (m *machine) open() (mig.Session, error) { return m, nil }

// planOn is a plan with a 1g in the first slot of GPUs of these models.
func planOn(t *testing.T, models map[int]string) *plan.Plan {
	t.Helper()
	p := &plan.Plan{}
	for number := range 10 {
		if name, ok := models[number]; ok {
			p.Segments = append(p.Segments, plan.Segment{GPU: number, GPUModel: name, GPCs: 1, Service: "x"})
		}
	}
	return p
}

func TestAPlansGPUsAreTheMachinesOfTheirModel(t *testing.T) {
	for _, c := range []struct {
		name   string
		models map[int]string
		want   []string
	}{
		{"one model", map[int]string{0: "a100-80", 1: "a100-80"}, []string{"GPU-a100-80-0", "GPU-a100-80-2"}},
		{"mixed", map[int]string{0: "a30", 1: "a100-80"}, []string{"GPU-a30-1", "GPU-a100-80-0"}},
		{"a number that fell empty", map[int]string{0: "a100-80", 2: "a100-80"}, []string{"GPU-a100-80-0", "GPU-a100-80-3"}},
		{"a number beyond what there is", map[int]string{0: "a100-80", 7: "a100-80"}, []string{"GPU-a100-80-0", "GPU-a100-80-2"}},
		{"two beyond", map[int]string{6: "a100-80", 7: "a100-80"}, []string{"GPU-a100-80-0", "GPU-a100-80-2"}},
	} {
		cut, err := cut(planOn(t, c.models), a100s(t, 3).open, true)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, s := range cut.steps {
			if s.Op == mig.CreateInstance {
				got = append(got, s.GPU)
			}
		}
		slices.Sort(got)
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: cuts %v, want %v; %v", c.name, got, c.want, cut.about)
		}
	}
}

func TestAMachineWithoutThePlansGPUsOnlyShowsTheSteps(t *testing.T) {
	p := planOn(t, map[int]string{0: "a100-80", 1: "a100-80", 2: "a100-80"})
	for name, open := range map[string]func() (mig.Session, error){
		"this machine has 2":  a100s(t, 2).open,
		"no driver to be had": func() (mig.Session, error) { return nil, errors.New("no driver to be had") },
	} {
		if _, err := cut(p, open, false); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "--dry-run") {
			t.Errorf("%v, want %q, and how to see the steps", err, name)
		}
		dry, err := cut(p, open, true)
		if err != nil {
			t.Fatal(err)
		}
		if said := strings.Join(dry.about, " "); len(dry.steps) != 6 || dry.session != nil || !strings.Contains(said, name) {
			t.Errorf("%d steps, %q: want six, and why they are for no GPU of this machine", len(dry.steps), said)
		}
	}
}

func TestAPlanByPercentagesCutsNothing(t *testing.T) {
	if _, err := cut(planOn(t, map[int]string{0: "v100"}), a100s(t, 1).open, true); err == nil || !strings.Contains(err.Error(), "MPS percentage") {
		t.Errorf("%v, want that there is nothing to cut", err)
	}
	both, err := cut(planOn(t, map[int]string{0: "v100", 1: "a100-80"}), a100s(t, 1).open, true)
	if err != nil || len(both.steps) != 2 || !strings.Contains(strings.Join(both.about, " "), "GPU 0 of the plan is not cut") {
		t.Errorf("%+v, %v: want the A100 cut and the V100 named", both, err)
	}
}

func TestStepsAreTakenAndSaid(t *testing.T) {
	m := a100s(t, 1)
	c, err := cut(planOn(t, map[int]string{0: "a100-80"}), m.open, false)
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	if err := c.do(&said); err != nil {
		t.Fatal(err)
	}
	if len(m.taken) != 2 || !strings.HasPrefix(said.String(), "done: create 1g.10gb in slot 0 of GPU 0 (GPU-a100-80-0)\n") {
		t.Errorf("took %v, said %q", m.taken, said.String())
	}
	m.gpus[0].Instances = []mig.Instance{{Profile: "1g.10gb", Slices: 1, Size: 1, Compute: []mig.Compute{{Slices: 1}}}}
	if c, err = cut(planOn(t, map[int]string{0: "a100-80"}), m.open, false); err != nil || len(c.steps) != 0 {
		t.Errorf("%v, %v: want nothing to do on a GPU that is cut like this", c.steps, err)
	}
	if text := c.section().Text; !strings.Contains(text[len(text)-1], "Nothing is to be done") {
		t.Errorf("said %q", text)
	}
}

func TestAStepThatFailsEndsWithAnError(t *testing.T) {
	m := a100s(t, 1)
	m.fail = 1
	c, err := cut(planOn(t, map[int]string{0: "a100-80"}), m.open, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.do(&strings.Builder{}); err == nil || !strings.Contains(err.Error(), "it does not please me") {
		t.Errorf("%v", err)
	}
}
