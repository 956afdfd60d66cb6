package serve

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/shm"
)

// setAccount gives the loop another account. It shares the balance of the one before, unless c has another one.
func (l *loop) setAccount(c gate.Config) {
	before := l.gate.Account
	if c.Balance == nil {
		c.Balance = before.Balance()
	}
	if c.Times == nil {
		c.Times = make([]time.Duration, l.p.card.MaxBatch()+1)
	}
	c.Level, c.Framework, c.Terms, c.Size = l.p.level, demotable{l.p}, l.p.orders.present().terms, 1
	l.gate.Account = gate.NewAccount(shm.Now(), c)
	before.Close()
	l.reporter.account = l.gate.Account
}

// times are those of an account's batches of n that take fixed + n * each.
func times(n int, fixed, each time.Duration) []time.Duration {
	t := make([]time.Duration, n+1)
	for n := range t[1:] {
		t[n+1] = fixed + time.Duration(n+1)*each
	}
	return t
}

// accounted returns a loop on a GPU whose function has a level and a guarantee. The
// guarantee is so small that only the test changes its balance.
func accounted(h *harness, f *fake) *loop {
	h.t.Helper()
	h.wake = control.Order{Level: 3, GuaranteePercent: 1e-6}
	l := h.loop(f)
	l.queue.Expected = func(int) time.Duration { return time.Microsecond }
	return l
}

// refillBalance gives the balance as much as it may hold.
func (l *loop) refillBalance() { l.gate.Account.Balance().Charge(shm.Now(), -100*time.Hour) }

func (l *loop) emptyBalance() {
	l.refillBalance()
	l.gate.Account.Balance().Charge(shm.Now(), 50*time.Hour)
}

// beginOne takes the published requests and begins a batch.
func (l *loop) beginOne(t *testing.T) {
	t.Helper()
	if l.take(); !l.mayBegin() {
		t.Fatal("no batch may begin")
	}
	if l.pick(); l.choice.Batch == 0 {
		t.Fatal("no batch was picked")
	}
	must.OK(t, l.begin())
}

// A batch beyond the guarantee runs on the stream of the lowest priority. The next batch
// within the guarantee runs on the function's own stream again.
func TestDemotion(t *testing.T) {
	h := newGPUHarness(t, testCard())
	f := h.fake()
	l := accounted(h, f)
	for round, refill := range []bool{true, false, false, true, false, true} {
		if l.emptyBalance(); refill {
			l.refillBalance()
		}
		h.publish(uint32(round), h.picture(byte(round)), nil)
		l.beginOne(t)
		must.OK(t, l.finish())
		h.answered(h.replies(1)[0], h.picture(byte(round)))
	}
	if want := []bool{false, true, true, false, true, false}; !slices.Equal(f.demoted, want) {
		t.Errorf("demoted: %v, want %v", f.demoted, want)
	}
	if f := l.gate.Account.Figures(); f.Demoted <= 0 || f.Demoted >= f.Charged {
		t.Errorf("cost %v of the device, %v of it demoted, want a part", f.Charged, f.Demoted)
	}
}

