package loadgen

import (
	"fmt"
	"time"
)

// Outage is a time without any reply to requests that were sent to a function.
type Outage struct {
	Function string `json:"function"`
	// FromSeconds is when the first request without a reply left. It counts from the start
	// of the measured time and is negative in the warm-up.
	FromSeconds float64 `json:"from_s"`
	// Seconds is the time until the next reply of any status or, if Ended is false, until
	// the end of the run.
	Seconds float64 `json:"seconds"`
	Ended   bool    `json:"ended"`
}

func (o Outage) String() string {
	to := "then it answered again"
	if !o.Ended {
		to = "to the end"
	}
	return fmt.Sprintf("%s: no answers for %.1f s from second %.1f, %s", o.Function, o.Seconds, o.FromSeconds, to)
}

// outageLimit is how long a function with this objective must not reply before that is an
// Outage: a second longer than a client waits.
func outageLimit(slo time.Duration) time.Duration { return replyGrace(slo) + outageSlack }

const outageSlack = time.Second

// outageRequests is the min number of requests without a reply. The network hardly loses so
// many. If one request leaves per minute, a single lost one already means a minute of
// silence.
const outageRequests = 3

// outageTracker tracks since when no reply has come. The ledger's lock guards it.
type outageTracker struct {
	// limit is how long a silence must last to be an outage. The last of outageRequests
	// must also be older than grace, which is how long a client waits.
	limit, grace time.Duration
	requests     int   // sent since the last reply
	since, last  int64 // when the first of them left, and the last of the first outageRequests
	checkedAt    int64 // when news was last called
	reported     bool
	outageSpans  []outageSpan
}

func newOutageTracker(slo time.Duration) outageTracker {
	return outageTracker{limit: outageLimit(slo), grace: replyGrace(slo)}
}

// outageSpan is a silence that lasted at least the limit.
type outageSpan struct {
	from  int64
	lasts time.Duration
}

// sent counts a request that leaves now; its intended time does not matter.
func (s *outageTracker) sent(at int64) {
	s.paused(at)
	if s.requests == 0 {
		s.since = at
	}
	s.requests++
	if s.requests <= outageRequests {
		s.last = at
	}
}

func (s *outageTracker) received(at int64) {
	s.paused(at)
	if now, ok := s.now(at); ok {
		s.outageSpans = append(s.outageSpans, now)
	}
	s.requests = 0
}

// paused starts again if this program itself stood still (Ctrl-Z, a suspended machine): it
// did not read the replies of that time.
func (s *outageTracker) paused(at int64) {
	if s.checkedAt != 0 && time.Duration(at-s.checkedAt) > outageSlack && !s.reported {
		s.requests = 0
	}
}

// now returns the silence that lasts at this moment. is is false if there is none yet.
func (s *outageTracker) now(at int64) (_ outageSpan, ok bool) {
	lasts := time.Duration(at - s.since)
	ok = s.requests >= outageRequests && lasts >= s.limit && time.Duration(at-s.last) >= s.grace
	return outageSpan{s.since, lasts}, ok
}

// news returns what changed since the last call: replies stopped, or came again. It is empty
// if nothing changed.
func (s *outageTracker) news(at int64) string {
	s.paused(at)
	s.checkedAt = at
	now, ok := s.now(at)
	switch {
	case ok && !s.reported:
		s.reported = true
		return fmt.Sprintf("no answers for %.1f s to %d requests", now.lasts.Seconds(), s.requests)
	case !ok && s.reported:
		s.reported = false
		if len(s.outageSpans) == 0 { // the reply was read in time and delivered late
			return "answers again"
		}
		return fmt.Sprintf("answers again, after %.1f s", s.outageSpans[len(s.outageSpans)-1].lasts.Seconds())
	}
	return ""
}

// outages returns all silences of a run that ends at end. start is the beginning of its
// measured time.
func (s *outageTracker) outages(function string, start, end int64) []Outage {
	var all []Outage
	add := func(o outageSpan, ended bool) {
		all = append(all, Outage{
			Function: function, FromSeconds: rounded(time.Duration(o.from - start).Seconds()),
			Seconds: rounded(o.lasts.Seconds()), Ended: ended,
		})
	}
	for _, o := range s.outageSpans {
		add(o, true)
	}
	if now, ok := s.now(end); ok {
		add(now, false)
	}
	return all
}
