package shm

import (
	"errors"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestAcquireEpoch(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.consumer(t, 3)
	if ok, err := c.Acquire(Now() + int64(time.Millisecond)); ok || err != nil {
		t.Fatalf("acquired without the epoch: %v, %v", ok, err)
	}
	p.channel.SetEpoch(2)
	if ok, _ := c.Acquire(Now()); ok {
		t.Fatal("acquired with another one's epoch")
	}
	go func() {
		linger(4)
		p.channel.SetEpoch(3)
	}()
	acquire(t, c)
	if p.channel.Owner() != 3 || !c.Entitled() {
		t.Errorf("owner %d, entitled %v", p.channel.Owner(), c.Entitled())
	}
}

func TestAcquireOldOwner(t *testing.T) {
	p := newPair(t, testGeometry)
	old, next := p.owner(t, 1), p.consumer(t, 2)
	p.publish(1, 2)
	p.channel.SetEpoch(2)
	if old.Entitled() {
		t.Error("the old owner is still entitled")
	}
	if ok, _ := next.Acquire(Now() + int64(time.Millisecond)); ok {
		t.Fatal("two own the ring")
	}
	wantSlots(t, "taken by the next", take(next))
	wantSlots(t, "taken by the old one", take(old), 1, 2) // its last batch
	complete(old, 1, 2)
	go func() {
		linger(4)
		old.Release()
	}()
	acquire(t, next)
	wantSlots(t, "recovered", next.Recover(nil))
	wantSlots(t, "taken by the released one", take(old))
	wantSlots(t, "received", p.received(t), 1, 2)
}

// A consumer that polls sees that the ring is free without being woken. A consumer whose
// eager phase is over sleeps, and is woken. Normally the owner is another process. Here it is
// a goroutine, which needs a P (GOMAXPROCS) while the other one polls, even with one CPU.
// There must be no collection: it would wait for the polling goroutine, and all others would
// wait for the collection.
func TestEager(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC() // finish a collection that has begun
	for name, c := range map[string]struct {
		polls time.Duration
		woken bool
	}{"it looks": {patience, false}, "it has looked": {time.Millisecond, true}} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, testGeometry)
			old, next := p.owner(t, 1), p.consumer(t, 2)
			next.Eager(c.polls)
			p.channel.SetEpoch(2)
			go func() {
				time.Sleep(5 * time.Millisecond)
				if c.woken {
					old.Release()
				} else {
					old.back.owner.Store(0)
				}
			}()
			acquire(t, next)
		})
	}
}

func TestRecover(t *testing.T) {
	p := newPair(t, testGeometry)
	old := p.owner(t, 1)
	p.publish(1, 2, 3, 4, 5)
	batch := make([]uint32, 4)
	wantSlots(t, "taken", batch[:old.Take(batch)], 1, 2, 3, 4)
	complete(old, 1)
	old.Start([]uint32{2})
	p.channel.SetEpoch(2)
	old.Release() // though 2 is started: it will never be answered

	next := p.consumer(t, 2)
	acquire(t, next)
	wantSlots(t, "recovered", next.Recover(nil), 3, 4)
	wantSlots(t, "taken", take(next), 5)
	for slot, want := range map[uint32]Stage{1: StageStarted, 2: StageStarted, 3: StagePending, 5: StagePending, 6: StageNone} {
		if stage, _ := p.channel.Stage(slot); stage != want {
			t.Errorf("slot %d is %v, want %v", slot, stage, want)
		}
	}
	complete(next, 3, 4, 5)
	wantSlots(t, "received", p.received(t), 1, 3, 4, 5)
	if stage, generation := p.channel.Stage(2); stage != StageStarted || generation != 1 {
		t.Errorf("the lost one is %v of %d", stage, generation)
	}
	if err := p.channel.Withdraw(2); err != nil {
		t.Error(err)
	}
	if p.channel.Rejected() != 0 {
		t.Errorf("%d rejected", p.channel.Rejected())
	}
}

func TestDisown(t *testing.T) {
	p := newPair(t, testGeometry)
	old := p.owner(t, 1)
	next := p.consumer(t, 2)
	p.channel.SetEpoch(2)
	if p.channel.Disown(2) || p.channel.Owner() != 1 {
		t.Error("another one's death took the ring from its owner")
	}
	if !p.channel.Disown(1) {
		t.Error("the dead owner keeps the ring")
	}
	if p.channel.Disown(1) {
		t.Error("disowned twice")
	}
	acquire(t, next)
	// The first owner was not dead after all: it sees that it no longer owns the ring.
	p.publish(1)
	wantSlots(t, "taken by the disowned", take(old))
	if p.channel.SetEpoch(1); old.Entitled() {
		t.Error("entitled, but disowned")
	}
	old.Release()
	if p.channel.Owner() != 2 {
		t.Errorf("owner %d after the disowned one released, want 2", p.channel.Owner())
	}
}

