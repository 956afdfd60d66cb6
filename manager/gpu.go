package manager

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/manager/policy/partition"
	"github.com/penstock/penstock/models"
)

// The manager's part in sharing a GPU. The manager never touches the GPU itself: the
// orchestrator reports it, package partition allocates its multiprocessors, and the desired
// processes carry the groups. docs/adr/0004-partitions.md gives the reasons.

// Values of Observed.Mechanism on a GPU.
const (
	mechanismMPS         = "mps"
	mechanismTimeSlicing = "time-slicing"
)

// device is what the manager knows of the device that models run on.
type device struct {
	known bool
	gpu   *control.ObservedDevice // nil on a CPU
	mps   bool
	// whole: the device has too few groups for the instances of the first configuration, so
	// no instance gets groups of its own.
	whole bool

	ledger   partition.Ledger
	redivide bool // a share, or the set of allowed groups, has changed
}

// onGPU reports whether models run on a GPU; false while that is unknown.
func (m *Manager) onGPU() bool { return m.device.gpu != nil }

// learnDevice applies the orchestrator's report on the device.
func (m *Manager) learnDevice(o *control.Observed) {
	d := &m.device
	mps := o.Mechanism == mechanismMPS
	switch {
	case m.cfg.Device == configs.DeviceCPU:
		return
	case o.Device == nil && (m.cfg.Device != configs.DeviceAuto || o.Mechanism == "" || mps || o.Mechanism == mechanismTimeSlicing):
		return // the orchestrator is still looking for a device
	}
	before := d.gpu
	d.gpu = o.Device
	if d.known && mps == d.mps && sameDevice(before, o.Device) {
		return
	}
	if d.known && !sameDevice(before, o.Device) {
		// Processes on the old device ended with their orchestrator.
		d.ledger = partition.Ledger{}
		m.eachInstance((*instance).forgetGroups)
	}
	if (before == nil) != (o.Device == nil) && d.known {
		m.log.Warn().Msg("the device has changed")
		m.eachInstance((*instance).forgetTensors)
	}
	d.known, d.mps = true, mps
	if o.Device == nil {
		m.log.Info().Msg("no GPU here: models run on the CPU")
	} else {
		m.log.Info().Str("device", o.Device.Name).Str("uuid", o.Device.UUID).Int("multiprocessors", o.Device.SMs).
			Ints("group_sms", o.Device.GroupSMs).Str("mechanism", o.Mechanism).Msg("models run on a GPU")
		if o.Device.Why != "" {
			m.log.Warn().Str("why", o.Device.Why).Msg(map[bool]string{
				true:  "shares change by shadows: the multiprocessors cannot be handed out",
				false: "inference functions take turns on the GPU, and their shares are wishes: MPS does not run",
			}[mps])
		} else if !mps {
			m.log.Info().Msg("inference functions take turns on the GPU, without shares, as " + configs.LabVariable + " says")
		}
	}
	d.whole = false
	if n := m.partitioned(); n > len(d.groups()) && len(d.groups()) > 0 {
		d.whole = true
		m.log.Error().Int("instances", n).Int("groups", len(d.groups())).
			Msg("more instances than groups of multiprocessors: shares change by shadows")
	}
	for _, f := range m.functions {
		f.setChange()
	}
	if m.steps() != nil {
		m.reshare("the GPU answers wrongly at other percentages")
	}
	d.redivide = true
}

// sameDevice reports whether two devices are divided alike.
func sameDevice(a, b *control.ObservedDevice) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.UUID == b.UUID && slices.Equal(a.GroupSMs, b.GroupSMs)
}

// groups returns the sizes of the groups that can be allocated; nil if the device is not
// divided.
func (d *device) groups() []int {
	if d.gpu == nil || d.whole {
		return nil
	}
	return d.gpu.GroupSMs
}

// changeOn returns the way to change a share on this device, given the configured one. A
// way that the device lacks was rejected with the configuration, or follows from
// DeviceAuto.
func (d *device) changeOn(c configs.Change) configs.Change {
	switch {
	case c == configs.ChangeNone:
		return c
	case d.gpu == nil && (c == configs.ChangeAuto || c == configs.ChangePartition):
		return configs.ChangeShadow
	case d.gpu == nil:
		return c
	case c == configs.ChangeShadow, c == configs.ChangeRestart:
		return c
	case len(d.groups()) > 0:
		return configs.ChangePartition
	case d.mps:
		return configs.ChangeShadow
	}
	// Shares are not enforced without MPS, so a change needs no swap.
	return configs.ChangeInPlace
}

