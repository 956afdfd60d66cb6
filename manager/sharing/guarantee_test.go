package sharing

import (
	"cmp"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/manager/policy/gslice"
)

func objective(name string, slo time.Duration) configs.Function {
	return configs.Function{Name: name, Instances: 1, SLO: slo}
}

// newCPUs is newScript on two CPUs.
func newCPUs(t *testing.T, policy configs.Policy, functions ...configs.Function) *script {
	t.Helper()
	return newScriptOn(t, configs.DeviceCPU, &control.Observed{CPUs: 2}, policy, functions...)
}

// status returns the status of a function.
func (x *script) status(name string) control.FunctionStatus {
	f := control.FunctionStatus{Name: name, Instances: make([]control.InstanceStatus, 1)}
	x.Status(&f)
	return f
}

// report lets the active process report that many more requests, each of that cost of the whole device.
func (x *script) report(name string, requests int, cost time.Duration) {
	in := x.instance(name)
	host, r := cmp.Or(in.Worker, name), &in.Report
	x.cpu[host] += 2 * time.Duration(requests) * cost
	r.Generation, r.Ran, r.EachNanos, r.CPUNanos = 1, r.Ran+int64(requests), int64(cost), int64(x.cpu[host])
	x.decide()
}

// second lets an instance receive and run requests in a second, with which an interval ends.
func (x *script) second(name string, requests int, cost time.Duration) {
	x.s.Counted = true
	x.report(name, 0, cost)
	x.report(name, requests, cost)
	x.instance(name).Arrivals += requests
	x.s.Now += time.Second
	x.s.Counted, x.s.Interval = true, true
	x.decide()
}

// used is the report on a process that has spent device time, a quarter of it beyond its guarantee.
func used(name string, spent time.Duration) control.ObservedProcess {
	p := on(name)
	p.DeviceNanos, p.DemotedNanos = int64(spent), int64(spent/4)
	return p
}

func TestGuaranteeUse(t *testing.T) {
	x := newCPUs(t, configs.PolicyGuarantee, objective("a", time.Second))
	x.observe(used("a", 600*time.Millisecond))
	x.s.Now, x.s.Interval = time.Second, true
	x.decide()
	if s := x.status("a").Guarantee; s.UsePercent != 60 || s.DemotedPercent != 15 || s.UsedSeconds != 0.6 || s.DemotedSeconds != 0.15 {
		t.Errorf("%+v, want a use of 60 %% and 0.6 s, 15 %% and 0.15 s of it demoted", s)
	}
	x.second("a", 10, 5*time.Millisecond)
	if s := x.status("a").Guarantee; s.CostMillis != 5 || s.UsePercent != 0 || math.Abs(s.NeedPercent-5*1.296) > 0.1 {
		t.Errorf("%+v, want no use and a need of 6.5 %%: 10 per second of 5 ms and the margin of batches of 10/3", s)
	}
	x.second("a", 10, 10*time.Second)
	if s := x.status("a").Guarantee; !strings.Contains(s.Infeasible, "one batch takes") {
		t.Errorf("%+v, want an infeasible objective", s)
	}
}

// Reports of two functions that come late hold the use of more than the elapsed time.
func TestGuaranteeUseOverTime(t *testing.T) {
	x := newCPUs(t, configs.PolicyGuarantee, objective("a", time.Second), objective("b", time.Second))
	x.observe(used("a", 1200*time.Millisecond), used("b", 400*time.Millisecond))
	x.s.Now, x.s.Interval = time.Second, true
	x.decide()
	if a, b := x.status("a").Guarantee, x.status("b").Guarantee; a.UsePercent != 75 || a.DemotedPercent != 18.75 || b.UsePercent != 25 {
		t.Errorf("a %+v, b %+v; want uses of 75 and 25 %%, 18.75 %% demoted", a, b)
	}
}

