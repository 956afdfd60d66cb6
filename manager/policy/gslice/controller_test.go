package gslice

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
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
	k, err := NewController(c)
	must.OK(t, err)
	for _, id := range ids {
		must.OK(t, k.Add(id, 0))
	}
	return k
}

func shareOf(p Plan, id ID) float64 {
	for _, s := range p.Status {
		if s.ID == id {
			return s.Percent
		}
	}
	return math.NaN()
}

func TestAddKnee(t *testing.T) {
	k := newController(t, DefaultConfig(), face)
	must.OK(t, k.Add(detect, 45))
	p := k.Step(0, nil)
	want := []Change{{ID: detect, To: 45, Why: whyUnobserved}, {ID: face, To: 30, Why: whyUnobserved}}
	if !slices.Equal(p.Changes, want) {
		t.Errorf("changes %+v, want %+v", p.Changes, want)
	}
}

func TestControllerErrors(t *testing.T) {
	k := newController(t, DefaultConfig(), face)
	if err := k.Add(face, 0); !errors.Is(err, errKnown) {
		t.Errorf("second Add = %v, want ErrKnown", err)
	}
	for name, err := range map[string]error{
		"Remove": k.Remove(detect), "Replace": k.Replace(detect, 0), "Failed": k.Failed(detect, 1), "Set": k.Set(detect, 1),
		"SetSteps":         k.SetSteps(detect, nil),
		"another instance": k.Remove(ID{IF: "face", Instance: 1}),
	} {
		if !errors.Is(err, errUnknown) {
			t.Errorf("%s = %v, want ErrUnknown", name, err)
		}
	}
	if _, err := NewController(Config{}); err == nil {
		t.Error("a controller of an empty configuration")
	}
}

func TestHoldDown(t *testing.T) {
	k := newController(t, DefaultConfig(), face)
	k.Step(0, nil)
	seen := map[ID]Observation{face: short}
	if p := k.Step(10*time.Second-1, seen); len(p.Changes) != 0 {
		t.Errorf("changed within the hold-down: %+v", p.Changes)
	}
	if p := k.Step(10*time.Second, seen); shareOf(p, face) != 45 {
		t.Errorf("share %v after the hold-down, want 45", shareOf(p, face))
	}
	if p := k.Step(19*time.Second, seen); len(p.Changes) != 0 {
		t.Errorf("the change did not start a hold-down of its own: %+v", p.Changes)
	}
}

func TestHoldDownKeepsShare(t *testing.T) {
	k := newController(t, DefaultConfig(), face, detect)
	k.Step(0, nil)
	p := k.Step(10*time.Second, map[ID]Observation{face: {Latency: 100 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}})
	if shareOf(p, face) != 60 {
		t.Fatalf("face has %v, want 60", shareOf(p, face))
	}
	// face is held at 60; detect wants 60 too and must do with the rest for now.
	p = k.Step(12*time.Second, map[ID]Observation{detect: {Latency: 100 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}})
	if shareOf(p, face) != 60 || shareOf(p, detect) != 40 {
		t.Errorf("shares %v and %v, want 60 held and 40", shareOf(p, face), shareOf(p, detect))
	}
}

func TestForcedStep(t *testing.T) {
	k := newController(t, DefaultConfig())
	for _, a := range []struct {
		id   ID
		knee float64
	}{{face, 50}, {detect, 80}} {
		must.OK(t, k.Add(a.id, a.knee))
	}
	if p := k.Step(0, nil); shareOf(p, detect) != 50 {
		t.Fatalf("detect has %v, want what face left: 50", shareOf(p, detect))
	}
	must.OK(t, k.Add(third, 20))
	p := k.Step(time.Second, nil)
	if got := []float64{shareOf(p, third), shareOf(p, face), shareOf(p, detect)}; got[0] != 20 || sum(got) > 100 || got[1] >= 50 {
		t.Errorf("shares of third, face, detect %v one second after third came", got)
	}
	if c := p.Changes; len(c) != 3 || c[0].To > c[0].From || c[1].To > c[1].From || c[2].ID != third {
		t.Errorf("changes %+v, want the others cut before third gets its share", c)
	}
	must.OK(t, k.Remove(face))
	if p = k.Step(2*time.Second, nil); shareOf(p, detect) != 80 {
		t.Errorf("detect has %v after face went, want the 80 it wants", shareOf(p, detect))
	}
	must.OK(t, k.Replace(detect, 40))
	if p = k.Step(3*time.Second, nil); shareOf(p, detect) != 40 {
		t.Errorf("detect has %v with another model, want its knee of 40", shareOf(p, detect))
	}
}

func TestInstancesAreTunedApart(t *testing.T) {
	first, second := ID{"face", 0}, ID{"face", 1}
	k := newController(t, DefaultConfig(), first, second)
	k.Step(0, nil)
	p := k.Step(10*time.Second, map[ID]Observation{first: short, second: fine})
	if shareOf(p, first) != 45 || shareOf(p, second) != 30 {
		t.Errorf("shares %v and %v, want 45 and 30", shareOf(p, first), shareOf(p, second))
	}
}

func TestThreshold(t *testing.T) {
	c := DefaultConfig()
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
			for _, ch := range p.Changes {
				if small(ch) {
					t.Fatalf("changed %+v, less than 5 %%, of %+v", ch, p.Changes)
				}
			}
		}
	})
}

