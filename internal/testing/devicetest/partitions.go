package devicetest

import (
	"bytes"
	"runtime"
	"slices"
	"testing"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
)

// RunPartitioned tests what a device.Partitioned must do in addition to Run. groupSMs are
// the sizes of its groups of multiprocessors, at least three.
func RunPartitioned(t *testing.T, open Open, groupSMs []int) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, p *partitioned)
	}{
		{"CountsTheMultiprocessorsOfItsGroups", counts},
		{"MovesIdleSlotsWhileOthersRun", moves},
		{"MovesToAllMultiprocessors", returns},
		{"RefusesGroupsThatThereAreNot", noGroups},
		{"Prioritize", prioritizes},
		{"PrioritizeRefuses", prioritizesNot},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.LockOSThread()
			t.Cleanup(runtime.UnlockOSThread) // after the device is closed, on its thread
			target, reqs := three(t, open)
			p, ok := target.Device.(device.Partitioned)
			if !ok {
				t.Fatal("the device has no partitions")
			}
			c.run(t, &partitioned{bench: target, p: p, reqs: reqs, groupSMs: groupSMs})
		})
	}
}

type partitioned struct {
	*bench
	p        device.Partitioned
	reqs     []device.Request
	groupSMs []int
}

func (p *partitioned) repartition(t *testing.T, slots, groups []int) {
	t.Helper()
	if err := p.p.Repartition(slots, groups); err != nil {
		t.Fatalf("move slots %v to %v: %v", slots, groups, err)
	}
}

func (p *partitioned) sms(t *testing.T, slot, want int) {
	t.Helper()
	if got, err := p.p.SMs(slot); got != want || err != nil {
		t.Errorf("slot %d has %d multiprocessors, %v; want %d", slot, got, err, want)
	}
}

// works runs the steps of a batch in a slot.
func (p *partitioned) works(t *testing.T, slot int) {
	t.Helper()
	p.begin(t, slot)
	p.finish(t, slot)
}

func (p *partitioned) begin(t *testing.T, slot int) {
	t.Helper()
	input := p.tensors[slot].Input
	if err := p.Gather(slot, input, p.reqs, make([]bool, 3)); err != nil {
		t.Fatalf("gather: %v", err)
	}
	if err := p.Fetch(slot, 3); err != nil {
		t.Fatalf("fetch: %v", err)
	}
}

func (p *partitioned) finish(t *testing.T, slot int) {
	t.Helper()
	p.wait(t, slot)
	if got, want := p.Read(p.tensors[slot].Input)[:48], floats(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12); !bytes.Equal(got, want) {
		t.Errorf("slot %d has\n%x, want\n%x", slot, got, want)
	}
}

func counts(t *testing.T, p *partitioned) {
	for _, groups := range [][]int{{0}, {1, 2}, {0, 2}, {len(p.groupSMs) - 1}} {
		p.repartition(t, []int{0, 1}, groups)
		want := 0
		for _, g := range groups {
			want += p.groupSMs[g]
		}
		p.sms(t, 0, want)
		p.sms(t, 1, want)
		p.works(t, 0)
		p.works(t, 1)
	}
}

func moves(t *testing.T, p *partitioned) {
	sets := [][]int{{0, 1}, {2, 3}}
	p.repartition(t, sets[0], []int{0})
	for round := range 10 {
		use, idle := sets[round%2], sets[(round+1)%2]
		before := []uintptr{p.p.Stream(use[0]), p.p.Stream(use[1])}
		p.begin(t, use[0])
		p.repartition(t, idle, []int{(round + 1) % len(p.groupSMs)})
		if got := []uintptr{p.p.Stream(use[0]), p.p.Stream(use[1])}; !slices.Equal(got, before) {
			t.Fatalf("streams of slots that were not moved are %x, want %x", got, before)
		}
		p.sms(t, use[0], p.groupSMs[round%len(p.groupSMs)])
		p.sms(t, idle[1], p.groupSMs[(round+1)%len(p.groupSMs)])
		p.finish(t, use[0])
		streams := []uintptr{p.p.Stream(0), p.p.Stream(1), p.p.Stream(2), p.p.Stream(3)}
		slices.Sort(streams)
		if len(slices.Compact(streams)) != device.Slots {
			t.Fatalf("slots share streams: %x", streams)
		}
		p.works(t, idle[0])
		p.works(t, idle[1])
	}
}

