package loop

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/shm"
)

// setAccount gives the loop another account. It shares the balance of the one before, unless c has another one.
func (h *harness) setAccount(l *Loop, c gate.Config) {
	before := l.Gate.Account
	if c.Balance == nil {
		c.Balance = before.Balance()
	}
	if c.Times == nil {
		c.Times = make([]time.Duration, l.Card.MaxBatch()+1)
	}
	c.Level, c.Framework, c.Terms, c.Size = h.level, demotable{h}, h.order.Load().Terms, 1
	l.Gate.Account = gate.NewAccount(shm.Now(), c)
	before.Close()
}

// times are those of an account's batches of n that take fixed + n * each.
func times(n int, fixed, each time.Duration) []time.Duration {
	t := make([]time.Duration, n+1)
	for n := range t[1:] {
		t[n+1] = fixed + time.Duration(n+1)*each
	}
	return t
}

// guarantee orders a guarantee, a part of the device, for batches of that level.
func (h *harness) guarantee(level budget.Level, guarantee float64) {
	h.level, h.share.Terms = level, gate.Terms{Level: level, Guarantee: guarantee}
}

// accounted returns a loop on a GPU whose function has a level and a guarantee. The
// guarantee is so small that only the test changes its balance.
func accounted(h *harness, f *functiontest.Fake) *Loop {
	h.TB.Helper()
	h.guarantee(3, 1e-8)
	l := h.loop(f)
	l.Queue.Expected = func(int) time.Duration { return time.Microsecond }
	return l
}

// refillBalance gives the balance as much as it may hold.
func (l *Loop) refillBalance() { l.Gate.Account.Balance().Charge(shm.Now(), -100*time.Hour) }

func (l *Loop) emptyBalance() {
	l.refillBalance()
	l.Gate.Account.Balance().Charge(shm.Now(), 50*time.Hour)
}

// beginOne takes the published requests and begins a batch.
func (l *Loop) beginOne(t *testing.T) {
	t.Helper()
	if l.take(); !l.mayBegin() {
		t.Fatal("no batch may begin")
	}
	if ok, _ := l.admit(); !ok {
		t.Fatal("no batch is admitted")
	}
	must.OK(t, l.begin())
}

// A batch beyond the guarantee runs on the stream of the lowest priority. The next batch
// within the guarantee runs on the function's own stream again.
func TestDemotion(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	l := accounted(h, f)
	for round, refill := range []bool{true, false, false, true, false, true} {
		if l.emptyBalance(); refill {
			l.refillBalance()
		}
		h.Publish(uint32(round), h.Picture(byte(round)), nil)
		l.beginOne(t)
		must.OK(t, l.finish())
		h.Answered(h.Replies(1)[0], h.Picture(byte(round)))
	}
	if want := []bool{false, true, true, false, true, false}; !slices.Equal(f.Demoted, want) {
		t.Errorf("demoted: %v, want %v", f.Demoted, want)
	}
	if f := l.Gate.Account.Figures(); f.Demoted <= 0 || f.Demoted >= f.Charged {
		t.Errorf("cost %v of the device, %v of it demoted, want a part", f.Charged, f.Demoted)
	}
}

// A batch within the guarantee begins next to a demoted one, ends before it, and is
// answered at once.
func TestOvertaking(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	l := accounted(h, f)
	l.emptyBalance()
	release := h.GPU.HoldDemoted()
	released := false
	t.Cleanup(func() {
		if !released {
			release()
		}
	})
	h.Publish(0, h.Picture(0), nil)
	l.beginOne(t)
	h.Publish(1, h.Picture(1), nil)
	if l.take(); l.mayBegin() {
		t.Fatal("a second demoted batch may begin")
	}
	for slot := uint32(1); slot < 5; slot++ {
		l.refillBalance()
		if slot > 1 {
			h.Publish(slot, h.Picture(byte(slot)), nil)
		}
		if slot == 1 && l.await() {
			t.Fatal("a batch is done that was held")
		}
		l.beginOne(t)
		if l.take(); l.mayBegin() {
			t.Fatal("a third batch may begin")
		}
		if !l.await() {
			t.Fatal("another batch may begin next to two")
		}
		must.OK(t, l.finish())
		if got := h.Replies(1); !slices.Equal(got, []uint32{slot}) {
			t.Fatalf("answered slot %d first, want %d", got, slot)
		}
		h.Answered(slot, h.Picture(byte(slot)))
	}
	h.Silent()
	release()
	released = true
	must.OK(t, l.finish())
	h.Answered(h.Replies(1)[0], h.Picture(0))
	if want := []int{0, 1, 1, 1, 1}; !slices.Equal(f.Slots, want) {
		t.Errorf("batches ran in slots %v, want %v", f.Slots, want)
	}
	if want := []bool{true, false, false, false, false}; !slices.Equal(f.Demoted, want) {
		t.Errorf("demoted: %v, want %v", f.Demoted, want)
	}
}

