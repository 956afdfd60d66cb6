package sharing

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/partition"
	"github.com/penstock/penstock/models"
)

// groups is the policy that gives shares as groups of multiprocessors:
//
//  1. A process reports groups on which its model does not run: learnMinimum.
//  2. Package partition divides the groups among the instances: decide.
//  3. The desired processes carry the groups (orders.fill in manager/fleet), and the snapshot has what was published.
//  4. The orchestrator reports where processes run: observe, moving, watchMove.
//
// docs/adr/0004-partitions.md gives the reasons.
type groups struct {
	allocator partition.Allocator
	published uint64 // the last state that the allocator knows of
}

// placement is an instance's part in sharing by groups.
type placement struct {
	groups       []int                              // the last order
	since        time.Duration                      // when it was made, on the clock of Running
	waits, short bool                               // more groups will come; the device has fewer than the model needs
	starts       bool                               // as in SetGroups
	minimums     map[*models.Card]partition.Minimum // of models that failed on their groups
	// sets are the sets of groups that the process of a generation was assigned while it was active.
	sets       map[string]bool
	generation uint32
}

// maxSets bounds the device memory that a process loses to sets of groups that it once used.
// Each takes about 5 MiB, which the driver frees when the process ends (cuda.Context.Green).
const maxSets = 128

// partitioned counts the instances that want groups.
func (d *Decider) partitioned() (n int) {
	for i := range d.s.Functions {
		if f := &d.s.Functions[i]; d.s.Config.ChangeOf(f.Config) == configs.ChangePartition {
			n += len(f.Instances)
		}
	}
	return n
}