// A batch within the guarantee begins next to a demoted one, ends before it, and is
// answered at once.
func TestOvertaking(t *testing.T) {
	h := newGPUHarness(t, testCard())
	f := h.fake()
	l := accounted(h, f)
	l.emptyBalance()
	release := h.gpu.HoldDemoted()
	released := false
	t.Cleanup(func() {
		if !released {
			release()
		}
	})
	h.publish(0, h.picture(0), nil)
	l.beginOne(t)
	h.publish(1, h.picture(1), nil)
	if l.take(); l.mayBegin() {
		t.Fatal("a second demoted batch may begin")
	}
	for slot := uint32(1); slot < 5; slot++ {
		l.refillBalance()
		if slot > 1 {
			h.publish(slot, h.picture(byte(slot)), nil)
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
		if got := h.replies(1); !slices.Equal(got, []uint32{slot}) {
			t.Fatalf("answered slot %d first, want %d", got, slot)
		}
		h.answered(slot, h.picture(byte(slot)))
	}
	h.silent()
	release()
	released = true
	must.OK(t, l.finish())
	h.answered(h.replies(1)[0], h.picture(0))
	if want := []int{0, 1, 1, 1, 1}; !slices.Equal(f.slots, want) {
		t.Errorf("batches ran in slots %v, want %v", f.slots, want)
	}
	if want := []bool{true, false, false, false, false}; !slices.Equal(f.demoted, want) {
		t.Errorf("demoted: %v, want %v", f.demoted, want)
	}
}

// If a demoted batch and one within the guarantee are in flight, either may end first.
func TestMixedFlights(t *testing.T) {
	for _, demotedFirst := range []bool{false, true} {
		h := newGPUHarness(t, testCard())
		h.streams = 2
		l := accounted(h, h.fake())
		release := h.hold() // the batch within the guarantee
		for slot := range uint32(2) {
			if l.refillBalance(); (slot == 0) == demotedFirst {
				l.emptyBalance()
			}
			h.publish(slot, h.picture(byte(slot)), nil)
			l.beginOne(t)
		}
		if !l.queue.Mixed() || !l.await() {
			t.Fatal("no demoted batch is done next to another")
		}
		must.OK(t, l.finish())
		want := uint32(1)
		if demotedFirst {
			want = 0
		}
		h.answered(h.replies(1)[0], h.picture(byte(want)))
		release()
		must.OK(t, l.finish())
		h.answered(h.replies(1)[0], h.picture(byte(1-want)))
	}
}

// Without a level, priorities or guarantees, all batches run at one priority.
func TestNoDemotion(t *testing.T) {
	for _, c := range []struct {
		name  string
		level budget.Level
		gpu   func(*harness)
		fake  func(*fake)
		order *control.Order // after the wake
		cost  bool           // there is an account
		want  control.Unprotected
	}{
		{name: "no level"},
		{name: "a GPU without priorities", level: 3, gpu: func(h *harness) { h.gpu.NoPriorities.Store(true) }, want: control.UnprotectedByDevice},
		{name: "a framework with one stream per slot", level: 3, fake: func(f *fake) { f.fixed = true }, cost: true, want: control.UnprotectedByFramework},
		{name: "guarantees are given up", level: 3, order: &control.Order{SharePercent: 50}, cost: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newGPUHarness(t, testCard())
			f := h.fake()
			if c.gpu != nil {
				c.gpu(h)
			}
			if c.fake != nil {
				c.fake(f)
			}
			h.wake = control.Order{Level: c.level, GuaranteePercent: 1}
			l := h.loop(f)
			if c.order != nil {
				l.p.orders.follow(*c.order)
			}
			for round := range uint32(5) {
				h.publish(round, h.picture(1), nil)
				l.emptyBalance()
				l.beginOne(t)
				must.OK(t, l.finish())
				h.answered(h.replies(1)[0], h.picture(1))
			}
			if slices.Contains(f.demoted, true) {
				t.Errorf("demoted: %v, want none", f.demoted)
			}
			if got := l.reporter.unprotected(l.gate.Account.Figures().Refused); got != c.want {
				t.Errorf("unprotected by %q, want %q", got, c.want)
			}
			if cost := l.gate.Account.Figures().Charged; cost > 0 != c.cost {
				t.Errorf("batches cost %v of the device", cost)
			}
		})
	}
}

// However much work there is, the work within the guarantee is at most the guarantee, the
// savings and one batch. It is not much less either.
func TestAccountOverload(t *testing.T) {
	const percent, cost = 20, 2 * time.Millisecond
	h := newGPUHarness(t, testCard())
	h.streams = 2
	h.wake = control.Order{Level: 3, GuaranteePercent: percent}
	l := h.loop(h.fake())
	fixedCost := func() { l.setAccount(gate.Config{Objective: 1, Exclusive: true, Times: times(8, cost, 0)}) } // two batches
	fixedCost()
	h.gpu.Late.Store(int64(200 * time.Microsecond))
	picture := h.picture(1)
	slots := make([]uint32, h.geometry.Slots)
	for slot := range h.geometry.Slots {
		h.publish(slot, picture, nil)
	}
	began := shm.Now()
	// What the balance can earn between two passes is limited: the rest of a long delay is lost.
	const maxEarned = cost * 100 / percent
	earned, last := time.Duration(0), began
	f := l.p.framework.(*fake)
	// On a busy machine few batches may begin in that time, all of them within the guarantee.
	overloaded := func() bool { return slices.Contains(f.demoted, true) || shm.Now()-began > int64(patience) }
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
			h.publish(slot, picture, nil)
		}
	}
	for l.flights.count > 0 {
		must.OK(t, l.finish())
	}
	took := time.Duration(shm.Now() - began)
	guaranteed := time.Duration(0)
	for _, demoted := range f.demoted {
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
	if !slices.Contains(f.demoted, true) {
		t.Error("nothing was demoted in overload")
	}
}

