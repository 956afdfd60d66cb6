package loop

import (
	"math"
	"sync/atomic"

	"github.com/penstock/penstock/shm"
)

// move switches the loop to another set of slots, which are ready on other groups of
// multiprocessors:
//
//	mover, on a goroutine of its own          loop
//	1 receive an order; the last one counts   batches, in the slots in use
//	2 Repartition of the standby slots        "
//	3 ConfigureBatch there, its sizes         "
//	4 move ────────────────────────────────>  5 at most one in flight: startMove
//	                                          6 begin the next batch there, next to the last one here
//	8 <───────────────────────────── settle ─ 7 nothing left in flight here
//	9 report the groups that it holds now; the others are free
//
// So the device always has work of this process. While the process uses both sets of groups, it
// holds both.
type move struct {
	base    int           // the first slot of the set
	settled chan struct{} // closed at 8
}

// idleUnknown is the value of moves.idle until a batch has begun, or none waits.
const idleUnknown = math.MinInt64

// moves is the loop's part in moves. A move that the loop has made is current until it is settled.
type moves struct {
	next    atomic.Pointer[move] // the move to make
	current *move                // nil: none
	begun   int64                // when it was made
	idle    int64                // how long the ring was idle because of the move, or unknown
}

// ordered reports whether there is a move to make.
func (m *moves) ordered() bool { return m.next.Load() != nil }

// begin makes the ordered move: the next batches run in the other slots.
func (m *moves) begin(f *flights, now int64) {
	if next := m.next.Swap(nil); next != nil {
		f.base, m.current, m.begun, m.idle = next.base, next, now, idleUnknown
	}
}

// made reports whether a move is not settled.
func (m *moves) made() bool { return m.current != nil }

// incomplete reports whether no batch has begun since the move was made.
func (m *moves) incomplete() bool { return m.made() && m.idle == idleUnknown }

// complete records how long the ring was idle for a move: until the first batch after it began, or
// -1 if no request was pending.
func (m *moves) complete(idle int64) {
	if m.incomplete() {
		m.idle = idle
	}
}

// settle ends a move if the first batch after it has begun and none is left in flight in the old
// place.
func (m *moves) settle(f *flights) (idleNanos int64, settled bool) {
	if !m.made() || m.idle == idleUnknown || !f.moved() {
		return 0, false
	}
	close(m.current.settled)
	m.current = nil
	return m.idle, true
}

// startMove makes an ordered move if there is a place for a batch next to the one in flight: the old and the new
// slots share nothing. If requests are pending and nothing is in flight, one more
// batch begins in the old place first. Next to that batch, the move leaves no gap.
func (l *Loop) startMove() {
	// Check before the swap in begin: this runs before every batch.
	if l.flights.full() || !l.moves.ordered() {
		return
	}
	if l.flights.count == 0 && len(l.Queue.Pending) > 0 && len(l.flights.places) > 1 {
		return
	}
	l.moves.begin(&l.flights, shm.Now())
}

// completeMove records how long the ring was idle for a move (moves.complete).
func (l *Loop) completeMove(idle int64) {
	if l.moves.incomplete() {
		l.moves.complete(idle)
		l.settleMove()
	}
}

// settleMove reports a move that has ended.
func (l *Loop) settleMove() {
	if idle, settled := l.moves.settle(&l.flights); settled {
		l.figures.addHandover(idle)
	}
}

// Move orders the loop to move to the slots from base on, which are ready. settled is closed when nothing is left in
// flight in the other slots. Any goroutine may call it, one move at a time.
func (l *Loop) Move(base int) (settled <-chan struct{}) {
	order := &move{base: base, settled: make(chan struct{})}
	l.moves.next.Store(order)
	l.Ring.Interrupt()
	return order.settled
}
