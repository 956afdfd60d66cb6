package sharing

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
	"github.com/rs/zerolog"
)

// script drives a Decider with snapshots. Its actions change the snapshot as they would change a node.
type script struct {
	*testing.T
	Decider
	s                 Snapshot
	logs              []Log // of the last decide
	cfg               configs.Config
	each, aggregation time.Duration            // that a batch and the arrival of a request take
	cpu               map[string]time.Duration // of the process of a function or worker
}

// newScript has functions with one serving process each, on a GPU of 16 groups with MPS.
func newScript(t *testing.T, policy configs.Policy, functions ...configs.Function) *script {
	t.Helper()
	gpu := &control.GPU{UUID: "GPU-1", SMs: 128, GroupSMs: slices.Repeat([]int{8}, 16)}
	return newScriptOn(t, "cuda", onGPU(MechanismMPS, gpu), policy, functions...)
}

// onGPU is an orchestrator's report on a GPU.
func onGPU(mechanism string, gpu *control.GPU) *control.Observed {
	return &control.Observed{CPUs: 2, Devices: []control.ObservedDevice{{Device: "cuda", Mechanism: mechanism, GPU: gpu}}}
}

// newScriptOn is newScript on another device, as the orchestrator reports it.
func newScriptOn(t *testing.T, device string, o *control.Observed, policy configs.Policy, functions ...configs.Function) *script {
	t.Helper()
	x := &script{T: t, cfg: configs.Default(), each: time.Millisecond, cpu: map[string]time.Duration{}}
	x.cfg.Shares.Policy, x.cfg.Device = policy, device
	x.Decider = NewDecider(&x.cfg, device)
	x.s = Snapshot{Config: &x.cfg, Judged: map[*models.Card]Judged{}}
	for _, f := range functions {
		card := &models.Card{Name: f.Name, Model: f.Name, Batches: []int{1, 2, 4}}
		x.s.Functions = append(x.s.Functions, Function{Config: f, Objective: f.SLO, Instances: []Instance{{Card: card, Worker: f.Worker}}})
		x.s.Judged[card] = Judged{model: f.Name}
	}
	x.s.Observed = o
	x.decide()
	for i := range x.s.Functions {
		in := &x.s.Functions[i].Instances[0]
		in.Active, in.Last = 1, 1
		in.Processes = []Process{{Process: pair.Process{Run: pair.Run{Card: in.Card}, Generation: 1, Role: control.Serve, State: control.Active}, Worker: in.Worker}}
	}
	return x
}

func (x *script) function(name string) *Function {
	i := slices.IndexFunc(x.s.Functions, func(f Function) bool { return f.Config.Name == name })
	return &x.s.Functions[i]
}

func (x *script) instance(name string) *Instance { return &x.function(name).Instances[0] }

// decide decides about the snapshot, whose events then are over. It describes what is to be done, without logs and
// windows.
func (x *script) decide() (done []string) {
	x.logs = nil
	for _, a := range x.Decide(x.s) {
		switch a := a.(type) {
		case SetShare:
			x.s.Instance(a.ID).Share = a.Percent
			done = append(done, fmt.Sprintf("%v: share %v", a.ID, a.Percent))
		case SetGroups:
			in := x.s.Instance(a.ID)
			for i := range in.Processes {
				in.Processes[i].Groups = a.Groups
			}
			done = append(done, fmt.Sprintf("%v: groups %v", a.ID, a.Groups))
		case Log:
			x.logs = append(x.logs, a)
		case SetTerms:
			done = append(done, fmt.Sprintf("%v: level %d, %.0f %%", a.ID, a.Terms.Level, a.Terms.GuaranteePercent))
		case Refuse:
			done = append(done, fmt.Sprintf("%v: refuse %d", a.ID, a.Generation))
		case Excuse:
			done = append(done, fmt.Sprintf("%v: excuse %d", a.ID, a.Generation))
		case Kill:
			done = append(done, fmt.Sprintf("%v: kill %d", a.ID, a.Generation))
		case Renew:
			done = append(done, fmt.Sprintf("%v: renew", a.ID))
		case Judge:
			done = append(done, fmt.Sprintf("%s: right at %v: %v", a.Card.Name, a.Percent, a.Right))
		}
	}
	x.s.Observed, x.s.Counted, x.s.Interval = nil, false, false
	return done
}

// wants compares what is to be done.
func (x *script) wants(when string, got []string, want ...string) {
	x.Helper()
	if !slices.Equal(got, want) {
		x.Errorf("%s: %q, want %q", when, got, want)
	}
}

