// Package ingesttest is one suite for every source: the kernel socket and
// the in-memory fake.
package ingesttest

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/shm"
)

// Twin is a source under test with its surroundings for the suite.
type Twin struct {
	Source ingest.Source
	// CloseSlab unmaps the source's slab after Close.
	CloseSlab func() error
	// From is the sender of the datagrams.
	From netip.AddrPort
	// Sent returns the payloads of the next n packets that were sent to From.
	Sent func(t *testing.T, n int) [][]byte
}

// Kind makes sources of one kind.
type Kind struct {
	// Open makes a source with a slab of slabBytes in which these payloads
	// arrive, in order, soon after it is opened.
	Open func(t *testing.T, slabBytes int, payloads [][]byte) Twin
	// OpenQuiet makes a source in which nothing arrives for an hour.
	OpenQuiet func(t *testing.T) Twin
	// BufferBytes is how much of the slab each datagram uses if it has a separate
	// buffer; 0 if it uses only its own size.
	BufferBytes uint64
}

// Patience bounds what should happen immediately, so that a hang is a failure.
const Patience = 20 * time.Second

const slabBytes = 1 << 20

// Run runs the suite.
func Run(t *testing.T, k Kind) {
	tests := []struct {
		name string
		run  func(t *testing.T, k Kind)
	}{
		{"ReceivesEveryDatagramWholeAndInOrder", receivesAll},
		{"KeepsWhatASmallBatchLeaves", keepsTheRest},
		{"HoldsNoMoreThanTwiceThePayload", holdsLittle},
		{"ReturnsAtADeadlineThatHasPassed", returnsAtDeadline},
		{"WaitsForTheDeadline", waitsForDeadline},
		{"CloseEndsABlockedReceive", closes},
		{"RefusesAfterClose", refusesAfterClose},
		{"ReleasesAfterClose", releasesAfterClose},
		{"GoesOnAfterAFullSlab", survivesFullSlab},
		{"SendsInOrder", sends},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := openfiles.Count(t)
			// A cleanup of the outermost test runs after the twins' cleanups.
			t.Cleanup(func() {
				if after := openfiles.Count(t); after > before {
					t.Errorf("%d descriptors are open, %d were before the test", after, before)
				}
			})
			test.run(t, k)
		})
	}
}

// CloseAtEnd closes a twin at the end of the test and checks that no datagram is held.
func CloseAtEnd(t *testing.T, twin Twin) Twin {
	t.Helper()
	t.Cleanup(func() {
		if held := twin.Source.Stats().HeldBytes; held != 0 && !t.Failed() {
			t.Errorf("%d bytes of slab are held at the end", held)
		}
		if err := twin.Source.Close(); err != nil {
			t.Errorf("close source: %v", err)
		}
		if err := twin.CloseSlab(); err != nil {
			t.Errorf("close slab: %v", err)
		}
	})
	return twin
}

// Payloads makes n payloads of size bytes that differ from each other in every byte.
func Payloads(n, size int) [][]byte {
	payloads := make([][]byte, n)
	for i := range payloads {
		payloads[i] = make([]byte, size)
		for j := range payloads[i] {
			payloads[i][j] = byte(i*31 + j*7 + j>>8)
		}
	}
	return payloads
}

// Payload returns a datagram's bytes in one slice.
func Payload(s ingest.Source, d ingest.Datagram) []byte {
	slab := s.Slab().Bytes()
	var payload []byte
	for _, span := range []ingest.Span{d.First, d.Rest} {
		payload = append(payload, slab[span.Offset:span.Offset+uint64(span.Length)]...)
	}
	return payload
}

// Release releases a datagram.
func Release(s ingest.Source, d ingest.Datagram) {
	if d.Rest.Length > 0 {
		s.Release([]ingest.Span{d.First, d.Rest})
		return
	}
	s.Release([]ingest.Span{d.First})
}

