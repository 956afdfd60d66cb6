package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/sharing"
	"github.com/penstock/penstock/models"
)

// nodeBed is a harness: a manager whose control loop the test turns by hand, over a fake
// orchestrator with fake processes. The processes start, load, link and serve as desired.
// They move to other groups, die, or lose their device when the test says so.
type nodeBed struct {
	*Fleet
	calls
	t     testing.TB
	fakes map[victim]*fakeProcess
	told  control.Desired // the last state that the orchestrator has received
	device,
	mechanism string
	gpu *control.GPU
	// second is the GPU of the node's second device, "cuda:1"; nil: there is none.
	second *control.GPU
	// lost is why devices are lost, by name.
	lost  map[string]string
	cpu   bool // the node has a CPU, too
	gone  bool // the orchestrator has stopped reporting
	stuck bool // no process moves to other groups
	small bool // no process gets more batch sizes
	// needs returns the minimum number of groups for a process's model; nil: any number.
	needs func(victim) int
	// wrong reports whether a function's model answers wrongly at an MPS percentage; nil: never.
	wrong func(name string, percent float64) bool
	woken []wake
}

// wake is an order to serve at an MPS percentage.
type wake struct {
	name    string
	percent float64
}

// fakeProcess is the process of one generation.
type fakeProcess struct {
	state  control.State
	device string
	role   control.Role
	on, to []int // its present groups, and the ordered ones
	early  bool
	slow   bool    // it does not end while it drains
	sizes  int     // how many of the card's batch sizes it runs
	share  float64 // its MPS percentage since it was woken
	wrong  bool    // its model answered wrongly
	lost   bool
	server bool // the MPS server caused that
	reason string
	unfit  []int // the last groups that its model did not run on
	stays  bool  // on its groups, although it is ordered to others
	// superseded: its worker has a newer process
	superseded bool
}

func (p *fakeProcess) groups() []int {
	if p.stays {
		return p.on
	}
	all := slices.Concat(p.on, p.to)
	slices.Sort(all)
	return slices.Compact(all)
}

// Publish makes nodeBed the fake orchestrator's link.
func (b *nodeBed) Publish(d control.Desired) error {
	if err := d.Check(); err != nil {
		b.t.Errorf("the manager publishes a state that no orchestrator would follow: %v", err)
	}
	b.told = d
	return nil
}
func (b *nodeBed) PeerAlive() bool { return !b.gone }

// h200 is a GPU as the orchestrator reports it.
func h200() *control.GPU {
	return &control.GPU{
		UUID: "GPU-1", Name: "NVIDIA H200", SMs: 132, GroupSMs: append(slices.Repeat([]int{8}, 15), 12),
		MemoryBytes: 141 << 30,
	}
}

// newNode runs these functions, each with testCard, on a device. With MPS they have groups of
// multiprocessors.
func newNode(t testing.TB, device string, gpu *control.GPU, mechanism string, functions ...configs.Function) *nodeBed {
	t.Helper()
	return newCachedNode(t, "", device, gpu, mechanism, functions...)
}

// changeCards changes each card that the node finds from now on.
func (b *nodeBed) changeCards(change func(name string, card *models.Card)) {
	find := b.find
	b.find = func(name string) (*models.Card, error) {
		card, err := find(name)
		if err == nil {
			change(name, card)
		}
		return card, err
	}
}

// newCachedNode is newNode with a folder for what it learns about the GPU.
func newCachedNode(t testing.TB, cache, device string, gpu *control.GPU, mechanism string, functions ...configs.Function) *nodeBed {
	t.Helper()
	cfg := configs.Default()
	cfg.Shares.Policy = configs.PolicyGSLICE
	cfg.Device = device
	if mechanism == sharing.MechanismMPS {
		cfg.Shares.Change = configs.ChangePartition
	}
	versions := map[string]uint32{}
	b := &nodeBed{t: t, calls: make(calls, 64), fakes: map[victim]*fakeProcess{}, device: device, gpu: gpu, mechanism: mechanism}
	b.Fleet = newFleet(t, Options{
		Config: cfg, Dir: t.TempDir(), Cache: cache, ID: "m", Loop: b.calls, Link: b, Log: zerolog.New(zerolog.NewTestWriter(t)),
		FindModel: func(name string) (*models.Card, error) {
			if versions[name] == 0 { // each requested model is newer than those before
				versions[name] = uint32(len(versions) + 1)
			}
			c := testCard()
			c.Name, c.Version = name, versions[name]
			fmt.Sscanf(name, "knee-%f", &c.KneePercent)
			return c, nil
		},
	})
	for _, f := range functions {
		if f.Instances == 0 {
			f.Instances = 1
		}
		must.OK(t, b.add(f))
	}
	return b
}