// Fits returns an error if there is no room for another function: partition.ErrTooMany if no groups are left.
func (d *Decider) Fits(s *Snapshot, c configs.Function) error {
	if err := s.Config.FitShare(&c, configurations(s.Functions)); err != nil {
		return fmt.Errorf("share %w", err)
	}
	have := len(d.Device.groups())
	if have == 0 || d.Change(s.Config, c) != configs.ChangePartition {
		return nil
	}
	n, taken := c.Instances, 0
	for i := range s.Functions {
		f := &s.Functions[i]
		if s.Config.ChangeOf(f.Config) == configs.ChangePartition {
			n += len(f.Instances)
		}
	}
	for _, m := range d.members {
		groups, _ := d.groups.needs(d, m)
		taken += max(0, groups-1)
	}
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

// forgetDevice drops all records about another device's groups.
func (p *groups) forgetDevice(d *Decider) {
	p.allocator = partition.Allocator{}
	for _, m := range d.members {
		p.order(d, m, nil, false)
		m.placement = placement{since: m.placement.since}
		for _, o := range m.seen {
			*o = observation{spent: o.spent}
		}
	}
}

// learnMinimum learns from a process that reports that its model does not run on its ordered
// groups. The process's end then does not count against the model.
func (p *groups) learnMinimum(d *Decider, m *member, q *Process, o *control.ObservedProcess) {
	device := &d.Device
	if len(o.InfeasibleGroups) == 0 || len(device.groups()) == 0 || m.change != configs.ChangePartition {
		return
	}
	minimum := m.placement.minimums[q.Card]
	learned, excused := minimum.Fails(device.groups(), partition.Failure{
		Groups: o.InfeasibleGroups, Generation: q.Generation, Newest: m.Last,
		Kept: o.SMGroups, Ends: o.State == control.Draining || o.State.Ended(),
	})
	if learned {
		m.placement.setMinimum(q.Card, minimum)
		p.allocator.Invalidate()
		needs, _ := p.needs(d, m)
		groups, infeasible := minimum.Min()
		message := "model does not run on so few multiprocessors; assigning more"
		if groups <= 1 {
			message = "model does not run on this group of multiprocessors alone; assigning another"
		}
		d.log(m.id, zerolog.WarnLevel, message, map[string]any{
			"generation": q.Generation, "groups": o.InfeasibleGroups, "multiprocessors": device.sms(o.InfeasibleGroups),
			"gets_groups": max(1, needs), "infeasible_groups": infeasible, "reason": o.Reason,
		})
	}
	if excused {
		d.do(Excuse{m.id, q.Generation})
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
func (p *groups) needs(d *Decider, m *member) (minGroups int, infeasible []int) {
	maps.DeleteFunc(m.placement.minimums, func(card *models.Card, _ partition.Minimum) bool { return !m.uses(card) })
	cards := map[*models.Card]bool{m.Card: true}
	for _, q := range m.Processes {
		cards[q.Card] = true
	}
	require := func(groups int, single []int) {
		minGroups, infeasible = max(minGroups, groups), append(infeasible, single...)
	}
	for card := range cards {
		own := m.placement.minimums[card]
		if m.servesAllBatches(card) {
			require(own.Min())
		} else {
			require(own.MinToStart(m.placement.groups))
		}
		require(p.minOfOthers(d, m, card))
	}
	slices.Sort(infeasible)
	return minGroups, slices.Compact(infeasible)
}

// minOfOthers returns what needs uses of the other instances' findings about a model.
func (p *groups) minOfOthers(d *Decider, m *member, card *models.Card) (minGroups int, infeasible []int) {
	fewest := len(d.Device.groups()) + 1
	var learned []partition.Minimum
	for _, other := range d.members {
		if on := p.servesOn(other, card); on != nil {
			fewest = min(fewest, len(on))
		}
		for c, minimum := range other.placement.minimums {
			if other != m && sameModel(c, card) {
				learned = append(learned, minimum)
			}
		}
	}
	return partition.MinOfOthers(learned, fewest, p.servesOn(m, card))
}

// servesAllBatches reports whether the instance serves such a model with all its batch sizes.
func (m *member) servesAllBatches(card *models.Card) bool {
	q := m.active()
	return q != nil && !m.growing() && q.State == control.Active && sameModel(q.Card, card)
}

// servesOn returns the groups that an instance serves on with all batch sizes. It returns nil if it
// does not, or while it moves to other groups.
func (p *groups) servesOn(m *member, card *models.Card) []int {
	if !m.servesAllBatches(card) || len(m.placement.groups) == 0 || !p.settled(m) {
		return nil
	}
	return m.placement.groups
}

// settled reports whether the active process runs on the ordered groups.
func (p *groups) settled(m *member) bool {
	return p.allocator.Settled(partition.Process{ID: m.id, Generation: m.Active}, m.placement.groups)
}

// moving reports whether an instance does not yet run on the groups of its share.
func (p *groups) moving(m *member) bool {
	return m.change == configs.ChangePartition && m.active() != nil && (m.placement.waits || !p.settled(m))
}

// sameModel reports whether two cards' models need the same.
func sameModel(a, b *models.Card) bool {
	return a == b || a.Name == b.Name && a.Version == b.Version && a.Framework == b.Framework && a.Model == b.Model &&
		slices.Equal(a.Data, b.Data) && slices.Equal(a.Command, b.Command) && slices.Equal(a.Batches, b.Batches)
}

// observe takes the orchestrator's report on where processes run.
func (p *groups) observe(o *control.Observed) {
	observed := map[partition.Process]partition.Observed{}
	for _, q := range o.Processes {
		observed[partition.Process{ID: gslice.ID{IF: q.IF, Instance: q.Instance}, Generation: q.Generation}] =
			partition.Observed{Groups: q.SMGroups, Ended: q.State.Ended()}
	}
	p.allocator.Observe(o.AckSeq, observed)
}

// publish records which groups the published processes have.
func (p *groups) publish(device string, o *control.Desired) {
	p.published = o.Seq
	desired := map[partition.Process][]int{}
	for _, q := range o.Processes {
		if q.Device == device && len(q.SMGroups) > 0 {
			desired[partition.Process{ID: gslice.ID{IF: q.IF, Instance: q.Instance}, Generation: q.Generation}] = q.SMGroups
		}
	}
	p.allocator.Publish(o.Seq, desired)
}

// decide orders for each instance the groups that are available to it now.
func (p *groups) decide(d *Decider) {
	if !d.onGPU() {
		return
	}
	var claims []partition.Claim
	var members []*member
	for _, m := range d.members {
		if m.change != configs.ChangePartition {
			if len(m.placement.groups) > 0 {
				p.order(d, m, nil, false)
			}
			continue
		}
		p.visit(d, m)
		p.watchMove(d, m)
		members = append(members, m)
	}
	if !p.allocator.Stale() {
		return
	}
	for _, m := range members {
		for card, minimum := range m.placement.minimums { // a model that failed on single groups may run on its present one
			if minimum.Runs(p.servesOn(m, card)) {
				m.placement.setMinimum(card, minimum)
			}
		}
		minGroups, infeasible := p.needs(d, m)
		claims = append(claims, partition.Claim{ID: m.id, Percent: m.Share, Min: minGroups, Infeasible: infeasible, Ordered: m.placement.groups})
	}
	orders, err := p.allocator.Divide(d.Device.groups(), claims)
	if err != nil {
		d.log(gslice.ID{}, zerolog.ErrorLevel, "cannot divide multiprocessors", map[string]any{"error": err.Error()})
		return
	}
	for i, o := range orders {
		m := members[i]
		x := &m.placement
		short := len(o.Target) < claims[i].Min
		if short && !x.short {
			d.log(m.id, zerolog.ErrorLevel, "no groups left for a model that does not run on so few multiprocessors", map[string]any{
				"needs_groups": claims[i].Min, "gets_groups": len(o.Target), "instances": len(claims), "groups": len(d.Device.groups()),
			})
		}
		x.short, x.waits = short, o.Waits()
		starts := !x.waits
		if x.waits && len(o.Now) > 0 {
			starts = partition.Suffices(o.Now, claims[i].Min, claims[i].Infeasible)
		}
		p.order(d, m, o.Now, starts)
	}
}

// order sets the groups that an instance should run on.
func (p *groups) order(d *Decider, m *member, groups []int, starts bool) {
	x := &m.placement
	if !slices.Equal(groups, x.groups) {
		d.log(m.id, zerolog.InfoLevel, "multiprocessor groups assigned", map[string]any{"from": x.groups, "to": groups, "share_percent": round(m.Share)})
		p.allocator.Invalidate()
		x.groups, x.since = groups, d.s.Running
	} else if starts == x.starts {
		return
	}
	x.starts = starts
	d.do(SetGroups{m.id, groups, starts})
}

// visit counts the sets of groups of the active process. After too many, its shadow takes over.
func (p *groups) visit(d *Decider, m *member) {
	x, q := &m.placement, m.active()
	if q == nil || len(q.Groups) == 0 {
		return
	}
	if x.generation != q.Generation {
		x.generation, x.sets = q.Generation, map[string]bool{}
	}
	set := fmt.Sprint(q.Groups)
	if x.sets[set] {
		return
	}
	x.sets[set] = true
	if n := len(x.sets); n > maxSets {
		d.log(m.id, zerolog.InfoLevel, "process has run on many sets of groups; its shadow takes over to free their memory", map[string]any{"generation": q.Generation, "sets": n})
		d.do(Renew{m.id})
	}
}

// MoveTimeout is how long a process may take to move. It captures its graphs again, which
// takes a second or two. Its neighbours wait for it meanwhile.
const MoveTimeout = 30 * time.Second

// watchMove kills a process that does not move; its shadow starts on the right groups.
func (p *groups) watchMove(d *Decider, m *member) {
	q, x := m.active(), &m.placement
	after := d.s.Running - max(x.since, m.Movable)
	if q == nil || m.growing() || q.State != control.Active || q.Role == control.Kill || after < MoveTimeout {
		return
	}
	if on := p.allocator.On(partition.Process{ID: m.id, Generation: q.Generation}); len(on) > 0 && !slices.Equal(on, x.groups) {
		d.log(m.id, zerolog.ErrorLevel, "process did not move to its groups in time; killed it", map[string]any{
			"generation": q.Generation, "on": on, "ordered": x.groups, "after_ms": after,
		})
		d.do(Kill{m.id, q.Generation})
	}
}
