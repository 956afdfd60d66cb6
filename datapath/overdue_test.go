package datapath

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/internal/testing/logtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// overdueObjective is the objective of newOverdueHarness.
const overdueObjective = 60 * time.Millisecond

// newOverdueHarness is a port with an objective of 60 ms; its control loop is only a tick.
func newOverdueHarness(t *testing.T) *harness {
	o := testOptions(1)
	o.Objective, o.Gather = overdueObjective, overdueObjective/4
	b := newHarnessOn(t, open(t, loopback(), 1), o)
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		for {
			select {
			case <-time.After(50 * time.Millisecond):
				b.Queue(0).Rouse()
			case <-done:
				return
			}
		}
	}()
	return b
}

func TestOverdue(t *testing.T) {
	const n = 8
	for _, row := range []struct {
		name    string
		process func(b *harness) (back func()) // its actions before its stop; back runs after it
	}{
		{"no process", func(b *harness) func() {
			return func() {
				c := b.owner(0, 1)
				c.Answer(c.Await(n), []byte("late"))
			}
		}},
		{"requests taken", func(b *harness) func() {
			c := b.owner(0, 1)
			slots := c.Await(n)
			return func() { c.Answer(slots, []byte("late")) }
		}},
		{"requests started", func(b *harness) func() {
			c := b.owner(0, 1)
			slots := c.Await(n)
			c.Start(slots)
			return func() { c.Answer(slots, []byte("late")) }
		}},
		{"process dies", func(b *harness) func() {
			c := b.owner(0, 1)
			c.Start(c.Await(n))
			return func() {
				b.Queue(0).Abandon(1)
			}
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newOverdueHarness(t)
			q := b.Queue(0)
			var log logtest.Log
			b.mu.Lock()
			q.log = zerolog.New(&log)
			b.mu.Unlock()
			s := b.dial()
			for tag := range n {
				s.Send(uint64(tag))
			}
			back := row.process(b)
			for range n {
				e := s.Next()
				if e.Status != client.StatusLate {
					t.Errorf("request %d is %v, want late", e.Tag, e.Status)
				}
				if after := e.Stages.Aggregate + e.Stages.Queue - overdueObjective; after < 0 {
					t.Errorf("request %d was answered %v before its deadline", e.Tag, -after)
				}
			}
			if got := b.InFlight(); got != n {
				t.Errorf("%d slots in flight, want %d until the process returns them", got, n)
			}

			back()
			b.eventually("the slots are free", func() bool { return b.InFlight() == 0 })
			if r := b.counters.results[wire.StatusOK].Load() + b.counters.results[wire.StatusFailed].Load(); r != 0 {
				t.Errorf("%d requests were answered twice", r)
			}
			if replies, late := b.counters.replied.Load(), b.counters.results[wire.StatusLate].Load(); replies != n || late != n {
				t.Errorf("%d replies, %d of them late; want %d", replies, late, n)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if q.window.Answered != n {
				t.Errorf("%d answers in the window, want %d", q.window.Answered, n)
			}
			if got := strings.Count(log.String(), "requests end as late"); got != 1 {
				t.Errorf("logged %d times that no process answers, want once", got)
			}
		})
	}
}

// TestOverdueTimes checks the rules that bring an answer within 50 ms of the deadline: at
// most 30 ms of grace, and a check every 20 ms.
func TestOverdueTimes(t *testing.T) {
	const ms = int64(time.Millisecond)
	now := shm.Now()
	geometry := shm.Geometry{Slots: 8, MaxFragments: 1, ResultBytes: 64, PoolBytes: 8 * 64}
	table, err := shm.NewTable("test", geometry)
	must.OK(t, err)
	defer table.Close()

	for _, row := range []struct {
		name      string
		deadlines []int64 // of requests in flight, after now
		edit      func(p *Port)
		slots     []uint32
		wake      int64 // when the reply thread checks next, after now
		rests     bool
	}{
		{"nothing in flight", nil, nil, nil, 1000 * ms, true},
		{"a healthy process may answer yet", []int64{-24 * ms, 500 * ms}, nil, nil, ms, false},
		{"past the grace", []int64{-30 * ms, 500 * ms, -31 * ms}, nil, []uint32{0, 2}, 20 * ms, false},
		{"a later request may be due earlier", []int64{500 * ms}, nil, nil, 20 * ms, false},
		{"soon due", []int64{500 * ms, -15 * ms}, nil, nil, 10 * ms, false},
		{"answered before", []int64{-30 * ms}, func(p *Port) { p.flights[0].answered = true }, nil, 20 * ms, false},
		{"of another queue", []int64{-30 * ms, -30 * ms}, func(p *Port) { p.flights[0].queue.inFlight--; p.flights[0].queue = &Queue{} }, []uint32{1}, 20 * ms, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := &Port{table: table, flights: make([]flight, geometry.Slots)}
			q := &Queue{port: p, inFlight: len(row.deadlines)}
			for slot, deadline := range row.deadlines {
				p.flights[slot].queue = q
				table.SetRequest(uint32(slot), shm.Request{Deadline: now + deadline})
			}
			if row.edit != nil {
				row.edit(p)
			}
			turn := replyTurn{queue: q}
			slots, next := q.overdue(now, nil)
			if turn.nextOverdue = next; !slices.Equal(slots, row.slots) {
				t.Errorf("slots %v are overdue, want %v", slots, row.slots)
			}
			// The grace may be up to 5 ms shorter than 30 ms.
			wake := turn.sleepUntil(now) - now
			if wake > row.wake || wake < min(row.wake, ms) || q.resting.Load() != row.rests {
				t.Errorf("checks after %v, rests: %v; want %v, %v", time.Duration(wake), q.resting.Load(), time.Duration(row.wake), row.rests)
			}
		})
	}
}

// TestOverdueRouse wakes a reply thread that rests, if a request is in flight.
func TestOverdueRouse(t *testing.T) {
	for _, row := range []struct {
		name    string
		rests   bool
		flying  int
		patient bool // the thread sleeps on
	}{
		{"rests", true, 1, false},
		{"rests, nothing in flight", true, 0, true},
		{"checks anyway", false, 1, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			channel, err := shm.NewChannel("test", shm.Geometry{Slots: 8, MaxFragments: 1, ResultBytes: 64, PoolBytes: 8 * 64})
			must.OK(t, err)
			defer channel.Close()
			q := &Queue{port: &Port{}, channel: channel, inFlight: row.flying}
			q.resting.Store(row.rests)
			q.Rouse() // a thread that sleeps next is woken, too

			sleep := datapathtest.Patience
			if row.patient {
				sleep = 20 * time.Millisecond
			}
			until := shm.Now() + int64(sleep)
			must.Get(channel.Receive(make([]uint32, 1), until))(t)
			if slept := shm.Now() >= until; slept != row.patient {
				t.Errorf("the thread slept on: %v, want %v", slept, row.patient)
			}
		})
	}
}
