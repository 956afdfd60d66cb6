package udp

import (
	"testing"
	"time"
)

// A stamp shows how long a datagram has waited, unless the wall clock was set meanwhile.
func TestClockStepped(t *testing.T) {
	const (
		ms     = int64(time.Millisecond)
		opened = int64(100 * time.Second)
		wall   = int64(1_700_000_000 * time.Second) // at opened
		step   = 300 * ms
		now    = opened + 10_000*ms
	)
	none := func(*clocks) {}
	set := func(by int64) func(*clocks) {
		return func(c *clocks) { c.at(now-5*ms, wall+9_995*ms+by, now-5*ms) } // the first reading after it was set
	}
	for _, test := range []struct {
		what    string
		happens func(*clocks)
		by      int64 // by how much the wall clock was set forward
		stamp   int64
		want    int64
	}{
		{"came just now", none, 0, wall + 10_000*ms, now},
		{"waited for 20 ms", none, 0, wall + 9_980*ms, now - 20*ms},
		{"waited for 5 s, because nobody received", none, 0, wall + 5_000*ms, now - 5_000*ms},
		{"no stamp", none, 0, 0, 0},
		{"older than the socket: of another clock", none, 0, wall - 1, 0},
		{"a stamp that is yet to come", none, 0, wall + 10_000*ms + 1, 0},
		{"set forward, found with this reading", none, step, wall + 9_990*ms, 0},
		{"set back, found with this reading", none, -step, wall + 9_990*ms, 0},
		{"set forward by an hour", none, 3_600_000 * ms, wall + 9_990*ms, 0},
		{"stamped before it was set forward, received after that was found", set(step), step, wall + 9_990*ms, 0},
		{"stamped after it was set forward, and after that was found", set(step), step, wall + 9_998*ms + step, now - 2*ms},
		{"stamped after it was set back, and after that was found", set(-step), -step, wall + 9_998*ms - step, now - 2*ms},
		{"slept in the middle of a reading", func(c *clocks) { c.at(now-50*ms, wall+9_950*ms, now-10*ms) }, 0, wall + 9_980*ms, now - 20*ms},
	} {
		var c clocks
		c.at(opened, wall, opened)
		test.happens(&c)
		c.at(now, wall+10_000*ms+test.by, now)
		if got := c.arrival(test.stamp); got != test.want {
			t.Errorf("%s: arrived at %d ms, want %d (0: not known)", test.what, got/ms, test.want/ms)
		}
	}
}

// The first difference is from a reading during which the thread was not interrupted.
func TestClockFirstReading(t *testing.T) {
	const (
		ms    = int64(time.Millisecond)
		ahead = int64(1_700_000_000 * time.Second)
	)
	now := int64(100 * time.Second)
	readings, stops := 0, 3
	read := func() (before, wall, after int64) {
		readings++
		before, wall = now, now+ahead
		if readings <= stops {
			now += 20 * ms // after the wall clock was read
		}
		return before, wall, now
	}
	var c clocks
	c.open(read)
	if readings != stops+1 {
		t.Errorf("read %d times, want %d: the first %d were interrupted", readings, stops+1, stops)
	}
	came := now + ms
	now += 30 * ms
	c.at(now, now+ahead, now)
	if got := c.arrival(came + ahead); got != came {
		t.Errorf("arrived at %d ms, want %d (0: not known)", got/ms, came/ms)
	}
	stops = readings + 1000
	if c.open(read); c.from == 0 {
		t.Error("no reading was taken where all are interrupted")
	}
}
