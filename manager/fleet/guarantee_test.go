package fleet

import (
	"cmp"
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
	b.sharing.decide(occasion{})
}

// sees lets the orchestrator report on one process.
func (b *nodeBed) sees(p control.ObservedProcess) {
	b.sharing.decideAt(b.clock, occasion{observed: &control.Observed{CPUs: 2, Processes: []control.ObservedProcess{p}}})
}

// receive lets an instance receive requests within one second.
func (b *nodeBed) receive(in *instance, requests int) {
	b.sharing.decideAt(b.clock, occasion{counts: true})
	b.traffic(in).arrivals += requests
	b.clock += time.Second
	b.sharing.decideAt(b.clock, occasion{counts: true})
}

// load lets an instance receive rate requests of that cost within one second.
func (b *nodeBed) load(name string, rate int, cost time.Duration) {
	in := b.instance(name, 0)
	r := in.reported.Report
	host := cmp.Or(in.f.worker, name)
	r.Generation, _ = b.serves(name)
	if r.Ran == 0 {
		r.CPUNanos = b.cpu[host]
		b.reports(in, r)
	}
	b.cpu[host] += int64(2*rate) * int64(cost) // of 2 CPUs
	r.Ran, r.CPUNanos, r.EachNanos = r.Ran+int64(rate), b.cpu[host], int64(cost)
	b.reports(in, r)
	b.receive(in, rate)
	b.sharing.decideAt(b.clock, occasion{interval: true})
	b.turn()
}

