package partition

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/policy/gslice"
)

func process(name string, generation uint32) Process {
	return Process{ID: id(name), Generation: generation}
}

func TestLedgerBusy(t *testing.T) {
	var l Allocator
	a := process("a", 1)
	busy := func(want ...int) {
		t.Helper()
		if got := l.busy(a.ID); !slices.Equal(got, want) {
			t.Errorf("busy %v, want %v", got, want)
		}
	}
	l.Publish(1, map[Process][]int{a: {0, 1}})
	busy(0, 1)
	l.Observe(1, map[Process]Observed{a: {Groups: []int{0, 1}}})
	l.Publish(2, map[Process][]int{a: {0}})
	busy(0, 1)
	// It was ordered to a third group and back before the orchestrator received that.
	l.Publish(3, map[Process][]int{a: {0, 2}})
	l.Publish(4, map[Process][]int{a: {0}})
	busy(0, 1, 2)
	l.Observe(2, map[Process]Observed{a: {Groups: []int{0, 1}}})
	busy(0, 1, 2)
	l.Observe(4, map[Process]Observed{a: {Groups: []int{0, 2}}})
	busy(0, 2)
	if l.Settled(a, []int{0}) {
		t.Error("it is settled on 0, and may still be on 2")
	}
	l.Observe(4, map[Process]Observed{a: {Groups: []int{0}}})
	busy(0)
	if !l.Settled(a, []int{0}) {
		t.Error("it is not settled on 0, where it was seen")
	}
}

func TestLedgerDropped(t *testing.T) {
	var l Allocator
	a := process("a", 1)
	l.Publish(1, map[Process][]int{a: {3}})
	l.Publish(2, nil)
	for _, step := range []struct {
		name  string
		acked uint64
		seen  map[Process]Observed
		want  []int
	}{
		{"it may be started still", 0, nil, []int{3}},
		{"it was", 1, map[Process]Observed{a: {Groups: []int{3}}}, []int{3}},
		{"told that it is not wanted, it ends", 2, map[Process]Observed{a: {Groups: []int{3}}}, []int{3}},
		{"it has", 2, map[Process]Observed{a: {Groups: []int{3}, Ended: true}}, nil},
	} {
		l.Observe(step.acked, step.seen)
		if got := l.busy(a.ID); !slices.Equal(got, step.want) {
			t.Errorf("%s: busy %v, want %v", step.name, got, step.want)
		}
	}
	l.Publish(3, map[Process][]int{a: {3}})
	l.Publish(4, nil)
	l.Observe(4, nil)
	if got := l.busy(a.ID); got != nil {
		t.Errorf("an orchestrator that does not know it: busy %v, want nothing", got)
	}
}

// world is a harness: the orchestrator and the processes of a node with a ledger. All messages
// are delayed and stay in order.
type world struct {
	t *rapid.T
	// Of the manager:
	ledger     Allocator
	sms        []int
	wants      map[gslice.ID]float64
	needs      map[gslice.ID]int // groups, at least
	infeasible map[gslice.ID][]int
	ordered    map[gslice.ID][]int
	serving    map[gslice.ID][]uint32 // generations that are desired
	last       uint32
	seq        uint64
	// Under way:
	down []message // to the orchestrator
	up   []report  // to the manager
	// Of the orchestrator and the device:
	told  message
	procs map[Process]*proc
}

type message struct {
	seq    uint64
	wanted map[Process][]int
}

type report struct {
	acked uint64
	seen  map[Process]Observed
}

// proc runs on on, and on the groups of to as well while it moves.
type proc struct {
	on, to []int
	dying  bool
	dead   bool
}

func (p *proc) may() []int {
	all := slices.Concat(p.on, p.to)
	slices.Sort(all)
	return slices.Compact(all)
}

func (w *world) claim(i gslice.ID) Claim {
	return Claim{ID: i, Percent: w.wants[i], Min: w.needs[i], Infeasible: w.infeasible[i], Ordered: w.ordered[i], Busy: w.ledger.busy(i)}
}

// decide lets the manager divide the groups and publish the result.
func (w *world) decide() {
	ids := slices.SortedFunc(maps.Keys(w.wants), gslice.ID.Compare)
	var claims []Claim
	mine := map[gslice.ID]bool{}
	for _, i := range ids {
		claims = append(claims, w.claim(i))
		mine[i] = true
	}
	orders, err := divide(w.sms, claims, w.ledger.others(mine))
	must.OK(w.t, err)
	for _, o := range orders {
		w.ordered[o.ID] = o.Now
	}
	m := message{wanted: map[Process][]int{}}
	for i, generations := range w.serving {
		for _, g := range generations {
			if groups := w.ordered[i]; len(groups) > 0 {
				m.wanted[Process{i, g}] = groups
			}
		}
	}
	w.seq++
	m.seq = w.seq
	w.ledger.Publish(m.seq, m.wanted)
	w.down = append(w.down, m)
}

// deliver lets the orchestrator receive up to the n-th message. It follows the latest one.
func (w *world) deliver(n int) {
	if n = min(n, len(w.down)); n == 0 {
		return
	}
	w.told, w.down = w.down[n-1], w.down[n:]
	for p, groups := range w.told.wanted {
		q := w.procs[p]
		switch {
		case q == nil:
			w.procs[p] = &proc{on: groups}
		case !q.dying && !q.dead:
			// It may be on the groups of an unfinished move until it reports otherwise.
			q.on, q.to = q.may(), groups
		}
	}
	for p, q := range w.procs {
		if _, ok := w.told.wanted[p]; !ok {
			q.dying = true
		}
	}
	w.tell()
}

