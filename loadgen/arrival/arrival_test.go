package arrival_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/loadgen/arrival"
	"pgregory.net/rapid"
)

// take returns the arrivals before a time.
func take(a arrival.Arrivals, until time.Duration) []arrival.Arrival {
	var all []arrival.Arrival
	for next := a.Next(); next.At < until; next = a.Next() {
		all = append(all, next)
	}
	return all
}

func gaps(all []arrival.Arrival) []float64 {
	out := make([]float64, 0, len(all))
	for i := 1; i < len(all); i++ {
		out = append(out, (all[i].At - all[i-1].At).Seconds())
	}
	return out
}

var processes = map[string]arrival.Process{
	"poisson":  {Shape: arrival.Poisson},
	"constant": {Shape: arrival.Constant},
	"video":    {Shape: arrival.Video, FramesPerSecond: 30},
	"bursts":   {Shape: arrival.Bursts, Size: 8},
}

func anyProcess() *rapid.Generator[arrival.Process] {
	return rapid.Custom(func(t *rapid.T) arrival.Process {
		return arrival.Process{
			Shape:           arrival.Shape(rapid.IntRange(int(arrival.Poisson), int(arrival.Bursts)).Draw(t, "shape")),
			FramesPerSecond: 30,
			Size:            rapid.IntRange(1, 20).Draw(t, "burst"),
		}
	})
}

func TestSeed(t *testing.T) {
	for name, process := range processes {
		t.Run(name, func(t *testing.T) {
			one := take(arrival.New(process, arrival.At(100), 3, 7), 10*time.Second)
			same := take(arrival.New(process, arrival.At(100), 3, 7), 10*time.Second)
			other := take(arrival.New(process, arrival.At(100), 3, 8), 10*time.Second)
			if !slices.Equal(one, same) {
				t.Error("the same seed gave two sequences")
			}
			if slices.Equal(one, other) {
				t.Error("two seeds gave the same sequence")
			}
		})
	}
}

func TestArrivalRate(t *testing.T) {
	const perSecond, seconds = 200.0, 100
	for name, process := range processes {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= 5; seed++ {
				got := float64(len(take(arrival.New(process, arrival.At(perSecond), 4, seed), seconds*time.Second)))
				want := perSecond * seconds
				// Five standard deviations of a Poisson count. Those of bursts are wider
				// by the square root of the burst size.
				slack := 5 * math.Sqrt(want*max(1, float64(process.Size)))
				if process.Shape == arrival.Constant || process.Shape == arrival.Video {
					slack = 4 // one for each stream that the window cuts
				}
				if math.Abs(got-want) > slack {
					t.Errorf("seed %d: %v arrivals, want %v ± %v", seed, got, want, slack)
				}
			}
		})
	}
}

// TestPoissonGaps is the Kolmogorov–Smirnov test at the level of 0.1 %:
// sup |F - F0| < 1.95 / √n.
func TestPoissonGaps(t *testing.T) {
	const perSecond = 500.0
	for seed := uint64(1); seed <= 3; seed++ {
		sample := gaps(take(arrival.New(arrival.Process{}, arrival.At(perSecond), 2, seed), 40*time.Second))
		slices.Sort(sample)
		n := float64(len(sample))
		distance := 0.0
		for i, gap := range sample {
			f := 1 - math.Exp(-perSecond*gap)
			distance = max(distance, math.Abs(f-float64(i)/n), math.Abs(f-float64(i+1)/n))
		}
		if limit := 1.95 / math.Sqrt(n); distance > limit {
			t.Errorf("seed %d: distance %.4f from the exponential distribution, limit %.4f", seed, distance, limit)
		}
	}
}

