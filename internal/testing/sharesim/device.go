package sharesim

import (
	"math"
	"time"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/libml/slab"
)

// device runs batches: of those that it has, the ones at the highest level, at equal
// speed. A batch that is preempted first ends the kernel that it is in.
type device struct {
	speed   float64 // 1: the whole device
	at      int64   // when the batches were brought up to date
	batches []*batch
	busy    float64 // device time used, in nanoseconds
}

// batch is a batch in flight. Its work is in nanoseconds of the whole device.
type batch struct {
	of      *function
	level   budget.Level
	demoted bool
	padded  int

	work     float64 // left
	done     float64
	kernel   float64 // of one kernel
	finishes float64 // what is left of the kernel that a preempted batch is in

	requests   []slab.Request
	dispatched int64
	waited     time.Duration
	late       int
}

// epsilon is work that no longer counts.
const epsilon = 1e-3

// served calls f for each batch that runs now.
func (d *device) served(f func(*batch)) (count int) {
	top, finishing := budget.Level(math.MinInt), false
	for _, b := range d.batches {
		top = max(top, b.level)
		finishing = finishing || b.finishes > epsilon
	}
	for _, b := range d.batches {
		if finishing && b.finishes <= epsilon || !finishing && b.level < top {
			continue
		}
		count++
		if f != nil {
			f(b)
		}
	}
	return count
}

// advance brings the batches up to date.
func (d *device) advance(now int64) {
	elapsed := float64(now-d.at) * d.speed
	d.at = now
	if elapsed <= 0 || len(d.batches) == 0 {
		return
	}
	part := elapsed / float64(d.served(nil))
	d.served(func(b *batch) {
		b.work -= part
		b.done += part
		b.finishes = max(0, b.finishes-part)
	})
	d.busy += elapsed
}

// next returns when a batch ends or another set of batches runs, if none is added.
func (d *device) next() int64 {
	least, count := math.Inf(1), 0
	count = d.served(func(b *batch) {
		least = min(least, b.work)
		if b.finishes > epsilon {
			least = min(least, b.finishes)
		}
	})
	if count == 0 {
		return math.MaxInt64
	}
	return d.at + max(1, int64(math.Ceil(least*float64(count)/d.speed)))
}

// add begins a batch.
func (d *device) add(b *batch) {
	d.served(func(other *batch) {
		if other.level < b.level && other.finishes <= epsilon && other.done > 0 {
			other.finishes = min(other.work, other.kernel-math.Mod(other.done, other.kernel))
		}
	})
	d.batches = append(d.batches, b)
}

// ended takes out a batch that has run, or returns nil.
func (d *device) ended() *batch {
	for i, b := range d.batches {
		if b.work <= epsilon {
			d.batches = append(d.batches[:i], d.batches[i+1:]...)
			return b
		}
	}
	return nil
}
