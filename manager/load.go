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
	// Sums: whole -> batch end (or -> answered late), first piece -> whole, and
	// batch time, each counted once over the requests that rode in it.
	latency, aggregation, busy time.Duration
	// latencies are the last ones, for the tail; answered counts them.
	latencies [keptLatencies]time.Duration
}

// keptLatencies bound what the tail is taken of.
const keptLatencies = 512

// tailQuantile is the latency that Algorithm 1 looks at (docs/adr/0003).
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

// answer notes a request's end.
func (t *tally) answer(r shm.Request, result shm.Result, now int64) {
	latency := time.Duration(now - r.Whole)
	if wire.Status(result.Status) == wire.StatusOK {
		latency = time.Duration(result.Inferred - r.Whole)
		t.ran++
		t.busy += time.Duration(result.Inferred-result.Dispatched) / time.Duration(max(1, result.Batch))
	}
	t.latencies[t.answered%keptLatencies] = latency
	t.latency += latency
	t.answered++
}