func TestDisownInvalidOwner(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	p.channel.back.owner.Store(0xdeadbeef) // what it wrote before it died
	if !p.channel.Disown(1) || p.channel.Owner() != 0 {
		t.Errorf("owner %#x after Disown", p.channel.Owner())
	}
	p.channel.SetEpoch(2)
	next := p.consumer(t, 2)
	acquire(t, next)
	if c.Entitled() {
		t.Error("the dead one is entitled")
	}
}

func TestInterrupt(t *testing.T) {
	p := newPair(t, testGeometry)
	owner, shadow := p.owner(t, 1), p.consumer(t, 2)
	soon(t, "Wait and Acquire", func() {
		for i := range 50 {
			go func() { linger(i); owner.Interrupt() }()
			owner.Wait(0)
			go func() { linger(i); shadow.Interrupt() }()
			if ok, err := shadow.Acquire(0); ok || err != nil {
				t.Errorf("acquire: %v, %v", ok, err)
			}
		}
	})
	// An interrupt before the wait is not lost.
	owner.Interrupt()
	soon(t, "Wait", func() { owner.Wait(0) })
}

func TestWait(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	for name, cause := range map[string]func(){
		"a request": func() { p.publish(1) },
		"the epoch": func() { p.channel.SetEpoch(2) },
		"no owner":  func() { p.channel.Disown(1); p.channel.SetEpoch(2) },
	} {
		t.Run(name, func(t *testing.T) {
			p.channel.SetEpoch(1)
			acquire(t, c)
			go func() { linger(4); cause() }()
			soon(t, "Wait", func() { c.Wait(0) })
			take(c)
		})
	}
}

func TestWaitDeadline(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	for _, wait := range []time.Duration{-time.Second, 0, 10 * time.Microsecond, 5 * time.Millisecond} {
		deadline := Now() + int64(wait)
		c.Wait(deadline)
		if now := Now(); now < deadline {
			t.Errorf("%v before the deadline", time.Duration(deadline-now))
		}
		if ok, err := p.consumer(t, 2).Acquire(deadline); ok || err != nil {
			t.Errorf("acquire: %v, %v", ok, err)
		}
	}
}

func TestInterruptClosed(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.consumer(t, 1)
	for range 2 {
		must.OK(t, c.Close())
	}
	c.Interrupt()
	if _, err := c.Acquire(0); !errors.Is(err, ErrClosed) {
		t.Errorf("acquire: %v, want ErrClosed", err)
	}
}

func TestTableBounds(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	p.table.SetRequest(1, Request{Fragments: 1 << 31})
	if n := len(c.Fragments(1)); n != int(testGeometry.MaxFragments) {
		t.Errorf("%d fragments, there is room for %d", n, testGeometry.MaxFragments)
	}
	p.publish(1)
	take(c)
	c.ResultBuffer(1)
	c.Complete(1, Result{Length: 1 << 31})
	if n := p.channel.Result(1).Length; n != testGeometry.ResultBytes {
		t.Errorf("a result of %d bytes, there is room for %d", n, testGeometry.ResultBytes)
	}
}

// TestWatch tells a consumer of requests that begin only while it watches.
func TestWatch(t *testing.T) {
	p := newPair(t, Geometry{Slots: 4, MaxFragments: 1, PoolBytes: 64})
	first := p.consumer(t, 1)
	first.Watch(true) // it does not own the ring
	if p.channel.Announce(); first.Arrived() {
		t.Error("a consumer without the ring is told")
	}
	p.channel.SetEpoch(1)
	acquire(t, first)
	if p.channel.Announce(); first.Arrived() {
		t.Error("a consumer that does not watch is told")
	}

	first.Watch(true)
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		first.Wait(0)
	}()
	p.channel.Announce()
	select {
	case <-waited:
	case <-time.After(patience):
		t.Fatal("Wait does not end when a request begins")
	}
	if !first.Arrived() || first.Arrived() {
		t.Error("want one report of the request")
	}

	// The next owner does not watch because the last one did.
	p.channel.SetEpoch(2)
	first.Release()
	if second := p.owner(t, 2); p.channel.back.watching.Load() != 0 || second.Arrived() {
		t.Error("the next owner watches")
	}
	first.Watch(true)
	if p.channel.back.watching.Load() != 0 {
		t.Error("a consumer without the ring watches")
	}
}
