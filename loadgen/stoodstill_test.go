package loadgen

import (
	"testing"
	"time"
)

// TestGeneratorStopped: the program is stopped for a minute (Ctrl-Z) with
// requests outstanding. When it continues, it sends all due requests at once, and only then reads
// replies.
func TestGeneratorStopped(t *testing.T) {
	at := func(d time.Duration) int64 { return int64(time.Hour + d) }
	for name, goesOn := range map[string]func(*outageTracker, int64){
		"it looks first":  func(s *outageTracker, now int64) { s.news(now) },
		"it sends first":  func(s *outageTracker, now int64) { s.sent(now) },
		"it reads first":  func(s *outageTracker, now int64) { s.received(now) },
		"and reads a lot": func(s *outageTracker, now int64) { s.sent(now); s.received(now); s.news(now); s.received(now) },
	} {
		s := newOutageTracker(25 * time.Millisecond)
		for i := range 10 {
			s.sent(at(time.Duration(i) * 100 * time.Millisecond))
		}
		if news := s.news(at(time.Second)); news != "" {
			t.Fatalf("%s: told %q", name, news)
		}
		goesOn(&s, at(time.Minute))
		s.sent(at(time.Minute))
		if news := s.news(at(time.Minute)); news != "" {
			t.Errorf("%s: told %q", name, news)
		}
		if all := s.outages("face", 0, at(time.Minute)); len(all) > 0 {
			t.Errorf("%s: outages %+v", name, all)
		}
	}
}
