package wire

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDecodeResultErrors(t *testing.T) {
	all := examples()
	const status, kind = HeaderSize, HeaderSize + 1
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"a data datagram", all["data-middle"], ErrType},
		{"a NACK", all["nack"], ErrType},
		{"an unknown status", edit(all["incomplete"], status, NumStatuses), ErrStatus},
		{"busy in a result", edit(all["incomplete"], status, byte(StatusBusy)), ErrStatus},
		{"ok in a busy answer", edit(all["busy"], status, byte(StatusOK)), ErrStatus},
		{"a late answer with a payload", edit(all["result"], status, byte(StatusLate)), ErrStatus},
		{"moved to port 0", edit(edit(all["moved"], HeaderSize+28, 0), HeaderSize+29, 0), ErrStatus},
		{"moved to no address", append(append(all["moved"][:HeaderSize+12:HeaderSize+12], make([]byte, 16)...), all["moved"][HeaderSize+28:]...), ErrStatus},
		{"moved to a multicast address", edit(all["moved"], HeaderSize+12, 0xff), ErrStatus},
		{"an unknown kind", edit(all["result"], kind, NumKinds), ErrKind},
		{"a payload of no kind", edit(all["result"], kind, byte(KindNone)), ErrKind},
	} {
		if _, _, _, err := DecodeResult(c.b); err != c.want {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

func TestDecodeResultNoBoxes(t *testing.T) {
	b := AppendResult(nil, 1, &Result{Status: StatusOK, Kind: KindBoxes}, nil, DefaultFragmentBytes, 0, false)
	if _, r, payload, err := DecodeResult(b); err != nil || r.Kind != KindBoxes || len(payload) != 0 {
		t.Errorf("got %+v, %d bytes, %v", r, len(payload), err)
	}
}

func TestReservedBytes(t *testing.T) {
	first, result := exampleData(0, FlagExtension, &exampleExtension), examples()["result"]
	for i := range 4 {
		first[HeaderSize+60+i] = 0xaa
	}
	for i := range 4 {
		result[HeaderSize+60+i] = 0xaa
	}
	if e, err := DecodeExtension(first[HeaderSize:]); err != nil || e != exampleExtension {
		t.Errorf("extension: got %+v, %v", e, err)
	}
	if _, r, _, err := DecodeResult(result); err != nil || r != exampleTopK {
		t.Errorf("result: got %+v, %v", r, err)
	}
}

func TestMissing(t *testing.T) {
	const count = 1000
	present := make([]uint64, (count+63)/64)
	for i := range count {
		if i != 700 && i != 702 && i != 955 && i != 956 {
			present[i/64] |= 1 << (i % 64)
		}
	}
	for _, c := range []struct {
		most int
		want []int
	}{{1, []int{700}}, {2, []int{700, 702}}, {count, []int{700, 702, 955}}} { // 956 is the 257th from 700
		named := NameMissing(present, count, c.most)
		e := Extension{Missing: named}
		b := make([]byte, BlockSize)
		e.Put(b)
		e, _ = DecodeExtension(b)
		if got := slices.Collect(e.Missing.All(count)); !slices.Equal(got, c.want) || e.Missing.Last() != c.want[len(c.want)-1] {
			t.Errorf("at most %d: %v, the last %d; want %v", c.most, got, e.Missing.Last(), c.want)
		}
		for i := range count {
			if e.Missing.Has(i) != slices.Contains(c.want, i) {
				t.Errorf("at most %d: fragment %d named: %v", c.most, i, e.Missing.Has(i))
			}
		}
	}
	if m := NameMissing(nil, 2, 5); m.Empty() || m.Last() != 1 {
		t.Errorf("named up to %d of 2", m.Last())
	}
	if m := (Missing{}); m.Last() != -1 {
		t.Errorf("the last of none is %d", m.Last())
	}

	// A hostile peer may name fragments that the answer does not have.
	for _, base := range []uint16{0, 3, 65535} {
		hostile := Extension{Missing: Missing{base: base, span: 65535, bitmap: [MaxMissing / 8]byte{0xff, 31: 0xff}}}
		b := make([]byte, BlockSize)
		hostile.Put(b)
		hostile, _ = DecodeExtension(b)
		for i := range hostile.Missing.All(5) {
			if i < int(base) || i >= 5 {
				t.Errorf("base %d: fragment %d of 5", base, i)
			}
		}
	}
}

func TestTimesSaturate(t *testing.T) {
	b := make([]byte, BlockSize)
	for _, c := range []struct{ deadline, want time.Duration }{
		{0, 0},
		{1, time.Microsecond}, // a deadline below the resolution must not become "none"
		{time.Microsecond, time.Microsecond},
		{time.Microsecond + 1, 2 * time.Microsecond},
		{-time.Second, 0},
		{24 * time.Hour, (1<<32 - 1) * time.Microsecond},
	} {
		(&Extension{Deadline: c.deadline}).Put(b)
		if e, _ := DecodeExtension(b); e.Deadline != c.want {
			t.Errorf("deadline %v: got %v, want %v", c.deadline, e.Deadline, c.want)
		}
	}
}

func TestExtensionTruncated(t *testing.T) {
	if _, err := DecodeExtension(make([]byte, BlockSize-1)); err != ErrShort {
		t.Errorf("got %v", err)
	}
}

func TestAppendResultPanics(t *testing.T) {
	for _, r := range []Result{{Status: StatusLate, Kind: KindRaw}, {Status: StatusOK, Kind: KindNone}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v with a payload of kind %v: no panic", r.Status, r.Kind)
				}
			}()
			AppendResult(nil, 1, &r, []byte{1}, DefaultFragmentBytes, 0, false)
		}()
	}
}

func TestResultFragments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload")
		fragmentBytes := rapid.IntRange(1, 350).Draw(t, "fragmentBytes")
		r := drawResult(t)
		r.Status, r.Kind = StatusOK, KindRaw

		var whole []byte
		for i := range Fragments(len(payload), fragmentBytes) {
			b := AppendResult([]byte{1, 2, 3}, 77, &r, payload, fragmentBytes, i, i%2 == 1)[3:]
			h, got, fragment, err := DecodeResult(b)
			if err != nil || got != r {
				t.Fatalf("fragment %d: got %+v, %v; want %+v", i, got, err, r)
			}
			if int(h.Offset) != len(whole) || h.Flags&FlagRetransmitted != 0 != (i%2 == 1) {
				t.Fatalf("fragment %d: header %+v", i, h)
			}
			whole = append(whole, fragment...)
		}
		if !bytes.Equal(whole, payload) {
			t.Fatalf("got %x, want %x", whole, payload)
		}
	})
}

// drawResult draws a block that the wire represents without loss.
func drawResult(t *rapid.T) Result {
	stage := func(name string) time.Duration {
		return time.Duration(rapid.Uint32().Draw(t, name)) * time.Microsecond
	}
	return Result{
		Batch:        rapid.Uint16().Draw(t, "batch"),
		Credit:       rapid.Uint16().Draw(t, "credit"),
		Missing:      rapid.Uint16().Draw(t, "missing"),
		ModelVersion: rapid.Uint32().Draw(t, "version"),
		Aggregate:    stage("aggregate"),
		Queue:        stage("queue"),
		Gather:       stage("gather"),
		Infer:        stage("infer"),
		Reply:        stage("reply"),
		SentAt:       rapid.Uint64().Draw(t, "sentAt"),
	}
}
