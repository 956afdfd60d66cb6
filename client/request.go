package client

import (
	"math/bits"

	"github.com/penstock/penstock/client/recovery"
	"github.com/penstock/penstock/wire"
)

// request is one picture in progress. Client.mu guards all fields. Only picture
// is read without it, by the sender while reading is set.
type request struct {
	id      uint32
	picture []byte
	count   int // number of fragments
	options RequestOptions
	wait    chan Result // for Do; nil for Deliver

	queuedAt, timeoutAt int64
	// flying means that the request was sent, or is being sent, and counts
	// against the credit. probe means that it was sent without credit.
	flying, probe bool
	// reading means that the sender reads the picture without the lock: the
	// request must not end.
	reading bool
	sentAt  int64

	next        int      // fragments below this one were sent
	resend      []uint64 // fragments to send again, one bit per fragment
	resendsLeft int
	resends     int
	recovery    recovery.Request

	echoed    uint64 // the cookie in the last fragment 0 that was sent
	questions int    // how often fragment 0 was sent
	unproved  int    // questions before the proof
	busy      int    // answers that asked for proof

	answer answer
	result Result
	links  [numLists]link
}

// unsent reports whether there are fragments to send now.
func (r *request) unsent() bool { return r.resendsLeft > 0 || r.next < r.count }

// takeFragment returns the next fragment to send; there must be one.
func (r *request) takeFragment() (index int, resent bool) {
	if r.resendsLeft == 0 {
		r.next++
		return r.next - 1, false
	}
	for w, word := range r.resend {
		if word != 0 {
			r.resend[w] &= word - 1
			r.resendsLeft--
			r.resends++
			return 64*w + bits.TrailingZeros64(word), true
		}
	}
	panic("client: no piece left to send again")
}

// markResend marks a fragment to be sent again.
func (r *request) markResend(index int) {
	if words := (r.count + 63) / 64; len(r.resend) < words {
		r.resend = append(r.resend[:0], make([]uint64, words)...)
	}
	if bit := uint64(1) << (index % 64); r.resend[index/64]&bit == 0 {
		r.resend[index/64] |= bit
		r.resendsLeft++
	}
}

// answer assembles a result from its fragments.
type answer struct {
	bytes    []byte
	present  []uint64
	received int
	size     uint32 // of a fragment
	total    uint32
}

// add adds a fragment of a result with several fragments. It reports whether the
// fragment was new, and whether it fits the earlier ones.
func (a *answer) add(h *wire.Header, fragment []byte) (fresh, fits bool) {
	if a.received == 0 {
		a.size, a.total = wire.PieceSize(h), h.Total
		a.present = append(a.present[:0], make([]uint64, (int(h.Count)+63)/64)...)
		if uint32(cap(a.bytes)) < a.total {
			a.bytes = make([]byte, a.total)
		}
		a.bytes = a.bytes[:a.total]
	}
	if h.Total != a.total || wire.PieceSize(h) != a.size {
		return false, false
	}
	bit := uint64(1) << (h.Index % 64)
	if a.present[h.Index/64]&bit != 0 {
		return false, true
	}
	a.present[h.Index/64] |= bit
	a.received++
	copy(a.bytes[h.Offset:], fragment)
	return true, true
}

// These bound what a recycled request may keep, and how many requests are kept. Steady
// traffic needs no allocations with it, and a flood does not leave much memory
// in use.
const (
	maxKeptAnswerBytes = 1 << 20
	maxKeptRequests    = 1024
)

func (c *Client) newRequestLocked() *request {
	n := len(c.free)
	if n == 0 {
		return &request{}
	}
	r := c.free[n-1]
	c.free = c.free[:n-1]
	return r
}

func (c *Client) recycleLocked(r *request) {
	if len(c.free) == maxKeptRequests {
		return
	}
	again, bytes, have := r.resend, r.answer.bytes, r.answer.present
	clear(again)
	if cap(bytes) > maxKeptAnswerBytes {
		bytes = nil
	}
	*r = request{resend: again[:0], answer: answer{bytes: bytes, present: have}}
	c.free = append(c.free, r)
}

// A request is in up to two lists: the one of its stage (queued or flying), and
// the one of requests with fragments to send.
const (
	stageList = iota
	sendingList
	numLists
)

type link struct {
	prev, next *request
	linked     bool
}

func (r *request) inList(which int) bool { return r.links[which].linked }

// list is a doubly linked list through one of the links of its requests.
type list struct {
	head, tail *request
	n          int
	id         int
}

func (l *list) pushBack(r *request) {
	r.links[l.id] = link{prev: l.tail, linked: true}
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.links[l.id].next = r
	}
	l.tail = r
	l.n++
}

func (l *list) pushFront(r *request) {
	r.links[l.id] = link{next: l.head, linked: true}
	if l.head == nil {
		l.tail = r
	} else {
		l.head.links[l.id].prev = r
	}
	l.head = r
	l.n++
}

func (l *list) remove(r *request) {
	at := r.links[l.id]
	if at.prev == nil {
		l.head = at.next
	} else {
		at.prev.links[l.id].next = at.next
	}
	if at.next == nil {
		l.tail = at.prev
	} else {
		at.next.links[l.id].prev = at.prev
	}
	r.links[l.id] = link{}
	l.n--
}
