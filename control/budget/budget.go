// Package budget divides a device's time between functions without borders: each
// function has a guarantee, a part of the device's time, and a balance that refills
// at that rate. Work runs at the function's level while the balance is positive, and
// at level Demoted beyond it, on whatever time is left. Unused time is therefore never
// reserved, and work within a guarantee never waits for work beyond another's
// (docs/sharing.md).
//
// This is a constant bandwidth server per function (Abeni and Buttazzo, RTSS 1998)
// with deadline-monotonic priorities. The package is pure: callers pass the time in.
package budget

import (
	"math"
	"time"
)

// Level is a priority: a higher level preempts a lower one.
type Level int

// Demoted is the level of work beyond a guarantee. Work within a guarantee runs at
// MinLevel to MaxLevel. On a GPU level n is the stream priority -n.
const (
	Demoted  Level = 0
	MinLevel Level = 1
	MaxLevel Level = 5
)

// shortest is the longest objective at MaxLevel. Each level below takes objectives
// up to twice as long.
const shortest = 8 * time.Millisecond

// LevelOf returns the level of a function's guaranteed work: the shorter the
// objective, the higher.
func LevelOf(objective time.Duration) Level {
	level := MaxLevel
	for bound := shortest; objective > bound && level > MinLevel; bound *= 2 {
		level--
	}
	return level
}

// Balance is the device time that a function may still use at its level. It is not
// safe for concurrent use. Times are in nanoseconds of one monotonic clock.
type Balance struct {
	guarantee float64 // device time per time
	capacity  float64 // nanoseconds of device time
	left      float64 // of these
	at        int64   // when left was right
}

// NewBalance returns a full balance.
func NewBalance(now int64, guarantee float64, capacity time.Duration) Balance {
	return Balance{guarantee: guarantee, capacity: float64(capacity), left: float64(capacity), at: now}
}

// Capacity returns how much a function may save up: what its guarantee gives in one
// objective. It is at least two batches. With one, a function of few requests that has an
// objective shorter than the time to refill a batch would have more of them demoted.
func Capacity(guarantee float64, objective, batch time.Duration) time.Duration {
	return max(time.Duration(guarantee*float64(objective)), 2*batch)
}

// Set changes the guarantee and the capacity from now on.
func (b *Balance) Set(now int64, guarantee float64, capacity time.Duration) {
	b.refill(now)
	b.guarantee, b.capacity = guarantee, float64(capacity)
	b.left = min(b.left, b.capacity)
}

// Guaranteed reports whether work that starts now runs at the function's level.
func (b *Balance) Guaranteed(now int64) bool {
	b.refill(now)
	return b.left > 0
}

// Wait returns how long it takes until work is guaranteed; math.MaxInt64 if the guarantee
// is 0.
func (b *Balance) Wait(now int64) time.Duration {
	b.refill(now)
	switch {
	case b.left > 0:
		return 0
	case b.guarantee <= 0:
		return math.MaxInt64
	}
	return time.Duration(min(-b.left/b.guarantee+1, math.MaxInt64/2))
}

// Charge takes the cost of work at the function's level. Work may overdraw the
// balance once: it began while the balance was positive.
func (b *Balance) Charge(now int64, cost time.Duration) {
	b.refill(now)
	b.left -= float64(cost)
}

func (b *Balance) refill(now int64) {
	if now > b.at {
		b.left = min(b.capacity, b.left+b.guarantee*float64(now-b.at))
		b.at = now
	}
}