// interval ends an interval in which each of an instance's batches of 1 took tail.
func (x *script) interval(name string, tail time.Duration) []string {
	w := &datapath.Window{Aggregation: 400 * x.aggregation}
	for i := range 400 {
		inferred := int64(i+1) * int64(x.each)
		r := shm.Request{FirstFragment: inferred - int64(tail), Complete: inferred - int64(tail)}
		w.Arrive(r)
		w.Answer(r, shm.Result{Status: uint8(wire.StatusOK), Batch: 1, Dispatched: inferred - int64(x.each), Inferred: inferred}, inferred, 0)
	}
	x.s.Now += 5 * time.Second
	x.s.Interval, x.instance(name).Window = true, w
	return x.decide()
}

// intervals repeats interval until something is to be done, at most eight times.
func (x *script) intervals(name string, tail time.Duration) (done []string) {
	for range 8 {
		if done = x.interval(name, tail); len(done) > 0 {
			break
		}
	}
	return done
}

// observe lets the orchestrator report on processes.
func (x *script) observe(processes ...control.ObservedProcess) []string {
	x.s.Observed = onGPU(MechanismMPS, x.Device.GPU)
	for i := range processes {
		processes[i].Device = cmp.Or(processes[i].Device, x.Device.Name)
	}
	x.s.Observed.Processes = processes
	if x.s.Published != nil {
		x.s.Observed.AckSeq = x.s.Published.Seq
	}
	return x.decide()
}

func gsliced(name string, percent float64, change configs.Change) configs.Function {
	return configs.Function{Name: name, Instances: 1, SharePercent: percent, SLO: 50 * time.Millisecond, Change: change}
}

// A percentage that is too small becomes larger by a shadow. It is measured again when the shadow serves.
func TestTunedPercentage(t *testing.T) {
	x := newScript(t, configs.PolicyGSLICE, gsliced("a", 30, configs.ChangeShadow))
	x.wants("with the first snapshot of a known GPU", x.decide(), "a/0: share 30")
	x.instance("a").Processes[0].SharePercent = 30
	x.wants("when batches take too long", x.intervals("a", 75*time.Millisecond), "a/0: share 46")
	x.wants("until the shadow serves", x.intervals("a", 75*time.Millisecond))

	in := x.instance("a")
	in.Active, in.Last = 2, 2
	in.Processes = []Process{{Process: pair.Process{Run: pair.Run{Card: in.Card}, Generation: 2, Role: control.Serve, State: control.Active, SharePercent: 46}}}
	x.wants("once it serves, and batches still take too long", x.intervals("a", 75*time.Millisecond), "a/0: share 70")
}

// A share shrinks if batches have time to spare. A quota of CPU time holds fewer requests than run in the time that
// was measured.
func TestTunedQuota(t *testing.T) {
	for name, c := range map[string]struct {
		cpu  time.Duration // per request
		want string
	}{"time to spare": {0, "a/0: share 16"}, "no CPU time to spare": {12 * time.Millisecond, "a/0: share 48"}} {
		x := newCPUs(t, configs.PolicyGSLICE, gsliced("a", 40, configs.ChangeShadow))
		x.each = 5 * time.Millisecond
		x.decide()
		x.instance("a").Processes[0].SharePercent = 40
		x.report("a", 0, 0)
		x.report("a", 1, c.cpu/2)
		x.wants(name, x.intervals("a", 10*time.Millisecond), c.want)
	}
}

// A window without requests says nothing about a share.
func TestIdleShare(t *testing.T) {
	x := newCPUs(t, configs.PolicyGSLICE, gsliced("a", 40, configs.ChangeShadow))
	x.decide()
	x.instance("a").Processes[0].SharePercent = 40
	for _, passed := range slices.Repeat([]time.Duration{5 * time.Second, time.Millisecond}, 10) {
		x.s.Now += passed
		x.s.Interval, x.instance("a").Window = true, &datapath.Window{}
		x.wants("while it is idle", x.decide())
	}
	if o, known := x.members[0].measured.Observation(); known && o.Throughput != 0 {
		t.Errorf("%+v, want no throughput", o)
	}
}

// A request's deadline is earlier than its objective by the time reserved for the network.
func TestAggregationBound(t *testing.T) {
	for name, c := range map[string]struct {
		tail time.Duration
		want string
	}{"in time": {19_400 * time.Microsecond, ""}, "late by the way": {19_600 * time.Microsecond, "aggregation"}} {
		x := newCPUs(t, configs.PolicyGSLICE, gsliced("a", 40, configs.ChangeShadow))
		x.cfg.Transit, x.cfg.Shares.Tune, x.each, x.aggregation = 500*time.Microsecond, false, 5*time.Millisecond, 30*time.Millisecond
		x.decide()
		x.instance("a").Processes[0].SharePercent = 40
		x.intervals("a", c.tail)
		if got := x.status("a").Bound; got != c.want {
			t.Errorf("%s: bound by %q, want %q", name, got, c.want)
		}
	}
}

