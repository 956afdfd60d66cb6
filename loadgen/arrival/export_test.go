package arrival

import "time"

// PerSecond returns the rate at a time.
func (r Rate) PerSecond(at time.Duration) float64 {
	perSecond := 0.0
	for _, s := range r.steps {
		if s.at > at {
			break
		}
		perSecond = s.perSecond
	}
	return perSecond
}

// Requests returns the expected number of requests until a time: the rate's
// integral.
func (r Rate) Requests(until time.Duration) float64 {
	sum := 0.0
	for i, s := range r.steps {
		if s.at >= until {
			break
		}
		end := until
		if i+1 < len(r.steps) {
			end = min(end, r.steps[i+1].at)
		}
		sum += s.perSecond * (end - s.at).Seconds()
	}
	return sum
}
