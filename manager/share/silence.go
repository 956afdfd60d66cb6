package share

import (
	"slices"
	"time"
)

// Silence tells when nothing comes to an IF any more, or yet. The zero value has not
// looked.
//
// A pause is no silence: who came back after one may pause so long again. So it takes twice
// the longest pause of late, Config.Silence at least and Config.Memory at most.
type Silence struct {
	looked, heard bool
	last          time.Duration // when something last came; before anything did, the first look
	pauses        []pause       // those of late that count, each longer than those after it
}

// pause is how long nothing came, and until when that counts.
type pause struct{ length, until time.Duration }

// Look takes in whether anything came since the last look, and reports whether the IF is
// silent. Time is that of Controller.Step.
func (s *Silence) Look(now time.Duration, came bool, c Config) bool {
	if !s.looked {
		s.looked, s.last = true, now
	}
	if came {
		// What was before the first request is no pause between two.
		if length := now - s.last; s.heard && 2*length > c.Silence {
			s.pauses = slices.DeleteFunc(s.pauses, func(p pause) bool { return p.length <= length })
			s.pauses = append(s.pauses, pause{length, now + c.Memory})
		}
		s.heard, s.last = true, now
		return false
	}
	s.pauses = slices.DeleteFunc(s.pauses, func(p pause) bool { return now >= p.until })
	after := c.Silence
	if len(s.pauses) > 0 {
		after = max(after, min(2*s.pauses[0].length, c.Memory))
	}
	return now-s.last >= after
}
