package mig

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// a100 is the placement table of an A100-SXM4-80GB (NVIDIA MIG User Guide).
var a100 = []Profile{
	{Name: "1g.10gb", Number: 0, Slices: 1, Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}},
	{Name: "2g.20gb", Number: 1, Slices: 2, Size: 2, Starts: []int{0, 2, 4}},
	{Name: "3g.40gb", Number: 2, Slices: 3, Size: 4, Starts: []int{0, 4}},
	{Name: "4g.40gb", Number: 3, Slices: 4, Size: 4, Starts: []int{0}},
	{Name: "7g.80gb", Number: 4, Slices: 7, Size: 8, Starts: []int{0}},
}

// stepTexts returns the texts of the steps, without the name of the GPU.
func stepTexts(steps []Step) []string {
	var text []string
	for _, s := range steps {
		text = append(text, strings.ReplaceAll(s.String(), fmt.Sprintf(" of GPU %d (%s)", s.Index, s.GPU), ""))
	}
	return text
}

func TestLargerFirst(t *testing.T) {
	steps, err := Steps(Blank(1, "A100", a100), []Placement{
		{"gpu-0", "1g.10gb", 3}, {"gpu-0", "2g.20gb", 0}, {"gpu-0", "3g.40gb", 4},
	})
	want := []string{
		"create 3g.40gb in slots 4–7", "create a compute instance (3 slices) in 3g.40gb in slots 4–7",
		"create 2g.20gb in slots 0–1", "create a compute instance (2 slices) in 2g.20gb in slots 0–1",
		"create 1g.10gb in slot 3", "create a compute instance (1 slice) in 1g.10gb in slot 3",
	}
	if err != nil || !slices.Equal(stepTexts(steps), want) {
		t.Errorf("%v, steps:\n%s", err, strings.Join(stepTexts(steps), "\n"))
	}
}

// cut returns a GPU with a 4g.40gb on the left, and a 2g and a 1g on the right.
func cut() GPU {
	g := Blank(1, "A100", a100)[0]
	g.Instances = []Instance{
		{ID: 1, Profile: "4g.40gb", Slices: 4, Start: 0, Size: 4, Compute: []Compute{{0, 4}}},
		{ID: 3, Profile: "2g.20gb", Slices: 2, Start: 4, Size: 2, Compute: []Compute{{0, 1}, {1, 1}}},
		{ID: 9, Profile: "1g.10gb", Slices: 1, Start: 6, Size: 1, Compute: []Compute{{0, 1}}},
	}
	return g
}

func TestKeepsInstances(t *testing.T) {
	steps, err := Steps([]GPU{cut()}, []Placement{{"gpu-0", "4g.40gb", 0}, {"gpu-0", "3g.40gb", 4}})
	want := []string{
		"destroy compute instance 0 (1 slice) of 2g.20gb in slots 4–5",
		"destroy compute instance 1 (1 slice) of 2g.20gb in slots 4–5",
		"destroy 2g.20gb in slots 4–5",
		"destroy compute instance 0 (1 slice) of 1g.10gb in slot 6",
		"destroy 1g.10gb in slot 6",
		"create 3g.40gb in slots 4–7",
		"create a compute instance (3 slices) in 3g.40gb in slots 4–7",
	}
	if err != nil || !slices.Equal(stepTexts(steps), want) {
		t.Errorf("%v, steps:\n%s", err, strings.Join(stepTexts(steps), "\n"))
	}
}

func TestDividedInstance(t *testing.T) {
	steps, err := Steps([]GPU{cut()}, []Placement{{"gpu-0", "4g.40gb", 0}, {"gpu-0", "2g.20gb", 4}, {"gpu-0", "1g.10gb", 6}})
	want := []string{
		"destroy compute instance 0 (1 slice) of 2g.20gb in slots 4–5",
		"destroy compute instance 1 (1 slice) of 2g.20gb in slots 4–5",
		"create a compute instance (2 slices) in 2g.20gb in slots 4–5",
	}
	if err != nil || !slices.Equal(stepTexts(steps), want) {
		t.Errorf("%v, steps:\n%s", err, strings.Join(stepTexts(steps), "\n"))
	}
}

