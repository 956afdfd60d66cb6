package wire

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// edit returns a copy of b with bytes overwritten from at.
func edit(b []byte, at int, values ...byte) []byte {
	c := append([]byte(nil), b...)
	copy(c[at:], values)
	return c
}

func TestReadCut(t *testing.T) {
	first, middle, again := exampleData(0, FlagExtension, &exampleExtension), exampleData(1, 0, nil), examples()["data-again"]
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"with an extension": {first, nil},
		"a fragment":        {middle, nil},
		"padded":            {again, nil},
		"short":             {middle[:HeaderSize-1], ErrShort},
		"magic":             {edit(middle, 0, 'Q'), ErrMagic},
		"length 0":          {edit(middle, 20, 0, 0), ErrLength},
		"total 0":           {edit(middle, 12, 0), ErrTotal},
		"offset":            {edit(middle, 8, 15), ErrOffset},
		"last":              {edit(middle, 3, byte(FlagLast)), ErrLast},
	} {
		var h Header
		if err := h.ReadCut(c.b[:min(len(c.b), HeaderSize)]); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		} else if whole, _ := DecodeHeader(c.b); err == nil && h != whole {
			t.Errorf("%s: %+v, want %+v", name, h, whole)
		}
	}
}

func TestDecodeHeaderErrors(t *testing.T) {
	first, middle, last, alone := exampleData(0, FlagExtension, &exampleExtension), exampleData(1, 0, nil), exampleData(2, 0, nil), exampleSingle(24)
	all := examples()
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"no bytes", nil, ErrShort},
		{"one byte less than a header", middle[:HeaderSize-1], ErrShort},
		{"another magic", edit(middle, 0, 'S', 'P'), ErrMagic},
		{"version 0", edit(middle, 2, 0x01), ErrVersion},
		{"version 2", edit(middle, 2, 0x21), ErrVersion},
		{"type 0", edit(middle, 2, 0x10), ErrType},
		{"type 7", edit(middle, 2, 0x17), ErrType},
		{"type 15", edit(middle, 2, 0x1f), ErrType},
		{"a reserved flag", edit(middle, 3, 0x10), ErrFlags},
		{"an extension on a result", edit(all["result"], 3, byte(FlagLast|FlagExtension)), ErrFlags},
		{"padding on a result", edit(all["result"], 3, byte(FlagLast|FlagPadded)), ErrFlags},
		{"a flag on a NACK", edit(all["nack"], 3, byte(FlagRetransmitted)), ErrFlags},
		{"count 0", edit(middle, 18, 0, 0), ErrCount},
		{"index equal to count", edit(middle, 16, 3, 0), ErrIndex},
		{"index past count", edit(middle, 16, 0xff, 0xff), ErrIndex},
		{"length 0", edit(middle[:HeaderSize], 20, 0, 0), ErrLength},
		{"length past the datagram", edit(middle, 20, 17, 0), ErrLength},
		{"extension flag without its bytes", edit(middle, 3, byte(FlagExtension)), ErrLength},
		{"result cut within its block", all["busy"][:HeaderSize+BlockSize-1], ErrLength},
		{"a byte after the payload", append(edit(middle, 0), 0), ErrTrailing},
		{"padding announced and absent", edit(middle, 3, byte(FlagPadded)), ErrTrailing},
		{"one byte of padding too many", append(edit(all["data-again"], 0), 0), ErrTrailing},
		{"a data datagram of nothing", edit(alone[:HeaderSize], 12, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0), ErrTotal},
		{"a fragment past the total", edit(middle, 12, 31), ErrTotal},
		{"a fragment past the total, wrapping", edit(middle, 8, 0xff, 0xff, 0xff, 0xff), ErrTotal},
		{"a busy answer with a payload", edit(all["busy"], 12, 1), ErrTotal},
		{"no last flag on the last fragment", edit(last, 3, 0), ErrLast},
		{"a last flag on the first", edit(first, 3, byte(FlagLast|FlagExtension)), ErrLast},
		{"offset not index times length", edit(middle, 8, 15), ErrOffset},
		{"first fragment with an offset", edit(first, 8, 16), ErrOffset},
		{"only fragment with an offset", edit(alone, 8, 1, 0, 0, 0, 25), ErrOffset},
		{"last fragment with an odd offset", edit(last, 8, 33, 0, 0, 0, 41), ErrOffset},
		{"last fragment with offset 0", edit(last, 8, 0, 0, 0, 0, 8), ErrOffset},
		{"empty result with an offset", edit(all["busy"], 8, 1), ErrOffset},
		{"more fragments than the total holds", edit(middle, 18, 4), ErrFragments},
		{"fewer fragments than the total takes", edit(middle, 12, 49), ErrFragments},
		{"last fragment longer than the others", edit(last, 8, 2, 0, 0, 0, 10), ErrFragments},
		{"last fragment that is not the rest", edit(last, 12, 41), ErrFragments},
		{"only fragment that is not all", edit(alone, 12, 25), ErrFragments},
		{"empty result in two fragments", edit(all["busy"], 3, 0, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2), ErrFragments},
		{"NACK with an index", edit(all["nack"], 16, 1), ErrIndex},
		{"NACK with an offset", edit(all["nack"], 8, 1), ErrOffset},
		{"NACK for nothing", edit(all["nack"], 12, 0), ErrTotal},
		{"NACK without a bitmap", edit(all["nack"][:HeaderSize+4], 20, 4), ErrLength},
	} {
		_, err := DecodeHeader(c.b)
		if err != c.want {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

// exampleSingle returns a request of n bytes in one datagram.
func exampleSingle(n int) []byte {
	h := FragmentHeader(TypeData, exampleID, n, DefaultFragmentBytes, 0)
	b := make([]byte, DatagramSize(&h))
	h.Put(b)
	return b
}

// A data header is accepted if and only if some fragment size makes that fragment of
// that total.
func TestDecodeHeaderSplits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.IntRange(0, 12)
		h := Header{
			Type:   TypeData,
			Total:  uint32(small.Draw(t, "total")),
			Index:  uint16(rapid.IntRange(0, 4).Draw(t, "index")),
			Count:  uint16(rapid.IntRange(0, 5).Draw(t, "count")),
			Offset: uint32(small.Draw(t, "offset")),
			Length: uint16(rapid.IntRange(0, 6).Draw(t, "length")),
		}
		if rapid.Bool().Draw(t, "last") {
			h.Flags |= FlagLast
		}
		possible := false
		for size := 1; size <= 12; size++ {
			if h.Total == 0 || int(h.Index) >= Fragments(int(h.Total), size) {
				continue
			}
			if FragmentHeader(TypeData, 0, int(h.Total), size, int(h.Index)) == h {
				possible = true
			}
		}
		b := make([]byte, DatagramSize(&h))
		h.Put(b)
		if _, err := DecodeHeader(b); (err == nil) != possible {
			t.Fatalf("%+v: got %v, but a split that makes it exists: %v", h, err, possible)
		}
	})
}

func TestFragmentSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, MaxFragmentBytes).Draw(t, "fragmentBytes")
		total := rapid.IntRange(1, min(size*MaxFragments, 1<<32-1)).Draw(t, "total")
		count := Fragments(total, size)
		index := rapid.IntRange(0, count-1).Draw(t, "index")
		h := FragmentHeader(TypeData, rapid.Uint32().Draw(t, "id"), total, size, index)
		h.Flags |= Flags(rapid.SampledFrom([]Flags{0, FlagPadded, FlagExtension, FlagPadded | FlagExtension}).Draw(t, "flags"))

		b := make([]byte, HeaderSize)
		h.Put(b)
		got, err := checkHeader(b, DatagramSize(&h))
		if err != nil || got != h {
			t.Fatalf("got %+v, %v; want %+v", got, err, h)
		}
		want := uint32(size)
		if count == 1 {
			want = uint32(total)
		}
		if FragmentSize(&got) != want {
			t.Fatalf("fragment size of %+v: got %d, want %d", h, FragmentSize(&got), want)
		}
	})
}

func TestFragmentHeaderPanics(t *testing.T) {
	for _, c := range []struct{ total, fragmentBytes, index int }{
		{10, 5, 2}, {10, 5, -1}, {MaxFragments + 1, 1, 0}, {1 << 32, MaxFragmentBytes, 0}, {10, MaxFragmentBytes + 1, 0},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v: no panic", c)
				}
			}()
			FragmentHeader(TypeData, 1, c.total, c.fragmentBytes, c.index)
		}()
	}
}

func TestReasonOf(t *testing.T) {
	if r := ReasonOf(fmt.Errorf("receive datagram: %w", ErrFragments)); r != ReasonFragments {
		t.Errorf("got %v", r)
	}
	if r := ReasonOf(errors.New("another")); r != ReasonNone {
		t.Errorf("another package's error: got %v", r)
	}
	if r := ReasonOf(nil); r != ReasonNone {
		t.Errorf("no error: got %v", r)
	}
	words := make(map[string]bool)
	for r := range NumReasons {
		words[r.String()] = true
	}
	if len(words) != int(NumReasons) || words[""] {
		t.Errorf("reasons share words, or have none: %v", words)
	}
}

func TestSerialBefore(t *testing.T) {
	for _, c := range []struct {
		a, b uint32
		want bool
	}{
		{0, 1, true}, {1, 0, false}, {5, 5, false},
		{1<<32 - 1, 0, true}, {0, 1<<32 - 1, false},
		{0, 1<<31 - 1, true}, {0, 1 << 31, false}, {1 << 31, 0, false}, {0, 1<<31 + 1, false},
	} {
		if got := SerialBefore(c.a, c.b); got != c.want {
			t.Errorf("SerialBefore(%d, %d) is %v", c.a, c.b, got)
		}
	}
}
