package udp

import (
	"encoding/binary"
	"maps"
	"math"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/ingesttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// receivedFragments receives until a datagram arrives that is not a fragment. It counts each
// request's fragments, and those that were cut.
func receivedFragments(t *testing.T, s *Source) (came, cut map[uint32]int) {
	t.Helper()
	came, cut = map[uint32]int{}, map[uint32]int{}
	batch := make([]ingest.Datagram, 64)
	for deadline := shm.Now() + int64(ingesttest.Patience); shm.Now() < deadline; {
		n, err := s.Receive(batch, deadline)
		must.OK(t, err)
		last := false
		for _, d := range batch[:n] {
			if b := s.Slab().Bytes()[d.First.Offset:][:d.First.Length]; string(b) == "end" {
				last = true
			} else if id := binary.LittleEndian.Uint32(b[4:]); d.Shed {
				if d.Length() != wire.HeaderSize || b[16] != 0 {
					t.Errorf("of request %d comes fragment %d cut to %d bytes, want fragment 0 and %d", id, b[16], d.Length(), wire.HeaderSize)
				}
				cut[id]++
			} else {
				if d.Length() != wire.HeaderSize+fragmentBytes {
					t.Errorf("of request %d comes a fragment of %d bytes, want %d", id, d.Length(), wire.HeaderSize+fragmentBytes)
				}
				came[id]++
			}
			ingesttest.Release(s, d)
		}
		if last {
			return came, cut
		}
	}
	t.Fatalf("the last datagram did not come; before it came %v", came)
	return nil, nil
}

// sendRequests sends requests of 16 fragments, each fragment alone or all as one chain.
func (c client) sendRequests(from, to uint32, chained bool) {
	c.t.Helper()
	for id := from; id < to; id++ {
		var whole []byte
		for i := range 16 {
			b := fragmentOf(id, i)
			if chained {
				whole = append(whole, b...)
			} else {
				c.send(b)
			}
		}
		if chained {
			control := make([]byte, unix.CmsgSpace(2))
			putSegment(control, uint16(len(whole)/16))
			if _, _, err := c.WriteMsgUDP(whole, control, nil); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

// overrunHeld opens a source and fills its buffer with requests while the receiver is held.
// The receiver has found the buffer full for long enough. From then on no sample is due.
func overrunHeld(t *testing.T, chained bool) (*Source, client) {
	t.Helper()
	s := open1(t, Options{RecvBuffer: 128 << 10, NoGRO: !chained})
	if s.gro != chained {
		t.Skip("not on this machine: the kernel does not chain datagrams (UDP_GRO)")
	}
	c := newClient(t, s.LocalAddr())
	due := func() {
		s.shedder.shedding.looked = shm.Now() - int64(lookEvery)
		s.shed()
	}
	next := uint32(0)
	send := func(n uint32) {
		c.sendRequests(next, next+n, chained)
		next += n
	}
	send(4)
	c.send([]byte("end"))
	receivedFragments(t, s)
	s.shedder.emptied = false
	due()
	for s.Stats().KernelDrops == 0 {
		send(1)
	}
	due()
	if send(4); s.shedder.shedding.on {
		t.Fatal("requests are shed before the buffer stayed full")
	}
	due()
	s.shedder.shedding.looked = math.MaxInt64 / 2
	return s, c
}

// open1 opens a source that is closed when the test ends.
func open1(t *testing.T, o Options) *Source {
	t.Helper()
	return openMembers(t, o, 1)[0]
}

func TestOverrunSheds(t *testing.T) {
	for name, chained := range map[string]bool{"chains": true, "single datagrams": false} {
		t.Run(name, func(t *testing.T) {
			s, c := overrunHeld(t, chained)
			// It took nothing while it was held, so the min part is let in.
			steps := s.shedder.steps.Load()
			if want := leastAccepted * filterSteps; !s.shedder.shedding.on || float64(steps) != want {
				t.Fatalf("shedding %v with %d steps let in, want %v", s.shedder.shedding.on, steps, want)
			}
			for s.drain(t) {
			}
			const from, to = 1000, 1200
			threshold, drops := uint32(steps)*(1<<32/filterSteps), s.Stats().KernelDrops
			came, cut := map[uint32]int{}, map[uint32]int{}
			for id := uint32(from); id < to; id += 10 {
				c.sendRequests(id, id+10, chained)
				c.send([]byte("end"))
				some, someCut := receivedFragments(t, s)
				maps.Copy(came, some)
				maps.Copy(cut, someCut)
			}
			shed := uint64(0)
			for id := uint32(from); id < to; id++ {
				want, wantCut := 16, 0
				if requestHash(c.addr().Port(), id) >= threshold {
					want, wantCut = 0, 1
					shed++
				}
				if came[id] != want || cut[id] != wantCut {
					t.Errorf("of request %d came %d fragments and %d cut ones, want %d and %d", id, came[id], cut[id], want, wantCut)
				}
			}
			if shed == 0 || shed == to-from {
				t.Fatalf("%d of %d requests were to be shed", shed, to-from)
			}
			want := uint64(0) // each chain was cut
			if !chained {
				want = 15 * shed
			}
			if got := s.Stats().KernelDrops - drops; got != want {
				t.Errorf("%d drops are counted, want %d, as many messages as were dropped", got, want)
			}
		})
	}
}

// A fragmented slab may split even so short a message.
func TestOverrunCutDatagrams(t *testing.T) {
	s := open1(t, Options{})
	header := fragmentOf(7, 0)[:wire.HeaderSize]
	for at := 1; at <= len(header); at++ {
		r := &s.reader
		r.headers[0].n = uint32(len(header))
		runs := r.runsOf(0)
		runs[0], runs[1] = ingest.Span{Offset: 128, Length: uint32(at)}, ingest.Span{Offset: 4096, Length: 1 << 16}
		copy(s.slab.Bytes()[128:][:at], header)
		copy(s.slab.Bytes()[4096:], header[at:])
		if !s.wasCut(0) {
			t.Errorf("it is not known with %d bytes in its first run", at)
		}
		clear(s.slab.Bytes()[4096-len(header):][:2*len(header)])
		clear(s.slab.Bytes()[128:][:at])
		if s.wasCut(0) {
			t.Errorf("zeros are taken for cut, with %d bytes in the first run", at)
		}
	}
}

// drain receives what waits in the socket, and reports whether there was anything.
func (s *Source) drain(t *testing.T) bool {
	t.Helper()
	batch := make([]ingest.Datagram, 64)
	n, err := s.Receive(batch, 1)
	must.OK(t, err)
	for _, d := range batch[:n] {
		ingesttest.Release(s, d)
	}
	return n > 0
}

// The receiver's samples detach the filter, even if nothing arrives.
func TestOverrunEndsFilter(t *testing.T) {
	s, c := overrunHeld(t, true)
	for s.drain(t) {
	}
	s.shedder.shedding.looked = shm.Now()
	deadline := shm.Now() + int64(ingesttest.Patience)
	for s.shedder.steps.Load() != filterSteps {
		if shm.Now() > deadline {
			t.Fatalf("%d of %d steps are let in after the overrun", s.shedder.steps.Load(), filterSteps)
		}
		s.drain(t)
	}
	s.shedder.shedding.looked = math.MaxInt64 / 2
	c.sendRequests(5000, 5005, true)
	c.send([]byte("end"))
	came, _ := receivedFragments(t, s)
	for id := uint32(5000); id < 5005; id++ {
		if came[id] != 16 {
			t.Errorf("of request %d came %d fragments, want 16", id, came[id])
		}
	}
}

// Each of several sockets has its own filter.
func TestOverrunOfOneReceiver(t *testing.T) {
	all := openMembers(t, Options{RecvBuffer: 128 << 10, SlabBytes: 2 << 20}, 2)
	mine, theirs := clientOf(t, all, 0), clientOf(t, all, 1)
	must.OK(t, attachFilter(all[0].socket, 0))
	all[0].shedder.shedding.on, all[0].shedder.shedding.looked = true, math.MaxInt64/2
	for i, c := range []client{mine, theirs} {
		c.sendRequests(1, 5, false)
		c.send([]byte("end"))
		came, cut := receivedFragments(t, all[i])
		for id := uint32(1); id < 5; id++ {
			if want, wantCut := 16*i, 1-i; came[id] != want || cut[id] != wantCut {
				t.Errorf("member %d got %d fragments and %d cut ones of request %d, want %d and %d", i, came[id], cut[id], id, want, wantCut)
			}
		}
	}
}

func TestSheddingDisabled(t *testing.T) {
	s := open1(t, Options{RecvBuffer: 128 << 10, NoShedding: true})
	c := newClient(t, s.LocalAddr())
	for id := uint32(0); s.Stats().KernelDrops == 0; id++ {
		c.sendRequests(id, id+1, false)
	}
	for range 3 {
		s.shedder.shedding.looked = shm.Now() - int64(lookEvery)
		s.shed()
	}
	if s.shedder.shedding.on {
		t.Error("requests are shed")
	}
}
