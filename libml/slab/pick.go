package slab

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Request is a whole request that waits for dispatch.
type Request struct {
	// Slot is its slot in the IF's table, and settles ties.
	Slot uint32
	// Priority: the higher goes first.
	Priority uint8
	// Whole is when its last piece came, Deadline when its batch must have ended;
	// nanoseconds of one clock.
	Whole, Deadline int64
}

// Pick chooses the next batch from pending, which it reorders in place:
//
//	pending[:batch]                  go now, at most limit, in order of dispatch
//	pending[batch:len(pending)-late] wait on
//	pending[len(pending)-late:]      are late: to be answered so, uninferred
//
// The batch is by priority, then by deadline, then by slot. A request is late
// when it would miss its deadline in the batch that goes now: then it would miss
// it in any later one too. expected is the tail estimate for a batch of n
// (Rule.Expected), ascending with n.
//
// A larger batch takes longer, so more are late for it. Of the sizes that as many
// requests can still make, Pick takes the one that answers the most a second, so
// that no batch is padded at a loss; among equals the largest. It does not shrink
// a batch to save the request that is about to expire: under backlog there always
// is one, each rescue makes the batches smaller and the backlog longer, and soon
// all are rescued too late.
//
// It allocates nothing.
func Pick(pending []Request, now int64, limit int, expected func(n int) time.Duration) (batch, late int) {
	return pick(pending, now, limit, expected, false, false)
}

// Pick is the function of that name as the rule has it: at most Size requests; nobody is
// late where late ones are run, and the most overdue go first; and a batch of a fixed
// size takes all that there are, whatever its padding costs.
func (r *Rule) Pick(s State, pending []Request, now int64, expected func(n int) time.Duration) (batch, late int) {
	return pick(pending, now, r.Size(s), expected, r.cfg.RunLate, r.name == Fixed)
}

// ReadyAt is from when on the pending requests, one at least, may be a batch, in the
// clock of Request.Whole: at once (math.MinInt64) but where a batch of a fixed size
// waits for more of them.
func (r *Rule) ReadyAt(s State, pending []Request) int64 {
	if r.name != Fixed || len(pending) >= r.Size(s) {
		return math.MinInt64
	}
	oldest := int64(math.MaxInt64)
	for i := range pending {
		oldest = min(oldest, pending[i].Whole)
	}
	return oldest + int64(r.cfg.Delay)
}

// Since is from when on a batch that was picked could have begun, in the clock of
// Request.Whole: when its oldest request was whole or, of a fixed size, when it was full
// or the oldest had waited.
func (r *Rule) Since(s State, batch []Request) int64 {
	oldest, newest := int64(math.MaxInt64), int64(math.MinInt64)
	for i := range batch {
		oldest, newest = min(oldest, batch[i].Whole), max(newest, batch[i].Whole)
	}
	switch {
	case r.name != Fixed:
		return oldest
	case len(batch) >= r.Size(s):
		return min(newest, oldest+int64(r.cfg.Delay))
	}
	return oldest + int64(r.cfg.Delay)
}

func pick(pending []Request, now int64, limit int, expected func(n int) time.Duration, runLate, all bool) (batch, late int) {
	if len(pending) == 0 {
		return 0, 0
	}
	slices.SortFunc(pending, byDeadline)
	late = len(pending)
	var cost time.Duration // of the batch
	for n := 1; n <= min(max(1, limit), len(pending)); n++ {
		takes := expected(n)
		tooLate := 0
		if !runLate {
			tooLate, _ = slices.BinarySearchFunc(pending, now+int64(takes), compareDeadline)
		}
		if n > len(pending)-tooLate {
			break
		}
		// n a second against batch a second, to a thousandth.
		if batch == 0 || all || 1000*float64(n)*float64(cost) >= 999*float64(batch)*float64(takes) {
			batch, late, cost = n, tooLate, takes
		}
	}
	// By deadline, the late ones came first: they go last.
	slices.Reverse(pending)
	slices.SortFunc(pending[:len(pending)-late], byPriority)
	return batch, late
}

func compareDeadline(r Request, end int64) int { return cmp.Compare(r.Deadline, end) }

func byDeadline(a, b Request) int {
	return cmp.Or(cmp.Compare(a.Deadline, b.Deadline), cmp.Compare(a.Slot, b.Slot))
}

func byPriority(a, b Request) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), byDeadline(a, b))
}
