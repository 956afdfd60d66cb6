package orchestrator

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
)

// shares holds processes to their part of the CPUs. Any goroutine may call its methods.
type shares interface {
	// mechanism is the name that control.Observed carries.
	mechanism() string
	// hold makes the group of a process that is about to start, with limits. cpu: the group will also have
	// the process's share. The error wraps errNotEnforced for each limit that is not in force; the
	// result is valid nevertheless.
	hold(k key, l Limits, cpu bool) (held, error)
	// apply holds the process to its terms, the first time or again. If enforced is false,
	// the process has to limit itself; err then gives the reason, unless the mechanism
	// always works so.
	apply(k key, pid int, t control.Terms) (enforced bool, err error)
	// spent returns the CPU time, on all CPUs, of a process with a guarantee, and the part
	// of it beyond the guarantee.
	spent(k key) (total, demoted time.Duration)
	// yields receives when yielding has changed for some process: the process has to start
	// or stop limiting itself to its guarantee. It is nil if yielding never changes.
	yields() <-chan struct{}
	yielding(k key) bool
	// remove forgets a process that has ended.
	remove(k key) error
	// close removes everything that was made. The processes must have ended.
	close() error
}

// The mechanisms, best first.
const (
	mechanismV2       = "cgroup-v2"
	mechanismV1       = "cgroup-v1"
	mechanismGovernor = "governor"
)

// Finding is the result of Probe for one mechanism.
type Finding struct {
	Mechanism string
	// Usable: Probe tried the mechanism, and it held a quota.
	Usable bool
	// Why says, in one line, why the mechanism is not usable.
	Why string
	// Mend is a command that would make the mechanism usable; empty if there is none.
	Mend string
}

// Probe tries each mechanism for CPU shares, best first. It makes a group, writes a quota,
// reads it back, and removes the group. Run takes the first mechanism that is usable; the
// governor always is.
func Probe() []Finding {
	var findings []Finding
	for _, m := range mechanisms {
		f := Finding{Mechanism: m.name, Usable: true}
		s, err := m.open(1, os.Getpid(), zerolog.Nop())
		if err == nil {
			err = s.close()
		}
		if err != nil {
			f.Usable, f.Why, f.Mend = false, err.Error(), m.mend(err)
		}
		findings = append(findings, f)
	}
	return findings
}

var mechanisms = []struct {
	name string
	open func(cpus, owner int, log zerolog.Logger) (shares, error)
	mend func(error) string
}{
	{mechanismV2, openV2, mendV2},
	{mechanismV1, openV1, mendV1},
	{mechanismGovernor, openGovernor, func(error) string { return "" }},
}

// errUnknownMechanism is returned for a name other than those of the three mechanisms.
var errUnknownMechanism = errors.New("unknown mechanism")

