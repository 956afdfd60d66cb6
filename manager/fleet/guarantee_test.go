package fleet

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/sharing"
)

// newNodeOn is newNode with the default policy, on CPUs or an H200.
func newNodeOn(t testing.TB, device string) *nodeBed {
	t.Helper()
	gpu, mechanism := h200(), sharing.MechanismMPS
	if device == configs.DeviceCPU {
		gpu, mechanism = nil, "cgroup-v2"
	}
	b := newNode(t, device, gpu, mechanism)
	b.cfg.Shares.Policy = configs.PolicyGuarantee
	return b
}

// newGuaranteedNode is newNodeOn with functions.
func newGuaranteedNode(t *testing.T, device string, functions ...configs.Function) *nodeBed {
	t.Helper()
	b := newNodeOn(t, device)
	for _, f := range functions {
		must.OK(t, b.add(f))
	}
	b.turns()
	return b
}

func objective(name string, slo time.Duration) configs.Function {
	return configs.Function{Name: name, Instances: 1, SLO: slo}
}

// wanted returns the desired processes of a function, by role.
func (b *nodeBed) wanted(name string) map[control.Role]control.DesiredProcess {
	all := map[control.Role]control.DesiredProcess{}
	for _, p := range b.told.Processes {
		if p.IF == name {
			all[p.Role] = p
		}
	}
	return all
}

// reports lets an instance's process report.
func (b *nodeBed) reports(in *instance, r control.Report) {
	in.report(r.Generation, r)
	b.devices[0].decide(occasion{})
}

func TestGuarantee(t *testing.T) {
	for _, device := range []string{configs.DeviceCPU, "cuda"} {
		t.Run(device, func(t *testing.T) {
			b := newGuaranteedNode(t, device, objective("quick", 8*time.Millisecond), objective("slow", time.Second))
			for _, name := range []string{"quick", "slow"} {
				all := b.wanted(name)
				serve, shadow := all[control.Serve], all[control.Shadow]
				if serve.GuaranteePercent != 45 || serve.SharePercent != 0 || len(serve.SMGroups) > 0 {
					t.Errorf("%s: wanted %+v, want a guarantee of 45 %% and no share", name, serve)
				}
				if shadow.Generation == 0 || shadow.GuaranteePercent != 0 || shadow.Level != serve.Level {
					t.Errorf("%s: shadow wanted %+v, want no guarantee before it serves", name, shadow)
				}
			}
			if q, s := b.wanted("quick")[control.Serve].Level, b.wanted("slow")[control.Serve].Level; q != budget.MaxLevel || s != budget.MinLevel {
				t.Errorf("levels %d and %d, want 5 and 1", q, s)
			}

			// A new function has a guarantee at once; a removed one frees its own.
			must.OK(t, b.add(objective("new", 20*time.Millisecond)))
			b.turn()
			if b.status("new").Guarantee.Percent == 0 {
				t.Error("a new function has no guarantee")
			}
			must.OK(t, b.remove("slow"))
			b.turns()
			sum := 0.0
			for _, name := range []string{"quick", "new"} {
				sum += b.status(name).Guarantee.Percent
			}
			if math.Abs(sum-90) > 2 {
				t.Errorf("the guarantees that are left add up to %v %%, want 90", sum)
			}
		})
	}
}

func TestGuaranteeByHand(t *testing.T) {
	byHand := objective("a", time.Second)
	byHand.SharePercent = 30
	b := newGuaranteedNode(t, configs.DeviceCPU, byHand, objective("b", time.Second))
	if got := b.wanted("a")[control.Serve].GuaranteePercent; got != 30 {
		t.Errorf("a has %v %%, its share_percent is 30", got)
	}
	if err := b.setShare("b", 80); err == nil || !strings.Contains(err.Error(), "110 % together") {
		t.Errorf("80 %% beside 30 %%: %v", err)
	}
	must.OK(t, b.setShare("b", 50))
	b.turn()
	if got := b.wanted("b")[control.Serve].GuaranteePercent; got != 50 {
		t.Errorf("b has %v %%, it was given 50", got)
	}
	if s := b.status("b"); s.Guarantee == nil || s.Guarantee.Percent != 50 || s.SharePercent != 50 {
		t.Errorf("status %+v, guarantee %+v", s.SharePercent, s.Guarantee)
	}
}

// A guarantee that was set by hand outlives the manager.
func TestGuaranteeIsRecorded(t *testing.T) {
	dir := t.TempDir()
	policy := func(b *nodeBed) { b.cfg.Shares.Policy = configs.PolicyGuarantee }
	functions := []configs.Function{objective("a", time.Second), objective("b", time.Second)}
	b := recordedNode(t, dir, "run", "digest", policy, functions...)
	must.OK(t, b.setShare("a", 20))
	b.Close()
	b = recordedNode(t, dir, "run", "digest", policy, functions...)
	if got := b.wanted("a")[control.Serve].GuaranteePercent; got != 20 {
		t.Errorf("a has %v %% after a restart of the manager, want 20", got)
	}
}
