package batching

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// node is a device that runs one batch at a time, driven like libml's loop on a CPU, under
// steady arrivals. Its batches deviate by 2 %.
type node struct {
	rule     *Rule
	state    State
	mean     device
	slo      time.Duration
	interval time.Duration // of arrivals
	noise    *rand.Rand

	freeze time.Duration        // by which the process is stopped in the next step
	stall  func() time.Duration // by which the next batch takes longer

	now, arrival int64 // arrival is the time of the next one
	began, ended int64 // of the last batch
	padded       int   // its size
	pending      []Request
	answers      []answer
	unprobed     time.Duration // maximum time during which all requests with time left were predicted late
}

type answer struct {
	whole  int64
	inTime bool
}

// step lets d pass while requests arrive; at most 256 wait.
func (n *node) step(d time.Duration) {
	n.now += int64(d + n.freeze)
	n.freeze = 0
	for ; n.arrival <= n.now; n.arrival += int64(n.interval) {
		if len(n.pending) == 256 {
			n.answers = append(n.answers, answer{n.arrival, false})
			continue
		}
		n.pending = append(n.pending, Request{Slot: uint32(n.arrival), Whole: n.arrival, Deadline: n.arrival + int64(n.slo)})
	}
}

// dispatch runs a batch or answers that all requests are late.
func (n *node) dispatch() {
	if len(n.pending) == 0 {
		n.step(time.Duration(n.arrival - n.now))
	}
	o := Observation{Waited: WaitForRunning(n.pending, n.began, n.ended)}
	freshest := n.pending[len(n.pending)-1].Deadline
	batch, late := n.rule.Pick(n.state, n.pending, n.now, false, func(size int) time.Duration { return n.rule.Expected(n.state, size) })
	if batch == 0 && freshest > n.now {
		n.unprobed = max(n.unprobed, time.Duration(n.now-n.ended))
	}

	o.Late = late
	for _, r := range n.pending[len(n.pending)-late:] {
		n.answers = append(n.answers, answer{r.Whole, false})
	}
	running := slices.Clone(n.pending[:batch])
	n.pending = slices.Clone(n.pending[batch : len(n.pending)-late])
	if batch > 0 {
		o.Batch, o.Padded = batch, n.rule.Pad(batch)
		n.began, n.padded = n.now, o.Padded
		n.step(time.Duration(float64(n.mean(o.Padded))*math.Exp(0.02*n.noise.NormFloat64())) + n.stall())
		n.ended = n.now
		o.Elapsed, o.Ended = time.Duration(n.ended-n.began), n.ended
	}
	for _, r := range running {
		n.answers = append(n.answers, answer{r.Whole, n.now <= r.Deadline})
	}
	slices.SortFunc(n.pending, byDeadline)
	n.state = n.rule.Next(n.state, o)
}

func (n *node) run(until int64) {
	for n.now < until {
		n.dispatch()
	}
}

// inTime returns the part of requests that were answered in time. It counts those that
// arrived after from, up to one objective ago.
func (n *node) inTime(from int64) (part float64, requests int) {
	good := 0
	for _, a := range n.answers {
		if a.whole < from || a.whole >= n.now-int64(n.slo) {
			continue
		}
		requests++
		if a.inTime {
			good++
		}
	}
	return float64(good) / float64(requests), requests
}

