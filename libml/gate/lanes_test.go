package gate

import (
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/lane"
)

// member is a test's member of lanes.
type member struct {
	*Place
	woken int
}

func joinLanes(t *testing.T, s *Lanes, scratch int64) *member {
	t.Helper()
	m := &member{}
	var err error
	if m.Place, err = s.Join(lane.Model{ScratchBytes: scratch}, func() { m.woken++ }); err != nil {
		t.Fatal(err)
	}
	return m
}

// due is a batch of 10 ns that must end at a time.
func due(at int64) lane.Job { return lane.Job{Deadline: at, Batch: 10, Requests: 1} }

func TestTurns(t *testing.T) {
	s, err := NewLanes(1, lane.EDF, Unlimited)
	must.OK(t, err)
	a, b, c := joinLanes(t, s, 1), joinLanes(t, s, 2), joinLanes(t, s, 3)
	if !a.Take(0, due(1000)) {
		t.Fatal("first member may not begin in a free lane")
	}
	if !a.Take(1, due(1000)) {
		t.Error("member whose turn it is may not begin")
	}
	if b.Take(1, due(900)) || c.Take(2, due(500)) {
		t.Fatal("two batches of a lane may run at once")
	}
	a.woken, b.woken, c.woken = 0, 0, 0
	a.End(10)
	if b.woken != 0 || c.woken != 1 {
		t.Errorf("woke b %d and c %d times, want only c, whose deadline is earlier", b.woken, c.woken)
	}
	if b.Take(11, due(900)) {
		t.Error("b may begin in c's turn")
	}

	// c has no batch any more: its turn passes on.
	c.Withdraw(12)
	if b.woken != 1 || !b.Take(13, due(900)) {
		t.Errorf("woke b %d times, want its turn", b.woken)
	}
	if a.Take(14, due(800)) {
		t.Error("a may begin in b's turn")
	}
	a.Withdraw(15) // a waits no more

	// A member that leaves in its turn ends it.
	if c.Take(16, due(800)) {
		t.Error("c may begin in b's turn")
	}
	b.Leave(20)
	if !c.Take(21, due(800)) || a.woken != 0 {
		t.Errorf("c has no turn after b left; a was woken %d times, want none", a.woken)
	}
	c.End(30)
	if c.job.Served != 10 || a.job.Served != 10 {
		t.Errorf("c has had %v and a %v, want 10 ns each", c.job.Served, a.job.Served)
	}
}

// TestTurnsFair starts a member behind one that has run. The policy fair gives them equal time.
func TestTurnsFair(t *testing.T) {
	s, err := NewLanes(1, lane.FAIR, Unlimited)
	must.OK(t, err)
	a := joinLanes(t, s, 1)
	a.Take(0, due(math.MaxInt64))
	a.End(1000)
	b := joinLanes(t, s, 1)
	now := int64(1000)
	for range 10 {
		first, second := a.Take(now, due(math.MaxInt64)), b.Take(now, due(math.MaxInt64))
		if first == second {
			t.Fatalf("turn of a: %v, of b: %v, want that of one", first, second)
		}
		now += 10
		if first {
			a.End(now)
		} else {
			b.End(now)
		}
	}
	if ran, joined := a.job.Served-1000, b.job.Served-1000; ran != 50 || joined != 50 {
		t.Errorf("members had %v and %v after the second joined, want 50 ns each", ran, joined)
	}
}

func TestLanes(t *testing.T) {
	if _, err := NewLanes(1, "lifo", Unlimited); err == nil || !strings.Contains(err.Error(), "lifo") {
		t.Errorf("unknown policy: %v", err)
	}
	s, err := NewLanes(2, "", Unlimited)
	must.OK(t, err)
	a, b, c := joinLanes(t, s, 100), joinLanes(t, s, 10), joinLanes(t, s, 50)
	if a.of == b.of || c.of != a.of {
		t.Error("want a lane for a, another for b, and c in the lane that is large enough")
	}
	if !a.Take(0, due(1000)) || !b.Take(0, due(1000)) || c.Take(0, due(1000)) {
		t.Error("want one batch at a time in each lane")
	}
	var none *Place
	if !none.Take(0, due(0)) {
		t.Error("process without a worker may not begin")
	}
	none.End(0)
	none.Withdraw(0)
	none.Leave(0)
}

// TestTurnsConcurrent runs each member in another goroutine. No two batches run at once, and all end.
func TestTurnsConcurrent(t *testing.T) {
	for _, policy := range lane.Names() {
		t.Run(policy, func(t *testing.T) {
			s, err := NewLanes(1, policy, Unlimited)
			must.OK(t, err)
			var all sync.WaitGroup
			var running sync.Mutex
			for range 8 {
				wake := make(chan struct{}, 1)
				member, err := s.Join(lane.Model{}, func() {
					select {
					case wake <- struct{}{}:
					default:
					}
				})
				must.OK(t, err)
				all.Go(func() {
					began := time.Now()
					for i := range 1000 {
						job := due(int64(time.Since(began)) + 1000)
						for !member.Take(int64(time.Since(began)), job) {
							<-wake
						}
						if !running.TryLock() {
							t.Error("two batches run at once")
							return
						}
						running.Unlock()
						if i%7 == 0 {
							member.Withdraw(int64(time.Since(began)))
						} else {
							member.End(int64(time.Since(began)))
						}
					}
					member.Leave(int64(time.Since(began)))
				})
			}
			all.Wait()
		})
	}
}

// TestTurnAllocations takes turns as often as a batch begins.
func TestTurnAllocations(t *testing.T) {
	s, err := NewLanes(1, lane.EDF, Unlimited)
	must.OK(t, err)
	a, b := joinLanes(t, s, 1), joinLanes(t, s, 1)
	if n := testing.AllocsPerRun(100, func() {
		a.Take(0, due(100))
		b.Take(0, due(200))
		a.End(10)
		b.End(20)
	}); n > 0 {
		t.Errorf("a turn allocates %v times", n)
	}
}

// TestBalanceShared has two accounts of one guarantee.
func TestBalanceShared(t *testing.T) {
	var b Balance
	face, fashion := &Account{}, &Account{}
	b.join(face, 0, 0.5, 100)
	b.join(fashion, 0, 0.5, 40)
	b.Charge(0, 90)
	if !b.guaranteed(0) {
		t.Error("a balance of 100 is used up by 90")
	}
	b.Charge(0, 30)
	if b.guaranteed(0) || b.wait(0) != 41 {
		t.Errorf("after 120 of 100, the wait is %v, want 41 ns: what one account used is missing in the other", b.wait(0))
	}
	b.leave(face)
	b.set(fashion, 1000, 0.5, 40)
	b.Charge(1000, 40)
	if b.guaranteed(1000) {
		t.Error("the balance holds more than that of the account that is left")
	}
}
