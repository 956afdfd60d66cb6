package device

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock/penstock/shm"
)

func TestOrderErrors(t *testing.T) {
	slabs := []uint64{1000, 64}
	whole := func() []shm.Fragment {
		return []shm.Fragment{{Offset: 500, Place: 30, Length: 70}, {Offset: 0, Place: 0, Length: 10}, {Offset: 44, Place: 10, Length: 20, Slab: 1}}
	}
	for _, c := range []struct {
		name  string
		spoil func(p []shm.Fragment) []shm.Fragment
		bad   int
		want  error
	}{
		{"nothing", func(p []shm.Fragment) []shm.Fragment { return p }, -1, nil},
		{"unknown slab", func(p []shm.Fragment) []shm.Fragment { p[1].Slab = 2; return p }, 1, ErrSlab},
		{"no bytes", func(p []shm.Fragment) []shm.Fragment { return append(p, shm.Fragment{Place: 50}) }, 3, errEmpty},
		{"offset past the slab", func(p []shm.Fragment) []shm.Fragment { p[0].Offset = 931; return p }, 0, ErrOutsideSlab},
		{"offset that wraps", func(p []shm.Fragment) []shm.Fragment { p[0].Offset = ^uint64(0) - 5; return p }, 0, ErrOutsideSlab},
		{"longer than the slab", func(p []shm.Fragment) []shm.Fragment { p[2].Offset, p[2].Length = 0, 65; return p }, 2, ErrOutsideSlab},
		{"past the request", func(p []shm.Fragment) []shm.Fragment { p[0].Place = 31; return p }, 0, errOutsideRequest},
		{"place that wraps", func(p []shm.Fragment) []shm.Fragment { p[0].Place = ^uint32(0); return p }, 0, errOutsideRequest},
		{"overlap", func(p []shm.Fragment) []shm.Fragment { p[0].Place = 29; return p }, -1, ErrOverlap},
		{"a fragment twice", func(p []shm.Fragment) []shm.Fragment { return append(p, p[1]) }, -1, ErrOverlap},
		{"gap in the middle", func(p []shm.Fragment) []shm.Fragment { p[2].Length = 19; return p }, -1, ErrGap},
		{"gap at the start", func(p []shm.Fragment) []shm.Fragment { return slices.Delete(p, 1, 2) }, -1, ErrGap},
		{"gap at the end", func(p []shm.Fragment) []shm.Fragment { p[0].Length = 69; return p }, -1, ErrGap},
		{"no fragments", func([]shm.Fragment) []shm.Fragment { return nil }, -1, ErrGap},
		{"one overlaps what another leaves out", func(p []shm.Fragment) []shm.Fragment {
			p[0].Length, p[2].Offset, p[2].Length = 60, 0, 30
			return p
		}, -1, ErrOverlap},
	} {
		t.Run(c.name, func(t *testing.T) {
			fragments := c.spoil(whole())
			_, bad, err := Order(nil, Request{Fragments: fragments, Bytes: 100}, slabs)
			if !errors.Is(err, c.want) || bad != c.bad {
				t.Errorf("Order = fragment %d, %v; want fragment %d, %v", bad, err, c.bad, c.want)
			}
		})
	}
}

func TestOrder(t *testing.T) {
	const n, length = 507, 1024
	fragments := make([]shm.Fragment, n)
	for i := range fragments {
		fragments[i] = shm.Fragment{Offset: uint64(i * length), Place: uint32(i * length), Length: length}
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { fragments[i], fragments[j] = fragments[j], fragments[i] })
	before := slices.Clone(fragments)
	slabs := []uint64{n * length}
	scratch, _, err := Order(nil, Request{Fragments: fragments, Bytes: n * length}, slabs)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range scratch {
		if p.Place != uint32(i*length) {
			t.Fatalf("fragment %d is at place %d", i, p.Place)
		}
	}
	if !slices.Equal(before, fragments) {
		t.Error("Order changed the request's own fragments")
	}
	if got := testing.AllocsPerRun(10, func() {
		scratch, _, _ = Order(scratch, Request{Fragments: fragments, Bytes: n * length}, slabs)
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func TestLay(t *testing.T) {
	mem := make([]byte, 3*TensorAlign+5)
	got, err := Lay(HostBuffer(mem), 1, TensorAlign+1, 0, 5)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ at, size int }{{0, 1}, {TensorAlign, TensorAlign + 1}, {3 * TensorAlign, 0}, {3 * TensorAlign, 5}} {
		if tensor := got[i].Bytes(); len(tensor) != want.size || cap(tensor) != want.size {
			t.Errorf("tensor %d has %d bytes and room for %d, want %d", i, len(tensor), cap(tensor), want.size)
		}
		if want.size > 0 && &got[i].Bytes()[0] != &mem[want.at] {
			t.Errorf("tensor %d is not at %d", i, want.at)
		}
	}
	for _, sizes := range [][]int{{3*TensorAlign + 6}, {1, TensorAlign + 1, 6}, {4 * TensorAlign, 0}, {-1}, {math.MaxInt, 1}} {
		if got, err := Lay(HostBuffer(mem), sizes...); !errors.Is(err, ErrShared) || got != nil {
			t.Errorf("Lay(%d bytes, %v) = %d tensors, %v; want %v", len(mem), sizes, len(got), err, ErrShared)
		}
	}
}

// TestBuffer has the same parts in host memory and on a device.
func TestBuffer(t *testing.T) {
	const address = 0x7000_0000_0000
	mem := []byte("0123456789")
	for name, b := range map[string]Buffer{"host": HostBuffer(mem), "device": DeviceBuffer(address, len(mem))} {
		t.Run(name, func(t *testing.T) {
			part := b.Slice(2, 9).Slice(1, 4)
			if b.Len() != len(mem) || part.Len() != 3 || part.OnDevice() != b.OnDevice() || part.Address() != b.Address()+3 {
				t.Errorf("bytes 3 to 6 of %d at %#x are %d at %#x", b.Len(), b.Address(), part.Len(), part.Address())
			}
			for _, wrong := range [][2]int{{-1, 1}, {2, 1}, {0, len(mem) + 1}} {
				if !panics(func() { b.Slice(wrong[0], wrong[1]) }) {
					t.Errorf("there are bytes %v", wrong)
				}
			}
			if panics(func() { part.Bytes() }) != b.OnDevice() {
				t.Error("only host memory can be read")
			}
		})
	}
	if part := HostBuffer(mem).Slice(3, 6).Bytes(); string(part) != "345" || cap(part) != 3 {
		t.Errorf("bytes 3 to 6 are %q, with room for %d", part, cap(part))
	}
	if b := DeviceBuffer(address, len(mem)); b.Address() != address || !b.OnDevice() {
		t.Errorf("a buffer at %#x is at %#x", address, b.Address())
	}
	if b := (Buffer{}); b.Address() != 0 || b.Len() != 0 || b.OnDevice() || b.Bytes() != nil {
		t.Errorf("a buffer without memory: %+v", b)
	}
}

func panics(call func()) (did bool) {
	defer func() { did = recover() != nil }()
	call()
	return false
}
