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

// Ledger knows which groups every process may be running on: all that it was
// ordered since what is known of it was true, and all that it has not said it left.
// What is published takes time to arrive, and so does what is observed; a process
// counts until it was seen dead, or its orchestrator, told that it is not wanted,
// does not know it. The zero Ledger is empty. It is not safe for concurrent use.
type Ledger struct {
	entries map[Process]*entry
}

// entry is one process.
type entry struct {
	orders []order // from the last that was acknowledged on, by sequence number
	seen   []int   // where it was said to be last
	// dropped is the first state published that does not want the process; 0 while
	// it is wanted.
	dropped uint64
}

type order struct {
	seq    uint64
	groups []int
}

// Seen is a process as it is observed.
type Seen struct {
	Groups []int
	Ended  bool
}

// Publish notes a state that is told to the orchestrator: the groups of every
// process that may touch the device. Those of before that are not in it are not
// wanted any more. Sequence numbers start at 1 and rise.
func (l *Ledger) Publish(seq uint64, wanted map[Process][]int) {
	if l.entries == nil {
		l.entries = map[Process]*entry{}
	}
	for p, e := range l.entries {
		if _, ok := wanted[p]; !ok && e.dropped == 0 {
			e.dropped = seq
		}
	}
	for p, groups := range wanted {
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

// Observe takes in what the orchestrator sees when it has carried out the state
// acknowledged: every process that it knows.
func (l *Ledger) Observe(acknowledged uint64, seen map[Process]Seen) {
	for p, e := range l.entries {
		s, known := seen[p]
		switch {
		case known && s.Ended, !known && e.dropped != 0 && e.dropped <= acknowledged:
			delete(l.entries, p)
			continue
		}
		e.seen = slices.Clone(s.Groups)
		// What came before the order in force is over: where it is not, seen says so.
		for len(e.orders) > 1 && e.orders[1].seq <= acknowledged {
			e.orders = e.orders[1:]
		}
		if e.dropped != 0 && e.dropped <= acknowledged {
			e.orders = nil
		}
	}
}

// Busy are the groups that processes of an instance may be running on, ascending.
func (l *Ledger) Busy(id gslice.ID) []int {
	return l.groups(func(other gslice.ID) bool { return other == id })
}

// Others are the groups that processes of any instance but these may be running
// on, ascending.
func (l *Ledger) Others(ids map[gslice.ID]bool) []int {
	return l.groups(func(other gslice.ID) bool { return !ids[other] })
}

// Settled reports whether a process is known to run on groups and nothing else.
func (l *Ledger) Settled(p Process, groups []int) bool {
	e := l.entries[p]
	return e != nil && slices.Equal(e.seen, groups) && len(e.orders) == 1 && slices.Equal(e.orders[0].groups, groups)
}

// On is where a process was last said to run, or to be on its way; it is the
// ledger's.
func (l *Ledger) On(p Process) []int {
	if e := l.entries[p]; e != nil {
		return e.seen
	}
	return nil
}

func (l *Ledger) groups(of func(gslice.ID) bool) []int {
	var out []int
	for p, e := range l.entries {
		if !of(p.ID) {
			continue
		}
		out = append(out, e.seen...)
		for _, o := range e.orders {
			out = append(out, o.groups...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
