package wire

import (
	"bytes"
	"slices"
	"testing"
)

// addExamples seeds a fuzz test with every datagram of the standard.
func addExamples(f *testing.F) {
	for _, b := range examples() {
		f.Add(b)
	}
}

// FuzzDecodeHeader checks each accepted header: Put writes the same bytes, the
// payload is within the datagram, and the fragment belongs to the split that
// FragmentSize implies.
func FuzzDecodeHeader(f *testing.F) {
	addExamples(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := DecodeHeader(b)
		if err != nil {
			if ReasonOf(err) == ReasonNone {
				t.Fatalf("error without a reason: %v", err)
			}
			return
		}
		var again [HeaderSize]byte
		h.Put(again[:])
		if !bytes.Equal(again[:], b[:HeaderSize]) {
			t.Fatalf("% x is read and written back as % x", b[:HeaderSize], again)
		}
		if end := PayloadOffset(&h) + int(h.Length); end > len(b) || len(b)-end >= PaddingUnit {
			t.Fatalf("payload of %+v ends at %d of %d", h, end, len(b))
		}
		if size := int(FragmentSize(&h)); size != 0 && size <= MaxFragmentBytes {
			want := FragmentHeader(h.Type, h.RequestID, int(h.Total), size, int(h.Index))
			want.Flags |= h.Flags
			if h != want {
				t.Fatalf("got %+v, fragments of %d bytes make %+v", h, size, want)
			}
		}
	})
}

// FuzzDecodeExtension checks that Put and DecodeExtension return what was
// decoded first.
func FuzzDecodeExtension(f *testing.F) {
	f.Add(exampleData(0, FlagExtension, &exampleExtension)[HeaderSize:])
	f.Add(exampleData(0, FlagExtension, &exampleProof)[HeaderSize:])
	question := exampleData(0, FlagExtension, &exampleQuestion)[HeaderSize:]
	f.Add(question)
	f.Add(exampleData(0, FlagExtension, &exampleRequest)[HeaderSize:])
	f.Add(slices.Concat(question[:26], []byte{0, 0}, question[28:])) // names nothing
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := DecodeExtension(b)
		if err != nil {
			return
		}
		var again [BlockSize]byte
		e.Put(again[:])
		if got, err := DecodeExtension(again[:]); err != nil || got != e {
			t.Fatalf("got %+v, %v; want %+v", got, err, e)
		}
	})
}

// FuzzDecodeResult checks that the encoder writes what was accepted, except for
// the reserved bytes.
func FuzzDecodeResult(f *testing.F) {
	addExamples(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, r, payload, err := DecodeResult(b)
		if err != nil {
			return
		}
		var again []byte
		again = append(again, make([]byte, HeaderSize+BlockSize)...)
		h.Put(again)
		r.Put(again[HeaderSize:])
		again = append(again, payload...)
		want := bytes.Clone(b)
		clear(want[HeaderSize+61 : HeaderSize+BlockSize])
		if !r.NeedsToken {
			want[HeaderSize+60] = 0
		}
		if !bytes.Equal(again, want) {
			t.Fatalf("% x is read and written back as % x", want, again)
		}
	})
}

// FuzzDecodeHello checks that the encoder writes what was accepted, and that another proof does not pass.
func FuzzDecodeHello(f *testing.F) {
	addExamples(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		typ, h, err := DecodeHello(b)
		if err != nil {
			return
		}
		want := bytes.Clone(b)
		clear(want[4:8]) // the request id says nothing
		if again := h.Append(nil, typ); !bytes.Equal(again, want) {
			t.Fatalf("% x is read and written back as % x", want, again)
		}
		key := []byte("a key that is not the example's")
		if h.Signed(key) {
			t.Fatalf("% x has the proof of a key that nobody used", b)
		}
		if h.Sign(key); !h.Signed(key) {
			t.Fatalf("%+v does not pass its own proof", h)
		}
	})
}

// FuzzDecodeNACK checks that the named fragments are in the request and ascending,
// and that a NACK encoded for them names the same fragments.
func FuzzDecodeNACK(f *testing.F) {
	addExamples(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := DecodeNACK(b)
		if err != nil {
			return
		}
		present := make([]uint64, (int(w.Count)+63)/64)
		for i := range present {
			present[i] = ^uint64(0)
		}
		before, named := -1, missing(w)
		for _, i := range named {
			if i <= before || i >= int(w.Count) {
				t.Fatalf("fragment %d after %d of %d", i, before, w.Count)
			}
			present[i/64] &^= 1 << (i % 64)
			before = i
		}
		var again []int
		for next := 0; ; {
			var d []byte
			if d, next = AppendNACK(nil, w.RequestID, w.Total, w.Count, present, next); d == nil {
				break
			}
			one, err := DecodeNACK(d)
			if err != nil {
				t.Fatalf("NACK written back: %v", err)
			}
			again = append(again, missing(one)...)
		}
		if len(again) != len(named) || again[0] != named[0] || again[len(again)-1] != named[len(named)-1] {
			t.Fatalf("named %v, written back %v", named, again)
		}
	})
}

// FuzzTopK, FuzzBoxes and FuzzRaw check that an accepted payload is encoded to
// the same bytes, NaNs included.
func FuzzTopK(f *testing.F) {
	f.Add(AppendTopK(nil, exampleClasses))
	f.Fuzz(func(t *testing.T, b []byte) {
		if classes, err := DecodeTopK(nil, b); err == nil && !bytes.Equal(AppendTopK(nil, classes), b) {
			t.Fatalf("% x is written back as % x", b, AppendTopK(nil, classes))
		}
	})
}

func FuzzBoxes(f *testing.F) {
	f.Add(AppendBoxes(nil, exampleBoxes))
	f.Fuzz(func(t *testing.T, b []byte) {
		if boxes, err := DecodeBoxes(nil, b); err == nil && !bytes.Equal(AppendBoxes(nil, boxes), b) {
			t.Fatalf("% x is written back as % x", b, AppendBoxes(nil, boxes))
		}
	})
}

func FuzzRaw(f *testing.F) {
	f.Add(AppendRaw(nil, []float32{0, 1, -1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if values, err := DecodeRaw(nil, b); err == nil && !bytes.Equal(AppendRaw(nil, values), b) {
			t.Fatalf("% x is written back as % x", b, AppendRaw(nil, values))
		}
	})
}