// A shadow that answers wrongly at its percentage does not count against its model, and another percentage is tried.
func TestRefusedShadow(t *testing.T) {
	x := newScript(t, configs.PolicyGSLICE, gsliced("a", 30, configs.ChangeShadow))
	x.decide()
	in := x.instance("a")
	in.Processes[0].SharePercent = 30
	x.wants("when batches take too long", x.intervals("a", 75*time.Millisecond), "a/0: share 46")

	in.Last, in.Changing = 2, true
	in.Processes = append(in.Processes, Process{Process: pair.Process{Run: pair.Run{Card: in.Card}, Generation: 2, Role: control.Serve, State: control.Linking, SharePercent: 46}})
	x.wants("when the shadow answers wrongly",
		x.observe(control.ObservedProcess{IF: "a", Generation: 2, State: control.Failed, WrongAnswers: true}),
		"a: right at 46: false", "a/0: share 48", "a/0: refuse 2")
	in.Processes, in.Changing = in.Processes[:1], false
	x.wants("afterwards", x.decide())
}

// A model that is right at no percentage that is left is refused, and its share stays.
func TestNoRightPercentage(t *testing.T) {
	x := newScript(t, configs.PolicyGSLICE, gsliced("a", 30, configs.ChangeShadow), gsliced("b", 30, configs.ChangeShadow))
	in := x.instance("a")
	wrong := slices.DeleteFunc(percentageSteps(128, 5), func(p float64) bool { return p == 30 || p == 100 })
	x.s.Judged[in.Card] = Judged{model: "a", Wrong: wrong}
	x.decide()
	in.Processes[0].SharePercent = 30
	x.wants("when the last one is wrong", x.observe(control.ObservedProcess{IF: "a", Generation: 1, State: control.Failed, WrongAnswers: true}),
		"a: right at 30: false", "a/0: refuse 1")
	if !slices.ContainsFunc(x.logs, func(l Log) bool { return l.ID.IF == "a" && l.Level == zerolog.ErrorLevel }) {
		t.Errorf("%+v, want an error about a", x.logs)
	}
}

// A manager that was restarted may not have room for a share that an operator had set.
func TestRestoredShare(t *testing.T) {
	x := newScript(t, configs.PolicyGSLICE, gsliced("a", 20, configs.ChangeShadow), gsliced("b", 30, configs.ChangeShadow))
	x.cfg.Shares.Tune, x.function("a").ByHand = false, 90
	x.wants("at first", x.decide(), "a/0: share 70", "b/0: share 30")
	if len(x.logs) != 1 || x.logs[0].ID.IF != "a" || x.logs[0].Level != zerolog.WarnLevel || x.logs[0].Fields["set_percent"] != 90.0 {
		t.Errorf("%+v, want a warning that a has less than 90 %%", x.logs)
	}
}

// The device lacks groups for all functions, not for the first instance of each.
func TestLogOfFunction(t *testing.T) {
	x := newScript(t, configs.PolicyGSLICE, gsliced("a", 20, configs.ChangePartition))
	x.s.Observed = onGPU(MechanismMPS, &control.GPU{UUID: "GPU-2", SMs: 128})
	x.decide()
	if !slices.ContainsFunc(x.logs, func(l Log) bool {
		return l.Level == zerolog.ErrorLevel && l.ID == gslice.ID{IF: "a", Instance: AllInstances}
	}) {
		t.Errorf("%+v, want an error about the function a", x.logs)
	}
}

