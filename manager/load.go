package manager

import (
	"slices"
	"time"

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
	// latencies are the last ones, whole -> batch end; answered counts them.
	latencies [keptLatencies]time.Duration
}

// span is when the last batch ran, and when the ones before it had ended; all in
// nanoseconds of shm.Now.
type span struct {
	dispatched, inferred, before int64
}

// alone is the part of a batch's time in which none before it still ran. Batches come in the
// order of their ends, each as often as it has requests. On a CPU none begins before the
// last one has ended.
func (s *span) alone(dispatched, inferred int64) time.Duration {
	if dispatched != s.dispatched || inferred != s.inferred {
		s.before = max(s.before, s.inferred)
		s.dispatched, s.inferred = dispatched, inferred
	}
	return time.Duration(max(0, inferred-max(dispatched, s.before)))
}

// next is an empty tally for what comes after t.
func (t *tally) next() tally { return tally{running: t.running} }

// keptLatencies bound what the tail is taken of.
const keptLatencies = 512

// lateFactor times the objective is what a late request counts as: enough for a
// raise by as much as one raise may be.
const lateFactor = 2

// tailQuantile is the latency that Algorithm 1 looks at (docs/adr/0001-shares.md).
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
		t.busy += t.running.alone(result.Dispatched, result.Inferred) / time.Duration(max(1, result.Batch))
	case wire.StatusLate:
		latency = max(latency, late)
	}
	t.latencies[t.answered%keptLatencies] = latency
	t.answered++
}
