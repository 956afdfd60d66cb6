package libml

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control/budget"
)

// account tracks its function's time on a GPU for the batch loop: the balance of the guarantee
// (package budget), and the cost of a batch of each size.
//
// A batch that begins while the balance is positive runs at the function's level and is
// charged. Any other is demoted: it runs at the lowest priority and is not charged. Demoted
// batches take at most one of the loop's two places, so that the other stays free for a batch
// within the guarantee.
//
// The cost of a batch is the device time that it uses. A batch that takes fixed + n * each when
// it runs alone does not fill the device: launches and small kernels leave room for other
// processes. Its cost is fixedTimeUse * fixed + n * each (docs/adr/0023-stream-priorities.md). In a turn
// on a GPU without MPS a batch leaves no room, so its cost is the whole time. Times
// are measured before the process serves, and afterwards only decrease. Each batch bounds the time of
// its size: what it took may contain waiting, but nothing shortens it. Sizes that a process adds while
// it serves are not measured (partial.go), so this bound gives their cost.
type account struct {
	level     budget.Level // budget.Demoted: no account is kept, no batch is demoted
	framework Demotable    // nil: no batch can be demoted
	exclusive bool         // a batch has the device to itself, in the process's turn (gputurn.go)
	objective time.Duration

	balance *balance        // of the process, or of its worker
	share   *shareOrder     // the order that the balance follows
	size    int             // the largest batch that the balance covers
	times   []time.Duration // of a batch of each size that runs alone; 0: not known
	spare   time.Duration   // the part of these times that a batch leaves to other processes
	series  series

	charged, demoted atomic.Int64 // costs of all batches, in nanoseconds
	fixed, perImage  atomic.Int64 // a batch of n costs fixed + n * perImage nanoseconds
	refused          atomic.Bool  // the last batch beyond the guarantee could not be demoted
}

// fixedTimeUse is the part of the device that a batch's fixed time uses. It was measured on an H200
// with small batches at a higher priority than VGG-19. ResNet-152 left VGG-19 as much as with
// 0.3, ResNet-50 and MobileNetV2 as much as with 0.4.
const fixedTimeUse = 0.35

// series counts successive batches of one kind without a gap between them.
type series struct {
	padded  int
	demoted bool
	batches int
	began   int64 // the end of the batch before the first
	ended   int64 // the end of the last
}

// seriesBatches is the number of batches that gives the rate of their kind.
const seriesBatches = 8

// open begins the account of a process of this level with a full balance.
func (a *account) open(p *process, now int64) {
	a.level, a.objective, a.balance = p.level, p.slo, &balance{}
	if p.worker != nil {
		a.balance = &p.worker.balance
	}
	if a.level == budget.Demoted {
		return
	}
	if a.exclusive = p.gpuTurn != nil; a.exclusive {
		a.framework = demotedByTurn{}
	} else if _, ok := p.framework.(Demotable); ok {
		a.framework = demotable{p}
	}
	a.times = make([]time.Duration, p.card.MaxBatch()+1)
	for _, w := range p.sizes.warm {
		a.times[w.size] = w.alone
	}
	a.fitLine()
	a.share, a.size = p.orders.share.Load(), p.sizes.ladder[0]
	a.balance.join(a, now, a.guarantee(), a.capacity())
}

func (a *account) guarantee() float64 {
	if a.share == nil {
		return 0
	}
	return a.share.guarantee / 100
}

func (a *account) capacity() time.Duration {
	return budget.Capacity(a.guarantee(), a.objective, a.cost(a.size))
}

// close ends the account.
func (a *account) close() { a.balance.leave(a) }

// guaranteed reports whether a batch that begins now runs at the function's level. It first
// updates the balance to the last order and to a batch of this size, and reports whether that changed it.
func (a *account) guaranteed(now int64, share *shareOrder, size int) (guaranteed, changed bool) {
	if a.level == budget.Demoted || a.framework == nil {
		return true, false
	}
	if changed = share != a.share || size != a.size; changed {
		a.share, a.size = share, size
		a.balance.set(a, now, a.guarantee(), a.capacity())
	}
	if share == nil || share.level == budget.Demoted {
		return true, changed // no function has a guarantee now
	}
	return a.balance.guaranteed(now), changed
}

