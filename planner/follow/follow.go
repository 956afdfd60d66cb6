// Package follow decides when the rates of services have left a plan, and which rates to plan for
// then. It is pure: the caller has the clock and counts requests.
//
// A plan has headroom over what was measured. A service is planned again in two cases: it exceeds
// its planned rate for UpAfter, or for DownAfter it stays below a part of it. A burst therefore
// keeps what it got until DownAfter has passed without another.
package follow

import (
	"maps"
	"math"
	"time"
)

// A Rule says how plans follow rates.
type Rule struct {
	// Headroom is the planned rate relative to the measured one. Step, if above 1, is the ratio
	// between planned rates: they are rounded up to a power of it.
	Headroom, Step float64
	// UpAfter is how long a rate must exceed the planned one. DownAfter is how long it must stay
	// below DownBelow times the planned one.
	UpAfter, DownAfter time.Duration
	DownBelow          float64
	// Between is the min time between two changes of a Follower.
	Between time.Duration
}

// Default is the rule for one machine.
var Default = Rule{Headroom: 1.15, UpAfter: 10 * time.Second, DownAfter: 10 * time.Minute, DownBelow: 0.7, Between: 30 * time.Second}

// minRPS is the lowest rate to plan for: a service without requests stays.
const minRPS = 1

// Follower follows the rates of the services of a plan. Only one goroutine may use it.
type Follower struct {
	// Planned are the rates, in requests per second, that there is a plan for now; nil if there is none.
	Planned map[string]float64
	rule    Rule
	seen    map[string]*counter
	at      time.Time // of the last observation
	changed time.Time
}

type counter struct {
	Service
	arrived uint64
}

// New returns a Follower without a plan.
func New(rule Rule) *Follower { return &Follower{rule: rule, seen: map[string]*counter{}} }

// Observe takes the number of requests of each service that have ever arrived. It returns the rates
// of all services to plan for, or nil if the plan is right. After a call that returned rates, it
// returns nil for at least Between.
func (f *Follower) Observe(at time.Time, arrived map[string]uint64) (want map[string]float64) {
	began := f.at
	f.at = at
	for name, planned := range f.Planned {
		now, runs := arrived[name]
		s := f.seen[name]
		if !runs {
			delete(f.seen, name)
			continue
		}
		if s == nil || now < s.arrived { // new, or the node has started again
			f.seen[name] = &counter{arrived: now}
			continue
		}
		rate := float64(now-s.arrived) / at.Sub(began).Seconds()
		s.arrived = now
		if rate := s.Observe(f.rule, began, at, rate, planned); rate != planned {
			if want == nil {
				want = maps.Clone(f.Planned)
			}
			want[name] = rate
		}
	}
	if want == nil || at.Sub(f.changed) < f.rule.Between {
		return nil
	}
	f.changed = at
	return want
}

// A Service has what was measured of a service since it was planned. The zero Service has nothing.
type Service struct {
	planned float64
	since   time.Time // of the first observation
	above   time.Time // since when the rate exceeds the planned one; zero if it does not
	rates   []sample  // not older than DownAfter
}

type sample struct {
	at  time.Time
	rps float64
}

// Observe takes the rate between two times, and the rate that is planned for. It returns the rate
// to plan for, which is the planned one if that is right.
func (s *Service) Observe(r Rule, began, at time.Time, rate, planned float64) float64 {
	if s.planned != planned {
		s.planned, s.since, s.above = planned, began, time.Time{}
	}
	for len(s.rates) > 0 && at.Sub(s.rates[0].at) > r.DownAfter {
		s.rates = s.rates[1:]
	}
	s.rates = append(s.rates, sample{at, rate})
	switch {
	case rate <= planned:
		s.above = time.Time{}
	case s.above.IsZero():
		s.above = began
	}
	if !s.above.IsZero() {
		if at.Sub(s.above) >= r.UpAfter {
			return r.plan(s.peak(s.above))
		}
		return planned
	}
	if peak := s.peak(at.Add(-r.DownAfter)); at.Sub(s.since) >= r.DownAfter && peak < r.DownBelow*planned {
		return min(planned, r.plan(peak))
	}
	return planned
}

// plan returns the rate to plan for at a measured rate.
func (r Rule) plan(rate float64) float64 {
	rate = max(minRPS, r.Headroom*rate)
	if r.Step > 1 {
		rate = math.Pow(r.Step, math.Ceil(math.Log(rate)/math.Log(r.Step)-1e-9))
	}
	return rate
}

// peak returns the highest rate since a time.
func (s *Service) peak(since time.Time) (peak float64) {
	for _, r := range s.rates {
		if r.at.After(since) {
			peak = max(peak, r.rps)
		}
	}
	return peak
}