// setChange adapts the way that shares change to the device.
func (f *function) setChange() {
	was := f.change
	f.change = f.m.device.changeOn(f.configured)
	if f.configured == configs.ChangePartition && f.change != configs.ChangePartition && f.m.device.known {
		f.log.Error().Str("change", string(f.change)).Msg("multiprocessors cannot be handed out here; shares change another way")
	}
	for _, in := range f.instances {
		in.setChange()
		if f.change != configs.ChangePartition && was == configs.ChangePartition {
			in.order(nil)
		}
	}
}

// partitioned counts the instances that want groups.
func (m *Manager) partitioned() (n int) {
	for _, f := range m.functions {
		if c := f.configured; c == configs.ChangeAuto || c == configs.ChangePartition || c == configs.ChangeInPlace {
			n += len(f.instances)
		}
	}
	return n
}

// roomFor returns an error if there are no groups left for the function's instances.
func (m *Manager) roomFor(c configs.Function) error {
	have, more := len(m.device.groups()), c.Instances
	if have == 0 || m.device.changeOn(m.cfg.ChangeOf(c)) != configs.ChangePartition {
		return nil
	}
	n, taken := m.partitioned()+more, 0
	m.eachInstance(func(in *instance) { taken += max(0, in.least()-1) })
	switch {
	case n > have:
		return fmt.Errorf("%w: %d instances would run, the GPU's multiprocessors come in %d groups; `change: shadow` needs none",
			partition.ErrTooMany, n, have)
	case n+taken > have:
		return fmt.Errorf("%w: %d instances would run, of %d groups %d more are needed by models that do not run on one; `change: shadow` needs none",
			partition.ErrTooMany, n, have, taken)
	}
	return nil
}

// floor is the learned minimum: what an instance has learned about a model's needs.
type floor struct {
	// groups is the number that it has needed so far; 0 means one.
	groups int
	// unfit are single groups that the model failed on; fit are some that it ran on. Groups
	// differ: one may span two of the GPU's processing clusters, and the odd-sized group is
	// the remainder of all clusters.
	unfit, fit []int
	// last is the newest generation at the time of learning. Generations up to it may have
	// been woken on fewer groups.
	last uint32
}

// A model that needs more groups gets floorStepSMs more multiprocessors at a time, at most
// floorSteps times. A thread block cluster of the portable size has 8 blocks. They take at
// most 8 multiprocessors, all in one cluster of the GPU. A failure on four times as many
// has another cause.
const (
	floorStepSMs = 8
	floorSteps   = 4
)

// placesTried is the number of single groups on which a model must fail before one group
// counts as too few for it.
const placesTried = 2

// outgrow learns from a process that reports that it cannot run on its ordered groups.
// Either that single group does not suit the model, or the model needs more groups. The
// process's end then does not count against the model.
func (in *instance) outgrow(q *pair.Process, o *control.ObservedProcess) {
	n, groups := len(o.GroupsUnfit), in.m.device.groups()
	if n == 0 || len(groups) == 0 || in.f.change != configs.ChangePartition {
		return
	}
	ends := o.State == control.Draining || o.State.Ended()
	known := in.floors[q.Card]
	// A process that kept its old groups proves that a larger set works.
	sane := n < floorSteps*max(1, floorStepSMs/groups[0]) || !ends && n < len(o.SMGroups)
	place := in.m.device.place(o.GroupsUnfit)
	learnt := floor{groups: known.groups, unfit: known.unfit, fit: known.fit, last: in.pair.Last()}
	switch {
	case !sane || n >= len(groups):
	case place < 0:
		if n >= known.groups {
			learnt.groups = min(in.m.device.more(n), len(groups))
		}
	case !slices.Contains(known.unfit, place):
		learnt.unfit = append(slices.Clone(known.unfit), place)
		learnt.fit = slices.DeleteFunc(slices.Clone(known.fit), func(g int) bool { return g == place })
		if in.m.device.ordinary(learnt.unfit) >= placesTried {
			learnt.groups = max(known.groups, in.m.device.more(1))
		}
	}
	if learnt.groups != known.groups || len(learnt.unfit) != len(known.unfit) {
		known = learnt
		in.floors[q.Card] = known
		in.m.device.redivide = true
		what := "model does not run on so few multiprocessors: it gets more"
		if place >= 0 && known.groups <= 1 {
			what = "model does not run on this group of multiprocessors alone: it gets another"
		}
		in.log.Warn().Uint32("generation", q.Generation).Ints("groups", o.GroupsUnfit).Int("multiprocessors", in.m.device.sms(o.GroupsUnfit)).
			Int("gets_groups", max(1, in.least())).Ints("unfit_groups", known.unfit).Str("reason", o.Reason).Msg(what)
	}
	if ends && q.Generation <= known.last && (n < known.groups || place >= 0 && slices.Contains(known.unfit, place)) {
		in.pair.Excuse(q.Generation)
	}
}

