package partition

import (
	"fmt"
	"slices"
	"time"
)

// MaxSets bounds the device memory that a process loses to sets of groups that it once used.
// Each takes about 5 MiB, which the driver frees when the process ends (cuda.Context.Green).
const MaxSets = 128

// Placement has the groups that an instance is ordered to, and those that its processes were
// given. All processes of an instance have the same groups, so no other instance ever
// has them. The zero value has no groups.
type Placement struct {
	Groups []int         // the last order; do not change its elements
	Since  time.Duration // when it was made, on the caller's clock
	Waits  bool          // more groups will come when other instances have left
	Short  bool          // the device has fewer groups than the model needs

	assigned map[uint32][]int // the last groups of each generation
	// sets are the sets of groups that the active process was assigned; last is the last one.
	sets map[string]bool
	last []int
}

// Order sets the groups that the instance should run on, and reports whether they changed.
func (p *Placement) Order(groups []int, now time.Duration) bool {
	if slices.Equal(groups, p.Groups) {
		return false
	}
	p.Groups, p.Since = groups, now
	return true
}

// Assign gives the ordered groups to a process that should serve. It returns nil if the
// process must wait, because no group is ordered yet. It also does so if more groups will come
// and a new process cannot run on the present ones. needs returns what the models need, as
// suffices takes it.
func (p *Placement) Assign(generation uint32, needs func() (minGroups int, infeasible []int)) []int {
	if len(p.Groups) == 0 {
		return nil
	}
	if p.Waits && p.assigned[generation] == nil {
		if minGroups, infeasible := needs(); !suffices(p.Groups, minGroups, infeasible) {
			return nil
		}
	}
	if p.assigned == nil {
		p.assigned = map[uint32][]int{}
	}
	p.assigned[generation] = p.Groups
	return p.Groups
}

// Assigned returns the last groups of a generation. A process that drains keeps them.
func (p *Placement) Assigned(generation uint32) []int { return p.assigned[generation] }

// Visit counts the sets of groups of the active process, with the one that it was assigned
// last. It returns 0 if that has not changed since the last call.
func (p *Placement) Visit(active uint32) (sets int) {
	if slices.Equal(p.assigned[active], p.last) && len(p.sets) > 0 {
		return 0
	}
	if p.sets == nil {
		p.sets = map[string]bool{}
	}
	p.last = p.assigned[active]
	p.sets[fmt.Sprint(p.last)] = true
	return len(p.sets)
}

// Replaced forgets the sets of the active process, because another one takes its place.
func (p *Placement) Replaced() { clear(p.sets) }

// Forget drops a generation that has ended.
func (p *Placement) Forget(generation uint32) { delete(p.assigned, generation) }
