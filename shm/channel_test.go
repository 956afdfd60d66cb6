package shm

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestRoundTrip(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	request := Request{ID: 77, Fragments: 2, Bytes: 30, Priority: 3, FirstFragment: 10, Complete: 20, Deadline: 30}
	fragments := []Fragment{{Offset: 64, Place: 0, Length: 20}, {Offset: 128, Place: 20, Length: 10, Slab: 1}}
	p.table.SetRequest(5, request)
	copy(p.table.Fragments(5), fragments)
	p.channel.Publish(5)
	wantSlots(t, "taken", take(c), 5)
	if got := c.Request(5); got != request || p.table.Request(5) != request {
		t.Errorf("request %+v, want %+v", got, request)
	}
	if got := c.Fragments(5); len(got) != 2 || got[0] != fragments[0] || got[1] != fragments[1] {
		t.Errorf("fragments %+v, want %+v", got, fragments)
	}
	c.Start([]uint32{5})
	answer := Result{Status: 1, Kind: 2, Batch: 3, ModelVersion: 4, Length: 6, Dispatched: 7, Gathered: 8, Inferred: 9}
	copy(c.ResultBuffer(5), "answer")
	c.Complete(5, answer)
	wantSlots(t, "received before Flush", p.received(t))
	c.Flush()
	wantSlots(t, "received", p.received(t), 5)
	if got := p.channel.Result(5); got != answer {
		t.Errorf("result %+v, want %+v", got, answer)
	}
	if got := p.channel.ResultBytes(5); string(got) != "answer" {
		t.Errorf("payload %q", got)
	}
	c.BatchEnded(99)
	if c.LastBatchEnd() != 99 {
		t.Errorf("last batch ended at %d, want 99", c.LastBatchEnd())
	}
	if p.channel.Rejected() != 0 {
		t.Errorf("%d rejected", p.channel.Rejected())
	}
}

func TestTakeOrder(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	for round := range 100 { // the ring wraps around
		p.publish(3, 1, 2, 15, 0)
		wantSlots(t, "taken", take(c), 3, 1, 2, 15, 0)
		complete(c, 15, 3, 0, 2, 1)
		wantSlots(t, "received", p.received(t), 15, 3, 0, 2, 1)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}

func TestBatchLimits(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	p.publish(1, 2, 3)
	dst := make([]uint32, 2)
	if n := c.Take(nil); n != 0 {
		t.Errorf("took %d into nothing", n)
	}
	wantSlots(t, "first", dst[:c.Take(dst)], 1, 2)
	wantSlots(t, "second", dst[:c.Take(dst)], 3)
	complete(c, 1, 2, 3)
	if n, err := p.channel.Receive(nil, 0); n != 0 || err != nil {
		t.Errorf("received %d into nothing, %v", n, err)
	}
	n, _ := p.channel.Receive(dst, 0)
	wantSlots(t, "first", dst[:n], 1, 2)
	n, _ = p.channel.Receive(dst, 0)
	wantSlots(t, "second", dst[:n], 3)
}

func TestMaxGeometry(t *testing.T) {
	for _, g := range []Geometry{{Slots: 1, MaxFragments: 1, PoolBytes: 64}, {Slots: 1, MaxFragments: 3, ResultBytes: 1, PoolBytes: 64}, {Slots: 4096, MaxFragments: 2, ResultBytes: 65, PoolBytes: 4096 * 128}} {
		p := newPair(t, g)
		c := p.owner(t, 1)
		var all []uint32
		for slot := range g.Slots {
			all = append(all, slot)
		}
		for range 3 {
			p.publish(all...)
			wantSlots(t, "taken", take(c), all...)
			for _, slot := range all {
				for i := range c.ResultBuffer(slot) {
					c.ResultBuffer(slot)[i] = byte(slot + 1)
				}
				c.Complete(slot, Result{Length: g.ResultBytes})
			}
			c.Flush()
			wantSlots(t, "received", p.received(t), all...)
			for _, slot := range all {
				for _, b := range p.channel.ResultBytes(slot) {
					if b != byte(slot+1) {
						t.Fatalf("result %d holds another one's byte", slot)
					}
				}
			}
		}
	}
}

func TestPublishTwice(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	p.publish(4, 4)
	wantSlots(t, "taken", take(c), 4)
	p.publish(4)
	wantSlots(t, "taken again", take(c))
	complete(c, 4)
	wantSlots(t, "received", p.received(t), 4)
	p.channel.Publish(testGeometry.Slots) // not a valid slot
	wantSlots(t, "taken at last", take(c))
}

func TestReplyOnce(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	p.publish(4)
	take(c)
	complete(c, 4)
	complete(c, 4) // does nothing
	c.Complete(9, Result{})
	c.Flush()
	wantSlots(t, "received", p.received(t), 4)
	if p.channel.Rejected() != 0 {
		t.Errorf("%d rejected of an honest consumer", p.channel.Rejected())
	}
}

func TestWithdraw(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)

	// In the ring.
	p.publish(1, 2)
	must.OK(t, p.channel.Withdraw(1))
	wantSlots(t, "taken", take(c), 2)

	// Taken.
	must.OK(t, p.channel.Withdraw(2))
	complete(c, 2)
	wantSlots(t, "received", p.received(t))
	if p.channel.Rejected() != 1 {
		t.Errorf("%d rejected, want 1", p.channel.Rejected())
	}

	// Not out any more, never out, not a slot.
	for _, slot := range []uint32{2, 7, 16, 1 << 31} {
		if err := p.channel.Withdraw(slot); !errors.Is(err, ErrNotPublished) {
			t.Errorf("withdraw %d: %v, want ErrNotOut", slot, err)
		}
	}
}

