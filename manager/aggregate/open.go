package aggregate

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Open slots: how many of a function's slots requests may take now.
//
// By Little's law, a function that answers r requests per second and holds n of them
// answers each after n/r. So more than r × objective requests only make each other
// late. Those are better off with their clients, which send others while they wait
// and drop what becomes late.
//
// The number of open slots never limits the answers that come in time. While answers take
// less than the objective, more open slots raise the rate, and a higher rate opens more.

const (
	// openFor is how long answers are counted at least, and openObjectives the same in
	// objectives. All that was open may be answered at once after a stall. In a shorter
	// time that would look like a high rate.
	openFor        = 100 * time.Millisecond
	openObjectives = 4
	// openFall is the max part by which the number falls each time. Clients use up the
	// credit that they have in the meantime.
	openFall = 8
	// maxAutoSlots times an objective of 25 ms is a rate of 160,000 per second.
	maxAutoSlots = 4096
)

// AutoSlots is how many slots a function needs at most, if Config.Follow is set: as many
// as the slab holds requests, in the bounds of Config.Slots.
func AutoSlots(slabBytes, requestBytes int) int {
	n := min(max(slabBytes/requestBytes, minSlots), maxAutoSlots)
	return 1 << (bits.Len(uint(n)) - 1)
}

// open is the number of open slots.
type open struct {
	slots    atomic.Int64
	answers  atomic.Int64 // well, since then
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

// answered counts an answer, and now and then sets the number. Aggregators of one
// function may call it at the same time.
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

	// The reserve for newcomers (fair.go) comes on top.
	needed := float64(n) / float64(took) * float64(objective) * reservePart / (reservePart - 1)
	before := int(o.slots.Load())
	o.slots.Store(int64(min(max(int(needed)+1, before-before/openFall, o.min), o.max)))
}
