//go:build dpdk && cgo

package dpdk

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/penstock/penstock/datapath/dpdk/frame"
	"github.com/penstock/penstock/internal/testing/ingesttest"
	"github.com/penstock/penstock/internal/testing/must"
)

// The smallest case: a frame becomes a datagram in the slab, and Release returns its mbuf.
func TestFrameToDatagram(t *testing.T) {
	b := newBed(t, Options{})
	s := b.listen(9000)
	b.send(s, client4, []byte("a picture"))
	d := ingesttest.Receive(t, s, 1, 8)[0]
	if got := ingesttest.Payload(s, d); string(got) != "a picture" || d.From != client4 {
		t.Errorf("received %q from %v", got, d.From)
	}
	if held := b.held.Load(); held != 1 {
		t.Errorf("%d mbufs are held, want 1", held)
	}
	release(s, d)
	if held := b.held.Load(); held != 0 {
		t.Errorf("%d mbufs are held after the release", held)
	}
}

func TestSourcePassesTheSuite(t *testing.T) {
	for name, from := range map[string]netip.AddrPort{"IPv4": client4, "IPv6": client6} {
		t.Run(name, func(t *testing.T) {
			open := func(t *testing.T, slabBytes int) (*bed, *Source, ingesttest.Twin) {
				b := newBed(t, Options{MTU: jumbo, Mbufs: slabBytes / strideOfJumbo})
				s, err := listenOne(b.Group, 9000)
				must.OK(t, err)
				return b, s, ingesttest.CloseAtEnd(t, b.twin(s, from))
			}
			ingesttest.Run(t, ingesttest.Kind{
				BufferBytes: strideOfJumbo,
				Open: func(t *testing.T, slabBytes int, payloads [][]byte) ingesttest.Twin {
					b, s, twin := open(t, slabBytes)
					b.injectors.Go(func() { b.send(s, from, payloads...) })
					return twin
				},
				OpenQuiet: func(t *testing.T) ingesttest.Twin {
					b, s, twin := open(t, 1<<20)
					b.send(s, from, []byte("so that the way to it is known"))
					release(s, ingesttest.Receive(t, s, 1, 1)...)
					return twin
				},
			})
		})
	}
}

// strideOfJumbo is the size of an mbuf with room for a jumbo: the frame and headroom, struct
// rte_mbuf and the pool's header. The number of cache lines is odd; otherwise DPDK would add
// one.
const strideOfJumbo = 64 + 128 + 128 + 10<<10

func TestPayloadIsAligned(t *testing.T) {
	b := newBed(t, Options{})
	s := b.listen(9000)
	const headerBytes = 22
	b.send(s, client4, make([]byte, headerBytes+1024))
	d := ingesttest.Receive(t, s, 1, 1)[0]
	if at := d.First.Offset + headerBytes; at%64 != 0 {
		t.Errorf("the picture's bytes begin at %d", at)
	}
	release(s, d)
}

func TestSlabReadOnly(t *testing.T) {
	b := newBed(t, Options{})
	s := b.listen(9000)
	b.send(s, client4, []byte("seen by descriptor"))
	d := ingesttest.Receive(t, s, 1, 1)[0]
	got := make([]byte, d.First.Length)
	if _, err := s.Slab().File().ReadAt(got, int64(d.First.Offset)); err != nil || string(got) != "seen by descriptor" {
		t.Errorf("the file holds %q there, %v", got, err)
	}
	if n, err := s.Slab().File().WriteAt([]byte("x"), int64(d.First.Offset)); err == nil {
		t.Errorf("%d bytes were written through the descriptor", n)
	}
	release(s, d)
}

// net_af_xdp relies on it: it registers as much memory with the kernel as closely packed
// mbufs would take. The kernel drops what lies behind that.
func TestMbufsLieCloselyOnSmallPages(t *testing.T) {
	b := newBed(t, Options{Mbufs: 3000})
	const stride = 64 + 128 + 128 + 2<<10
	if got := b.pool.StrideBytes(); got != stride {
		t.Errorf("an mbuf takes %d bytes, want %d", got, stride)
	}
	first, last := -1, -1
	for at := range uint64(b.pool.Memory().Size()) / 64 {
		if n, _, ok := b.pool.Mbuf(at * 64); ok {
			if first < 0 {
				first = int(at * 64)
			}
			last = int(at * 64)
			if n != (last-first)/stride {
				t.Fatalf("byte %d is mbuf %d's", last, n)
			}
		}
	}
	if last+64-first != 3000*stride {
		t.Errorf("3000 mbufs take %d bytes", last+64-first)
	}
}

func TestARPIsAnswered(t *testing.T) {
	b := newBed(t, Options{})
	reply := b.arp()
	if !bytes.Equal(reply[:6], clientMAC[:]) || !bytes.Equal(reply[28:32], own4.AsSlice()) {
		t.Errorf("answer %x", reply)
	}
	b.wantReason(frame.ARP, 1)
}
