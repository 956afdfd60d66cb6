package libml

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// accounted returns a loop on a GPU whose function has a level and a guarantee. The
// guarantee is so small that only the test changes its balance.
func accounted(h *harness, f *fake) *loop {
	h.t.Helper()
	h.wake = control.Order{Level: 3, GuaranteePercent: 1e-6}
	l := h.loop(f)
	l.queue.Expected = func(int) time.Duration { return time.Microsecond }
	return l
}

func (l *loop) refillBalance() {
	l.account.balance.left = budget.NewBalance(shm.Now(), l.account.guarantee(), time.Hour)
}

func (l *loop) emptyBalance() { l.account.balance.charge(shm.Now(), 2*time.Hour) }

// beginOne takes the published requests and begins a batch.
func (l *loop) beginOne(t *testing.T) {
	t.Helper()
	if l.take(); !l.mayBegin() {
		t.Fatal("no batch may begin")
	}
	if l.pick(); l.choice.Batch == 0 {
		t.Fatal("no batch was picked")
	}
	if err := l.begin(); err != nil {
		t.Fatal(err)
	}
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
		if err := l.finish(); err != nil {
			t.Fatal(err)
		}
		h.answered(h.replies(1)[0], h.picture(byte(round)))
	}
	if want := []bool{false, true, true, false, true, false}; !slices.Equal(f.demoted, want) {
		t.Errorf("demoted: %v, want %v", f.demoted, want)
	}
	if all, demoted := l.account.charged.Load(), l.account.demoted.Load(); demoted <= 0 || demoted >= all {
		t.Errorf("cost %d of the device, %d of it demoted, want a part", all, demoted)
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
		if err := l.finish(); err != nil {
			t.Fatal(err)
		}
		if got := h.replies(1); !slices.Equal(got, []uint32{slot}) {
			t.Fatalf("answered slot %d first, want %d", got, slot)
		}
		h.answered(slot, h.picture(byte(slot)))
	}
	h.silent()
	release()
	released = true
	if err := l.finish(); err != nil {
		t.Fatal(err)
	}
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
		if err := l.finish(); err != nil {
			t.Fatal(err)
		}
		want := uint32(1)
		if demotedFirst {
			want = 0
		}
		h.answered(h.replies(1)[0], h.picture(byte(want)))
		release()
		if err := l.finish(); err != nil {
			t.Fatal(err)
		}
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
				if err := l.finish(); err != nil {
					t.Fatal(err)
				}
				h.answered(h.replies(1)[0], h.picture(1))
			}
			if slices.Contains(f.demoted, true) {
				t.Errorf("demoted: %v, want none", f.demoted)
			}
			if got := l.reporter.unprotected(); got != c.want {
				t.Errorf("unprotected by %q, want %q", got, c.want)
			}
			if cost := l.account.charged.Load(); cost > 0 != c.cost {
				t.Errorf("batches cost %v of the device", time.Duration(cost))
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
	l.account.objective = 1 // the balance holds one batch
	l.account.balance.left = budget.NewBalance(shm.Now(), percent/100.0, cost)
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
			for n := range l.account.times[1:] {
				l.account.times[n+1] = cost // not the time of the fake
			}
			l.account.spare = 0
			if l.pick(); l.choice.Batch == 0 {
				continue
			}
			if err := l.begin(); err != nil {
				t.Fatal(err)
			}
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
		if err := l.finish(); err != nil {
			t.Fatal(err)
		}
	}
	took := time.Duration(shm.Now() - began)
	guaranteed := time.Duration(0)
	for _, demoted := range f.demoted {
		if !demoted {
			guaranteed += cost
		}
	}
	if most := took*percent/100 + 2*cost; guaranteed > most {
		t.Errorf("%v within the guarantee in %v, want at most %v", guaranteed, took, most)
	}
	if least := earned * percent / 100 / 2; guaranteed < least {
		t.Errorf("%v within the guarantee in %v that count, want at least %v", guaranteed, earned, least)
	}
	if !slices.Contains(f.demoted, true) {
		t.Error("nothing was demoted in overload")
	}
}