func TestPoissonStreams(t *testing.T) {
	const streams = 4
	all := take(arrival.New(arrival.Process{}, arrival.At(400), streams, 3), 100*time.Second)
	for stream := range streams {
		var own []arrival.Arrival
		for _, a := range all {
			if a.Stream == stream {
				own = append(own, a)
			}
		}
		sample := gaps(own)
		mean, squares := 0.0, 0.0
		for _, gap := range sample {
			mean += gap / float64(len(sample))
		}
		for _, gap := range sample {
			squares += (gap - mean) * (gap - mean) / float64(len(sample))
		}
		// The standard deviation of an exponential distribution is its mean. A stream
		// that had every fourth arrival would have half of that.
		if ratio := math.Sqrt(squares) / mean; ratio < 0.95 || ratio > 1.05 || math.Abs(mean-0.01) > 0.0005 {
			t.Errorf("stream %d: mean gap %.4f s, deviation %.3f of it; want 0.01 s and 1", stream, mean, ratio)
		}
	}
}

func TestConstant(t *testing.T) {
	all := take(arrival.New(arrival.Process{Shape: arrival.Constant}, arrival.At(250), 3, 1), 20*time.Second)
	for i, gap := range gaps(all) {
		if math.Abs(gap-0.004) > 2e-9 {
			t.Fatalf("gap %d is %v s, want 0.004", i, gap)
		}
		if all[i].Stream != i%3 {
			t.Fatalf("arrival %d is of stream %d, want them in turn", i, all[i].Stream)
		}
	}
}

func TestVideoPhase(t *testing.T) {
	const streams, period = 5, time.Second / 30
	process := arrival.Process{Shape: arrival.Video, FramesPerSecond: 30}
	last := map[int]time.Duration{}
	phases := map[time.Duration]bool{}
	for _, a := range take(arrival.New(process, arrival.At(streams*30), streams, 9), 10*time.Second) {
		before, seen := last[a.Stream]
		if !seen {
			phases[a.At] = true
			if a.At > period {
				t.Errorf("stream %d begins at %v, want within its first %v", a.Stream, a.At, period)
			}
		} else if off := a.At - before - period; off < -time.Microsecond || off > time.Microsecond {
			t.Errorf("stream %d: frames %v apart, want %v", a.Stream, a.At-before, period)
		}
		last[a.Stream] = a.At
	}
	if len(phases) != streams {
		t.Errorf("%d distinct phases of %d streams", len(phases), streams)
	}
}

func TestBursts(t *testing.T) {
	const size = 6
	a := arrival.New(arrival.Process{Shape: arrival.Bursts, Size: size}, arrival.At(100), size, 4)
	before := time.Duration(-1)
	for burst := range 200 {
		streams := map[int]bool{}
		first := a.Next()
		streams[first.Stream] = true
		for range size - 1 {
			next := a.Next()
			if next.At != first.At {
				t.Fatalf("burst %d lies at %v and %v", burst, first.At, next.At)
			}
			streams[next.Stream] = true
		}
		if len(streams) != size {
			t.Errorf("burst %d: %d streams, want %d", burst, len(streams), size)
		}
		if first.At <= before {
			t.Errorf("burst %d at %v, the one before at %v", burst, first.At, before)
		}
		before = first.At
	}
}

func TestChangingRate(t *testing.T) {
	rate := arrival.At(100).Then(10*time.Second, 0).Then(20*time.Second, 1000)
	for name, process := range processes {
		t.Run(name, func(t *testing.T) {
			var counts [3]int
			for _, a := range take(arrival.New(process, rate, 2, 5), 30*time.Second) {
				counts[int(a.At/(10*time.Second))]++
			}
			slack := func(want float64) float64 { return 5 * math.Sqrt(want*max(1, float64(process.Size))) }
			for i, want := range []float64{1000, 0, 10000} {
				if math.Abs(float64(counts[i])-want) > slack(want) {
					t.Errorf("%d arrivals in seconds %d0 to %d0, want about %v", counts[i], i, i+1, want)
				}
			}
		})
	}
}

func TestArrivalOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		streams := rapid.IntRange(1, 9).Draw(t, "streams")
		rate := arrival.At(rapid.Float64Range(0, 1000).Draw(t, "first"))
		at := time.Duration(0)
		for range rapid.IntRange(0, 4).Draw(t, "changes") {
			at += time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "after"))
			rate = rate.Then(at, rapid.Float64Range(0, 1000).Draw(t, "rate"))
		}
		a := arrival.New(anyProcess().Draw(t, "process"), rate, streams, rapid.Uint64().Draw(t, "seed"))
		before := time.Duration(0)
		for range 500 {
			next := a.Next()
			if next.At < before {
				t.Fatalf("%v after %v", next.At, before)
			}
			if next.Stream < 0 || next.Stream >= streams {
				t.Fatalf("stream %d of %d", next.Stream, streams)
			}
			if next.At != arrival.Never && rate.PerSecond(next.At) == 0 && rate.PerSecond(next.At-1) == 0 {
				t.Fatalf("an arrival at %v, where the rate is 0", next.At)
			}
			before = next.At
		}
	})
}

func TestRateZero(t *testing.T) {
	for name, rate := range map[string]arrival.Rate{
		"zero value": {},
		"zero":       arrival.At(0),
		"ends":       arrival.At(10).Then(0, 0),
	} {
		if next := arrival.New(arrival.Process{}, rate, 1, 1).Next(); next.At != arrival.Never {
			t.Errorf("%s: an arrival at %v", name, next.At)
		}
	}
}

func TestRate(t *testing.T) {
	rate := arrival.At(10).Then(2*time.Second, 30)
	shifted := rate.Shift(3 * time.Second)
	for _, test := range []struct {
		name      string
		got, want float64
	}{
		{"requests before the change", rate.Requests(time.Second), 10},
		{"requests past the change", rate.Requests(4 * time.Second), 80},
		{"rate at the change", rate.PerSecond(2 * time.Second), 30},
		{"shifted rate before its change", shifted.PerSecond(5*time.Second - 1), 10},
		{"shifted rate at its change", shifted.PerSecond(5 * time.Second), 30},
		{"shifted requests", shifted.Requests(6 * time.Second), 80},
	} {
		if math.Abs(test.got-test.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", test.name, test.got, test.want)
		}
	}
}

func TestRateThenCopies(t *testing.T) {
	base := arrival.At(1).Then(time.Second, 2)
	a, b := base.Then(2*time.Second, 3), base.Then(2*time.Second, 4)
	if a.PerSecond(3*time.Second) != 3 || b.PerSecond(3*time.Second) != 4 {
		t.Errorf("rates %v and %v, want 3 and 4", a.PerSecond(3*time.Second), b.PerSecond(3*time.Second))
	}
}

func TestNextAllocations(t *testing.T) {
	for name, process := range processes {
		a := arrival.New(process, arrival.At(100).Then(time.Second, 50), 4, 1)
		if allocs := testing.AllocsPerRun(1000, func() { a.Next() }); allocs != 0 {
			t.Errorf("%s: %v allocations an arrival", name, allocs)
		}
	}
}

func TestParseString(t *testing.T) {
	for text, want := range map[string]arrival.Process{
		"poisson":   {Shape: arrival.Poisson},
		"constant":  {Shape: arrival.Constant},
		"30fps":     {Shape: arrival.Video, FramesPerSecond: 30},
		"29.97fps":  {Shape: arrival.Video, FramesPerSecond: 29.97},
		"bursts:16": {Shape: arrival.Bursts, Size: 16},
	} {
		got, err := arrival.Parse(text)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", text, got, err, want)
		}
		if got.String() != text {
			t.Errorf("%+v is written %q, want %q", got, got, text)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, text := range []string{"", "Poisson", "fps", "0fps", "-3fps", "NaNfps", "Inffps", "bursts", "bursts:", "bursts:0", "bursts:x"} {
		if got, err := arrival.Parse(text); err == nil || !strings.Contains(err.Error(), "bursts:16") {
			t.Errorf("Parse(%q) = %+v, %v; want an error that says what is right", text, got, err)
		}
	}
}
