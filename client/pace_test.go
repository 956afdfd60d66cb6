package client

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// In any interval, at most a burst, the bytes of the rate, and one overdrawing
// datagram may be sent. After the returned wait, sending is allowed.
func TestPace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const largest = 65507
		start := rapid.Int64Range(0, 1<<60).Draw(t, "start")
		rate := rapid.Int64Range(1000, 10e9).Draw(t, "rate")
		depth := rapid.Int64Range(1, 1<<20).Draw(t, "depth")
		p := newPace(rate, depth, start)
		now, sent := start, int64(0)
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "waits") {
				now += int64(p.wait(now))
				if p.budget(now) <= 0 {
					t.Fatalf("waited as told, and may not send: %+v at %d", p, now)
				}
			} else {
				now += rapid.Int64Range(0, int64(2*time.Second)).Draw(t, "passes")
			}
			for p.budget(now) > 0 && rapid.Bool().Draw(t, "sends") {
				n := rapid.Int64Range(1, largest).Draw(t, "datagram")
				p.spend(n)
				sent += n
			}
			allowed := float64(depth) + float64(rate)*float64(now-start)/1e9 + largest + 1
			if float64(sent) > allowed {
				t.Fatalf("%d bytes left within %v, %.0f are allowed", sent, time.Duration(now-start), allowed)
			}
		}
	})
}

func TestPaceUnlimited(t *testing.T) {
	var p pace
	p.spend(1 << 40)
	if p.budget(5) <= 0 || p.wait(5) != 0 {
		t.Errorf("budget %d, wait %v", p.budget(5), p.wait(5))
	}
}
