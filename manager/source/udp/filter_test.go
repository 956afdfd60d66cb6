package udp

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"golang.org/x/net/bpf"

	"github.com/penstock/penstock/wire"
)

// verdict runs the filter on a datagram from that port.
func verdict(t *testing.T, threshold uint32, port uint16, datagram []byte) bool {
	t.Helper()
	vm, err := bpf.NewVM(filterProgram(threshold))
	if err != nil {
		t.Fatal(err)
	}
	packet := binary.BigEndian.AppendUint16(nil, port)
	packet = append(packet, 0, 0, 0, 0, 0, 0)
	kept, err := vm.Run(append(packet, datagram...))
	if err != nil {
		t.Fatal(err)
	}
	return kept != 0
}

// pieceOf is a piece of a request of 16 pieces.
func pieceOf(id uint32, index int) []byte {
	h := wire.PieceHeader(wire.TypeData, id, 16*100, 100, index)
	b := make([]byte, wire.HeaderSize+100)
	h.Put(b)
	return b
}

func TestTheFilterDecidesByPortAndID(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		port, id, threshold, index := uint16(random.Uint32()), random.Uint32(), random.Uint32(), random.IntN(16)
		b := pieceOf(id, index)
		if want := requestHash(port, id) < threshold; verdict(t, threshold, port, b) != want {
			t.Fatalf("piece %d of request %#x from port %d with threshold %#x: accepted is not %v", index, id, port, threshold, want)
		}
	}
}

// Ids that count up are shed evenly, wherever they begin: of any 64 in a row the wanted
// part, give or take two.
func TestAClientsRequestsAreShedEvenly(t *testing.T) {
	for _, steps := range []uint32{4, 32, 64, 85, 120} {
		for _, first := range []uint32{0, 12345, 1<<32 - 100} {
			for _, port := range []uint16{1, 40000, 65535} {
				for at := first; at != first+512; at += 64 {
					n := 0
					for id := at; id != at+64; id++ {
						if requestHash(port, id) < steps*(1<<32/filterSteps) {
							n++
						}
					}
					if want := int(steps) / 2; n < want-2 || n > want+2 {
						t.Fatalf("port %d: %d of the 64 requests from %d are accepted, want %d", port, n, at, want)
					}
				}
			}
		}
	}
}

func TestWhatIsNoPieceOfARequestIsAccepted(t *testing.T) {
	piece := pieceOf(7, 3)
	if verdict(t, 0, 1, piece) {
		t.Fatal("a threshold of 0 accepts a piece")
	}
	change := func(at int, to byte) []byte {
		b := append([]byte(nil), piece...)
		b[at] = to
		return b
	}
	for name, b := range map[string][]byte{
		"empty":         {},
		"one byte":      {'P'},
		"short":         piece[:wire.HeaderSize-1],
		"magic":         change(0, 'Q'),
		"magic's end":   change(1, 'T'),
		"version":       change(2, 0x21),
		"a result":      change(2, 0x12),
		"a wish":        change(2, 0x13),
		"reserved flag": change(3, 0x80),
	} {
		if !verdict(t, 0, 1, b) {
			t.Errorf("%s: it is dropped", name)
		}
	}
	for name, b := range map[string][]byte{"all flags": change(3, 0x0f), "header alone": piece[:wire.HeaderSize]} {
		if verdict(t, 0, 1, b) {
			t.Errorf("%s: it is accepted", name)
		}
	}
}

// BenchmarkAttachFilter is what a change of the filter costs the receiver.
func BenchmarkAttachFilter(b *testing.B) {
	s, err := Open(Options{Listen: loopback4, SlabBytes: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer s.CloseSlab()
	defer s.Close()
	for i := range b.N {
		if err := attachFilter(s.socket, 1+i%100); err != nil {
			b.Fatal(err)
		}
	}
}