// Requests are answered in time again 1 s after the end of a stall of 1 ms to 10 s. The
// stall stopped the process, or made up to six batches that much longer.
func TestRecoveryAfterStall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slo := time.Duration(rapid.IntRange(5, 100).Draw(t, "slo_ms")) * time.Millisecond
		one := time.Duration(rapid.Float64Range(0.01, 0.45).Draw(t, "batch of 1, part of slo") * float64(slo))
		fixed := time.Duration(rapid.Float64Range(0, 1).Draw(t, "fixed part") * float64(one))
		ladder := append(rapid.SliceOfNDistinct(rapid.IntRange(2, 64), 0, 6, rapid.ID).Draw(t, "sizes"), 1)
		slices.Sort(ladder)
		load := rapid.Float64Range(0.02, 0.75).Draw(t, "load")
		stall := time.Duration(math.Exp(rapid.Float64Range(math.Log(1e6), math.Log(1e10)).Draw(t, "ln stall")))
		batches := rapid.IntRange(0, 6).Draw(t, "slow batches, or the process misses the time")

		mean := linear(fixed, one-fixed)
		largest := 1 // largest size of which two in a row fit the objective with their deviations
		for _, size := range ladder {
			if 20*mean(size) <= 9*slo {
				largest = size
			}
		}
		n := &node{
			rule: newRule(t, SLAB, Config{SLO: slo, Ladder: ladder}), mean: mean, slo: slo,
			interval: time.Duration(float64(mean(largest)) / float64(largest) / load),
			noise:    rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)),
			stall:    func() time.Duration { return 0 },
		}
		n.state = n.rule.Start()
		for _, size := range ladder {
			n.state = n.rule.Warm(n.state, size, mean(size))
		}
		n.run(int64(rapid.Float64Range(0, 3).Draw(t, "stall begins") * 1e9))

		if batches == 0 {
			n.freeze = stall
			n.dispatch()
		}
		n.stall = func() time.Duration { batches--; return stall }
		for batches > 0 {
			n.dispatch()
		}
		n.stall = func() time.Duration { return 0 }

		from := n.now + int64(time.Second)
		n.run(from + max(int64(time.Second), 200*int64(n.interval)))
		if part, requests := n.inTime(from); part < 0.99 {
			t.Errorf("%.1f %% of %d requests are answered in time from 1 s after the stall of %v, want 99", 100*part, requests, stall)
		}
		if n.unprobed >= n.rule.probeEvery() {
			t.Errorf("all requests were late for %v and none ran, want a probe every %v", n.unprobed, n.rule.probeEvery())
		}
	})
}

// A function's batches take 28 % of the objective when they have the CPU. Other programs
// take it half of the time, for 100 ms on average. An estimate from a slow period must not
// keep the function from using the next fast one. At 2/s this is detect of
// configs/demo.yaml next to `stress-ng --cpu 2`.
func TestContention(t *testing.T) {
	const slo, seconds = 25 * time.Millisecond, 200
	for _, c := range []struct {
		rate float64
		want float64 // part of the requests in time, of about 0.5
	}{{2, 0.48}, {10, 0.42}, {34, 0.41}} {
		noise := rand.New(rand.NewPCG(1, 1))
		n := &node{
			rule: newRule(t, SLAB, Config{SLO: slo, Ladder: []int{1, 2, 4, 8}}), mean: linear(4*time.Millisecond, 3*time.Millisecond),
			slo: slo, interval: time.Duration(1e9 / c.rate), noise: noise,
		}
		slow, until := false, int64(0)
		n.stall = func() time.Duration {
			for ; until < n.now; until += int64(100e6 * noise.ExpFloat64()) {
				slow = noise.Float64() < 0.5
			}
			if !slow {
				return 0
			}
			return slo + time.Duration(noise.Float64()*float64(2*slo))
		}
		n.state = n.rule.Warm(n.rule.Start(), 1, n.mean(1))
		n.run(seconds * 1e9)

		part, requests := n.inTime(0)
		if part < c.want {
			t.Errorf("%v/s: %.1f %% of %d requests are answered in time, want %.0f", c.rate, 100*part, requests, 100*c.want)
		}
		longest, since := int64(0), int64(0)
		for _, a := range n.answers {
			if a.inTime {
				since = a.whole
			}
			longest = max(longest, a.whole-since)
		}
		if longest > 6e9 { // 12 requests at 2/s, each with a chance of one half
			t.Errorf("%v/s: no request is answered in time for %v", c.rate, time.Duration(longest))
		}
	}
}
