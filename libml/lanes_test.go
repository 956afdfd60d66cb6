package libml

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/shm"
)

// member is a test's member of lanes.
type member struct {
	*laneTurn
	woken int
}

func joinLanes(t *testing.T, s *lanes, scratch int64) *member {
	t.Helper()
	m := &member{}
	var err error
	if m.laneTurn, err = s.join(lane.Model{ScratchBytes: scratch}, func() { m.woken++ }); err != nil {
		t.Fatal(err)
	}
	return m
}

// due is a batch of 10 ns that must end at a time.
func due(at int64) lane.Job { return lane.Job{Deadline: at, Batch: 10, Requests: 1} }

func TestTurns(t *testing.T) {
	s, err := newLanes(1, lane.EDF, unlimited)
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := joinLanes(t, s, 1), joinLanes(t, s, 2), joinLanes(t, s, 3)
	if !a.take(0, due(1000)) {
		t.Fatal("first member may not begin in a free lane")
	}
	if !a.take(1, due(1000)) {
		t.Error("member whose turn it is may not begin")
	}
	if b.take(1, due(900)) || c.take(2, due(500)) {
		t.Fatal("two batches of a lane may run at once")
	}
	a.woken, b.woken, c.woken = 0, 0, 0
	a.end(10)
	if b.woken != 0 || c.woken != 1 {
		t.Errorf("woke b %d and c %d times, want only c, whose deadline is earlier", b.woken, c.woken)
	}
	if b.take(11, due(900)) {
		t.Error("b may begin in c's turn")
	}

	// c has no batch any more: its turn passes on.
	c.withdraw(12)
	if b.woken != 1 || !b.take(13, due(900)) {
		t.Errorf("woke b %d times, want its turn", b.woken)
	}
	if a.take(14, due(800)) {
		t.Error("a may begin in b's turn")
	}
	a.withdraw(15) // a waits no more

	// A member that leaves in its turn ends it.
	if c.take(16, due(800)) {
		t.Error("c may begin in b's turn")
	}
	b.leave(20)
	if !c.take(21, due(800)) || a.woken != 0 {
		t.Errorf("c has no turn after b left; a was woken %d times, want none", a.woken)
	}
	c.end(30)
	if c.job.Served != 10 || a.job.Served != 10 {
		t.Errorf("c has had %v and a %v, want 10 ns each", c.job.Served, a.job.Served)
	}
}

