// Package cpushare holds the processes of functions to their part of the CPUs: by control groups of version 2 or 1,
// or, without them, by the processes themselves (the governor of libml).
package cpushare

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/orchestrator/cgroup"
)

// Shares holds processes to their part of the CPUs. A process has a unique name. Any goroutine may call its methods.
type Shares interface {
	// Mechanism is the name that control.Observed carries.
	Mechanism() string
	// Hold makes the group of a process that is about to start, with limits. cpu: the group will also have
	// the process's share. The error wraps cgroup.ErrNotEnforced for each limit that is not in force; the
	// result is valid nevertheless.
	Hold(name string, l cgroup.Limits, cpu bool) (cgroup.Held, error)
	// Apply holds the process to its terms, the first time or again. If enforced is false,
	// the process has to limit itself; err then gives the reason, unless the mechanism
	// always works so.
	Apply(name string, pid int, t control.Terms) (enforced bool, err error)
	// Spent returns the CPU time, on all CPUs, of a process with a guarantee, and the part
	// of it beyond the guarantee.
	Spent(name string) (total, demoted time.Duration)
	// Yields receives when Yielding has changed for some process: the process has to start
	// or stop limiting itself to its guarantee. It is nil if Yielding never changes.
	Yields() <-chan struct{}
	Yielding(name string) bool
	// Remove forgets a process that has ended.
	Remove(name string) error
	// Close removes everything that was made. The processes must have ended.
	Close() error
}

// The mechanisms, best first.
const (
	groupsV2 = "cgroup-v2"
	groupsV1 = "cgroup-v1"
	// Governor is the mechanism that needs no control groups.
	Governor = "governor"
)

// Finding is the result of Probe for one mechanism.
type Finding struct {
	Mechanism string
	// Usable: Probe tried the mechanism, and it held a quota.
	Usable bool
	// Why says, in one line, why the mechanism is not usable.
	Why string
	// Fix is a command that would make the mechanism usable; empty if there is none.
	Fix string
}

// Probe tries each mechanism, best first. It makes a group, writes a quota,
// reads it back, and removes the group. Open takes the first mechanism that is usable; the
// governor always is.
func Probe() []Finding {
	var findings []Finding
	for _, m := range mechanisms {
		f := Finding{Mechanism: m.name, Usable: true}
		s, err := m.open(1, os.Getpid(), zerolog.Nop())
		if err == nil {
			err = s.Close()
		}
		if err != nil {
			f.Usable, f.Why, f.Fix = false, err.Error(), m.fix(err)
		}
		findings = append(findings, f)
	}
	return findings
}

var mechanisms = []struct {
	name string
	open func(cpus, owner int, log zerolog.Logger) (Shares, error)
	fix  func(error) string
}{
	{groupsV2, inTree(groupsV2, cgroup.OpenV2), cgroup.FixV2},
	{groupsV1, inTree(groupsV1, cgroup.OpenV1), cgroup.FixV1},
	{Governor, openGovernor, func(error) string { return "" }},
}

// errUnknownMechanism is returned for a name other than those of the three mechanisms.
var errUnknownMechanism = errors.New("unknown mechanism")

