package cpushare

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/grouptest"
	"github.com/penstock/penstock/internal/testing/must"
)

// fakeCPU is a machine whose processes use as much CPU time as the test says.
type fakeCPU struct {
	now    int64
	used   map[int]time.Duration
	levels map[int]budget.Level
	refuse bool // no level can be written
}

type fakePriority struct {
	cpu *fakeCPU
	pid int
}

func (p fakePriority) Prioritize(l budget.Level) error {
	if p.cpu.refuse {
		return errors.New("read-only file system")
	}
	p.cpu.levels[p.pid] = l
	return nil
}

func (c *fakeCPU) budgets(cpus int) *budgets {
	b := newBudgets(cpus, zerolog.Nop())
	b.now = func() int64 { return c.now }
	b.used = func(pid int) (time.Duration, error) {
		if u, ok := c.used[pid]; ok {
			return u, nil
		}
		return 0, fmt.Errorf("no process %d", pid)
	}
	b.stop = make(chan struct{}) // the test calls sample itself
	return b
}

func TestBudgetsDemote(t *testing.T) {
	c := &fakeCPU{used: map[int]time.Duration{1: 0, 2: 0}, levels: map[int]budget.Level{}}
	b := c.budgets(2)
	greedy, modest := "greedy", "modest"
	for pid, k := range map[int]string{1: greedy, 2: modest} {
		must.OK(t, b.set(k, pid, control.Terms{GuaranteePercent: 45, Level: 3}, fakePriority{c, pid}))
	}
	atLevel := 0
	const looks = 1000
	for range looks {
		c.now += int64(budgetTick)
		c.used[1] += 2 * budgetTick         // both CPUs
		c.used[2] += 2 * budgetTick * 2 / 5 // 40 % of them
		b.sample()
		if c.levels[2] != 3 {
			t.Fatalf("a process within its guarantee is at level %d after %v", c.levels[2], time.Duration(c.now))
		}
		if c.levels[1] == 3 {
			atLevel++
		}
	}
	if part := float64(atLevel) / looks; part < 0.43 || part > 0.47 {
		t.Errorf("a process that uses everything is at its level for %.3f of the time, want its guarantee of 0.45", part)
	}
	total, demoted := b.spent(greedy)
	if total != looks*budgetTick || demoted < total/2 || demoted > total*6/10 {
		t.Errorf("spent %v, %v of it demoted, in %v", total, demoted, looks*budgetTick)
	}
	if total, demoted := b.spent(modest); total != looks*budgetTick*2/5 || demoted != 0 {
		t.Errorf("the other one spent %v, %v of it demoted", total, demoted)
	}
}

// A process without a guarantee, such as a shadow that loads, is demoted from the start.
func TestBudgetsDemoteShadow(t *testing.T) {
	c := &fakeCPU{used: map[int]time.Duration{1: 0}, levels: map[int]budget.Level{}}
	b := c.budgets(1)
	k := "shadow"
	if err := b.set(k, 1, control.Terms{Level: 4}, fakePriority{c, 1}); err != nil || c.levels[1] != budget.Demoted {
		t.Fatalf("level %d, %v; want demoted", c.levels[1], err)
	}
	must.OK(t, b.set(k, 1, control.Terms{GuaranteePercent: 50, Level: 4, BalanceNanos: int64(time.Millisecond)}, fakePriority{c, 1}))
	if c.now += int64(budgetTick); c.levels[1] != budget.Demoted {
		t.Fatal("promoted before it had a balance")
	}
	if b.sample(); c.levels[1] != 4 {
		t.Errorf("level %d one look after it got a guarantee, want 4", c.levels[1])
	}
}

// Whatever a process does, its time at its level is bounded: its guarantee, what it may
// save up, and the overdraft of one tick.
func TestBudgetsBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &fakeCPU{used: map[int]time.Duration{7: 0}, levels: map[int]budget.Level{}}
		cpus := rapid.IntRange(1, 64).Draw(t, "cpus")
		b := c.budgets(cpus)
		guarantee := rapid.Float64Range(0, 1).Draw(t, "guarantee")
		saved := time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "saved"))
		k := "f"
		must.OK(t, b.set(k, 7, control.Terms{GuaranteePercent: 100 * guarantee, BalanceNanos: int64(saved), Level: 1}, fakePriority{c, 7}))
		for range rapid.IntRange(1, 300).Draw(t, "looks") {
			c.now += int64(budgetTick)
			c.used[7] += time.Duration(rapid.Int64Range(0, int64(cpus)*int64(budgetTick)).Draw(t, "used"))
			b.sample()
			total, demoted := b.spent(k)
			most := guarantee*float64(c.now) + max(float64(saved), float64(budgetTick)) + float64(budgetTick)
			if charged := total - demoted; float64(charged) > most+1 {
				t.Fatalf("%v at its level in %v, want at most %v", charged, time.Duration(c.now), time.Duration(most))
			}
		}
	})
}

