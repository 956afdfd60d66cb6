package datapath

import (
	"bytes"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// ask sends a picture and waits for its answer, which the process gives with a status.
func (b *harness) ask(c *datapathtest.Process, s *datapathtest.Client, tag uint64, status wire.Status, payload []byte) {
	b.t.Helper()
	s.Send(tag)
	slot := c.Await(1)[0]
	r := shm.Result{Status: uint8(status)}
	if status == wire.StatusOK {
		r = datapathtest.Honest(c.Request(slot).Complete, copy(c.ResultBuffer(slot), payload))
		r.Kind = uint8(wire.KindBoxes)
		for shm.Now() < r.Inferred {
		}
	}
	c.Start([]uint32{slot})
	c.Complete(slot, r)
	c.Flush()
	if e := s.Next(); e.Status != client.Status(status+1) {
		b.t.Fatalf("answer is %v, want %v", e.Status, status)
	}
	b.settled() // the copy is made after the answer was sent
}

func TestPictures(t *testing.T) {
	b := newHarness(t, 1)
	c, s := b.owner(0, 1), b.dial()
	box := wire.AppendBoxes(nil, []wire.Box{{Class: 3, Score: 0.5, X1: 1, Y1: 1}})
	b.ask(c, s, 1, wire.StatusOK, box)
	if p, ok := b.Picture(); ok || b.PictureNumber() != 0 {
		t.Fatalf("without SetPictures there is %+v", p)
	}

	b.SetPictures(time.Hour)
	b.ask(c, s, 2, wire.StatusLate, nil)
	if p, ok := b.Picture(); ok {
		t.Errorf("a late request was copied: %+v", p)
	}
	b.ask(c, s, 3, wire.StatusOK, box)
	p, ok := b.Picture()
	if !ok || p.Number != 1 || b.PictureNumber() != 1 || !bytes.Equal(p.Pixels, datapathtest.Picture(3)) || !bytes.Equal(p.Payload, box) || p.Kind != wire.KindBoxes {
		t.Errorf("picture %d of %d bytes with %x, want picture 1 with %x", p.Number, len(p.Pixels), p.Payload, box)
	}
	if p.FirstFragment == 0 || p.Sent < p.FirstFragment || !p.From.IsValid() || p.ModelVersion != version {
		t.Errorf("picture from %v at %d, answered at %d by version %d", p.From, p.FirstFragment, p.Sent, p.ModelVersion)
	}
	b.ask(c, s, 4, wire.StatusOK, box)
	if p, _ := b.Picture(); p.Number != 1 {
		t.Errorf("picture %d within the interval, want the first one", p.Number)
	}

	b.SetPictures(time.Nanosecond)
	b.ask(c, s, 5, wire.StatusOK, box)
	if p, _ := b.Picture(); p.Number != 2 || !bytes.Equal(p.Pixels, datapathtest.Picture(5)) {
		t.Errorf("picture %d after another interval was set, want the second one", p.Number)
	}
	b.SetPictures(0)
	if p, ok := b.Picture(); ok {
		t.Errorf("picture %d after the end", p.Number)
	}
}

// halfFull is a source half of whose slab is held, if one byte is.
type halfFull struct{ ingest.Source }

func (s halfFull) Stats() ingest.Stats {
	stats := s.Source.Stats()
	stats.SlabBytes = 2 * stats.HeldBytes
	return stats
}

func TestPicturesHalfFullSlab(t *testing.T) {
	sources := wrap(open(t, loopback(), 1), func(s ingest.Source) ingest.Source { return halfFull{s} })
	b := newHarnessOn(t, sources, testOptions(1))
	c, s := b.owner(0, 1), b.dial()
	b.SetPictures(time.Nanosecond)
	for tag := range uint64(3) {
		b.ask(c, s, tag, wire.StatusOK, nil)
	}
	if p, ok := b.Picture(); ok {
		t.Errorf("picture %d was copied although half of the slab was held", p.Number)
	}
}

func TestPicturesAllocations(t *testing.T) {
	b := newHarness(t, 1)
	turn := &replyTurn{queue: b.Queue(0), port: b.Port}
	origin, result := &aggregate.Origin{}, &wire.Result{Status: wire.StatusOK, Kind: wire.KindBoxes}
	payload := make([]byte, 10*wire.BoxSize)
	now := int64(0)
	answer := func() {
		now++
		turn.claim(0, now, origin, result, payload)
		turn.copyPicture(now)
	}
	if n := testing.AllocsPerRun(100, answer); n != 0 {
		t.Errorf("%v allocations per answer while no pictures are copied", n)
	}
	for _, interval := range []time.Duration{time.Hour, time.Nanosecond} {
		b.SetPictures(interval)
		if n := testing.AllocsPerRun(100, answer); n != 0 {
			t.Errorf("%v allocations per answer with a picture per %s", n, interval)
		}
	}
}