func TestGuarantee(t *testing.T) {
	for _, device := range []string{configs.DeviceCPU, "cuda"} {
		t.Run(device, func(t *testing.T) {
			b := newGuaranteedNode(t, device, objective("quick", 8*time.Millisecond), objective("slow", time.Second))
			generation := map[string]uint32{}
			for _, name := range []string{"quick", "slow"} {
				generation[name], _ = b.serves(name)
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

			// An overloaded function gets what the others leave unused, and no
			// guarantee changes.
			for range 10 {
				b.load("slow", 1000, 10*time.Millisecond)
				b.load("quick", 100, time.Millisecond)
			}
			quick, slow := b.wanted("quick")[control.Serve], b.wanted("slow")[control.Serve]
			if g := b.status("quick").Guarantee.Percent; g < 14 || g > 17 || math.Abs(g+slow.GuaranteePercent-90) > 1 {
				t.Errorf("guarantees %v %% and %v %%, want some 15 and the rest of 90", g, slow.GuaranteePercent)
			}
			if quick.GuaranteePercent < 22 || quick.GuaranteePercent > 28 {
				t.Errorf("quick may use %v %% at its level, want 1.6 times some 15", quick.GuaranteePercent)
			}
			if slow.BalanceNanos < int64(500*time.Millisecond) {
				t.Errorf("slow may save up %v, want its guarantee for an objective", time.Duration(slow.BalanceNanos))
			}
			for name, g := range generation {
				if now, _ := b.serves(name); now != g {
					t.Errorf("%s: generation %d serves, %d did before the load changed", name, now, g)
				}
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

func TestGuaranteeUse(t *testing.T) {
	b := newGuaranteedNode(t, configs.DeviceCPU, objective("a", time.Second))
	generation, _ := b.serves("a")
	in := b.instance("a", 0)
	seen := control.ObservedProcess{
		IF: "a", Generation: generation, State: control.Active, Batches: testCard().Batches,
		DeviceNanos: int64(600 * time.Millisecond), DemotedNanos: int64(150 * time.Millisecond),
	}
	b.sees(seen)
	b.sharing.decideAt(time.Second, occasion{interval: true})
	if s := b.status("a").Guarantee; s.UsePercent != 60 || s.DemotedPercent != 15 {
		t.Errorf("uses %v %%, %v %% demoted; want 60 and 15", s.UsePercent, s.DemotedPercent)
	} else if s.UsedSeconds != 0.6 || s.DemotedSeconds != 0.15 {
		t.Errorf("used %v s, %v s demoted; want 0.6 and 0.15", s.UsedSeconds, s.DemotedSeconds)
	}
	// A request that takes 10 ms of one CPU takes 5 ms of both.
	b.reports(in, control.Report{Generation: generation})
	b.reports(in, control.Report{Generation: generation, CPUNanos: int64(100 * time.Millisecond), Ran: 10})
	if got := b.status("a").Guarantee.CostMillis; got != 5 {
		t.Errorf("a request costs %v ms of the device, want 5", got)
	}
	b.receive(in, 10)
	b.sharing.decideAt(2*time.Second, occasion{interval: true})
	if s := b.status("a").Guarantee; s.UsePercent != 0 || math.Abs(s.NeedPercent-5*1.296) > 0.1 {
		t.Errorf("uses %v %% and needs %v %%, want 0 and 6.5: 10 per second of 5 ms and the margin of batches of 10/3", s.UsePercent, s.NeedPercent)
	}
}

// TestGuaranteeUseOverTime: reports of two functions that come late hold the use of more than the
// elapsed time.
func TestGuaranteeUseOverTime(t *testing.T) {
	b := newGuaranteedNode(t, configs.DeviceCPU, objective("a", time.Second), objective("b", time.Second))
	for name, used := range map[string]time.Duration{"a": 1200 * time.Millisecond, "b": 400 * time.Millisecond} {
		generation, _ := b.serves(name)
		b.sees(control.ObservedProcess{
			IF: name, Generation: generation, State: control.Active, Batches: testCard().Batches,
			DeviceNanos: int64(used), DemotedNanos: int64(used / 2),
		})
	}
	b.sharing.decideAt(time.Second, occasion{interval: true})
	if s := b.status("a").Guarantee; s.UsePercent != 75 || s.DemotedPercent != 37.5 {
		t.Errorf("a uses %v %%, %v %% demoted; want 75 and 37.5", s.UsePercent, s.DemotedPercent)
	}
	if s := b.status("b").Guarantee; s.UsePercent != 25 {
		t.Errorf("b uses %v %%, want 25", s.UsePercent)
	}
}

// A rise of the rate renews the guarantees at once.
func TestRise(t *testing.T) {
	b := newGuaranteedNode(t, "cuda", objective("a", 100*time.Millisecond), objective("b", 100*time.Millisecond))
	b.load("a", 10, 10*time.Millisecond)
	before := b.status("a").Guarantee.NeedPercent
	b.traffic(b.instance("a", 0)).arrivals += 40
	b.sharing.decideAt(b.clock+time.Second, occasion{counts: true})
	if after := b.status("a").Guarantee.NeedPercent; after < 2*before {
		t.Errorf("a needs %v %% of the device, and %v %% after its rate rose from 10 to 40 per second; want at least twice as much", before, after)
	}
}

// A process charges a batch when it begins, and counts its requests when it ends. A report
// between the two must not count the batch twice.
func TestGuaranteeUseWithinBatch(t *testing.T) {
	b := newGuaranteedNode(t, "cuda", objective("a", time.Second))
	generation, _ := b.serves("a")
	in := b.instance("a", 0)
	for _, r := range []control.Report{
		{DeviceNanos: int64(100 * time.Millisecond), Ran: 4},
		{DeviceNanos: int64(200 * time.Millisecond), Ran: 4},
		{DeviceNanos: int64(200 * time.Millisecond), Ran: 8},
	} {
		r.Generation = generation
		b.reports(in, r)
	}
	another := *in.pair.Card() // its model was replaced
	another.Version++
	in.pair.Replace(&another)
	in.pair.Active().Card = &another
	b.reports(in, control.Report{Generation: generation, DeviceNanos: int64(300 * time.Millisecond), DemotedNanos: int64(50 * time.Millisecond), Ran: 8})
	if s := b.status("a").Guarantee; math.Abs(s.UsedSeconds-0.3) > 1e-9 || math.Abs(s.DemotedSeconds-0.05) > 1e-9 {
		t.Errorf("used %v s, %v s demoted; want 0.3 and 0.05", s.UsedSeconds, s.DemotedSeconds)
	}
}

func TestInfeasibleStatus(t *testing.T) {
	b := newGuaranteedNode(t, configs.DeviceCPU, objective("a", 10*time.Millisecond))
	b.load("a", 10, 20*time.Millisecond)
	if s := b.status("a").Guarantee; !strings.Contains(s.Infeasible, "one batch takes 20ms") {
		t.Errorf("status %+v", s)
	}
}
