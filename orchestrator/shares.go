package orchestrator

import (
	"errors"
	"fmt"
	"sync"

	"github.com/rs/zerolog"
)

// shares holds processes to their part of the CPUs. Any goroutine may call it.
type shares interface {
	// mechanism is the name that control.Observed carries.
	mechanism() string
	// apply gives the process a percentage of the CPUs, now or anew. enforced is
	// false where the process has to hold it itself; err then says why, unless that
	// is the mechanism.
	apply(k key, pid int, percent float64) (enforced bool, err error)
	// remove forgets a process, which has ended.
	remove(k key) error
	// close removes all that was made. No process is left then.
	close() error
}

// The mechanisms, best first.
const (
	mechanismV2       = "cgroup-v2"
	mechanismV1       = "cgroup-v1"
	mechanismGovernor = "governor"
)

// Finding is what Probe found out about one mechanism.
type Finding struct {
	Mechanism string
	// Usable: it was tried, and held a quota.
	Usable bool
	// Why says why not, in one line.
	Why string
	// Mend is a command that would make it usable, where there is one.
	Mend string
}

// Probe tries each mechanism for CPU shares, best first: it makes a group,
// writes a quota, reads it back, and removes it. The first usable one is what Run
// takes; the governor always is.
func Probe() []Finding {
	var findings []Finding
	for _, m := range mechanisms {
		f := Finding{Mechanism: m.name, Usable: true}
		s, err := m.open(1, zerolog.Nop())
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
	open func(cpus int, log zerolog.Logger) (shares, error)
	mend func(error) string
}{
	{mechanismV2, openV2, mendV2},
	{mechanismV1, openV1, mendV1},
	{mechanismGovernor, openGovernor, func(error) string { return "" }},
}

// errUnknownMechanism is returned for a mechanism that is none of the three.
var errUnknownMechanism = errors.New("unknown mechanism")

// openShares opens the mechanism that is named, or the first that works.
func openShares(name string, cpus int, log zerolog.Logger) (shares, error) {
	for _, m := range mechanisms {
		if name != "" && name != m.name {
			continue
		}
		s, err := m.open(cpus, log)
		if err == nil {
			return s, nil
		}
		if name != "" {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		log.Debug().Err(err).Str("mechanism", m.name).Msg("no CPU quotas this way")
	}
	return nil, fmt.Errorf("%w %q: want %s, %s or %s", errUnknownMechanism, name, mechanismV2, mechanismV1, mechanismGovernor)
}

// governor leaves the share to libml's loop, which sleeps between batches.
type governor struct{}

func openGovernor(int, zerolog.Logger) (shares, error) { return governor{}, nil }

func (governor) mechanism() string                     { return mechanismGovernor }
func (governor) apply(key, int, float64) (bool, error) { return false, nil }
func (governor) remove(key) error                      { return nil }
func (governor) close() error                          { return nil }

// group is one control group, whatever the version.
type group interface {
	set(quota) error
	get() (quota, error)
	add(pid int) error
	remove() error
}

// tree is the group under which a version keeps one for each process.
type tree interface {
	mechanism() string
	child(name string) (group, error)
	remove() error
}

// cgroupShares are shares over either version.
type cgroupShares struct {
	tree tree
	cpus int

	mu     sync.Mutex
	groups map[key]group
}

// newCgroups takes t over, once it has really held a quota.
func newCgroups(t tree, cpus int) (*cgroupShares, error) {
	if err := try(t); err != nil {
		return nil, errors.Join(err, t.remove())
	}
	return &cgroupShares{tree: t, cpus: cpus, groups: map[key]group{}}, nil
}

// try makes a group, writes the finest quota there is, reads it back, and removes it.
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
	return errors.Join(err, g.remove())
}

func (c *cgroupShares) mechanism() string { return c.tree.mechanism() }

func (c *cgroupShares) apply(k key, pid int, percent float64) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g, ok := c.groups[k]; ok {
		if err := g.set(quotaFor(percent, c.cpus)); err != nil {
			return false, fmt.Errorf("write quota of %v: %w", k, err)
		}
		return true, nil
	}
	g, err := c.tree.child(fmt.Sprintf("%s-%d-%d", k.name, k.instance, k.generation))
	if err != nil {
		return false, fmt.Errorf("make group of %v: %w", k, err)
	}
	err = g.set(quotaFor(percent, c.cpus))
	if err == nil {
		err = g.add(pid)
	}
	if err != nil {
		return false, errors.Join(fmt.Errorf("limit %v: %w", k, err), g.remove())
	}
	c.groups[k] = g
	return true, nil
}

func (c *cgroupShares) remove(k key) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, ok := c.groups[k]
	if !ok {
		return nil
	}
	delete(c.groups, k)
	if err := g.remove(); err != nil {
		return fmt.Errorf("remove group of %v: %w", k, err)
	}
	return nil
}

func (c *cgroupShares) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for k, g := range c.groups {
		errs = append(errs, g.remove())
		delete(c.groups, k)
	}
	return errors.Join(append(errs, c.tree.remove())...)
}
