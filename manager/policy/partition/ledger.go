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

// ledger knows which groups each process may be running on. These are the groups of every
// order since the last acknowledged one, and those that the process has not reported to have
// left. Orders and reports take time to arrive. A process therefore counts until its end is
// observed, or until the orchestrator has acknowledged a state without it and does not report
// it.
//
// The zero ledger is empty. A ledger is not safe for concurrent use.
type ledger struct {
	entries map[Process]*entry
}

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
func (l *ledger) Publish(seq uint64, desired map[Process][]int) {
	if l.entries == nil {
		l.entries = map[Process]*entry{}
	}
	for p, e := range l.entries {
		if _, ok := desired[p]; !ok && e.dropped == 0 {
			e.dropped = seq
		}
	}
	for p, groups := range desired {
		e := l.entries[p]
		if e == nil {
			e = &entry{}
			l.entries[p] = e
		}
		e.dropped = 0
		if n := len(e.orders); n == 0 || !slices.Equal(e.orders[n-1].groups, groups) {
			e.orders = append(e.orders, order{seq, slices.Clone(groups)})
		}
	}
}

// Observe records the orchestrator's report on all processes that it knows, after it carried
// out the acknowledged state.
func (l *ledger) Observe(acknowledged uint64, observed map[Process]Observed) {
	for p, e := range l.entries {
		o, known := observed[p]
		if known && o.Ended || !known && e.dropped != 0 && e.dropped <= acknowledged {
			delete(l.entries, p)
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

// Busy returns the groups that processes of an instance may be running on, ascending.
func (l *ledger) Busy(id gslice.ID) []int {
	return l.groups(func(other gslice.ID) bool { return other == id })
}

// Others returns the groups that processes of other instances than these may be running on,
// ascending.
func (l *ledger) Others(ids map[gslice.ID]bool) []int {
	return l.groups(func(other gslice.ID) bool { return !ids[other] })
}

// Settled reports whether a process runs on exactly these groups.
func (l *ledger) Settled(p Process, groups []int) bool {
	e := l.entries[p]
	return e != nil && slices.Equal(e.observed, groups) && len(e.orders) == 1 && slices.Equal(e.orders[0].groups, groups)
}

// On returns the groups that a process last reported to run on or move to. The caller must not
// change them.
func (l *ledger) On(p Process) []int {
	if e := l.entries[p]; e != nil {
		return e.observed
	}
	return nil
}

func (l *ledger) groups(include func(gslice.ID) bool) []int {
	var out []int
	for p, e := range l.entries {
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
