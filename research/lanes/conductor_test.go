package lanes

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/conductor"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/libml/residency"
	"github.com/penstock/penstock/shm"
)

// The times that BenchmarkConductor takes for an H200 (docs/adr/0030-evicting-weights.md). It runs slower by the
// factor slowly, so that the sleeps of this process are exact enough.
const (
	slowly      = 4
	evictTime   = 270 * time.Microsecond * slowly
	mapTime     = 350 * time.Microsecond * slowly
	bytesPerSec = 50e9 / slowly
)

// benchModels are the weights, in MiB, and the times of a batch of the eight architectures.
var benchModels = []struct {
	mib   int64
	batch time.Duration
}{
	{119, 250 * time.Microsecond}, {166, 1280 * time.Microsecond}, {7, 650 * time.Microsecond}, {49, 680 * time.Microsecond},
	{117, 1740 * time.Microsecond}, {48, 690 * time.Microsecond}, {270, 490 * time.Microsecond}, {280, 540 * time.Microsecond},
}

// BenchmarkConductor runs the conductor and a lane of 42 members, with 800 requests per second by Zipf's law and an
// objective of 25 ms. The members, and the bus that their loads share, are simulated in real time. It reports the
// requests in time and the loads per second.
func BenchmarkConductor(b *testing.B) {
	for _, memory := range []int64{1925, 1500, 1100} {
		for _, ahead := range []time.Duration{0, conductor.LoadAhead} {
			b.Run(fmt.Sprintf("%d MiB/ahead %v", memory, ahead), func(b *testing.B) {
				for range b.N {
					benchmarkConductor(b, memory<<20, ahead)
				}
			})
		}
	}
}

func benchmarkConductor(b *testing.B, memory int64, ahead time.Duration) {
	const members, rate, settle, lasts = 42, 800. / slowly, 20 * time.Second, 25 * time.Second
	l, err := gate.NewLanes(1, lane.EDF, memory)
	must.OK(b, err)
	c := conductor.New(l, ahead*slowly, func(err error) { b.Error(err) })
	defer c.Close()
	sum := 0.
	for n := range members {
		sum += 1 / float64(n+1)
	}
	began := shm.Now()
	run := benchRun{from: began + int64(settle), until: began + int64(settle+lasts)}
	var ended sync.WaitGroup
	for n, i := range rand.New(rand.NewPCG(1, 1)).Perm(members) {
		m := &benchMember{run: &run, wake: make(chan struct{}, 1), random: rand.New(rand.NewPCG(7, uint64(i)))}
		m.interval = float64(time.Second) * sum * float64(n+1) / rate
		model := benchModels[i%len(benchModels)]
		m.bytes, m.batch = model.mib<<20, model.batch*slowly
		if m.turn, err = l.Join(lane.Model{WeightsBytes: m.bytes}, m.notify); err != nil {
			b.Fatal(err)
		}
		m.residence = c.Join(began, conductor.Newcomer{Name: fmt.Sprint(i), WeightsBytes: m.bytes, Load: m.copyTime(), Exact: true, Wake: m.notify})
		m.residence.Serve(began, m.batch)
		m.next = began + m.gap()
		ended.Go(m.serve)
	}
	ended.Wait()
	b.ReportMetric(100*float64(run.inTime)/float64(run.requests), "%_in_time")
	b.ReportMetric(float64(run.loads)/lasts.Seconds()*slowly, "loads/s")
}

// benchRun counts what its members do between two times.
type benchRun struct {
	from, until             int64
	mu                      sync.Mutex // guards the rest
	requests, inTime, loads int
	copies                  int // at the moment
}

func (r *benchRun) count(now int64, requests, inTime, loads int) {
	if now < r.from {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests, r.inTime, r.loads = r.requests+requests, r.inTime+inTime, r.loads+loads
}

// copy waits as long as a copy takes that shares the bus with others.
func (r *benchRun) copy(left time.Duration) {
	copies := func(more int) int {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.copies += more
		return r.copies
	}
	copies(1)
	defer copies(-1)
	for left > 0 {
		n, began := time.Duration(copies(0)), time.Now()
		time.Sleep(min(time.Millisecond, left*n))
		left -= time.Since(began) / n
	}
}

// benchMember is a member that runs no model.
type benchMember struct {
	run       *benchRun
	turn      *gate.Place
	residence *conductor.Member
	wake      chan struct{}
	random    *rand.Rand
	bytes     int64
	batch     time.Duration
	interval  float64 // mean nanoseconds between two requests
	next      int64   // request
	pending   []int64 // deadlines
}

func (m *benchMember) notify() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *benchMember) gap() int64 { return int64(m.random.ExpFloat64() * m.interval) }

func (m *benchMember) copyTime() time.Duration {
	return time.Duration(float64(m.bytes) / bytesPerSec * float64(time.Second))
}

// wait waits until a time, the next request, or a wake.
func (m *benchMember) wait(until int64) {
	timer := time.NewTimer(time.Duration(min(until, m.next) - shm.Now()))
	defer timer.Stop()
	select {
	case <-m.wake:
	case <-timer.C:
	}
}

// take takes the requests that have come, and answers those that are late.
func (m *benchMember) take(now int64) {
	const objective = int64(25 * time.Millisecond * slowly)
	for ; m.next <= now; m.next += m.gap() {
		m.residence.Request(m.next)
		m.pending = append(m.pending, m.next+objective)
	}
	late := 0
	for late < len(m.pending) && m.pending[late] < now+int64(m.batch) {
		late++
	}
	m.pending = m.pending[late:]
	m.run.count(now, late, 0, 0)
}

// work is what loop.conduct reports.
func (m *benchMember) work(now int64) conductor.Work {
	w := conductor.Work{Waiting: len(m.pending)}
	if len(m.pending) == 0 {
		return w
	}
	w.Deadline = m.pending[0]
	for _, deadline := range m.pending {
		if deadline-int64(m.residence.Loading()+m.batch) >= now {
			w.Deadline = deadline
			break
		}
	}
	return w
}

// obey carries out the conductor's order.
func (m *benchMember) obey(began int64, order residency.Op) {
	if order == residency.Evict {
		time.Sleep(evictTime)
		m.residence.Evicted(shm.Now())
		return
	}
	time.Sleep(mapTime)
	m.run.copy(m.copyTime())
	now := shm.Now()
	m.residence.Loaded(now, 0, time.Duration(now-began))
	m.run.count(now, 0, 0, 1)
}

// serve is the loop of a member.
func (m *benchMember) serve() {
	for now := shm.Now(); now < m.run.until; now = shm.Now() {
		m.take(now)
		order, ok := m.residence.Observe(now, m.work(now))
		n := min(len(m.pending), 8)
		switch {
		case ok:
			m.obey(now, order)
		case n == 0:
			m.turn.Withdraw(now)
			m.wait(m.run.until)
		case !m.residence.Resident():
			m.turn.Withdraw(now)
			m.wait(m.pending[0] - int64(m.batch) + 1)
		case !m.turn.Take(now, lane.Job{Complete: m.pending[0], Deadline: m.pending[0], Batch: m.batch, Requests: n}):
			m.wait(m.pending[0] - int64(m.batch) + 1)
		default:
			time.Sleep(m.batch)
			done := shm.Now()
			m.turn.End(done)
			m.residence.Ran(done, m.batch)
			inTime := 0
			for _, deadline := range m.pending[:n] {
				if deadline >= done {
					inTime++
				}
			}
			m.run.count(done, n, inTime, 0)
			m.pending = m.pending[n:]
		}
	}
}
