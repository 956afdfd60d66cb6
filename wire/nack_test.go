package wire

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"pgregory.net/rapid"
)

func TestNACKMissing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.OneOf(rapid.IntRange(1, 200), rapid.IntRange(1, MaxFragments)).Draw(t, "count")
		present := make([]uint64, rapid.IntRange(0, (count+63)/64).Draw(t, "words"))
		fill := rapid.SampledFrom([]uint64{0, ^uint64(0), 0x5555555555555555}).Draw(t, "fill")
		for i := range present {
			present[i] = fill
		}
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, count-1), 0, 8).Draw(t, "flip") {
			if i/64 < len(present) {
				present[i/64] ^= 1 << (i % 64)
			}
		}
		from := rapid.IntRange(0, count).Draw(t, "from")

		var want, got []int
		for i := from; i < count; i++ {
			if i/64 >= len(present) || present[i/64]>>(i%64)&1 == 0 {
				want = append(want, i)
			}
		}
		bytes, datagrams := 0, 0
		for next := from; ; {
			b, after := AppendNACK(nil, 9, 1<<20, uint16(count), present, next)
			if b == nil {
				break
			}
			w, err := DecodeNACK(b)
			if err != nil {
				t.Fatalf("NACK from %d: %v", next, err)
			}
			if w.RequestID != 9 || w.Total != 1<<20 || int(w.Count) != count {
				t.Fatalf("NACK from %d: %+v", next, w)
			}
			if after <= next {
				t.Fatalf("NACK from %d goes on at %d", next, after)
			}
			got, next = append(got, missing(w)...), after
			bytes, datagrams = bytes+len(b), datagrams+1
		}
		if maxBytes, maxDatagrams := MaxNACKsBytes(uint16(count)); bytes > maxBytes || datagrams > maxDatagrams {
			t.Fatalf("%d bytes in %d datagrams, want at most %d in %d", bytes, datagrams, maxBytes, maxDatagrams)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestNACKBitmapLimit(t *testing.T) {
	b, next := AppendNACK(nil, 1, 1<<20, 10000, nil, 3)
	if len(b) != HeaderSize+4+maxNACKBytes || next != 8*maxNACKBytes {
		t.Fatalf("%d bytes, next NACK from %d", len(b), next)
	}
	if w, err := DecodeNACK(b); err != nil || len(missing(w)) != 8*maxNACKBytes-3 {
		t.Fatalf("%d fragments named, %v", len(missing(w)), err)
	}
}

func TestAppendNACKEmpty(t *testing.T) {
	if b, next := AppendNACK([]byte{7}, 1, 100, 3, []uint64{0b111}, 0); len(b) != 1 || next != 3 {
		t.Errorf("got % x, %d", b, next)
	}
}

func TestNACKMissingStop(t *testing.T) {
	b, _ := AppendNACK(nil, 1, 100, 50, nil, 0)
	w, err := DecodeNACK(b)
	must.OK(t, err)
	seen := 0
	for i := range w.Missing {
		if seen++; i == 4 {
			break
		}
	}
	if seen != 5 {
		t.Errorf("saw %d fragments", seen)
	}
}

func TestDecodeNACKErrors(t *testing.T) {
	nack := examples()["nack"] // base 0, 2 bits, bitmap 0b10, of 3 fragments
	const base, number, bitmap = HeaderSize, HeaderSize + 2, HeaderSize + 4
	longer := append(edit(nack, 20, 6), 0)
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"a data datagram", examples()["data-middle"], ErrType},
		{"no bits", edit(nack, number, 0), ErrNACK},
		{"fewer bitmap bytes than bits", edit(nack, number, 9), ErrNACK},
		{"more bitmap bytes than bits", longer, ErrNACK},
		{"a fragment past the count", edit(nack, base, 2), ErrNACK},
		{"base and bits that wrap", edit(nack, base, 0xff, 0xff), ErrNACK},
		{"a bit past the last", edit(nack, bitmap, 0b110), ErrNACK},
		{"no fragment named", edit(nack, bitmap, 0), ErrNACK},
	} {
		if _, err := DecodeNACK(c.b); err != c.want {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}
