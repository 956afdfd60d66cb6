package sharesim

import (
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control/budget"
)

// device runs batches, the highest level first. A batch uses a part of the device, its width,
// and what it leaves is for other batches. If the batches of a level want more than there is,
// all run slower by the same factor. A batch that loses its part first ends the kernel that it is in.
type device struct {
	part    float64 // of the whole device; 1: all of it
	sharing Sharing
	at      int64 // when the batches were brought up to date
	batches []*batch
	tenants [budget.MaxLevel + 1]*function // of the last batch of each level
}

// batch is a batch in flight. Its work is in nanoseconds that it takes alone.
type batch struct {
	of      *function
	level   budget.Level
	demoted bool
	padded  int
	full    bool // as many requests as it may have

	width    float64 // part of the device that it uses if it runs at full speed
	work     float64 // left
	done     float64
	kernel   float64 // of one kernel
	finishes float64 // what is left of the kernel that a preempted batch is in
	speed    float64 // 1: as if it were alone

	requests   []batching.Request
	dispatched int64
	waited     time.Duration
	late       int
}

// epsilon is work that no longer counts.
const epsilon = 1e-3

// share gives each batch its speed: first those that finish a kernel, then level by level.
func (d *device) share() {
	if d.sharing == Slices {
		d.slice()
		return
	}
	left := d.part
	take := func(of func(*batch) bool) {
		wanted := 0.0
		for _, b := range d.batches {
			if of(b) {
				wanted += b.width
			}
		}
		speed := 1.0
		if wanted > left {
			speed = left / wanted
		}
		for _, b := range d.batches {
			if of(b) {
				b.speed = speed
			}
		}
		left = max(0, left-wanted)
	}
	finishing := func(b *batch) bool { return b.finishes > epsilon }
	take(finishing)
	for level := budget.MaxLevel; level >= budget.Demoted; level-- {
		take(func(b *batch) bool { return b.level == level && !finishing(b) })
	}
}

// slice gives each function that has batches an equal part of the time, and that to its batches of the
// highest level.
func (d *device) slice() {
	most := map[*function]budget.Level{}
	count := map[*function]int{}
	for _, b := range d.batches {
		if level, ok := most[b.of]; !ok || b.level > level {
			most[b.of], count[b.of] = b.level, 0
		}
		if b.level == most[b.of] {
			count[b.of]++
		}
	}
	for _, b := range d.batches {
		b.speed = 0
		if b.level == most[b.of] {
			b.speed = d.part / float64(len(most)*count[b.of])
		}
	}
}

// advance brings the batches up to date.
func (d *device) advance(now int64) {
	elapsed := float64(now - d.at)
	d.at = now
	if elapsed <= 0 {
		return
	}
	for _, b := range d.batches {
		b.work -= elapsed * b.speed
		b.done += elapsed * b.speed
		b.finishes = max(0, b.finishes-elapsed*b.speed)
	}
	d.share()
}

// next returns when a batch or a kernel ends, if no batch is added.
func (d *device) next() int64 {
	soonest := math.Inf(1)
	for _, b := range d.batches {
		if b.speed <= 0 {
			continue
		}
		soonest = min(soonest, b.work/b.speed)
		if b.finishes > epsilon {
			soonest = min(soonest, b.finishes/b.speed)
		}
	}
	if math.IsInf(soonest, 1) {
		return math.MaxInt64
	}
	return d.at + max(1, int64(math.Ceil(soonest)))
}

// runs reports whether a batch of another function has the turn of a level.
func (d *device) runs(level budget.Level, f *function) bool {
	return slices.ContainsFunc(d.batches, func(b *batch) bool {
		return d.sharing == Turns || b.level == level && b.of != f
	})
}

// add begins a batch.
func (d *device) add(b *batch) {
	d.batches = append(d.batches, b)
	before := make(map[*batch]float64, len(d.batches))
	for _, other := range d.batches {
		before[other] = other.speed
	}
	d.share()
	for _, other := range d.batches {
		if d.sharing == Priorities && other.level < b.level && other.speed < before[other] && other.finishes <= epsilon && other.done > 0 {
			other.finishes = min(other.work, other.kernel-math.Mod(other.done, other.kernel))
		}
	}
	d.share()
}

// ended takes out a batch that has run, or returns nil.
func (d *device) ended() *batch {
	for i, b := range d.batches {
		if b.work <= epsilon {
			d.batches = append(d.batches[:i], d.batches[i+1:]...)
			d.share()
			return b
		}
	}
	return nil
}
