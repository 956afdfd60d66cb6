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
	count   int // number of pieces
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

	next      int      // pieces below this one were sent
	again     []uint64 // pieces to send again, one bit per piece
	againLeft int
	resends   int
	recovery  recovery.Request

	echoed    uint64 // the cookie in the last piece 0 that was sent
	questions int    // how often piece 0 was sent
	unproved  int    // questions before the proof
	busy      int    // answers that asked for proof

	answer answer
	result Result
	links  [numLists]link
}

// unsent reports whether there are pieces to send now.
func (r *request) unsent() bool { return r.againLeft > 0 || r.next < r.count }

// takePiece returns the next piece to send; there must be one.
func (r *request) takePiece() (index int, again bool) {
	if r.againLeft == 0 {
		r.next++
		return r.next - 1, false
	}
	for w, word := range r.again {
		if word != 0 {
			r.again[w] &= word - 1
			r.againLeft--
			r.resends++
			return 64*w + bits.TrailingZeros64(word), true
		}
	}
	panic("client: no piece left to send again")
}

// sendAgain marks a piece to be sent again.
func (r *request) sendAgain(index int) {
	if words := (r.count + 63) / 64; len(r.again) < words {
		r.again = append(r.again[:0], make([]uint64, words)...)
	}
	if bit := uint64(1) << (index % 64); r.again[index/64]&bit == 0 {
		r.again[index/64] |= bit
		r.againLeft++
	}
}

// answer assembles a result from its pieces.
type answer struct {
	bytes []byte
	have  []uint64
	got   int
	size  uint32 // of a piece
	total uint32
}

// add adds a piece of a result with several pieces. It reports whether the
// piece was new, and whether it fits the earlier ones.
func (a *answer) add(h *wire.Header, piece []byte) (fresh, fits bool) {
	if a.got == 0 {
		a.size, a.total = wire.PieceSize(h), h.Total
		a.have = append(a.have[:0], make([]uint64, (int(h.Count)+63)/64)...)
		if uint32(cap(a.bytes)) < a.total {
			a.bytes = make([]byte, a.total)
		}
		a.bytes = a.bytes[:a.total]
	}
	if h.Total != a.total || wire.PieceSize(h) != a.size {
		return false, false
	}
	bit := uint64(1) << (h.Index % 64)
	if a.have[h.Index/64]&bit != 0 {
		return false, true
	}
	a.have[h.Index/64] |= bit
	a.got++
	copy(a.bytes[h.Offset:], piece)
	return true, true
}

// These bound what a recycled request may keep, and how many requests are kept. Steady
// traffic needs no allocations with it, and a flood does not leave much memory
// in use.
const (
	keepAnswerBytes = 1 << 20
	keepRequests    = 1024
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
	if len(c.free) == keepRequests {
		return
	}
	again, bytes, have := r.again, r.answer.bytes, r.answer.have
	clear(again)
	if cap(bytes) > keepAnswerBytes {
		bytes = nil
	}
	*r = request{again: again[:0], answer: answer{bytes: bytes, have: have}}
	c.free = append(c.free, r)
}

// A request is in up to two lists: the one of its stage (queued or flying), and
// the one of requests with pieces to send.
const (
	inLife = iota
	inSending
	numLists
)

type link struct {
	prev, next *request
	in         bool
}

func (r *request) isIn(which int) bool { return r.links[which].in }

// list is a doubly linked list through one of the links of its requests.
type list struct {
	head, tail *request
	n          int
	in         int
}

func (l *list) pushBack(r *request) {
	r.links[l.in] = link{prev: l.tail, in: true}
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.links[l.in].next = r
	}
	l.tail = r
	l.n++
}

func (l *list) pushFront(r *request) {
	r.links[l.in] = link{next: l.head, in: true}
	if l.head == nil {
		l.tail = r
	} else {
		l.head.links[l.in].prev = r
	}
	l.head = r
	l.n++
}

func (l *list) remove(r *request) {
	at := r.links[l.in]
	if at.prev == nil {
		l.head = at.next
	} else {
		at.prev.links[l.in].next = at.next
	}
	if at.next == nil {
		l.tail = at.prev
	} else {
		at.next.links[l.in].prev = at.prev
	}
	r.links[l.in] = link{}
	l.n--
}
