package serve

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control"
)

// firstLead is batching.Queue.Lead until a lead has been measured.
const firstLead = 100 * time.Microsecond

// rules makes the batching rules of a process, which may get more batch sizes while its loop runs.
type rules struct {
	newRule func(ladder []int) (*batching.Rule, error) // any goroutine may call it
	larger  atomic.Pointer[batching.Rule]              // the rule with more batch sizes, for loop.extend
}

func (r *rules) open(p *process, attached control.Attached) {
	r.newRule = func(ladder []int) (*batching.Rule, error) {
		return batching.New(string(cmp.Or(attached.Batching.Rule, control.BatchSLAB)), batching.Config{
			SLO: p.slo, Ladder: ladder, RunLate: attached.RunLate,
			Fixed: attached.Batching.Size, Delay: attached.Batching.Delay,
		})
	}
}
