package udp

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"golang.org/x/net/bpf"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// verdict runs the filter on a datagram from that port, and reports whether the filter
// accepts all of it.
func verdict(t *testing.T, threshold uint32, port uint16, datagram []byte) bool {
	t.Helper()
	return left(t, threshold, port, datagram) == len(datagram)
}

// left returns how many bytes of a datagram from that port the filter keeps, -1 for none.
func left(t *testing.T, threshold uint32, port uint16, datagram []byte) int {
	t.Helper()
	vm, err := bpf.NewVM(filterProgram(threshold))
	must.OK(t, err)
	packet := binary.BigEndian.AppendUint16(nil, port)
	packet = append(packet, 0, 0, 0, 0, 0, 0)
	kept, err := vm.Run(append(packet, datagram...))
	must.OK(t, err)
	if kept == 0 {
		return -1
	}
	return min(kept, len(packet)+len(datagram)) - udpHeaderBytes
}

// fragmentBytes makes requests of 16 fragments just large enough to be answered when shed.
const fragmentBytes = answeredBytes / 16

// fragmentOf returns a fragment of a request of 16 fragments.
func fragmentOf(id uint32, index int) []byte {
	return fragmentOfTotal(id, answeredBytes, fragmentBytes, index, 0)
}

func fragmentOfTotal(id uint32, total, size, index int, flags wire.Flags) []byte {
	h := wire.FragmentHeader(wire.TypeData, id, total, size, index)
	h.Flags |= flags
	b := make([]byte, wire.DatagramSize(&h))
	h.Put(b)
	return b
}

func TestFilterCutsFirstFragment(t *testing.T) {
	const header, extended = wire.HeaderSize, wire.HeaderSize + wire.BlockSize
	for _, c := range []struct {
		name        string
		total, size int
		index       int
		flags       wire.Flags
		want        int
	}{
		{"fragment 0", answeredBytes, 1024, 0, 0, header},
		{"with an extension", answeredBytes, 1024, 0, wire.FlagExtension, extended},
		{"padded, with an extension, once more", answeredBytes, 1000, 0, wire.FlagExtension | wire.FlagPadded | wire.FlagRetransmitted, extended},
		{"fragment 1", answeredBytes, 1024, 1, 0, -1},
		{"fragment 256", 257 * 1024, 1024, 256, 0, -1},
		{"the last", answeredBytes, 1024, 15, 0, -1},
		{"fragment 0 alone", answeredBytes, answeredBytes, 0, 0, header},
		{"fragment 0 alone, small", 1000, 1000, 0, 0, -1},
		{"too small by one", answeredBytes - 1, 1024, 0, 0, -1},
		{"150 KB", 150528, 1024, 0, 0, header},
		{"64 KiB, of which the lower half of the total is 0", 1 << 16, 1024, 0, 0, header},
		{"fragments of one byte", answeredBytes, 1, 0, 0, header},
	} {
		b := fragmentOfTotal(7, c.total, c.size, c.index, c.flags)
		if got := left(t, 0, 1, b); got != c.want {
			t.Errorf("%s: %d bytes are left, want %d", c.name, got, c.want)
		}
		if requestHash(1, 7) >= 1<<32-1 {
			t.Fatal("the request is shed by any filter")
		}
		if got := left(t, 1<<32-1, 1, b); got != len(b) {
			t.Errorf("%s: %d bytes are left of one that is accepted, want %d", c.name, got, len(b))
		}
		if c.want < 0 {
			continue
		}
		if !isCut(b[:wire.HeaderSize], c.want) {
			t.Errorf("%s: it is not known as cut", c.name)
		}
		if c.size > 1 && isCut(b[:wire.HeaderSize], len(b)) {
			t.Errorf("%s: the whole is taken for cut", c.name)
		}
	}
}

func TestFilterCutDetection(t *testing.T) {
	change := func(at int, to ...byte) []byte {
		b := fragmentOf(7, 0)[:wire.HeaderSize]
		copy(b[at:], to)
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		size int
	}{
		"short":                        {change(0)[:21], 21},
		"magic":                        {change(0, 'Q'), 22},
		"a wish":                       {change(2, 0x13), 22},
		"fragment 1":                   {fragmentOf(7, 1)[:22], 22},
		"nothing was cut off":          {change(20, 0, 0), 22},
		"total 0":                      {change(12, 0, 0, 0, 0), 22},
		"an extension that is not":     {change(0), 86},
		"an extension that is cut off": {change(3, byte(wire.FlagExtension)), 22},
		"the whole, of 64 bytes":       {fragmentOfTotal(7, answeredBytes, 64, 0, 0)[:22], 86},
	} {
		if isCut(c.b, c.size) {
			t.Errorf("%s: it is taken for cut", name)
		}
	}
}

func TestTheFilterDecidesByPortAndID(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		port, id, threshold, index := uint16(random.Uint32()), random.Uint32(), random.Uint32(), random.IntN(16)
		b := fragmentOf(id, index)
		if want := requestHash(port, id) < threshold; verdict(t, threshold, port, b) != want {
			t.Fatalf("fragment %d of request %#x from port %d with threshold %#x: accepted is not %v", index, id, port, threshold, want)
		}
	}
}

// Consecutive ids are shed evenly, whatever the first is: of any 64 in a row, the filter
// sheds the desired part, give or take two.
func TestFilterShedsEvenly(t *testing.T) {
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

func TestFilterAcceptsOthers(t *testing.T) {
	fragment := fragmentOf(7, 3)
	if verdict(t, 0, 1, fragment) {
		t.Fatal("a threshold of 0 accepts a fragment")
	}
	change := func(at int, to byte) []byte {
		b := append([]byte(nil), fragment...)
		b[at] = to
		return b
	}
	for name, b := range map[string][]byte{
		"empty":         {},
		"one byte":      {'P'},
		"short":         fragment[:wire.HeaderSize-1],
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
	for name, b := range map[string][]byte{"all flags": change(3, 0x0f), "header alone": fragment[:wire.HeaderSize]} {
		if left(t, 0, 1, b) >= 0 {
			t.Errorf("%s: it is accepted", name)
		}
	}
}
