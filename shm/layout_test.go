package shm

import (
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/wire"
)

// dump prints the lines of a mapping that are not all zero, with their
// addresses.
func dump(mem []byte) string {
	var out strings.Builder
	for at := 0; at < len(mem); at += 16 {
		line := mem[at:min(at+16, len(mem))]
		if strings.Trim(string(line), "\x00") != "" {
			out.WriteString(hex.EncodeToString([]byte{byte(at >> 8), byte(at)}) + " " + hex.EncodeToString(line) + "\n")
		}
	}
	return out.String()
}

// Little-endian machines only: Penstock's wire format is little-endian too.
func TestGoldenBytes(t *testing.T) {
	g := Geometry{Slots: 2, MaxFragments: 2, ResultBytes: 5, PoolBytes: 128}
	p := newPair(t, g)
	r := Request{ID: 0x11223344, Fragments: 2, Bytes: 0x600, Priority: 9, FirstFragment: 1, Complete: 2, Deadline: 3, Address: 4, Client: 5}
	picture := wire.Picture{Format: wire.FormatNV12, Width: 32, Height: 16, Stride: 64, Colours: wire.BT709 | wire.FullRange}
	r.SetPicture(picture)
	if got := r.Picture(); got != picture {
		t.Errorf("picture is %+v, want %+v", got, picture)
	}
	p.table.SetRequest(1, r)
	copy(p.table.Fragments(1), []Fragment{{Offset: 0x1000, Place: 0x20, Length: 0x400, Slab: 7}, {Offset: 0x2000, Place: 0x420, Length: 0x200}})
	c := p.owner(t, 5)
	c.Watch(true)
	p.channel.Announce()
	p.channel.Publish(1)
	p.channel.Publish(0)
	wantSlots(t, "taken", take(c), 1, 0)
	c.Start([]uint32{1})
	copy(c.ResultBuffer(1), "hello")
	c.Complete(1, Result{Status: 2, Kind: 3, Batch: 4, ModelVersion: 6, Length: 5, Dispatched: 7, Gathered: 8, Inferred: 9})
	c.Flush()
	c.BatchEnded(0xabcd)

	for _, test := range []struct {
		name string
		mem  []byte
		want string
	}{
		{"table", p.table.region.Bytes(), `
0000 504e4b54050000000200000002000000
0010 05000000800000000000000000000000
0080 44332211020000000006000009040000
0090 01000000000000000200000000000000
00a0 03000000000000000400000005000000
00b0 00000000000000002000100040000005
00e0 00100000000000002000000000040700
00f0 00200000000000002004000000020000
`},
		{"ring", p.channel.ringMem.Bytes(), `
0000 504e4b52050000000200000002000000
0010 05000000800000000000000000000000
0040 05000000000000000000000000000000
0080 02000000000000000000000000000000
00c0 01000000000000000000000000000000
0140 01000000010000000000000000000000
0180 01000000000000000000000000000000
`},
		{"replies", p.channel.replies.Bytes(), `
0000 01000000000000000000000000000000
0040 05000000000000000000000000000000
0080 01000000000000000000000000000000
00c0 02000000000000000000000000000000
0100 01000000000000000000000000000000
0180 01000000000000000000000000000000
0240 cdab0000000000000000000000000000
0280 15000000010000001700000001000000
02c0 01000000010000000000000000000000
0340 05000000060000000203040000000000
0350 07000000000000000800000000000000
0360 09000000000000000000000000000000
1000 68656c6c6f0000000000000000000000
`},
	} {
		if got := "\n" + dump(test.mem); got != test.want {
			t.Errorf("%s is%swant%s", test.name, got, test.want)
		}
	}
}

func TestGeometry(t *testing.T) {
	for _, test := range []struct {
		g    Geometry
		good bool
	}{
		{Geometry{Slots: 1, MaxFragments: 1, PoolBytes: 64}, true},
		{Geometry{Slots: 65536, MaxFragments: 131070, ResultBytes: 65535 << 10, PoolBytes: 1 << 30}, true},
		{Geometry{Slots: 1, MaxFragments: 1}, false},
		{Geometry{Slots: 1, MaxFragments: 1, PoolBytes: 65}, false},
		{Geometry{Slots: 1, MaxFragments: 1, ResultBytes: 65, PoolBytes: 64}, false},
		{Geometry{Slots: 1, MaxFragments: 1, PoolBytes: 1<<30 + 64}, false},
		{Geometry{Slots: 0, MaxFragments: 1}, false},
		{Geometry{Slots: 3, MaxFragments: 1}, false},
		{Geometry{Slots: 131072, MaxFragments: 1}, false},
		{Geometry{Slots: 4, MaxFragments: 0}, false},
		{Geometry{Slots: 4, MaxFragments: 131071}, false},
		{Geometry{Slots: 4, MaxFragments: 1, ResultBytes: 65535<<10 + 1}, false},
	} {
		if err := test.g.Validate(); (err == nil) != test.good {
			t.Errorf("%+v: %v", test.g, err)
		}
	}
}

func TestPackUnpack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ticket, slot := rapid.Uint32().Draw(t, "ticket"), rapid.Uint32().Draw(t, "slot")
		generation := rapid.Uint32Range(0, maxGeneration).Draw(t, "generation")
		stage := Stage(rapid.IntRange(0, 3).Draw(t, "stage"))
		if a, b, c := unpackStage(packStage(ticket, generation, stage)); a != ticket || b != generation || c != stage {
			t.Fatalf("stage: %d %d %v", a, b, c)
		}
		if a, b := unpackReply(packReply(ticket, slot)); a != ticket || b != slot {
			t.Fatalf("reply: %d %d", a, b)
		}
	})
}

func TestStageNames(t *testing.T) {
	for stage, want := range map[Stage]string{StageNone: "none", StagePending: "pending", StageStarted: "started", stageDone: "started", 9: "Stage(9)"} {
		if stage.String() != want {
			t.Errorf("%d is %q, want %q", uint8(stage), stage, want)
		}
	}
}
