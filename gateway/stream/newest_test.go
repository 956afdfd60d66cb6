package stream

import (
	"testing"

	"pgregory.net/rapid"
)

// TestNewest compares Newest with a list of all frames: what is sent is always the last frame
// offered, and each frame is sent, dropped or waiting.
func TestNewest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n Newest[int]
		offered, sent, dropped := 0, 0, 0
		inFlight, lastSent := false, 0
		send := func(frame int) {
			if inFlight {
				t.Fatal("two frames in flight")
			}
			if frame != offered || frame <= lastSent {
				t.Fatalf("sent frame %d after %d, want the newest, %d", frame, lastSent, offered)
			}
			inFlight, lastSent = true, frame
			sent++
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if inFlight && rapid.Bool().Draw(t, "done") {
				inFlight = false
				if next, ok := n.Done(); ok {
					send(next)
				}
				continue
			}
			offered++
			now, old, drop := n.Offer(offered)
			if drop {
				if now || old != offered-1 {
					t.Fatalf("dropped frame %d for %d", old, offered)
				}
				dropped++
			}
			if now {
				send(offered)
			}
		}
		for inFlight {
			frame, ok := n.Done()
			inFlight = false
			if ok {
				send(frame)
			}
		}
		if sent+dropped != offered {
			t.Fatalf("%d sent, %d dropped of %d", sent, dropped, offered)
		}
	})
}