// Receive collects n datagrams, at most batch per call.
func Receive(t *testing.T, s ingest.Source, n, batch int) []ingest.Datagram {
	t.Helper()
	deadline := time.Now().Add(Patience)
	got := make([]ingest.Datagram, 0, n)
	buffer := make([]ingest.Datagram, batch)
	for i := range buffer {
		buffer[i].Shed = true // a batch need not be cleared
	}
	for len(got) < n {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d datagrams came: %+v", len(got), n, s.Stats())
		}
		k, err := s.Receive(buffer, shm.Now()+int64(100*time.Millisecond))
		if err != nil {
			t.Fatalf("receive after %d of %d datagrams: %v", len(got), n, err)
		}
		got = append(got, buffer[:k]...)
	}
	return got
}

func receivesAll(t *testing.T, k Kind) {
	var sent [][]byte
	for _, size := range []int{1046, 1, 22, 64, 1400, 0, 5000, 63} {
		sent = append(sent, Payloads(10, size)...)
	}
	twin := k.Open(t, slabBytes, sent)
	got := Receive(t, twin.Source, len(sent), 32)
	total := 0
	for i, d := range got {
		if want := sent[i]; !bytes.Equal(Payload(twin.Source, d), want) {
			t.Errorf("datagram %d of %d bytes came as %d others", i, len(want), d.Length())
		}
		if d.From != twin.From {
			t.Errorf("datagram %d comes from %v, want %v", i, d.From, twin.From)
		}
		if d.Shed {
			t.Errorf("datagram %d is said to be shed", i)
		}
		total += d.Length()
	}
	stats := twin.Source.Stats()
	if stats.Datagrams != uint64(len(sent)) || stats.Bytes != uint64(total) {
		t.Errorf("counted %d datagrams of %d bytes, want %d of %d", stats.Datagrams, stats.Bytes, len(sent), total)
	}
	for _, d := range got {
		Release(twin.Source, d)
	}
}

func keepsTheRest(t *testing.T, k Kind) {
	sent := Payloads(50, 700)
	twin := k.Open(t, slabBytes, sent)
	for i, d := range Receive(t, twin.Source, len(sent), 1) {
		if !bytes.Equal(Payload(twin.Source, d), sent[i]) {
			t.Errorf("datagram %d is another one", i)
		}
		Release(twin.Source, d)
	}
}

func holdsLittle(t *testing.T, k Kind) {
	const size = 1046
	sent := Payloads(60, size)
	twin := k.Open(t, slabBytes, sent)
	for _, d := range Receive(t, twin.Source, len(sent), 1) {
		defer Release(twin.Source, d)
	}
	held, payload := twin.Source.Stats().HeldBytes, uint64(len(sent)*size)
	if k.BufferBytes != 0 {
		if want := uint64(len(sent)) * k.BufferBytes; held != want {
			t.Errorf("%d bytes of slab are held for %d datagrams, want %d", held, len(sent), want)
		}
		return
	}
	if held < payload || held > 2*payload {
		t.Errorf("%d bytes of slab are held for %d of payload", held, payload)
	}
}

func returnsAtDeadline(t *testing.T, k Kind) {
	twin := k.OpenQuiet(t)
	for _, deadline := range []int64{1, shm.Now()} {
		if n, err := twin.Source.Receive(make([]ingest.Datagram, 4), deadline); n != 0 || err != nil {
			t.Errorf("receive until %d: %d, %v; want 0 and no error", deadline, n, err)
		}
	}
}

func waitsForDeadline(t *testing.T, k Kind) {
	twin := k.OpenQuiet(t)
	deadline := shm.Now() + int64(20*time.Millisecond)
	n, err := twin.Source.Receive(make([]ingest.Datagram, 4), deadline)
	if n != 0 || err != nil {
		t.Errorf("receive: %d, %v; want 0 and no error", n, err)
	}
	if now := shm.Now(); now < deadline {
		t.Errorf("returned %v before the deadline", time.Duration(deadline-now))
	}
}

