package manager

import (
	"fmt"
	"maps"
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

// The manager's part in sharing a GPU by groups of multiprocessors:
//
//  1. A process reports groups on which its model does not run: learnMinimum.
//  2. Package partition divides the groups among the instances: allocateGroups.
//  3. The desired processes carry the groups: groupsFor, publishGroups.
//  4. The orchestrator reports where processes run: observeGroups, moving, watchMove.
//
// docs/adr/0004-partitions.md gives the reasons.

// placement is an instance's part in sharing by groups. The control loop owns it.
type placement struct {
	partition.Placement
	minimums map[*models.Card]partition.Minimum // of models that failed on their groups
}

// partitioned counts the instances that want groups.
func (m *Manager) partitioned() (n int) {
	for _, f := range m.functions {
		if f.configured == configs.ChangePartition {
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
	m.eachInstance(func(in *instance) { taken += max(0, in.minGroups()-1) })
	switch {
	case n > have:
		return fmt.Errorf("%w: %d instances on %d groups; remove instances, or set `change: shadow`, which needs no groups",
			partition.ErrTooMany, n, have)
	case n+taken > have:
		return fmt.Errorf("%w: %d instances on %d groups, and models that need more than one group need %d more; remove instances, or set `change: shadow`, which needs no groups",
			partition.ErrTooMany, n, have, taken)
	}
	return nil
}

// learnMinimum learns from a process that reports that its model does not run on its ordered
// groups. The process's end then does not count against the model.
func (in *instance) learnMinimum(q *pair.Process, o *control.ObservedProcess) {
	device := &in.m.device
	if len(o.InfeasibleGroups) == 0 || len(device.groups()) == 0 || in.f.change != configs.ChangePartition {
		return
	}
	minimum := in.placement.minimums[q.Card]
	learned, excused := minimum.Fails(device.groups(), partition.Failure{
		Groups: o.InfeasibleGroups, Generation: q.Generation, Newest: in.pair.Last(),
		Kept: o.SMGroups, Ends: o.State == control.Draining || o.State.Ended(),
	})
	if learned {
		in.placement.setMinimum(q.Card, minimum)
		device.allocator.Invalidate()
		groups, infeasible := minimum.Min()
		message := "model does not run on so few multiprocessors; assigning more"
		if groups <= 1 {
			message = "model does not run on this group of multiprocessors alone; assigning another"
		}
		in.log.Warn().Uint32("generation", q.Generation).Ints("groups", o.InfeasibleGroups).Int("multiprocessors", device.sms(o.InfeasibleGroups)).
			Int("gets_groups", max(1, in.minGroups())).Ints("infeasible_groups", infeasible).Str("reason", o.Reason).Msg(message)
	}
	if excused {
		in.pair.Excuse(q.Generation)
	}
}

func (p *placement) setMinimum(card *models.Card, minimum partition.Minimum) {
	if p.minimums == nil {
		p.minimums = map[*models.Card]partition.Minimum{}
	}
	p.minimums[card] = minimum
}

// needs returns what is known about the needs of the instance's models: the number of groups,
// 0 if unknown, and the single groups on which they do not run. It also uses what other
// instances of the same models have learned. It forgets a model that no process has any more.
func (in *instance) needs() (minGroups int, infeasible []int) {
	maps.DeleteFunc(in.placement.minimums, func(card *models.Card, _ partition.Minimum) bool { return !in.uses(card) })
	cards := map[*models.Card]bool{in.pair.Card(): true}
	for _, q := range in.pair.Processes() {
		cards[q.Card] = true
	}
	require := func(groups int, single []int) {
		minGroups, infeasible = max(minGroups, groups), append(infeasible, single...)
	}
	for card := range cards {
		if card == nil {
			continue
		}
		own := in.placement.minimums[card]
		if in.servesAllBatches(card) {
			require(own.Min())
		} else {
			require(own.MinToStart(in.placement.Groups))
		}
		require(in.minOfOthers(card))
	}
	slices.Sort(infeasible)
	return minGroups, slices.Compact(infeasible)
}

// minOfOthers returns what needs uses of the other instances' findings about a model.
func (in *instance) minOfOthers(card *models.Card) (minGroups int, infeasible []int) {
	fewest := len(in.m.device.groups()) + 1
	var learned []partition.Minimum
	in.m.eachInstance(func(other *instance) {
		if on := other.servesOn(card); on != nil {
			fewest = min(fewest, len(on))
		}
		for c, minimum := range other.placement.minimums {
			if other != in && sameModel(c, card) {
				learned = append(learned, minimum)
			}
		}
	})
	return partition.MinOfOthers(learned, fewest, in.servesOn(card))
}

// minGroups returns how many groups the instance's models need, as far as is known.
func (in *instance) minGroups() int {
	groups, _ := in.needs()
	return groups
}

// servesAllBatches reports whether the instance serves such a model with all its batch sizes.
func (in *instance) servesAllBatches(card *models.Card) bool {
	q := in.pair.Active()
	return q != nil && !in.growing() && q.State == control.Active && sameModel(q.Card, card)
}

// servesOn returns the groups that it serves on with all batch sizes. It returns nil if it
// does not, or while it moves to other groups.
func (in *instance) servesOn(card *models.Card) []int {
	if !in.servesAllBatches(card) || len(in.placement.Groups) == 0 || !in.settledOnGroups() {
		return nil
	}
	return in.placement.Groups
}

// settledOnGroups reports whether the active process runs on the ordered groups. There must
// be an active process.
func (in *instance) settledOnGroups() bool {
	return in.m.device.allocator.Settled(in.process(in.pair.Active().Generation), in.placement.Groups)
}

// sameModel reports whether two cards' models need the same.
func sameModel(a, b *models.Card) bool {
	return a == b || a.Name == b.Name && a.Version == b.Version && a.Framework == b.Framework && a.Model == b.Model &&
		slices.Equal(a.Data, b.Data) && slices.Equal(a.Command, b.Command) && slices.Equal(a.Batches, b.Batches)
}

// noteFeasible records that a model which failed on single groups runs on its present one.
func (in *instance) noteFeasible() {
	for card, minimum := range in.placement.minimums {
		if minimum.Runs(in.servesOn(card)) {
			in.placement.setMinimum(card, minimum)
		}
	}
}

// allocateGroups orders for each instance the groups that are available to it now.
func (m *Manager) allocateGroups() {
	d := &m.device
	if !d.allocator.Stale() || !d.known {
		return
	}
	var claims []partition.Claim
	var instances []*instance
	m.eachInstance(func(in *instance) {
		if in.f.change == configs.ChangePartition {
			in.noteFeasible()
			claims = append(claims, in.claim())
			instances = append(instances, in)
		}
	})
	orders, err := d.allocator.Divide(d.groups(), claims)
	if err != nil {
		m.log.Error().Err(err).Msg("cannot divide multiprocessors")
		return
	}
	for i, o := range orders {
		in, p := instances[i], &instances[i].placement
		short := len(o.Target) < claims[i].Min
		if short && !p.Short {
			in.log.Error().Int("needs_groups", claims[i].Min).Int("gets_groups", len(o.Target)).
				Int("instances", len(claims)).Int("groups", len(d.groups())).
				Msg("no groups left for a model that does not run on so few multiprocessors")
		}
		p.Short, p.Waits = short, o.Waits()
		in.order(o.Now)
	}
}

// claim describes the instance for package partition.
func (in *instance) claim() partition.Claim {
	minGroups, infeasible := in.needs()
	return partition.Claim{
		ID: in.id(), Percent: in.pair.Share(), Min: minGroups, Infeasible: infeasible, Ordered: in.placement.Groups,
	}
}

// order sets the groups that an instance should run on.
func (in *instance) order(groups []int) {
	before := in.placement.Groups
	if in.placement.Order(groups, runclock.Now()) {
		in.log.Info().Ints("from", before).Ints("to", groups).Float64("share_percent", round(in.pair.Share())).Msg("multiprocessor groups assigned")
		in.m.device.allocator.Invalidate()
	}
}

// groupsFor returns the groups of a desired process. wait is true for a process that should
// serve and must wait for groups.
func (in *instance) groupsFor(generation uint32, role control.Role) (groups []int, wait bool) {
	switch {
	case in.f.change != configs.ChangePartition || role == control.Shadow:
		return nil, false
	case role != control.Serve:
		return in.placement.Assigned(generation), false
	}
	if groups = in.placement.Assign(generation, in.needs); groups == nil {
		return nil, true
	}
	if q := in.pair.Active(); q != nil && q.Generation == generation {
		in.visit(generation)
	}
	return groups, false
}

// visit counts the sets of groups of the active process. After too many, its shadow takes over.
func (in *instance) visit(generation uint32) {
	if sets := in.placement.Visit(generation); sets > partition.MaxSets {
		in.log.Info().Uint32("generation", generation).Int("sets", sets).Msg("process has run on many sets of groups; its shadow takes over to free their memory")
		in.pair.Renew()
	}
}

// publishGroups records the published groups.
func (m *Manager) publishGroups() {
	if !m.onGPU() {
		return
	}
	desired := map[partition.Process][]int{}
	for _, p := range m.orchestrator.desired.Processes {
		if len(p.SMGroups) > 0 {
			desired[partition.Process{ID: gslice.ID{IF: p.IF, Instance: p.Instance}, Generation: p.Generation}] = p.SMGroups
		}
	}
	m.device.allocator.Publish(m.orchestrator.desired.Seq, desired)
}

// observeGroups records the observed groups.
func (m *Manager) observeGroups(o *control.Observed) {
	if !m.onGPU() {
		return
	}
	observed := map[partition.Process]partition.Observed{}
	for _, p := range o.Processes {
		observed[partition.Process{ID: gslice.ID{IF: p.IF, Instance: p.Instance}, Generation: p.Generation}] =
			partition.Observed{Groups: p.SMGroups, Ended: p.State.Ended()}
	}
	m.device.allocator.Observe(o.AckSeq, observed)
}

// moving reports whether an instance does not yet run on the groups of its share.
func (in *instance) moving() bool {
	return in.f.change == configs.ChangePartition && in.pair.Active() != nil && (in.placement.Waits || !in.settledOnGroups())
}

// moveTimeout is how long a process may take to move. It captures its graphs again, which
// takes a second or two. Its neighbours wait for it meanwhile.
const moveTimeout = 30 * time.Second

// watchMove kills a process that does not move; its shadow starts on the right groups.
func (in *instance) watchMove(now time.Duration) {
	q := in.pair.Active()
	after := now - max(in.placement.Since, in.tenure.movable())
	if q == nil || in.growing() || in.f.change != configs.ChangePartition || q.State != control.Active || q.Role == control.Kill || after < moveTimeout {
		return
	}
	if on := in.m.device.allocator.On(in.process(q.Generation)); len(on) > 0 && !slices.Equal(on, in.placement.Groups) {
		in.log.Error().Uint32("generation", q.Generation).Ints("on", on).Ints("ordered", in.placement.Groups).
			Dur("after_ms", after).Msg("process did not move to its groups in time; killed it")
		in.pair.Kill(q.Generation)
	}
}

// id and process name an instance and its generations for packages gslice and partition.
func (in *instance) id() gslice.ID { return gslice.ID{IF: in.f.name, Instance: in.index} }

func (in *instance) process(generation uint32) partition.Process {
	return partition.Process{ID: in.id(), Generation: generation}
}

// forgetGroups drops all records about another device's groups.
func (in *instance) forgetGroups() {
	in.order(nil)
	in.placement = placement{Placement: partition.Placement{Since: in.placement.Since}}
	in.processes.forgetObservations()
	in.warmedUp = warmedUp{}
}

func (m *Manager) eachInstance(do func(*instance)) {
	for _, f := range m.functions {
		for _, in := range f.instances {
			do(in)
		}
	}
}
