package share

import (
	"math"
	"testing"
	"time"
)

// machine is what a batch of n takes.
type machine func(n int) time.Duration

// affine is a machine with a fixed cost.
func affine(fixed, each time.Duration) machine {
	return func(n int) time.Duration { return fixed + time.Duration(n)*each }
}

func paceOf(d machine, sizes ...int) *Pace {
	var p Pace
	for _, n := range sizes {
		p.Note(n, d(n))
	}
	return &p
}

var powers = []int{1, 2, 4, 8, 16, 32}

func TestPaceFindsTheLargestBatchThatTheObjectiveAllows(t *testing.T) {
	d := affine(time.Millisecond, 100*time.Microsecond)
	seen := []int{1, 2, 4, 8, 16}
	for _, c := range []struct {
		name      string
		sizes     []int // that may run
		objective time.Duration
		want      int
	}{
		{"all fit", powers, time.Second, 32},
		{"two batches of 32 take 8.4 ms", powers, 9 * time.Millisecond, 32},
		{"and do not fit", powers, 8 * time.Millisecond, 16},
		{"the rule runs one at a time", powers[:1], time.Second, 1},
		{"not even one fits", powers, 2 * time.Millisecond, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			throughput, size := paceOf(d, seen...).Best(c.sizes, c.objective)
			if size != c.want {
				t.Fatalf("batches of %d, want %d", size, c.want)
			}
			if size == 0 {
				return
			}
			if want := float64(size) / d(size).Seconds(); math.Abs(throughput/want-1) > 0.02 {
				t.Errorf("%.0f a second, want %.0f", throughput, want)
			}
		})
	}
}

// A machine that is not full takes small batches of any size in the same time. What lies
// far beyond those is not for nothing.
func TestPaceDoesNotPromiseWhatLiesFarBeyondWhatItSaw(t *testing.T) {
	flat := func(n int) time.Duration { return time.Duration(max(n, 8)) * 100 * time.Microsecond }
	throughput, size := paceOf(flat, 1, 2, 2, 4, 1).Best(powers, time.Second)
	if truth := 16 / flat(16).Seconds(); size != 16 || throughput > 2*truth {
		t.Errorf("batches of %d, %.0f a second; want four times the largest that was seen, and not twice the %.0f that those do", size, throughput, truth)
	}
}

// Nor by what it saw long ago, whose times are forgotten.
func TestPaceForgetsHowFarItSaw(t *testing.T) {
	flat := func(n int) time.Duration { return time.Duration(max(n, 8)) * 100 * time.Microsecond }
	p := paceOf(flat, 32)
	small := paceOf(flat, 1, 2, 2, 1)
	for range 40 {
		p.Join(small)
	}
	p.Join(&Pace{}) // nothing ran: nothing is forgotten
	if throughput, size := p.Best(powers, time.Second); size != 8 {
		t.Errorf("batches of %d, %.0f a second; want four times the 2 that ran lately", size, throughput)
	}
	once := paceOf(affine(time.Millisecond, 100*time.Microsecond), 1, 8)
	for range 3000 {
		once.Join(&Pace{})
	}
	if throughput, size := once.Best(powers, time.Second); size != 32 || once.Mean() != 4.5 {
		t.Errorf("after a long silence batches of %d, %.0f a second, mean %v; want as before it", size, throughput, once.Mean())
	}
}

// One size shows no slope: all cost in proportion promises nothing.
func TestPaceOfOneSizePromisesNoMoreThanThatDoes(t *testing.T) {
	throughput, _ := paceOf(affine(time.Millisecond, 100*time.Microsecond), 4, 4, 4).Best(powers, time.Second)
	if want := 4 / 0.0014; math.Abs(throughput/want-1) > 0.01 {
		t.Errorf("%.0f a second, want %.0f: what batches of 4 do", throughput, want)
	}
}

func TestPaceOfNothingIsNothing(t *testing.T) {
	var none Pace
	if throughput, size := none.Best(powers, time.Second); throughput != 0 || size != 0 || none.Mean() != 1 {
		t.Errorf("%v a second with batches of %d, mean %v; want nothing and 1", throughput, size, none.Mean())
	}
}

// A smaller share, or a neighbour: after some observations the line is the new one.
func TestPaceFollowsADeviceThatSlowsDown(t *testing.T) {
	p := paceOf(affine(time.Millisecond, 100*time.Microsecond), powers...)
	slow := affine(3*time.Millisecond, 300*time.Microsecond)
	for range 12 {
		p.Join(paceOf(slow, powers...))
	}
	if got, want := p.at(32), slow(32).Seconds(); math.Abs(got/want-1) > 0.03 {
		t.Errorf("a batch of 32 is expected to take %.4f s, want %.4f", got, want)
	}
}

// Batches whose time trembles never give a line that falls, or one that is steeper than in
// proportion.
func TestPaceIsBetweenNothingAndProportional(t *testing.T) {
	var p Pace
	for _, b := range []struct {
		n  int
		ms int64
	}{{1, 5}, {2, 3}, {4, 2}, {3, 6}} {
		p.Note(b.n, time.Duration(b.ms)*time.Millisecond)
	}
	if p.at(8) < p.at(1) {
		t.Errorf("8 take %v s, 1 takes %v", p.at(8), p.at(1))
	}
	steep := paceOf(func(n int) time.Duration { return time.Duration(n*n) * time.Millisecond }, 1, 2, 4)
	if mean := steep.Mean(); steep.at(32) > steep.times/steep.batches*32/mean*1.0001 {
		t.Errorf("32 take %v s, more than in proportion to %v of %v", steep.at(32), steep.times/steep.batches, mean)
	}
}