// A function that needs more than its guarantee comes after others of its objective, until it needs less.
func TestDemotion(t *testing.T) {
	x := newScript(t, configs.PolicyGuarantee, objective("a", 20*time.Millisecond), objective("b", 20*time.Millisecond))
	x.wants("without measurements", x.decide(), "a/0: level 3, 45 %", "b/0: level 3, 45 %")
	level := func(name string) int { return x.status(name).Guarantee.Level }
	equal := level("a")
	run := func(rate int) (done []string) {
		for range 40 {
			x.s.Now += time.Second
			for name, n := range map[string]int{"a": rate, "b": 50} {
				in := x.instance(name)
				r := &in.Report
				r.Generation, r.Ran, r.EachNanos = 1, r.Ran+int64(n), int64(2*time.Millisecond)
				in.Arrivals += n
			}
			x.s.Counted, x.s.Interval = true, true
			done = append(done, x.decide()...)
		}
		return done
	}
	run(50)
	if a, b := level("a"), level("b"); a != equal || b != equal {
		t.Errorf("levels %d and %d, want %d while both need little", a, b, equal)
	}
	done := run(2000)
	if a, b := level("a"), level("b"); a != equal-1 || b != equal {
		t.Errorf("levels %d and %d, want a below b while it is overloaded", a, b)
	}
	at := func(done []string, level int) bool {
		return slices.ContainsFunc(done, func(s string) bool { return strings.HasPrefix(s, fmt.Sprintf("a/0: level %d,", level)) })
	}
	if !at(done, equal-1) {
		t.Errorf("terms %q, want one of a at level %d", done, equal-1)
	}
	done = run(50)
	if a, b := level("a"), level("b"); a != equal || b != equal || !at(done, equal) {
		t.Errorf("levels %d and %d, terms %q; want %d again", a, b, done, equal)
	}
}

// publish tells the Decider that the present groups were published.
func (x *script) publish() {
	o := &control.Desired{Seq: 1}
	if x.s.Published != nil {
		o.Seq = x.s.Published.Seq + 1
	}
	for _, f := range x.s.Functions {
		for _, q := range f.Instances[0].Processes {
			o.Processes = append(o.Processes, control.DesiredProcess{IF: f.Config.Name, Generation: q.Generation, Device: x.Device.Name, SMGroups: q.Groups})
		}
	}
	x.s.Published = o
}

// on is the report of a process that serves on groups.
func on(name string, groups ...int) control.ObservedProcess {
	return control.ObservedProcess{IF: name, Generation: 1, State: control.Active, SMGroups: groups, Batches: []int{1, 2, 4}}
}

// newGrouped has two functions that serve on their groups.
func newGrouped(t *testing.T) *script {
	t.Helper()
	x := newScript(t, configs.PolicyGSLICE, gsliced("a", 50, configs.ChangePartition), gsliced("b", 25, configs.ChangePartition))
	x.wants("at first", x.decide(), "a/0: share 50", "b/0: share 25",
		"a/0: groups [0 1 2 3 4 5 6 7]", "b/0: groups [12 13 14 15]")
	x.publish()
	x.wants("when both serve", x.observe(on("a", 0, 1, 2, 3, 4, 5, 6, 7), on("b", 12, 13, 14, 15)))
	return x
}

// A share that grows gets its neighbour's groups once the neighbour has left them.
func TestMovedGroups(t *testing.T) {
	x := newGrouped(t)
	for name, percent := range map[string]float64{"a": 25, "b": 75} {
		x.function(name).Edits++
		x.function(name).Config.SharePercent = percent
	}
	x.wants("after an edit", x.decide(), "a/0: share 25", "b/0: share 75", "a/0: groups [0 1 2 3]")
	x.publish()
	elsewhere := control.DesiredProcess{IF: "a", Instance: 1, Generation: 1, Device: "cuda:1", SMGroups: []int{4, 5}}
	x.s.Published.Processes = append(x.s.Published.Processes, elsewhere) // groups of another device
	x.wants("while a moves", x.observe(on("a", 0, 1, 2, 3, 4, 5, 6, 7), on("b", 12, 13, 14, 15)))
	x.wants("when a has left", x.observe(on("a", 0, 1, 2, 3), on("b", 12, 13, 14, 15)), "b/0: groups [4 5 6 7 8 9 10 11 12 13 14 15]")
}

// A process whose model does not run on its groups gets others.
func TestInfeasibleGroups(t *testing.T) {
	x := newScript(t, configs.PolicyGSLICE, gsliced("a", 5, configs.ChangePartition))
	x.wants("at first", x.decide(), "a/0: share 5", "a/0: groups [0]")
	x.publish()
	x.wants("when its model fails there", x.observe(control.ObservedProcess{IF: "a", Generation: 1, State: control.Failed, InfeasibleGroups: []int{0}}),
		"a/0: excuse 1", "a/0: groups [1]")
}

