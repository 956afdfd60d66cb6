package gpu

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// Division by multiplication has the same results as division.
func TestDivision(t *testing.T) {
	check := func(e, d uint32) bool {
		magic, shift := division(d)
		return uint32(uint64(e)*uint64(magic)>>shift) == e/d
	}
	const most = 1<<31 - 1
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.Uint32Range(1, most).Draw(t, "divisor")
		quotient := rapid.Uint32Range(0, most/d).Draw(t, "quotient")
		// Errors would show at multiples and just below them.
		for _, e := range []uint32{quotient * d, quotient*d - 1, most, rapid.Uint32Range(0, most).Draw(t, "dividend")} {
			if e <= most && !check(e, d) {
				t.Fatalf("%d / %d is not %d", e, d, e/d)
			}
		}
	})
	for d := uint32(1); d < 5000; d++ {
		for _, e := range []uint32{0, d - 1, d, most/d*d - 1, most / d * d, most} {
			if !check(e, d) {
				t.Fatalf("%d / %d is not %d", e, d, e/d)
			}
		}
	}
}

func TestKernelChoice(t *testing.T) {
	sized := func(h, w, c int, wire models.DType, from models.Layout, tensor models.DType, to models.Layout) models.Input {
		return models.Input{Height: h, Width: w, Channels: c, WireType: wire, WireLayout: from, TensorType: tensor, TensorLayout: to}
	}
	turned := sized(4, 4, 3, models.U8, models.HWC, models.U8, models.HWC)
	turned.ReverseChannels = true
	normal := sized(4, 4, 1, models.F32, models.HWC, models.F32, models.HWC)
	normal.Mean, normal.Std = []float32{1}, []float32{2}
	for _, c := range []struct {
		in   models.Input
		want string
	}{
		{sized(224, 224, 3, models.U8, models.HWC, models.F16, models.CHW), "gather_three_f16_planes"},
		{sized(224, 224, 3, models.U8, models.HWC, models.F32, models.HWC), "gather_three_f32_pixels"},
		{sized(224, 224, 3, models.U8, models.HWC, models.U8, models.HWC), "gather_copy"},
		{sized(224, 224, 1, models.F32, models.HWC, models.F32, models.CHW), "gather_copy"},
		{turned, "gather_three_u8_pixels"},
		{normal, "gather_any_f32_f32"},
		{sized(7, 7, 3, models.U8, models.HWC, models.F16, models.CHW), "gather_any_u8_f16"},
		{sized(8, 8, 4, models.U8, models.HWC, models.F32, models.CHW), "gather_any_u8_f32"},
		{sized(8, 8, 3, models.U8, models.CHW, models.F32, models.CHW), "gather_any_u8_f32"},
		{sized(8, 8, 3, models.F16, models.HWC, models.U8, models.CHW), "gather_any_f16_u8"},
	} {
		if got := kernelOf(&c.in); got != c.want {
			t.Errorf("%+v: %s, want %s", c.in, got, c.want)
		}
	}
}

// A long fragment is cut into several, between elements and between pixels of three
// channels.
func TestCutPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fragment := shm.Fragment{
			Offset: rapid.Uint64Range(0, 1<<40).Draw(t, "offset"), Place: rapid.Uint32Range(0, 1<<30).Draw(t, "place"),
			Length: rapid.Uint16Min(1).Draw(t, "length"), Slab: rapid.Uint16().Draw(t, "slab"),
		}
		memory := make([]byte, 64*DescriptorBytes)
		n, ok := cut(memory, 3, []shm.Fragment{fragment}, 5, 0)
		if !ok {
			t.Fatalf("no room for %d bytes in 61 descriptors", fragment.Length)
		}
		offset, place := fragment.Offset, fragment.Place
		for i := 3; i < n; i++ {
			d := get(memory[i*DescriptorBytes:])
			if d.Slab != fragment.Slab || d.Image != 5 || d.Offset != offset || d.Place != place || d.Length == 0 || d.Length > FragmentBytes {
				t.Fatalf("descriptor %d is %+v, want offset %d, place %d", i, d, offset, place)
			}
			if i > 3 && d.Place%12 != 0 {
				t.Fatalf("cut at place %d", d.Place)
			}
			offset, place = offset+uint64(d.Length), place+uint32(d.Length)
		}
		if place != fragment.Place+uint32(fragment.Length) {
			t.Fatalf("%d bytes of %d", place-fragment.Place, fragment.Length)
		}
	})
}

