package budget

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestLevelOf(t *testing.T) {
	for _, c := range []struct {
		objective time.Duration
		want      Level
	}{
		{time.Millisecond, 5}, {8 * time.Millisecond, 5}, {9 * time.Millisecond, 4}, {16 * time.Millisecond, 4},
		{25 * time.Millisecond, 3}, {50 * time.Millisecond, 2}, {100 * time.Millisecond, 1}, {time.Hour, 1},
	} {
		if got := LevelOf(c.objective); got != c.want {
			t.Errorf("LevelOf(%v) = %d, want %d", c.objective, got, c.want)
		}
	}
}

func TestCapacity(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name             string
		guarantee        float64
		objective, batch time.Duration
		want             time.Duration
	}{
		{"an objective's", 0.5, 100 * ms, 5 * ms, 50 * ms},
		{"two batches", 0.05, 100 * ms, 5 * ms, 10 * ms},
		{"no guarantee", 0, 100 * ms, 5 * ms, 10 * ms},
	} {
		if got := Capacity(c.guarantee, c.objective, c.batch); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Over any time a function gets no more at its level than its guarantee, its capacity
// and one overdraft. If it always has work, it gets no less than its guarantee.
func TestBalanceBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		guarantee := rapid.Float64Range(0.01, 1).Draw(t, "guarantee")
		batch := time.Duration(rapid.Int64Range(1e3, 1e8).Draw(t, "batch"))
		capacity := Capacity(guarantee, time.Duration(rapid.Int64Range(1e6, 1e8).Draw(t, "objective")), batch)
		now := rapid.Int64Range(0, 1<<60).Draw(t, "start")
		start := now
		b := NewBalance(now, guarantee, capacity)
		var used, asked time.Duration
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			busy := rapid.Bool().Draw(t, "busy")
			asked += batch
			switch {
			case busy && b.Guaranteed(now):
				now += int64(batch)
				b.Charge(now, batch)
				used += batch
			case busy:
				// Demoted work is not charged.
				now += int64(batch)
			default:
				now += rapid.Int64Range(0, 1e9).Draw(t, "pause")
			}
			most := guarantee*float64(now-start) + float64(capacity+batch)
			if float64(used) > most+1 {
				t.Fatalf("used %v in %v at a guarantee of %v, want at most %v", used, time.Duration(now-start), guarantee, time.Duration(most))
			}
		}
	})
}

func TestBalanceReturnsAfterOverdraft(t *testing.T) {
	b := NewBalance(0, 0.5, 10)
	b.Charge(0, 30) // 20 below zero
	if wait := b.Wait(30); !(10 < wait && wait <= 12) {
		t.Errorf("%v to a positive balance, want 11 ns", wait)
	}
	if b.Guaranteed(40) {
		t.Error("positive after 40 ns at 0.5, want after more")
	}
	if !b.Guaranteed(42) {
		t.Error("not positive after 42 ns at 0.5")
	}
	if wait := b.Wait(42); wait != 0 {
		t.Errorf("%v to a positive balance that there is", wait)
	}
	if none := NewBalance(0, 0, 0); none.Wait(5) != math.MaxInt64 {
		t.Error("a balance without a guarantee becomes positive")
	}
	if b.Set(1000, 0.5, 5); b.left != 5 {
		t.Errorf("left %v after the capacity shrank, want 5", b.left)
	}
	if b.refill(900); b.at != 1000 {
		t.Error("time went back")
	}
}