// A rise of the rate renews the guarantees at once.
func TestRise(t *testing.T) {
	x := newScript(t, configs.PolicyGuarantee, objective("a", 100*time.Millisecond), objective("b", 100*time.Millisecond))
	x.second("a", 10, 10*time.Millisecond)
	before := x.status("a").Guarantee.NeedPercent
	x.instance("a").Arrivals += 40
	x.s.Now += time.Second
	x.s.Counted = true
	x.decide()
	if after := x.status("a").Guarantee.NeedPercent; before == 0 || after < 2*before {
		t.Errorf("a needs %v %% of the device, and %v %% after its rate rose from 10 to 40 per second; want at least twice as much", before, after)
	}
}

// A process charges a batch when it begins, and counts its requests when it ends. A report between the two
// must not count the batch twice.
func TestGuaranteeUseWithinBatch(t *testing.T) {
	x := newScript(t, configs.PolicyGuarantee, objective("a", time.Second))
	in := x.instance("a")
	report := func(r control.Report) {
		in.Report = r
		in.Report.Generation = 1
		x.decide()
	}
	report(control.Report{DeviceNanos: int64(100 * time.Millisecond), Ran: 4})
	report(control.Report{DeviceNanos: int64(200 * time.Millisecond), Ran: 4})
	report(control.Report{DeviceNanos: int64(200 * time.Millisecond), Ran: 8})
	another := *in.Card // its model was replaced
	another.Version++
	in.Card, in.Processes[0].Card = &another, &another
	report(control.Report{DeviceNanos: int64(300 * time.Millisecond), DemotedNanos: int64(50 * time.Millisecond), Ran: 8})
	if s := x.status("a").Guarantee; math.Abs(s.UsedSeconds-0.3) > 1e-9 || math.Abs(s.DemotedSeconds-0.05) > 1e-9 {
		t.Errorf("used %v s, %v s demoted; want 0.3 and 0.05", s.UsedSeconds, s.DemotedSeconds)
	}
}

// All members of a worker have its guarantee. On a GPU each has the level of its objective.
func TestWorkerGuarantee(t *testing.T) {
	gpu := onGPU(MechanismMPS, &control.GPU{UUID: "GPU-1", SMs: 128})
	for device, c := range map[string]struct {
		o    *control.Observed
		slow budget.Level
	}{configs.DeviceCPU: {&control.Observed{CPUs: 2}, budget.MaxLevel}, "cuda": {gpu, budget.MinLevel}} {
		quick, slow := objective("quick", 8*time.Millisecond), objective("slow", time.Second)
		quick.Worker, slow.Worker = "w", "w"
		x := newScriptOn(t, device, c.o, configs.PolicyGuarantee, quick, slow)
		x.cfg.Workers = []configs.Worker{{Name: "w", SharePercent: 30}}
		for range 5 {
			x.second("slow", 20, 5*time.Millisecond)
			x.second("quick", 10, time.Millisecond)
		}
		a, b := find(x.members, gslice.ID{IF: "quick"}).entitled.terms["w"], find(x.members, gslice.ID{IF: "slow"}).entitled.terms["w"]
		if a.GuaranteePercent == 0 || a.GuaranteePercent != b.GuaranteePercent || a.Level != budget.MaxLevel || b.Level != c.slow {
			t.Errorf("%s: terms %+v and %+v, want the same guarantee, and levels %d and %d", device, a, b, budget.MaxLevel, c.slow)
		}
		// slow has batches of 4 and quick of 1, the mean of all requests is 3: a margin of 1.31.
		if s := x.status("quick").Guarantee; s.Percent != 30 || math.Abs(s.NeedPercent-100*(20*0.005+10*0.001)*1.31) > 0.2 {
			t.Errorf("%s: %+v, want the guarantee of 30 %% and the sum of what the members need", device, s)
		}
	}
}

// A process reports the CPU time of all members of its worker.
func TestWorkerCost(t *testing.T) {
	a, b := objective("a", time.Second), objective("b", time.Second)
	a.Worker, b.Worker = "w", "w"
	x := newCPUs(t, configs.PolicyGuarantee, a, b)
	x.cfg.Workers = []configs.Worker{{Name: "w", SharePercent: 30}}
	x.report("a", 0, 0)
	x.report("b", 0, 0)
	for range 200 { // 40 requests take 200 ms of the device
		x.cpu["w"] += 400 * time.Millisecond
		x.report("a", 30, 0)
		x.report("b", 10, 0)
	}
	for _, name := range []string{"a", "b"} {
		if got := x.status(name).Guarantee.CostMillis; math.Abs(got-5) > 0.5 {
			t.Errorf("%s costs %v ms per request, want the mean of 5", name, got)
		}
	}
}

