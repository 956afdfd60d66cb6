package gslice

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTune(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name    string
		current float64
		o       Observation
		want    float64
		why     string
	}{
		{"VGG-19 of Fig. 16 rises, to the paper's 60", 30,
			Observation{Latency: 65 * ms, SLO: 50 * ms, Throughput: 15, ArrivalRate: 35}, 60, whyThroughput},
		{"both short: the larger decides", 30,
			Observation{Latency: 75 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 120}, 45, whyLatency},
		{"latency alone short", 40,
			Observation{Latency: 60 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}, 48, whyLatency},
		{"throughput alone short", 40,
			Observation{Latency: 10 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 125}, 50, whyThroughput},
		{"both over: the smaller decides (latency)", 40,
			Observation{Latency: 40 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}, 32, whyLatency},
		{"both over: the smaller decides (throughput)", 40,
			Observation{Latency: 10 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 75}, 30, whyThroughput},
		{"one over, one just met", 40,
			Observation{Latency: 49 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}, 40, whyEnough},
		{"one over, one just missed", 40,
			Observation{Latency: 52 * ms, SLO: 50 * ms, Throughput: 100, ArrivalRate: 10}, 40, whyEnough},
		{"no throughput at all: bounded", 10,
			Observation{Latency: 10 * ms, SLO: 50 * ms, Throughput: 1e-9, ArrivalRate: 1000}, 20, whyThroughput},
		{"not above 100", 80,
			Observation{Latency: 100 * ms, SLO: 50 * ms, Throughput: 10, ArrivalRate: 10}, 100, whyLatency},
		{"not below the minimum", 10,
			Observation{Latency: 1 * ms, SLO: 1000 * ms, Throughput: 1000, ArrivalRate: 1}, 5, whyLatency},
		{"nothing arrives: latency decides", 40,
			Observation{Latency: 25 * ms, SLO: 50 * ms, Throughput: 100}, 20, whyLatency},
		{"bound by aggregation", 40,
			Observation{Latency: 500 * ms, SLO: 50 * ms, Throughput: 1, ArrivalRate: 100, AggregationBound: true}, 40, whyAggregation},
		{"not observed", 40, Observation{SLO: 50 * ms}, 40, whyUnobserved},
		{"no number", 40,
			Observation{Latency: 5 * ms, SLO: 50 * ms, Throughput: math.NaN(), ArrivalRate: 1}, 40, whyUnobserved},
		{"no finite number", 40,
			Observation{Latency: 5 * ms, SLO: 50 * ms, Throughput: 1, ArrivalRate: math.Inf(1)}, 40, whyUnobserved},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := tune(c.current, c.o, defaultConfig())
			if math.Abs(got.percent-c.want) > 1e-9 || got.why != c.why {
				t.Errorf("tune = %+v, want %v by %s", got, c.want, c.why)
			}
		})
	}
}

// Paper 3.2.2: raise if a residual is negative, and cut if both are above 5 %. The threshold also holds
// for shortages (docs/adr/0001-shares.md). The wanted shares are 40 % × (1 + shortage) or × (1 - surplus).
func TestTuneThreshold(t *testing.T) {
	for _, c := range []struct {
		name                       string
		latency, throughput, rate, // of 100 ms, per second
		want float64
	}{
		{"latency 4.9 % short", 104.9, 200, 100, 40},
		{"latency 5.1 % short", 105.1, 200, 100, 42.04},
		{"latency 4.9 % over", 95.1, 200, 100, 40},
		{"latency 5.1 % over", 94.9, 200, 100, 37.96},
		{"throughput 4.9 % short", 50, 95.1, 100, 40},
		{"throughput 5.1 % short", 50, 94.9, 100, 42.15}, // 100 / 94.9
		{"throughput 4.9 % over", 50, 104.9, 100, 40},
		{"throughput 5.1 % over", 50, 105.1, 100, 38.06}, // 100 / 105.1
	} {
		t.Run(c.name, func(t *testing.T) {
			o := Observation{SLO: 100 * ms, Latency: time.Duration(c.latency * float64(ms)), Throughput: c.throughput, ArrivalRate: c.rate}
			if got := tune(40, o, defaultConfig()).percent; math.Abs(got-c.want) > 2*quantum {
				t.Errorf("demand %v %%, want %v %%", got, c.want)
			}
		})
	}
}

// If time is in inverse proportion to the share, a raise suffices or is the
// largest there is, and after a cut nothing is short.
func TestTuneProportional(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := defaultConfig()
		current := rapid.Float64Range(c.MinimumPercent, 100).Draw(t, "current")
		o := Observation{
			SLO:         50 * time.Millisecond,
			Latency:     time.Duration(rapid.Int64Range(1e5, 1e9).Draw(t, "latency")),
			Throughput:  rapid.Float64Range(0.1, 1e5).Draw(t, "throughput"),
			ArrivalRate: rapid.Float64Range(0, 1e5).Draw(t, "rate"),
		}
		d := tune(current, o, c)
		times := d.percent / current
		latency, throughput := o.Latency.Seconds()/times, o.Throughput*times
		const eps = 1 + 1e-9
		fits := latency <= o.SLO.Seconds()*eps && throughput*eps >= o.ArrivalRate
		switch {
		case d.percent > current:
			if !fits && d.percent < 100 && times < 2/eps {
				t.Fatalf("raised to %v %%, which is not enough", d.percent)
			}
		case d.percent < current:
			if !fits && d.percent > c.MinimumPercent {
				t.Fatalf("cut to %v %%, which is not enough", d.percent)
			}
		}
	})
}

func defaultConfig() Config { return Config{MinimumPercent: 5, HoldDown: 10 * time.Second} }
