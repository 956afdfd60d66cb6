package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/internal/testing/migfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/plantest"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/change"
	"github.com/penstock/penstock/planner/pack"
)

// node is a node whose steps fail, and whose process is killed.
type node struct {
	*migfake.Node
	saved []byte
	// steps and saves count down to the one that fails; the process is killed in a save. lost: what it saved is lost, too.
	steps, saves int
	lost         bool
	reports      []string
}

var errKilled = errors.New("killed")

func newNode(t *testing.T, gpus int) *node { return &node{Node: migfake.NewNode(t, gpus)} }

func (n *node) observe() Machine {
	gpus, _ := n.GPUs()
	return Observe(n.Status(), gpus, true)
}

// withOther adds a CPU, and a function on it.
func (n *node) withOther() *node {
	n.Uncut = []control.DeviceStatus{{Name: "cpu"}}
	n.Runs["other"] = control.FunctionPlacement{Name: "other", Model: "m", Segments: []control.PlacedSegment{{Device: "cpu", Processes: 1}}}
	return n
}

func (n *node) place(ctx context.Context, order control.PlacementOrder) error {
	if n.steps--; n.steps == 0 {
		n.Refuse = "no memory"
	}
	return n.Place(ctx, order)
}

// Take implements mig.Session.
func (n *node) Take(s mig.Step) error {
	if n.steps--; n.steps == 0 {
		return fmt.Errorf("%v: it does not please me", s)
	}
	return n.Node.Take(s)
}

func (n *node) save(r *Record) (err error) {
	n.saves--
	if n.saves != 0 || !n.lost {
		n.saved, err = json.Marshal(r)
	}
	if n.saves == 0 {
		return errKilled
	}
	return err
}

// finish is a new process that finishes what is saved.
func (n *node) finish() error {
	var r Record
	if err := json.Unmarshal(n.saved, &r); err != nil {
		return err
	}
	return r.Finish(context.Background(), Host{MIG: n, Place: n.place, Save: n.save, Report: func(i, all int, what string) {
		n.reports = append(n.reports, fmt.Sprintf("%d/%d %s", i, all, what))
	}})
}

// begin carries out a plan up to the first failure, as a change of what is saved.
func (n *node) begin(pl *plan.Plan, c *change.Change) error {
	var r Record
	if n.saved != nil {
		if err := json.Unmarshal(n.saved, &r); err != nil {
			return err
		}
	}
	if err := r.Begin(n.observe(), pl, c); err != nil {
		return err
	}
	n.saved, _ = json.Marshal(r)
	return n.finish()
}