func returns(t *testing.T, p *partitioned) {
	all, err := p.p.SMs(0)
	must.OK(t, err)
	p.repartition(t, []int{0, 1}, []int{1})
	p.sms(t, 0, p.groupSMs[1])
	p.repartition(t, []int{0, 1}, nil)
	p.sms(t, 0, all)
	p.works(t, 0)
}

func noGroups(t *testing.T, p *partitioned) {
	p.repartition(t, []int{0, 1}, []int{1})
	for _, groups := range [][]int{{-1}, {len(p.groupSMs)}, {1, 1}, {2, 0}} {
		if err := p.p.Repartition([]int{0, 1}, groups); err == nil {
			t.Errorf("slots moved to %v of %d groups", groups, len(p.groupSMs))
		}
	}
	if err := p.p.Repartition([]int{0, device.Slots}, []int{1}); err == nil {
		t.Error("a slot moved that there is not")
	}
	p.sms(t, 0, p.groupSMs[1])
	p.works(t, 0)
}

// choose sets the level of a slot's batches, and checks the stream on which they are
// queued.
func (p *partitioned) choose(t *testing.T, slot int, level, own budget.Level) {
	t.Helper()
	must.OK(t, p.p.Choose(slot, level))
	if apart := p.p.BatchStream(slot) != p.p.Stream(slot); apart != (level != own) {
		t.Errorf("slot %d: batches of level %d are on stream %#x, those of level %d on %#x", slot, level, p.p.BatchStream(slot), own, p.p.Stream(slot))
	}
	p.works(t, slot)
}

func prioritizes(t *testing.T, p *partitioned) {
	const own, lower = budget.MaxLevel, budget.MaxLevel - 1
	p.choose(t, 0, budget.Demoted, budget.Demoted) // it has no level yet
	must.OK(t, p.p.Prioritize([]int{0, 1}, own))
	if p.p.BatchStream(0) != p.p.Stream(0) {
		t.Error("a slot that was prioritized is demoted")
	}
	// Run a demoted batch at the same time as one that is not.
	must.OK(t, p.p.Choose(0, budget.Demoted))
	p.begin(t, 0)
	p.choose(t, 1, own, own)
	p.finish(t, 0)
	use := []int{0, 1}
	for round := range 4 {
		for _, levels := range [][2]budget.Level{{budget.Demoted, own}, {own, budget.Demoted}, {lower, own}, {budget.Demoted, lower}, {lower, lower}, {own, own}} {
			p.choose(t, use[0], levels[0], own)
			p.choose(t, use[1], levels[1], own)
		}
		use = []int{2 - use[0], 3 - use[0]}
		p.repartition(t, use, []int{round % len(p.groupSMs)})
		if p.p.BatchStream(use[0]) != p.p.Stream(use[0]) {
			t.Error("a slot that was moved is demoted")
		}
	}
}

func prioritizesNot(t *testing.T, p *partitioned) {
	for name, prioritize := range map[string]func() error{
		"level 0":            func() error { return p.p.Prioritize([]int{0}, budget.Demoted) },
		"a level beyond all": func() error { return p.p.Prioritize([]int{0}, 100) },
		"slot 4":             func() error { return p.p.Prioritize([]int{0, device.Slots}, budget.MinLevel) },
	} {
		if err := prioritize(); err == nil {
			t.Errorf("%s: slots have priorities", name)
		}
	}
	p.choose(t, 0, budget.Demoted, budget.Demoted)
	must.OK(t, p.p.Prioritize([]int{0, 1}, budget.MinLevel))
	if err := p.p.Prioritize([]int{0, 1}, budget.MaxLevel); err == nil {
		t.Error("slots have another level")
	}
	p.choose(t, 0, budget.Demoted, budget.MinLevel)
}
