// Package gate decides when a batch that a loop has picked may begin. A batch passes these checks, in this
// order:
//
//	Account   is it within the guarantee, or demoted? Asked before the loop picks the batch.
//	Resident  is the model in memory?
//	Place     is it the function's turn in the lane of its worker?
//	Entry     is it the process's turn on the GPU, at the batch's level?
//
// Admit asks the last three. It never waits, and holds no lock when it returns. If the batch may not begin, the
// loop waits with Wait or on its ring. Then it picks and asks again: later requests may be more urgent, and some may be
// late by then.
package gate

import (
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/shm"
)

// Gate is the gate of one loop. The loop's thread calls its methods. All times are those of shm.Now.
type Gate struct {
	Account *Account
	// Resident reports whether the model is in memory.
	Resident func() bool
	// Place is the function's place in a lane; nil outside a worker.
	Place *Place
	// Busy makes guests wait for batches within the guarantee; nil if there are no guests.
	Busy *shm.BusyBit

	visit visit
}

// New returns the gate of a loop. entry may be nil.
func New(account *Account, place *Place, entry *Entry, resident func() bool, busy *shm.BusyBit) *Gate {
	return &Gate{Account: account, Place: place, Resident: resident, Busy: busy, visit: visit{of: entry}}
}

const (
	// maxWait and minWait bound when a batch that was not admitted asks again, unless what it waits for
	// wakes the loop.
	maxWait = 100 * time.Millisecond
	minWait = time.Millisecond
)

// Admit reports whether a batch of a size may begin in the device's slot. If not, the loop asks again when it is woken,
// at the latest at retryAt: then the oldest request may have become late.
func (g *Gate) Admit(now int64, slot, padded int, batch lane.Job) (ok bool, retryAt int64) {
	late := batch.Deadline - int64(batch.Batch)
	retryAt = min(now+int64(maxWait), max(late, now+int64(minWait)))
	switch {
	case !g.Resident():
		g.Withdraw(now)
		return false, retryAt
	case !g.Place.Take(now, batch):
		g.visit.withdraw()
		return false, retryAt
	}
	ok, again := g.visit.take(now, g.Rank(slot, padded, batch.Demoted, batch.Deadline))
	return ok, min(retryAt, again)
}

// Rank is the rank of a batch of a size in the device's slot, with that earliest deadline. demoted: it is beyond the
// guarantee.
func (g *Gate) Rank(slot, padded int, demoted bool, deadline int64) shm.Rank {
	return shm.Rank{Level: uint32(g.level(slot, padded, demoted)), Deadline: deadline}
}

// level is the level of a batch. With turns per level it is that of the stream on which the batch will run.
func (g *Gate) level(slot, padded int, demoted bool) budget.Level {
	if demoted && g.Account.demotes(slot, padded) {
		return budget.Demoted
	}
	level := g.Account.OrderedLevel()
	if e := g.visit.of; e != nil && e.PerLevel() {
		level = g.Account.BatchLevel(slot, padded, false)
	}
	return max(budget.MinLevel, level)
}

// Wait waits for the process's turn on the GPU, at most until that time. It returns false at once if the batch
// waits for something else, which wakes the loop on its ring.
func (g *Gate) Wait(until int64) bool { return g.visit.sleep(until) }

// Joins reports whether a batch may begin next to one of the same process.
func (g *Gate) Joins(now int64, next shm.Rank) bool { return g.visit.joins(now, next) }

// StopWaiting ends the loop's wait for its process's turn, which would otherwise come and not be used.
func (g *Gate) StopWaiting() { g.visit.withdraw() }

// Withdraw ends the turns of the loop, and its wait for them, without a batch.
func (g *Gate) Withdraw(now int64) {
	g.Place.Withdraw(now)
	g.visit.withdraw()
}

// Begun is a batch that has begun.
type Begun struct {
	Demoted bool // it runs at the lowest priority
	busy    bool // guests wait for it
	turn    held
}

// Begin charges an admitted batch of a size in the device's slot.
func (g *Gate) Begin(now int64, slot int, batch batching.Choice) (b Begun) {
	b.Demoted = g.Account.begin(now, slot, batch.Padded, batch.Demoted)
	b.busy = g.Busy != nil && !b.Demoted && g.Busy.Begin(now)
	b.turn = g.visit.hold()
	return b
}

// End lets other batches begin after one that has ended on the device. next is the rank of the loop's next batch, nil if
// no request waits. The caller then calls Admit, or StopWaiting. End returns since when no other batch of the lane
// ran; 0 if the end of the batch before was not noticed yet.
func (g *Gate) End(now int64, b *Begun, next *shm.Rank) (began int64) {
	if b.busy {
		g.Busy.End()
	}
	b.turn.pass(&g.visit, next) // before the lane's turn, whose next member needs it
	return g.Place.End(now)
}
