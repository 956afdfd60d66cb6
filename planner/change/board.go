package change

import (
	"slices"

	"github.com/penstock/penstock/plan"
)

// board is one GPU while a service is placed on it, from the left slot to the right.
type board struct {
	*placement
	number      int
	table       plan.GPU
	taken       []bool // slots of other services
	blocked     []bool // slots that are free once something is destroyed
	own         map[int]plan.Segment
	others      bool
	memoryLeft  float64 // by the other services; clientsLeft, too
	clientsLeft int
	// at has, by slot, the ways to use all slots before it.
	at [][]*label
}

// options returns the ways to use one GPU. From left to right, each slot is free, the first of an
// own segment that stays, or the first of a new one. The first option leaves the GPU empty.
func (p *placement) options(n int, table plan.GPU, lie, old []plan.Segment) []*label {
	b := p.board(n, table, lie, old)
	b.at[0] = []*label{{}}
	for slot := range table.Slots {
		b.fill(slot)
	}
	options := b.at[table.Slots]
	if !b.others {
		for i, l := range options {
			if l.throughput > 0 {
				used := *l
				used.cost = used.cost.plus(parts{gpus: 1}.cost(p.suffices))
				options[i] = &used
			}
		}
	}
	for _, l := range options {
		l.memory, l.processes = 0, 0
	}
	return front(options, p.enough, false)
}

func (p *placement) board(n int, table plan.GPU, lie, old []plan.Segment) *board {
	b := &board{placement: p, number: n, table: table, own: map[int]plan.Segment{},
		taken: make([]bool, table.Slots), blocked: make([]bool, table.Slots),
		memoryLeft: float64(table.MemoryMiB), clientsLeft: table.Clients, at: make([][]*label, table.Slots+1)}
	for _, g := range lie {
		if g.Service == p.service.Name {
			b.own[g.Slot] = g
			continue
		}
		b.others = true
		b.memoryLeft -= p.memory(g)
		b.clientsLeft -= g.Processes
		cover(b.taken, g.Slot, p.slots(g))
	}
	for _, g := range old {
		cover(b.blocked, g.Slot, p.slots(g))
	}
	return b
}

// fill uses a slot in every way, after each way to use the slots before it.
func (b *board) fill(slot int) {
	own, isOwn := b.own[slot]
	var kept, retuned *plan.Segment
	leave := cost{} // of an own segment that could stay
	if isOwn {
		if kept, retuned = b.stay(own); kept != nil || retuned != nil {
			leave = parts{moves: 1}.cost(b.suffices)
		}
	}
	for _, l := range front(b.at[slot], b.enough, b.table.Percent) {
		skip := l
		if leave != (cost{}) {
			skip = &label{cost: l.cost.plus(leave), throughput: l.throughput, memory: l.memory, processes: l.processes, from: l}
		}
		b.at[slot+1] = append(b.at[slot+1], skip)
		if kept != nil {
			b.put(l, *kept, parts{})
		}
		if retuned != nil {
			b.put(l, *retuned, parts{retuned: 1})
		}
		for _, pt := range b.best[b.table.Name] {
			size, _ := b.table.Size(pt.GPCs)
			if !size.MayStart(slot) || slices.Contains(b.taken[slot:slot+size.Slots], true) || isOwn && own.GPCs == pt.GPCs {
				continue
			}
			b.put(l, plan.SegmentOf(b.number, b.table, slot, b.service, pt), b.creation(slot, size.Slots))
		}
	}
}

// creation returns the cost of a new segment that depends on the slots that it covers.
func (b *board) creation(slot, slots int) parts {
	c := parts{created: 1}
	if slices.Contains(b.blocked[slot:slot+slots], true) {
		c.blocked = 1
	}
	for s := slot; s < slot+slots; s++ {
		own, ok := b.own[s]
		if !ok {
			continue
		}
		if kept, retuned := b.stay(own); kept != nil || retuned != nil {
			c.moves++
		}
	}
	return c
}

// put adds a segment after a way to use the slots before it, if memory and MPS have room for it.
func (b *board) put(l *label, g plan.Segment, c parts) {
	size, _ := b.table.Size(g.GPCs)
	c.gpcs = g.GPCs
	if ones, ok := b.table.Size(1); ok {
		// Places for a single GPC that the segment covers beyond its own number.
		for slot := g.Slot; slot < g.Slot+size.Slots; slot++ {
			if ones.MayStart(slot) {
				c.waste++
			}
		}
		c.waste -= g.GPCs
	}
	next := &label{cost: l.cost.plus(c.cost(b.suffices)), throughput: l.throughput + g.ThroughputRPS, segment: &g, from: l}
	if b.table.Percent {
		next.memory, next.processes = l.memory+b.memory(g), l.processes+g.Processes
		if b.table.MemoryMiB > 0 && next.memory > b.memoryLeft || b.table.Clients > 0 && next.processes > b.clientsLeft {
			return
		}
	}
	b.at[g.Slot+size.Slots] = append(b.at[g.Slot+size.Slots], next)
}