// tell sends a report of the orchestrator.
func (w *world) tell() {
	r := report{acked: w.told.seq, seen: map[Process]Observed{}}
	for p, q := range w.procs {
		if _, wanted := w.told.wanted[p]; q.dead && !wanted {
			continue // forgotten
		}
		r.seen[p] = Observed{Groups: q.may(), Ended: q.dead}
	}
	w.up = append(w.up, r)
}

// hear lets the manager receive the next n reports.
func (w *world) hear(n int) {
	for ; n > 0 && len(w.up) > 0; n-- {
		r := w.up[0]
		w.up = w.up[1:]
		w.ledger.Observe(r.acked, r.seen)
		for p, s := range r.seen {
			if s.Ended {
				w.end(p)
			}
		}
	}
}

// end replaces a desired process by the next generation.
func (w *world) end(p Process) {
	at := slices.Index(w.serving[p.ID], p.Generation)
	if at < 0 {
		return
	}
	w.serving[p.ID] = slices.Delete(w.serving[p.ID], at, at+1)
	if _, wanted := w.wants[p.ID]; wanted && len(w.serving[p.ID]) == 0 {
		w.start(p.ID)
	}
}

func (w *world) start(i gslice.ID) {
	w.last++
	w.serving[i] = append(w.serving[i], w.last)
}

// work lets one process follow its orders.
func (w *world) work(p Process) {
	q := w.procs[p]
	switch {
	case q == nil || q.dead:
		return
	case q.dying:
		q.on, q.to, q.dead = nil, nil, true
	case q.to != nil:
		q.on, q.to = q.to, nil
	}
	w.tell()
}

// check checks the device itself.
func (w *world) check() {
	on := map[int]gslice.ID{}
	for _, p := range w.sorted() {
		for _, g := range w.procs[p].may() {
			if other, taken := on[g]; taken && other != p.ID {
				w.t.Fatalf("%v and %v are both on group %d", other, p.ID, g)
			}
			on[g] = p.ID
		}
	}
}

func (w *world) sorted() []Process {
	return slices.SortedFunc(maps.Keys(w.procs), func(a, b Process) int {
		if c := a.ID.Compare(b.ID); c != 0 {
			return c
		}
		return int(a.Generation) - int(b.Generation)
	})
}

// In any order of events and with any delay, two instances are never on one group. At the end
// each instance runs on the groups of its share.
func TestLedgerDisjoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t, sms: drawGroups(t, 4), wants: map[gslice.ID]float64{}, needs: map[gslice.ID]int{}, ordered: map[gslice.ID][]int{},
			serving: map[gslice.ID][]uint32{}, procs: map[Process]*proc{}, infeasible: map[gslice.ID][]int{},
		}
		events := []string{"share", "share", "need", "remove", "kill", "break", "swap", "deliver", "deliver", "hear", "hear", "work", "work"}
		for range rapid.IntRange(50, 150).Draw(t, "events") {
			i := id(rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "instance"))
			switch rapid.SampledFrom(events).Draw(t, "event") {
			case "share": // perhaps of one that is new
				if _, there := w.wants[i]; !there {
					w.start(i)
				}
				w.wants[i] = rapid.Float64Range(1, 60).Draw(t, "percent")
			case "need": // its model does not run on fewer, or another one does
				w.needs[i] = rapid.IntRange(0, 4).Draw(t, "groups")
				w.infeasible[i] = drawInfeasible(t)
			case "remove":
				delete(w.wants, i)
				delete(w.needs, i)
				delete(w.infeasible, i)
				delete(w.serving, i)
				delete(w.ordered, i)
			case "kill":
				if ps := w.sorted(); len(ps) > 0 {
					w.procs[rapid.SampledFrom(ps).Draw(t, "victim")].dying = true
				}
			case "break": // its connection broke: the manager goes on to the next
				if gs := w.serving[i]; len(gs) > 0 {
					w.end(Process{i, gs[0]})
				}
			case "swap": // two generations of one instance at once
				if _, there := w.wants[i]; there && len(w.serving[i]) < 2 {
					w.start(i)
				}
			case "deliver":
				w.deliver(rapid.IntRange(1, 3).Draw(t, "messages"))
			case "hear":
				w.hear(rapid.IntRange(1, 3).Draw(t, "reports"))
			case "work":
				if ps := w.sorted(); len(ps) > 0 {
					w.work(rapid.SampledFrom(ps).Draw(t, "process"))
				}
			}
			w.decide()
			w.check()
		}
		for range 40 {
			w.deliver(len(w.down))
			for _, p := range w.sorted() {
				w.work(p)
			}
			w.check()
			w.hear(len(w.up))
			w.decide()
		}
		w.deliver(len(w.down))
		for _, i := range slices.SortedFunc(maps.Keys(w.wants), gslice.ID.Compare) {
			if len(w.ordered[i]) == 0 {
				t.Fatalf("%v has nothing", i)
			}
			for _, g := range w.serving[i] {
				if q := w.procs[Process{i, g}]; q == nil || !slices.Equal(q.may(), w.ordered[i]) {
					t.Fatalf("%v generation %d: %+v, want it on %v", i, g, q, w.ordered[i])
				}
			}
		}
		var claims []Claim
		for _, i := range slices.SortedFunc(maps.Keys(w.wants), gslice.ID.Compare) {
			claims = append(claims, w.claim(i))
		}
		orders, err := divide(w.sms, claims, nil)
		must.OK(t, err)
		for _, o := range orders {
			if o.Waits() {
				t.Fatalf("%+v waits, and everybody obeys", o)
			}
		}
		if len(claims) > 0 {
			check(t, w.sms, claims, nil, orders)
		}
	})
}