// TestMoveTimeout: a process has the whole time to move from the order on, from its hand-over on, and
// from its last batch size on.
func TestMoveTimeout(t *testing.T) {
	const long = 2 * MoveTimeout
	for name, c := range map[string]struct {
		growing        bool
		after, movable time.Duration
		killed         bool
	}{
		"before its time": {false, MoveTimeout - 1, 0, false},
		"after its time":  {false, MoveTimeout, 0, true},
		"movable later":   {false, long, long - MoveTimeout + 1, false},
		"movable since":   {false, long, long - MoveTimeout, true},
		"still growing":   {true, long, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			x := newGrouped(t)
			x.function("a").Edits++
			x.function("a").Config.SharePercent = 25
			x.wants("after an edit", x.decide(), "a/0: share 25", "a/0: groups [0 1 2 3]")
			x.publish()
			stays := on("a", 0, 1, 2, 3, 4, 5, 6, 7)
			stays.WarmingUp = c.growing
			x.wants("while a stays", x.observe(stays, on("b", 12, 13, 14, 15)))
			x.s.Running, x.instance("a").Movable = c.after, c.movable
			if got := x.decide(); slices.Contains(got, "a/0: kill 1") != c.killed || len(got) > 1 {
				t.Errorf("%q, want it killed: %v", got, c.killed)
			}
		})
	}
}

// Each set of groups that a process ever used costs memory until the process ends.
func TestManySets(t *testing.T) {
	x := newGrouped(t)
	q := &x.instance("a").Processes[0]
	home := q.Groups
	for i := range maxSets - 1 {
		q.Groups = []int{1000 + i}
		x.wants("on few sets", x.decide())
	}
	q.Groups = home
	x.wants("on a set that it had before", x.decide())
	q.Groups = []int{1000 + maxSets}
	x.wants("on too many", x.decide(), "a/0: renew")
	x.wants("afterwards", x.decide())
}

// A snapshot without a function ends its share, whatever else is in it.
func TestRemovedShare(t *testing.T) {
	x := newScript(t, configs.PolicyGSLICE, gsliced("a", 60, configs.ChangeShadow), gsliced("b", 0, configs.ChangeShadow))
	x.instance("b").Card.KneePercent = 90
	x.wants("at first", x.decide(), "a/0: share 40", "b/0: share 60")
	x.function("a").Removing = true
	x.wants("when a is being removed", x.decide(), "b/0: share 90")
	x.s.Functions = x.s.Functions[1:]
	x.wants("when a is gone", x.decide())
	if m := find(x.members, gslice.ID{IF: "a"}); m != nil {
		t.Errorf("%+v is remembered", m)
	}
}

// In overload the functions of the smallest needs are kept, and others are named once. A priority that is edited comes first.
func TestOverload(t *testing.T) {
	x := newScript(t, configs.PolicyGuarantee, configs.Function{Name: "a", SLO: 100 * time.Millisecond}, configs.Function{Name: "b", SLO: 100 * time.Millisecond})
	var logs []string
	// load lets each function receive requests of 20 ms for a second.
	load := func(a, b int) {
		x.s.Counted, x.s.Interval = true, true
		x.s.Now += time.Second
		for name, n := range map[string]int{"a": a, "b": b} {
			in := x.instance(name)
			in.Arrivals += n
			in.Report = control.Report{Generation: 1, Ran: in.Report.Ran + int64(n), EachNanos: int64(20 * time.Millisecond)}
		}
		for _, act := range x.Decide(x.s) {
			if l, ok := act.(Log); ok && strings.HasPrefix(l.Message, "objective is") {
				logs = append(logs, l.ID.IF+": "+l.Message)
			}
		}
	}
	expect := func(when string, kept, not string, want ...string) {
		t.Helper()
		status := map[string]*control.GuaranteeStatus{}
		for _, name := range []string{"a", "b"} {
			s := control.FunctionStatus{Name: name, Instances: make([]control.InstanceStatus, 1)}
			x.Status(&s)
			status[name] = s.Guarantee
		}
		if status[kept].Infeasible != "" || !strings.Contains(status[not].Infeasible, "and its guarantee is") {
			t.Errorf("%s: status of %s %+v, of %s %+v", when, kept, status[kept], not, status[not])
		}
		if !slices.Equal(logs, want) {
			t.Errorf("%s: logs %q, want %q", when, logs, want)
		}
		logs = nil
	}
	for range 6 {
		load(20, 24)
	}
	expect("overload", "a", "b", "b: objective is not guaranteed")
	if sum := x.NeedsPercent(); sum < 100 {
		t.Errorf("needs %v %% of the device, want over 100", sum)
	}
	for range 10 {
		load(21, 23)
	}
	expect("noise", "a", "b")
	x.function("b").Config.Priority = 1
	load(21, 23)
	expect("priority", "b", "a", "a: objective is not guaranteed", "b: objective is guaranteed")
}
