package datapath

import (
	"bytes"
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/ingestfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// sink accepts all packets and keeps none.
type sink struct{ ingest.Source }

func (sink) Send(packets []ingest.Packet) (int, error) { return len(packets), nil }

// script accepts the given number of packets, call by call.
type script struct {
	ingest.Source
	takes []int
	errs  []error
	sent  []uint32 // request ids
}

func (s *script) Send(packets []ingest.Packet) (int, error) {
	n, err := s.takes[0], s.errs[0]
	s.takes, s.errs = s.takes[1:], s.errs[1:]
	for _, p := range packets[:n] {
		h, err := wire.DecodeHeader(p.Data)
		if err != nil {
			return 0, err
		}
		s.sent = append(s.sent, h.RequestID)
	}
	return n, err
}

func memorySource(t *testing.T) *ingestfake.Source {
	t.Helper()
	s, err := ingestfake.New(ingestfake.Options{})
	must.OK(t, err)
	t.Cleanup(func() {
		s.Close()
		s.CloseSlab()
	})
	return s
}

func TestOutbox(t *testing.T) {
	s := memorySource(t)
	first, second := netip.MustParseAddrPort("192.0.2.7:1000"), netip.MustParseAddrPort("192.0.2.8:2000")
	ok := wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1}
	payload := make([]byte, 2*replyFragmentBytes+4)
	for i := range payload {
		payload[i] = byte(i * 3)
	}
	out := outbox{source: s}
	// The second turn reuses the memory of the first; the later ones grow it.
	for turn := range 4 {
		payload := payload
		for range turn {
			payload = append(payload, payload...)
		}
		fragments := wire.Fragments(len(payload), replyFragmentBytes)
		out.result(first, 1, &wire.Result{Status: wire.StatusLate}, nil, false)
		out.result(second, 2, &ok, payload, true)
		out.nack(first, 3, 10*1024, 10, []uint64{0b1111111011})
		out.result(first, 4, &ok, []byte{1, 2, 3, 4}, false)
		if lost := out.send(); lost != 0 {
			t.Fatalf("lost %d datagrams", lost)
		}
		sent := s.Sent()
		if want := 1 + fragments + 1 + 1; len(sent) != want {
			t.Fatalf("sent %d datagrams, want %d", len(sent), want)
		}
		expect := func(i int, to netip.AddrPort, id uint32, flags wire.Flags) []byte {
			t.Helper()
			h, _, fragment, err := wire.DecodeResult(sent[i].Data)
			if err != nil {
				t.Fatalf("datagram %d: %v", i, err)
			}
			if sent[i].To != to || h.RequestID != id || h.Flags&wire.FlagRetransmitted != flags {
				t.Errorf("datagram %d to %v is %+v, want request %d to %v", i, sent[i].To, h, id, to)
			}
			return fragment
		}
		expect(0, first, 1, 0)
		slices.SortFunc(sent[1:1+fragments], func(a, b ingest.Packet) int { return cmp.Compare(indexOf(t, a.Data), indexOf(t, b.Data)) })
		var complete []byte
		for i := range fragments {
			complete = append(complete, expect(1+i, second, 2, wire.FlagRetransmitted)...)
		}
		if !bytes.Equal(complete, payload) {
			t.Error("the fragments of a large answer do not make it up")
		}
		nack, err := wire.DecodeNACK(sent[1+fragments].Data)
		if err != nil || nack.RequestID != 3 || !slices.Equal(slices.Collect(nack.Missing), []int{2}) {
			t.Errorf("NACK is %+v, %v; want fragment 2 of request 3", nack, err)
		}
		if got := expect(2+fragments, first, 4, 0); !bytes.Equal(got, []byte{1, 2, 3, 4}) {
			t.Errorf("the last answer carries %v", got)
		}
	}
}

// indexOf returns the index of an answer's fragment.
func indexOf(t *testing.T, datagram []byte) uint16 {
	t.Helper()
	h, err := wire.DecodeHeader(datagram)
	must.OK(t, err)
	return h.Index
}

// TestOutboxRepeats repeats an answer over a socket that takes only a part of it. All fragments get
// through in the end.
func TestOutboxRepeats(t *testing.T) {
	s := memorySource(t)
	out := outbox{source: s}
	const fragments, taken = 20, 5
	ok := wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1}
	arrived := map[uint16]bool{}
	for repeat := 0; len(arrived) < fragments; repeat++ {
		if repeat == 1000 {
			t.Fatalf("only %d of %d fragments after %d repeats", len(arrived), fragments, repeat)
		}
		out.result(netip.MustParseAddrPort("192.0.2.7:1000"), 1, &ok, make([]byte, fragments*replyFragmentBytes), true)
		out.send()
		for _, d := range s.Sent()[:taken] {
			arrived[indexOf(t, d.Data)] = true
		}
	}
}