// TestWarmUpTurn warms up a member next to one that serves. Its work waits for its turn, and is left out
// if the member must end.
func TestWarmUpTurn(t *testing.T) {
	s, err := newLanes(1, lane.EDF, unlimited)
	if err != nil {
		t.Fatal(err)
	}
	a, b := joinLanes(t, s, 1), joinLanes(t, s, 1)
	p := &process{membership: membership{turn: b.laneTurn}, start: control.Start{Device: "GPU-fake"}}
	var running, ran atomic.Int32
	work := func() error {
		if running.Add(1) != 1 {
			t.Error("warm-up runs next to another member's batch")
		}
		ran.Add(1)
		running.Add(-1)
		return nil
	}
	take := func() {
		for !a.take(shm.Now(), lane.Job{Deadline: shm.Now() + int64(time.Second), Batch: time.Microsecond, Requests: 1}) {
			time.Sleep(time.Microsecond)
		}
		running.Add(1)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			if err := p.inTurn(0, work); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 100 {
		take()
		time.Sleep(10 * time.Microsecond)
		running.Add(-1)
		a.end(shm.Now())
	}
	<-done
	if ran.Load() != 100 {
		t.Errorf("%d runs of the warm-up, want 100", ran.Load())
	}

	take()
	p.exit.request()
	if err := p.inTurn(0, work); err != nil || ran.Load() != 100 {
		t.Errorf("%d runs of a member that must end, %v; want no more", ran.Load()-100, err)
	}
	running.Add(-1)
	a.end(shm.Now())
	take() // b does not wait any more
	a.end(shm.Now())
}

// TestTurnsFair starts a member behind one that has run. The policy fair gives them equal time.
func TestTurnsFair(t *testing.T) {
	s, err := newLanes(1, lane.FAIR, unlimited)
	if err != nil {
		t.Fatal(err)
	}
	a := joinLanes(t, s, 1)
	a.take(0, due(math.MaxInt64))
	a.end(1000)
	b := joinLanes(t, s, 1)
	now := int64(1000)
	for range 10 {
		first, second := a.take(now, due(math.MaxInt64)), b.take(now, due(math.MaxInt64))
		if first == second {
			t.Fatalf("turn of a: %v, of b: %v, want that of one", first, second)
		}
		now += 10
		if first {
			a.end(now)
		} else {
			b.end(now)
		}
	}
	if ran, joined := a.job.Served-1000, b.job.Served-1000; ran != 50 || joined != 50 {
		t.Errorf("members had %v and %v after the second joined, want 50 ns each", ran, joined)
	}
}

func TestLanes(t *testing.T) {
	if _, err := newLanes(1, "lifo", unlimited); err == nil || !strings.Contains(err.Error(), "lifo") {
		t.Errorf("unknown policy: %v", err)
	}
	s, err := newLanes(2, "", unlimited)
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := joinLanes(t, s, 100), joinLanes(t, s, 10), joinLanes(t, s, 50)
	if a.of == b.of || c.of != a.of {
		t.Error("want a lane for a, another for b, and c in the lane that is large enough")
	}
	if !a.take(0, due(1000)) || !b.take(0, due(1000)) || c.take(0, due(1000)) {
		t.Error("want one batch at a time in each lane")
	}
	var none *laneTurn
	if !none.take(0, due(0)) {
		t.Error("process without a worker may not begin")
	}
	none.end(0)
	none.withdraw(0)
	none.leave(0)
}

// TestTurnsConcurrent runs each member in another goroutine. No two batches run at once, and all end.
func TestTurnsConcurrent(t *testing.T) {
	for _, policy := range lane.Names() {
		t.Run(policy, func(t *testing.T) {
			s, err := newLanes(1, policy, unlimited)
			if err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			var running sync.Mutex
			for range 8 {
				wake := make(chan struct{}, 1)
				member, err := s.join(lane.Model{}, func() {
					select {
					case wake <- struct{}{}:
					default:
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				all.Go(func() {
					began := time.Now()
					for i := range 1000 {
						job := due(int64(time.Since(began)) + 1000)
						for !member.take(int64(time.Since(began)), job) {
							<-wake
						}
						if !running.TryLock() {
							t.Error("two batches run at once")
							return
						}
						running.Unlock()
						if i%7 == 0 {
							member.withdraw(int64(time.Since(began)))
						} else {
							member.end(int64(time.Since(began)))
						}
					}
					member.leave(int64(time.Since(began)))
				})
			}
			all.Wait()
		})
	}
}

// TestTurnAllocations takes turns as often as a batch begins.
func TestTurnAllocations(t *testing.T) {
	s, err := newLanes(1, lane.EDF, unlimited)
	if err != nil {
		t.Fatal(err)
	}
	a, b := joinLanes(t, s, 1), joinLanes(t, s, 1)
	if n := allocations(100, func() {
		a.take(0, due(100))
		b.take(0, due(200))
		a.end(10)
		b.end(20)
	}); n > 0 {
		t.Errorf("a turn allocates %v times", n)
	}
}

// TestBalanceShared has two accounts of one guarantee.
func TestBalanceShared(t *testing.T) {
	var b balance
	face, fashion := &account{}, &account{}
	b.join(face, 0, 0.5, 100)
	b.join(fashion, 0, 0.5, 40)
	b.charge(0, 90)
	if !b.guaranteed(0) {
		t.Error("a balance of 100 is used up by 90")
	}
	b.charge(0, 30)
	if b.guaranteed(0) || b.wait(0) != 41 {
		t.Errorf("after 120 of 100, the wait is %v, want 41 ns: what one account used is missing in the other", b.wait(0))
	}
	b.leave(face)
	b.set(fashion, 1000, 0.5, 40)
	b.charge(1000, 40)
	if b.guaranteed(1000) {
		t.Error("the balance holds more than that of the account that is left")
	}
}
