package share

import "time"

// Silence tells when nothing comes to an IF any more, or yet. The zero value has not
// looked.
//
// A pause is no silence: who came back after one may pause so long again. So it takes twice
// the longest pause of late, Config.Silence at least and Config.Memory at most.
type Silence struct {
	looked, heard bool
	last          time.Duration // when something last came; before anything did, the first look
	pause, until  time.Duration // the longest pause of late, and until when it counts
}

// Look takes in whether anything came since the last look, and reports whether the IF is
// silent. Time is that of Controller.Step.
func (s *Silence) Look(now time.Duration, came bool, c Config) bool {
	if !s.looked {
		s.looked, s.last = true, now
	}
	if came {
		// What was before the first request is no pause between two.
		if pause := now - s.last; s.heard && (pause >= s.pause || now >= s.until) {
			s.pause, s.until = pause, now+c.Memory
		}
		s.heard, s.last = true, now
		return false
	}
	after := c.Silence
	if now < s.until {
		after = max(after, min(2*s.pause, c.Memory))
	}
	return now-s.last >= after
}