// If a level could not be written, a later sample writes it.
func TestBudgetsTryAgain(t *testing.T) {
	c := &fakeCPU{used: map[int]time.Duration{1: 0}, levels: map[int]budget.Level{}}
	b := c.budgets(1)
	k := "f"
	must.OK(t, b.set(k, 1, control.Terms{GuaranteePercent: 50, Level: 2}, fakePriority{c, 1}))
	c.refuse = true
	c.now, c.used[1] = c.now+int64(budgetTick), time.Second
	b.sample()
	if c.levels[1] != 2 {
		t.Fatalf("level %d, want 2: the other one was refused", c.levels[1])
	}
	c.refuse = false
	c.now += int64(budgetTick)
	if b.sample(); c.levels[1] != budget.Demoted {
		t.Errorf("level %d one look later, want it demoted", c.levels[1])
	}
}

func TestBudgetsForgetTheDead(t *testing.T) {
	c := &fakeCPU{used: map[int]time.Duration{1: 0}, levels: map[int]budget.Level{}}
	b := c.budgets(1)
	k := "f"
	must.OK(t, b.set(k, 1, control.Terms{GuaranteePercent: 100, Level: 1}, fakePriority{c, 1}))
	delete(c.used, 1)
	b.sample()
	b.remove(k)
	if total, _ := b.spent(k); total != 0 || b.stop != nil {
		t.Errorf("still there: spent %v, stop %v", total, b.stop)
	}
	if err := b.set(k, 1, control.Terms{GuaranteePercent: 100, Level: 1}, fakePriority{c, 1}); err == nil {
		t.Error("a process that has ended got a guarantee")
	}
}

// Two busy processes share one CPU. When one overdraws its guarantee, the other gets the
// CPU time that it needs.
func TestBudgetsOnThisMachine(t *testing.T) {
	c := quotas(t, 1)
	spin := func() (pid int, end func()) {
		return grouptest.Start(t, exec.Command("taskset", "-c", "0", "sh", "-c", "while :; do :; done"))
	}
	greedy, endGreedy := spin()
	modest, endModest := spin()
	set := func(name string, pid int, guarantee float64) {
		must.Get(c.Apply(name, pid, control.Terms{GuaranteePercent: 100 * guarantee, Level: 3}))(t)
	}
	// On a busy machine each gets a few percent of the CPU; greedy must overdraw its balance
	// with that.
	set("greedy", greedy, 0.01)
	set("modest", modest, 0.9)
	t.Cleanup(func() {
		endGreedy()
		endModest()
	})
	var got float64
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); {
		before := [2]time.Duration{cpuTime(t, greedy), cpuTime(t, modest)}
		time.Sleep(2 * time.Second)
		used := [2]time.Duration{cpuTime(t, greedy) - before[0], cpuTime(t, modest) - before[1]}
		if got = float64(used[0]) / float64(used[0]+used[1]); got < 0.3 {
			return
		}
	}
	t.Errorf("a process with a guarantee of 1 %% got %.0f %% of what both used", 100*got)
}

func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	used, err := cpuTimeOf(pid)
	must.OK(t, err)
	return used
}

// Without control groups, a process limits itself only while its balance is used up and
// the CPUs are busy.
func TestGovernorYields(t *testing.T) {
	c := &fakeCPU{used: map[int]time.Duration{1: 0, 2: 0}, levels: map[int]budget.Level{}}
	s, err := openGovernor(1, 0, zerolog.Nop())
	must.OK(t, err)
	g := s.(*governor)
	g.budgets.now = func() int64 { return c.now }
	g.budgets.used = func(pid int) (time.Duration, error) { return c.used[pid], nil }
	g.budgets.stop = make(chan struct{}) // the test calls sample itself
	greedy, modest := "greedy", "modest"
	for pid, k := range map[int]string{1: greedy, 2: modest} {
		if enforced, err := g.Apply(k, pid, control.Terms{GuaranteePercent: 45, Level: 1}); enforced || err != nil {
			t.Fatalf("enforced %v, %v", enforced, err)
		}
	}
	<-g.Yields() // the notification of apply
	look := func(greedyUses, modestUses time.Duration) {
		c.now += int64(budgetTick)
		c.used[1] += greedyUses
		c.used[2] += modestUses
		g.budgets.sample()
	}
	for range 100 {
		if look(budgetTick*8/10, 0); g.Yielding(greedy) {
			t.Fatal("a process yields though the CPU has time left")
		}
	}
	look(budgetTick*8/10, budgetTick*2/10)
	if !g.Yielding(greedy) || g.Yielding(modest) {
		t.Errorf("with a busy CPU the greedy process yields: %v, the other: %v", g.Yielding(greedy), g.Yielding(modest))
	}
	select {
	case <-g.Yields():
	default:
		t.Error("the change was not told")
	}
	for range 100 {
		look(0, budgetTick*4/10)
	}
	if g.Yielding(greedy) {
		t.Error("a process yields though its balance is full")
	}
}
