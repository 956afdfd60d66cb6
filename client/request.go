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

	intended, queuedAt, timeoutAt int64
	// flying means that the request was sent, or is being sent, and counts
	// against the credit. probe means that it was sent without credit.
	flying, probe bool
	// reading means that the sender reads the picture without the lock: the
	// request must not end.
	reading bool
	sentAt  int64
	// path is that of a request in flight. refused is its path.unreachable at sentAt.
	path    *path
	refused uint64
	hops    int  // how often it went to another node
	follows bool // the last fragment 0 that was sent said that the client follows

	next     int // fragments below this one were sent
	resend   resend
	recovery recovery.Request
	proof    proof
	// needsToken means that the request was refused, and waits for a token.
	needsToken bool

	answer answer
	result Result
	links  [numLists]link
}

// resend has the fragments of a request that must be sent again.
type resend struct {
	bits  []uint64 // one per fragment
	left  int
	total int // fragments that were sent again
}

// mark marks a fragment of count.
func (s *resend) mark(index, count int) {
	if words := (count + 63) / 64; len(s.bits) < words {
		s.bits = append(s.bits[:0], make([]uint64, words)...)
	}
	if bit := uint64(1) << (index % 64); s.bits[index/64]&bit == 0 {
		s.bits[index/64] |= bit
		s.left++
	}
}

// take returns the first marked fragment; there must be one.
func (s *resend) take() (index int) {
	for w, word := range s.bits {
		if word != 0 {
			s.bits[w] &= word - 1
			s.left--
			s.total++
			return 64*w + bits.TrailingZeros64(word)
		}
	}
	panic("client: no fragment left to send again")
}

// proof follows the proof of the client's address that a request has given: the cookie.
type proof struct {
	echoed    uint64 // the cookie in the last fragment 0 that was sent
	questions int    // how often fragment 0 was sent
	unproved  int    // questions before the first with this cookie
	busy      int    // answers that asked for proof
}

// ask notes that fragment 0 leaves with a cookie.
func (p *proof) ask(cookie uint64) {
	p.echo(cookie)
	p.questions++
}

// echo notes that fragment 0 is to leave with a cookie. Each question before it may cause a busy block with
// the same cookie, so that one more such block is the answer.
func (p *proof) echo(cookie uint64) {
	if cookie != p.echoed {
		p.echoed, p.unproved = cookie, p.questions
	}
}

// asked notes an answer that asks for proof with a cookie. prove reports whether the request
// must give the proof. answered reports whether it has, and this is the answer to it.
func (p *proof) asked(cookie uint64) (prove, answered bool) {
	p.busy++
	prove = cookie != p.echoed
	return prove, !prove && p.busy > p.unproved
}

// unsent reports whether there are fragments to send now.
func (r *request) unsent() bool { return r.resend.left > 0 || r.next < r.count }

// takeFragment returns the next fragment to send; there must be one.
func (r *request) takeFragment() (index int, resent bool) {
	if r.resend.left == 0 {
		r.next++
		return r.next - 1, false
	}
	return r.resend.take(), true
}

// markResend marks a fragment to be sent again.
func (r *request) markResend(index int) { r.resend.mark(index, r.count) }

// answer assembles a result from its fragments.
type answer struct {
	bytes    []byte
	present  []uint64
	received int
	size     uint32 // of a fragment
	total    uint32

	roundTrip int64 // of the request and the first fragment: an upper bound

	asked wire.Missing // by the latest question
}

// ask returns the missing fragments that the next question names, at most most. Before the first fragment there are
// none: the question is for the whole answer.
func (a *answer) ask(most int) wire.Missing {
	if a.received > 0 {
		a.asked = wire.NameMissing(a.present, int(wire.Fragments(int(a.total), int(a.size))), most)
	}
	return a.asked
}

// add adds a fragment of a result with several fragments. It reports whether the
// fragment was new, and whether it fits the earlier ones.
func (a *answer) add(h *wire.Header, fragment []byte) (fresh, fits bool) {
	if a.received == 0 {
		a.size, a.total = wire.FragmentSize(h), h.Total
		a.present = append(a.present[:0], make([]uint64, (int(h.Count)+63)/64)...)
		if uint32(cap(a.bytes)) < a.total {
			a.bytes = make([]byte, a.total)
		}
		a.bytes = a.bytes[:a.total]
	}
	if h.Total != a.total || wire.FragmentSize(h) != a.size {
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
	again, bytes, have := r.resend.bits, r.answer.bytes, r.answer.present
	clear(again)
	if cap(bytes) > maxKeptAnswerBytes {
		bytes = nil
	}
	*r = request{resend: resend{bits: again[:0]}, answer: answer{bytes: bytes, present: have}}
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
