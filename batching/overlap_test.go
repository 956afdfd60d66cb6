package batching

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHalfFull(t *testing.T) {
	for _, c := range []struct {
		waiting, size int
		want          bool
	}{
		{0, 0, false}, {0, 1, false}, {0, 8, false},
		{1, 0, true}, {1, 1, true}, {1, 2, true}, {1, 3, false},
		{3, 8, false}, {4, 8, true}, {100, 8, true}, {15, 32, false}, {16, 32, true},
	} {
		if got := HalfFull(c.waiting, c.size); got != c.want {
			t.Errorf("HalfFull(%d waiting, %d at most) = %v", c.waiting, c.size, got)
		}
	}
}

func TestNearEnd(t *testing.T) {
	for _, c := range []struct {
		waiting    int
		left, lead time.Duration
		want       bool
	}{
		{0, 0, time.Millisecond, false},
		{1, time.Millisecond + 1, time.Millisecond, false},
		{1, time.Millisecond, time.Millisecond, true},
		{9, -time.Millisecond, time.Millisecond, true}, // later than expected
		{9, 1, 0, false},
	} {
		if got := NearEnd(c.waiting, c.left, c.lead); got != c.want {
			t.Errorf("NearEnd(%d waiting, %v left, lead %v) = %v", c.waiting, c.left, c.lead, got)
		}
	}
}

// ranAt feeds a choice a number of windows of such batches of 8, back to back. speed is the
// requests per millisecond of NearEnd and HalfFull.
func ranAt(v Overlap, windows int, o Observation, speed [2]float64) Overlap {
	for range windows * windowBatches {
		i := 0
		if v.HalfFull() {
			i = 1
		}
		took := time.Duration(8 / speed[i] * 1e6)
		o.Batch, o.Elapsed, o.Ended = 8, took, v.ended+int64(took)
		v = v.Next(o)
	}
	return v
}

func TestOverlapChoice(t *testing.T) {
	late, full, neither := Observation{Late: 1}, Observation{Full: true}, Observation{}
	for _, c := range []struct {
		name  string
		batch Observation
		speed [2]float64 // of NearEnd, HalfFull
		want  bool
	}{
		{"half full", late, [2]float64{10, 12}, true},
		{"near the end", late, [2]float64{10, 9}, false},
		{"as fast", late, [2]float64{10, 10.3}, false},
		{"half full, none late", full, [2]float64{10, 12}, true},
		{"near the end, none late", full, [2]float64{10, 9}, false},
		{"without need", neither, [2]float64{10, 12}, false},
	} {
		v := ranAt(Overlap{}, 10, c.batch, c.speed)
		if v.half != c.want || c.batch == neither && v.trial {
			t.Errorf("%s: %+v, want %v", c.name, v, c.want)
		}
		// The device changes: the slower rule becomes the faster one.
		if c.want {
			if v = ranAt(v, 1000, c.batch, [2]float64{12, 10}); v.half {
				t.Errorf("%s: still chosen after it became slower: %+v", c.name, v)
			}
		}
	}
}

// Failed trials become rare: in the long run, one window in 2^maxFailed.
func TestOverlapTrials(t *testing.T) {
	v, trials := Overlap{}, 0
	const windows = 4096
	for range windows {
		before := v.trial
		if v = ranAt(v, 1, Observation{Late: 1}, [2]float64{10, 9}); v.trial && !before {
			trials++
		}
	}
	if most := maxFailed + windows/(1<<maxFailed) + 1; trials > most || trials < windows/(1<<maxFailed)/2 {
		t.Errorf("%d trials in %d windows, want at most %d", trials, windows, most)
	}
}

// Windows do not count pauses and demoted batches.
func TestOverlapWindows(t *testing.T) {
	for name, spoil := range map[string]func(o *Observation){
		"demoted": func(o *Observation) { o.Demoted = true },
		"pause":   func(o *Observation) { o.Elapsed -= time.Nanosecond },
	} {
		v := ranAt(Overlap{}, 1, Observation{Late: 1}, [2]float64{10, 12})
		if !v.trial {
			t.Fatalf("no trial after a window with late requests: %+v", v)
		}
		o := Observation{Batch: 8, Elapsed: 1000, Ended: v.ended + 1000}
		spoil(&o)
		if v = v.Next(o); v.HalfFull() || v.batches != 0 || v.requests != 0 {
			t.Errorf("%s: %+v, want a new window without a trial", name, v)
		}
	}
}

