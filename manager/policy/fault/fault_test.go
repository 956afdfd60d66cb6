package fault

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	second = time.Second
	hold   = time.Minute
)

func TestGuardForgivesOne(t *testing.T) {
	g := Guard{Hold: hold}
	if v := g.Fault(0, []string{"a"}); v != (Verdict{Blamed: "a"}) {
		t.Errorf("the first fault: %+v, want a blamed and not held back", v)
	}
	if v := g.Fault(window+1, []string{"a"}); v.Held != 0 {
		t.Errorf("another after the window: %+v, want it forgiven", v)
	}
}

func TestGuardHoldsAfterSecond(t *testing.T) {
	g := Guard{Hold: hold}
	g.Fault(0, []string{"a"})
	g.Fault(1*second, []string{"b"})
	if v := g.Fault(window, []string{"a"}); v != (Verdict{Blamed: "a", Held: hold}) {
		t.Errorf("the second: %+v, want a held back", v)
	}
	if until, held := g.Held("a"); !held || until != window+hold {
		t.Errorf("a is held back until %v (%v), want %v", until, held, window+hold)
	}
	if _, held := g.Held("b"); held {
		t.Error("b is held back for one fault")
	}
	if got := g.Release(window + hold - 1); got != nil {
		t.Errorf("released too early: %v", got)
	}
	if got := g.Release(window + hold); !slices.Equal(got, []string{"a"}) {
		t.Errorf("released %v, want a", got)
	}
	if _, held := g.Held("a"); held {
		t.Error("a is held back after its release")
	}
}

func TestGuardHoldGrows(t *testing.T) {
	g := Guard{Hold: hold}
	now := time.Duration(0)
	g.Fault(now, []string{"a"})
	for want := hold; ; want *= 2 {
		now += second
		v := g.Fault(now, []string{"a"})
		if v.Held != min(want, longest*hold) {
			t.Fatalf("held back for %v, want %v", v.Held, min(want, longest*hold))
		}
		now += v.Held
		g.Release(now)
		if want > longest*hold {
			break
		}
	}
	// No fault for long enough: the times start over.
	if v := g.Fault(now+longest*hold+1, []string{"a"}); v.Held != 0 {
		t.Errorf("held back for %v after a good while", v.Held)
	}
	if v := g.Fault(now+longest*hold+2, []string{"a"}); v.Held != hold {
		t.Errorf("held back for %v, want the first time again, %v", v.Held, hold)
	}
}

func TestGuardForgivesHeld(t *testing.T) {
	g := Guard{Hold: hold}
	g.Fault(0, []string{"a"})
	g.Fault(1*second, []string{"a"})
	g.Fault(2*second, []string{"b"}) // a cannot have done it
	if _, held := g.Held("a"); !held {
		t.Error("a was let go before its time")
	}
	if v := g.Fault(3*second, []string{"b"}); v.Held != hold {
		t.Errorf("b, twice: %+v, want it held back", v)
	}
	g.Release(1*second + hold)
	if v := g.Fault(2*second+hold, []string{"a"}); v.Held != 0 {
		t.Errorf("a is held back for its first fault since: %+v", v)
	}
}

func TestGuardWithoutHold(t *testing.T) {
	var g Guard
	for i := range 5 {
		if v := g.Fault(time.Duration(i), []string{"a"}); v != (Verdict{Blamed: "a"}) {
			t.Errorf("fault %d: %+v, want a blamed and not held back", i, v)
		}
	}
}

func TestGuardBlamesSuspect(t *testing.T) {
	g := Guard{Hold: hold}
	if v := g.Fault(0, []string{"a", "b"}); v.Blamed != "a" {
		t.Errorf("nobody is suspect: %q is blamed, want the first", v.Blamed)
	}
	if v := g.Fault(1, []string{"b", "a"}); v.Blamed != "a" || v.Held != hold {
		t.Errorf("%+v, want a, which was blamed before", v)
	}
	if v := g.Fault(2, nil); v != (Verdict{}) {
		t.Errorf("nobody said so: %+v", v)
	}
}

func TestGuardForget(t *testing.T) {
	g := Guard{Hold: hold}
	g.Fault(0, []string{"a"})
	g.Fault(1, []string{"a"})
	g.Forget("a")
	if _, held := g.Held("a"); held {
		t.Error("a is held back for its old model's faults")
	}
	if v := g.Fault(2, []string{"a"}); v.Held != 0 {
		t.Errorf("%+v, want it forgiven", v)
	}
}

// A node with some functions that always fault is up most of the time, and no
// function is held back forever.
func TestFaultyFunctionsTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d"}
		faulty := names[:rapid.IntRange(0, 3).Draw(t, "faulty")]
		every := time.Duration(rapid.IntRange(1, 30).Draw(t, "seconds between faults")) * second
		g := Guard{Hold: hold}
		faults := 0
		const hour = time.Hour
		for now := time.Duration(0); now < hour; now += every {
			g.Release(now)
			at := slices.IndexFunc(faulty, func(n string) bool { _, held := g.Held(n); return !held })
			if at < 0 {
				continue
			}
			faults++
			// Often an innocent function reports first.
			reporter := faulty[at]
			if rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "innocent first") == 1 {
				reporter = rapid.SampledFrom(names).Draw(t, "reporter")
			}
			g.Fault(now, []string{reporter})
		}
		if per := faults / max(1, len(faulty)); per > 60 {
			t.Errorf("%d faults in an hour, from %d functions", faults, len(faulty))
		}
		g.Release(hour + longest*hold)
		for _, n := range names {
			if _, held := g.Held(n); held {
				t.Errorf("%s is held back for ever", n)
			}
		}
	})
}