// If a demoted batch and one within the guarantee are in flight, either may end first.
func TestMixedFlights(t *testing.T) {
	for _, demotedFirst := range []bool{false, true} {
		h := newGPUHarness(t, functiontest.Card())
		h.streams = 2
		l := accounted(h, h.Fake())
		release := h.Hold() // the batch within the guarantee
		for slot := range uint32(2) {
			if l.refillBalance(); (slot == 0) == demotedFirst {
				l.emptyBalance()
			}
			h.Publish(slot, h.Picture(byte(slot)), nil)
			l.beginOne(t)
		}
		if !l.Queue.Mixed() || !l.await() {
			t.Fatal("no demoted batch is done next to another")
		}
		must.OK(t, l.finish())
		want := uint32(1)
		if demotedFirst {
			want = 0
		}
		h.Answered(h.Replies(1)[0], h.Picture(byte(want)))
		release()
		must.OK(t, l.finish())
		h.Answered(h.Replies(1)[0], h.Picture(byte(1-want)))
	}
}

// However much work there is, the work within the guarantee is at most the guarantee, the
// savings and one batch. It is not much less either.
func TestAccountOverload(t *testing.T) {
	const percent, cost = 20, 2 * time.Millisecond
	h := newGPUHarness(t, functiontest.Card())
	h.streams = 2
	h.guarantee(3, percent/100.)
	l := h.loop(h.Fake())
	l.early = false // each batch begins below

	fixedCost := func() { h.setAccount(l, gate.Config{Objective: 1, Exclusive: true, Times: times(8, cost, 0)}) } // two batches
	fixedCost()
	h.GPU.Late.Store(int64(200 * time.Microsecond))
	picture := h.Picture(1)
	slots := make([]uint32, h.Geometry.Slots)
	for slot := range h.Geometry.Slots {
		h.Publish(slot, picture, nil)
	}
	began := shm.Now()
	// The balance earns a limited time between two passes: the rest of a long delay is lost.
	const maxEarned = cost * 100 / percent
	earned, last := time.Duration(0), began
	f := h.framework.(*functiontest.Fake)
	// On a busy machine few batches may begin in that time, all of them within the guarantee.
	overloaded := func() bool { return slices.Contains(f.Demoted, true) || shm.Now()-began > int64(functiontest.Patience) }
	for shm.Now()-began < int64(300*time.Millisecond) || !overloaded() {
		now := shm.Now()
		earned += min(time.Duration(now-last), maxEarned)
		last = now
		for l.take(); l.mayBegin(); {
			fixedCost() // not the time of the fake
			if l.pick(); l.choice.Batch == 0 {
				continue
			}
			must.OK(t, l.begin())
		}
		if l.flights.count == 0 {
			continue
		}
		if !l.await() {
			continue
		}
		for _, slot := range h.finish(l, slots) {
			h.Publish(slot, picture, nil)
		}
	}
	for l.flights.count > 0 {
		must.OK(t, l.finish())
	}
	took := time.Duration(shm.Now() - began)
	guaranteed := time.Duration(0)
	for _, demoted := range f.Demoted {
		if !demoted {
			guaranteed += cost
		}
	}
	if most := took*percent/100 + 3*cost; guaranteed > most {
		t.Errorf("%v within the guarantee in %v, want at most %v", guaranteed, took, most)
	}
	if least := earned * percent / 100 / 2; guaranteed < least {
		t.Errorf("%v within the guarantee in %v that count, want at least %v", guaranteed, earned, least)
	}
	if !slices.Contains(f.Demoted, true) {
		t.Error("nothing was demoted in overload")
	}
}