// pipeline is a device with up to two batches in flight, driven like libml's loop. A batch
// is gathered for the queue's Lead, and then inferred. Two inferences at the same time are faster by
// the gain than one after the other: each runs at half its speed, times one plus the gain.
type pipeline struct {
	*Queue
	alone   device
	answers time.Duration // how long the loop answers the requests of a batch
	picks   time.Duration // how long it then picks the next batch
	gain    float64
	nearEnd bool // Overlap has no choice
	noise   *rand.Rand

	now     time.Duration
	free    time.Duration // when the loop may begin a batch
	flights []flight

	latency []time.Duration
	late    int
	seconds int  // batches that began next to another
	trials  int  // windows in which the other rule was on trial
	closed  bool // each client sends again when it is answered
}

// newPipeline returns a pipeline whose sizes are timed.
func newPipeline(t *testing.T, slo time.Duration, ladder []int, alone device, places int) *pipeline {
	p := &pipeline{
		Queue: NewQueue(newRule(t, SLAB, Config{SLO: slo, Ladder: ladder}), 1<<16, places),
		alone: alone, noise: rand.New(rand.NewPCG(1, 2)),
	}
	for _, n := range ladder {
		p.State = p.Rule.Warm(p.State, n, alone(n))
	}
	return p
}

type flight struct {
	batch []Request
	lead  time.Duration // rest of the gather
	left  time.Duration // rest of the inference, if it runs alone
	o     Observation
}

// run simulates Poisson arrivals at a rate for the time d.
func (p *pipeline) run(rate float64, d time.Duration, slo time.Duration) {
	next, slot := time.Duration(0), uint32(0)
	arrivals := rand.New(rand.NewPCG(3, 4)) // the same for every device
	for p.now < d {
		p.begin()
		until := min(next, p.now+p.undisturbed())
		if p.free > p.now {
			until = min(until, p.free)
		}
		p.advance(until - p.now)
		if p.now == next {
			slot++
			p.Add(Request{Slot: slot, Whole: int64(p.now), Deadline: int64(p.now + slo)})
			next += time.Duration(arrivals.ExpFloat64()/rate*1e9) + 1
		}
		for p.now >= p.free && len(p.flights) > 0 && p.flights[0].lead+p.flights[0].left <= 0 {
			p.finish()
		}
	}
}

// speed is the speed of each batch in inference.
func (p *pipeline) speed() float64 {
	inferred := 0
	for _, f := range p.flights {
		if f.lead <= 0 && f.left > 0 {
			inferred++
		}
	}
	if inferred < 2 {
		return 1
	}
	return (1 + p.gain) / 2
}

// undisturbed is the time until something ends or a rule must be asked again.
func (p *pipeline) undisturbed() time.Duration {
	const look = 20 * time.Microsecond
	d := time.Hour
	for _, f := range p.flights {
		d = min(d, look)
		if f.lead > 0 {
			d = min(d, f.lead)
		} else if f.left > 0 {
			d = min(d, time.Duration(float64(f.left)/p.speed())+1)
		}
	}
	return d
}

func (p *pipeline) advance(d time.Duration) {
	done := time.Duration(float64(d) * p.speed())
	for i := range p.flights {
		if f := &p.flights[i]; f.lead > 0 {
			f.lead -= d
		} else {
			f.left -= min(done, f.left)
		}
	}
	p.now += d
}