// place returns the group that a model failed on if the failure tells about this group
// rather than the number of groups. That is so for a single group that is large enough for
// a thread block cluster. Otherwise place returns -1.
func (d *device) place(unfit []int) int {
	groups := d.groups()
	if len(unfit) != 1 || unfit[0] < 0 || unfit[0] >= len(groups) || groups[0] < floorStepSMs {
		return -1
	}
	return unfit[0]
}

// ordinary counts the groups of the common size.
func (d *device) ordinary(groups []int) (n int) {
	for _, g := range groups {
		if d.groups()[g] == d.groups()[0] {
			n++
		}
	}
	return n
}

// more returns the number of groups to try after a failure on n: one more. If groups are
// small, it adds 8, 16 or 32 multiprocessors, so that few starts fail.
func (d *device) more(n int) int {
	unit := d.groups()[0]
	if unit >= floorStepSMs {
		return n + 1
	}
	sms := floorStepSMs
	for sms <= n*unit {
		sms *= 2
	}
	return (sms + unit - 1) / unit
}

// needs returns what is known about the needs of the instance's models. least is their
// number of groups, 0 if unknown. unfit are the single groups that they do not run on.
// needs forgets a model that no process has any more.
//
// It also uses what other instances of the same model have learned. It ignores their report
// on a group that this instance serves on, and their number of groups if one of them serves
// on fewer.
func (in *instance) needs() (least int, unfit []int) {
	cards := map[*models.Card]bool{in.pair.Card(): true}
	for _, q := range in.pair.Processes() {
		cards[q.Card] = true
	}
	for card := range in.floors {
		if !in.uses(card) {
			delete(in.floors, card)
		}
	}
	for card := range cards {
		if card == nil {
			continue
		}
		if own, ok := in.floors[card]; ok {
			least = max(least, own.groups)
			unfit = append(unfit, own.unfit...)
			// No process serves on a proven group: begin on two groups, which surely work,
			// and move to one later.
			if len(own.unfit) > 0 && !in.servesWhole(card) && !(len(in.groups) == 1 && slices.Contains(own.fit, in.groups[0])) {
				least = max(least, 2)
			}
		}
		others, places := in.learntByOthers(card)
		least, unfit = max(least, others), append(unfit, places...)
	}
	slices.Sort(unfit)
	return least, slices.Compact(unfit)
}

// learntByOthers returns what needs uses of the other instances' findings about a model.
func (in *instance) learntByOthers(card *models.Card) (least int, unfit []int) {
	own, fewest := in.servesOn(card), len(in.m.device.groups())+1
	in.m.eachInstance(func(other *instance) {
		if on := other.servesOn(card); on != nil {
			fewest = min(fewest, len(on))
		}
		for c, f := range other.floors {
			if other != in && sameModel(c, card) {
				least, unfit = max(least, f.groups), append(unfit, f.unfit...)
			}
		}
	})
	if least > fewest {
		least = 0
	}
	return least, slices.DeleteFunc(unfit, func(g int) bool { return slices.Equal(own, []int{g}) })
}

// least returns how many groups the instance's models need, as far as is known.
func (in *instance) least() int {
	groups, _ := in.needs()
	return groups
}

// servesWhole reports whether the instance serves such a model with all its batch sizes.
func (in *instance) servesWhole(card *models.Card) bool {
	q := in.pair.Active()
	return q != nil && !in.growing() && q.State == control.Active && sameModel(q.Card, card)
}

