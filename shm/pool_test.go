package shm

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var poolGeometry = Geometry{Slots: 16, MaxFragments: 1, ResultBytes: 1000, PoolBytes: 2048}

// fill completes a slot with length bytes that show the slot.
func fill(c *Consumer, slot uint32, length int) {
	buffer := c.ResultBuffer(slot)
	for i := range buffer[:length] {
		buffer[i] = byte(slot + 1)
	}
	c.Complete(slot, Result{Length: uint32(length)})
}

func (p *pair) wantPayload(t *testing.T, slot uint32, length int) {
	t.Helper()
	if got, want := p.channel.ResultBytes(slot), bytes.Repeat([]byte{byte(slot + 1)}, length); !bytes.Equal(got, want) {
		t.Errorf("payload of slot %d is % x, want %d of %d", slot, got, length, slot+1)
	}
}

func TestPool(t *testing.T) {
	t.Run("small results need little", func(t *testing.T) {
		p := newPair(t, poolGeometry)
		c := p.owner(t, 1)
		p.publish(0, 1, 2, 3, 4, 5, 6, 7)
		take(c)
		for slot := range uint32(8) {
			fill(c, slot, 100)
		}
		if got := c.pool.head; got != 8*2 {
			t.Errorf("8 results of 100 bytes take %d lines, want 16", got)
		}
		c.Flush()
		wantSlots(t, "received", p.received(t), 0, 1, 2, 3, 4, 5, 6, 7)
		p.publish(8)
		take(c)
		fill(c, 8, 1000)
		if got := c.pool.starts[8]; got != 0 || c.pool.head != 16 {
			t.Errorf("the empty pool does not begin at its first line: %d", c.pool.head)
		}
	})

	t.Run("full", func(t *testing.T) {
		p := newPair(t, poolGeometry)
		c := p.owner(t, 1)
		p.publish(0, 1, 2, 3, 4)
		take(c)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for slot := range uint32(5) {
				fill(c, slot, 1000) // the third waits for room
			}
			c.Flush()
		}()
		dst := make([]uint32, 1)
		var got []uint32
		for range 5 {
			if n, err := p.channel.Receive(dst, Now()+int64(patience)); n != 1 || err != nil {
				t.Fatalf("received %d, %v, after %v", n, err, got)
			}
			time.Sleep(time.Millisecond) // the consumer must not overwrite what is being read
			p.wantPayload(t, dst[0], 1000)
			got = append(got, dst[0])
		}
		<-done
		wantSlots(t, "received", got, 0, 1, 2, 3, 4)
	})

	t.Run("manager does not read", func(t *testing.T) {
		p := newPair(t, poolGeometry)
		c := p.owner(t, 1)
		c.pool.patience = time.Millisecond
		p.publish(0, 1, 2)
		take(c)
		fill(c, 0, 1000)
		fill(c, 1, 1000)
		if c.ResultBuffer(2) != nil {
			t.Fatal("gave room that the manager has not read")
		}
		c.Complete(2, Result{Status: 5, Length: 7})
		c.Flush()
		wantSlots(t, "received", p.received(t), 0, 1, 2)
		p.wantPayload(t, 2, 0)
	})

	t.Run("several buffers", func(t *testing.T) {
		p := newPair(t, Geometry{Slots: 16, MaxFragments: 1, ResultBytes: 1000, PoolBytes: 3 * 1024})
		c := p.owner(t, 1)
		p.publish(0, 1, 2)
		take(c)
		for slot := range uint32(2) {
			c.ResultBuffer(slot)
		}
		for slot := range uint32(3) {
			fill(c, slot, 500)
		}
		c.Flush()
		wantSlots(t, "received", p.received(t), 0, 1, 2)
		for slot := range uint32(3) {
			p.wantPayload(t, slot, 500)
		}
	})

	t.Run("successor", func(t *testing.T) {
		p := newPair(t, poolGeometry)
		old := p.owner(t, 1)
		p.publish(0, 1)
		take(old)
		fill(old, 0, 1000)
		fill(old, 1, 1000)
		p.channel.SetEpoch(2)
		old.Release()
		c := p.owner(t, 2)
		c.pool.patience = time.Millisecond
		p.publish(2)
		take(c)
		if c.ResultBuffer(2) != nil {
			t.Fatal("gave the memory of results that the manager has not read")
		}
		wantSlots(t, "received", p.received(t), 0, 1)
		p.wantPayload(t, 0, 1000)
		p.wantPayload(t, 1, 1000)
		fill(c, 2, 1000)
		c.Flush()
		wantSlots(t, "received", p.received(t), 2)
		p.wantPayload(t, 2, 1000)
	})

	t.Run("outside", func(t *testing.T) {
		p := newPair(t, poolGeometry)
		c := p.owner(t, 1)
		for _, place := range []uint32{32, 17, 1 << 26, ^uint32(0)} {
			p.publish(3)
			take(c)
			fill(c, 3, 1000)
			c.back.headers[3].place.Store(place)
			c.Flush()
			wantSlots(t, "received", p.received(t), 3)
			before := p.channel.Rejected()
			if got := p.channel.ResultBytes(3); len(got) != 0 || p.channel.Rejected() != before+1 {
				t.Errorf("place %d: read %d bytes, %d rejected", place, len(got), p.channel.Rejected()-before)
			}
		}
	})
}

// The memory of results is bounded and not touched before it is used.
func TestPoolPages(t *testing.T) {
	p := newPair(t, Geometry{Slots: 1 << 12, MaxFragments: 1, ResultBytes: 48 << 20, PoolBytes: 96 << 20})
	c := p.owner(t, 1)
	allocated := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(int(p.channel.RepliesFile().Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	if got := allocated(); got > 1<<20 {
		t.Errorf("%d bytes are allocated at the start", got)
	}
	for range 1000 {
		p.publish(0, 1)
		for _, slot := range take(c) {
			fill(c, slot, 1<<10)
		}
		c.Flush()
		if got := p.received(t); !slices.Equal(got, []uint32{0, 1}) {
			t.Fatal(got)
		}
	}
	if got := allocated(); got > 1<<20 {
		t.Errorf("%d bytes are allocated after small results", got)
	}
}