func (p *pipeline) begin() {
	if p.nearEnd {
		p.overlap = Overlap{}
	}
	for p.now >= p.free && p.MayBegin(int64(p.now), false) {
		c, late := p.Pick(int64(p.now), false, 0)
		if p.late += len(late); c.Batch == 0 {
			continue
		}
		p.seconds += len(p.flights)
		took := time.Duration(float64(p.alone(c.Padded)) * (1 + 0.02*p.noise.NormFloat64()))
		p.flights = append(p.flights, flight{
			batch: slices.Clone(p.Pending[:c.Batch]), lead: p.Lead, left: took - p.Lead,
			o: Observation{Batch: c.Batch, Padded: c.Padded, Waited: c.Waited, Late: c.Late, Full: c.Full},
		})
		p.Begin(int64(p.now), c, false)
	}
}

func (p *pipeline) finish() {
	f := p.flights[0]
	p.flights = slices.Delete(p.flights, 0, 1)
	ended := p.now + p.answers
	p.free = ended + p.picks
	f.o.Elapsed, f.o.Ended = ended-time.Duration(p.Running[0].Dispatched), int64(ended)
	before := p.overlap.trial
	p.Remove(0, int64(ended))
	if p.End(f.o, 0, false); p.overlap.trial && !before {
		p.trials++
	}
	for _, r := range f.batch {
		p.latency = append(p.latency, ended-time.Duration(r.Whole))
		if p.closed {
			p.Add(Request{Slot: r.Slot, Whole: int64(p.now), Deadline: int64(p.now) + r.Deadline - r.Whole})
		}
	}
}

// The objective holds with any number of batches in flight. If two batches run faster
// together, HalfFull answers more in time under overload. NearEnd never answers fewer than
// one batch at a time, and answers sooner. Overlap finds the better rule. In the first 5 s,
// part of which it needs for that, it answers at most 2.5 or 6 % fewer.
func TestOverlapObjective(t *testing.T) {
	const seconds = 5
	const lead = 150 * time.Microsecond
	alone := linear(500*time.Microsecond, 80*time.Microsecond) // ResNet-50 on an H200
	ladder := []int{1, 2, 4, 8, 16, 32, 64}
	hows := []struct {
		name   string
		places int
		set    func(p *pipeline)
	}{
		{"one at a time", 1, func(*pipeline) {}},
		{"near the end", 2, func(p *pipeline) { p.nearEnd = true }},
		{"half full", 2, func(p *pipeline) { p.HalfFull = true }},
		{"chosen", 2, func(*pipeline) {}},
	}
	const one, near, half, chosen = 0, 1, 2, 3
	for _, c := range []struct {
		slo  time.Duration
		gain float64
		size int // the batch that the objective allows
	}{
		{25 * time.Millisecond, 0.2, 64},
		{25 * time.Millisecond, 0.5, 64},
		{25 * time.Millisecond, 0.05, 64},
		{25 * time.Millisecond, 0, 64},
		{8 * time.Millisecond, 0.2, 32},
		{2500 * time.Microsecond, 0.2, 8},
		{8 * time.Millisecond, 0.5, 32},
		{8 * time.Millisecond, 0, 32},
		{8 * time.Millisecond, -0.05, 32},
		{2500 * time.Microsecond, 0.5, 8},
		{2500 * time.Microsecond, 0, 8},
	} {
		capacity := float64(c.size) / alone(c.size).Seconds()
		for _, load := range []float64{0.1, 0.5, 0.8, 0.95, 1.3} {
			var good [4]float64
			var p50 [4]time.Duration
			at := fmt.Sprintf("%v, gain %.2f, load %.2f", c.slo, c.gain, load)
			for i, how := range hows {
				p := newPipeline(t, c.slo, ladder, alone, how.places)
				p.Lead, p.gain = lead, c.gain
				how.set(p)
				p.run(load*capacity, seconds*time.Second, c.slo)
				slices.Sort(p.latency)
				n := len(p.latency)
				in, _ := slices.BinarySearch(p.latency, c.slo+1)
				good[i], p50[i] = float64(in), p.latency[n/2]
				t.Logf("%s, %s: %d answered, %d late, p50 %v, p99 %v, limit %.1f, %d beside another",
					at, how.name, n, p.late, p50[i], p.latency[n*99/100], p.State.Limit, p.seconds)
				if p99 := p.latency[n*99/100]; p99 > c.slo {
					t.Errorf("%s, %s: p99 %v is beyond the objective", at, how.name, p99)
				}
			}
			if good[near] < 0.995*good[one] {
				t.Errorf("%s: near the end %.0f are answered in time, one at a time %.0f", at, good[near], good[one])
			}
			if good[chosen] < 0.975*good[near] || good[chosen] < 0.94*good[half] {
				t.Errorf("%s: chosen %.0f are answered in time, near the end %.0f, half full %.0f", at, good[chosen], good[near], good[half])
			}
			if p50[near] > p50[one]*101/100 {
				t.Errorf("%s: near the end half are answered in %v, one at a time in %v", at, p50[near], p50[one])
			}
			if c.gain == 0.5 && load > 1 && good[half] < 1.1*good[one] {
				t.Errorf("%s: half full %.0f are answered in time, one at a time %.0f", at, good[half], good[one])
			}
		}
	}
}

