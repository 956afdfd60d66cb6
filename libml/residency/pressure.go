package residency

import (
	"math"
	"slices"
	"time"
)

// maxBusy is the part of the time that loads may take. Beyond it they wait for each other so
// long that requests are late (docs/adr/0025-lanes-and-residency.md).
const maxBusy = 0.8

// Pressure compares the load with the memory.
type Pressure struct {
	// Busy is the part of the time that loading is expected to take, if the models that are
	// worth most stay resident. It may exceed 1.
	Busy float64
	// Thrashing: loading cannot serve the demand.
	Thrashing bool
	// MemoryBytes is the least Worker.MemoryBytes that would end it, 0 if not thrashing.
	MemoryBytes int64
}

// Pressure returns how hard the demand presses on the memory.
//
// It keeps models in the order of their worth, and leaves room for the largest of the others.
// Each of the others is loaded for each request that does not arrive while its load or its
// batch is under way.
func (w Worker) Pressure(models []Model) Pressure {
	byWorth := make([]*Model, len(models))
	largest := make([]int64, len(models)+1) // of byWorth[i:]
	for i := range models {
		byWorth[i] = &models[i]
	}
	slices.SortStableFunc(byWorth, func(a, b *Model) int { return ByWorth(b, a) })
	var busy float64
	for i := len(byWorth) - 1; i >= 0; i-- {
		busy += byWorth[i].loading()
		largest[i] = max(largest[i+1], byWorth[i].WeightsBytes)
	}

	var p Pressure
	var kept, enough int64
	for i := 0; i <= len(byWorth); i++ {
		need := kept + largest[i]
		if i == 0 || need <= w.MemoryBytes {
			p.Busy = busy
		}
		if enough == 0 && busy <= maxBusy {
			enough = need
		}
		if i < len(byWorth) {
			kept += byWorth[i].WeightsBytes
			busy = max(0, busy-byWorth[i].loading())
		}
	}
	if p.Thrashing = p.Busy > maxBusy; p.Thrashing {
		p.MemoryBytes = enough
	}
	return p
}

// loading returns the part of the time that its loads take if it is never kept.
func (m *Model) loading() float64 {
	once := (m.Load + m.Batch).Seconds()
	return m.Rate * m.Load.Seconds() / (1 + m.Rate*once)
}

// rateHalf is the age at which a request counts half in a Rate.
const rateHalf = 5 * time.Second

// Rate measures requests per second. Older requests count less: half after 5 s, a quarter
// after 10 s. The zero value has seen none.
type Rate struct {
	perSecond float64
	at        int64
}

// Observe returns the rate after one more request, at a time in nanoseconds that does not
// decrease.
func (r Rate) Observe(now int64) Rate {
	return Rate{perSecond: r.At(now) + math.Ln2/rateHalf.Seconds(), at: now}
}

// At returns requests per second.
func (r Rate) At(now int64) float64 {
	return r.perSecond * math.Exp2(-float64(now-r.at)/float64(rateHalf))
}
