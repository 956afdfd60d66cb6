//go:build dpdk && cgo

package eal

import (
	"testing"

	"pgregory.net/rapid"
)

// Whatever rows the mbufs are in, Mbuf finds the mbuf of each byte in one, and none for other
// bytes.
func TestFindMbufs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const room = 256
		var offsets []uint64
		at := uint64(0)
		for range rapid.IntRange(1, 5).Draw(t, "rows") {
			at += uint64(rapid.IntRange(1, 5000).Draw(t, "gap"))
			stride := uint64(rapid.IntRange(room, 2*room).Draw(t, "stride"))
			for range rapid.IntRange(1, 10).Draw(t, "mbufs") {
				offsets = append(offsets, at)
				at += stride
			}
		}
		p := Pool{runs: runsOf(offsets)}
		for i, o := range offsets {
			in := o + uint64(rapid.IntRange(0, room-1).Draw(t, "byte"))
			if n, mbuf, ok := p.Mbuf(in); !ok || n != i || mbuf != o {
				t.Fatalf("byte %d is in mbuf %d at %d (%v), want %d at %d; rows %v", in, n, mbuf, ok, i, o, p.runs)
			}
			if got := p.Offset(i); got != o {
				t.Fatalf("mbuf %d is at %d, want %d; rows %v", i, got, o, p.runs)
			}
		}
		if _, _, ok := p.Mbuf(offsets[0] - 1); ok {
			t.Fatal("a byte before the first mbuf is in one")
		}
		if last := len(offsets) - 1; last > 0 {
			if n, _, ok := p.Mbuf(1 << 61); ok && n != last {
				t.Fatalf("a byte far behind is in mbuf %d", n)
			}
		}
	})
}

func TestEALArgumentsFreed(t *testing.T) {
	for name, test := range map[string]struct {
		o    Options
		want []string
		not  []string
	}{
		"ordinary pages": {Options{NoHuge: true, MemoryMiB: 64, Lcores: "1@2"}, []string{"--no-huge", "--no-shconf", "0,1@2", "64", "--no-pci", "va"}, []string{"--in-memory"}},
		"huge pages":     {Options{MemoryMiB: 512, Socket: -1}, []string{"--in-memory", "--single-file-segments", "-m", "512"}, []string{"--no-huge"}},
		"second node":    {Options{MemoryMiB: 512, Socket: 1, Allow: []string{"0000:3b:00.0"}}, []string{"--socket-mem", "0,512", "--allow", "0000:3b:00.0"}, []string{"--no-pci", "-m", "va"}},
		"extra":          {Options{NoHuge: true, MainCPUs: "0-1", Extra: []string{"--log-level=8"}}, []string{"0@(0-1)", "--log-level=8"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			args := map[string]bool{}
			for _, a := range test.o.Args() {
				args[a] = true
			}
			for _, a := range test.want {
				if !args[a] {
					t.Errorf("%q is missing from %q", a, test.o.Args())
				}
			}
			for _, a := range test.not {
				if args[a] {
					t.Errorf("%q is in %q", a, test.o.Args())
				}
			}
		})
	}
}