// A process measures costs before it serves, if there are guarantees.
func TestMeasureAlone(t *testing.T) {
	h := newGPUHarness(t, testCard())
	h.wake = control.Order{Level: 1, GuaranteePercent: 50}
	h.gpu.Late.Store(int64(time.Millisecond))
	l := h.loop(h.fake())
	for _, n := range h.card.Batches {
		if alone := l.gate.Account.Time(n); alone < 100*time.Microsecond {
			t.Errorf("a batch of %d takes %v alone, want about 1 ms between several", n, alone)
		}
	}
}

func TestDemotionAllocations(t *testing.T) {
	h := newGPUHarness(t, testCard())
	h.streams = 2
	f := h.fake()
	l := accounted(h, f)
	picture := h.picture(1)
	slots := make([]uint32, h.geometry.Slots)
	turn := func() {
		for slot := range uint32(8) {
			h.publish(slot, picture, nil)
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
	if n := allocations(10, turn); n != 0 {
		t.Errorf("%v allocations in eight requests, want none", n)
	}
	if !slices.Contains(f.demoted, true) || !slices.Contains(f.demoted, false) {
		t.Errorf("demoted: %v, want some", f.demoted)
	}
	h.answered(0, picture)
}

// While demoted batches are slow, a request that the guarantee will serve in time waits for
// it. A request that it cannot serve in time does not.
func TestReserve(t *testing.T) {
	h := newGPUHarness(t, testCard())
	f := h.fake()
	l := accounted(h, f)
	l.queue.Expected = func(int) time.Duration { return time.Millisecond }
	l.p.orders.share.Store(&shareOrder{terms: gate.Terms{Guarantee: 0.10, Level: 3}})
	l.setAccount(gate.Config{Balance: &gate.Balance{}, Times: times(8, 0, time.Second)}) // one batch every ten seconds
	l.gate.Account.Balance().Charge(shm.Now(), 3*time.Second)                            // the first in ten seconds
	for range 30 {                                                                       // a demoted one takes twelve
		l.queue.State = l.queue.Rule.Next(l.queue.State, batching.Observation{
			Batch: 1, Padded: 1, Demoted: true, Elapsed: 12000 * l.queue.Typical(1), Ended: shm.Now(),
		})
	}
	l.queue.State.Limit = 1
	due := func(r *shm.Request, _ []shm.Fragment) { r.Deadline = r.Complete + int64(15*time.Second) }
	h.publish(0, h.picture(0), due)
	if l.take(); !l.mayBegin() {
		t.Fatal("a request is not looked at")
	}
	if l.pick(); l.choice.Batch != 0 || l.choice.Reserved != 1 {
		t.Fatalf("a demoted batch of %d begins, %d wait", l.choice.Batch, l.choice.Reserved)
	}
	if l.mayBegin() {
		t.Error("the same request is looked at again before there is a balance")
	}
	if until := l.waitUntil(); until <= shm.Now() {
		t.Error("the loop does not wait for the balance")
	}
	// The guarantee is too late for the second request.
	h.publish(1, h.picture(1), due)
	l.beginOne(t)
	must.OK(t, l.finish())
	if got := h.replies(1); !slices.Equal(got, []uint32{1}) || len(l.queue.Pending) != 1 {
		t.Fatalf("answered %v, and %d wait; want 1 and one", got, len(l.queue.Pending))
	}
	h.answered(1, h.picture(1))
	l.refillBalance()
	l.beginOne(t)
	must.OK(t, l.finish())
	h.answered(h.replies(1)[0], h.picture(0))
	if want := []bool{true, false}; !slices.Equal(f.demoted, want) {
		t.Errorf("demoted: %v, want %v", f.demoted, want)
	}
}

// TestAccountEnds drains members of a worker before they get the ring.
func TestAccountEnds(t *testing.T) {
	lanes, err := gate.NewLanes(1, "", gate.Unlimited)
	must.OK(t, err)
	w := &worker{name: "cold", lanes: lanes}
	h := newGPUHarness(t, testCard())
	h.worker = w
	f := h.fake()
	c := h.start(1, f.build, nil)
	c.await(control.Loaded)
	c.order(control.Order{Do: control.DoWake, Level: 3, GuaranteePercent: 30})
	c.await(control.Ready)
	accounts := w.balance.Accounts
	if n := accounts(); n != 1 {
		t.Errorf("%d accounts share the balance, want that of the member", n)
	}
	c.order(control.Order{Do: control.DoDrain})
	must.OK(t, c.end())
	if n := accounts(); n != 0 {
		t.Errorf("%d accounts of ended members share the balance", n)
	}
}