// begin charges a batch, or demotes it if its framework is able to run it demoted.
func (a *account) begin(now int64, f *flight, demoted bool) {
	f.demoted = demoted && a.framework != nil && a.framework.Demotable(f.slot, f.padded)
	if demoted {
		a.refused.Store(!f.demoted)
	}
	if a.level != budget.Demoted && !f.demoted {
		a.balance.charge(now, a.cost(f.padded))
	}
}

// batchLevel is the priority of a batch that begins: the last one ordered, at most that of the
// process's streams. A batch that the framework queues on the slot's own stream has that stream's
// level: device and framework must use one stream.
func (a *account) batchLevel(f *flight) budget.Level {
	switch {
	case f.demoted:
		return budget.Demoted
	case a.framework == nil || !a.framework.Demotable(f.slot, f.padded):
		return a.level
	}
	return min(a.level, a.orderedLevel())
}

// orderedLevel is the level of batches within the guarantee, as ordered last.
func (a *account) orderedLevel() budget.Level {
	if a.share == nil || a.share.level == budget.Demoted {
		return a.level // no function has a guarantee now
	}
	return a.share.level
}

// cost is the device time that a batch of a configured size uses.
func (a *account) cost(padded int) time.Duration {
	return max(0, a.aloneTime(padded)-a.spare)
}

// aloneTime is how long a batch takes alone. For a size without a known time, each image counts as
// in the next smaller known size: rather too long than too short. But no batch takes longer than a
// larger one.
func (a *account) aloneTime(padded int) time.Duration {
	for n := min(padded, len(a.times)-1); n > 0; n-- {
		if a.times[n] > 0 {
			takes := a.times[n] * time.Duration(padded) / time.Duration(n)
			for _, larger := range a.times[min(padded, len(a.times)):] {
				if larger > 0 {
					return min(takes, larger)
				}
			}
			return takes
		}
	}
	return 0
}

// end updates the account after a batch has run.
func (a *account) end(f *flight, inferred int64) {
	if a.level == budget.Demoted || f.err != nil {
		return
	}
	a.learn(f.padded, time.Duration(inferred-f.dispatched))
	if r := &a.series; f.padded == r.padded && f.demoted == r.demoted && f.dispatched <= r.ended {
		r.batches++
		r.ended = inferred
		if r.batches == seriesBatches {
			a.learn(f.padded, time.Duration((r.ended-r.began)/seriesBatches))
			r.batches, r.began = 0, r.ended
		}
	} else {
		*r = series{padded: f.padded, demoted: f.demoted, began: inferred, ended: inferred}
	}
	cost := int64(a.cost(f.padded))
	a.charged.Add(cost)
	if f.demoted {
		a.demoted.Add(cost)
	}
}

// learn lowers the time of a size.
func (a *account) learn(padded int, took time.Duration) {
	if took > 0 && took < a.aloneTime(padded) {
		a.times[padded] = took
		a.size = 0 // the balance holds less
		a.fitLine()
	}
}

// fitLine fits the line fixed + n * each through the smallest known size, below all others. A size
// that has not run since the process began may have an initial time that contains waiting. So
// fitLine first makes sure that no batch takes longer than a larger one. The line need not meet
// the largest.
func (a *account) fitLine() {
	shortest := time.Duration(math.MaxInt64)
	for n, t := range slices.Backward(a.times) {
		if t > 0 {
			shortest = min(shortest, t)
			a.times[n] = shortest
		}
	}
	smallest := slices.IndexFunc(a.times, func(t time.Duration) bool { return t > 0 })
	if smallest < 0 {
		return
	}
	each := a.times[smallest] / time.Duration(smallest)
	for n, t := range a.times[smallest+1:] {
		if t > 0 {
			each = min(each, max(0, t-a.times[smallest])/time.Duration(n+1))
		}
	}
	fixed := a.times[smallest] - each*time.Duration(smallest)
	if !a.exclusive {
		a.spare = time.Duration((1 - fixedTimeUse) * float64(fixed))
	}
	a.perImage.Store(int64(each))
	a.fixed.Store(int64(fixed - a.spare))
}

// refill tells when batches within the guarantee can begin.
func (a *account) refill(now int64) batching.Refill {
	wait := a.balance.wait(now)
	if a.guarantee() <= 0 || wait == math.MaxInt64 {
		return batching.Refill{Wait: -1}
	}
	return batching.Refill{Wait: wait, Every: time.Duration(float64(a.cost(a.size)) / a.guarantee())}
}