// The level of a batch is the ordered one, at most that of the process's streams. A batch that the
// framework queues on the slot's own stream keeps that stream's level.
func TestBatchLevel(t *testing.T) {
	movable, fixed := &fake{}, &fake{fixed: true}
	for _, c := range []struct {
		framework Demotable
		share     *shareOrder
		demoted   bool
		want      budget.Level
	}{
		{movable, nil, false, 3}, {movable, &shareOrder{}, false, 3}, {movable, &shareOrder{level: 3}, false, 3},
		{movable, &shareOrder{level: 2}, false, 2}, {movable, &shareOrder{level: 5}, false, 3},
		{movable, &shareOrder{level: 2}, true, budget.Demoted},
		{fixed, &shareOrder{level: 2}, false, 3}, {nil, &shareOrder{level: 2}, false, 3},
	} {
		a := account{level: 3, framework: c.framework, share: c.share}
		if got := a.batchLevel(&flight{demoted: c.demoted}); got != c.want {
			t.Errorf("level %d of a batch with %+v, demoted %v, %+v; want %d", got, c.share, c.demoted, c.framework, c.want)
		}
	}
}

// The same holds in a simulation of any costs and times.
func TestAccountBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		percent := rapid.Float64Range(0.5, 100).Draw(t, "percent")
		costs := rapid.SliceOfN(rapid.Int64Range(1e4, 1e8), 8, 8).Draw(t, "costs")
		slices.Sort(costs)
		p := &process{card: &models.Card{Batches: []int{1, 2, 3, 4, 5, 6, 7, 8}}, level: 2, slo: 10 * time.Millisecond, framework: &fake{}}
		p.sizes.ladder = p.card.Batches
		for i, c := range costs {
			p.sizes.warm = append(p.sizes.warm, warmUp{size: i + 1, alone: time.Duration(c)})
		}
		share := &shareOrder{guarantee: percent, level: 2}
		p.orders.share.Store(share)
		var a account
		now := int64(0)
		a.open(p, now)
		var charged, largest time.Duration
		for range rapid.IntRange(1, 100).Draw(t, "batches") {
			limit := rapid.IntRange(1, 8).Draw(t, "limit")
			f := flight{padded: rapid.IntRange(1, limit).Draw(t, "padded")}
			guaranteed, _ := a.guaranteed(now, share, limit)
			a.begin(now, &f, !guaranteed)
			if !f.demoted {
				charged += a.cost(f.padded)
			}
			largest = max(largest, a.cost(limit))
			now += rapid.Int64Range(0, 1e8).Draw(t, "time")
			capacity := budget.Capacity(percent/100, p.slo, largest)
			if most := float64(capacity+largest) + percent/100*float64(now) + 1; float64(charged) > most {
				t.Fatalf("charged %v in %v at %v %%, want at most %v", charged, time.Duration(now), percent, time.Duration(most))
			}
		}
	})
}

// Times only decrease: to the time of a batch, and to the rate of successive batches of one kind
// without a gap. The cost leaves out what a batch
// leaves to other processes.
func TestBatchCost(t *testing.T) {
	const ms = int64(time.Millisecond)
	p := &process{card: &models.Card{Batches: []int{1, 4, 8}}, level: 2, framework: &fake{}, sizes: sizes{warm: []warmUp{{size: 1, alone: 3 * time.Millisecond}}}}
	p.sizes.ladder = p.card.Batches[:1]
	var a account
	a.open(p, 0)
	want := func(when string, padded int, cost float64) {
		t.Helper()
		if got := a.aloneTime(padded); got != time.Duration(cost*float64(ms)) {
			t.Errorf("%s a batch of %d takes %v, want %v ms", when, padded, got, cost)
		}
	}
	line := func(when string, fixed, each float64) {
		t.Helper()
		f, e := a.fixed.Load(), a.perImage.Load()
		if math.Abs(float64(f)-fixed*float64(ms)) > 10 || math.Abs(float64(e)-each*float64(ms)) > 10 {
			t.Errorf("%s a batch of n costs %v + n * %v, want %v and %v ms", when, time.Duration(f), time.Duration(e), fixed, each)
		}
	}
	want("measured", 1, 3)
	want("not measured", 4, 12)
	line("one size", 0, 3)
	end := func(began, ended float64, f flight) {
		f.dispatched = int64(began * float64(ms))
		a.end(&f, int64(ended*float64(ms)))
	}
	end(0, 5, flight{padded: 4})
	want("served", 4, 5)
	want("not measured", 8, 10)
	fixed := 3 - 2.0/3
	line("two sizes", fixedTimeUse*fixed, 2.0/3)
	if got, want := a.cost(4), fixedTimeUse*fixed+4*2.0/3; math.Abs(got.Seconds()*1000-want) > 1e-3 {
		t.Errorf("a batch of 4 costs %v, want %v ms", got, want)
	}
	end(10, 18, flight{padded: 4})
	want("slow", 4, 5)
	end(20, 21, flight{padded: 4, err: errors.New("failed")})
	want("failed", 4, 5)
	for i := range seriesBatches + 1 { // two in flight, one ends every 2 ms
		end(float64(100+2*i-4), float64(100+2*i), flight{padded: 4})
	}
	want("two in flight", 4, 2)
	want("smaller than two in flight", 1, 2)
	for i := range seriesBatches + 1 { // of two kinds
		end(float64(300+i-2), float64(300+i), flight{padded: 4, demoted: i%2 == 0})
	}
	want("mixed", 4, 2)
}

