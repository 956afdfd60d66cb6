package loop

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/batching"
)

// Figures are what the loop has measured.
type Figures struct {
	Limit float64       // of batching.State
	Fit   batching.Fit  // "
	Tail  time.Duration // expected of a batch of the present size
	Ran   int64         // requests

	Handovers uint64 // and moves
	IdleNanos int64  // for which the last one left the ring idle; -1: not idle
}

// Figures returns the present figures. Any goroutine may call it.
func (l *Loop) Figures() Figures {
	f := &l.figures
	now := Figures{
		Limit: math.Float64frombits(f.limit.Load()), Fit: batching.Fit(f.fit.Load()),
		Tail: time.Duration(f.tail.Load()), Ran: f.ran.Load(),
	}
	if published := f.published.Load(); published != nil {
		now.Handovers, now.IdleNanos = published.count, published.idleNanos
	}
	return now
}

// figures has Figures. The loop stores them, and any goroutine reads them.
type figures struct {
	handovers handovers // the loop's
	published atomic.Pointer[handovers]
	limit     atomic.Uint64 // math.Float64bits
	fit       atomic.Uint32
	tail      atomic.Int64
	ran       atomic.Int64
}

// handovers counts hand-overs and moves, and has the time for which the last one left the ring
// idle.
type handovers struct {
	count     uint64
	idleNanos int64 // -1: not idle
}

// addHandover counts a hand-over or a move.
func (f *figures) addHandover(idleNanos int64) {
	f.handovers = handovers{count: f.handovers.count + 1, idleNanos: idleNanos}
	published := f.handovers
	f.published.Store(&published)
}

// publish stores the state of the batching rule.
func (f *figures) publish(q *batching.Queue) {
	f.limit.Store(math.Float64bits(q.State.Limit))
	f.fit.Store(uint32(q.State.Fit))
	f.tail.Store(int64(q.Expected(q.Rule.Size(q.State))))
}
