// Package migfake replaces a machine's GPUs with MIG in tests.
package migfake

import (
	"fmt"
	"slices"
	"testing"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
)

// Machine is a mig.Session without a driver. It refuses what a GPU refuses, records the steps, and
// numbers compute instances arbitrarily.
type Machine struct {
	Has   []mig.GPU
	Taken []mig.Step
	Fail  int // number of the step that fails, from 1
	next  int
}

// A100s returns a machine with that many uncut A100s, and an A30 after the first.
func A100s(t *testing.T, n int) *Machine {
	t.Helper()
	m := &Machine{}
	for i := range n + 1 {
		name, product := "a100-80", "NVIDIA A100-SXM4-80GB"
		if i == 1 {
			name, product = "a30", "NVIDIA A30"
		}
		table, err := plan.Lookup(name)
		must.OK(t, err)
		var profiles []mig.Profile
		for number, s := range table.Sizes {
			profiles = append(profiles, mig.Profile{Name: s.Profile, Number: number, Slices: s.GPCs, Size: s.Slots, Starts: s.Starts})
		}
		m.Has = append(m.Has, mig.GPU{Index: i, UUID: fmt.Sprintf("GPU-%s-%d", name, i), Name: product, MIG: true, Profiles: profiles})
	}
	return m
}

// Open has the signature of a function that opens a driver.
func (m *Machine) Open() (mig.Session, error) { return m, nil }

// GPUs implements mig.Session.
func (m *Machine) GPUs() (gpus []mig.GPU, err error) {
	for _, g := range m.Has {
		g.Instances = slices.Clone(g.Instances)
		gpus = append(gpus, g)
	}
	return gpus, nil
}

// Take implements mig.Session.
func (m *Machine) Take(s mig.Step) error {
	if m.Fail--; m.Fail == 0 {
		return fmt.Errorf("%v: it does not please me", s)
	}
	g := &m.Has[slices.IndexFunc(m.Has, func(g mig.GPU) bool { return g.UUID == s.GPU })]
	at := slices.IndexFunc(g.Instances, func(i mig.Instance) bool { return i.Start == s.Start && i.Profile == s.Profile })
	if (s.Op == mig.CreateInstance) != (at < 0) {
		return fmt.Errorf("%v: the GPU is cut into %v", s, g.Instances)
	}
	p := g.Profiles[slices.IndexFunc(g.Profiles, func(p mig.Profile) bool { return p.Name == s.Profile })]
	if s.Number != p.Number {
		return fmt.Errorf("%v: the profile has the number %d, not %d", s, p.Number, s.Number)
	}
	m.Taken = append(m.Taken, s)
	if s.Op == mig.CreateInstance {
		for _, i := range g.Instances {
			if s.Start < i.Start+i.Size && i.Start < s.Start+s.Size {
				return fmt.Errorf("%v: %s is in the way", s, i.Profile)
			}
		}
		g.Instances = append(g.Instances, mig.Instance{Profile: s.Profile, Slices: p.Slices, Start: s.Start, Size: p.Size})
		return nil
	}
	in := &g.Instances[at]
	switch {
	case s.Op == mig.CreateCompute:
		m.next += 7
		in.Compute = append(slices.Clone(in.Compute), mig.Compute{ID: m.next, Slices: s.Compute.Slices})
		in.UUID = fmt.Sprintf("MIG-%s-%d", g.UUID, m.next)
	case len(in.PIDs) > 0:
		return fmt.Errorf("%v: %w", s, mig.ErrInUse)
	case s.Op == mig.DestroyCompute:
		left := slices.DeleteFunc(slices.Clone(in.Compute), func(c mig.Compute) bool { return c.ID == s.Compute.ID })
		if len(left) == len(in.Compute) {
			return fmt.Errorf("%v: there is %v", s, in.Compute)
		}
		in.Compute, in.UUID = left, ""
	case len(in.Compute) > 0:
		return fmt.Errorf("%v: %w", s, mig.ErrInUse)
	default:
		g.Instances = slices.Delete(g.Instances, at, at+1)
	}
	return nil
}
