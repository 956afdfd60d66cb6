// Package follow decides when the rates of services have left a plan, and which rates to plan for
// then. It is pure: the caller has the clock and counts requests.
//
// A plan has headroom over what was measured. A service is planned again in two cases: it exceeds
// its planned rate for UpAfter, or for DownAfter it would have fitted in a plan that is smaller by
// the headroom. A burst therefore keeps what it got until DownAfter has passed without another.
// Changes are at least Between apart.
package follow

import (
	"maps"
	"time"
)

const (
	// Headroom is the planned rate relative to the measured one.
	Headroom = 1.15
	// UpAfter and DownAfter are how long a rate must have left the planned one.
	UpAfter   = 10 * time.Second
	DownAfter = 10 * time.Minute
	// Between is the min time between two changes.
	Between = 30 * time.Second
	// minRPS is the lowest rate to plan for: a service without requests stays.
	minRPS = 1
)

// Follower follows the rates of the services of a plan. Only one goroutine may use it.
type Follower struct {
	planned map[string]float64 // requests per second
	seen    map[string]*service
	at      time.Time // of the last observation
	changed time.Time
}

// service is what was measured since the service was planned.
type service struct {
	arrived uint64
	since   time.Time // of the first observation
	above   time.Time // since when the rate exceeds the planned one; zero if it does not
	rates   []sample  // not older than DownAfter
}

type sample struct {
	at  time.Time
	rps float64
}

// New returns a Follower of a plan for these rates.
func New(planned map[string]float64) *Follower {
	f := &Follower{}
	f.Planned(planned)
	return f
}

// Planned says that there is a plan for these rates now.
func (f *Follower) Planned(rates map[string]float64) {
	old := f.planned
	f.planned = maps.Clone(rates)
	if f.seen == nil {
		f.seen = map[string]*service{}
	}
	for name, rate := range rates {
		if s := f.seen[name]; s != nil && old[name] != rate {
			s.above, s.since = time.Time{}, f.at
		}
	}
}

// Observe takes the number of requests of each service that have ever arrived. It returns the rates
// of all services to plan for, or nil if the plan is right. After a call that returned rates, it
// returns nil for at least Between.
func (f *Follower) Observe(at time.Time, arrived map[string]uint64) (want map[string]float64) {
	began := f.at
	f.at = at
	for name, planned := range f.planned {
		now, runs := arrived[name]
		s := f.seen[name]
		if !runs {
			delete(f.seen, name)
			continue
		}
		if s == nil || now < s.arrived { // new, or the node has started again
			f.seen[name] = &service{arrived: now, since: at}
			continue
		}
		s.measure(began, at, now, planned)
		if rate := s.want(at, planned); rate != planned {
			if want == nil {
				want = maps.Clone(f.planned)
			}
			want[name] = rate
		}
	}
	if want == nil || at.Sub(f.changed) < Between {
		return nil
	}
	f.changed = at
	return want
}

// measure takes the requests between two times.
func (s *service) measure(began, at time.Time, arrived uint64, planned float64) {
	rate := float64(arrived-s.arrived) / at.Sub(began).Seconds()
	s.arrived = arrived
	for len(s.rates) > 0 && at.Sub(s.rates[0].at) > DownAfter {
		s.rates = s.rates[1:]
	}
	s.rates = append(s.rates, sample{at, rate})
	switch {
	case rate <= planned:
		s.above = time.Time{}
	case s.above.IsZero():
		s.above = began
	}
}

// want returns the rate to plan for.
func (s *service) want(at time.Time, planned float64) float64 {
	if !s.above.IsZero() {
		if at.Sub(s.above) >= UpAfter {
			return Headroom * s.peak(s.above)
		}
		return planned
	}
	if less := max(minRPS, Headroom*s.peak(at.Add(-DownAfter))); at.Sub(s.since) >= DownAfter && less*Headroom < planned {
		return less
	}
	return planned
}

// peak returns the highest rate since a time.
func (s *service) peak(since time.Time) (peak float64) {
	for _, r := range s.rates {
		if r.at.After(since) {
			peak = max(peak, r.rps)
		}
	}
	return peak
}
