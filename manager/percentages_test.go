package manager

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// No function gets a percentage at which a GPU answers wrongly. That includes functions that exist
// before the device is known, and a function that is added next to partitions.
func TestRightPercentages(t *testing.T) {
	ungrouped := h200()
	ungrouped.GroupSMs, ungrouped.Why = nil, "no green contexts"
	unmeasured := h200()
	unmeasured.Name = "NVIDIA H900"
	shadows := func(name string, percent float64) configs.Function {
		f := named(name, percent)
		f.Change = configs.ChangeShadow
		return f
	}
	for name, row := range map[string]struct {
		gpu   *control.ObservedDevice
		tune  bool
		first configs.Function
		right bool
	}{
		"by shadows":                {ungrouped, true, named("a", 30), true},
		"beside partitions":         {h200(), true, shadows("a", 30), true},
		"partitions alone":          {h200(), true, named("a", 30), false},
		"as the operator gave them": {ungrouped, false, named("a", 30), false},
		"unmeasured":                {unmeasured, true, shadows("a", 30), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newNode(t, "cuda", row.gpu, mechanismMPS)
			b.cfg.Shares.Tune = row.tune
			b.cfg.Device = "cuda"
			for _, f := range []configs.Function{row.first, named("b", 45)} {
				if err := b.add(f); err != nil {
					t.Fatal(err)
				}
			}
			b.turns()
			check := func(names ...string) {
				t.Helper()
				for _, name := range names {
					share := b.instance(name, 0).pair.Share()
					if right := slices.Contains(rightPercentages["NVIDIA H200"], share); right != row.right {
						t.Errorf("%s has %v %%, right: %v, want %v", name, share, right, row.right)
					}
				}
			}
			check("a", "b")
			if err := b.add(named("c", 13)); err != nil {
				t.Fatal(err)
			}
			check("a", "b", "c")
		})
	}
}

// The first function with a percentage begins with a right one, though no function had one before.
func TestFirstPercentage(t *testing.T) {
	b := newNode(t, "cuda", h200(), mechanismMPS, named("a", 30))
	b.turns()
	c := named("c", 13)
	c.Change = configs.ChangeShadow
	if err := b.add(c); err != nil {
		t.Fatal(err)
	}
	if share := b.instance("c", 0).pair.Share(); !slices.Contains(rightPercentages["NVIDIA H200"], share) {
		t.Errorf("it begins with %v %%", share)
	}
}

func TestPercentagesAscend(t *testing.T) {
	for gpu, steps := range rightPercentages {
		if !slices.IsSorted(steps) || len(slices.Compact(slices.Clone(steps))) != len(steps) || steps[0] <= 0 || steps[len(steps)-1] != 100 {
			t.Errorf("%s: %v", gpu, steps)
		}
	}
}
