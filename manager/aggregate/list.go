package aggregate

// none means no slot, or no client.
const none = ^uint32(0)

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