// blocked runs Receive without a deadline and returns its error on the channel.
func blocked(s ingest.Source) <-chan error {
	done := make(chan error, 1)
	go func() {
		n, err := s.Receive(make([]ingest.Datagram, 4), 0)
		if n != 0 {
			err = errors.Join(err, fmt.Errorf("%d datagrams came", n))
		}
		done <- err
	}()
	return done
}

func closes(t *testing.T, k Kind) {
	// In some of these rounds Receive already sleeps, in others not yet.
	for i := range 4 {
		twin := k.OpenQuiet(t)
		done := blocked(twin.Source)
		time.Sleep(time.Duration(i) * time.Millisecond)
		if err := twin.Source.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
		select {
		case err := <-done:
			if !errors.Is(err, ingest.ErrClosed) {
				t.Fatalf("receive ended with %v, want ErrClosed", err)
			}
		case <-time.After(Patience):
			t.Fatal("Close did not end a blocked Receive")
		}
	}
}

func refusesAfterClose(t *testing.T, k Kind) {
	twin := k.OpenQuiet(t)
	for range 2 {
		if err := twin.Source.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	if _, err := twin.Source.Receive(make([]ingest.Datagram, 4), 0); !errors.Is(err, ingest.ErrClosed) {
		t.Errorf("receive after close: %v, want ErrClosed", err)
	}
	if _, err := twin.Source.Send([]ingest.Packet{{To: twin.From, Data: []byte("x")}}); !errors.Is(err, ingest.ErrClosed) {
		t.Errorf("send after close: %v, want ErrClosed", err)
	}
	twin.Source.Stats()
}

func releasesAfterClose(t *testing.T, k Kind) {
	sent := Payloads(5, 1046)
	twin := k.Open(t, slabBytes, sent)
	got := Receive(t, twin.Source, len(sent), 8)
	must.OK(t, twin.Source.Close())
	for i, d := range got {
		if !bytes.Equal(Payload(twin.Source, d), sent[i]) {
			t.Errorf("datagram %d changed with Close", i)
		}
		Release(twin.Source, d)
	}
}

func survivesFullSlab(t *testing.T, k Kind) {
	// 40 datagrams of 8 KB fit in the smallest socket buffer that kernels grant
	// by default, but not in this slab together with room for a read.
	const size = 8 << 10
	sent := Payloads(40, size)
	twin := k.Open(t, 256<<10, sent)
	var held []ingest.Datagram
	next := 0
	deadline := time.Now().Add(Patience)
	for next < len(sent) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d datagrams came: %+v", next, len(sent), twin.Source.Stats())
		}
		batch := make([]ingest.Datagram, 4)
		n, err := twin.Source.Receive(batch, shm.Now()+int64(50*time.Millisecond))
		must.OK(t, err)
		for _, d := range batch[:n] {
			if !bytes.Equal(Payload(twin.Source, d), sent[next]) {
				t.Errorf("datagram %d is another one", next)
			}
			next++
		}
		held = append(held, batch[:n]...)
		if n == 0 && twin.Source.Stats().NoRoom > 0 { // otherwise the next datagram is late
			for _, d := range held {
				Release(twin.Source, d)
			}
			held = held[:0]
		}
	}
	for _, d := range held {
		Release(twin.Source, d)
	}
	if twin.Source.Stats().NoRoom == 0 {
		t.Error("a full slab was not counted")
	}
}

func sends(t *testing.T, k Kind) {
	twin := k.OpenQuiet(t)
	var packets []ingest.Packet
	for _, size := range []int{0, 1, 100, 1400, 9000} {
		for _, data := range Payloads(20, size) {
			packets = append(packets, ingest.Packet{To: twin.From, Data: data})
		}
	}
	for at := 0; at < len(packets); {
		n, err := twin.Source.Send(packets[at:min(at+10, len(packets))])
		if err != nil {
			t.Fatalf("send: %d, %v", n, err)
		}
		for i, got := range twin.Sent(t, n) {
			if !bytes.Equal(got, packets[at+i].Data) {
				t.Errorf("packet %d of %d bytes came as %d others", at+i, len(packets[at+i].Data), len(got))
			}
		}
		at += n
	}
}
