package datapath

import (
	"context"
	"errors"
	"flag"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
)

var (
	overrunPause   = flag.Duration("overrun.pause", 4*time.Microsecond, "what a datagram costs the receiver of BenchmarkOverrunNode beside its copy")
	overrunBuffer  = flag.Int("overrun.buffer", 8<<20, "receive buffer of BenchmarkOverrunNode, in bytes")
	overrunSlots   = flag.Int("overrun.slots", 1024, "slots of BenchmarkOverrunNode")
	overrunClients = flag.Int("overrun.clients", 8, "clients of BenchmarkOverrunNode")
	overrunOffered = flag.Float64("overrun.offered", 1.5, "what is offered in BenchmarkOverrunNode, of what the receiver takes")
	overrunWanted  = flag.Duration("overrun.wanted", 0, "deadline that the clients of BenchmarkOverrunNode say in an extension, 0 for none")
	overrunLength  = flag.Duration("overrun.length", 6*time.Second, "how long BenchmarkOverrunNode measures, after 3 s")
)

// slowSource is a source whose receiver sleeps for each datagram, as if it had more to copy.
type slowSource struct {
	ingest.Source
	pause, busyUntil int64 // ns
}

// Receive is slow. If it oversleeps, it sleeps less later.
func (s *slowSource) Receive(batch []ingest.Datagram, deadline int64) (int, error) {
	if rest := s.busyUntil - shm.Now(); rest > 0 {
		ts := unix.NsecToTimespec(rest)
		_ = unix.Nanosleep(&ts, nil)
	}
	n, err := s.Source.Receive(batch, deadline)
	s.busyUntil = max(s.busyUntil, shm.Now()-int64(3*time.Millisecond)) + int64(n)*s.pause
	return n, err
}

// overrunPicture is the size of a picture in bytes; it takes 147 fragments.
const overrunPicture = 224 * 224 * 3

// overrunNode is a port with a slow receiver. It takes pictures of 150 KB and answers at once.
func overrunNode(t testing.TB, pause, objective time.Duration, slots, buffer int) *Port {
	t.Helper()
	n := loopback().(kernelNetwork)
	n.options.SlabBytes, n.options.RecvBuffer = 512<<20, buffer
	slow := wrap(open(t, n, 1), func(s ingest.Source) ingest.Source { return &slowSource{Source: s, pause: int64(pause)} })
	o := testOptions(1)
	o.RequestBytes, o.ResultBytes, o.Slots = overrunPicture, 64, slots
	o.Objective, o.Gather = objective, objective/4
	p, err := NewPort(slow, o)
	must.OK(t, err)
	q := p.Queue(0)
	p.Start(discard{})
	c := datapathtest.Attach(t, q, p.Geometry(), 1)
	q.HandOver(1)
	var stop atomic.Bool
	var done sync.WaitGroup
	done.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if owned, err := c.Acquire(shm.Now() + int64(datapathtest.Patience)); !owned || err != nil {
			t.Errorf("acquire: %v, %v", owned, err)
			return
		}
		taken := make([]uint32, 64)
		for !stop.Load() {
			c.Wait(shm.Now() + int64(10*time.Millisecond))
			n := c.Take(taken)
			if n == 0 {
				continue
			}
			c.Start(taken[:n])
			for _, slot := range taken[:n] {
				r := datapathtest.Honest(shm.Now()-4_000, copy(c.ResultBuffer(slot), make([]byte, 64)))
				r.Dispatched = max(r.Dispatched, c.Request(slot).Complete)
				r.Gathered, r.Inferred = max(r.Gathered, r.Dispatched), max(r.Inferred, r.Dispatched)
				c.Complete(slot, r)
			}
			c.Flush()
		}
	})
	t.Cleanup(func() {
		stop.Store(true)
		done.Wait()
		p.Stop()
		p.Close()
	})
	return p
}

// BenchmarkOverrunNode lets real clients send more than a node's receiver can take. It reports
// the answers with status ok per second, and those within 100 ms of their intended time.
func BenchmarkOverrunNode(b *testing.B) {
	const within = 100 * time.Millisecond
	p := overrunNode(b, *overrunPause, within, *overrunSlots, *overrunBuffer)
	capacity := 1 / (147 * overrunPause.Seconds())
	perSecond := *overrunOffered * capacity
	picture := make([]byte, overrunPicture)
	var from atomic.Int64
	from.Store(1 << 62)
	var mu sync.Mutex
	ends := map[string]float64{}
	var ages, busyAges []float64
	deliver := func(r *client.Result) {
		if shm.Nanos(r.Intended) < from.Load() {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		age := float64(r.Received.Sub(r.Intended)) / 1e6
		switch {
		case errors.Is(r.Err, client.ErrClosed):
		case r.Err != nil:
			ends[map[error]string{client.ErrUnanswered: "unanswered", client.ErrUnsent: "unsent"}[r.Err]]++
		case r.Status == client.StatusOK:
			ends["ok"]++
			ages = append(ages, age)
			if age <= float64(within)/1e6 {
				ends["intime"]++
			}
		default:
			ends[r.Status.String()]++
			if r.Status == client.StatusBusy {
				busyAges = append(busyAges, age)
			}
		}
	}
	var all []*client.Client
	for range *overrunClients {
		c, err := client.Dial(context.Background(), p.LocalAddr().String(), client.Options{QueueLimit: 8192, Deliver: deliver})
		must.OK(b, err)
		all = append(all, c)
	}
	start := shm.Now()
	begin, end := start+int64(3*time.Second), start+int64(3*time.Second)+int64(*overrunLength)
	sent := 0.
	sheds, looks := 0., 0.
	for i := 0; ; i++ {
		at := start + int64(float64(i)/perSecond*1e9)
		if at >= end {
			break
		}
		if rest := at - shm.Now(); rest > 0 {
			time.Sleep(time.Duration(rest))
		}
		if at >= begin {
			from.CompareAndSwap(1<<62, begin)
			sent++
		}
		if i%64 == 0 && at >= begin {
			sheds += p.sources.stats().Shedding
			looks++
		}
		_, err := all[i%len(all)].Send(picture, client.RequestOptions{Intended: shm.Time(at), Deadline: *overrunWanted})
		if err != nil && at >= begin {
			mu.Lock()
			ends["full"]++
			mu.Unlock()
		}
	}
	time.Sleep(2500 * time.Millisecond) // the client's timeout
	stats := client.Stats{}
	for _, c := range all {
		stats.Resends += c.Stats().Resends
		_ = c.Close()
	}
	mu.Lock()
	defer mu.Unlock()
	took := overrunLength.Seconds()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(sent/took, "sent/s")
	for _, k := range []string{"ok", "intime", "busy", "unanswered", "unsent", "full", "incomplete", "late", "failed"} {
		b.ReportMetric(ends[k]/took, k+"/s")
	}
	quantile := func(v []float64, q float64) float64 {
		slices.Sort(v)
		if len(v) == 0 {
			return 0
		}
		return v[int(float64(len(v)-1)*q)]
	}
	b.ReportMetric(quantile(ages, .5), "p50ms")
	b.ReportMetric(quantile(ages, .99), "p99ms")
	b.ReportMetric(quantile(busyAges, .99), "busyp99ms")
	b.ReportMetric(100*sheds/looks, "shed%")
	b.ReportMetric(float64(stats.Resends), "resends")
	s := p.Requests()
	b.Logf("aggregator: %+v", s)
	b.Logf("source: %+v", p.sources.stats())
}
