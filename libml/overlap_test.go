package libml

import (
	"testing"
	"time"

	"github.com/penstock/penstock/batching"
)

func TestOverlap(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name          string
		overlap       overlap
		waiting       int
		left, typical time.Duration
		want          bool
	}{
		{"no requests", overlap{lead: ms}, 0, 0, 10 * ms, false},
		{"batch just began", overlap{lead: ms}, 8, 10 * ms, 10 * ms, false},
		{"batch about to end", overlap{lead: ms}, 1, ms, 10 * ms, true},
		{"long lead counts as half a batch", overlap{lead: 20 * ms}, 1, 6 * ms, 10 * ms, false},
		{"configured, few requests", overlap{streams: 2, lead: ms}, 3, 0, 10 * ms, false},
		{"configured, half a batch", overlap{streams: 2, lead: ms}, 4, 10 * ms, 10 * ms, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.overlap.allows(c.waiting, 8, c.left, c.typical); got != c.want {
				t.Errorf("a second batch is allowed: %v, want %v", got, c.want)
			}
		})
	}
}

func TestOverlapOnDevice(t *testing.T) {
	const ms = time.Millisecond
	for answering, want := range map[time.Duration]time.Duration{0: 8 * ms, ms: 7 * ms, time.Hour: 6 * ms} {
		o := overlap{answering: answering}
		if got := o.onDevice(8 * ms); got != want {
			t.Errorf("a batch of 8 ms, answered in %v: %v on the device, want %v", answering, got, want)
		}
	}
}

func TestOverlapLearns(t *testing.T) {
	o := overlap{lead: time.Millisecond}
	for range 100 {
		o.learnLead(time.Second)
	}
	if o.lead < 990*time.Millisecond || o.lead > time.Second {
		t.Errorf("lead %v after many of 1 s", o.lead)
	}
	batch := batching.Observation{Batch: 8, Elapsed: 1, Late: 1}
	configured := overlap{streams: 2}
	for batch.Ended = 1; !o.measured.HalfFull(); batch.Ended++ {
		if batch.Ended > 1e4 {
			t.Fatal("late requests start no trial")
		}
		o.observe(batch)
		configured.observe(batch)
	}
	if configured.measured != (batching.Overlap{}) {
		t.Errorf("measured %+v with a configured number of streams", configured.measured)
	}
}

// A batch is full if it has as many requests as the rule and the order allow.
func TestFullBatch(t *testing.T) {
	for _, c := range []struct {
		limit             float64
		ordered, requests int
		want              bool
	}{{1, 0, 2, true}, {8, 0, 2, false}, {8, 2, 2, true}, {4, 0, 4, true}} {
		h := newGPUHarness(t, testCard())
		l := h.loop(h.fake())
		l.p.orders.share.Store(&shareOrder{maxBatch: c.ordered})
		l.sizes.state.Limit = c.limit
		l.sizes.expected = func(int) time.Duration { return time.Microsecond }
		for slot := range uint32(c.requests) {
			h.publish(slot, h.picture(byte(slot)), nil)
		}
		l.beginOne(t)
		if f := l.flights.oldest(); f.full != c.want {
			t.Errorf("limit %v, order %d: a batch of %d is full: %v, want %v", c.limit, c.ordered, len(f.batch), f.full, c.want)
		}
		if err := l.finish(); err != nil {
			t.Fatal(err)
		}
	}
}
