package client

import (
	"testing"
	"time"
)

// A thread that is interrupted between the readings of the clocks does not make Now wrong.
func TestJoinClocks(t *testing.T) {
	const ahead = int64(1000 * time.Hour) // kernel's clock minus Go's
	origin := time.Now()
	passed, readings := time.Microsecond, 0
	now := func() time.Time { return origin.Add(passed) }
	kernel := func() int64 {
		if readings++; readings <= 5 {
			passed += 20 * time.Millisecond // interrupted
		}
		return int64(passed) + ahead
	}
	base, start := joinClocks(now, kernel)
	if got, want := start-ahead, int64(base.Sub(origin)); got != want {
		t.Errorf("the clocks are %v apart, want none", time.Duration(got-want))
	}
}
