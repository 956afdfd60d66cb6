package sharing

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
func (s *Sharing) partitioned() (n int) {
	for _, f := range s.functions {
		if f.Configured == configs.ChangePartition {
			n += len(f.instances)
		}
	}
	return n
}

// Fits returns an error if there is no room for another function: partition.ErrTooMany if no groups are left.
func (s *Sharing) Fits(c configs.Function) error {
	if err := s.cfg.FitShare(&c, s.configurations()); err != nil {
		return fmt.Errorf("share %w", err)
	}
	have, more := len(s.Device.groups()), c.Instances
	if have == 0 || s.Device.changeOn(s.cfg.ChangeOf(c)) != configs.ChangePartition {
		return nil
	}
	n, taken := s.partitioned()+more, 0
	s.eachInstance(func(in *Instance) { taken += max(0, in.MinGroups()-1) })
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
func (in *Instance) learnMinimum(q *pair.Process, o *control.ObservedProcess) {
	device := &in.f.s.Device
	if len(o.InfeasibleGroups) == 0 || len(device.groups()) == 0 || in.f.Change != configs.ChangePartition {
		return
	}
	minimum := in.Placement.minimums[q.Card]
	learned, excused := minimum.Fails(device.groups(), partition.Failure{
		Groups: o.InfeasibleGroups, Generation: q.Generation, Newest: in.pair.Last(),
		Kept: o.SMGroups, Ends: o.State == control.Draining || o.State.Ended(),
	})
	if learned {
		in.Placement.setMinimum(q.Card, minimum)
		device.allocator.Invalidate()
		groups, infeasible := minimum.Min()
		message := "model does not run on so few multiprocessors; assigning more"
		if groups <= 1 {
			message = "model does not run on this group of multiprocessors alone; assigning another"
		}
		in.log.Warn().Uint32("generation", q.Generation).Ints("groups", o.InfeasibleGroups).Int("multiprocessors", device.sms(o.InfeasibleGroups)).
			Int("gets_groups", max(1, in.MinGroups())).Ints("infeasible_groups", infeasible).Str("reason", o.Reason).Msg(message)
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
func (in *Instance) needs() (minGroups int, infeasible []int) {
	maps.DeleteFunc(in.Placement.minimums, func(card *models.Card, _ partition.Minimum) bool { return !in.pair.Uses(card) })
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
		own := in.Placement.minimums[card]
		if in.servesAllBatches(card) {
			require(own.Min())
		} else {
			require(own.MinToStart(in.Placement.Groups))
		}
		require(in.minOfOthers(card))
	}
	slices.Sort(infeasible)
	return minGroups, slices.Compact(infeasible)
}

// minOfOthers returns what needs uses of the other instances' findings about a model.
func (in *Instance) minOfOthers(card *models.Card) (minGroups int, infeasible []int) {
	fewest := len(in.f.s.Device.groups()) + 1
	var learned []partition.Minimum
	in.f.s.eachInstance(func(other *Instance) {
		if on := other.servesOn(card); on != nil {
			fewest = min(fewest, len(on))
		}
		for c, minimum := range other.Placement.minimums {
			if other != in && sameModel(c, card) {
				learned = append(learned, minimum)
			}
		}
	})
	return partition.MinOfOthers(learned, fewest, in.servesOn(card))
}

// MinGroups returns how many groups the instance's models need, as far as is known.
func (in *Instance) MinGroups() int {
	groups, _ := in.needs()
	return groups
}

// servesAllBatches reports whether the instance serves such a model with all its batch sizes.
func (in *Instance) servesAllBatches(card *models.Card) bool {
	q := in.pair.Active()
	return q != nil && !in.Growing() && q.State == control.Active && sameModel(q.Card, card)
}

// servesOn returns the groups that it serves on with all batch sizes. It returns nil if it
// does not, or while it moves to other groups.
func (in *Instance) servesOn(card *models.Card) []int {
	if !in.servesAllBatches(card) || len(in.Placement.Groups) == 0 || !in.settledOnGroups() {
		return nil
	}
	return in.Placement.Groups
}

// settledOnGroups reports whether the active process runs on the ordered groups. There must
// be an active process.
func (in *Instance) settledOnGroups() bool {
	return in.f.s.Device.allocator.Settled(in.process(in.pair.Active().Generation), in.Placement.Groups)
}

// sameModel reports whether two cards' models need the same.
func sameModel(a, b *models.Card) bool {
	return a == b || a.Name == b.Name && a.Version == b.Version && a.Framework == b.Framework && a.Model == b.Model &&
		slices.Equal(a.Data, b.Data) && slices.Equal(a.Command, b.Command) && slices.Equal(a.Batches, b.Batches)
}

// noteFeasible records that a model which failed on single groups runs on its present one.
func (in *Instance) noteFeasible() {
	for card, minimum := range in.Placement.minimums {
		if minimum.Runs(in.servesOn(card)) {
			in.Placement.setMinimum(card, minimum)
		}
	}
}

// allocateGroups orders for each instance the groups that are available to it now.
func (s *Sharing) allocateGroups() {
	d := &s.Device
	if !d.allocator.Stale() || !d.Known {
		return
	}
	var claims []partition.Claim
	var instances []*Instance
	s.eachInstance(func(in *Instance) {
		if in.f.Change == configs.ChangePartition {
			in.noteFeasible()
			claims = append(claims, in.claim())
			instances = append(instances, in)
		}
	})
	orders, err := d.allocator.Divide(d.groups(), claims)
	if err != nil {
		s.log.Error().Err(err).Msg("cannot divide multiprocessors")
		return
	}
	for i, o := range orders {
		in, p := instances[i], &instances[i].Placement
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
func (in *Instance) claim() partition.Claim {
	minGroups, infeasible := in.needs()
	return partition.Claim{
		ID: in.id, Percent: in.pair.Share(), Min: minGroups, Infeasible: infeasible, Ordered: in.Placement.Groups,
	}
}

// order sets the groups that an instance should run on.
func (in *Instance) order(groups []int) {
	before := in.Placement.Groups
	if in.Placement.Order(groups, runclock.Now()) {
		in.log.Info().Ints("from", before).Ints("to", groups).Float64("share_percent", round(in.pair.Share())).Msg("multiprocessor groups assigned")
		in.f.s.Device.allocator.Invalidate()
	}
}

// groupsFor returns the groups of a desired process. wait is true for a process that should
// serve and must wait for groups.
func (in *Instance) groupsFor(generation uint32, role control.Role) (groups []int, wait bool) {
	switch {
	case in.f.Change != configs.ChangePartition || role == control.Shadow:
		return nil, false
	case role != control.Serve:
		return in.Placement.Assigned(generation), false
	}
	if groups = in.Placement.Assign(generation, in.needs); groups == nil {
		return nil, true
	}
	if q := in.pair.Active(); q != nil && q.Generation == generation {
		in.visit(generation)
	}
	return groups, false
}

// visit counts the sets of groups of the active process. After too many, its shadow takes over.
func (in *Instance) visit(generation uint32) {
	if sets := in.Placement.Visit(generation); sets > partition.MaxSets {
		in.log.Info().Uint32("generation", generation).Int("sets", sets).Msg("process has run on many sets of groups; its shadow takes over to free their memory")
		in.pair.Renew()
	}
}

// Published records which processes were published in the desired state of a sequence number.
func (s *Sharing) Published(seq uint64, processes []control.DesiredProcess) {
	if !s.onGPU() {
		return
	}
	desired := map[partition.Process][]int{}
	for _, p := range processes {
		if len(p.SMGroups) > 0 {
			desired[partition.Process{ID: gslice.ID{IF: p.IF, Instance: p.Instance}, Generation: p.Generation}] = p.SMGroups
		}
	}
	s.Device.allocator.Publish(seq, desired)
}

// Observe applies the orchestrator's report on the device and on where processes run. It reports whether
// another device replaces the one before, whose processes have ended.
func (s *Sharing) Observe(o *control.Observed) (replaced bool) {
	s.cpus = o.CPUs
	replaced = s.learnDevice(o)
	if !s.onGPU() {
		return replaced
	}
	observed := map[partition.Process]partition.Observed{}
	for _, p := range o.Processes {
		observed[partition.Process{ID: gslice.ID{IF: p.IF, Instance: p.Instance}, Generation: p.Generation}] =
			partition.Observed{Groups: p.SMGroups, Ended: p.State.Ended()}
	}
	s.Device.allocator.Observe(o.AckSeq, observed)
	return replaced
}

// Moving reports whether an instance does not yet run on the groups of its share.
func (in *Instance) Moving() bool {
	return in.f.Change == configs.ChangePartition && in.pair.Active() != nil && (in.Placement.Waits || !in.settledOnGroups())
}

// MoveTimeout is how long a process may take to move. It captures its graphs again, which
// takes a second or two. Its neighbours wait for it meanwhile.
const MoveTimeout = 30 * time.Second

// WatchMove kills a process that does not move; its shadow starts on the right groups. Both times are by
// runclock.Now; movable is since when the process could move.
func (in *Instance) WatchMove(now, movable time.Duration) {
	q := in.pair.Active()
	after := now - max(in.Placement.Since, movable)
	if q == nil || in.Growing() || in.f.Change != configs.ChangePartition || q.State != control.Active || q.Role == control.Kill || after < MoveTimeout {
		return
	}
	if on := in.f.s.Device.allocator.On(in.process(q.Generation)); len(on) > 0 && !slices.Equal(on, in.Placement.Groups) {
		in.log.Error().Uint32("generation", q.Generation).Ints("on", on).Ints("ordered", in.Placement.Groups).
			Dur("after_ms", after).Msg("process did not move to its groups in time; killed it")
		in.pair.Kill(q.Generation)
	}
}

// process names a generation for package partition.
func (in *Instance) process(generation uint32) partition.Process {
	return partition.Process{ID: in.id, Generation: generation}
}

// forgetGroups drops all records about another device's groups.
func (in *Instance) forgetGroups() {
	in.order(nil)
	in.Placement = placement{Placement: partition.Placement{Since: in.Placement.Since}}
	in.processes.forgetObservations()
}