// TestReplyStale checks that a reply to an earlier publication of a slot is not accepted.
func TestReplyStale(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	p.publish(3)
	wantSlots(t, "taken", take(c), 3)
	must.OK(t, p.channel.Withdraw(3))
	p.publish(3) // another request, while the consumer still holds the old one
	wantSlots(t, "taken while in hand", take(c))
	complete(c, 3)
	wantSlots(t, "received", p.received(t))
	wantSlots(t, "taken after that", take(c), 3)
	complete(c, 3)
	wantSlots(t, "received after that", p.received(t), 3)
	if p.channel.Rejected() != 1 {
		t.Errorf("%d rejected, want 1", p.channel.Rejected())
	}
}

// The consumer takes nothing while slots are withdrawn and published again. The
// ring wraps around and overwrites entries of slots that are out.
func TestRingWrap(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	p.publish(7, 8, 9)
	for range 5 * testGeometry.Slots {
		p.publish(1)
		must.OK(t, p.channel.Withdraw(1))
	}
	p.publish(1)
	got := map[uint32]int{}
	dst := make([]uint32, 2) // smaller than the number of slots to find
	for n := -1; n != 0; {
		n = c.Take(dst)
		for _, slot := range dst[:n] {
			got[slot]++
		}
	}
	for _, slot := range []uint32{1, 7, 8, 9} {
		if got[slot] != 1 {
			t.Errorf("slot %d was taken %d times", slot, got[slot])
		}
	}
	if len(got) != 4 {
		t.Errorf("taken: %v", got)
	}
}

// The same for replies: the manager does not receive for a while.
func TestReplyWrap(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	p.publish(7)
	take(c)
	complete(c, 7)
	for range 5 * testGeometry.Slots {
		p.publish(1)
		take(c)
		complete(c, 1)
		must.OK(t, p.channel.Withdraw(1))
	}
	wantSlots(t, "received", p.received(t), 7)
	if p.channel.Rejected() == 0 {
		t.Error("nothing was rejected")
	}
	p.publish(1)
	wantSlots(t, "taken", take(c), 1)
	complete(c, 1)
	wantSlots(t, "received then", p.received(t), 1)
}