// A batch whose requests are answered slower than the next one is gathered still lets Overlap
// compare both rules: that is no pause of the device, because requests wait.
func TestOverlapSlowAnswers(t *testing.T) {
	const slo = 100 * time.Millisecond
	ladder := []int{1, 2, 4, 8, 16, 32}
	alone := linear(time.Millisecond, 6*time.Microsecond) // GNMT on an H200
	for _, answers := range []time.Duration{50 * time.Microsecond, 200 * time.Microsecond, 600 * time.Microsecond} {
		p := newPipeline(t, slo, ladder, alone, 2) // the queue does not expect the answers
		p.gain, p.Lead, p.answers, p.picks = 0.6, 40*time.Microsecond, answers, 10*time.Microsecond
		p.run(40000, 3*time.Second, slo)
		if !p.overlap.half || p.seconds == 0 {
			t.Errorf("answers in %v: %d batches began next to another, %d trials; want two in flight", answers, p.seconds, p.trials)
		}
	}
}

// Clients with a limited number in flight saturate the device, and none of their requests is
// late. Overlap finds the better rule for them too.
func TestOverlapClosedLoop(t *testing.T) {
	const slo, seconds = time.Second, 3
	alone := linear(500*time.Microsecond, 80*time.Microsecond)
	for _, gain := range []float64{0.5, 0.2, 0, -0.05} {
		var answers [2]float64 // without a choice, and with it
		for i := range answers {
			p := newPipeline(t, slo, []int{1, 2, 4, 8, 16, 32}, alone, 2)
			p.gain, p.Lead, p.closed, p.nearEnd = gain, 150*time.Microsecond, true, i == 0
			for slot := range uint32(128) {
				p.Add(Request{Slot: slot, Deadline: int64(slo)})
			}
			p.run(1e-6, seconds*time.Second, slo)
			if answers[i] = float64(len(p.latency)); p.late > 0 {
				t.Errorf("gain %.2f: %d requests are late", gain, p.late)
			}
		}
		if least := 0.98 * max(1, 1+0.6*gain); answers[1] < least*answers[0] {
			t.Errorf("gain %.2f: %.0f answers with a choice, without %.0f, want %.2f times as many", gain, answers[1], answers[0], least)
		}
	}
}

// A function that answers all requests well within its capacity pays for no trial.
func TestOverlapUnsaturated(t *testing.T) {
	alone := linear(500*time.Microsecond, 80*time.Microsecond)
	for _, ladder := range [][]int{{1, 2, 4, 8}, {1, 2, 4, 8, 16, 32, 64}} {
		largest := ladder[len(ladder)-1]
		for _, load := range []float64{0.2, 0.5, 0.8, 0.9} {
			p := newPipeline(t, time.Second, ladder, alone, 2)
			p.gain, p.Lead, p.nearEnd = 0.2, 150*time.Microsecond, true
			p.run(load*float64(largest)/alone(largest).Seconds(), 5*time.Second, time.Second)
			if p.trials > 0 || p.late > 0 {
				t.Errorf("largest batch %d, load %.1f: %d trials, %d late, want none", largest, load, p.trials, p.late)
			}
		}
	}
}