// straight accepts the same requests as Order and cut, if they are in order, and no
// others.
func TestStraight(t *testing.T) {
	slabs := []uint64{5000, 100}
	rapid.Check(t, func(t *rapid.T) {
		var req device.Request
		for range rapid.IntRange(0, 6).Draw(t, "fragments") {
			p := shm.Fragment{Offset: rapid.Uint64Range(0, 120).Draw(t, "offset"), Place: req.Bytes, Length: rapid.Uint16Range(1, 2500).Draw(t, "length")}
			if rapid.IntRange(0, 3).Draw(t, "short") > 0 {
				p.Length = p.Length%40 + 1
				p.Slab = rapid.Uint16Range(0, 1).Draw(t, "slab")
			}
			req.Bytes += uint32(p.Length)
			req.Fragments = append(req.Fragments, p)
		}
		ordered := true
		if n := len(req.Fragments); n > 0 {
			spoiled := &req.Fragments[rapid.IntRange(0, n-1).Draw(t, "spoiled")]
			switch rapid.IntRange(0, 9).Draw(t, "how") {
			case 0:
				spoiled.Length = 0
			case 1:
				spoiled.Offset = ^uint64(0) - rapid.Uint64Range(0, 30).Draw(t, "wraps")
			case 2:
				spoiled.Slab = 2
			case 3:
				spoiled.Place += rapid.SampledFrom([]uint32{1, ^uint32(0)}).Draw(t, "moved")
			case 4:
				req.Bytes += rapid.SampledFrom([]uint32{1, ^uint32(0)}).Draw(t, "bytes")
			case 5:
				req.Fragments, ordered = append(req.Fragments[1:], req.Fragments[0]), n == 1
			}
		}
		tooLong := slices.ContainsFunc(req.Fragments, func(p shm.Fragment) bool { return p.Length > FragmentBytes })
		short, long := make([]byte, 40*DescriptorBytes), make([]byte, 40*DescriptorBytes)
		fragments, _, err := device.Order(nil, req, slabs)
		n, ok := straight(short, 2, req, 3, 40, slabs)
		if ok != (err == nil && ordered && !tooLong) {
			t.Fatalf("the long way says %v of %+v, the short way %v", err, req, ok)
		}
		if !ok {
			return
		}
		if m, _ := cut(long, 2, fragments, 3, 40); m != n || !slices.Equal(short, long) {
			t.Fatalf("%d descriptors are not the %d of the long way", n-2, m-2)
		}
	})
}

// BenchmarkDescribe describes a batch of 32 pictures in 4704 fragments.
func BenchmarkDescribe(b *testing.B) {
	req := device.Request{Bytes: 150528}
	for place := 0; place < 150528; place += 1024 {
		req.Fragments = append(req.Fragments, shm.Fragment{Offset: uint64(2 * place), Place: uint32(place), Length: 1024})
	}
	memory, slabs := make([]byte, 5000*DescriptorBytes), []uint64{1 << 20}
	b.Run("short", func(b *testing.B) {
		for b.Loop() {
			for i, n := 0, 0; i < 32; i++ {
				n, _ = straight(memory, n, req, i, 0, slabs)
			}
		}
	})
	b.Run("long", func(b *testing.B) {
		var ordered []shm.Fragment
		for b.Loop() {
			for i, n := 0, 0; i < 32; i++ {
				ordered, _, _ = device.Order(ordered, req, slabs)
				n, _ = cut(memory, n, ordered, i, 0)
			}
		}
	})
}

func get(b []byte) Descriptor {
	word := func(i int) (v uint64) {
		for k := range 8 {
			v |= uint64(b[i+k]) << (8 * k)
		}
		return v
	}
	source, rest := word(0), word(8)
	return Descriptor{Slab: uint16(source >> 48), Offset: source << 16 >> 16, Place: uint32(rest), Length: uint16(rest >> 32), Image: uint16(rest >> 48)}
}

// cut stops at the end of its memory.
func TestDescriptorsFull(t *testing.T) {
	fragments := slices.Repeat([]shm.Fragment{{Length: 100}}, 10)
	if n, ok := cut(make([]byte, 10*DescriptorBytes), 0, fragments, 0, 0); n != 10 || !ok {
		t.Errorf("room for ten: %d, %v", n, ok)
	}
	if n, ok := cut(make([]byte, 10*DescriptorBytes-1), 0, fragments, 0, 0); n != 9 || ok {
		t.Errorf("room for nine: %d, %v", n, ok)
	}
}

func TestFaultsSayWhat(t *testing.T) {
	if err := FaultError(0); err != nil {
		t.Error(err)
	}
	for why, text := range map[uint64]string{1: "its slab is unknown", 6: "an element is cut, and its other part is not in the next fragment", 99: "for an unknown reason"} {
		err := FaultError(why<<32 | 7)
		if want := "the gather kernel skipped a fragment: number 7: " + text; !errors.Is(err, ErrDescriptor) || err.Error() != want {
			t.Errorf("fault %d is %v, want %s", why, err, want)
		}
	}
}
