package udp

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

const (
	overrunFragments = 147
	overrunFragment  = 1024
	// overrunSLO is the time from sending a request until it is complete.
	overrunSLO = 25 * time.Millisecond
	// overrunClients send at the same time, alternating train by train.
	overrunClients = 8
	overrunWarm    = 500 * time.Millisecond
	overrunLength  = 1500 * time.Millisecond
	// overrunOverslept is the max time by which a receiver that slept too long shortens its
	// next pauses.
	overrunOverslept = 3 * time.Millisecond
)

var (
	overrunPause  = flag.Duration("overrun.pause", 2*time.Microsecond, "what a datagram costs the receiver of BenchmarkOverrun beside its copy")
	overrunBuffer = flag.Int("overrun.buffer", 8<<20, "receive buffer of BenchmarkOverrun, in bytes")
	overrunChains = flag.Bool("overrun.chains", true, "the kernel chains datagrams in BenchmarkOverrun")
	overrunRounds = flag.Int("overrun.rounds", 3, "rounds of BenchmarkOverrun, of which the median is told")
)

// overrun is the result of one turn.
type overrun struct {
	offered, whole, inTime float64 // requests per second
	late                   float64 // ms, the 99th percentile of the age of complete requests
	shed                   float64 // the mean shed part that the filter was set to
}

// BenchmarkOverrun offers a slowed-down receiver (-overrun.pause) fractions and multiples of
// its capacity. It counts the requests that are complete, and those complete within 25 ms. It
// compares them with a run without shedding, and one with a receive buffer of only some 5 ms.
func BenchmarkOverrun(b *testing.B) {
	capacity := overrunTurn(b, Options{RecvBuffer: 64 << 20, NoShedding: true}, 0).whole
	b.Logf("capacity %.0f requests/s, %.0f MB/s", capacity, capacity*overrunFragments*overrunFragment/1e6)
	small := int(capacity * overrunFragments * overrunFragment * 5e-3 / 2) // the kernel doubles it
	for _, offered := range []float64{0.5, 0.9, 1.1, 1.25, 1.5, 2, 3} {
		for _, c := range []struct {
			name string
			o    Options
		}{
			{"as it was", Options{RecvBuffer: *overrunBuffer, NoShedding: true}},
			{"small", Options{RecvBuffer: small, NoShedding: true}},
			{"shedding", Options{RecvBuffer: *overrunBuffer}},
		} {
			b.Run(fmt.Sprintf("%.2fx/%s", offered, c.name), func(b *testing.B) {
				var all []overrun
				for range *overrunRounds {
					all = append(all, overrunTurn(b, c.o, offered*capacity))
				}
				m := func(of func(overrun) float64) float64 {
					v := make([]float64, len(all))
					for i := range all {
						v[i] = of(all[i])
					}
					slices.Sort(v)
					return v[len(v)/2]
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(m(func(o overrun) float64 { return o.offered }), "offered/s")
				b.ReportMetric(m(func(o overrun) float64 { return o.whole }), "whole/s")
				b.ReportMetric(m(func(o overrun) float64 { return o.inTime }), "intime/s")
				b.ReportMetric(m(func(o overrun) float64 { return o.late }), "p99ms")
				b.ReportMetric(100*m(func(o overrun) float64 { return o.shed }), "shed%")
			})
		}
	}
}

// overrunTurn offers perSecond requests per second. 0 offers as many as are received, within
// a window.
func overrunTurn(b *testing.B, o Options, perSecond float64) (r overrun) {
	b.Helper()
	o.Listen, o.SlabBytes, o.NoGRO = loopback4, 64<<20, !*overrunChains
	s, err := openOne(o)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		s.Close()
		s.CloseSlab()
	}()
	const ids = 1 << 18
	sentAt := make([]int64, ids)
	var received, sent atomic.Uint64
	var stopping atomic.Bool
	var done sync.WaitGroup
	done.Go(func() {
		lockInFront()
		sendOverrun(b, s, perSecond, sentAt, &sent, &received, &stopping)
	})
	lockInFront()
	defer func() {
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 0)
		runtime.UnlockOSThread()
	}()
	came := make([]uint16, ids)
	batch := make([]ingest.Datagram, 256)
	var ages []int64
	var whole, inTime, sentBefore uint64
	var steps, looks float64
	var busyUntil int64
	start := shm.Now()
	from := start + int64(overrunWarm)
	end := from + int64(overrunLength)
	for now := start; now < end; now = shm.Now() {
		n, err := s.Receive(batch, now+int64(10*time.Millisecond))
		if err != nil {
			b.Fatal(err)
		}
		now = shm.Now()
		if sentBefore == 0 && now >= from {
			sentBefore = sent.Load()
		}
		for _, d := range batch[:n] {
			id := binary.LittleEndian.Uint32(s.slab.Bytes()[d.First.Offset+4:])
			if came[id]++; came[id] == overrunFragments && now >= from {
				age := now - sentAt[id]
				ages = append(ages, age)
				whole++
				if age <= int64(overrunSLO) {
					inTime++
				}
			}
		}
		for i := range batch[:n] {
			s.Release([]ingest.Span{batch[i].First})
			if batch[i].Rest.Length > 0 {
				s.Release([]ingest.Span{batch[i].Rest})
			}
		}
		received.Add(uint64(n))
		steps += float64(s.shedder.steps.Load())
		looks++
		// It sleeps instead of working, and shortens later pauses by what it overslept, so
		// that a busy machine changes little.
		busyUntil = max(busyUntil, now-int64(overrunOverslept)) + int64(n)*int64(*overrunPause)
		if rest := busyUntil - shm.Now(); rest > 0 {
			ts := unix.NsecToTimespec(rest)
			_ = unix.Nanosleep(&ts, nil)
		}
	}
	took := float64(shm.Now()-from) / 1e9
	r.offered = float64(sent.Load()-sentBefore) / took
	stopping.Store(true)
	done.Wait()
	r.whole, r.inTime = float64(whole)/took, float64(inTime)/took
	slices.Sort(ages)
	if len(ages) > 0 {
		r.late = float64(ages[len(ages)*99/100]) / 1e6
	}
	r.shed = 1 - steps/looks/filterSteps
	return r
}

