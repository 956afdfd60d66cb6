package share

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestValidateNamesTheField(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Fatalf("the default is refused: %v", err)
	}
	for want, change := range map[string]func(*Config){
		"minimum_percent":   func(c *Config) { c.MinimumPercent = 0 },
		"unknown_percent":   func(c *Config) { c.UnknownPercent = 101 },
		"threshold_percent": func(c *Config) { c.ThresholdPercent = math.NaN() },
		"headroom_percent":  func(c *Config) { c.HeadroomPercent = -1 },
		"hold_down":         func(c *Config) { c.HoldDown = -time.Second },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate = %v, want it to name %s", err, want)
		}
	}
}

func TestEWMATakesTheFirstWholeAndFollows(t *testing.T) {
	var e EWMA
	if _, seen := e.Mean(); seen {
		t.Error("an empty average has a mean")
	}
	e.Add(100)
	if m, _ := e.Mean(); m != 100 {
		t.Errorf("mean %v after the first value 100", m)
	}
	for range 11 {
		e.Add(200)
	}
	if m, _ := e.Mean(); m < 190 || m > 200 {
		t.Errorf("mean %v after eleven values of 200, want nine tenths of the step", m)
	}
}

func TestTuneFollowsTheLargerShortageAndTheSmallerSurplus(t *testing.T) {
	paper := DefaultConfig()
	paper.HeadroomPercent = 0
	const ms = time.Millisecond
	for _, c := range []struct {
		name    string
		current float64
		o       Observation
		want    float64
		dir     Direction
		why     string
	}{
		{"VGG-19 of Fig. 16 rises, to the paper's 60", 30,
			Observation{Latency: 65 * ms, SLO: 50 * ms, Throughput: 15, ArrivalRate: 35}, 60, Raise, whyThroughput},
		{"both short: the larger decides", 30,
			Observation{Latency: 75 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 120}, 45, Raise, whyLatency},
		{"both short, and batches fit: it is a queue, throughput decides", 30,
			Observation{Latency: 75 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 120, Fits: true}, 36, Raise, whyThroughput},
		{"latency alone short, and batches fit", 40,
			Observation{Latency: 60 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 104, Fits: true}, 48, Raise, whyLatency},
		{"latency alone short", 40,
			Observation{Latency: 60 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}, 48, Raise, whyLatency},
		{"throughput alone short", 40,
			Observation{Latency: 10 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 125}, 50, Raise, whyThroughput},
		{"both over: the smaller decides (latency)", 40,
			Observation{Latency: 40 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}, 32, Cut, whyLatency},
		{"both over: the smaller decides (throughput)", 40,
			Observation{Latency: 10 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 75}, 30, Cut, whyThroughput},
		{"one over, one just met", 40,
			Observation{Latency: 49 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}, 40, Hold, whyEnough},
		{"one over, one just missed", 40,
			Observation{Latency: 52 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}, 40, Hold, whyEnough},
		{"no throughput at all: bounded", 10,
			Observation{Latency: 10 * ms, SLO: 50 * ms, Throughput: 1e-9, ArrivalRate: 1000}, 20, Raise, whyThroughput},
		{"not above 100", 80,
			Observation{Latency: 100 * ms, SLO: 50 * ms, Throughput: 10, ArrivalRate: 10}, 100, Raise, whyLatency},
		{"not below the minimum", 10,
			Observation{Latency: 1 * ms, SLO: 1000 * ms, Throughput: 1000, ArrivalRate: 1}, 5, Cut, whyLatency},
		{"nothing arrives: latency decides", 40,
			Observation{Latency: 25 * ms, SLO: 50 * ms, Throughput: 100}, 20, Cut, whyLatency},
		{"bound by aggregation", 40,
			Observation{Latency: 500 * ms, SLO: 50 * ms, Throughput: 1, ArrivalRate: 100, AggregationBound: true}, 40, Hold, whyAggregation},
		{"not observed", 40, Observation{SLO: 50 * ms}, 40, Hold, whyUnobserved},
		{"no number", 40,
			Observation{Latency: 5 * ms, SLO: 50 * ms, Throughput: math.NaN(), ArrivalRate: 1}, 40, Hold, whyUnobserved},
		{"no finite number", 40,
			Observation{Latency: 5 * ms, SLO: 50 * ms, Throughput: 1, ArrivalRate: math.Inf(1)}, 40, Hold, whyUnobserved},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Tune(c.current, c.o, paper)
			if math.Abs(got.Percent-c.want) > 1e-9 || got.Direction != c.dir || got.Why != c.why {
				t.Errorf("Tune = %+v, want %v %v by %s", got, c.dir, c.want, c.why)
			}
		})
	}
}