// servesOn returns the groups that it serves on with all batch sizes. It returns nil if it
// does not, or while it moves to other groups.
func (in *instance) servesOn(card *models.Card) []int {
	if !in.servesWhole(card) || len(in.groups) == 0 || !in.m.device.ledger.Settled(in.process(in.pair.Active().Generation), in.groups) {
		return nil
	}
	return in.groups
}

// sameModel reports whether two cards' models need the same.
func sameModel(a, b *models.Card) bool {
	return a == b || a.Name == b.Name && a.Version == b.Version && a.Framework == b.Framework && a.Model == b.Model &&
		slices.Equal(a.Command, b.Command) && slices.Equal(a.Batches, b.Batches)
}

// noteFit records that a model which failed on single groups runs on its present one.
func (in *instance) noteFit() {
	for card, f := range in.floors {
		if on := in.servesOn(card); len(on) == 1 && len(f.unfit) > 0 && !slices.Contains(f.fit, on[0]) && !slices.Contains(f.unfit, on[0]) {
			f.fit = append(f.fit, on[0])
			in.floors[card] = f
		}
	}
}

// sms counts the multiprocessors of groups. A process reported the groups, so they may have
// any value.
func (d *device) sms(groups []int) (n int) {
	for _, g := range groups {
		if g >= 0 && g < len(d.groups()) {
			n += d.groups()[g]
		}
	}
	return n
}

// handOut orders for each instance the groups that are available to it now.
func (m *Manager) handOut() {
	d := &m.device
	if !d.redivide || !d.known {
		return
	}
	d.redivide = false
	groups := d.groups()
	if len(groups) == 0 {
		return
	}
	var claims []partition.Claim
	var instances []*instance
	mine := map[gslice.ID]bool{}
	m.eachInstance(func(in *instance) {
		if in.f.change == configs.ChangePartition {
			in.noteFit()
			least, unfit := in.needs()
			claims = append(claims, partition.Claim{
				ID: in.id(), Percent: in.pair.Share(), Least: least, Unfit: unfit, Ordered: in.groups, Busy: d.ledger.Busy(in.id()),
			})
			instances = append(instances, in)
			mine[in.id()] = true
		}
	})
	orders, err := partition.Divide(groups, claims, d.ledger.Others(mine))
	if err != nil {
		m.log.Error().Err(err).Msg("hand out multiprocessors")
		return
	}
	for i, o := range orders {
		in, least := instances[i], claims[i].Least
		if short := len(o.Target) < least; short != in.short {
			if in.short = short; short {
				in.log.Error().Int("needs_groups", least).Int("gets_groups", len(o.Target)).Int("instances", len(claims)).Int("groups", len(groups)).
					Msg("no groups are left for a model that does not run on so few multiprocessors")
			}
		}
		in.waits = o.Waits()
		in.order(o.Now)
	}
}

// order sets the groups that an instance should run on.
func (in *instance) order(groups []int) {
	if slices.Equal(groups, in.groups) {
		return
	}
	in.log.Info().Ints("from", in.groups).Ints("to", groups).Float64("share_percent", round(in.pair.Share())).Msg("multiprocessor groups")
	in.groups, in.orderedAt = groups, runclock.Now()
	in.m.device.redivide = true
}

// publishGroups records the published groups in the ledger.
func (m *Manager) publishGroups() {
	if !m.onGPU() {
		return
	}
	wanted := map[partition.Process][]int{}
	for _, p := range m.desired.Processes {
		if len(p.SMGroups) > 0 {
			wanted[partition.Process{ID: gslice.ID{IF: p.IF, Instance: p.Instance}, Generation: p.Generation}] = p.SMGroups
		}
	}
	m.device.ledger.Publish(m.desired.Seq, wanted)
	m.device.redivide = true
}

// observeGroups records the observed groups in the ledger.
func (m *Manager) observeGroups(o *control.Observed) {
	if !m.onGPU() {
		return
	}
	seen := map[partition.Process]partition.Seen{}
	for _, p := range o.Processes {
		seen[partition.Process{ID: gslice.ID{IF: p.IF, Instance: p.Instance}, Generation: p.Generation}] =
			partition.Seen{Groups: p.SMGroups, Ended: p.State.Ended()}
	}
	m.device.ledger.Observe(o.AckSeq, seen)
	m.device.redivide = true
}

// moving reports whether an instance does not yet run on the groups of its share.
func (in *instance) moving() bool {
	q := in.pair.Active()
	return in.f.change == configs.ChangePartition && q != nil &&
		(in.waits || !in.m.device.ledger.Settled(in.process(q.Generation), in.groups))
}

