package slab

import (
	"bytes"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/shm"
)

func newSlab(t *testing.T, size int) *Slab {
	t.Helper()
	parts, err := New("test", size, 1, false)
	must.OK(t, err)
	s := parts[0]
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// model represents a slab as a set of bytes.
type model struct {
	held    []bool
	holders [][]ingest.Span
}

// granules counts granules with a held byte.
func (m *model) granules() (n int) {
	for g := 0; g < len(m.held); g += GranuleBytes {
		for _, held := range m.held[g : g+GranuleBytes] {
			if held {
				n++
				break
			}
		}
	}
	return n
}

func (m *model) set(span ingest.Span, held bool) {
	for i := range span.Length {
		m.held[span.Offset+uint64(i)] = held
	}
}

// For any sequence of Hold and Release, the slab agrees with a set of bytes.
// Free returns only room in granules that hold nothing.
func TestSlabAgreesWithASetOfBytes(t *testing.T) {
	slab := newSlab(t, MinBytes)
	rapid.Check(t, func(t *rapid.T) {
		m := model{held: make([]bool, slab.Size())}
		defer func() {
			for _, spans := range m.holders {
				slab.Release(spans)
			}
		}()
		check := func() {
			if want := uint64(m.granules() * GranuleBytes); slab.HeldBytes() != want {
				t.Fatalf("%d bytes held, want %d", slab.HeldBytes(), want)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"read": func(t *rapid.T) {
				var runs [MaxRuns]ingest.Span
				size := rapid.SampledFrom([]int{MessageBytes, 2048, 1, 9000}).Draw(t, "size")
				from := uint64(rapid.IntRange(0, slab.Size()-1).Draw(t, "from"))
				n, next := slab.Free(runs[:], from, size)
				checkRuns(t, &m, runs[:n], from, next, size)
				if n == 0 {
					return
				}
				// Part of the room is filled with datagrams of one size.
				fill := rapid.IntRange(1, size).Draw(t, "filled")
				segment := rapid.IntRange(1, 3000).Draw(t, "segment")
				filled := cutSpans(runs[:n], fill)
				for _, span := range filled {
					slab.Hold(span)
					m.set(span, true)
				}
				for len(filled) > 0 {
					datagram := cutSpans(filled, segment)
					filled = rest(filled, segment)
					m.holders = append(m.holders, datagram)
				}
			},
			"release": func(t *rapid.T) {
				if len(m.holders) == 0 {
					t.Skip("nothing is held")
				}
				i := rapid.IntRange(0, len(m.holders)-1).Draw(t, "datagram")
				slab.Release(m.holders[i])
				for _, span := range m.holders[i] {
					m.set(span, false)
				}
				m.holders = append(m.holders[:i], m.holders[i+1:]...)
			},
			"release joined": func(t *rapid.T) {
				// Release adjacent spans as one.
				for i := 0; i+1 < len(m.holders); i++ {
					a, b := m.holders[i], m.holders[i+1]
					last := a[len(a)-1]
					if len(a) == 1 && len(b) == 1 && last.Offset+uint64(last.Length) == b[0].Offset {
						both := ingest.Span{Offset: last.Offset, Length: last.Length + b[0].Length}
						slab.Release([]ingest.Span{both})
						m.set(both, false)
						m.holders = append(m.holders[:i], m.holders[i+2:]...)
						return
					}
				}
				t.Skip("no neighbours")
			},
			"": func(t *rapid.T) { check() },
		})
	})
	if slab.HeldBytes() != 0 {
		t.Errorf("%d bytes held after every release", slab.HeldBytes())
	}
}

// checkRuns checks what Free guarantees.
func checkRuns(t *rapid.T, m *model, runs []ingest.Span, from, next uint64, size int) {
	total := 0
	at := from
	for i, run := range runs {
		if run.Offset < at {
			t.Fatalf("run %d at %d begins before %d", i, run.Offset, at)
		}
		if last := i == len(runs)-1; !last && run.Length < minRunBytes-firstPlace {
			t.Fatalf("run %d of %d has %d bytes", i, len(runs), run.Length)
		}
		if want := uint64(0); i > 0 && run.Offset%GranuleBytes != want || i == 0 && run.Offset%GranuleBytes != firstPlace {
			t.Fatalf("run %d begins at %d in its granule", i, run.Offset%GranuleBytes)
		}
		first := run.Offset &^ (GranuleBytes - 1)
		at = run.Offset + uint64(run.Length)
		for b := first; b < min(uint64(len(m.held)), (at+GranuleBytes-1)&^(GranuleBytes-1)); b++ {
			if m.held[b] {
				t.Fatalf("run %d gives out byte %d, whose granule is held", i, b)
			}
		}
		total += int(run.Length)
	}
	if len(runs) > 0 && (total != size || next < at || next%GranuleBytes != 0) {
		t.Fatalf("%d bytes of room for %d, next at %d after %d", total, size, next, at)
	}
}

// cutSpans returns the first n bytes of spans.
func cutSpans(spans []ingest.Span, n int) (out []ingest.Span) {
	for _, span := range spans {
		if n == 0 {
			break
		}
		span.Length = min(span.Length, uint32(n))
		out = append(out, span)
		n -= int(span.Length)
	}
	return out
}

// rest returns what follows the first n bytes of spans.
func rest(spans []ingest.Span, n int) (out []ingest.Span) {
	for _, span := range spans {
		cut := min(span.Length, uint32(n))
		n -= int(cut)
		if span.Length > cut {
			out = append(out, ingest.Span{Offset: span.Offset + uint64(cut), Length: span.Length - cut})
		}
	}
	return out
}

func TestFreeGivesTheLowestRoomFirst(t *testing.T) {
	s := newSlab(t, MinBytes)
	var runs [MaxRuns]ingest.Span
	for i := range 3 {
		n, _ := s.Free(runs[:], 0, 1000)
		if n != 1 || runs[0].Offset != uint64(i*17*GranuleBytes+firstPlace) {
			t.Fatalf("read %d: %d runs, the first at %d", i, n, runs[0].Offset)
		}
		s.Hold(runs[0])
	}
	s.Release([]ingest.Span{{Offset: firstPlace, Length: 1000}})
	if n, _ := s.Free(runs[:], 0, 1000); n != 1 || runs[0].Offset != firstPlace {
		t.Errorf("after a release: %d runs, the first at %d", n, runs[0].Offset)
	}
}

func TestFreeSmallestRun(t *testing.T) {
	for _, test := range []struct {
		name  string
		hole  int // granules
		found bool
	}{{"2 KiB", minRunGranules, true}, {"a granule less", minRunGranules - 1, false}} {
		t.Run(test.name, func(t *testing.T) {
			s := newSlab(t, 1<<20)
			for g := 0; g < len(s.used); g += test.hole + 1 {
				s.Hold(ingest.Span{Offset: uint64(g) * GranuleBytes, Length: 1})
			}
			var runs [MaxRuns]ingest.Span
			if n, _ := s.Free(runs[:], 0, MessageBytes); (n > 0) != test.found {
				t.Errorf("%d runs, want some: %v", n, test.found)
			}
		})
	}
}

func TestReleasingTwicePanics(t *testing.T) {
	for name, again := range map[string]ingest.Span{
		"whole":         {Offset: 42, Length: 5000},
		"one byte":      {Offset: 100, Length: 1},
		"never held":    {Offset: 100000, Length: 200},
		"half of it":    {Offset: 4000, Length: 5000},
		"longer than 1": {Offset: 0, Length: 64 * 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSlab(t, MinBytes)
			span := ingest.Span{Offset: 42, Length: 5000}
			s.Hold(span)
			s.Release([]ingest.Span{span})
			defer func() {
				if recover() != ErrReleasedTwice {
					t.Error("nothing noticed")
				}
			}()
			s.Release([]ingest.Span{again})
		})
	}
}