func TestCutLeavesHeadroom(t *testing.T) {
	o := Observation{Latency: 10 * time.Millisecond, SLO: 50 * time.Millisecond, Throughput: 100, ArrivalRate: 50}
	if got := Tune(40, o, DefaultConfig()); got.Percent != 25 || got.Direction != Cut {
		t.Errorf("Tune = %+v, want a cut to 25: half is needed, a quarter of that on top", got)
	}
	o.Fits = true // and the rate has a margin for bursts
	if got := Tune(40, o, DefaultConfig()); got.Percent != 21 || got.Direction != Cut {
		t.Errorf("Tune = %+v where batches fit, want a cut to 21: the threshold on top of half", got)
	}
	o.Throughput = 1000
	if got := Tune(40, o, DefaultConfig()); got.Percent != 10 || got.Direction != Cut {
		t.Errorf("Tune = %+v where latency decides, want a cut to 10", got)
	}
	o.Throughput, o.Fits = 100, false
	o.ArrivalRate = 90
	if got := Tune(40, o, DefaultConfig()); got.Percent != 40 || got.Direction != Hold {
		t.Errorf("Tune = %+v, want 40 held: a tenth over is less than the headroom", got)
	}
}

// Where time is in inverse proportion to the share, a raise suffices or is the
// largest there is, and after a cut nothing is short.
func TestTuneFitsAProportionalDevice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := DefaultConfig()
		c.HeadroomPercent = rapid.Float64Range(0, 100).Draw(t, "headroom")
		current := rapid.Float64Range(c.MinimumPercent, 100).Draw(t, "current")
		o := Observation{
			SLO:         50 * time.Millisecond,
			Latency:     time.Duration(rapid.Int64Range(1e5, 1e9).Draw(t, "latency")),
			Throughput:  rapid.Float64Range(0.1, 1e5).Draw(t, "throughput"),
			ArrivalRate: rapid.Float64Range(0, 1e5).Draw(t, "rate"),
		}
		d := Tune(current, o, c)
		times := d.Percent / current
		latency, throughput := o.Latency.Seconds()/times, o.Throughput*times
		const eps = 1 + 1e-9
		fits := latency <= o.SLO.Seconds()*eps && throughput*eps >= o.ArrivalRate
		switch d.Direction {
		case Raise:
			if !fits && d.Percent < 100 && times < 2/eps {
				t.Fatalf("raised to %v %%, which is not enough", d.Percent)
			}
			if times <= 1 && current < 100 {
				t.Fatalf("a raise from %v to %v", current, d.Percent)
			}
		case Cut:
			if !fits && d.Percent > c.MinimumPercent {
				t.Fatalf("cut to %v %%, which is not enough", d.Percent)
			}
			if times > 1 {
				t.Fatalf("a cut from %v to %v", current, d.Percent)
			}
		case Hold:
			if d.Percent != current {
				t.Fatalf("held at %v, was %v", d.Percent, current)
			}
		}
	})
}

// What may be chance is no residual, and a change is by what is more than that.
func TestDoubtIsNoResidual(t *testing.T) {
	o := Observation{SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}
	for _, c := range []struct {
		latency, doubt time.Duration
		want           float64
	}{
		{60 * ms, 0, 48},       // short by a fifth
		{60 * ms, 5 * ms, 44},  // by a tenth for certain
		{60 * ms, 8 * ms, 40},  // by less than the threshold
		{60 * ms, 30 * ms, 40}, // perhaps not at all
		{20 * ms, 0, 20},       // 60 % over, of which a quarter stays
		{20 * ms, 10 * ms, 30},
		{20 * ms, 28 * ms, 40},
	} {
		o.Latency, o.Doubt = c.latency, c.doubt
		if got := Tune(40, o, DefaultConfig()).Percent; got != c.want {
			t.Errorf("latency %v ± %v: %v %% of 40, want %v", c.latency, c.doubt, got, c.want)
		}
	}
}
