package batching

import (
	"slices"
	"time"
)

// Queue has the requests of a function that wait, and what is known of its batches in flight. It decides
// when the next batch may begin, and which requests are in it:
//
//	Add       a request is complete
//	MayBegin  a batch may begin now, or next to those in flight
//	Pick      the requests of that batch, and those that are late
//	Begin     the batch is in flight
//	Remove    it has ended on the device, and the next one may begin in its place
//	End       its requests are answered
//
// A Queue has no clock: all times are nanoseconds of one clock of the caller. After NewQueue it allocates
// nothing. One goroutine uses it.
type Queue struct {
	Rule  *Rule
	State State
	// States are those of the sizes of requests, if there are several; State is that of the last batch's size, first of
	// size 0. Places is 1 then.
	States []State
	// Expected is Rule.Expected at State.
	Expected func(n int) time.Duration

	// Pending are the requests that wait, and Running the batches in flight, in the order in which they
	// began. At most Places run at once.
	Pending []Request
	Running []Running
	Places  int

	// MaxBatch limits the requests in a batch, in addition to Rule.Size; 0 if there is no other limit.
	MaxBatch int
	// HalfFull lets the function HalfFull decide when a batch begins next to another one. Otherwise Overlap
	// chooses by measurement.
	HalfFull bool
	// Elsewhere says that the next batch runs on another part of the device than those in flight, so it need
	// not wait for their end.
	Elsewhere bool

	// Lead is the time from a batch's dispatch until it is gathered. Answering is the time from the end of a
	// batch on the device until its requests are answered.
	Lead, Answering time.Duration

	size     uint16 // of State
	overlap  Overlap
	fairness *Fairness
	retryAt  int64 // when to try a demoted batch again after none was worth beginning
	late     int   // requests that Pick found to be late next to batches that have not begun
	// began and ended are those of the last batch within the guarantee.
	began, ended int64
}

// Running is a batch in flight.
type Running struct {
	Padded     int
	Dispatched int64
	Demoted    bool
}

// Choice is a batch that may begin: Queue.Pending[:Batch].
type Choice struct {
	// Batch is the number of requests, and Padded the size that runs.
	Batch, Padded int
	// Size is that of the requests.
	Size uint16
	// Full: the batch has as many requests as it may have.
	Full bool
	// Demoted: the batch is beyond the guarantee.
	Demoted bool
	// Waited is that of WaitForRunning. Late is how many requests Pick has found to be late next to a batch, since
	// one began.
	Waited time.Duration
	Late   int
}

// NewQueue makes a Queue for at most requests and that many places for batches in flight.
func NewQueue(rule *Rule, requests, places int) *Queue {
	q := &Queue{
		Rule: rule, State: rule.Start(), Places: places,
		Pending: make([]Request, 0, requests), Running: make([]Running, 0, places), fairness: NewFairness(requests),
	}
	q.Expected = func(n int) time.Duration { return q.Rule.Expected(q.State, n) }
	return q
}

// Extend switches to a rule with more batch sizes.
func (q *Queue) Extend(rule *Rule) { q.State, q.Rule = rule.Grown(q.State, q.Rule), rule }

// Add adds a request.
func (q *Queue) Add(r Request) {
	q.Pending = append(q.Pending, r)
	q.Retry()
}

// Retry lets a demoted batch begin again, because the guarantee has changed.
func (q *Queue) Retry() { q.retryAt = 0 }

// Size is the maximum number of requests in the next batch.
func (q *Queue) Size() int { return q.fit(q.Rule.Size(q.State)) }

// fit returns how many of n requests a batch may have: at most the largest configured size up to MaxBatch,
// or the smallest size if that exceeds MaxBatch.
func (q *Queue) fit(n int) int {
	if q.MaxBatch == 0 {
		return n
	}
	limit := max(q.MaxBatch, q.Rule.Pad(1))
	for q.Rule.Pad(limit) != limit {
		limit--
	}
	return min(n, limit)
}

// Typical is the mean time of a batch of a configured size.
func (q *Queue) Typical(padded int) time.Duration { return q.Rule.Typical(q.State, padded) }

// ReadyAt is when the next batch may begin at the earliest, with nothing in flight. There must be a pending
// request.
func (q *Queue) ReadyAt() int64 { return max(q.Rule.ReadyAt(q.State, q.Pending), q.retryAt) }

// MayBegin reports whether a batch may begin now. demoted: it would be beyond the guarantee.
func (q *Queue) MayBegin(now int64, demoted bool) bool {
	switch {
	case len(q.Pending) == 0 || len(q.Running) == q.Places:
		return false
	case q.Rule.ReadyAt(q.State, q.Pending) > now || demoted && q.retryAt > now:
		return false
	case len(q.Running) == 0:
		return true
	case q.newest().Demoted:
		return !demoted // a demoted batch delays no other, and leaves the last place to it
	case q.Elsewhere:
		return true
	case q.halfFull():
		return HalfFull(len(q.Pending), q.Rule.Size(q.State))
	}
	return NearEnd(len(q.Pending), q.Left(0, now), q.lead())
}

func (q *Queue) newest() *Running { return &q.Running[len(q.Running)-1] }