// counter counts datagrams, and takes all but the last ones.
type counter struct {
	ingest.Source
	takes, sent int
}

func (c *counter) Send(packets []ingest.Packet) (int, error) {
	n := min(len(packets), c.takes-c.sent)
	c.sent += n
	return n, nil
}

// TestOutboxLarge sends the largest answer in parts, so that the outbox stays small.
func TestOutboxLarge(t *testing.T) {
	for _, takes := range []int{wire.MaxFragments, 5000} {
		s := &counter{takes: takes}
		out := outbox{source: s}
		ok := wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1}
		out.result(netip.MustParseAddrPort("192.0.2.7:1000"), 1, &ok, make([]byte, wire.MaxFragments*replyFragmentBytes), false)
		if lost := out.send(); lost != wire.MaxFragments-takes || s.sent != takes {
			t.Errorf("sent %d datagrams and lost %d of %d, want %d sent", s.sent, lost, wire.MaxFragments, takes)
		}
		if got := cap(out.bytes); got > 3*outboxBytes {
			t.Errorf("the outbox has %d bytes", got)
		}
	}
}

func TestOutboxWithheld(t *testing.T) {
	s := memorySource(t)
	out := outbox{source: s}
	busy := wire.Result{Status: wire.StatusBusy, Cookie: 7}
	out.result(netip.MustParseAddrPort("192.0.2.7:1000"), 1, &busy, make([]byte, 6000), false)
	if lost := out.send(); lost != 0 {
		t.Fatalf("lost %d datagrams", lost)
	}

	sent := s.Sent()
	if len(sent) != 1 {
		t.Fatalf("sent %d datagrams, want 1", len(sent))
	}
	if h, r, payload, err := wire.DecodeResult(sent[0].Data); err != nil || h.Count != 1 || len(payload) != 0 || r != busy {
		t.Errorf("sent %+v, %d bytes of payload, %v; want %+v", r, len(payload), err, busy)
	}
}

func TestOutboxLoss(t *testing.T) {
	to := netip.MustParseAddrPort("192.0.2.7:1000")
	unreachable := errors.New("no way there")
	for _, c := range []struct {
		name string
		// The results of each call of Send.
		takes []int
		errs  []error
		lost  int
		sent  []uint32
	}{
		{"all goes", []int{4}, []error{nil}, 0, []uint32{0, 1, 2, 3}},
		{"in two goes", []int{3, 1}, []error{nil, nil}, 0, []uint32{0, 1, 2, 3}},
		{"an address is bad", []int{1, 2}, []error{unreachable, nil}, 1, []uint32{0, 2, 3}},
		{"every address is bad", []int{0, 0, 0, 0}, []error{unreachable, unreachable, unreachable, unreachable}, 4, nil},
		{"the socket is full", []int{1}, []error{unix.EAGAIN}, 3, []uint32{0}},
		{"the source is closed", []int{0}, []error{ingest.ErrClosed}, 4, nil},
		{"the source takes nothing without an error", []int{0}, []error{nil}, 4, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &script{takes: c.takes, errs: c.errs}
			out := outbox{source: s}
			for id := range uint32(4) {
				out.result(to, id, &wire.Result{Status: wire.StatusLate}, nil, false)
			}
			if lost := out.send(); lost != c.lost {
				t.Errorf("lost %d datagrams, want %d", lost, c.lost)
			}
			if !slices.Equal(s.sent, c.sent) || len(s.takes) != 0 {
				t.Errorf("sent %v, want %v; %d sends were not asked for", s.sent, c.sent, len(s.takes))
			}
			// Those datagrams are lost: the next turn starts empty.
			last := &script{}
			out.source = last
			if lost := out.send(); lost != 0 || last.sent != nil {
				t.Errorf("the next turn lost %d and sent %v", lost, last.sent)
			}
		})
	}
}

func TestOutboxAllocations(t *testing.T) {
	out := outbox{source: sink{}}
	to := netip.MustParseAddrPort("192.0.2.7:1000")
	ok, payload := wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1}, make([]byte, 3000)
	present := []uint64{1, 2, 3}
	if n := testing.AllocsPerRun(100, func() {
		for id := range uint32(20) {
			out.result(to, id, &ok, payload, false)
			out.nack(to, id, 180*1024, 180, present)
		}
		if lost := out.send(); lost != 0 {
			t.Fatalf("lost %d datagrams", lost)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
