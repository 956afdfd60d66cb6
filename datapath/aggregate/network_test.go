package aggregate

import (
	"bytes"
	"testing"
	"time"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/ingestfake"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// A source loses, repeats, reorders and truncates datagrams. It has a real slab
// (which panics if a byte is released twice), the table is real, and clients
// follow NACKs. Every request becomes complete with the picture that was sent,
// or its client gets incomplete. In the end no byte is held.
func TestBadNetwork(t *testing.T) {
	const count, requests = 40, 300
	total := count*testFragment - 17
	src, err := ingestfake.New(ingestfake.Options{Loss: 0.05, Duplicate: 0.05, Reorder: 0.2, Straddle: 0.1, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := src.CloseSlab(); err != nil {
			t.Error(err)
		}
	}()
	table, err := shm.NewTable("test", shm.Geometry{Slots: 64, MaxFragments: 2 * count, ResultBytes: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	}()
	a := New(Config{
		Slots: 64, RequestBytes: total, MaxFragments: 2 * count, MinFragmentBytes: testFragment, SLO: 40 * time.Millisecond,
	}, src.Slab().Bytes(), table)

	now, endings, wholes := int64(1), map[uint32]int{}, 0
	batch := make([]ingest.Datagram, 16)
	var events Events
	turn := func() {
		t.Helper()
		for again := true; again; {
			n, err := src.Receive(batch, 1) // a deadline long past: returns what is there
			if err != nil {
				t.Fatal(err)
			}
			now += int64(50 * time.Microsecond)
			events.Reset()
			a.Add(now, batch[:n], &events)
			if next := a.NextDeadline(); next != 0 && next <= now {
				a.Expire(now, &events)
			}
			for _, slot := range events.Complete {
				o, _ := a.Origin(slot)
				r := table.Request(slot)
				got := make([]byte, r.Bytes)
				for _, p := range table.Fragments(slot)[:r.Fragments] {
					copy(got[p.Place:], src.Slab().Bytes()[p.Offset:p.Offset+uint64(p.Length)])
				}
				if !bytes.Equal(got, picture(o.RequestID, total)) {
					t.Errorf("request %d is not the picture that was sent", o.RequestID)
				}
				if !a.End(now, slot, &wire.Result{Status: wire.StatusOK}, nil, &events) {
					t.Errorf("request %d has ended already", o.RequestID)
				}
				endings[o.RequestID]++
				wholes++
			}
			for _, told := range events.Reported {
				if told.Status != wire.StatusIncomplete {
					t.Errorf("request %d is told %v", told.RequestID, told.Status)
				}
				endings[told.RequestID]++
			}
			for _, w := range events.NACKs {
				for i := range int(w.Count) {
					if w.Present[i/64]&(1<<(i%64)) == 0 {
						src.Inject(w.To, fragment{id: int(w.RequestID), total: total, index: i, again: true}.datagram())
					}
				}
			}
			src.Release(events.Release)
			if err := a.Check(); err != nil {
				t.Fatal(err)
			}
			again = n > 0
		}
	}
	for id := range requests {
		for i := range count {
			src.Inject(address(id%5), fragment{id: id, total: total, index: i}.datagram())
		}
		turn()
	}
	for a.NextDeadline() != 0 {
		turn()
	}
	if len(endings) != requests {
		t.Errorf("%d requests of %d ended", len(endings), requests)
	}
	for id, n := range endings {
		if n != 1 {
			t.Errorf("request %d ended %d times", id, n)
		}
	}
	s := a.Stats()
	if wholes < requests*9/10 || s.NACKs == 0 || s.Dropped[dropDuplicate] == 0 {
		t.Errorf("%d whole, of %d: the network or the wishes do nothing: %+v", wholes, requests, s)
	}
	if held := src.Stats().HeldBytes; held != 0 {
		t.Errorf("%d bytes of the slab are still held", held)
	}
}
