package control

import (
	"testing"

	"pgregory.net/rapid"
)

func TestStateFollows(t *testing.T) {
	for _, c := range []struct {
		before, next State
		want         bool
	}{
		{Starting, Loaded, true},
		{Loaded, Linking, true},
		{Starting, Failed, true},
		{Active, Active, true},
		{Active, Loaded, false},
		{Draining, Active, false},
		{Stopped, Stopped, false},
		{Failed, Starting, false},
		{Starting, "happy", false},
		{"happy", Ready, false},
	} {
		if got := c.next.Follows(c.before); got != c.want {
			t.Errorf("%s after %s: %v, want %v", c.next, c.before, got, c.want)
		}
	}
}

func TestStateEnded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Starting
		changes := 0
		for range 50 {
			next := rapid.SampledFrom(order[:]).Draw(t, "next")
			if next.Follows(s) && next != s {
				s = next
				changes++
			}
		}
		if changes >= len(order) {
			t.Fatalf("%d changes among %d states", changes, len(order))
		}
	})
}