func TestOtherGPUsUnchanged(t *testing.T) {
	other := cut()
	other.UUID, other.Index = "gpu-1", 1
	steps, err := Steps([]GPU{cut(), other}, []Placement{{"gpu-0", "7g.80gb", 0}})
	must.OK(t, err)
	for _, s := range steps {
		if s.GPU != "gpu-0" {
			t.Errorf("%v", s)
		}
	}
}

func TestEnableMode(t *testing.T) {
	g := Blank(1, "A100", a100)[0]
	g.MIG = false
	steps, err := Steps([]GPU{g}, []Placement{{"gpu-0", "7g.80gb", 0}})
	if err != nil || len(steps) != 3 || steps[0].Op != EnableMode || !strings.Contains(steps[0].String(), "nvidia-smi -i gpu-0 -mig 1") {
		t.Errorf("%v, steps:\n%s", err, strings.Join(stepTexts(steps), "\n"))
	}
	if err := Do(nil, steps, nil); !errors.Is(err, ErrMode) || !strings.Contains(err.Error(), "-mig 1") {
		t.Errorf("done all the same: %v", err)
	}
}

func TestStepsErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		wanted []Placement
		err    error
		want   string
	}{
		{"another GPU", []Placement{{"gpu-7", "1g.10gb", 0}}, errNoGPU, `1g.10gb at slot 0: "gpu-7": no such GPU with MIG; there are: gpu-0`},
		{"another GPU's profile", []Placement{{"gpu-0", "3g.20gb", 4}}, ErrNoProfile,
			"3g.20gb at slot 4 of GPU 0 (gpu-0), A100: no such profile; there are: 1g.10gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb"},
		{"a wrong start", []Placement{{"gpu-0", "2g.20gb", 5}}, ErrPlacement,
			"2g.20gb at slot 5 of GPU 0 (gpu-0): a profile cannot start there; it can start at 0, 2 or 4"},
		{"slot 3 under a 3g", []Placement{{"gpu-0", "3g.40gb", 0}, {"gpu-0", "1g.10gb", 3}}, errOverlap,
			"1g.10gb at slot 3 of GPU 0 (gpu-0): two instances want the same slot: slot 3 is that of 3g.40gb at slot 0, too; 1g.10gb takes slot 3"},
		{"the same twice", []Placement{{"gpu-0", "7g.80gb", 0}, {"gpu-0", "7g.80gb", 0}}, errOverlap, "slot 0 is that of 7g.80gb"},
	} {
		steps, err := Steps(Blank(1, "A100", a100), c.wanted)
		if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) || steps != nil {
			t.Errorf("%s: %v, %v\nwant …%s…", c.name, steps, err, c.want)
		}
	}
}

// stubborn is a session that refuses two steps: one of the change and one of its
// undoing.
type stubborn struct {
	taken  []Step
	refuse []int
}

func (s *stubborn) GPUs() ([]GPU, error) { return nil, errors.New("gone") }

func (s *stubborn) Take(step Step) error {
	s.taken = append(s.taken, step)
	if slices.Contains(s.refuse, len(s.taken)) {
		return fmt.Errorf("%v: refused", step)
	}
	return nil
}

func TestFailure(t *testing.T) {
	steps, err := Steps([]GPU{cut()}, []Placement{{"gpu-0", "4g.40gb", 0}, {"gpu-0", "3g.40gb", 4}})
	must.OK(t, err)
	// The sixth of seven steps fails, and so does undoing the fourth.
	err = Do(&stubborn{refuse: []int{6, 8}}, steps, nil)
	var f *Failure
	if !errors.As(err, &f) || f.Step != steps[5] || len(f.Done) != 5 || !slices.Equal(f.Left, steps[:4]) || f.UndoErr == nil {
		t.Fatalf("%+v", err)
	}
	for _, want := range []string{"create 3g.40gb in slots 4–7", "1 of the 5 steps before it was undone", "these remain:\n", steps[0].String(), steps[3].String()} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
	if strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("more or less stands than said:\n%v", err)
	}
}

func TestFirstStepFails(t *testing.T) {
	steps, _ := Steps(Blank(1, "A100", a100), []Placement{{"gpu-0", "7g.80gb", 0}})
	err := Do(&stubborn{refuse: []int{1}}, steps, nil)
	if err == nil || !strings.HasSuffix(err.Error(), "nothing was changed") {
		t.Errorf("%v", err)
	}
}
