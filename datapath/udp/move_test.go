package udp

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/freeport"
)

// echoes opens n sources of one port that send back everything they receive, until stop.
func echoes(t *testing.T, n int) (sources []*Source, stop func()) {
	t.Helper()
	sources, err := OpenSeveral(Options{Listen: freePort(t), SlabBytes: 4 << 20}, n)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, n)
	for _, s := range sources {
		go func() {
			batch := make([]ingest.Datagram, 8)
			for {
				got, err := s.Receive(batch, 0)
				if err != nil {
					done <- err
					return
				}
				for _, d := range batch[:got] {
					text := append([]byte{}, s.Slab().Bytes()[d.First.Offset:][:d.First.Length]...)
					s.Release([]ingest.Span{d.First})
					if _, err := s.Send([]ingest.Packet{{To: d.From, Data: text}}); err != nil {
						t.Errorf("send: %v", err)
					}
				}
			}
		}()
	}
	stop = func() {
		for _, s := range sources {
			s.Close()
			<-done
		}
		for _, s := range sources {
			s.CloseSlab()
		}
	}
	return sources, stop
}

// asks sends a text and expects it back from the address it was sent to: the client is
// connected.
func (c client) asks(text string) error {
	c.send([]byte(text))
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	buffer := make([]byte, 64)
	n, err := c.Read(buffer)
	if err == nil && string(buffer[:n]) != text {
		err = fmt.Errorf("answer %q, want %q", buffer[:n], text)
	}
	return err
}

func TestMove(t *testing.T) {
	for _, n := range []int{1, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			sources, stop := echoes(t, n)
			defer stop()
			old := sources[0].LocalAddr()
			var before, after []client
			for range 8 {
				before = append(before, newClient(t, old))
			}
			check := func(at string, clients []client) {
				t.Helper()
				for i, c := range clients {
					if err := c.asks(fmt.Sprint(at, i)); err != nil {
						t.Errorf("%s, client %d: %v", at, i, err)
					}
				}
			}
			check("before", before)
			move, err := OpenMove(sources, freePort(t))
			if err != nil {
				t.Fatal(err)
			}
			check("opened", before)
			const linger = time.Hour
			move.Commit(linger)
			for range 8 {
				after = append(after, newClient(t, sources[0].LocalAddr()))
			}
			for _, s := range sources {
				if s.LocalAddr() == old || s.LocalAddr() != sources[0].LocalAddr() {
					t.Errorf("a source is at %v, want all at the new port", s.LocalAddr())
				}
			}
			for range 3 { // in turns: each is answered by the port it sent to
				check("old port", before)
				check("new port", after)
			}
			// No other source gets the old port while it is open.
			if s, err := Open(Options{Listen: old}); err == nil {
				s.Close()
				t.Error("another source gets a port that is still open")
			}
			for _, s := range sources {
				s.closeFormer(s.former.moves)
			}
			check("alone", after)
			again, err := Open(Options{Listen: old})
			if err != nil {
				t.Fatalf("the old port is not free: %v", err)
			}
			again.Close()
			again.CloseSlab()
		})
	}
}

// freePort returns an address with a port that is free.
func freePort(t *testing.T) netip.AddrPort {
	t.Helper()
	at, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// If the port cannot be bound, nothing stays open, and the sources stay as they were.
func TestMoveToATakenPort(t *testing.T) {
	sources, stop := echoes(t, 2)
	defer stop()
	taken, err := Open(Options{Listen: loopback4})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.CloseSlab()
	defer taken.Close()
	if _, err := OpenMove(sources, taken.LocalAddr()); err == nil {
		t.Fatal("a port that is taken was opened")
	}
	if err := newClient(t, sources[0].LocalAddr()).asks("still here"); err != nil {
		t.Error(err)
	}
}

// Two moves, one after the other: the second closes the port of the time before the first.
// The first's timer does not close the second's former port.
func TestMoveTwice(t *testing.T) {
	sources, stop := echoes(t, 1)
	defer stop()
	s := sources[0]
	for range 2 {
		move, err := OpenMove(sources, freePort(t))
		if err != nil {
			t.Fatal(err)
		}
		c := newClient(t, s.LocalAddr())
		move.Commit(time.Hour)
		s.closeFormer(s.former.moves - 1)
		if err := c.asks("from the port before"); err != nil {
			t.Error(err)
		}
	}
	s.Close() // closes all of them
	if s.former.socket < 0 {
		t.Error("the last former port was closed early")
	}
}