// The cost of a size that was added while the process served is at most the shortest time of a
// batch of it, or of a larger size. Here batches overlap and their sizes vary.
func TestAddedSizeCost(t *testing.T) {
	const ms = int64(time.Millisecond)
	sizes := []int{1, 2, 4, 8, 16, 32}
	rapid.Check(t, func(t *rapid.T) {
		first := time.Duration(rapid.Int64Range(ms/10, 10*ms).Draw(t, "batch of 1"))
		p := &process{card: &models.Card{Batches: sizes}, level: 2, framework: &fake{}}
		p.sizes.ladder, p.sizes.warm = sizes[:1], []warmUp{{size: 1, alone: first}}
		var a account
		a.open(p, 0)

		shortest := map[int]time.Duration{}
		began, ended := int64(0), int64(0)
		for range rapid.IntRange(1, 50).Draw(t, "batches") {
			n := rapid.SampledFrom(sizes[1:]).Draw(t, "size")
			ended = max(ended, began) + rapid.Int64Range(1, 40*ms).Draw(t, "ends after the one before by")
			took := time.Duration(ended - began)
			a.end(&flight{padded: n, dispatched: began}, ended)
			began = ended - rapid.Int64Range(1, int64(took)).Draw(t, "the next begins before the end by")

			if known := shortest[n]; known == 0 || took < known {
				shortest[n] = took
			}
			for _, n := range sizes {
				for larger, took := range shortest {
					if n <= larger && a.cost(n) > took {
						t.Fatalf("a batch of %d costs %v, one of %d took %v", n, a.cost(n), larger, took)
					}
				}
			}
		}
	})
}

// A process measures costs before it serves, if there are guarantees.
func TestMeasureAlone(t *testing.T) {
	h := newGPUHarness(t, testCard())
	h.wake = control.Order{Level: 1, GuaranteePercent: 50}
	h.gpu.Late.Store(int64(time.Millisecond))
	l := h.loop(h.fake())
	for _, n := range h.card.Batches {
		if alone := l.account.times[n]; alone < 100*time.Microsecond {
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
				if l.refillBalance(); !l.flights.newest().demoted {
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
	l.p.orders.share.Store(&shareOrder{guarantee: 10, level: 3})
	l.account.share = l.p.orders.share.Load()
	l.account.times[1] = time.Second // one batch every ten seconds
	l.account.balance.left = budget.NewBalance(shm.Now(), 0.1, 0)
	l.account.balance.charge(shm.Now(), time.Second) // the first in ten seconds
	for range 30 {                                   // a demoted one takes twelve
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
	if err := l.finish(); err != nil {
		t.Fatal(err)
	}
	if got := h.replies(1); !slices.Equal(got, []uint32{1}) || len(l.queue.Pending) != 1 {
		t.Fatalf("answered %v, and %d wait; want 1 and one", got, len(l.queue.Pending))
	}
	h.answered(1, h.picture(1))
	l.refillBalance()
	l.beginOne(t)
	if err := l.finish(); err != nil {
		t.Fatal(err)
	}
	h.answered(h.replies(1)[0], h.picture(0))
	if want := []bool{true, false}; !slices.Equal(f.demoted, want) {
		t.Errorf("demoted: %v, want %v", f.demoted, want)
	}
}

// TestAccountEnds drains members of a worker before they get the ring.
func TestAccountEnds(t *testing.T) {
	lanes, err := newLanes(1, "", unlimited)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{name: "cold", lanes: lanes}
	h := newGPUHarness(t, testCard())
	h.worker = w
	f := h.fake()
	c := h.start(1, f.build, nil)
	c.await(control.Loaded)
	c.order(control.Order{Do: control.DoWake, Level: 3, GuaranteePercent: 30})
	c.await(control.Ready)
	accounts := func() int {
		w.balance.mu.Lock()
		defer w.balance.mu.Unlock()
		return len(w.balance.capacities)
	}
	if n := accounts(); n != 1 {
		t.Errorf("%d accounts share the balance, want that of the member", n)
	}
	c.order(control.Order{Do: control.DoDrain})
	if err := c.end(); err != nil {
		t.Fatal(err)
	}
	if n := accounts(); n != 0 {
		t.Errorf("%d accounts of ended members share the balance", n)
	}
}
