package partition

import "slices"

// A model that needs more groups gets clusterSMs more multiprocessors at a time, at most
// maxSteps times. A thread block cluster of the portable size has 8 blocks. They take at
// most 8 multiprocessors, all in one processing cluster of the GPU. A failure on four times
// as many has another cause.
const (
	clusterSMs = 8
	maxSteps   = 4
)

// maxSingles is the number of single groups on which a model must fail before one group
// counts as too few for it.
const maxSingles = 2

// Minimum is the learned minimum of one model: what an instance has learned about the groups
// that the model needs. The zero value knows nothing. Copies are independent.
type Minimum struct {
	groups int // the number that the model has needed so far; 0 means one
	// infeasible are single groups that the model failed on. feasible are some that it ran on
	// after such a failure. Groups differ: one may span two processing clusters, and the odd
	// group is the remainder of all clusters.
	infeasible, feasible []int
	// newest is the newest generation when something was last learned. Generations up to it
	// may have been woken on fewer groups.
	newest uint32
}

// Failure is a process's report that its model does not run on the ordered groups.
type Failure struct {
	Groups     []int
	Generation uint32 // of the process
	Newest     uint32 // the newest generation of the instance
	// Kept are the groups that the process still runs on; empty if it ends.
	Kept []int
	Ends bool
}

// Fails learns from a failure on a device with groups of these sizes. Either the single group
// does not suit the model, or the model needs more groups. learned reports whether that was
// new. excused reports whether the process ends because of groups that are now known not to
// suffice, which is no failure of the model.
func (m *Minimum) Fails(groupSMs []int, f Failure) (learned, excused bool) {
	n := len(f.Groups)
	single := singleGroup(groupSMs, f.Groups)
	// A process that kept its old groups proves that a larger set works.
	plausible := n < maxSteps*max(1, clusterSMs/groupSMs[0]) || !f.Ends && n < len(f.Kept)
	was := *m
	switch {
	case !plausible || n >= len(groupSMs):
	case single < 0:
		if n >= m.groups {
			m.groups = min(moreGroups(groupSMs, n), len(groupSMs))
		}
	case !slices.Contains(m.infeasible, single):
		m.infeasible = append(slices.Clone(m.infeasible), single)
		m.feasible = slices.DeleteFunc(slices.Clone(m.feasible), func(g int) bool { return g == single })
		if countOrdinary(groupSMs, m.infeasible) >= maxSingles {
			m.groups = max(m.groups, moreGroups(groupSMs, 1))
		}
	}
	if learned = m.groups != was.groups || len(m.infeasible) != len(was.infeasible); learned {
		m.newest = f.Newest
	}
	insufficient := n < m.groups || single >= 0 && slices.Contains(m.infeasible, single)
	return learned, f.Ends && f.Generation <= m.newest && insufficient
}

// Runs records that the model runs on groups. Only a single group is worth remembering, and
// only if the model has failed on another. Runs reports whether it was recorded.
func (m *Minimum) Runs(groups []int) bool {
	if len(groups) != 1 || len(m.infeasible) == 0 || slices.Contains(m.feasible, groups[0]) || slices.Contains(m.infeasible, groups[0]) {
		return false
	}
	m.feasible = append(slices.Clone(m.feasible), groups[0])
	return true
}

// Min returns the number of groups that the model needs, 0 if unknown, and the single groups
// on which it does not run. The caller must not change them.
func (m *Minimum) Min() (groups int, infeasible []int) { return m.groups, m.infeasible }

// MinToStart is Min for an instance that has no process serving the model with all batch
// sizes, and was ordered to these groups. Two groups surely work for a model that failed on
// one. The instance moves to a single one later.
func (m *Minimum) MinToStart(ordered []int) (groups int, infeasible []int) {
	if len(m.infeasible) == 0 || len(ordered) == 1 && slices.Contains(m.feasible, ordered[0]) {
		return m.Min()
	}
	return max(m.groups, 2), m.infeasible
}

// MinOfOthers combines the minimums that other instances have learned about a model. It
// ignores their number of groups if an instance serves on fewer: fewest is the smallest number
// on which one does. It also ignores their failures on own, the groups on which the asking
// instance serves; empty if it does not serve.
func MinOfOthers(learned []Minimum, fewest int, own []int) (groups int, infeasible []int) {
	for _, m := range learned {
		groups, infeasible = max(groups, m.groups), append(infeasible, m.infeasible...)
	}
	if groups > fewest {
		groups = 0
	}
	return groups, slices.DeleteFunc(infeasible, func(g int) bool { return slices.Equal(own, []int{g}) })
}

// Suffices reports whether groups are enough for a minimum.
func Suffices(groups []int, minGroups int, infeasible []int) bool {
	return len(groups) >= minGroups && !(len(groups) == 1 && slices.Contains(infeasible, groups[0]))
}

// singleGroup returns the group that a model failed on if the failure tells about this group
// rather than the number of groups. That is so for a single group that is large enough for a
// thread block cluster. Otherwise singleGroup returns -1. A process reported the groups, so
// they may have any value.
func singleGroup(groupSMs, failed []int) int {
	if len(failed) != 1 || failed[0] < 0 || failed[0] >= len(groupSMs) || groupSMs[0] < clusterSMs {
		return -1
	}
	return failed[0]
}

// countOrdinary counts the groups of the common size.
func countOrdinary(groupSMs, groups []int) (n int) {
	for _, g := range groups {
		if groupSMs[g] == groupSMs[0] {
			n++
		}
	}
	return n
}

// moreGroups returns the number of groups to try after a failure on n: one more. If groups are
// small, it adds 8, 16 or 32 multiprocessors, so that few starts fail.
func moreGroups(groupSMs []int, n int) int {
	unit := groupSMs[0]
	if unit >= clusterSMs {
		return n + 1
	}
	sms := clusterSMs
	for sms <= n*unit {
		sms *= 2
	}
	return (sms + unit - 1) / unit
}