// Mixed reports whether both a batch within the guarantee and a demoted one are in flight: either may end
// first.
func (q *Queue) Mixed() bool { return len(q.Running) > 1 && q.Running[0].Demoted != q.newest().Demoted }

// halfFull reports whether HalfFull decides, instead of NearEnd.
func (q *Queue) halfFull() bool { return q.HalfFull || q.overlap.HalfFull() }

// lead is the lead of a batch next to the oldest one in flight.
func (q *Queue) lead() time.Duration { return min(q.Lead, q.Typical(q.Running[0].Padded)/2) }

// Left is how long the i-th batch in flight is expected to use the device from now. The time of a demoted
// one is unknown: the longer it has taken, the less often it is worth checking. Answers count at most as a
// quarter of a batch: a process that lost its CPU answers late.
func (q *Queue) Left(i int, now int64) time.Duration {
	r := q.Running[i]
	ran, typical := time.Duration(now-r.Dispatched), q.Typical(r.Padded)
	left := typical - min(q.Answering, typical/4) - ran
	if r.Demoted {
		left = max(left, ran/8)
	}
	return left
}

// LearnLead and LearnAnswering update Lead and Answering after a batch.
func (q *Queue) LearnLead(took time.Duration)      { q.Lead += (took - q.Lead) / 8 }
func (q *Queue) LearnAnswering(took time.Duration) { q.Answering += (took - q.Answering) / 8 }

// OverlapAt returns when NearEnd lets the next batch begin next to the one in flight. It returns false if
// another rule decides, or if not exactly one is in flight.
func (q *Queue) OverlapAt(now int64) (at int64, ok bool) {
	if len(q.Running) != 1 || q.Running[0].Demoted || len(q.Pending) == 0 || q.Places == 1 || q.halfFull() {
		return 0, false
	}
	return now + int64(q.Left(0, now)-q.lead()), true
}

// Pick chooses the next batch. demoted: it is beyond the guarantee, until refilled. The batch stays in Pending until
// Begin. late are the requests to be answered so. They are no longer pending, and valid until the next Add.
func (q *Queue) Pick(now int64, demoted bool, refilled int64) (c Choice, late []Request) {
	q.fairness.Rank(q.Pending, now, q.Rule.cfg.SLO)
	c.Demoted = demoted
	began, ended := q.began, q.ended
	if len(q.Running) > 0 && !q.newest().Demoted {
		// For this batch the newest one in flight is the batch before: it has run until now.
		began, ended = q.newest().Dispatched, now
	}
	c.Waited = WaitForRunning(q.Pending, began, ended)
	waiting := q.chooseSize()
	batch, expired := q.Rule.Pick(q.State, q.Pending[:waiting], now, demoted, q.Expected)
	c.Batch = q.fit(batch)
	c.Padded, c.Full, c.Size = q.Rule.Pad(c.Batch), c.Batch == q.Size(), q.size

	if waiting < len(q.Pending) {
		slices.Reverse(q.Pending[waiting-expired:]) // those that are late come last
	}
	on := len(q.Pending) - expired
	q.Pending, late = q.Pending[:on], q.Pending[on:]
	if c.Batch > 0 {
		q.late += expired
		c.Late = q.late
		return c, late
	}
	if demoted {
		q.retryAt = refilled
	}
	if expired > 0 {
		q.State = q.Rule.Next(q.State, Observation{Late: expired})
	}
	return c, late
}

// chooseSize chooses the size of the next batch: that of the request that goes first. It moves all requests of this size to the front,
// and returns their number.
func (q *Queue) chooseSize() (waiting int) {
	if len(q.States) == 0 || len(q.Pending) == 0 {
		return len(q.Pending)
	}
	q.States[q.size] = q.State
	q.size = slices.MinFunc(q.Pending, byPriority).Size
	q.State = q.States[q.size]
	for i := range q.Pending {
		if q.Pending[i].Size == q.size {
			q.Pending[i], q.Pending[waiting] = q.Pending[waiting], q.Pending[i]
			waiting++
		}
	}
	return waiting
}

// Begin puts a picked batch in flight. demoted says whether it runs demoted: not every batch beyond the
// guarantee can.
func (q *Queue) Begin(now int64, c Choice, demoted bool) {
	q.Pending, q.late = slices.Delete(q.Pending, 0, c.Batch), 0
	q.Running = append(q.Running, Running{Padded: c.Padded, Dispatched: now, Demoted: demoted})
}

// Remove removes the i-th batch in flight, which ended at that time on the device.
func (q *Queue) Remove(i int, ended int64) {
	if r := q.Running[i]; !r.Demoted {
		q.began, q.ended = r.Dispatched, ended
	}
	q.Running = slices.Delete(q.Running, i, i+1)
}

// End learns from a removed batch, unless it failed: its time then means nothing. The next batch may have begun
// before. pause is how long the device's share makes the function wait after the batch, a part of o.Elapsed.
func (q *Queue) End(o Observation, pause time.Duration, failed bool) {
	if !failed {
		q.State = q.Rule.Next(q.State, o)
		if q.Places > 1 && !q.HalfFull {
			q.overlap = q.overlap.Next(o)
		}
	}
	if !o.Demoted { // no request within the guarantee waits for a demoted batch
		q.ended = o.Ended + int64(pause)
		q.began = q.ended - int64(o.Elapsed)
	}
}
