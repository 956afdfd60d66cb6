package slabsim

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/internal/testing/must"
)

func TestReproducible(t *testing.T) {
	c := DefaultConfig(50 * time.Millisecond)
	c.Duration = 5 * time.Second
	first, err := Run(c)
	must.OK(t, err)
	if again, _ := Run(c); !reflect.DeepEqual(first, again) {
		t.Error("two runs of one seed differ")
	}
	c.Seed++
	if other, _ := Run(c); reflect.DeepEqual(first, other) {
		t.Error("two seeds give the same report")
	}
}

// Without noise and without saturation, the latency of a single request is the
// batch's time: the simulation's clock adds nothing.
func TestLoneRequests(t *testing.T) {
	c := DefaultConfig(50 * time.Millisecond)
	c.Device = Device{Fixed: 3 * time.Millisecond, PerImage: 2 * time.Millisecond}
	c.Duration = 100 * time.Second
	rule, err := batching.New(batching.SLAB, batching.Config{SLO: c.SLO, Ladder: UpTo(1)})
	must.OK(t, err)
	l := runLoad(rule, c, Load{RateRPS: 1}, slots)
	if l.P99Millis < 5 || l.P99Millis > 10 || l.LatePercent != 0 {
		t.Errorf("p99 %v ms and %v %% late of lone requests, want 5 ms, at most twice", l.P99Millis, l.LatePercent)
	}
}

// An oscillating limit has no t90.
func TestT90Unsettled(t *testing.T) {
	var trace []limitAt
	for i := range int64(100) {
		trace = append(trace, limitAt{at: i * int64(time.Millisecond), size: 1 + int(i%5)})
	}
	if got := t90(trace, 5); got != 99 {
		t.Errorf("t90 of a limit that swings = %v ms, want the end at 99", got)
	}
	for i := 40; i < 100; i++ {
		trace[i].size = 5
	}
	if got := t90(trace, 5); got != 39 && got != 40 {
		t.Errorf("t90 = %v ms, want 39 or 40, when it settles", got)
	}
}

func TestRunErrors(t *testing.T) {
	for name, c := range map[string]Config{
		"no time a picture": {SLO: time.Second, Ladder: UpTo(1), Duration: time.Second},
		"no duration":       {SLO: time.Second, Ladder: UpTo(1), Device: VGG19},
		"no objective":      {Ladder: UpTo(1), Device: VGG19, Duration: time.Second},
		"no batch":          {SLO: time.Second, Device: VGG19, Duration: time.Second},
	} {
		if _, err := Run(c); err == nil {
			t.Errorf("%s: simulated", name)
		}
	}
}

func TestReportKeys(t *testing.T) {
	c := DefaultConfig(25 * time.Millisecond)
	c.Duration = time.Second
	r, err := Run(c)
	must.OK(t, err)
	text, err := json.Marshal(r)
	must.OK(t, err)
	var m map[string]any
	must.OK(t, json.Unmarshal(text, &m))
	if m["slo_ms"] != 25.0 {
		t.Errorf("slo_ms = %v, want 25", m["slo_ms"])
	}
	aimd, _ := m["aimd"].(map[string]any)
	for _, k := range []string{"t90_ms", "final_batch", "p99_ms", "goodput_rps"} {
		if _, ok := m[k].(float64); !ok {
			t.Errorf("%s is missing", k)
		}
		if _, ok := aimd[k].(float64); !ok {
			t.Errorf("aimd.%s is missing", k)
		}
	}
}
func TestCompareErrors(t *testing.T) {
	if _, err := Compare(DefaultConfig(time.Second), 1, Rule{Name: "guess"}); err == nil {
		t.Error("it simulates a rule that there is not")
	}
}
