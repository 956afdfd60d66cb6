package manager

import (
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
	// device time, a batch's counted once over the requests that rode in it.
	latency, aggregation, busy time.Duration
}

// arrive notes a request that became whole.
func (t *tally) arrive(r shm.Request) {
	t.arrived++
	t.aggregation += time.Duration(r.Whole - r.FirstPiece)
}

// answer notes a request's end.
func (t *tally) answer(r shm.Request, result shm.Result, now int64) {
	t.answered++
	switch wire.Status(result.Status) {
	case wire.StatusOK:
		t.ran++
		t.latency += time.Duration(result.Inferred - r.Whole)
		t.busy += time.Duration(result.Inferred-result.Dispatched) / time.Duration(max(1, result.Batch))
	default:
		t.latency += time.Duration(now - r.Whole)
	}
}
