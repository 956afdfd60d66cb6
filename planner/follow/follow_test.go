package follow

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// change is what a day made the follower plan.
type change struct {
	at       time.Duration
	from, to float64
}

func (c change) String() string { return fmt.Sprintf("%v %.4g>%.4g", c.at, c.from, c.to) }

// day lets a service's rate be a function of time, and plans all that the follower wants.
func day(interval, long time.Duration, planned float64, rate func(time.Duration) float64) (changes []change, short time.Duration) {
	f := New(Default)
	f.Planned = map[string]float64{"s": planned}
	arrived := 0.0
	for at := time.Duration(0); at <= long; at += interval {
		if want := f.Observe(start.Add(at), map[string]uint64{"s": uint64(arrived)}); want != nil {
			changes = append(changes, change{at, planned, want["s"]})
			planned = want["s"]
			f.Planned = want
		}
		if rate(at) > planned {
			short += interval
		}
		arrived += rate(at) * interval.Seconds()
	}
	return changes, short
}

func TestRules(t *testing.T) {
	steps := func(list ...float64) func(time.Duration) float64 { // a rate per minute
		return func(at time.Duration) float64 { return list[min(len(list)-1, int(at/time.Minute))] }
	}
	for _, c := range []struct {
		name     string
		interval time.Duration
		planned  float64
		rate     func(time.Duration) float64
		want     string
	}{
		{"as planned", 10 * time.Second, 115, steps(100), "[]"},
		{"within the headroom", 10 * time.Second, 115, steps(100, 114, 101), "[]"},
		{"doubles", 10 * time.Second, 115, steps(100, 200), "[1m10s 115>230]"},
		{"doubles, often seen", 2 * time.Second, 115, steps(100, 200), "[1m10s 115>230]"},
		{"a short burst", 2 * time.Second, 115, func(at time.Duration) float64 {
			if at%time.Minute < 8*time.Second {
				return 500
			}
			return 100
		}, "[]"},
		{"halves", 10 * time.Second, 115, steps(100, 50), "[11m0s 115>57.5]"},
		{"a bit less", 10 * time.Second, 115, steps(100, 90), "[]"},
		{"ends", 10 * time.Second, 115, steps(100, 0), "[11m0s 115>1]"},
		{"grows on", 10 * time.Second, 115, func(at time.Duration) float64 { return 100 + min(at.Seconds(), 120)*3 }, "[20s 115>149.5 50s 149.5>253 1m20s 253>356.5 1m50s 356.5>460 2m20s 460>529]"},
		{"a burst keeps what it got", 10 * time.Second, 115, steps(100, 300, 100, 100, 100, 300, 100), "[1m10s 115>345 16m0s 345>115]"},
	} {
		if got, _ := day(c.interval, 40*time.Minute, c.planned, c.rate); fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v\nwant %s", c.name, got, c.want)
		}
	}
}

// TestDay is a day with noise and bursts of 10 s to 5 min: each burst costs at most one change up and
// one down.
func TestDay(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		const bursts = 60
		type burst struct {
			at, long time.Duration
			times    float64
		}
		var list []burst
		for range bursts {
			list = append(list, burst{time.Duration(r.Float64() * float64(24*time.Hour)), 10*time.Second + time.Duration(r.Float64()*float64(5*time.Minute)), 1 + 3*r.Float64()})
		}
		rate := func(at time.Duration) float64 {
			x := 1000 * (1.5 + math.Sin(2*math.Pi*at.Hours()/24)) * (0.97 + 0.06*r.Float64())
			for _, b := range list {
				if at >= b.at && at < b.at+b.long {
					x *= b.times
				}
			}
			return x
		}
		changes, short := day(10*time.Second, 24*time.Hour, 1500*Default.Headroom, rate)
		for i, c := range changes {
			if i > 0 && c.at-changes[i-1].at < Default.Between {
				t.Errorf("seed %d: %v after %v", seed, c, changes[i-1])
			}
			if i > 0 && c.to < c.from && c.at-changes[i-1].at < Default.DownAfter {
				t.Errorf("seed %d: down at %v, %v after the change %v", seed, c, c.at-changes[i-1].at, changes[i-1])
			}
		}
		// The day's own rise and fall between 0.5 and 2.5 is 12 steps of 15 % each way.
		if len(changes) > 3*bursts+24 || short > bursts*time.Minute {
			t.Errorf("seed %d: %d changes, short for %v", seed, len(changes), short)
		}
	}
}

// Constant rates within the headroom's width cause at most one change per service.
func TestSteady(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		level := rapid.Float64Range(50, 1e5).Draw(t, "rate")
		planned := rapid.Float64Range(1, 1e5).Draw(t, "planned")
		width := rapid.Float64Range(0, 0.14).Draw(t, "noise")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		changes, _ := day(10*time.Second, 3*time.Hour, planned, func(time.Duration) float64 { return level * (1 + width*r.Float64()) })
		if len(changes) > 1 {
			t.Errorf("%v", changes)
		}
	})
}

func TestRestart(t *testing.T) {
	f := New(Default)
	f.Planned = map[string]float64{"s": 100}
	for i, arrived := range []map[string]uint64{{"s": 1e6}, {"s": 1e6 + 900}, {"s": 5}, {}, {"s": 1e6}, {"s": 1e6 + 900}} {
		if want := f.Observe(start.Add(time.Duration(i)*10*time.Second), arrived); want != nil {
			t.Errorf("%d: %v", i, want)
		}
	}
}

// Planned rates are powers of a step, so that small differences plan the same.
func TestStep(t *testing.T) {
	rule := Default
	rule.Step = 1.1
	rapid.Check(t, func(t *rapid.T) {
		var s Service
		rate := rapid.Float64Range(2, 1e9).Draw(t, "rate")
		got := s.Observe(rule, start, start.Add(rule.UpAfter), rate, 1)
		power := math.Log(got) / math.Log(1.1)
		if math.Abs(power-math.Round(power)) > 1e-6 || got < rate*rule.Headroom*(1-1e-6) || got > rate*rule.Headroom*1.1 {
			t.Errorf("%v is planned as %v", rate, got)
		}
		if again := s.Observe(rule, start.Add(rule.UpAfter), start.Add(time.Hour), rate, got); again != got {
			t.Errorf("%v is planned as %v, then as %v", rate, got, again)
		}
	})
}
