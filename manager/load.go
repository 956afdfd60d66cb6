package manager

import (
	"slices"
	"time"

	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// tally is the window statistics of an instance since the last sample (paper 3.2.1). It is
// written under function.mu and emptied by the control loop.
type tally struct {
	arrived  int
	answered int
	ran      int // answered requests that were in a batch
	// Sums: aggregation from the first fragment to the complete request, and busy batch
	// time. busy counts each batch once for all its requests. It counts the time of two
	// batches in flight once.
	aggregation, busy time.Duration
	running           span
	// latencies are the last ones, from complete to batch end; answered is their count.
	latencies [keptLatencies]time.Duration
}

// span is when the last batch was dispatched and inferred, and when the ones before it had
// ended. All are nanoseconds of shm.Now.
type span struct {
	dispatched, inferred, before int64
}

// alone returns the part of a batch's time after all earlier batches had ended. Batches are
// passed in the order of their ends, once per request. On a CPU no batch begins before the
// last one has ended.
func (s *span) alone(dispatched, inferred int64) time.Duration {
	if dispatched != s.dispatched || inferred != s.inferred {
		s.before = max(s.before, s.inferred)
		s.dispatched, s.inferred = dispatched, inferred
	}
	return time.Duration(max(0, inferred-max(dispatched, s.before)))
}

// next returns an empty tally for the time after t.
func (t *tally) next() tally { return tally{running: t.running} }

// keptLatencies bounds the sample of the tail latency.
const keptLatencies = 512

// A late request counts as lateFactor times the objective: enough for the largest possible
// raise.
const lateFactor = 2

// tailQuantile is the latency quantile that Algorithm 1 uses (docs/adr/0001-shares.md).
const tailQuantile = 0.95

// tail returns the tail latency, 0 if there are no latencies. It sorts them.
func (t *tally) tail() time.Duration {
	n := min(t.answered, keptLatencies)
	if n == 0 {
		return 0
	}
	slices.Sort(t.latencies[:n])
	return t.latencies[int(tailQuantile*float64(n-1)+0.5)]
}

// arrive counts a completed request.
func (t *tally) arrive(r shm.Request) {
	t.arrived++
	t.aggregation += time.Duration(r.Whole - r.FirstPiece)
}

// answer counts an answered request. A request that was answered late without inference
// would have exceeded its objective by an unknown amount. It counts as more than the
// objective, so that a function that rejects requests does not seem to have just met it.
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
