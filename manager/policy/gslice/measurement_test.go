package gslice

import (
	"math"
	"testing"
	"time"
)

func TestMeasurementEnough(t *testing.T) {
	start := 100 * time.Second
	for _, c := range []struct {
		name              string
		arrived, answered int
		elapsed           time.Duration
		want              bool
	}{
		{"many answers at once", enoughAnswers, enoughAnswers, time.Millisecond, true},
		{"few answers", enoughAnswers, enoughAnswers - 1, time.Second, false},
		{"few answers in a long time", minAnswers, minAnswers, enoughTime, true},
		{"too few answers in a long time", minAnswers, minAnswers - 1, enoughTime, false},
		{"nothing arrives", 0, 0, enoughTime, true},
		{"nothing has arrived yet", 0, 0, enoughTime - 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m Measurement
			m.Restart(30, start)
			if got := m.Enough(c.arrived, c.answered, start+c.elapsed); got != c.want {
				t.Errorf("enough: %v, want %v", got, c.want)
			}
		})
	}
}

func TestMeasurementAdd(t *testing.T) {
	const slo, within = 50 * time.Millisecond, 49 * time.Millisecond
	window := Window{Arrived: 100, Answered: 100, Aggregation: 100 * 4 * time.Millisecond, Tail: 20 * time.Millisecond, Throughput: 80}
	var m Measurement
	now := 100 * time.Second
	add := func(w Window) (Observation, bool) {
		now += 2 * time.Second
		m.Add(w, now, slo, within)
		return m.Observation()
	}
	m.Restart(30, now)
	if !m.Measures(30) || m.Measures(40) {
		t.Error("want it to measure 30 % only")
	}
	for range minWindows - 1 {
		if o, known := add(window); known {
			t.Fatalf("%+v is known after too few windows", o)
		}
	}
	want := Observation{Latency: 20 * time.Millisecond, Throughput: 80, ArrivalRate: 50, SLO: 45 * time.Millisecond}
	if o, known := add(window); !known || o != want {
		t.Errorf("observed %+v, known %v; want %+v", o, known, want)
	}

	// A window without answers has no latency and no throughput; their means stay.
	if o, known := add(Window{Arrived: 100}); !known || o.Latency != want.Latency || o.Throughput != want.Throughput {
		t.Errorf("observed %+v, known %v; want latency and throughput of before", o, known)
	}
	if o, known := add(Window{}); known {
		t.Errorf("%+v is known although nothing arrived", o)
	}

	m.Restart(40, now)
	if o, known := m.Observation(); known || o != (Observation{}) {
		t.Errorf("observed %+v of another share", o)
	}
}

func TestMeasurementAggregationBound(t *testing.T) {
	const slo, within = 50 * time.Millisecond, 49 * time.Millisecond
	for _, c := range []struct {
		name              string
		aggregation, tail time.Duration
		want              bool
		slo               time.Duration
	}{
		{"in time", 30 * time.Millisecond, 18 * time.Millisecond, false, 19 * time.Millisecond},
		{"late because of it", 30 * time.Millisecond, 20 * time.Millisecond, true, 19 * time.Millisecond},
		{"late because of the batches", 20 * time.Millisecond, 40 * time.Millisecond, false, 29 * time.Millisecond},
		{"nothing left", 60 * time.Millisecond, 20 * time.Millisecond, true, 5 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m Measurement
			now := 100 * time.Second
			m.Restart(30, now)
			for range minWindows {
				now += time.Second
				m.Add(Window{Arrived: 10, Answered: 10, Aggregation: 10 * c.aggregation, Tail: c.tail, Throughput: 20}, now, slo, within)
			}
			if o, known := m.Observation(); !known || o.AggregationBound != c.want || o.SLO != c.slo {
				t.Errorf("observed %+v, known %v; want bound %v, %v left", o, known, c.want, c.slo)
			}
		})
	}
}

// The paper gives no weight (Algorithm 1: EWMA). Ours covers nine values: 2 / (9 + 1) = 1/5. Each value
// moves the mean by a fifth of the distance, so n equal values leave (4/5)^n of a step.
func TestEWMA(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []float64
		want   float64
	}{
		{"the first value", []float64{100}, 100},
		{"zero first", []float64{0, 100}, 20},
		{"a step up", []float64{100, 200}, 120},
		{"two values after it", []float64{100, 200, 200}, 136},
		{"a step down", []float64{100, 0, 0, 0}, 51.2},
		{"a peak", []float64{100, 600, 100}, 180},
		{"five values leave a third", []float64{0, 1, 1, 1, 1, 1}, 1 - 0.32768},
	} {
		t.Run(c.name, func(t *testing.T) {
			var e ewma
			for _, v := range c.values {
				e.add(v)
			}
			if !e.known || math.Abs(e.mean-c.want) > 1e-9 {
				t.Errorf("mean %v of %v, want %v", e.mean, c.values, c.want)
			}
		})
	}
	if (ewma{}).known {
		t.Error("an empty average has a mean")
	}
}
