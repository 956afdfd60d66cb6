package loop

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/shm"
)

// BenchmarkBatch measures the batch loop on a CPU with a framework that computes next to nothing: publish,
// take, pick, gather, infer, decode, reply.
func BenchmarkBatch(b *testing.B) {
	for _, n := range []uint32{1, 8} {
		b.Run(fmt.Sprintf("requests=%d", n), func(b *testing.B) {
			h, f := newHarness(b, functiontest.Card()), functiontest.NewFake()
			l := h.loop(f)
			f.Idle, f.Serving = true, false // compute nothing, keep no history
			l.Queue.Expected = func(int) time.Duration { return time.Microsecond }
			turns(b, h, l, n)
		})
	}
}

// BenchmarkAccountedBatch is the same with the account of a guarantee, as on a GPU with MPS. It leaves out the
// device, which works on another goroutine.
func BenchmarkAccountedBatch(b *testing.B) {
	h, f := newHarness(b, functiontest.Card()), functiontest.NewFake()
	l := h.loop(f)
	f.Idle, f.Serving = true, false
	l.Queue.Expected = func(int) time.Duration { return time.Microsecond }
	l.Prioritized = ignored{}
	h.guarantee(3, 0.9)
	h.order.Store(&h.share)
	h.setAccount(l, gate.Config{Balance: &gate.Balance{}, Objective: h.SLO, Times: times(8, 100*time.Microsecond, 10*time.Microsecond)})
	turns(b, h, l, 8)
}

// BenchmarkAwait measures the CPU time of the loop's thread while a batch of 5 ms is in flight that ends 1 ms before its
// time. The lead is 2 ms.
func BenchmarkAwait(b *testing.B) {
	const takes, lead, early = 5 * time.Millisecond, 2 * time.Millisecond, time.Millisecond
	for _, c := range []struct {
		name    string
		pending bool
		waits   bool // another process, for the turn of the batch
		demoted bool // the batch; the next one waits for another process's turn
	}{
		{"alone", false, false, false},
		{"next batch may join", true, false, false},
		{"next batch may not join", true, true, false},
		{"next batch waits for its turn", true, false, true},
	} {
		b.Run(strings.ReplaceAll(c.name, " ", "-"), func(b *testing.B) {
			h := newGPUHarness(b, functiontest.Card())
			turn := h.takeTurns().Turns[3]
			l := accounted(h, h.Fake())
			must.OK(b, unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0))
			slots := make([]uint32, h.Geometry.Slots)
			spent := int64(0)
			for b.Loop() {
				l.Queue.State, l.Queue.Lead = l.Queue.Rule.Warm(l.Queue.Rule.Start(), 1, takes), lead
				if l.refillBalance(); c.demoted {
					l.emptyBalance()
					turn.Take(shm.Rank{Level: 3}, 0)
				}
				h.GPU.Late.Store(int64(takes - early))
				h.Publish(0, h.Picture(0), nil)
				for began := false; !began; began = l.flights.count > 0 {
					l.take()
					must.Get(l.beginNext())(b)
				}
				if l.refillBalance(); c.waits {
					turn.Take(shm.Rank{Level: 3}, 0)
				}
				if c.pending {
					h.Publish(1, h.Picture(1), nil)
				}
				began := threadTime(b)
				for !l.await() && (c.waits || c.demoted) {
					must.Get(l.beginNext())(b)
				}
				spent += threadTime(b) - began
				turn.Release()
				h.GPU.Late.Store(0)
				for l.flights.count > 0 || len(l.Queue.Pending) > 0 {
					must.OK(b, l.step())
				}
				answered := 0
				for answered < 1 || c.pending && answered < 2 {
					n, err := h.Channel.Receive(slots, shm.Now()+int64(functiontest.Patience))
					must.OK(b, err)
					answered += n
				}
			}
			b.ReportMetric(float64(spent)/float64(b.N)/1000, "cpu-µs/batch")
		})
	}
}

func turns(b *testing.B, h *harness, l *Loop, n uint32) {
	picture := h.Picture(1)
	slots := make([]uint32, h.Geometry.Slots)
	b.ReportAllocs()
	began := threadTime(b)
	defer func() { b.ReportMetric(float64(threadTime(b)-began)/float64(b.N), "cpu-ns/op") }()
	for b.Loop() {
		for slot := range n {
			h.Publish(slot, picture, nil)
		}
		for got := 0; got < int(n); {
			l.Queue.State.Limit = 8
			l.extend()
			l.startMove()
			must.OK(b, l.turn())
			m, err := h.Channel.Receive(slots, shm.Now()+int64(functiontest.Patience))
			must.OK(b, err)
			got += m
		}
	}
}

// ignored is a device whose levels change nothing.
type ignored struct{ device.Partitioned }

func (ignored) Choose(int, budget.Level) error { return nil }

// threadTime is the CPU time of the calling thread in nanoseconds. Other programs disturb it less than the
// time of the clock.
func threadTime(b *testing.B) int64 {
	b.Helper()
	var t unix.Timespec
	must.OK(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return t.Nano()
}