// Without MPS, batches are as short as the tightest objective wants.
func TestBatchCaps(t *testing.T) {
	gpu := &control.GPU{UUID: "GPU-1", SMs: 128, Why: "MPS is not installed"}
	x := newScriptOn(t, "cuda", onGPU(MechanismTimeSlicing, gpu), configs.PolicyGuarantee,
		objective("quick", 10*time.Millisecond), objective("slow", time.Second))
	x.instance("slow").Report.Limit = 4
	load := func() {
		for range 3 {
			x.second("quick", 10, time.Millisecond)
			x.second("slow", 10000, 3*time.Millisecond)
		}
	}
	caps := func() [2]int {
		return [2]int{find(x.members, gslice.ID{IF: "quick"}).entitled.terms[""].MaxBatch, find(x.members, gslice.ID{IF: "slow"}).entitled.terms[""].MaxBatch}
	}
	load()
	if got := caps(); got != [2]int{0, 2} {
		t.Errorf("batches of quick and slow have up to %v requests, want no limit and 2: quick has 10 ms and takes 1 itself", got)
	}
	if s := x.status("quick").Guarantee; s.Unprotected != control.UnprotectedByDevice || s.Infeasible != "" {
		t.Errorf("status %+v", s)
	}
	x.Device.MPS = true
	load()
	if got := caps(); got != [2]int{} {
		t.Errorf("batches of quick and slow have up to %v requests with MPS, want no limit", got)
	}
}

// The status of a function on two devices adds up, and shows the worse of both, whichever comes first.
func TestStatusOfTwoDevices(t *testing.T) {
	gpu := newScript(t, configs.PolicyGuarantee, objective("a", 10*time.Millisecond))
	cpu := newCPUs(t, configs.PolicyGuarantee, objective("a", 10*time.Millisecond))
	cpu.instance("a").Number = 1
	for range 6 {
		gpu.second("a", 10, time.Millisecond)
		cpu.second("a", 10, 30*time.Millisecond) // each is late
	}
	on := func(deciders ...*script) control.FunctionStatus {
		f := control.FunctionStatus{Name: "a", Instances: []control.InstanceStatus{{Device: "cuda"}, {Device: "cpu"}}}
		for _, x := range deciders {
			x.Status(&f)
		}
		return f
	}
	first, second := on(gpu).Guarantee, on(cpu).Guarantee
	if first.Infeasible != "" || second.Infeasible == "" || first.CostMillis >= second.CostMillis || first.Percent == 0 {
		t.Fatalf("on the GPU %+v, on the CPU %+v", first, second)
	}
	for _, both := range []control.FunctionStatus{on(gpu, cpu), on(cpu, gpu)} {
		g := both.Guarantee
		if g.Infeasible != second.Infeasible || g.CostMillis != second.CostMillis || g.Level != min(first.Level, second.Level) ||
			both.SharePercent != first.Percent+second.Percent || g.UsePercent != first.UsePercent+second.UsePercent {
			t.Errorf("together %+v, want the sum and the worse of %+v and %+v", g, first, second)
		}
		if both.Instances[0].UsePercent != first.UsePercent || both.Instances[1].UsePercent != second.UsePercent {
			t.Errorf("instances %+v", both.Instances)
		}
	}

	x, y := newScript(t, configs.PolicyGSLICE, objective("a", time.Second)), newScript(t, configs.PolicyGSLICE, objective("a", time.Second))
	for _, s := range []*script{x, y} {
		s.cfg.Lab.Change = configs.ChangeNone
		s.decide()
	}
	if f := on(x, y); f.SharePercent != 200 {
		t.Errorf("without shares %v %% of two devices, want 200", f.SharePercent)
	}
}