// Open opens the named mechanism, or the first that works, for processes on these many CPUs. The groups carry the name
// of owner, the parent of the processes, so that another orchestrator finds them again.
func Open(mechanism string, cpus, owner int, log zerolog.Logger) (Shares, error) {
	for _, m := range mechanisms {
		if mechanism != "" && mechanism != m.name {
			continue
		}
		s, err := m.open(cpus, owner, log)
		if err == nil {
			return s, nil
		}
		if mechanism != "" {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		log.Debug().Err(err).Str("mechanism", m.name).Msg("mechanism for CPU quotas is not available")
	}
	return nil, fmt.Errorf("%w %q: want %s, %s or %s", errUnknownMechanism, mechanism, groupsV2, groupsV1, Governor)
}

// governor leaves limits to libml's loop, which sleeps between batches. A process has to
// limit itself to its guarantee while its balance is used up and the CPUs are busy.
type governor struct {
	budgets *budgets
	changed chan struct{} // holds one value
}

func openGovernor(cpus, _ int, log zerolog.Logger) (Shares, error) {
	g := &governor{budgets: newBudgets(cpus, log), changed: make(chan struct{}, 1)}
	g.budgets.onlyWhenBusy = true
	return g, nil
}

func (*governor) Mechanism() string { return Governor }

func (g *governor) Apply(name string, pid int, t control.Terms) (bool, error) {
	if t.Level == budget.Demoted {
		return false, nil
	}
	return false, g.budgets.set(name, pid, t, g)
}

func (*governor) Hold(string, cgroup.Limits, bool) (cgroup.Held, error) {
	return cgroup.Held{}, cgroup.NotEnforced(errors.New("no control groups"))
}

// Prioritize implements prioritizer.
func (g *governor) Prioritize(budget.Level) error {
	select {
	case g.changed <- struct{}{}:
	default: // a value is already waiting
	}
	return nil
}

func (g *governor) Yields() <-chan struct{}                          { return g.changed }
func (g *governor) Yielding(name string) bool                        { return g.budgets.demoted(name) }
func (g *governor) Spent(name string) (total, demoted time.Duration) { return g.budgets.spent(name) }
func (g *governor) Close() error                                     { return nil }

func (g *governor) Remove(name string) error {
	g.budgets.remove(name)
	return nil
}

// grouped implements Shares with control groups of either version.
type grouped struct {
	mechanism string
	tree      *cgroup.Tree
	cpus      int
	log       zerolog.Logger
	budgets   *budgets

	mu     sync.Mutex
	groups map[string]*cgroup.Group
	light  bool // a failure to write the tree's weight was logged
}

func inTree(mechanism string, open func(owner int, log zerolog.Logger) (*cgroup.Tree, error)) func(cpus, owner int, log zerolog.Logger) (Shares, error) {
	return func(cpus, owner int, log zerolog.Logger) (Shares, error) {
		tree, err := open(owner, log)
		if err != nil {
			return nil, err
		}
		return &grouped{mechanism: mechanism, tree: tree, cpus: cpus, log: log, budgets: newBudgets(cpus, log), groups: map[string]*cgroup.Group{}}, nil
	}
}

func (c *grouped) Mechanism() string { return c.mechanism }

func (c *grouped) Hold(name string, l cgroup.Limits, cpu bool) (cgroup.Held, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, held, err := c.tree.Hold(name, l, cpu)
	if g != nil {
		c.groups[name] = g
		c.weighLocked()
	}
	return held, err
}

func (c *grouped) Apply(name string, pid int, t control.Terms) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, exists := c.groups[name]
	var err error
	if !exists {
		if g, err = c.tree.Make(name, true); err != nil {
			return false, fmt.Errorf("make group of %s: %w", name, err)
		}
	}
	if t.Level == budget.Demoted {
		err = g.SetQuota(cgroup.QuotaFor(t.SharePercent, c.cpus))
	} else {
		err = c.budgets.set(name, pid, t, g)
	}
	if !exists {
		if err == nil {
			err = g.Add(pid)
		}
		if err != nil {
			c.budgets.remove(name)
			err = errors.Join(err, c.tree.Remove(name))
		}
	}
	if err != nil {
		return false, fmt.Errorf("limit %s: %w", name, err)
	}
	c.groups[name] = g
	c.weighLocked()
	return true, nil
}

// weighLocked lets the tree weigh as much as its processes would weigh without groups.
func (c *grouped) weighLocked() {
	if err := c.tree.Weigh(len(c.groups) * c.cpus); err != nil && !c.light {
		c.light = true
		c.log.Warn().Err(err).Msg("cannot set CPU weight; functions together get the CPU time of one process")
	}
}

func (c *grouped) Yields() <-chan struct{} { return nil }
func (c *grouped) Yielding(string) bool    { return false }

func (c *grouped) Spent(name string) (total, demoted time.Duration) { return c.budgets.spent(name) }

func (c *grouped) Remove(name string) error {
	c.budgets.remove(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.groups, name)
	if err := c.tree.Remove(name); err != nil {
		return fmt.Errorf("remove group of %s: %w", name, err)
	}
	return nil
}

func (c *grouped) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.groups {
		c.budgets.remove(name)
	}
	clear(c.groups)
	return c.tree.Close()
}
