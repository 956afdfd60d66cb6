package datapath

import (
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/slab"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/internal/testing/ingestfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// loop is a source without a network. It sends the same picture again for each answer, so that
// window requests are in flight until left is 0.
type loop struct {
	slab     *slab.Slab
	window   int64
	left     atomic.Int64
	inFlight atomic.Int64
	wake     chan struct{} // holds one token
	closed   atomic.Bool
	id       uint32
	datagram []byte
	header   wire.Header
}

// loopClients is the number of clients, so that each has enough credit.
const loopClients = 8

func newLoop(t testing.TB, window int) *loop {
	t.Helper()
	memory, err := slab.New("loop", 1<<20, 1, false)
	must.OK(t, err)
	s := &loop{slab: memory[0], window: int64(window), wake: make(chan struct{}, 1)}
	s.header = wire.FragmentHeader(wire.TypeData, 0, datapathtest.PictureBytes, datapathtest.PictureBytes, 0)
	s.datagram = make([]byte, wire.DatagramSize(&s.header))
	return s
}

func (s *loop) Receive(batch []ingest.Datagram, _ int64) (n int, err error) {
	for {
		if s.closed.Load() {
			return 0, ingest.ErrClosed
		}
		for n < len(batch) && s.left.Load() > 0 && s.inFlight.Load() < s.window {
			s.id++
			s.header.RequestID = s.id
			s.header.Put(s.datagram)
			first, _, ok := ingestfake.Put(s.slab, s.datagram, 0)
			if !ok {
				break
			}
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(s.id % loopClients)}), 5000) // RFC 5737
			batch[n] = ingest.Datagram{From: from, First: first}
			s.left.Add(-1)
			s.inFlight.Add(1)
			n++
		}
		if n > 0 {
			return n, nil
		}
		<-s.wake
	}
}

func (s *loop) Send(packets []ingest.Packet) (int, error) {
	s.inFlight.Add(-int64(len(packets)))
	s.ring()
	return len(packets), nil
}

func (s *loop) ring() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *loop) Close() error {
	s.closed.Store(true)
	s.ring()
	return nil
}

func (s *loop) Slab() shm.Memory            { return s.slab }
func (s *loop) Release(spans []ingest.Span) { s.slab.Release(spans) }
func (s *loop) LocalAddr() netip.AddrPort   { return netip.MustParseAddrPort("192.0.2.1:9000") }
func (s *loop) Stats() (stats ingest.Stats) { return stats }
func (s *loop) run(n int)                   { s.left.Store(int64(n)); s.ring() }
func (s *loop) ended() bool                 { return s.left.Load() == 0 && s.inFlight.Load() == 0 }
func (s *loop) sources() *Sources           { return &Sources{All: []ingest.Source{s}, Close: s.slab.Close} }
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPort measures a request's way through both threads of a port, without a network. A
// process answers at once. cpu-ns/op is the CPU time of all threads, which a busy machine changes
// less than the time.
func BenchmarkPort(b *testing.B) {
	s := newLoop(b, 32)
	p, err := NewPort(s.sources(), testOptions(1))
	must.OK(b, err)
	q := p.Queue(0)
	p.Start(discard{})
	c := datapathtest.Attach(b, q, p.Geometry(), 1)
	q.HandOver(1)
	stop := answerAll(b, c.Consumer)
	defer func() {
		stop()
		p.Stop()
		p.Close()
	}()
	pass := func(n int) {
		s.run(n)
		for !s.ended() {
			time.Sleep(100 * time.Microsecond)
		}
	}
	pass(10_000)
	b.ReportAllocs()
	b.ResetTimer()
	began := cpuTime()
	pass(b.N)
	b.ReportMetric(float64(cpuTime()-began)/float64(b.N), "cpu-ns/op")
	if s := p.Stats(); s.Results[wire.StatusOK] != s.Accepted {
		b.Fatalf("%d of %d requests were answered ok", s.Results[wire.StatusOK], s.Accepted)
	}
}

// answerAll answers each request of a queue at once, until stop.
func answerAll(b *testing.B, c *shm.Consumer) (stop func()) {
	var stopped atomic.Bool
	var done sync.WaitGroup
	done.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if owned, err := c.Acquire(shm.Now() + int64(datapathtest.Patience)); !owned || err != nil {
			b.Errorf("acquire: %v, %v", owned, err)
			return
		}
		slots := make([]uint32, 64)
		for !stopped.Load() {
			c.Wait(shm.Now() + int64(10*time.Millisecond))
			n := c.Take(slots)
			if n == 0 {
				continue
			}
			c.Start(slots[:n])
			for _, slot := range slots[:n] {
				now := shm.Now()
				c.Complete(slot, shm.Result{
					Status: uint8(wire.StatusOK), Kind: uint8(wire.KindRaw), Batch: 1, ModelVersion: 7, Length: 64,
					Dispatched: now, Gathered: now, Inferred: now,
				})
			}
			c.Flush()
		}
	})
	return func() {
		stopped.Store(true)
		done.Wait()
	}
}
