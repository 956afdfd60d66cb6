package gslice

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var (
	face   = ID{IF: "face"}
	detect = ID{IF: "detect"}
	third  = ID{IF: "third"}
)

const ms = time.Millisecond

// Observations of an IF that is as it should be, short by half, and far over.
var (
	fine  = Observation{Latency: 49 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 98}
	short = Observation{Latency: 75 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 98}
	over  = Observation{Latency: 10 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 20}
)

func newController(t rapid.TB, c Config, ids ...ID) *Controller {
	t.Helper()
	k := NewController(c)
	for _, id := range ids {
		k.Adopt(id, 0, 0)
	}
	return k
}

func shareOf(k *Controller, id ID) float64 { return k.members[id].percent }

func TestAddKnee(t *testing.T) {
	k := newController(t, defaultConfig(), face)
	k.Adopt(detect, 0, 45)
	p := k.Step(0, nil)
	want := []Change{{ID: detect, To: 45, Why: whyUnobserved}, {ID: face, To: 30, Why: whyUnobserved}}
	if !slices.Equal(p, want) {
		t.Errorf("changes %+v, want %+v", p, want)
	}
}

func TestHoldDown(t *testing.T) {
	k := newController(t, defaultConfig(), face)
	k.Step(0, nil)
	seen := map[ID]Observation{face: short}
	if p := k.Step(10*time.Second-1, seen); len(p) != 0 {
		t.Errorf("changed within the hold-down: %+v", p)
	}
	if k.Step(10*time.Second, seen); shareOf(k, face) != 45 {
		t.Errorf("share %v after the hold-down, want 45", shareOf(k, face))
	}
	if p := k.Step(19*time.Second, seen); len(p) != 0 {
		t.Errorf("the change did not start a hold-down of its own: %+v", p)
	}
}

func TestHoldDownKeepsShare(t *testing.T) {
	k := newController(t, defaultConfig(), face, detect)
	k.Step(0, nil)
	k.Step(10*time.Second, map[ID]Observation{face: {Latency: 100 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}})
	if shareOf(k, face) != 60 {
		t.Fatalf("face has %v, want 60", shareOf(k, face))
	}
	// face is held at 60; detect wants 60 too and must do with the rest for now.
	k.Step(12*time.Second, map[ID]Observation{detect: {Latency: 100 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}})
	if shareOf(k, face) != 60 || shareOf(k, detect) != 40 {
		t.Errorf("shares %v and %v, want 60 held and 40", shareOf(k, face), shareOf(k, detect))
	}
}

func TestForcedStep(t *testing.T) {
	k := newController(t, defaultConfig())
	for _, a := range []struct {
		id   ID
		knee float64
	}{{face, 50}, {detect, 80}} {
		k.Adopt(a.id, 0, a.knee)
	}
	if k.Step(0, nil); shareOf(k, detect) != 50 {
		t.Fatalf("detect has %v, want what face left: 50", shareOf(k, detect))
	}
	k.Adopt(third, 0, 20)
	p := k.Step(time.Second, nil)
	if got := []float64{shareOf(k, third), shareOf(k, face), shareOf(k, detect)}; got[0] != 20 || sum(got) > 100 || got[1] >= 50 {
		t.Errorf("shares of third, face, detect %v one second after third came", got)
	}
	if c := p; len(c) != 3 || c[0].To > c[0].From || c[1].To > c[1].From || c[2].ID != third {
		t.Errorf("changes %+v, want the others cut before third gets its share", c)
	}
	k.Remove(face)
	if k.Step(2*time.Second, nil); shareOf(k, detect) != 80 {
		t.Errorf("detect has %v after face went, want the 80 it wants", shareOf(k, detect))
	}
	k.Replace(detect, 40)
	if k.Step(3*time.Second, nil); shareOf(k, detect) != 40 {
		t.Errorf("detect has %v with another model, want its knee of 40", shareOf(k, detect))
	}
}

func TestInstancesAreTunedApart(t *testing.T) {
	first, second := ID{"face", 0}, ID{"face", 1}
	k := newController(t, defaultConfig(), first, second)
	k.Step(0, nil)
	k.Step(10*time.Second, map[ID]Observation{first: short, second: fine})
	if shareOf(k, first) != 45 || shareOf(k, second) != 30 {
		t.Errorf("shares %v and %v, want 45 and 30", shareOf(k, first), shareOf(k, second))
	}
}

func TestThreshold(t *testing.T) {
	c := defaultConfig()
	c.HoldDown = 0
	rapid.Check(t, func(t *rapid.T) {
		ids := []ID{face, detect, third}
		k := newController(t, c, ids...)
		k.Step(0, nil)
		for i := range 20 {
			seen := map[ID]Observation{}
			for _, id := range ids {
				seen[id] = Observation{
					SLO:         50 * ms,
					Latency:     time.Duration(rapid.Int64Range(1e6, 2e8).Draw(t, "latency")),
					Throughput:  rapid.Float64Range(1, 1000).Draw(t, "throughput"),
					ArrivalRate: rapid.Float64Range(0, 1000).Draw(t, "rate"),
				}
			}
			p := k.Step(time.Duration(i)*time.Second, seen)
			small := func(ch Change) bool { return math.Abs(ch.To-ch.From) <= ch.From*0.05 }
			for _, ch := range p {
				if small(ch) {
					t.Fatalf("changed %+v, less than 5 %%, of %+v", ch, p)
				}
			}
		}
	})
}

