package batching

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Request is a complete request that waits for dispatch.
type Request struct {
	// Slot is its slot in the IF's table, and breaks ties.
	Slot uint32
	// Priority: higher values go first.
	Priority uint8
	// Whole is when its last fragment arrived, Deadline is when its batch must have ended.
	// Both are nanoseconds of one clock.
	Whole, Deadline int64
	// Address and Client stand for the client: its address, and its port there.
	Address, Client uint32
	// Size is the number of its input's size. Requests of one size share batches.
	Size  uint16
	place uint32 // by Fairness.Rank; 0 without it
}

// Pick chooses the next batch from pending, which it reorders in place:
//
//	pending[:batch]                  dispatch now, at most limit, in this order
//	pending[batch:len(pending)-late] keep waiting
//	pending[len(pending)-late:]      are late: answer so without inference
//
// The batch is ordered by priority, then by place (Fairness), then by deadline, then by slot. A request is late if it
// would miss its deadline in the batch that is dispatched now: it would then miss it in any
// later one, too. expected is the tail estimate for a batch of n (Rule.Expected), ascending
// with n.
//
// A larger batch takes longer, so more requests are late for it. Pick considers the sizes for
// which enough requests still meet their deadline. It takes the size that answers the most per
// second, so that no batch is padded at a loss; among equals the largest. It does not shrink a
// batch to save the request that is about to expire. Under backlog there always is one. Each
// rescue makes the batches smaller and the backlog longer, and soon all rescues come too late.
//
// It allocates nothing.
func Pick(pending []Request, now int64, limit int, expected func(n int) time.Duration) (batch, late int) {
	return pick(pending, now, dispatch{limit: limit, slower: 1}, expected)
}

// Pick is the function Pick with the rule's settings: the batch has at most Size requests.
// A batch of a fixed size takes all pending requests, whatever its padding costs.
//
// demoted means that the batch would run at low priority. It then takes only requests that it
// will answer in time at the recent low-priority rate. The others keep waiting, unless they
// would be late in a guaranteed batch as well.
//
// If all are predicted late and no such batch has ended for probeEvery, the request with the
// most time left runs alone, as a probe. Otherwise nothing would correct a wrong estimate.
func (r *Rule) Pick(s State, pending []Request, now int64, demoted bool, expected func(n int) time.Duration) (batch, late int) {
	d := dispatch{limit: r.Size(s), slower: 1, all: r.name == Fixed || s.probe > 0}
	ended := s.ended
	if demoted {
		d.slower, ended = s.stretch, s.demoted
	}
	takes := expected
	if !demoted && r.guesses(s) {
		takes = func(int) time.Duration { return expected(1) }
	}
	batch, late = pick(pending, now, d, takes)

	if batch == 0 && len(pending) > 0 && pending[0].Deadline > now && now-ended >= int64(r.probeEvery()) {
		batch, late = 1, min(late, len(pending)-1)
	}
	return batch, late
}

func stretched(takes time.Duration, stretch float64) time.Duration {
	return time.Duration(min(float64(takes)*stretch, math.MaxInt64/4))
}

// probeEvery is how long no batch must have run before a request that is predicted late runs
// as a probe. If batches take slightly longer than the objective, two objectives limit the
// device time of probes to a third. An estimate must recover within a second, and 100 ms allow
// ten probes in that time; one suffices if it is answered in time.
func (r *Rule) probeEvery() time.Duration { return min(2*r.cfg.SLO, 100*time.Millisecond) }

// ReadyAt returns when the pending requests may become a batch, in the clock of Request.Whole.
// There must be at least one. The result is math.MinInt64 (at once), except for a batch of a
// fixed size that waits for more of them.
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

// Since returns when a picked batch could have begun, in the clock of Request.Whole: when its
// oldest request was complete. A batch of a fixed size could have begun when it was full or
// its oldest request had waited for the delay.
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

// dispatch has a pick's inputs other than the requests.
type dispatch struct {
	limit  int     // per batch
	slower float64 // how many times the expected time this batch takes, at least 1
	all    bool    // padding costs nothing
}

// Choose returns how many of the waiting requests make the next batch, at most limit; 0 if all are late. takes
// is how long a batch of n takes, ascending with n, and late how many of the requests miss their deadline in a
// batch that takes t. If padding is not free, Choose takes the size that answers the most per second, as Pick
// describes. All callers use the same unit of time.
func Choose[T ~int64 | ~float64](waiting, limit int, free bool, takes func(n int) T, late func(t T) int) (batch int) {
	var cost, last T
	misses := 0
	for n := 1; n <= min(max(1, limit), waiting); n++ {
		t := takes(n)
		if n == 1 || t != last {
			last, misses = t, late(t)
		}
		if n > waiting-misses {
			break
		}
		// Compare n per second with batch per second, with a tolerance of a thousandth.
		if batch == 0 || free || 1000*float64(n)*float64(cost) >= 999*float64(batch)*float64(t) {
			batch, cost = n, t
		}
	}
	return batch
}

func pick(pending []Request, now int64, d dispatch, expected func(n int) time.Duration) (batch, late int) {
	if len(pending) == 0 {
		return 0, 0
	}
	slices.SortFunc(pending, byDeadline)
	before := func(t time.Duration) int { // how many are late if they take t
		n, _ := slices.BinarySearchFunc(pending, now+int64(t), compareDeadline)
		return n
	}
	late = before(expected(1))
	missed := len(pending) // by this batch
	stretch := func(n int) time.Duration { return stretched(expected(n), d.slower) }
	if batch = Choose(len(pending), d.limit, d.all, stretch, before); batch > 0 {
		late, missed = before(expected(batch)), before(stretch(batch))
	}
	// By deadline, the late ones came first, then those that this batch misses; they must go
	// last.
	slices.Reverse(pending)
	moveFirst(pending[:len(pending)-missed], batch)
	return batch, late
}

// moveFirst moves the first n requests by priority to the front, in this order. It does not sort the rest
// (quickselect, Hoare 1961).
func moveFirst(requests []Request, n int) {
	for low, high := 0, len(requests); low < n && n < high && high-low > 1; {
		pivot := requests[low+(high-low)/2]
		i, j := low, high-1
		for i <= j {
			for byPriority(requests[i], pivot) < 0 {
				i++
			}
			for byPriority(requests[j], pivot) > 0 {
				j--
			}
			if i <= j {
				requests[i], requests[j] = requests[j], requests[i]
				i++
				j--
			}
		}
		// [low, j] is not after the pivot, [i, high) not before it; between them is the pivot.
		switch {
		case n <= j:
			high = j + 1
		case n >= i:
			low = i
		default:
			low = n
		}
	}
	slices.SortFunc(requests[:n], byPriority)
}

func compareDeadline(r Request, end int64) int { return cmp.Compare(r.Deadline, end) }

// The comparisons below stop at the first difference: sorting is most of the cost of a pick.

func byDeadline(a, b Request) int {
	if a.Deadline != b.Deadline {
		return cmp.Compare(a.Deadline, b.Deadline)
	}
	return cmp.Compare(a.Slot, b.Slot)
}

func byPriority(a, b Request) int {
	switch {
	case a.Priority != b.Priority:
		return cmp.Compare(b.Priority, a.Priority)
	case a.place != b.place:
		return cmp.Compare(a.place, b.place)
	}
	return byDeadline(a, b)
}