// Orders of operators, without the answers for them.
func (b *nodeBed) remove(name string) error { return errorOf(b.Remove(name)) }
func (b *nodeBed) setShare(name string, percent float64) error {
	return errorOf(b.SetShare(name, percent))
}
func (b *nodeBed) try(c configs.Function) (<-chan error, error) { return endOf(b.Add(c)) }
func (b *nodeBed) replace(name, model string) (<-chan error, error) {
	return endOf(b.Replace(name, model))
}
func (b *nodeBed) move(name, worker string) (<-chan error, error) { return endOf(b.Move(name, worker)) }
func (b *nodeBed) rollback(name string) (<-chan error, error)     { return endOf(b.Rollback(name)) }
func endOf(o Order, err error) (<-chan error, error)              { return o.End, err }
func errorOf(_ Order, err error) error                            { return err }

func (b *nodeBed) add(c configs.Function) error { return b.Fleet.add(c, 0) }

// setShare sets the share of an instance, as package sharing does.
func setShare(in *instance, percent float64) {
	in.device().carryOut(sharing.SetShare{ID: in.id, Percent: percent})
}

// changeOf is how a function's share changes.
func changeOf(f *function) configs.Change {
	return f.instances[0].device().Change(&f.fleet.cfg, f.config)
}

// page returns the status of the node.
func (b *nodeBed) page() control.Status { return b.Snapshot().Status }

// series returns the values of a metric.
func (b *nodeBed) series(name string) []*dto.Metric {
	b.t.Helper()
	families, err := b.metrics.Registry.Gather()
	must.OK(b.t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()
		}
	}
	return nil
}

// instance returns an instance of a function.
func (b *nodeBed) instance(name string, i int) *instance {
	return b.functions.instance(gslice.ID{IF: name, Instance: i})
}

func named(name string, percent float64) configs.Function {
	return configs.Function{Name: name, Instances: 1, SharePercent: percent}
}

// wanting returns a function without its own share; its demand is the knee of its model.
func wanting(name string, percent float64) configs.Function {
	return configs.Function{Name: name, Instances: 1, Model: fmt.Sprintf("knee-%v", percent)}
}

// turn lets the manager, the orchestrator and every process take their next step. It checks
// that no group has two users.
func (b *nodeBed) turn() {
	b.t.Helper()
	for len(b.calls) > 0 {
		(<-b.calls)()
	}
	b.Step()
	b.follow()
	for v, p := range b.fakes {
		b.live(v, p)
	}
	b.disjoint()
	b.report()
}

// turns lets the node reach a steady state.
func (b *nodeBed) turns() {
	b.t.Helper()
	for range 12 {
		b.turn()
	}
}

// follow carries out the desired state, as the orchestrator would.
func (b *nodeBed) follow() {
	wanted := map[victim]bool{}
	for _, d := range b.told.Processes {
		v := victim{gslice.ID{IF: d.IF, Instance: d.Instance}, d.Generation}
		wanted[v] = true
		p := b.fakes[v]
		if p == nil {
			p = &fakeProcess{state: control.Starting, device: d.Device}
			b.fakes[v] = p
		}
		if p.state.Ended() {
			continue
		}
		if d.Role == control.Serve && p.role != control.Serve && p.state != control.Starting {
			p.share, p.early = d.SharePercent, d.PartialWarmUp
			if len(d.SMGroups) == 0 {
				b.woken = append(b.woken, wake{d.IF, d.SharePercent})
			}
		}
		if d.Role != control.Serve || p.state != control.Starting {
			p.role = d.Role
		}
		switch {
		case d.Role == control.Kill:
			p.die(control.Stopped, "the manager ordered it")
		case d.Role == control.Serve && !slices.Equal(p.to, d.SMGroups):
			p.on, p.to, p.stays = p.groups(), d.SMGroups, false
		}
	}
	for v, p := range b.fakes {
		if !wanted[v] {
			if p.state.Ended() {
				delete(b.fakes, v)
			} else {
				p.role = control.Drain
			}
		}
	}
}