// lockInFront locks a goroutine to a thread with the priority of the manager's receive
// threads, if the process has the privilege.
func lockInFront() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -15)
}

func sendOverrun(b *testing.B, s *Source, perSecond float64, sentAt []int64, sent, received *atomic.Uint64, stopping *atomic.Bool) {
	const datagram = wire.HeaderSize + overrunFragment
	train := wire.MaxDatagram / datagram
	type sender struct {
		conn    *net.UDPConn
		request []byte
		at      int
	}
	var all []*sender
	for range overrunClients {
		conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(s.LocalAddr()))
		if err != nil {
			b.Error(err)
			return
		}
		defer conn.Close()
		c := &sender{conn: conn, at: overrunFragments}
		for i := range overrunFragments {
			h := wire.FragmentHeader(wire.TypeData, 0, overrunFragments*overrunFragment, overrunFragment, i)
			p := make([]byte, datagram)
			h.Put(p)
			c.request = append(c.request, p...)
		}
		all = append(all, c)
	}
	control := make([]byte, unix.CmsgSpace(2))
	putSegment(control, datagram)
	start := shm.Now()
	next, datagrams := uint32(0), uint64(0)
	for i := 0; !stopping.Load(); i = (i + 1) % len(all) {
		c := all[i]
		if c.at == overrunFragments {
			for perSecond > 0 && !stopping.Load() && float64(next) > float64(shm.Now()-start)/1e9*perSecond {
				unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			}
			c.at = 0
			for p := range overrunFragments {
				binary.LittleEndian.PutUint32(c.request[p*datagram+4:], next)
			}
			sentAt[next] = shm.Now()
			next++
			sent.Add(1)
		}
		n := min(train, overrunFragments-c.at)
		for perSecond == 0 && !stopping.Load() && (datagrams+uint64(n)-received.Load())*datagram > 2<<20 {
			unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
		if _, _, err := c.conn.WriteMsgUDP(c.request[c.at*datagram:(c.at+n)*datagram], control, nil); err != nil {
			continue
		}
		datagrams += uint64(n)
		c.at += n
	}
}
