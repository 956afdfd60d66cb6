package datapath

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// server is a process in simulated time: a batch of n, at most largest, takes fixed + n * each.
type server struct {
	queue       *Queue
	fixed, each time.Duration
	largest     int

	waits, runs []time.Duration // when requests came
	began, ends time.Duration   // of the batch that runs
	got         int
}

// full is the requests per second that it answers in full batches.
func (s *server) full() float64 {
	return float64(s.largest) / (s.fixed + time.Duration(s.largest)*s.each).Seconds()
}

// advance answers the batch that has ended, and begins the next.
func (s *server) advance(now time.Duration) {
	for len(s.runs) > 0 && s.ends <= now {
		for _, came := range s.runs {
			r := shm.Result{Status: uint8(wire.StatusOK), Batch: uint16(len(s.runs)), Dispatched: int64(s.began), Inferred: int64(s.ends)}
			busy := s.queue.window.Answer(shm.Request{FirstFragment: int64(came), Complete: int64(came)}, r, int64(s.ends), time.Second)
			s.queue.pace.observe(s.ends-s.began, busy)
			s.queue.port.pace.observe(s.ends-s.began, busy)
			s.queue.inFlight--
		}
		now, s.runs = s.ends, nil
		s.begin(now)
	}
	s.begin(now)
}

func (s *server) begin(now time.Duration) {
	if len(s.runs) > 0 || len(s.waits) == 0 {
		return
	}
	n := min(s.largest, len(s.waits))
	s.runs, s.waits = slices.Clone(s.waits[:n]), s.waits[n:]
	s.began, s.ends = now, now+s.fixed+time.Duration(n)*s.each
}

// simulate sends requests at a constant rate for a minute. It returns the most requests that were in flight in the second
// half of it, when the speeds are known.
func simulate(rate float64, servers ...*server) (worst int) {
	const minute = time.Minute
	p := &Port{open: len(servers)}
	var queues []*Queue
	for _, s := range servers {
		s.queue = &Queue{port: p, serving: true}
		queues = append(queues, s.queue)
	}
	p.queues.Store(&queues)
	for i := 0; ; i++ {
		now := time.Duration(float64(i) / rate * float64(time.Second))
		if now > minute {
			return worst
		}
		inFlight := 0
		for _, s := range servers {
			s.advance(now)
			inFlight += s.queue.inFlight
		}
		q := p.soonest()
		s := servers[slices.Index(queues, q)]
		s.waits = append(s.waits, now)
		q.inFlight++
		if s.begin(now); now > minute/2 {
			worst = max(worst, inFlight)
			s.got++
		}
	}
}

// Unequal devices get requests in proportion to their speed, if there are enough.
func TestSoonestInProportion(t *testing.T) {
	for _, c := range []struct {
		name       string
		fast, slow server
	}{
		{"GPUs", server{fixed: 2 * time.Millisecond, each: 100 * time.Microsecond, largest: 32}, server{fixed: 2 * time.Millisecond, each: 100 * time.Microsecond, largest: 32}},
		{"GPU and half a GPU", server{fixed: 2 * time.Millisecond, each: 100 * time.Microsecond, largest: 32}, server{fixed: 4 * time.Millisecond, each: 200 * time.Microsecond, largest: 32}},
		{"GPU and CPU", server{fixed: 2 * time.Millisecond, each: 100 * time.Microsecond, largest: 32}, server{each: 5 * time.Millisecond, largest: 4}},
		{"CPUs", server{each: 2 * time.Millisecond, largest: 1}, server{each: 6 * time.Millisecond, largest: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fast, slow := c.fast, c.slow
			all := fast.full() + slow.full()
			worst := simulate(0.95*all, &fast, &slow)
			if got, want := float64(slow.got)/float64(fast.got+slow.got), slow.full()/all; math.Abs(got-want) > 0.06 {
				t.Errorf("the slower one got %.3f of the requests, want %.3f", got, want)
			}
			if worst > 3*(fast.largest+slow.largest)+4 {
				t.Errorf("%d requests in flight: they wait for one while the other could answer", worst)
			}
		})
	}
}

// A device that is slow gets nothing while the fast one would answer sooner.
func TestSoonestAtLowRate(t *testing.T) {
	fast, slow := server{each: time.Millisecond, largest: 8}, server{each: 50 * time.Millisecond, largest: 8}
	if simulate(200, &fast, &slow); slow.got > 0 {
		t.Errorf("the slow one got %d of %d requests", slow.got, fast.got+slow.got)
	}
}
