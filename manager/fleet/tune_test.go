package fleet

import (
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Enough of these windows make package gslice decide.
const (
	window  = 5 * time.Second
	windows = 6
)

// fakeTraffic stands in for the queue of an instance.
type fakeTraffic struct {
	arrivals int
	window   datapath.Window
}

func (f *fakeTraffic) Arrivals() int { return f.arrivals }

func (f *fakeTraffic) Window() datapath.Window { return f.window }

func (f *fakeTraffic) NextWindow() { f.window = datapath.Window{} }

// traffic gives an instance fake traffic, if it has none yet.
func (b *nodeBed) traffic(in *instance) *fakeTraffic {
	if f, ok := in.traffic.(*fakeTraffic); ok {
		return f
	}
	f := &fakeTraffic{}
	in.traffic = f
	return f
}

// goThrough runs requests through an instance for the time elapsed, and tunes it.
func (b *nodeBed) goThrough(in *instance, now *time.Time, elapsed time.Duration, requests int, tail, each time.Duration) {
	b.t.Helper()
	*now = now.Add(elapsed)
	w := datapath.Window{Aggregation: b.traffic(in).window.Aggregation}
	for i := range requests {
		inferred := int64(i+1) * int64(each)
		r := shm.Request{FirstFragment: inferred - int64(tail), Complete: inferred - int64(tail)}
		w.Arrive(r)
		w.Answer(r, shm.Result{Status: uint8(wire.StatusOK), Batch: 1, Dispatched: inferred - int64(each), Inferred: inferred}, inferred, 0)
	}
	b.traffic(in).window = w
	b.sharing.decideAt(now.Sub(b.started), occasion{interval: true})
	b.turns()
}

// A request's deadline is earlier than its objective by the time reserved for the network.
func TestAggregationBound(t *testing.T) {
	for name, c := range map[string]struct {
		tail time.Duration
		want bool
	}{"in time": {19_400 * time.Microsecond, false}, "late by the way": {19_600 * time.Microsecond, true}} {
		t.Run(name, func(t *testing.T) {
			b := newNode(t, "cpu", nil, "governor", named("a", 40))
			b.turns()
			in, now := b.instance("a", 0), time.Now()
			in.f.slo, b.cfg.Transit, b.cfg.Shares.Tune = 50*time.Millisecond, 500*time.Microsecond, false
			for range windows {
				b.traffic(in).window.Aggregation = 400 * 30 * time.Millisecond
				b.goThrough(in, &now, window, 400, c.tail, 5*time.Millisecond)
			}
			if got := b.status("a").Bound; (got == "aggregation") != c.want {
				t.Errorf("bound by %q, want aggregation: %v", got, c.want)
			}
		})
	}
}

// Measurements become shares. As Algorithm 1 says, an instance gets more if its batches
// take too long, and less if it has time to spare.
func TestTune(t *testing.T) {
	for _, c := range []struct {
		name       string
		tail, each time.Duration
		cpu        time.Duration // per request
		want       float64
	}{
		{"latency is short", 75 * time.Millisecond, time.Millisecond, 0, 60.5},
		{"throughput is short", 10 * time.Millisecond, 15 * time.Millisecond, 0, 48},
		{"within the threshold", 49 * time.Millisecond, 12 * time.Millisecond, 0, 40},
		{"both are over", 10 * time.Millisecond, 5 * time.Millisecond, 0, 16},
		{"a quota has CPU time for less than was measured", 10 * time.Millisecond, 5 * time.Millisecond, 12 * time.Millisecond, 48},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newNode(t, "cpu", nil, "cgroup-v2", named("a", 40))
			b.turns()
			in, now := b.instance("a", 0), time.Now()
			in.f.slo = 50*time.Millisecond + b.cfg.Transit
			generation, _ := b.serves("a")
			b.reports(in, control.Report{Generation: generation})
			b.reports(in, control.Report{Generation: generation, Ran: 1, CPUNanos: int64(c.cpu)})
			for range windows {
				b.goThrough(in, &now, window, 400, c.tail, c.each) // 80 per second
			}
			if got := b.status("a").SharePercent; got < c.want-1 || got > c.want+1 {
				t.Errorf("share %v %%, want %v", got, c.want)
			}
		})
	}
}
