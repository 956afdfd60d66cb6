package cutting

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/internal/testing/migfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
)

// planOn returns a plan with a 1g in the first slot of GPUs of these models.
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

func TestMatch(t *testing.T) {
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
		cut, err := Of(planOn(t, c.models), migfake.A100s(t, 3).Open, true)
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

func TestDryRunWithoutGPUs(t *testing.T) {
	p := planOn(t, map[int]string{0: "a100-80", 1: "a100-80", 2: "a100-80"})
	for name, open := range map[string]func() (mig.Session, error){
		"this machine has 2":  migfake.A100s(t, 2).Open,
		"no driver to be had": func() (mig.Session, error) { return nil, errors.New("no driver to be had") },
	} {
		if _, err := Of(p, open, false); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "--dry-run") {
			t.Errorf("%v, want %q, and how to see the steps", err, name)
		}
		dry, err := Of(p, open, true)
		must.OK(t, err)
		if output := strings.Join(dry.about, " "); len(dry.steps) != 6 || dry.session != nil || !strings.Contains(output, name) {
			t.Errorf("%d steps, %q: want six, and why they are for no GPU of this machine", len(dry.steps), output)
		}
	}
}

func TestPercentages(t *testing.T) {
	if _, err := Of(planOn(t, map[int]string{0: "v100"}), migfake.A100s(t, 1).Open, true); err == nil || !strings.Contains(err.Error(), "MPS percentage") {
		t.Errorf("%v, want that there is nothing to cut", err)
	}
	both, err := Of(planOn(t, map[int]string{0: "v100", 1: "a100-80"}), migfake.A100s(t, 1).Open, true)
	if err != nil || len(both.steps) != 2 || !strings.Contains(strings.Join(both.about, " "), "GPU 0 of the plan is not cut") {
		t.Errorf("%+v, %v: want the A100 cut and the V100 named", both, err)
	}
}

func TestDo(t *testing.T) {
	m := migfake.A100s(t, 1)
	c, err := Of(planOn(t, map[int]string{0: "a100-80"}), m.Open, false)
	must.OK(t, err)
	var output strings.Builder
	must.OK(t, c.Do(&output))
	if len(m.Taken) != 2 || !strings.HasPrefix(output.String(), "done: create 1g.10gb in slot 0 of GPU 0 (GPU-a100-80-0)\n") {
		t.Errorf("took %v, said %q", m.Taken, output.String())
	}
	m.Has[0].Instances = []mig.Instance{{Profile: "1g.10gb", Slices: 1, Size: 1, Compute: []mig.Compute{{Slices: 1}}}}
	if c, err = Of(planOn(t, map[int]string{0: "a100-80"}), m.Open, false); err != nil || len(c.steps) != 0 {
		t.Errorf("%v, %v: want nothing to do on a GPU that is cut like this", c.steps, err)
	}
	if text := c.Section().Text; !strings.Contains(text[len(text)-1], "Nothing to do") {
		t.Errorf("said %q", text)
	}
}

func TestDoFails(t *testing.T) {
	m := migfake.A100s(t, 1)
	m.Fail = 1
	c, err := Of(planOn(t, map[int]string{0: "a100-80"}), m.Open, false)
	must.OK(t, err)
	if err := c.Do(&strings.Builder{}); err == nil || !strings.Contains(err.Error(), "it does not please me") {
		t.Errorf("%v", err)
	}
}
