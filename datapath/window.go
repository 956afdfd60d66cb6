package datapath

import (
	"slices"
	"time"

	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Window has the statistics of a queue over a window of time (paper 3.2.1).
type Window struct {
	// Arrived and Answered count requests; Ran counts those of the answered ones that were in a
	// batch.
	Arrived, Answered, Ran int
	// Aggregation is the sum over arrived requests of the time from the first fragment to the
	// complete request.
	Aggregation time.Duration
	// Busy is the time in which batches ran. It counts each batch once for all its requests, and
	// the time of two batches in flight once.
	Busy time.Duration
	// Waited is the sum over Ran of the time from the complete request to the start of its batch, Running that from
	// there to the end of the batch.
	Waited, Running time.Duration

	running span
	// latencies are the last ones, from the complete request to the end of its batch; Answered
	// is their count.
	latencies [keptLatencies]time.Duration
}

// span is when the last batch was dispatched and inferred, and when the ones before it had
// ended. All are nanoseconds of shm.Now.
type span struct {
	dispatched, inferred, before int64
}

// alone returns the part of a batch's time after all earlier batches had ended. Pass the
// batches in the order of their ends, once per request. On a CPU no batch begins before the
// last one has ended.
func (s *span) alone(dispatched, inferred int64) time.Duration {
	if dispatched != s.dispatched || inferred != s.inferred {
		s.before = max(s.before, s.inferred)
		s.dispatched, s.inferred = dispatched, inferred
	}
	return time.Duration(max(0, inferred-max(dispatched, s.before)))
}

// next returns an empty window for the time after w.
func (w *Window) next() Window { return Window{running: w.running} }

// keptLatencies bounds the sample of the tail latency.
const keptLatencies = 512

// A late request counts as lateFactor times the objective: enough for the largest possible
// raise.
const lateFactor = 2

// tailQuantile is the latency quantile that Algorithm 1 uses (docs/adr/0001-shares.md).
const tailQuantile = 0.95

// Tail returns the tail latency, 0 if there are no latencies. It sorts them.
func (w *Window) Tail() time.Duration {
	n := min(w.Answered, keptLatencies)
	if n == 0 {
		return 0
	}
	slices.Sort(w.latencies[:n])
	return w.latencies[int(tailQuantile*float64(n-1)+0.5)]
}

// Behind reports whether requests wait too long for others before them: those that ran took three quarters of the
// objective on average, and a third of that was waiting. Clients then wait for credit, so the rate does not tell.
func (w *Window) Behind(objective time.Duration) bool {
	took := w.Waited + w.Running
	return 4*took >= 3*time.Duration(w.Ran)*objective && 3*w.Waited >= took && w.Ran > 0
}

// Arrive counts a completed request.
func (w *Window) Arrive(r shm.Request) {
	w.Arrived++
	w.Aggregation += time.Duration(r.Complete - r.FirstFragment)
}

// Answer counts an answered request of a function with that objective. A request that was
// answered late without inference would have exceeded its objective by an unknown amount. It
// counts as more than the objective, so that a function that rejects requests does not seem to
// have just met it. busy is what it adds to Busy.
func (w *Window) Answer(r shm.Request, result shm.Result, now int64, objective time.Duration) (busy time.Duration) {
	latency := time.Duration(now - r.Complete)
	switch wire.Status(result.Status) {
	case wire.StatusOK:
		latency = max(0, time.Duration(result.Inferred-r.Complete)-extraTime(r, objective))
		w.Ran++
		busy = w.running.alone(result.Dispatched, result.Inferred) / time.Duration(max(1, result.Batch))
		w.Busy += busy
		w.Waited += time.Duration(result.Dispatched - r.Complete)
		w.Running += time.Duration(result.Inferred - result.Dispatched)
	case wire.StatusLate:
		latency = max(latency, lateFactor*objective)
	}
	w.latencies[w.Answered%keptLatencies] = latency
	w.Answered++
	return busy
}