// put holds a payload in the first room for it, of one or two runs.
func put(s *Slab, payload []byte) (spans []ingest.Span, ok bool) {
	var runs [2]ingest.Span
	n, _ := s.Free(runs[:], 0, len(payload))
	for _, run := range runs[:n] {
		payload = payload[copy(s.View(run), payload):]
		s.Hold(run)
	}
	return runs[:n], n > 0
}

func TestFreeWhenFull(t *testing.T) {
	s := newSlab(t, MinBytes)
	payload := make([]byte, 1000)
	var held []ingest.Span
	for {
		spans, ok := put(s, payload)
		if !ok {
			break
		}
		held = append(held, spans...)
	}
	if s.HeldBytes() < MinBytes*9/10 {
		t.Errorf("full at %d of %d bytes", s.HeldBytes(), MinBytes)
	}
	s.Release(held[:1])
	if _, ok := put(s, payload); !ok {
		t.Error("no room after a release")
	}
}

func TestJoinMakesOneSpanOfMany(t *testing.T) {
	s := newSlab(t, MinBytes)
	var parts []ingest.Span
	var want []byte
	for i := range 5 {
		part := bytes.Repeat([]byte{byte(i)}, 900)
		spans, ok := put(s, part)
		if !ok {
			t.Fatal("no room")
		}
		parts, want = append(parts, spans...), append(want, part...)
	}
	whole, ok := s.Join(parts)
	if !ok || !bytes.Equal(s.View(whole), want) {
		t.Fatalf("joined: %v, %d bytes", ok, whole.Length)
	}
	s.Release([]ingest.Span{whole})
	if s.HeldBytes() != 0 {
		t.Errorf("%d bytes held", s.HeldBytes())
	}
}