// Paper 3.2.2: a share changes only if the change is above 5 % of it. face has 50 % and needs twice as
// much, and gets what detect leaves.
func TestSmallChange(t *testing.T) {
	for left, want := range map[float64]float64{52: 50, 52.4: 50, 52.6: 52.6, 53: 53} {
		k := newController(t, DefaultConfig())
		must.OK(t, errors.Join(k.Add(face, 50), k.Add(detect, 100-left)))
		k.Step(0, nil)
		p := k.Step(10*time.Second, map[ID]Observation{face: {Latency: 100 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}, detect: fine})
		if got := shareOf(p, face); math.Abs(got-want) > 2*quantum {
			t.Errorf("%v %% are left: face has %v %%, want %v %%", left, got, want)
		}
	}
}

// Whatever comes, goes, is observed or fails, no more than 100 % is ever out,
// also while a plan's changes are being made one after the other.
func TestStepProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := DefaultConfig()
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
				_ = k.Add(id, rapid.Float64Range(0, 120).Draw(t, "knee"))
			case 2:
				if k.Remove(id) == nil {
					delete(out, id)
				}
			case 3:
				_ = k.Replace(id, rapid.Float64Range(0, 120).Draw(t, "knee"))
			}
			seen := map[ID]Observation{}
			for _, known := range slices.SortedFunc(maps.Keys(out), ID.Compare) { // each draws its own
				seen[known] = rapid.SampledFrom([]Observation{fine, short, over, {}}).Draw(t, "observation")
			}
			p := k.Step(time.Duration(i)*time.Second, seen)
			for _, ch := range p.Changes {
				if out[ch.ID] != ch.From {
					t.Fatalf("%+v, but its share was %v", ch, out[ch.ID])
				}
				if out[ch.ID] = ch.To; total() > 100 {
					t.Fatalf("%v %% out after %+v", total(), ch)
				}
			}
			for _, s := range p.Status {
				if s.Percent <= 0 {
					t.Fatalf("%v has no share", s.ID)
				}
			}
		}
	})
}

func TestSlack(t *testing.T) {
	c := DefaultConfig()
	k := newController(t, c, face, detect)
	if p := k.Step(0, nil); shareOf(p, face)+shareOf(p, detect) != 60 {
		t.Errorf("shares %+v, want 30 each and the rest free", p.Status)
	}

	c.SpreadSlack = true
	k = newController(t, c, face, detect)
	if p := k.Step(0, nil); shareOf(p, face) != 50 || shareOf(p, detect) != 50 {
		t.Errorf("shares %+v, want 50 each with slack", p.Status)
	}
}

func TestFailedChange(t *testing.T) {
	k := newController(t, DefaultConfig(), face)
	k.Step(0, nil)
	k.Step(10*time.Second, map[ID]Observation{face: short})
	must.OK(t, k.Failed(face, 30))
	p := k.Step(20*time.Second, map[ID]Observation{face: short})
	if want := []Change{{ID: face, From: 30, To: 45, Why: whyLatency}}; !slices.Equal(p.Changes, want) {
		t.Errorf("changes %+v, want %+v", p.Changes, want)
	}
}

func TestStepAggregationBound(t *testing.T) {
	k := newController(t, DefaultConfig(), face)
	k.Step(0, nil)
	o := short
	o.AggregationBound = true
	p := k.Step(20*time.Second, map[ID]Observation{face: o})
	if len(p.Changes) != 0 || p.Status[0].Why != whyAggregation {
		t.Errorf("plan %+v, want it held as %q", p, whyAggregation)
	}
}

func TestStepIgnoresOldShare(t *testing.T) {
	k := newController(t, DefaultConfig(), face)
	k.Step(0, nil)
	must.OK(t, k.Add(third, 0))
	p := k.Step(time.Second, map[ID]Observation{face: short})
	if shareOf(p, face) != 30 || shareOf(p, third) != 30 {
		t.Errorf("shares %+v, want 30 each: face is within its hold-down", p.Status)
	}
}

// New steps move a share that is none of them at once, however little, and others not at all.
func TestSetSteps(t *testing.T) {
	k := newController(t, DefaultConfig())
	must.OK(t, errors.Join(k.Add(face, 25), k.Add(detect, 50)))
	k.Step(0, nil)
	set := func(steps ...float64) {
		t.Helper()
		must.OK(t, k.SetSteps(face, steps))
	}

	set(8, 26, 50, 100)
	if p := k.Step(time.Second, nil); shareOf(p, face) != 26 || shareOf(p, detect) != 50 || len(p.Changes) != 1 {
		t.Errorf("plan %+v, want 26 and 50", p)
	}
	set(8, 26, 50, 100)
	must.OK(t, k.Failed(face, 50))
	if p := k.Step(2*time.Second, nil); len(p.Changes) != 0 {
		t.Errorf("the same steps pass over the hold-down: %+v", p.Changes)
	}
	must.OK(t, k.Failed(face, 25))
	set(8, 26, 50, 100)
	if p := k.Step(2*time.Second, nil); shareOf(p, face) != 26 {
		t.Errorf("plan %+v, want face to leave a share that is no step", p)
	}
	set()
	if p := k.Step(3*time.Second, nil); shareOf(p, face) != 25 || shareOf(p, detect) != 50 {
		t.Errorf("plan %+v, want 25 and 50", p)
	}

	for name, steps := range map[string][]float64{"falling": {26, 8}, "twice": {8, 8}, "zero": {0, 8}, "above 100": {8, 101}} {
		if err := k.SetSteps(face, steps); err == nil || !strings.Contains(err.Error(), "ascend") {
			t.Errorf("%s: error %v, want it to refuse %v", name, err, steps)
		}
	}
}