// live takes a process's next step.
func (b *nodeBed) live(v victim, p *fakeProcess) {
	in := b.instance(v.IF, v.Instance)
	switch {
	case p.state.Ended():
	case p.role == control.Drain && p.slow:
		p.state = control.Draining
	case p.role == control.Drain:
		p.die(control.Stopped, "drained")
	case p.state == control.Starting:
		p.state = control.Loaded
		if in != nil {
			in.pair.Attach(v.generation)
		}
	case p.role != control.Serve:
	case p.state == control.Loaded:
		p.state, p.on = control.Linking, p.to
	case p.state == control.Linking && b.tooFew(v, p):
		unfit := p.to
		p.die(control.Failed, tooFew)
		p.unfit = unfit
	case p.state == control.Linking && b.misanswers(v, p):
		p.die(control.Failed, misanswers)
		p.wrong = true
	case p.state == control.Linking:
		p.state, p.on = control.Ready, p.to
		if p.sizes = len(testCard().Batches); p.early {
			p.sizes = 1
		}
	case p.state == control.Ready && in != nil && in.queue.Epoch() == v.generation:
		p.state = control.Active
	case p.state == control.Active && in != nil && in.queue.Epoch() != v.generation:
		p.state = control.Draining
	case p.sizes < len(testCard().Batches):
		if !b.small {
			p.sizes++
		}
	case b.stuck, p.stays:
	case !slices.Equal(p.on, p.to) && b.tooFew(v, p):
		p.stays, p.unfit, p.reason = true, p.to, tooFew
	default:
		p.on, p.unfit, p.reason = p.to, nil, ""
	}
}

// misanswers is the reason that a process reports if its model answers wrongly.
const misanswers = "model answers wrongly on this GPU"

// misanswers reports whether a process's model answers wrongly.
func (b *nodeBed) misanswers(v victim, p *fakeProcess) bool {
	return b.wrong != nil && b.mechanism == sharing.MechanismMPS && len(p.to) == 0 && b.wrong(v.IF, p.share)
}

// tooFew is the reason that a process reports if its model does not run on its groups.
const tooFew = "CUDA_ERROR_INVALID_CLUSTER_SIZE"

// tooFew reports whether a process's model does not run on its ordered groups.
func (b *nodeBed) tooFew(v victim, p *fakeProcess) bool {
	return b.needs != nil && len(p.to) > 0 && len(p.to) < b.needs(v)
}

func (p *fakeProcess) die(state control.State, reason string) {
	p.state, p.reason, p.on, p.to = state, reason, nil, nil
}

