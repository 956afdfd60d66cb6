package cpushare

import (
	"errors"
	"os"
	"testing"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/grouptest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/orchestrator/cgroup"
)

// quotas opens the first mechanism, of either version, that can hold quotas on this
// machine.
func quotas(t *testing.T, cpus int) *grouped {
	t.Helper()
	grouptest.Check(t)
	s, err := Open("", cpus, os.Getpid(), zerolog.Nop())
	must.OK(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	c, ok := s.(*grouped)
	if !ok {
		t.Skipf("not on this machine: needs a writable cpu controller: %+v", Probe())
	}
	return c
}

func TestApply(t *testing.T) {
	const name = "face-0-1"
	c := quotas(t, 2)
	pid, end := grouptest.Sleeper(t)
	for _, percent := range []float64{30, 100, 75} {
		enforced, err := c.Apply(name, pid, control.Terms{SharePercent: percent})
		if err != nil || !enforced {
			t.Fatalf("%v %%: %v, %v", percent, enforced, err)
		}
		if got, err := c.groups[name].Quota(); got != cgroup.QuotaFor(percent, 2) || err != nil {
			t.Errorf("%v %%: the kernel has %v, %v", percent, got, err)
		}
	}
	end()
	for range 2 {
		if err := c.Remove(name); err != nil {
			t.Error(err)
		}
	}
	if enforced, err := c.Apply(name, pid, control.Terms{SharePercent: 30}); err == nil || enforced || len(c.groups) != 0 {
		t.Errorf("a process that has ended: %v, %v, groups %v", enforced, err, c.groups)
	}
}

func TestProbe(t *testing.T) {
	findings := Probe()
	if len(findings) != 3 || findings[2].Mechanism != Governor || !findings[2].Usable {
		t.Fatalf("found %+v", findings)
	}
	s, err := Open("", 1, os.Getpid(), zerolog.Nop())
	must.OK(t, err)
	defer s.Close()
	for _, f := range findings {
		if f.Usable {
			if f.Mechanism != s.Mechanism() {
				t.Errorf("Open takes %s, Probe found %+v", s.Mechanism(), findings)
			}
			return
		}
		if f.Why == "" {
			t.Errorf("%s is not usable, and nothing says why", f.Mechanism)
		}
	}
}

func TestOpenUnknownMechanism(t *testing.T) {
	if _, err := Open("magic", 1, os.Getpid(), zerolog.Nop()); !errors.Is(err, errUnknownMechanism) {
		t.Errorf("got %v", err)
	}
}