func TestIndexWrap(t *testing.T) {
	p := newPair(t, testGeometry)
	start := ^uint32(0) - 20
	p.channel.ring.tail.Store(start)
	p.channel.back.head.Store(start)
	p.channel.back.tail.Store(start)
	p.channel.replyHead = start
	for slot := range testGeometry.Slots {
		p.channel.ring.tickets[slot].Store(^uint32(0) - 5)
	}
	c := p.owner(t, 1)
	for range 20 {
		p.publish(1, 2, 3)
		wantSlots(t, "taken", take(c), 1, 2, 3)
		complete(c, 1, 2, 3)
		wantSlots(t, "received", p.received(t), 1, 2, 3)
	}
	if p.channel.Rejected() != 0 {
		t.Errorf("%d rejected", p.channel.Rejected())
	}
}

// linger lets another thread begin to wait, or not, or go on for a while: it differs with i.
func linger(i int) { time.Sleep(time.Duration(i%5) * 100 * time.Microsecond) }

func TestReceiveSleeps(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	for i := range 50 {
		p.publish(1)
		take(c)
		done := make(chan int)
		go func() {
			n, _ := p.channel.Receive(make([]uint32, 4), Now()+int64(patience))
			done <- n
		}()
		linger(i)
		complete(c, 1)
		if n := <-done; n != 1 {
			t.Fatalf("received %d, want 1", n)
		}
	}
}

func TestReceiveDeadline(t *testing.T) {
	p := newPair(t, testGeometry)
	for _, wait := range []time.Duration{-time.Second, 0, 10 * time.Microsecond, 5 * time.Millisecond} {
		deadline := Now() + int64(wait)
		if n, err := p.channel.Receive(make([]uint32, 1), deadline); n != 0 || err != nil {
			t.Errorf("received %d, %v", n, err)
		}
		if now := Now(); now < deadline {
			t.Errorf("%v before the deadline", time.Duration(deadline-now))
		}
	}
}

func TestWake(t *testing.T) {
	p := newPair(t, testGeometry)
	soon(t, "Receive", func() {
		for i := range 50 {
			go func() {
				linger(i)
				p.channel.Wake()
			}()
			if n, err := p.channel.Receive(make([]uint32, 1), 0); n != 0 || err != nil {
				t.Errorf("received %d, %v", n, err)
			}
		}
	})
}

func TestClose(t *testing.T) {
	for i := range 20 {
		p := makePair(t, testGeometry)
		go func() {
			linger(i)
			p.channel.Close()
		}()
		soon(t, "Receive", func() {
			if _, err := p.channel.Receive(make([]uint32, 1), 0); !errors.Is(err, ErrClosed) {
				t.Errorf("%v, want ErrClosed", err)
			}
		})
		p.close() // for the second time
		c := p.channel
		c.Publish(1)
		c.SetEpoch(2)
		c.Wake()
		stage, generation := c.Stage(1)
		if c.Epoch() != 0 || c.Owner() != 0 || c.Disown(1) || stage != StageNone || generation != 0 ||
			c.Result(1) != (Result{}) || c.ResultBytes(1) != nil {
			t.Error("a closed channel tells something")
		}
		if err := c.Withdraw(1); !errors.Is(err, ErrClosed) {
			t.Errorf("withdraw: %v, want ErrClosed", err)
		}
		if _, err := c.Receive(make([]uint32, 1), 0); !errors.Is(err, ErrClosed) {
			t.Errorf("receive: %v, want ErrClosed", err)
		}
	}
}

