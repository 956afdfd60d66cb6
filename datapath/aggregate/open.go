package aggregate

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Open slots: how many of a function's slots requests may take now.
//
// By Little's law, a function that answers r requests per second and holds n of them answers
// each after n/r. If it holds more than r × objective requests, they only make each other
// late. The excess is better left with the clients, which send other requests while they wait
// and drop what becomes late.
//
// The number of open slots never limits the answers that come in time. While answers take
// less than the objective, more open slots raise the rate, and a higher rate opens more.

const (
	// openFor is the min time for which answers are counted, and openObjectives the same in
	// objectives. After a stall, all open requests may be answered at once. Over a shorter
	// time that would look like a high rate.
	openFor        = 100 * time.Millisecond
	openObjectives = 4
	// openFall limits each fall of the number to 1/openFall of it. Clients use up the credit
	// that they already have in the meantime.
	openFall = 8
	// maxAutoSlots times an objective of 25 ms is a rate of 160,000 per second.
	maxAutoSlots = 4096
)

// AutoSlots returns the max number of slots that a function needs if Config.Follow is set: as
// many requests as the slab holds, within the bounds of Config.Slots.
func AutoSlots(slabBytes, requestBytes int) int {
	n := min(max(slabBytes/requestBytes, minSlots), maxAutoSlots)
	return 1 << (bits.Len(uint(n)) - 1)
}

// open is the number of open slots.
type open struct {
	slots    atomic.Int64
	answers  atomic.Int64 // answers with status ok since the time in since
	since    atomic.Int64
	min, max int
}

func newOpen(c *Config) *open {
	o := &open{min: c.Slots, max: c.Slots}
	if c.Follow {
		o.min = minSlots
	}
	o.slots.Store(int64(o.min))
	return o
}

// answered counts an answer, and updates the number from time to time. Aggregators of one
// function may call it concurrently.
func (o *open) answered(now int64, objective time.Duration) {
	if o.min == o.max {
		return
	}
	n := o.answers.Add(1)
	since := o.since.Load()
	took := now - since
	if took < int64(max(openFor, openObjectives*objective)) || !o.since.CompareAndSwap(since, now) {
		return
	}
	o.answers.Add(-n)

	// Add the reserve for newcomers (fair.go).
	needed := float64(n) / float64(took) * float64(objective) * reservePart / (reservePart - 1)
	before := int(o.slots.Load())
	o.slots.Store(int64(min(max(int(needed)+1, before-before/openFall, o.min), o.max)))
}
