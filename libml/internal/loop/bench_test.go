package loop

import (
	"fmt"
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
