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
	return pick(pending, now, dispatch{limit: limit, slower: 1}, expected)
}

// Pick is the function of that name as the rule has it: at most Size requests; nobody is
// late where late ones are run, and the most overdue go first; and a batch of a fixed
// size takes all that there are, whatever its padding costs.
//
// demoted says that the batch would run at low priority. It then takes only requests that
// it will answer in time at the recent low-priority rate. The others wait on, unless
// they would be late in a guaranteed batch as well.
//
// If all are predicted late and no such batch has ended for probeEvery, the request with
// the most time left runs alone, as a probe. Otherwise nothing would correct a wrong estimate.
func (r *Rule) Pick(s State, pending []Request, now int64, demoted bool, expected func(n int) time.Duration) (batch, late int) {
	d := dispatch{limit: r.Size(s), slower: 1, runLate: r.cfg.RunLate, all: r.name == Fixed || s.probe > 0}
	ended := s.ended
	if demoted {
		d.slower, ended = s.stretch, s.demoted
	}
	batch, late = pick(pending, now, d, expected)

	if batch == 0 && len(pending) > 0 && pending[0].Deadline > now && now-ended >= int64(r.probeEvery()) {
		batch, late = 1, min(late, len(pending)-1)
	}
	return batch, late
}

// Refill says when batches within a guarantee can begin: the next one Wait from now, and
// then one every Every. Wait is less than 0 if none can.
type Refill struct{ Wait, Every time.Duration }

// Reserve chooses the pending requests that wait for batches within the guarantee instead
// of going in a demoted batch now. It reorders pending in place, pending[:reserved] wait.
//
//   - If a demoted batch is predicted to end no later than the next guaranteed batch, or
//     within half the time that its most urgent request has left, no request waits.
//   - Otherwise those wait that guaranteed batches of Size requests will answer in time.
//
// So a function that exceeds its guarantee uses an idle device at once. On a busy device the
// requests are demoted that the guarantee cannot serve in time: the latest ones, which have
// the most time left. It allocates nothing.
func (r *Rule) Reserve(s State, pending []Request, now int64, refill Refill, expected func(n int) time.Duration) (reserved int) {
	size := r.Size(s)
	takes := expected(min(size, len(pending)))
	if refill.Wait < 0 || refill.Wait > r.cfg.SLO || r.cfg.RunLate {
		return 0
	}
	demoted := stretched(takes, s.stretchAt(now))
	if demoted <= refill.Wait+takes || now+2*int64(demoted) <= earliest(pending) {
		return 0
	}
	slices.SortFunc(pending, byPriority)
	end := now + int64(refill.Wait+takes)
	for i := range pending {
		if pending[i].Deadline < end {
			continue
		}
		pending[reserved], pending[i] = pending[i], pending[reserved]
		if reserved++; reserved%size == 0 {
			end += int64(refill.Every)
		}
	}
	return reserved
}

// earliest is the first deadline.
func earliest(pending []Request) int64 {
	first := int64(math.MaxInt64)
	for i := range pending {
		first = min(first, pending[i].Deadline)
	}
	return first
}

// stretchAt is the stretch that Reserve believes in. It halves every few seconds without a
// demoted batch, so that a demoted batch is tried again some time after the device was busy.
func (s State) stretchAt(now int64) float64 {
	const half = 5 * time.Second
	return 1 + (s.stretch-1)*math.Exp2(-float64(max(0, now-s.demoted))/float64(half))
}

func stretched(takes time.Duration, stretch float64) time.Duration {
	return time.Duration(min(float64(takes)*stretch, math.MaxInt64/4))
}

// probeEvery is how long no batch must have run before a request that is predicted late
// runs as a probe. Two objectives bound the device time that probes cost to a third if
// batches take slightly longer than the objective. 100 ms allow for ten probes in the
// second in which an estimate must recover; one suffices if it is answered in time.
func (r *Rule) probeEvery() time.Duration { return min(2*r.cfg.SLO, 100*time.Millisecond) }

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

// dispatch is what a pick depends on besides the requests.
type dispatch struct {
	limit   int     // requests per batch
	slower  float64 // how many times the expected time this batch takes, at least 1
	runLate bool    // no request is late
	all     bool    // padding costs nothing
}

func pick(pending []Request, now int64, d dispatch, expected func(n int) time.Duration) (batch, late int) {
	if len(pending) == 0 {
		return 0, 0
	}
	slices.SortFunc(pending, byDeadline)
	before := func(t time.Duration) int { // how many would be late if they took t
		if d.runLate {
			return 0
		}
		n, _ := slices.BinarySearchFunc(pending, now+int64(t), compareDeadline)
		return n
	}
	late = before(expected(1))
	missed := len(pending) // by this batch
	var cost time.Duration // of the batch
	for n := 1; n <= min(max(1, d.limit), len(pending)); n++ {
		takes := expected(n)
		misses := before(stretched(takes, d.slower))
		if n > len(pending)-misses {
			break
		}
		// n a second against batch a second, to a thousandth.
		if batch == 0 || d.all || 1000*float64(n)*float64(cost) >= 999*float64(batch)*float64(takes) {
			batch, late, missed, cost = n, before(takes), misses, takes
		}
	}
	// By deadline, the late ones came first, then those that this batch misses: they go last.
	slices.Reverse(pending)
	slices.SortFunc(pending[:len(pending)-missed], byPriority)
	return batch, late
}

func compareDeadline(r Request, end int64) int { return cmp.Compare(r.Deadline, end) }

func byDeadline(a, b Request) int {
	return cmp.Or(cmp.Compare(a.Deadline, b.Deadline), cmp.Compare(a.Slot, b.Slot))
}

func byPriority(a, b Request) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), byDeadline(a, b))
}