func TestDemotionAllocations(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	h.streams = 2
	f := h.Fake()
	l := accounted(h, f)
	picture := h.Picture(1)
	slots := make([]uint32, h.Geometry.Slots)
	turn := func() {
		for slot := range uint32(8) {
			h.Publish(slot, picture, nil)
		}
		for got := 0; got < 8; {
			for l.take(); l.mayBegin(); {
				if l.pick(); l.choice.Batch == 0 {
					continue
				}
				l.begin()
				if l.refillBalance(); !l.flights.newest().Demoted {
					l.emptyBalance()
				}
			}
			if !l.await() {
				continue
			}
			got += len(h.finish(l, slots))
		}
	}
	if n := functiontest.Allocations(10, turn); n != 0 {
		t.Errorf("%v allocations in eight requests, want none", n)
	}
	if !slices.Contains(f.Demoted, true) || !slices.Contains(f.Demoted, false) {
		t.Errorf("demoted: %v, want some", f.Demoted)
	}
	h.Answered(0, picture)
}

// While demoted batches are slow, a request that one would answer late waits for the guarantee.
func TestWaitForGuarantee(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	l := accounted(h, f)
	l.Queue.Expected = func(int) time.Duration { return time.Millisecond }
	h.order.Store(&Share{Terms: gate.Terms{Guarantee: 0.10, Level: 3}})
	h.setAccount(l, gate.Config{Balance: &gate.Balance{}, Times: times(8, 0, time.Second)})
	l.Gate.Account.Balance().Charge(shm.Now(), 3*time.Second)
	for range 30 { // a demoted batch takes twelve seconds
		l.Queue.State = l.Queue.Rule.Next(l.Queue.State, batching.Observation{
			Batch: 1, Padded: 1, Demoted: true, Elapsed: 12000 * l.Queue.Typical(1), Ended: shm.Now(),
		})
	}
	h.Publish(0, h.Picture(0), func(r *shm.Request, _ []shm.Fragment) { r.Deadline = r.Complete + int64(5*time.Second) })
	if l.take(); !l.mayBegin() {
		t.Fatal("a request is not looked at")
	}
	if l.pick(); l.choice.Batch != 0 || len(l.Queue.Pending) != 1 {
		t.Fatalf("a demoted batch of %d begins, %d wait", l.choice.Batch, len(l.Queue.Pending))
	}
	if l.mayBegin() {
		t.Error("the same request is looked at again before there is a balance")
	}
	if until := l.waitUntil(); until <= shm.Now() {
		t.Error("the loop does not wait for the balance")
	}
	l.refillBalance()
	l.beginOne(t)
	must.OK(t, l.finish())
	h.Answered(h.Replies(1)[0], h.Picture(0))
	if want := []bool{false}; !slices.Equal(f.Demoted, want) {
		t.Errorf("demoted: %v, want %v", f.Demoted, want)
	}
}

// Without a level, priorities or guarantees, all batches run at one priority.
func TestNoDemotion(t *testing.T) {
	for _, c := range []struct {
		name    string
		edit    func(*harness, *functiontest.Fake)
		cost    bool // there is an account
		refused bool
	}{
		{"no level", func(*harness, *functiontest.Fake) {}, false, true},
		{"a framework with one stream per slot", func(h *harness, f *functiontest.Fake) { h.guarantee(3, 0.01); f.Fixed = true }, true, true},
		{"guarantees are given up", func(h *harness, _ *functiontest.Fake) { h.level = 3 }, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newGPUHarness(t, functiontest.Card())
			f := h.Fake()
			c.edit(h, f)
			l := h.loop(f)
			for round := range uint32(5) {
				h.Publish(round, h.Picture(1), nil)
				l.emptyBalance()
				l.beginOne(t)
				must.OK(t, l.finish())
				h.Answered(h.Replies(1)[0], h.Picture(1))
			}
			if slices.Contains(f.Demoted, true) {
				t.Errorf("demoted: %v, want none", f.Demoted)
			}
			if got := l.Gate.Account.Figures(); got.Charged > 0 != c.cost || got.Refused != c.refused {
				t.Errorf("batches cost %v of the device, and the framework refused %v; want %v and %v", got.Charged, got.Refused, c.cost, c.refused)
			}
		})
	}
}