// openShares opens the named mechanism, or the first that works. The groups carry the name
// of owner, the parent of the processes, so that another orchestrator finds them again.
func openShares(name string, cpus, owner int, log zerolog.Logger) (shares, error) {
	for _, m := range mechanisms {
		if name != "" && name != m.name {
			continue
		}
		s, err := m.open(cpus, owner, log)
		if err == nil {
			return s, nil
		}
		if name != "" {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		log.Debug().Err(err).Str("mechanism", m.name).Msg("mechanism for CPU quotas is not available")
	}
	return nil, fmt.Errorf("%w %q: want %s, %s or %s", errUnknownMechanism, name, mechanismV2, mechanismV1, mechanismGovernor)
}

// governor leaves limits to libml's loop, which sleeps between batches. A process has to
// limit itself to its guarantee while its balance is used up and the CPUs are busy.
type governor struct {
	budgets *budgets
	changed chan struct{} // holds one value
}

func openGovernor(cpus, _ int, log zerolog.Logger) (shares, error) {
	g := &governor{budgets: newBudgets(cpus, log), changed: make(chan struct{}, 1)}
	g.budgets.onlyWhenBusy = true
	return g, nil
}

func (*governor) mechanism() string { return mechanismGovernor }

func (g *governor) apply(k key, pid int, t control.Terms) (bool, error) {
	if t.Level == budget.Demoted {
		return false, nil
	}
	return false, g.budgets.set(k, pid, t, g)
}

func (*governor) hold(key, Limits, bool) (held, error) {
	return held{}, fmt.Errorf("%s and %s are %w: no control groups", memoryKey, tasksKey, errNotEnforced)
}

func (g *governor) prioritize(budget.Level) error {
	select {
	case g.changed <- struct{}{}:
	default: // a value is already waiting
	}
	return nil
}

func (g *governor) yields() <-chan struct{}                    { return g.changed }
func (g *governor) yielding(k key) bool                        { return g.budgets.demoted(k) }
func (g *governor) spent(k key) (total, demoted time.Duration) { return g.budgets.spent(k) }

func (g *governor) remove(k key) error {
	g.budgets.remove(k)
	return nil
}

func (g *governor) close() error { return nil }

// group is one control group of either version.
type group interface {
	prioritizer
	set(quota) error
	get() (quota, error)
	add(pid int) error
	// hold sets limits, and says how a process joins.
	hold(Limits) (held, error)
	remove() error
}

// tree is the group that holds one group per process.
type tree interface {
	mechanism() string
	child(name string) (group, error)
	// aside makes a group for a process without a share. Such processes compete as if they were in one group.
	aside(name string) (group, error)
	// weigh gives the tree the weight of n ordinary processes per CPU.
	weigh(n int) error
	remove() error
}

// cgroupShares implements shares with either version.
type cgroupShares struct {
	tree    tree
	cpus    int
	log     zerolog.Logger
	budgets *budgets

	mu     sync.Mutex
	groups map[key]group
	light  bool // a failure to write the tree's weight was logged
}

// newCgroups takes ownership of t, after a test that t can hold a quota.
func newCgroups(t tree, cpus int, log zerolog.Logger) (*cgroupShares, error) {
	if err := try(t); err != nil {
		return nil, errors.Join(err, t.remove())
	}
	return &cgroupShares{tree: t, cpus: cpus, log: log, budgets: newBudgets(cpus, log), groups: map[key]group{}}, nil
}

// try makes a group, writes the finest possible quota, reads it back, and removes the group.
func try(t tree) error {
	g, err := t.child("probe")
	if err != nil {
		return err
	}
	want := quotaFor(30, 1)
	err = g.set(want)
	if err == nil {
		var got quota
		if got, err = g.get(); err == nil && got != want {
			err = fmt.Errorf("wrote a quota of %v in %v, read %v in %v", want.runtime, want.period, got.runtime, got.period)
		}
	}
	for _, level := range []budget.Level{budget.MaxLevel, budget.Demoted, budget.MinLevel} {
		if err == nil {
			err = g.prioritize(level)
		}
	}
	return errors.Join(err, g.remove())
}

func (c *cgroupShares) mechanism() string { return c.tree.mechanism() }

func (c *cgroupShares) hold(k key, l Limits, cpu bool) (held, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	make := c.tree.aside
	if cpu {
		make = c.tree.child
	}
	g, err := make(groupName(k))
	if err != nil {
		return held{}, fmt.Errorf("%s and %s are %w: make group of %v: %w", memoryKey, tasksKey, errNotEnforced, k, err)
	}
	c.groups[k] = g
	c.weighLocked()
	return g.hold(l)
}

func (c *cgroupShares) apply(k key, pid int, t control.Terms) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, exists := c.groups[k]
	if !exists {
		var err error
		if g, err = c.tree.child(groupName(k)); err != nil {
			return false, fmt.Errorf("make group of %v: %w", k, err)
		}
	}
	err := c.limit(k, pid, t, g)
	if err == nil && !exists {
		err = g.add(pid)
	}
	if err != nil && !exists {
		c.budgets.remove(k)
		err = errors.Join(err, g.remove())
	}
	if err != nil {
		return false, fmt.Errorf("limit %v: %w", k, err)
	}
	c.groups[k] = g
	c.weighLocked()
	return true, nil
}

// weighLocked keeps groups from reducing the functions' part of the machine. The tree weighs as much as
// its processes would weigh without groups.
func (c *cgroupShares) weighLocked() {
	if err := c.tree.weigh(len(c.groups) * c.cpus); err != nil && !c.light {
		c.light = true
		c.log.Warn().Err(err).Msg("cannot set CPU weight; functions together get the CPU time of one process")
	}
}

// limit writes a group's quota or level.
func (c *cgroupShares) limit(k key, pid int, t control.Terms, g group) error {
	if t.Level != budget.Demoted {
		return c.budgets.set(k, pid, t, g)
	}
	return g.set(quotaFor(t.SharePercent, c.cpus))
}

func (c *cgroupShares) yields() <-chan struct{} { return nil }
func (c *cgroupShares) yielding(key) bool       { return false }

func (c *cgroupShares) spent(k key) (total, demoted time.Duration) { return c.budgets.spent(k) }

func groupName(k key) string { return fmt.Sprintf("%s-%d-%d", k.name, k.instance, k.generation) }

func (c *cgroupShares) remove(k key) error {
	c.budgets.remove(k)
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if g, ok := c.groups[k]; ok {
		err = g.remove()
	} else {
		// Another orchestrator may have made the group. Opening it here makes it possible to
		// remove it.
		for _, open := range []func(string) (group, error){c.tree.child, c.tree.aside} {
			if g, failed := open(groupName(k)); failed == nil {
				err = errors.Join(err, g.remove())
			}
		}
	}
	delete(c.groups, k)
	if err != nil {
		return fmt.Errorf("remove group of %v: %w", k, err)
	}
	return nil
}

func (c *cgroupShares) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for k, g := range c.groups {
		c.budgets.remove(k)
		errs = append(errs, g.remove())
		delete(c.groups, k)
	}
	return errors.Join(append(errs, c.tree.remove())...)
}
