package ingestfake

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/ingesttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
)

var from = netip.MustParseAddrPort("198.51.100.7:5000")

func openTwin(t *testing.T, o Options, payloads [][]byte) ingesttest.Twin {
	t.Helper()
	s, err := New(o)
	must.OK(t, err)
	for _, p := range payloads {
		s.Inject(from, p)
	}
	return ingesttest.CloseAtEnd(t, ingesttest.Twin{
		Source: s, CloseSlab: s.CloseSlab, From: from,
		Sent: func(t *testing.T, n int) [][]byte {
			var data [][]byte
			for _, p := range s.Sent() {
				data = append(data, p.Data)
			}
			if len(data) != n {
				t.Errorf("%d packets were sent, want %d", len(data), n)
			}
			return data
		},
	})
}

func TestSuite(t *testing.T) {
	for name, o := range map[string]Options{
		"perfect":    {},
		"straddling": {Straddle: 1},
		"delayed":    {Delay: 1, DelayFor: time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			ingesttest.Run(t, ingesttest.Kind{
				Open: func(t *testing.T, slabBytes int, payloads [][]byte) ingesttest.Twin {
					o := o
					o.SlabBytes = slabBytes
					return openTwin(t, o, payloads)
				},
				OpenQuiet: func(t *testing.T) ingesttest.Twin { return openTwin(t, o, nil) },
			})
		})
	}
}

// play injects numbered datagrams and returns the numbers in order of arrival.
func play(t *testing.T, o Options, n int) []int {
	t.Helper()
	s, err := New(o)
	must.OK(t, err)
	defer s.CloseSlab()
	defer s.Close()
	for i := range n {
		s.Inject(from, []byte{byte(i >> 8), byte(i), 'x'})
	}
	var got []int
	batch := make([]ingest.Datagram, 16)
	for len(s.queue) > 0 {
		k, err := s.Receive(batch, 0)
		must.OK(t, err)
		for _, d := range batch[:k] {
			p := ingesttest.Payload(s, d)
			got = append(got, int(p[0])<<8|int(p[1]))
			ingesttest.Release(s, d)
		}
	}
	return got
}

func TestMishaps(t *testing.T) {
	const n = 4000
	distinct := func(got []int) int {
		sorted := slices.Clone(got)
		slices.Sort(sorted)
		return len(slices.Compact(sorted))
	}
	for _, test := range []struct {
		name                         string
		o                            Options
		lost, duplicated, outOfOrder float64
	}{
		{"perfect", Options{}, 0, 0, 0},
		{"loss", Options{Loss: 0.1}, 0.1, 0, 0},
		{"duplicate", Options{Duplicate: 0.1}, 0, 0.1, 0},
		{"reorder", Options{Reorder: 0.1}, 0, 0, 0.1},
		{"delay", Options{Delay: 0.1, DelayFor: time.Second}, 0, 0, 0},
		{"all lost", Options{Loss: 1}, 1, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := play(t, test.o, n)
			lost := n - distinct(got)
			duplicated := len(got) - distinct(got)
			moved := 0
			for i := 1; i < len(got); i++ {
				if got[i] < got[i-1] {
					moved++
				}
			}
			near := func(what string, got int, share float64) {
				if want := share * n; float64(got) < want*0.7 || float64(got) > want*1.3 {
					t.Errorf("%d %s, want about %v", got, what, want)
				}
			}
			near("lost", lost, test.lost)
			near("duplicated", duplicated, test.duplicated)
			if test.o.Delay == 0 {
				near("out of order", moved, test.outOfOrder)
			} else if moved == 0 {
				t.Error("nothing was overtaken while it was delayed")
			}
		})
	}
}

func TestSeed(t *testing.T) {
	o := Options{Loss: 0.1, Duplicate: 0.1, Reorder: 0.2, Straddle: 0.3, Seed: 5}
	first := play(t, o, 1000)
	if !slices.Equal(first, play(t, o, 1000)) {
		t.Error("another outcome with the same seed")
	}
	if o.Seed = 6; slices.Equal(first, play(t, o, 1000)) {
		t.Error("the same outcome with another seed")
	}
}

func TestDelay(t *testing.T) {
	s, err := New(Options{Delay: 1, DelayFor: 5 * time.Millisecond})
	must.OK(t, err)
	ingesttest.CloseAtEnd(t, ingesttest.Twin{Source: s, CloseSlab: s.CloseSlab})
	injected := shm.Now()
	s.Inject(from, []byte("late"))
	d := ingesttest.Receive(t, s, 1, 4)[0]
	if after := time.Duration(shm.Now() - injected); after < 5*time.Millisecond {
		t.Errorf("came after %v", after)
	}
	ingesttest.Release(s, d)
}

func TestInjectAndSendCopy(t *testing.T) {
	s, err := New(Options{})
	must.OK(t, err)
	ingesttest.CloseAtEnd(t, ingesttest.Twin{Source: s, CloseSlab: s.CloseSlab})
	data := []byte("before")
	s.Inject(from, data)
	must.Get(s.Send([]ingest.Packet{{To: from, Data: data}}))(t)
	copy(data, "after!")
	d := ingesttest.Receive(t, s, 1, 1)[0]
	if got := ingesttest.Payload(s, d); !bytes.Equal(got, []byte("before")) {
		t.Errorf("received %q", got)
	}
	if got := s.Sent(); len(got) != 1 || string(got[0].Data) != "before" || got[0].To != from {
		t.Errorf("sent %+v", got)
	}
	ingesttest.Release(s, d)
}

func TestSendsCanBeRefused(t *testing.T) {
	s, err := New(Options{})
	must.OK(t, err)
	ingesttest.CloseAtEnd(t, ingesttest.Twin{Source: s, CloseSlab: s.CloseSlab})
	refusal := errors.New("no way")
	s.RefuseSends(refusal)
	if n, err := s.Send([]ingest.Packet{{To: from}}); n != 0 || !errors.Is(err, refusal) {
		t.Errorf("sent %d, %v", n, err)
	}
	s.RefuseSends(nil)
	if n, err := s.Send([]ingest.Packet{{To: from}}); n != 1 || err != nil {
		t.Errorf("sent %d, %v", n, err)
	}
}
