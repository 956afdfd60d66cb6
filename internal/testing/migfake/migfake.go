// Package migfake replaces a machine's GPUs with MIG in tests.
package migfake

import (
	"fmt"
	"testing"

	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
)

// Machine is a mig.Session whose GPUs do not change. It records the steps.
type Machine struct {
	Has   []mig.GPU
	Taken []mig.Step
	Fail  int // number of the step that fails, from 1
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
		for _, s := range table.Sizes {
			profiles = append(profiles, mig.Profile{Name: s.Profile, Slices: s.GPCs, Size: s.Slots, Starts: s.Starts})
		}
		g := mig.Blank(1, product, profiles)[0]
		g.Index, g.UUID = i, fmt.Sprintf("GPU-%s-%d", name, i)
		m.Has = append(m.Has, g)
	}
	return m
}

// Open has the signature of a function that opens a driver.
func (m *Machine) Open() (mig.Session, error) { return m, nil }

// GPUs implements mig.Session.
func (m *Machine) GPUs() ([]mig.GPU, error) { return m.Has, nil }

// Take implements mig.Session.
func (m *Machine) Take(s mig.Step) error {
	if m.Fail--; m.Fail == 0 {
		return fmt.Errorf("%v: it does not please me", s)
	}
	m.Taken = append(m.Taken, s)
	return nil
}
