package aggregate

// none means no slot, or no client.
const none = ^uint32(0)

// gathering has the slots whose requests are incomplete.
type gathering struct {
	// age has all of them, oldest first. That is also the order of their deadlines.
	age list
	// quiet[k] has those for which k NACKs were sent since the last new fragment. All slots of one
	// list wait equally long, so each list is in the order of its timers.
	quiet []list
}

func newGathering(slots, maxNACKs int) gathering {
	g := gathering{age: newList(slots), quiet: make([]list, maxNACKs+1)}
	for k := range g.quiet {
		g.quiet[k] = newList(slots)
	}
	return g
}

// begin adds a slot whose request begins now.
func (g *gathering) begin(slot uint32) {
	g.age.push(slot)
	g.quiet[0].push(slot)
}

// end removes a slot for which that many NACKs were sent.
func (g *gathering) end(slot uint32, nacks uint8) {
	g.age.remove(slot)
	g.quiet[nacks].remove(slot)
}

// move restarts a slot's timer, when the number of NACKs without effect changes.
func (g *gathering) move(slot uint32, from, to uint8) {
	g.quiet[from].remove(slot)
	g.quiet[to].push(slot)
}

// oldest returns the slot whose request began first, or none.
func (g *gathering) oldest() uint32 { return g.age.head }

// after returns the slot whose request began next after that of a slot, or none.
func (g *gathering) after(slot uint32) uint32 { return g.age.links[slot].next }

// quietest returns the slot that has waited longest after nacks NACKs without effect, or none.
func (g *gathering) quietest(nacks int) uint32 { return g.quiet[nacks].head }

// list is a doubly linked list of small numbers, each of them in it at most
// once.
type list struct {
	head, tail uint32
	links      []link
}

type link struct{ prev, next uint32 }

func newList(most int) list { return list{none, none, make([]link, most)} }

// push appends n, which must not be in the list.
func (l *list) push(n uint32) {
	l.links[n] = link{prev: l.tail, next: none}
	if l.tail == none {
		l.head = n
	} else {
		l.links[l.tail].next = n
	}
	l.tail = n
}

// remove removes n, which must be in the list.
func (l *list) remove(n uint32) {
	k := l.links[n]
	if k.prev == none {
		l.head = k.next
	} else {
		l.links[k.prev].next = k.next
	}
	if k.next == none {
		l.tail = k.prev
	} else {
		l.links[k.next].prev = k.prev
	}
}
