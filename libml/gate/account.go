package gate

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/control/budget"
)

// Account tracks its function's time on a GPU for the batch loop: the balance of the guarantee
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
type Account struct {
	level     budget.Level // budget.Demoted: no account is kept, no batch is demoted
	framework Demotable    // nil: no batch can be demoted
	exclusive bool         // a batch has the device to itself, in the process's turn (Entry)
	objective time.Duration

	balance *Balance        // of the process, or of its worker
	terms   Terms           // those that the balance follows
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

// Demotable is implemented by a framework that is able to run a batch of n images in a slot demoted.
type Demotable interface{ Demotable(slot, n int) bool }

// DemotedByTurn is the Demotable of a process without stream priorities: the rank of its turn demotes a batch, on
// any stream of the framework.
type DemotedByTurn struct{}

// Demotable returns true.
func (DemotedByTurn) Demotable(int, int) bool { return true }

// Terms are what the manager has ordered.
type Terms struct {
	// Guarantee is a part of the device's time, 0..1.
	Guarantee float64
	// Level is that of batches within the guarantee; budget.Demoted if no function has a guarantee.
	Level budget.Level
}

// Config describes the function of an account.
type Config struct {
	// Level is the highest one of its batches; budget.Demoted: no account is kept, no batch is demoted.
	Level budget.Level
	// Framework is able to run batches demoted; nil if it is not.
	Framework Demotable
	// Exclusive: a batch costs the whole time that it takes, because the next one waits for its turn.
	Exclusive bool
	Objective time.Duration
	// Balance is shared by the members of a worker; nil: the account has its own.
	Balance *Balance
	Terms   Terms
	// Times[n] is the time of a batch of n that runs alone; 0: not known. It has a place for the largest batch.
	// The account owns it.
	Times []time.Duration
	// Size is the largest batch at first.
	Size int
}

// NewAccount begins an account with a full balance, unless it shares that.
func NewAccount(now int64, c Config) *Account {
	a := &Account{level: c.Level, objective: c.Objective, balance: c.Balance, times: c.Times, terms: c.Terms, size: c.Size}
	if a.balance == nil {
		a.balance = &Balance{}
	}
	if a.level == budget.Demoted {
		return a
	}
	a.framework, a.exclusive = c.Framework, c.Exclusive
	a.fitLine()
	a.balance.join(a, now, a.terms.Guarantee, a.capacity())
	return a
}

func (a *Account) capacity() time.Duration {
	return budget.Capacity(a.terms.Guarantee, a.objective, a.Cost(a.size))
}

// Balance is what the account draws on.
func (a *Account) Balance() *Balance { return a.balance }

// Close ends the account.
func (a *Account) Close() { a.balance.leave(a) }

// Guaranteed reports whether a batch that begins now runs at the function's level. It first
// updates the balance to the last terms and to a batch of this size, and reports whether that changed it.
func (a *Account) Guaranteed(now int64, terms Terms, size int) (guaranteed, changed bool) {
	if a.level == budget.Demoted || a.framework == nil {
		return true, false
	}
	if changed = terms != a.terms || size != a.size; changed {
		a.terms, a.size = terms, size
		a.balance.set(a, now, a.terms.Guarantee, a.capacity())
	}
	if terms.Level == budget.Demoted {
		return true, changed // no function has a guarantee now
	}
	return a.balance.guaranteed(now), changed
}

// begin charges a batch, or demotes it if its framework is able to run it demoted.
func (a *Account) begin(now int64, slot, padded int, beyond bool) (demoted bool) {
	demoted = beyond && a.demotes(slot, padded)
	if beyond {
		a.refused.Store(!demoted)
	}
	if a.level != budget.Demoted && !demoted {
		a.balance.Charge(now, a.Cost(padded))
	}
	return demoted
}

// demotes reports whether the framework is able to run a batch of a size in the device's slot demoted.
func (a *Account) demotes(slot, padded int) bool {
	return a.framework != nil && a.framework.Demotable(slot, padded)
}

// BatchLevel is the priority of a batch that begins: the last one ordered, at most that of the
// process's streams. A batch that the framework queues on the slot's own stream has that stream's
// level: device and framework must use one stream.
func (a *Account) BatchLevel(slot, padded int, demoted bool) budget.Level {
	switch {
	case demoted:
		return budget.Demoted
	case !a.demotes(slot, padded):
		return a.level
	}
	return min(a.level, a.OrderedLevel())
}

// OrderedLevel is the level of batches within the guarantee, as ordered last.
func (a *Account) OrderedLevel() budget.Level {
	if a.terms.Level == budget.Demoted {
		return a.level // no function has a guarantee now
	}
	return a.terms.Level
}

// Cost is the device time that a batch of a configured size uses.
func (a *Account) Cost(padded int) time.Duration {
	return max(0, a.Time(padded)-a.spare)
}

// Time is how long a batch takes alone. For a size without a known time, each image counts as
// in the next smaller known size: rather too long than too short. But no batch takes longer than a
// larger one.
func (a *Account) Time(padded int) time.Duration {
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

// End updates the account after a batch has run on the device, from began to ended.
func (a *Account) End(padded int, demoted bool, began, ended int64) {
	if a.level == budget.Demoted {
		return
	}
	a.learn(padded, time.Duration(ended-began))
	if r := &a.series; padded == r.padded && demoted == r.demoted && began <= r.ended {
		r.batches++
		r.ended = ended
		if r.batches == seriesBatches {
			a.learn(padded, time.Duration((r.ended-r.began)/seriesBatches))
			r.batches, r.began = 0, r.ended
		}
	} else {
		*r = series{padded: padded, demoted: demoted, began: ended, ended: ended}
	}
	cost := int64(a.Cost(padded))
	a.charged.Add(cost)
	if demoted {
		a.demoted.Add(cost)
	}
}

// learn lowers the time of a size.
func (a *Account) learn(padded int, took time.Duration) {
	if took > 0 && took < a.Time(padded) {
		a.times[padded] = took
		a.size = 0 // the balance holds less
		a.fitLine()
	}
}

// fitLine fits the line fixed + n * each through the smallest known size, below all others. A size
// that has not run since the process began may have an initial time that contains waiting. So
// fitLine first makes sure that no batch takes longer than a larger one. The line need not meet
// the largest.
func (a *Account) fitLine() {
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

// Refilled returns when a batch within the guarantee can begin; math.MaxInt64 if none can.
func (a *Account) Refilled(now int64) int64 {
	wait := int64(a.balance.wait(now))
	if a.terms.Guarantee <= 0 || wait > math.MaxInt64-now {
		return math.MaxInt64
	}
	return now + wait
}

// Figures are an account's figures for the manager.
type Figures struct {
	// Charged is the cost of all batches, and Demoted that of the demoted ones.
	Charged, Demoted time.Duration
	// A batch of n costs Fixed + n * PerImage.
	Fixed, PerImage time.Duration
	// Refused: the last batch beyond the guarantee could not be demoted, or none can be.
	Refused bool
}

// Figures returns the present figures. Any goroutine may call it.
func (a *Account) Figures() Figures {
	return Figures{
		Charged: time.Duration(a.charged.Load()), Demoted: time.Duration(a.demoted.Load()),
		Fixed: time.Duration(a.fixed.Load()), PerImage: time.Duration(a.perImage.Load()),
		Refused: a.refused.Load() || a.framework == nil,
	}
}
