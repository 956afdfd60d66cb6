package partition

import (
	"slices"

	"github.com/penstock/penstock/manager/policy/gslice"
)

// Process is one generation of an instance.
type Process struct {
	ID         gslice.ID
	Generation uint32
}

// Allocator divides a device's groups again whenever that may have another result. It knows which groups
// each process may be running on. These are the groups of every
// order since the last acknowledged one, and those that the process has not reported to have
// left. Orders and reports take time to arrive. A process therefore counts until its end is
// observed, or until the orchestrator has acknowledged a state without it and does not report
// it.
//
// The zero value is for a device without processes. An Allocator is not safe for concurrent use.
type Allocator struct {
	entries map[Process]*entry
	stale   bool
}

// Invalidate records that a claim, or the set of groups, has changed.
func (a *Allocator) Invalidate() { a.stale = true }

// Stale reports whether Divide may have another result than last time.
func (a *Allocator) Stale() bool { return a.stale }

// entry is one process.
type entry struct {
	orders   []order // by sequence number, from the last acknowledged one
	observed []int   // the groups of its last report
	// dropped is the first published state without the process; 0 while it is desired.
	dropped uint64
}

type order struct {
	seq    uint64
	groups []int
}

// Observed is the observed state of a process.
type Observed struct {
	Groups []int
	Ended  bool
}

// Publish records a state that is sent to the orchestrator: the groups of each desired process
// that may use the device. Sequence numbers start at 1 and rise.
func (a *Allocator) Publish(seq uint64, desired map[Process][]int) {
	a.stale = true
	if a.entries == nil {
		a.entries = map[Process]*entry{}
	}
	for p, e := range a.entries {
		if _, ok := desired[p]; !ok && e.dropped == 0 {
			e.dropped = seq
		}
	}
	for p, groups := range desired {
		e := a.entries[p]
		if e == nil {
			e = &entry{}
			a.entries[p] = e
		}
		e.dropped = 0
		if n := len(e.orders); n == 0 || !slices.Equal(e.orders[n-1].groups, groups) {
			e.orders = append(e.orders, order{seq, slices.Clone(groups)})
		}
	}
}

// Observe records the orchestrator's report on all processes that it knows, after it carried
// out the acknowledged state.
func (a *Allocator) Observe(acknowledged uint64, observed map[Process]Observed) {
	a.stale = true
	for p, e := range a.entries {
		o, known := observed[p]
		if known && o.Ended || !known && e.dropped != 0 && e.dropped <= acknowledged {
			delete(a.entries, p)
			continue
		}
		e.observed = slices.Clone(o.Groups)
		// Orders before the acknowledged one are over: the report has the groups that the
		// process still has of them.
		for len(e.orders) > 1 && e.orders[1].seq <= acknowledged {
			e.orders = e.orders[1:]
		}
		if e.dropped != 0 && e.dropped <= acknowledged {
			e.orders = nil
		}
	}
}

// busy returns the groups that processes of an instance may be running on, ascending.
func (a *Allocator) busy(id gslice.ID) []int {
	return a.groups(func(other gslice.ID) bool { return other == id })
}

// others returns the groups that processes of other instances than these may be running on,
// ascending.
func (a *Allocator) others(ids map[gslice.ID]bool) []int {
	return a.groups(func(other gslice.ID) bool { return !ids[other] })
}

// Settled reports whether a process runs on exactly these groups.
func (a *Allocator) Settled(p Process, groups []int) bool {
	e := a.entries[p]
	return e != nil && slices.Equal(e.observed, groups) && len(e.orders) == 1 && slices.Equal(e.orders[0].groups, groups)
}

// On returns the groups that a process last reported to run on or move to. The caller must not
// change them.
func (a *Allocator) On(p Process) []int {
	if e := a.entries[p]; e != nil {
		return e.observed
	}
	return nil
}

func (a *Allocator) groups(include func(gslice.ID) bool) []int {
	var out []int
	for p, e := range a.entries {
		if !include(p.ID) {
			continue
		}
		out = append(out, e.observed...)
		for _, o := range e.orders {
			out = append(out, o.groups...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Divide returns the groups of each claim, in the order of the claims. Their IDs must differ, and
// Ordered must be what the last call returned as Now. groupSMs are the sizes of the groups by
// index; only the last may differ. Divide sets Busy of each claim. It returns ErrTooMany if there
// are fewer groups than claims.
func (a *Allocator) Divide(groupSMs []int, claims []Claim) ([]Order, error) {
	a.stale = false
	ids := map[gslice.ID]bool{}
	for i := range claims {
		claims[i].Busy = a.busy(claims[i].ID)
		ids[claims[i].ID] = true
	}
	return divide(groupSMs, claims, a.others(ids))
}