// Paper 3.2.2: a share changes only if the change is above 5 % of it. face has 50 % and needs twice as
// much, and gets what detect leaves.
func TestSmallChange(t *testing.T) {
	for left, want := range map[float64]float64{52: 50, 52.4: 50, 52.6: 52.6, 53: 53} {
		k := newController(t, defaultConfig())
		k.Adopt(face, 0, 50)
		k.Adopt(detect, 0, 100-left)
		k.Step(0, nil)
		k.Step(10*time.Second, map[ID]Observation{face: {Latency: 100 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}, detect: fine})
		if got := shareOf(k, face); math.Abs(got-want) > 2*quantum {
			t.Errorf("%v %% are left: face has %v %%, want %v %%", left, got, want)
		}
	}
}

// Whatever comes, goes, is observed or fails, no more than 100 % is ever out,
// also while a plan's changes are being made one after the other.
func TestStepProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := defaultConfig()
		c.SpreadSlack = rapid.Bool().Draw(t, "spread slack")
		c.HoldDown = time.Duration(rapid.IntRange(0, 5).Draw(t, "hold-down")) * time.Second
		k := newController(t, c)
		out := map[ID]float64{}
		total := func() float64 {
			s := 0.0
			for _, p := range out {
				s += p
			}
			return s
		}
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			id := ID{IF: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "if"), Instance: rapid.IntRange(0, 3).Draw(t, "instance")}
			switch rapid.IntRange(0, 4).Draw(t, "do") {
			case 0, 1:
				if knee := rapid.Float64Range(0, 120).Draw(t, "knee"); k.members[id] == nil {
					k.Adopt(id, 0, knee)
				}
			case 2:
				k.Remove(id)
				delete(out, id)
			case 3:
				k.Replace(id, rapid.Float64Range(0, 120).Draw(t, "knee"))
			}
			seen := map[ID]Observation{}
			for _, known := range slices.SortedFunc(maps.Keys(out), ID.Compare) { // each draws its own
				seen[known] = rapid.SampledFrom([]Observation{fine, short, over, {}}).Draw(t, "observation")
			}
			p := k.Step(time.Duration(i)*time.Second, seen)
			for _, ch := range p {
				if out[ch.ID] != ch.From {
					t.Fatalf("%+v, but its share was %v", ch, out[ch.ID])
				}
				if out[ch.ID] = ch.To; total() > 100 {
					t.Fatalf("%v %% out after %+v", total(), ch)
				}
			}
			for _, m := range k.members {
				if m.percent <= 0 {
					t.Fatalf("%v has no share", m.id)
				}
			}
		}
	})
}

func TestSlack(t *testing.T) {
	c := defaultConfig()
	k := newController(t, c, face, detect)
	if p := k.Step(0, nil); shareOf(k, face)+shareOf(k, detect) != 60 {
		t.Errorf("shares %+v, want 30 each and the rest free", p)
	}

	c.SpreadSlack = true
	k = newController(t, c, face, detect)
	if p := k.Step(0, nil); shareOf(k, face) != 50 || shareOf(k, detect) != 50 {
		t.Errorf("shares %+v, want 50 each with slack", p)
	}
}

func TestFailedChange(t *testing.T) {
	k := newController(t, defaultConfig(), face)
	k.Step(0, nil)
	k.Step(10*time.Second, map[ID]Observation{face: short})
	k.Adopt(face, 30, 0)
	p := k.Step(20*time.Second, map[ID]Observation{face: short})
	if want := []Change{{ID: face, From: 30, To: 45, Why: whyLatency}}; !slices.Equal(p, want) {
		t.Errorf("changes %+v, want %+v", p, want)
	}
}

func TestStepAggregationBound(t *testing.T) {
	k := newController(t, defaultConfig(), face)
	k.Step(0, nil)
	o := short
	o.AggregationBound = true
	p := k.Step(20*time.Second, map[ID]Observation{face: o})
	if len(p) != 0 || k.members[face].why != whyAggregation {
		t.Errorf("plan %+v, want it held as %q", p, whyAggregation)
	}
}

func TestStepIgnoresOldShare(t *testing.T) {
	k := newController(t, defaultConfig(), face)
	k.Step(0, nil)
	k.Adopt(third, 0, 0)
	p := k.Step(time.Second, map[ID]Observation{face: short})
	if shareOf(k, face) != 30 || shareOf(k, third) != 30 {
		t.Errorf("shares %+v, want 30 each: face is within its hold-down", p)
	}
}

// New steps move a share that is none of them at once, however little, and others not at all.
func TestSetSteps(t *testing.T) {
	k := newController(t, defaultConfig())
	k.Adopt(face, 0, 25)
	k.Adopt(detect, 0, 50)
	k.Step(0, nil)
	set := func(steps ...float64) {
		t.Helper()
		k.SetSteps(face, steps)
	}

	set(8, 26, 50, 100)
	if p := k.Step(time.Second, nil); shareOf(k, face) != 26 || shareOf(k, detect) != 50 || len(p) != 1 {
		t.Errorf("plan %+v, want 26 and 50", p)
	}
	set(8, 26, 50, 100)
	k.Adopt(face, 50, 0)
	if p := k.Step(2*time.Second, nil); len(p) != 0 {
		t.Errorf("the same steps pass over the hold-down: %+v", p)
	}
	k.Adopt(face, 25, 0)
	set(8, 26, 50, 100)
	if p := k.Step(2*time.Second, nil); shareOf(k, face) != 26 {
		t.Errorf("plan %+v, want face to leave a share that is no step", p)
	}
	set()
	if p := k.Step(3*time.Second, nil); shareOf(k, face) != 25 || shareOf(k, detect) != 50 {
		t.Errorf("plan %+v, want 25 and 50", p)
	}
}