// moveTimeout is how long a process may take to move. It captures its graphs again, which
// takes a second or two. Its neighbours wait for it meanwhile.
const moveTimeout = 30 * time.Second

// hurry kills a process that does not move; its shadow starts on the right groups.
func (in *instance) hurry(now time.Duration) {
	q := in.pair.Active()
	// A process could not move before it had the ring, because it was linking. It also
	// cannot move before it has all batch sizes, for which the orchestrator has a timeout.
	after := now - max(in.orderedAt, in.since, in.wholeAt)
	if q == nil || in.growing() || in.f.change != configs.ChangePartition || q.State != control.Active || q.Role == control.Kill || after < moveTimeout {
		return
	}
	if on := in.m.device.ledger.On(in.process(q.Generation)); len(on) > 0 && !slices.Equal(on, in.groups) {
		in.log.Error().Uint32("generation", q.Generation).Ints("on", on).Ints("ordered", in.groups).
			Dur("after_ms", after).Msg("process does not move to its groups; killed")
		in.pair.Kill(q.Generation)
	}
}

// id and process name an instance and its generations for packages gslice and partition.
func (in *instance) id() gslice.ID { return gslice.ID{IF: in.f.name, Instance: in.index} }

func (in *instance) process(generation uint32) partition.Process {
	return partition.Process{ID: in.id(), Generation: generation}
}

// groupsOf returns the groups of a desired process. All processes of an instance have the
// same groups, so no other instance ever has them. A process that drains keeps its groups.
// wait is true for a process that should serve and has no groups yet. It is also true for
// one with fewer groups than its model needs while more are coming.
func (in *instance) groupsOf(generation uint32, role control.Role) (groups []int, wait bool) {
	switch {
	case in.f.change != configs.ChangePartition || role == control.Shadow:
		return nil, false
	case role != control.Serve:
		return in.last[generation], false
	case len(in.groups) == 0, in.waits && in.last[generation] == nil && !in.suffices():
		return nil, true
	}
	in.last[generation] = in.groups
	in.visit(generation)
	return in.groups, false
}

// suffices reports whether the models run on the instance's groups, as far as is known.
func (in *instance) suffices() bool {
	least, unfit := in.needs()
	return len(in.groups) >= least && !(len(in.groups) == 1 && slices.Contains(unfit, in.groups[0]))
}

// mostVisited bounds the device memory that a process loses to sets of groups that it once
// used. Each takes about 5 MiB, which the driver frees when the process ends
// (cuda.Context.Green).
const mostVisited = 128

// visit records the desired groups of the active process. After too many sets it lets the
// shadow take over.
func (in *instance) visit(generation uint32) {
	q := in.pair.Active()
	if q == nil || q.Generation != generation || slices.Equal(in.last[generation], in.noted) && len(in.visited) > 0 {
		return
	}
	in.noted = in.last[generation]
	in.visited[fmt.Sprint(in.noted)] = true
	if len(in.visited) > mostVisited {
		in.log.Info().Uint32("generation", generation).Int("sets", len(in.visited)).Msg("process has run on many sets of groups; its shadow takes over to free their memory")
		in.pair.Renew()
	}
}

// forgetGroups drops all records about another device's groups.
func (in *instance) forgetGroups() {
	in.order(nil)
	in.waits, in.short, in.noted = false, false, nil
	clear(in.last)
	clear(in.floors)
	clear(in.visited)
	clear(in.seen)
}

// forgetTensors drops buffers that were allocated for another device.
func (in *instance) forgetTensors() {
	for card, t := range in.tensors {
		t.Close()
		delete(in.tensors, card)
	}
}

// outputSlots is how many batches' outputs a GPU writes at once: two batches may be in
// flight (libml/device.Slots).
const outputSlots = 2

// tensorBytes is the size of the memory that the processes of a card share. On a CPU that
// is the batch tensor and its outputs. A GPU has its own batch tensor and copies back only
// the outputs.
func (in *instance) tensorBytes(tensors, outputs int) int {
	if in.m.onGPU() {
		return outputSlots * outputs
	}
	return tensors
}

func (m *Manager) eachInstance(do func(*instance)) {
	for _, f := range m.functions {
		for _, in := range f.instances {
			do(in)
		}
	}
}
