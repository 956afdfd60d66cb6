package arrival

import (
	"fmt"
	"math"
	"time"
)

// Rate is the number of requests per second, in all streams together. It is
// constant between the times at which it changes. The zero value never sends.
type Rate struct {
	steps []step // ascending in time, the first at 0
}

type step struct {
	at        time.Duration
	perSecond float64
}

// At returns a rate that is constant from the start.
func At(perSecond float64) Rate {
	return Rate{steps: []step{{0, checked(perSecond)}}}
}

// Then returns a rate that is r until at, and perSecond from then on. at must
// not be before the last change. If it is the time of the last change, it
// replaces that change.
func (r Rate) Then(at time.Duration, perSecond float64) Rate {
	next := step{at, checked(perSecond)}
	if len(r.steps) == 0 {
		r = At(0)
	}
	last := r.steps[len(r.steps)-1].at
	if at < last {
		panic(fmt.Sprintf("arrival: a change of rate at %v after one at %v", at, last))
	}
	keep := len(r.steps)
	if at == last {
		keep--
	}
	// Copy, so that rates with the same beginning do not share later steps.
	steps := append(make([]step, 0, keep+1), r.steps[:keep]...)
	return Rate{steps: append(steps, next)}
}

// Shift returns r with all its changes later by the given time. r's first rate
// therefore lasts longer by that time.
func (r Rate) Shift(by time.Duration) Rate {
	steps := append([]step(nil), r.steps...)
	for i := 1; i < len(steps); i++ {
		steps[i].at += by
	}
	return Rate{steps: steps}
}

func checked(perSecond float64) float64 {
	if !(perSecond >= 0) || math.IsInf(perSecond, 1) {
		panic(fmt.Sprintf("arrival: rate of %v requests per second, want 0 or more", perSecond))
	}
	return perSecond
}

// cursor inverts a rate's integral for points that never decrease.
type cursor struct {
	steps  []step
	before float64 // the integral up to steps[0].at
}

func (c *cursor) at(point float64) time.Duration {
	for len(c.steps) > 1 {
		through := c.before + c.steps[0].perSecond*(c.steps[1].at-c.steps[0].at).Seconds()
		if point < through {
			break
		}
		c.before = through
		c.steps = c.steps[1:]
	}
	if len(c.steps) == 0 || c.steps[0].perSecond == 0 {
		return Never
	}
	s := c.steps[0]
	after := (point - c.before) / s.perSecond * float64(time.Second)
	if after >= float64(Never-s.at) {
		return Never
	}
	return s.at + time.Duration(after)
}
