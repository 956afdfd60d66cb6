package manager

import (
	"slices"
	"time"

	"github.com/penstock/penstock/manager/share"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// tally is what an instance went through since the last look (paper 3.2.1). It
// is written under function.mu and emptied by the control loop.
type tally struct {
	arrived  int
	answered int
	ran      int // of them, those that were in a batch
	// Sums: first piece -> whole, and batch time, each batch's counted once over
	// the requests that rode in it, and the time of two batches in flight counted
	// once over both.
	aggregation, busy time.Duration
	running           span
	// pace is of the batches that ended, by the sizes that ran: of ladder's.
	pace   share.Pace
	ladder []int
	// singles are those of the smallest size, and quickest what the quickest took.
	singles  int
	quickest time.Duration
	// latencies are the last ones, whole -> batch end; answered counts them.
	latencies [keptLatencies]time.Duration
}

// span is when the last batch ran, and when the ones before it had ended; all in
// nanoseconds of shm.Now.
type span struct {
	dispatched, inferred, before int64
}

// alone is the part of a batch's time in which none before it still ran, and whether this
// is the first word of it. Batches come in the order of their ends, each as often as it
// has requests. On a CPU none begins before the last one has ended.
func (s *span) alone(dispatched, inferred int64) (took time.Duration, first bool) {
	if first = dispatched != s.dispatched || inferred != s.inferred; first {
		s.before = max(s.before, s.inferred)
		s.dispatched, s.inferred = dispatched, inferred
	}
	return time.Duration(max(0, inferred-max(dispatched, s.before))), first
}

// next is an empty tally for what comes after t.
func (t *tally) next() tally { return tally{running: t.running, ladder: t.ladder} }

// prepared is the size in which a batch of n ran: the ladder's next step.
func (t *tally) prepared(n int) int {
	if i, _ := slices.BinarySearch(t.ladder, n); i < len(t.ladder) {
		return t.ladder[i]
	}
	return n
}

// keptLatencies bound what the tail is taken of.
const keptLatencies = 512

// lateFactor times the objective is what a late request counts as: enough for a
// raise by as much as one raise may be.
const lateFactor = 2

// tailQuantile is the latency that Algorithm 1 looks at (docs/adr/0003-measuring-shares-on-a-cpu.md).
const tailQuantile = 0.95

// tail is the tail of the latencies, 0 where there are none. It sorts them.
func (t *tally) tail() time.Duration {
	n := min(t.answered, keptLatencies)
	if n == 0 {
		return 0
	}
	slices.Sort(t.latencies[:n])
	return t.latencies[int(tailQuantile*float64(n-1)+0.5)]
}

// beyond is how many answers took longer than that; of more than are kept, as many as among
// those.
func (t *tally) beyond(d time.Duration) (n int) {
	kept := min(t.answered, keptLatencies)
	for _, latency := range t.latencies[:kept] {
		if latency > d {
			n++
		}
	}
	return n * t.answered / max(1, kept)
}

// arrive notes a request that became whole.
func (t *tally) arrive(r shm.Request) {
	t.arrived++
	t.aggregation += time.Duration(r.Whole - r.FirstPiece)
}

// answer notes a request's end. One that was answered late, uninferred, would have
// ended beyond its objective, nobody knows how far: it counts as late, which is
// more than the objective, so that a function which turns requests away does not
// look as if it just made it.
func (t *tally) answer(r shm.Request, result shm.Result, now int64, late time.Duration) {
	latency := time.Duration(now - r.Whole)
	switch wire.Status(result.Status) {
	case wire.StatusOK:
		latency = time.Duration(result.Inferred - r.Whole)
		t.ran++
		size := max(1, int(result.Batch))
		took, first := t.running.alone(result.Dispatched, result.Inferred)
		t.busy += took / time.Duration(size)
		if first && took > 0 {
			t.pace.Note(t.prepared(size), took)
			if t.prepared(size) == t.prepared(1) {
				if t.singles++; t.singles == 1 || took < t.quickest {
					t.quickest = took
				}
			}
		}
	case wire.StatusLate:
		latency = max(latency, late)
	}
	t.latencies[t.answered%keptLatencies] = latency
	t.answered++
}