// report sends the observed state to the manager.
func (b *nodeBed) report() {
	o := control.Observed{
		Version: control.Version, OrchestratorID: "o", ManagerID: b.told.ManagerID, AckSeq: b.told.Seq,
		CPUs: 2, Devices: []control.ObservedDevice{{Device: b.device, Mechanism: b.mechanism, GPU: b.gpu}},
	}
	if b.second != nil {
		o.Devices = append(o.Devices, control.ObservedDevice{Device: "cuda:1", Mechanism: b.mechanism, GPU: b.second})
	}
	if b.cpu {
		o.Devices = append(o.Devices, control.ObservedDevice{Device: configs.DeviceCPU, Mechanism: "governor"})
	}
	for _, name := range b.told.Devices {
		if strings.HasPrefix(name, "MIG-") {
			o.Devices = append(o.Devices, control.ObservedDevice{Device: name, Mechanism: b.mechanism, GPU: &control.GPU{UUID: name, SMs: 60}})
		}
	}
	for i := range o.Devices {
		o.Devices[i].Lost = b.lost[o.Devices[i].Device]
	}
	for _, v := range b.sorted() {
		p := b.fakes[v]
		if why := b.lost[p.device]; why != "" && !p.state.Ended() {
			p.lost = true
			p.die(control.Failed, why)
		}
		seen := control.ObservedProcess{
			IF: v.IF, Instance: v.Instance, Generation: v.generation, Device: p.device, State: p.state,
			Reason: p.reason, SMGroups: p.groups(), DeviceLost: p.lost, Blameless: p.server, InfeasibleGroups: p.unfit,
			WrongAnswers: p.wrong, Batches: testCard().Batches[:p.sizes], WarmingUp: p.sizes > 0 && p.sizes < len(testCard().Batches),
			EphemeralBytes: int64(p.sizes), Superseded: p.superseded,
		}
		for _, g := range p.on {
			seen.SMs += b.gpu.GroupSMs[g]
		}
		o.Processes = append(o.Processes, seen)
	}
	must.OK(b.t, o.Check())
	b.Observe(o)
}

func (b *nodeBed) sorted() []victim {
	return slices.SortedFunc(maps.Keys(b.fakes), func(x, y victim) int {
		return cmp.Or(cmp.Compare(x.IF, y.IF), cmp.Compare(x.Instance, y.Instance), cmp.Compare(x.generation, y.generation))
	})
}

// disjoint checks that no two instances may use the same group of a device.
func (b *nodeBed) disjoint() {
	b.t.Helper()
	type place struct {
		device string
		group  int
	}
	on := map[place]gslice.ID{}
	for _, v := range b.sorted() {
		for _, g := range b.fakes[v].groups() {
			at := place{b.fakes[v].device, g}
			if other, taken := on[at]; taken && other != v.ID {
				b.t.Fatalf("%v and %v may both be on group %d of %s", other, v.ID, g, at.device)
			}
			on[at] = v.ID
		}
	}
}

// serves returns the process that serves instance 0 of a function.
func (b *nodeBed) serves(name string) (uint32, *fakeProcess) {
	b.t.Helper()
	q := b.instance(name, 0).pair.Active()
	if q == nil {
		b.t.Fatalf("nobody serves %s", name)
	}
	p := b.fakes[victim{gslice.ID{IF: name}, q.Generation}]
	if p == nil || p.state != control.Active {
		b.t.Fatalf("%s generation %d is %+v, want it active", name, q.Generation, p)
	}
	return q.Generation, p
}

// shadow returns the shadow of instance 0 of a function.
func (b *nodeBed) shadow(name string) (uint32, *fakeProcess) {
	b.t.Helper()
	q := b.instance(name, 0).pair.Shadow()
	if q == nil {
		b.t.Fatalf("%s has no shadow", name)
	}
	return q.Generation, b.fakes[victim{gslice.ID{IF: name}, q.Generation}]
}

func (b *nodeBed) sms(groups []int) (n int) {
	for _, g := range groups {
		n += b.gpu.GroupSMs[g]
	}
	return n
}

// status returns the status of a function.
func (b *nodeBed) status(name string) control.FunctionStatus {
	b.t.Helper()
	f := b.functions.find(name)
	if f == nil {
		b.t.Fatalf("there is no function %s", name)
	}
	b.devices[0].decide(occasion{})
	stats := f.port.Stats()
	return f.status(&stats)
}

func (v victim) String() string {
	return fmt.Sprintf("%s/%d generation %d", v.IF, v.Instance, v.generation)
}

// givenUp lets the node reach a steady state. It checks that a replacement has ended for that
// reason.
func (b *nodeBed) givenUp(end <-chan error, why string) {
	b.t.Helper()
	for range 4 {
		b.turns()
	}
	select {
	case err := <-end:
		if err == nil || !strings.Contains(err.Error(), why) {
			b.t.Errorf("the replacement ended with %v, want %q", err, why)
		}
	case <-time.After(patience):
		b.t.Fatal("the replacement goes on for ever")
	}
}