// state is what an operator sees, without ids.
func (n *node) state() string {
	m := n.observe()
	var lines []string
	for _, g := range m.GPUs {
		for _, in := range g.Instances {
			lines = append(lines, fmt.Sprintf("%s %s at %d in %v", g.UUID, in.Profile, in.Start, len(in.Compute)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Functions)) {
		lines = append(lines, fmt.Sprintf("%+v", m.Functions[name]))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func made(t *testing.T, p *plan.Problem) *plan.Plan {
	t.Helper()
	pl, err := pack.New().Plan(p)
	must.OK(t, err)
	return pl
}

// TestScenario carries out the paper's scenario S2 on a node with other functions and instances.
func TestScenario(t *testing.T) {
	n := newNode(t, 3).withOther()
	pl := made(t, plantest.Scenario(t, "S2"))
	n.Has[0].Instances = []mig.Instance{{ID: 5, Profile: "7g.80gb", Slices: 7, Size: 8, Compute: []mig.Compute{{ID: 3, Slices: 3}, {ID: 4, Slices: 4}}}}
	must.OK(t, n.begin(pl, nil))
	processes := map[string]int{}
	for _, s := range pl.Segments {
		processes[s.Service] += s.Processes
	}
	for _, s := range pl.Services {
		f := n.Runs[s.Service]
		for _, g := range f.Segments {
			processes[s.Service] -= g.Processes
		}
		if processes[s.Service] != 0 || f.Model != s.Model || f.SLO != time.Duration(s.SLOMS*1e6) || f.Segments[0].SharePercent != 0 {
			t.Errorf("%s: %+v", s.Service, f)
		}
	}
	instances := 0
	for _, g := range n.Has {
		instances += len(g.Instances)
	}
	if instances != len(pl.Segments) || len(n.Runs) != len(pl.Services) {
		t.Errorf("%d instances, %d functions:\n%s", instances, len(n.Runs), n.state())
	}
	if !strings.HasSuffix(n.reports[len(n.reports)-1], "remove other") {
		t.Errorf("%q", n.reports)
	}
	var r Record
	must.OK(t, json.Unmarshal(n.saved, &r))
	if !r.Runs(n.observe()) || r.Next != nil {
		t.Errorf("the node does not run %+v", r)
	}
	c, err := change.From(r.Plan, plantest.Scenario(t, "S2"))
	must.OK(t, err)
	if must.OK(t, r.Begin(n.observe(), c.Plan, c)); len(r.Next.Steps) != 0 {
		t.Errorf("a second time: %v", r.Next.Steps)
	}
	delete(n.Runs, pl.Services[0].Service)
	if r.Runs(n.observe()) {
		t.Error("runs the plan without a function")
	}
}

// crowded returns a plan of a full GPU, and a change in which a replaces four small segments by a
// large one in their place, while b stays. Each of the four needs a shadow on another GPU.
func crowded(t *testing.T) (old *plan.Plan, c *change.Change) {
	t.Helper()
	gpu, err := plan.Lookup("a100-80")
	must.OK(t, err)
	slow := plan.Point{GPCs: 1, Batch: 8, Processes: 1, ThroughputRPS: 100, LatencyMS: 80}
	other := plan.Point{GPCs: 3, Batch: 8, Processes: 1, ThroughputRPS: 160, LatencyMS: 50}
	quick := plan.Point{GPCs: 4, Batch: 8, Processes: 2, ThroughputRPS: 800, LatencyMS: 20}
	p := &plan.Problem{GPU: gpu, Profiles: map[string]map[string]plan.Profile{gpu.Name: {"m": {Model: "m", GPU: gpu.Name, Points: []plan.Point{slow, other, quick}}}},
		Services: []plan.Service{{Name: "a", Model: "m", RateRPS: 390, SLOMS: 200}, {Name: "b", Model: "m", RateRPS: 150, SLOMS: 200}}}
	segments := []plan.Segment{plan.SegmentOf(0, gpu, 4, p.Services[1], other)}
	for slot := range 4 {
		segments = append(segments, plan.SegmentOf(0, gpu, slot, p.Services[0], slow))
	}
	old = plan.New(p, "penstock", segments)
	now := *p
	now.Services = slices.Clone(p.Services)
	now.Services[0].RateRPS = 790
	c, err = change.From(old, &now)
	must.OK(t, err)
	return old, c
}

// cases are changes to carry out: a first plan, and one with shadows.
func cases(t *testing.T) map[string]func() (*node, *plan.Plan, *change.Change) {
	first := made(t, plantest.Scenario(t, "S1"))
	old, c := crowded(t)
	return map[string]func() (*node, *plan.Plan, *change.Change){
		"first": func() (*node, *plan.Plan, *change.Change) {
			n := newNode(t, 2).withOther()
			n.Has[0].Instances = []mig.Instance{{ID: 5, Profile: "3g.40gb", Slices: 3, Size: 4, Compute: []mig.Compute{{ID: 3, Slices: 1}, {ID: 4, Slices: 2}}}}
			return n, first, nil
		},
		"change": func() (*node, *plan.Plan, *change.Change) {
			n := newNode(t, 2)
			must.OK(t, n.begin(old, nil))
			n.reports = nil
			return n, c.Plan, c
		},
	}
}

func TestChangeOrder(t *testing.T) {
	n, pl, c := cases(t)["change"]()
	must.OK(t, n.begin(pl, c))
	for i, want := range []string{"create 1g.10gb in slot 0 of GPU 2", "create a compute", "place a: 1 in GPU-a100-80-0/0, 1 in GPU-a100-80-0/1, 1 in GPU-a100-80-0/2, 1 in GPU-a100-80-0/3, 1 in GPU-a100-80-2/0",
		"place a: 1 in GPU-a100-80-0/1, ", "destroy compute", "destroy 1g.10gb in slot 0 of GPU 0"} {
		if !strings.HasPrefix(n.reports[i], fmt.Sprintf("%d/%d %s", i+1, len(n.reports), want)) {
			t.Errorf("step %q, want %s", n.reports[i], want)
		}
	}
	if len(n.Has[0].Instances) != 2 || len(n.Has[2].Instances) != 0 || !reflect.DeepEqual(n.observe().Functions["a"].Segments, []control.PlacedSegment{{Device: "GPU-a100-80-0/0", Processes: 2}}) {
		t.Errorf("runs\n%s", n.state())
	}
}

// TestResume kills the process after every step, before and after it has saved that. TestUndo kills it
// on the way back, too.
func TestResume(t *testing.T) {
	for name, start := range cases(t) {
		n, pl, c := start()
		must.OK(t, n.begin(pl, c))
		want, all := n.state(), len(n.reports)
		for at := 1; at <= all+1; at++ {
			for _, lost := range []bool{false, true} {
				n, pl, c := start()
				n.saves, n.lost = at, lost
				if err := n.begin(pl, c); !errors.Is(err, errKilled) {
					t.Fatalf("%s: %v, want a kill in save %d", name, err, at)
				}
				if err := n.finish(); err != nil || n.state() != want {
					t.Errorf("%s: killed in save %d, lost %t: %v\n%s\nwant\n%s", name, at, lost, err, n.state(), want)
				}
			}
		}
	}
}

func TestUndo(t *testing.T) {
	for name, start := range cases(t) {
		n, pl, c := start()
		want := n.state()
		must.OK(t, n.begin(pl, c))
		all := len(n.reports)
		for at := 1; at <= all; at++ {
			for _, kill := range []int{0, 1, 2, at/2 + 1, at + 1} {
				n, pl, c := start()
				n.steps = at
				if kill > 0 {
					n.saves, n.lost = at+kill, kill%2 == 0
				}
				err := n.begin(pl, c)
				if errors.Is(err, errKilled) != (kill > 0) {
					t.Fatalf("%s: %v, want a kill: %t", name, err, kill > 0)
				}
				if kill > 0 {
					err = n.finish()
				}
				failed := err != nil && strings.Contains(err.Error(), fmt.Sprintf("step %d of %d: ", at, all)) && strings.HasSuffix(err.Error(), "; everything is as before")
				if !failed && (kill == 0 || err != nil) || n.state() != want && err != nil {
					t.Errorf("%s: step %d fails, killed in save %d of the way back: %v\n%s\nwant\n%s", name, at, kill, err, n.state(), want)
				}
			}
		}
	}
}

func TestInterrupted(t *testing.T) {
	n, pl, c := cases(t)["first"]()
	n.saves = 3
	if err := n.begin(pl, c); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	var r Record
	must.OK(t, json.Unmarshal(n.saved, &r))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	before := n.state()
	r.Next.Steps = r.Next.Steps[len(r.Next.Steps)-1:] // an order
	r.Next.Done = 0
	err := r.Finish(ctx, Host{Place: func(ctx context.Context, _ control.PlacementOrder) error { return ctx.Err() }, Save: n.save})
	if err == nil || !strings.Contains(err.Error(), "interrupted after 0 of 1 steps; the same command continues") || n.state() != before || r.Next == nil {
		t.Errorf("%v", err)
	}
}

// TestKinds has all kinds of segments in one plan.
func TestKinds(t *testing.T) {
	n := newNode(t, 1)
	h200 := func(uuid string) *control.GPU { return &control.GPU{UUID: uuid, Name: "NVIDIA H200"} }
	n.Uncut = []control.DeviceStatus{{Name: "cpu"}, {Name: "cuda:1", GPU: h200("GPU-w"), Lost: "unplugged"}, {Name: "cuda:2", GPU: h200("GPU-x")}, {Name: "cuda:3", GPU: h200("GPU-y")}}
	pl := &plan.Plan{Services: []plan.Assigned{{Service: "s", Model: "m", SLOMS: 20}}}
	table, err := plan.Lookup("h200-141-mps")
	must.OK(t, err)
	cpu, err := plan.Lookup("cpu")
	must.OK(t, err)
	pl.Segments = []plan.Segment{
		{GPU: 0, GPUModel: "a100-80", GPCs: 2, Service: "s", Processes: 3},
		{GPU: 1, GPUModel: table.Name, GPCs: table.GPCs / 3, Service: "s", Processes: 2},
		{GPU: 1, GPUModel: table.Name, GPCs: table.GPCs / 3, Slot: table.GPCs / 3, SharePercent: 31, Service: "s", Processes: 1},
		{GPU: 2, GPUModel: table.Name, GPCs: table.GPCs, Service: "s", Processes: 4},
		{GPU: 3, GPUModel: "cpu", GPCs: cpu.GPCs, Service: "s", Processes: 1},
	}
	must.OK(t, n.begin(pl, nil))
	want := []control.PlacedSegment{{Device: "GPU-a100-80-0/0", Processes: 3}, {Device: "cpu", Processes: 1},
		{Device: "cuda:2", Processes: 3, SharePercent: 21.444444}, {Device: "cuda:3", Processes: 4}}
	if got := n.observe().Functions["s"].Segments; !slices.Equal(got, want) {
		t.Errorf("%+v\nwant\n%+v", got, want)
	}
	fleet := fmt.Sprint(new(n.observe()).Fleet())
	if fleet != "[1 × a100-80 1 × a30 1 × cpu 2 × h200-141-mps]" {
		t.Error(fleet)
	}
}

func TestCannot(t *testing.T) {
	on := func(model string, gpcs, processes int) *plan.Plan {
		return &plan.Plan{Services: []plan.Assigned{{Service: "s", Model: "m", SLOMS: 20}},
			Segments: []plan.Segment{{GPUModel: model, GPCs: gpcs, Service: "s", Processes: processes}}}
	}
	two := on("a100-80", 7, 1)
	two.Segments = append(two.Segments, plan.Segment{GPU: 1, GPUModel: "a100-80", GPCs: 7, Service: "s", Processes: 1})
	named := on("a100-80", 7, 1)
	named.Services[0].Service = "No Name"
	for _, c := range []struct {
		name   string
		change func(*node, *Machine)
		plan   *plan.Plan
		want   string
	}{
		{"another GPU", nil, on("h200-141", 7, 1), "GPU 0 of the plan is missing: want another h200-141 with MIG, and there is none; "},
		{"a GPU without MIG", nil, on("a100-80-mps", 7, 1), "want another a100-80-mps, and there is none; "},
		{"too few", nil, two, "GPU 1 of the plan is missing: want another a100-80 with MIG, and there is GPU-a100-80-0; "},
		{"MIG off", func(n *node, _ *Machine) { n.Has[0].MIG = false }, on("a100-80", 7, 1), "MIG mode is off: turn on MIG mode of GPU 0"},
		{"not allowed", func(_ *node, m *Machine) { m.Manage = false }, on("a100-80", 7, 1), "create 7g.80gb in slots 0–7 of GPU 0 (GPU-a100-80-0): the node's configuration does not allow it; add `mig: manage`"},
		{"in use", func(n *node, _ *Machine) {
			n.Has[0].Instances = []mig.Instance{{Profile: "1g.10gb", Start: 2, Size: 1, Slices: 1, PIDs: []int{4711}, Compute: []mig.Compute{{Slices: 1}}}}
		}, on("a100-80", 7, 1), "process 4711 runs in 1g.10gb at slot 2 of GPU 0 (GPU-a100-80-0), where the plan has s: end it"},
		{"another model", func(_ *node, m *Machine) {
			m.Functions["s"] = control.FunctionPlacement{Name: "s", Model: "old", Segments: []control.PlacedSegment{{Device: "cpu", Processes: 1}}}
		}, on("a100-80", 7, 1), "function s runs model old, and the plan has m: run `penstock if replace` first, or `penstock if remove s`"},
		{"another objective", func(_ *node, m *Machine) {
			m.Functions["s"] = control.FunctionPlacement{Name: "s", Model: "m", SLO: time.Second, Segments: []control.PlacedSegment{{Device: "cpu", Processes: 1}}}
		}, on("a100-80", 7, 1), "function s has the objective 1s, and the plan has 20ms: change its `slo`, or run `penstock if remove s` first"},
		{"no function's name", nil, named, `service "No Name": want a function's name`},
		{"processes", nil, on("a100-80", 7, 65), `service "s" needs 65 processes: want at most 64`},
	} {
		n := newNode(t, 1)
		m := n.observe()
		if c.change != nil {
			c.change(n, &m)
			m.GPUs = n.Has
		}
		var r Record
		if err := r.Begin(m, c.plan, nil); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || r.Next != nil {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
	// Instances that exist need no permission.
	n := newNode(t, 1)
	must.OK(t, n.begin(on("a100-80", 7, 1), nil))
	m := n.observe()
	m.Manage, m.Functions = false, map[string]control.FunctionPlacement{}
	r := new(Record)
	if r.Begin(m, on("a100-80", 7, 2), nil) != nil || len(r.Next.Steps) != 1 {
		t.Fatalf("%+v", r.Next)
	}
	// The node's own name of a device may be the first digits of its UUID.
	var got string
	must.OK(t, r.Finish(context.Background(), Host{MIG: n, Devices: []Device{{Name: "MIG-1", UUID: n.Has[0].Instances[0].UUID}}, Save: n.save,
		Report: func(int, int, string) {}, Place: func(_ context.Context, order control.PlacementOrder) error {
			got = order.Functions[0].Segments[0].Device
			return nil
		}}))
	if got != "MIG-1" {
		t.Errorf("orders %q", got)
	}
}