func TestReleaseConcurrently(t *testing.T) {
	s := newSlab(t, 1<<20)
	spans := make(chan ingest.Span, 256)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for span := range spans {
				s.Release([]ingest.Span{span})
			}
		})
	}
	var runs [MaxRuns]ingest.Span
	for range 20000 {
		n, _ := s.Free(runs[:], 0, 1100)
		for _, run := range runs[:n] {
			s.Hold(run)
			spans <- run
		}
	}
	close(spans)
	wg.Wait()
	if s.HeldBytes() != 0 {
		t.Errorf("%d bytes held", s.HeldBytes())
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	s := newSlab(t, 1<<20)
	var runs [MaxRuns]ingest.Span
	if n := testing.AllocsPerRun(100, func() {
		n, _ := s.Free(runs[:], 0, MessageBytes)
		for _, run := range runs[:n] {
			s.Hold(run)
		}
		s.Release(runs[:n])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestOthersCannotWriteTheSlab(t *testing.T) {
	s := newSlab(t, MinBytes)
	if mem, err := unix.Mmap(int(s.File().Fd()), 0, s.Size(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		unix.Munmap(mem)
		t.Error("the slab's file could be mapped for writing")
	}
}

func TestNewSizes(t *testing.T) {
	for _, size := range []int{-1, 0, MinBytes - 1, maxBytes + 1, maxBytes} {
		before := openfiles.Count(t)
		if parts, err := New("test", size, 1, false); err == nil {
			parts[0].Close()
			t.Errorf("%d bytes accepted", size)
		}
		if after := openfiles.Count(t); after > before {
			t.Errorf("%d bytes: a file is left open", size)
		}
	}
}

// No part of a region returns another part's room, from whatever address it
// searches. The region is unmapped with its last part.
func TestPartsKeepToTheirOwn(t *testing.T) {
	const n = 3
	parts, err := New("parts", n*MinBytes+1, n, false)
	must.OK(t, err)
	room := uint64(parts[0].Room())
	if room < MinBytes || room%4096 != 0 || parts[0].Size() != n*int(room) {
		t.Fatalf("parts of %d bytes in a region of %d", room, parts[0].Size())
	}
	within := func(i int, span ingest.Span) {
		t.Helper()
		if end := span.Offset + uint64(span.Length); span.Offset < uint64(i)*room || end > uint64(i+1)*room {
			t.Errorf("part %d gives [%d, %d), it is [%d, %d)", i, span.Offset, end, uint64(i)*room, uint64(i+1)*room)
		}
	}
	for i, p := range parts {
		var held []ingest.Span
		runs := make([]ingest.Span, MaxRuns)
		for from := uint64(0); ; {
			k, next := p.Free(runs, from, MessageBytes)
			if k == 0 {
				break
			}
			from = next
			for _, run := range runs[:k] {
				within(i, run)
				p.Hold(run)
				held = append(held, run)
			}
		}
		for {
			spans, ok := put(p, make([]byte, 100))
			if !ok {
				break
			}
			for _, span := range spans {
				within(i, span)
				held = append(held, span)
			}
		}
		if got := p.HeldBytes(); got < room-MessageBytes || got > room {
			t.Errorf("part %d of %d bytes is full with %d", i, room, got)
		}
		for j, other := range parts[i+1:] {
			if got := other.HeldBytes(); got != 0 {
				t.Errorf("part %d holds %d bytes, and part %d was filled", i+1+j, got, i)
			}
		}
		p.Release(held)
		if got := p.HeldBytes(); got != 0 {
			t.Errorf("part %d holds %d bytes after all were released", i, got)
		}
	}
	for i, p := range parts {
		p.Bytes()[i] = 1 // still mapped
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := New("parts", n*MinBytes-1, n, false); err == nil {
		t.Error("parts that are too small were made")
	}
	if _, err := New("parts", MinBytes, 0, false); err == nil {
		t.Error("no part was made of a region")
	}
}

// A slab takes memory for what is used of it, and so does a process that maps it.
func TestSlabIsSparse(t *testing.T) {
	const size = 64 << 20
	s := newSlab(t, size)
	allocated := func() int64 {
		var st unix.Stat_t
		must.OK(t, unix.Fstat(int(s.File().Fd()), &st))
		return st.Blocks * 512
	}
	fd, err := unix.Dup(int(s.File().Fd()))
	must.OK(t, err)
	mapped, err := shm.MapSparse(os.NewFile(uintptr(fd), "slab"), s.Size())
	must.OK(t, err)
	defer mapped.Close()
	if n := allocated(); n > 2*allocatedBytes {
		t.Errorf("a new slab takes %d bytes, want about %d", n, allocatedBytes)
	}
	const last = size - 1
	s.Bytes()[last] = 7
	if mapped.Bytes()[last] != 7 {
		t.Error("the other process reads something else")
	}
}