func TestNewConsumerErrors(t *testing.T) {
	p := newPair(t, testGeometry)
	g := testGeometry
	bigger, wider := g, g
	bigger.Slots *= 2
	wider.ResultBytes--
	table, ring, replies := p.table.File, p.channel.RingFile, p.channel.RepliesFile
	for name, test := range map[string]struct {
		generation           uint32
		g                    Geometry
		table, ring, replies func() *os.File
		want                 string
	}{
		"generation 0":        {0, g, table, ring, replies, "generation 0"},
		"generation too high": {maxGeneration + 1, g, table, ring, replies, "generation"},
		"no geometry":         {1, Geometry{}, table, ring, replies, "slots 0"},
		"larger":              {1, bigger, table, ring, replies, "too small"},
		"other results":       {1, wider, table, ring, replies, "geometry"},
		"ring for table":      {1, g, ring, ring, replies, "magic"},
		"replies for ring":    {1, g, table, replies, replies, "magic"},
		"replies for table":   {1, g, replies, ring, replies, "magic"},
		"ring for replies":    {1, g, table, ring, ring, ""}, // cannot be written
		"table for replies":   {1, g, table, ring, table, ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := openFiles()
			c, err := NewConsumer(test.generation, test.g, dup(t, test.table()), dup(t, test.ring()), dup(t, test.replies()))
			if err == nil {
				c.Close()
				t.Fatal("attached")
			}
			if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q does not say %q in one line", err, test.want)
			}
			// There may be fewer: the garbage collector has closed files of
			// earlier tests.
			if after := openFiles(); after > before {
				t.Errorf("%d files are open, %d were before", after, before)
			}
		})
	}
	word32(p.channel.ringMem.Bytes(), atVersion).Store(layoutVersion + 1)
	if c, err := NewConsumer(1, g, dup(t, table()), dup(t, ring()), dup(t, replies())); !errors.Is(err, ErrMismatch) {
		if err == nil {
			c.Close()
		}
		t.Errorf("another version: %v, want ErrMismatch", err)
	}
}

func TestAllocations(t *testing.T) {
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	taken, got := make([]uint32, 16), make([]uint32, 16)
	slots := []uint32{0, 1, 2, 3, 4}
	if n := testing.AllocsPerRun(1000, func() {
		for _, slot := range slots {
			p.table.SetRequest(slot, Request{ID: slot})
			p.table.Fragments(slot)[0] = Fragment{Length: 1}
			p.channel.Publish(slot)
		}
		c.Wait(Now() + int64(time.Second))
		batch := taken[:c.Take(taken)]
		c.Start(batch)
		for _, slot := range batch {
			_, _ = c.Request(slot), c.Fragments(slot)
			c.ResultBuffer(slot)[0] = 1
			c.Complete(slot, Result{Length: 1})
		}
		c.Flush()
		c.BatchEnded(Now())
		n, err := p.channel.Receive(got, Now()+int64(time.Second))
		if n != len(slots) || err != nil {
			t.Fatal(n, err)
		}
		for _, slot := range got[:n] {
			p.channel.Result(slot)
			p.channel.ResultBytes(slot)
			p.channel.Stage(slot)
		}
		c.Wait(Now() + 1000)
		p.channel.Receive(got, Now()+1000)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestWakeWithoutSpinning(t *testing.T) {
	old := Spin
	Spin = 0
	defer func() { Spin = old }()
	p := newPair(t, testGeometry)
	c := p.owner(t, 1)
	const rounds = 500
	soon(t, "the round trip", func() {
		var consumer sync.WaitGroup
		defer consumer.Wait()
		consumer.Go(func() {
			for range rounds {
				c.Wait(0)
				complete(c, take(c)...)
			}
		})
		dst := make([]uint32, 4)
		for range rounds {
			p.publish(2)
			if n, err := p.channel.Receive(dst, Now()+int64(patience)); n != 1 || err != nil {
				t.Errorf("received %d, %v", n, err)
				return
			}
		}
	})
}

func TestDefaultSpin(t *testing.T) {
	if few, many := defaultSpin(2), defaultSpin(8); few >= many || many > 20*time.Microsecond {
		t.Errorf("%v with two CPUs, %v with eight", few, many)
	}
}
