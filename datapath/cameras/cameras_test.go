package cameras

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/cameratest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// bytesOf decodes hex with spaces.
func bytesOf(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	must.OK(t, err)
	return b
}

var (
	grey   = Reader{Format: GVSP, Shape: wire.Picture{Format: wire.FormatGrey8, Width: 640, Height: 480}}
	colour = Reader{Format: GVSP, Shape: wire.Picture{Format: wire.FormatRGB8, Width: 640, Height: 480}}
	any    = Reader{Format: GVSP, Largest: 640 * 480 * 4}
	video  = Reader{Format: RFC4175, Shape: wire.Picture{Format: wire.FormatRGB8, Width: 4, Height: 3}}
	video8 = Reader{Format: RFC4175, Shape: wire.Picture{Format: wire.FormatUYVY, Width: 4, Height: 3}}
	deep   = Reader{Format: RFC4175, Shape: wire.Picture{Format: wire.FormatUYVY10, Width: 4, Height: 3}}
	rgb10  = Reader{Format: RFC4175, Shape: wire.Picture{Format: wire.FormatRGB10, Width: 8, Height: 3}}
	fours  = Reader{Format: RFC4175, Shape: wire.Picture{Format: wire.FormatYYYYUV, Width: 4, Height: 6}}
)

func read(r *Reader, b []byte) (p Packet, err error) {
	err = r.Read(&p, b[:min(len(b), HeadBytes)], len(b))
	return p, err
}

const (
	standardLeader = "0000 fffe 01000000" + leaderOfGrey
	extendedLeader = "0000 0000 81000000 0000000100000002 00000000" + leaderOfGrey
	leaderOfGrey   = "0000 0001 0102030405060708 01080001 00000280 000001e0 00000000 00000000 0000 0000"
)

func TestGVSP(t *testing.T) {
	for _, row := range []struct {
		name, packet string
		want         Packet
	}{
		{"leader", standardLeader, Packet{Picture: 0xfffe, Part: Leader, SentAt: 0x0102030405060708}},
		{"leader, 64-bit block", extendedLeader, Packet{Picture: 2, Stream: 1, Extended: true, Part: Leader, SentAt: 0x0102030405060708}},
		{"payload", "0000 0001 03000001 aabb", Packet{Picture: 1, Part: Fragment, Index: 0, Offset: 8, Length: 2}},
		{"resent payload", "0100 ffff 03ffffff aabbcc", Packet{Picture: 0xffff, Part: Fragment, Index: 0xfffffe, Offset: 8, Length: 3}},
		{"payload, 64-bit block", "0000 0000 83000000 ffffffffffffffff 00000002 aa", Packet{Picture: 0xffffffff, Stream: 0xffffffff, Extended: true, Part: Fragment, Index: 1, Offset: 20, Length: 1}},
		{"trailer", "0000 0001 02000009 00000001 000001e0", Packet{Picture: 1, Part: Trailer}},
		{"trailer without lines", "0000 0001 02000009 00000001 00000000", Packet{Picture: 1, Part: Trailer}},
	} {
		t.Run(row.name, func(t *testing.T) {
			if p, err := read(&grey, bytesOf(t, row.packet)); err != nil || p != row.want {
				t.Errorf("got %+v, %v; want %+v", p, err, row.want)
			}
		})
	}
}

func TestGVSPRefusals(t *testing.T) {
	for _, row := range []struct {
		name   string
		reader *Reader
		packet string
		want   string
	}{
		{"pixel format", &colour, standardLeader, "the camera sends 640 x 480 Mono8, want 640 x 480 RGB8"},
		{"size", &grey, strings.Replace(standardLeader, "00000280", "00000500", 1), "the camera sends 1280 x 480 Mono8, want 640 x 480 Mono8"},
		{"huge size", &grey, strings.Replace(standardLeader, "00000280 000001e0", "ffffffff ffffffff", 1), "the camera sends 4294967295 x 4294967295 Mono8, want 640 x 480 Mono8"},
		{"unknown pixel format", &grey, strings.Replace(standardLeader, "01080001", "deadbeef", 1), "the camera sends 640 x 480 pixel format 0xdeadbeef, want 640 x 480 Mono8"},
		{"Bayer", &grey, strings.Replace(standardLeader, "01080001", "0108000b", 1), "the camera sends 640 x 480 BayerBG8, want 640 x 480 Mono8"},
		{"padded lines", &grey, standardLeader[:len(standardLeader)-len("0000 0000")] + "0004 0010", "the camera pads each line by 4 bytes and each picture by 16, want 0"},
		{"chunks", &grey, strings.Replace(standardLeader, "0000 0001 0102", "0000 4001 0102", 1), "the camera sends GVSP payload of type 0x4001, want pictures (0x0001)"},
		{"short leader of chunks", &grey, "0000 0001 01000000 0000 0004", "the camera sends GVSP payload of type 0x0004, want pictures (0x0001)"},
		{"all in one packet", &grey, "0000 0001 04000000 aa", "the camera sends GVSP packets with content 4, want leader, payload and trailer (1 to 3)"},
		{"fewer lines", &grey, "0000 0001 02000009 00000001 000001df", "the camera's pictures end after 479 lines, want 640 x 480 Mono8"},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := read(row.reader, bytesOf(t, row.packet))
			if err != nil || p.Refusal.Cause == 0 {
				t.Fatalf("got %+v, %v; want a refusal", p, err)
			}
			if got := row.reader.Explain(p.Refusal); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

// leaderOf is a leader of a picture.
func leaderOf(code, width, height uint32, padding uint16) string {
	return fmt.Sprintf("0000 0001 01000000 00000001 0102030405060708 %08x %08x %08x 00000000 00000000 %04x 0000", code, width, height, padding)
}

func TestGVSPShapes(t *testing.T) {
	for _, row := range []struct {
		code          uint32
		width, height uint32
		padding       uint16
		want          wire.Picture
		bytes         int
	}{
		{0x01080001, 3, 5, 0, wire.Picture{Format: wire.FormatGrey8, Width: 3, Height: 5}, 15},
		{0x01080001, 3, 5, 1, wire.Picture{Format: wire.FormatGrey8, Width: 3, Height: 5, Stride: 4}, 20},
		{0x01100005, 3, 5, 0, wire.Picture{Format: wire.FormatGrey12, Width: 3, Height: 5}, 30},
		{0x010c0006, 4, 4, 0, wire.Picture{Format: wire.FormatGrey12Packed, Width: 4, Height: 4}, 24},
		{0x02180014, 640, 480, 0, wire.Picture{Format: wire.FormatRGB8, Width: 640, Height: 480}, 921600},
		{0x0210001f, 4, 4, 0, wire.Picture{Format: wire.FormatUYVY, Width: 4, Height: 4}, 32},
		{0x01080008, 8, 4, 0, wire.Picture{Format: wire.FormatBayerRG8 + 1, Width: 8, Height: 4}, 32},
		{0x0110000e, 8, 4, 0, wire.Picture{Format: wire.FormatBayerRG10 + 2, Width: 8, Height: 4}, 64},
		{0x01100013, 8, 4, 0, wire.Picture{Format: wire.FormatBayerRG12 + 3, Width: 8, Height: 4}, 64},
		{0x010c0027, 8, 4, 0, wire.Picture{Format: wire.FormatBayerRG10Packed, Width: 8, Height: 4}, 48},
		{0x010c002d, 8, 4, 0, wire.Picture{Format: wire.FormatBayerRG12Packed + 3, Width: 8, Height: 4}, 48},
		{0x010a0052, 8, 4, 0, wire.Picture{Format: wire.FormatBayerRG10p + 3, Width: 8, Height: 4}, 40},
		{0x010a0058, 8, 4, 0, wire.Picture{Format: wire.FormatBayerRG10p, Width: 8, Height: 4}, 40},
		{0x010c0055, 8, 4, 0, wire.Picture{Format: wire.FormatBayerRG12p + 2, Width: 8, Height: 4}, 48},
	} {
		p, err := read(&any, bytesOf(t, leaderOf(row.code, row.width, row.height, row.padding)))
		if err != nil || p.Shape != row.want || p.Bytes != row.bytes || p.Refusal.Cause != 0 {
			t.Errorf("%08x: %+v, %v; want %v of %d bytes", row.code, p, err, row.want, row.bytes)
		}
	}
	for _, row := range []struct {
		code          uint32
		width, height uint32
		padding       uint16
		want          string
	}{
		{0xdeadbeef, 8, 8, 0, "the camera sends 8 x 8 pixel format 0xdeadbeef: this pixel format is not known; want Mono8 to Mono16, RGB8"},
		{0x02200017, 8, 8, 0, "the camera sends 8 x 8 BGRa8: this pixel format is not known"},
		{0x01080009, 1920, 1200, 0, "the camera sends 1920 x 1200 BayerRG8: picture of 1920 x 1200 of bayer_rg8 has 2304000 bytes, and the function takes at most 1228800"},
		{0x01080001, 640, 480, 4000, "has 2227200 bytes, and the function takes at most 1228800"},
		{0x01080009, 7, 8, 0, "want even numbers for bayer_rg8"},
		{0x01080009, 2, 2, 0, "want at least 4 x 4 for bayer_rg8"},
		{0x010a0058, 6, 4, 0, "the camera sends 6 x 4 BayerRG10p: lines of 6 pixels end within a group; want a multiple of 4"},
		{0x010c0006, 3, 4, 0, "lines of 3 pixels end within a group; want a multiple of 2"},
		{0x01080001, 0, 4, 0, "picture has 0 x 4 pixels"},
		{0x01080001, 1 << 31, 1 << 31, 0, "want 1 to 65535 on each side"},
		{0x01100005, 1<<32 - 1, 1<<32 - 1, 0xffff, "want 1 to 65535 on each side"},
	} {
		p, err := read(&any, bytesOf(t, leaderOf(row.code, row.width, row.height, row.padding)))
		if got := any.Explain(p.Refusal); err != nil || !strings.Contains(got, row.want) {
			t.Errorf("%08x: %q, %v; want %q", row.code, got, err, row.want)
		}
	}
}

func TestResend(t *testing.T) {
	for _, row := range []struct {
		resend Resend
		want   string
	}{
		{Resend{Block: 0xfffe, First: 2, Last: 9}, "42 00 0040 000c 0001 0000fffe 00000002 00000009"},
		{Resend{Block: 1<<32 | 5, Extended: true, First: 2, Last: 9}, "42 10 0040 0014 0001 00000000 00000002 00000009 0000000100000005"},
	} {
		if got, want := row.resend.Append(nil), bytesOf(t, row.want); !bytes.Equal(got, want) {
			t.Errorf("%+v: %x, want %x", row.resend, got, want)
		}
	}
}

func TestGVSPMalformed(t *testing.T) {
	for _, row := range []struct {
		name, packet string
		want         error
	}{
		{"empty", "", wire.ErrShort},
		{"cut header", "0000 0001 030000", wire.ErrShort},
		{"cut 64-bit header", "0000 0000 83000000 0000000000000001 000000", wire.ErrShort},
		{"status of an error", "800c 0001 03000001 aa", wire.ErrStatus},
		{"unknown status", "0001 0001 03000001 aa", wire.ErrStatus},
		{"payload without pixels", "0000 0001 03000001", wire.ErrLength},
		{"payload in place of the leader", "0000 0001 03000000 aa", wire.ErrIndex},
		{"leader in place of payload", "0000 0001 01000001" + leaderOfGrey, wire.ErrIndex},
		{"trailer in place of the leader", "0000 0001 02000000 00000001 000001e0", wire.ErrIndex},
		{"leader without a body", "0000 0001 01000000", wire.ErrShort},
		{"cut leader", standardLeader[:len(standardLeader)-2], wire.ErrShort},
		{"cut trailer", "0000 0001 02000009 00000001 000001", wire.ErrShort},
	} {
		t.Run(row.name, func(t *testing.T) {
			if p, err := read(&grey, bytesOf(t, row.packet)); !errors.Is(err, row.want) {
				t.Errorf("got %+v, %v; want %v", p, err, row.want)
			}
		})
	}
}

// rtp is a packet of lines after the fixed RTP header.
func rtp(first, second byte, rest string) string {
	return hex.EncodeToString([]byte{first, second}) + "ffff 00000009 12345678" + rest
}

func TestRFC4175(t *testing.T) {
	whole := Packet{Picture: 9, Stream: 0x12345678, Part: Run, Shape: video.Shape}
	with := func(place uint32, offset, length int) Packet {
		p := whole
		p.Place, p.Offset, p.Length = place, offset, length
		return p
	}
	for _, row := range []struct {
		name, packet string
		want         Packet
	}{
		{"part of a line", rtp(0x80, 96, "0000 0006 0001 0001 010203040506"), with(15, 20, 6)},
		{"end of a line and the next", rtp(0x80, 96, "0000 0003 0000 8003 0003 0001 0000 010203040506"), with(9, 26, 6)},
		{"last pixel with the marker", rtp(0x80, 0x80|96, "0000 0003 0002 0003 010203"), with(33, 20, 3)},
		{"last pixel, marker lost", rtp(0x80, 96, "0000 0003 0002 0003 010203"), with(33, 20, 3)},
		{"sources and extension", rtp(0x92, 96, "00000001 00000002 bede0001 00000000 0000 0003 0000 0000 010203"), with(0, 36, 3)},
		{"high sequence number", rtp(0x80, 96, "ffff 0003 0000 0000 010203"), with(0, 20, 3)},
	} {
		t.Run(row.name, func(t *testing.T) {
			if p, err := read(&video, bytesOf(t, row.packet)); err != nil || p != row.want {
				t.Errorf("got %+v, %v; want %+v", p, err, row.want)
			}
		})
	}
}

func TestRFC4175Refusals(t *testing.T) {
	const want = ", want 4 x 3 rgb8"
	for _, row := range []struct{ name, packet, want string }{
		{"too many lines", rtp(0x80, 96, "0000 0003 0003 0000 010203"), "the camera's pictures have at least 4 lines" + want},
		{"lines too long", rtp(0x80, 96, "0000 0006 0000 0003 010203040506"), "the camera's lines have at least 5 pixels" + want},
		{"first pixel outside", rtp(0x80, 96, "0000 0003 0000 7fff 010203"), "the camera's lines have at least 32768 pixels" + want},
		{"fewer lines", rtp(0x80, 0x80|96, "0000 0003 0001 0003 010203"), "the camera's pictures end after 2 lines of 4 pixels" + want},
		{"shorter lines in one packet", rtp(0x80, 96, "0000 0009 0000 8000 0009 0001 0000 010203040506070809 010203040506070809"), "the camera's lines end after 3 pixels" + want},
		{"shorter lines", rtp(0x80, 0x80|96, "0000 0003 0002 0002 010203"), "the camera's pictures end after 3 lines of 3 pixels" + want},
		{"interlaced", rtp(0x80, 96, "0000 0003 8000 0000 010203"), "the camera sends interlaced video, want progressive"},
		{"pixels of another size", rtp(0x80, 96, "0000 0004 0000 0000 01020304"), "the camera sends 4 bytes of a line, which divide a group (3 bytes, 1 x 1 pixels)" + want},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := read(&video, bytesOf(t, row.packet))
			if err != nil || p.Refusal.Cause == 0 {
				t.Fatalf("got %+v, %v; want a refusal", p, err)
			}
			if got := video.Explain(p.Refusal); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestRFC4175Malformed(t *testing.T) {
	for _, row := range []struct {
		name, packet string
		want         error
	}{
		{"empty", "", wire.ErrShort},
		{"cut header", "8060 ffff 00000009 123456", wire.ErrShort},
		{"RTP version 1", rtp(0x40, 96, "0000 0003 0000 0000 010203"), wire.ErrVersion},
		{"padding", rtp(0xa0, 96, "0000 0003 0000 0000 010203"), wire.ErrFlags},
		{"RTCP", rtp(0x80, 200, "0000 0003 0000 0000 010203"), wire.ErrType},
		{"no line", rtp(0x80, 96, "0000"), wire.ErrShort},
		{"lines without end", rtp(0x80, 96, "0000"+strings.Repeat("0003 0000 8000", 200)), wire.ErrOffset},
		{"headers beyond the packet", rtp(0x9f, 96, ""), wire.ErrShort},
		{"extension beyond the packet", rtp(0x90, 96, "bedeffff"), wire.ErrShort},
		{"empty line", rtp(0x80, 96, "0000 0000 0000 0000 010203"), wire.ErrLength},
		{"pixels missing", rtp(0x80, 96, "0000 0006 0000 0000 010203"), wire.ErrLength},
		{"bytes left over", rtp(0x80, 96, "0000 0003 0000 0000 01020304"), wire.ErrTrailing},
		{"a gap between lines", rtp(0x80, 96, "0000 0003 0000 8000 0003 0002 0000 010203040506"), wire.ErrOffset},
		{"a gap in a line", rtp(0x80, 96, "0000 0003 0000 8000 0003 0000 0002 010203040506"), wire.ErrOffset},
		{"the same line twice", rtp(0x80, 96, "0000 0003 0000 8000 0003 0000 0000 010203040506"), wire.ErrOffset},
	} {
		t.Run(row.name, func(t *testing.T) {
			if p, err := read(&video, bytesOf(t, row.packet)); !errors.Is(err, row.want) {
				t.Errorf("got %+v, %v; want %v", p, err, row.want)
			}
		})
	}
}

// TestGroups checks formats of several pixels per pgroup.
func TestGroups(t *testing.T) {
	for _, row := range []struct {
		name          string
		reader        *Reader
		packet        string
		place, length int
		want          string
	}{
		{"4:2:2", &video8, rtp(0x80, 96, "0000 0004 0001 0002 01020304"), 12, 4, ""},
		{"10 bits", &deep, rtp(0x80, 96, "0000 0005 0001 8002 0005 0002 0000 0102030405 0102030405"), 15, 10, ""},
		{"end of 10 bits", &deep, rtp(0x80, 0x80|96, "0000 0005 0002 0002 0102030405"), 25, 5, ""},
		{"RGB of 10 bits", &rgb10, rtp(0x80, 96, "0000 000f 0001 0004 0102030405 0102030405 0102030405"), 45, 15, ""},
		{"4:2:0", &fours, rtp(0x80, 96, "0000 0006 0000 8002 0006 0002 0000 010203040506 010203040506"), 6, 12, ""},
		{"end of 4:2:0", &fours, rtp(0x80, 0x80|96, "0000 000c 0004 0000 010203040506 010203040506"), 24, 12, ""},
		{"half a group", &deep, rtp(0x80, 96, "0000 0003 0000 0000 010203"), 0, 0, "the camera sends 3 bytes of a line, which divide a group (5 bytes, 2 x 1 pixels), want 4 x 3 uyvy10"},
		{"first pixel within a group", &video8, rtp(0x80, 96, "0000 0004 0000 0001 01020304"), 0, 0, "the camera sends 4 bytes of a line, which divide a group (4 bytes, 2 x 1 pixels), want 4 x 3 uyvy"},
		{"line within a group", &fours, rtp(0x80, 96, "0000 0006 0001 0000 010203040506"), 0, 0, "the camera sends 6 bytes of a line, which divide a group (6 bytes, 2 x 2 pixels), want 4 x 6 yyyyuv"},
		{"lines too long", &fours, rtp(0x80, 96, "0000 0006 0000 0004 010203040506"), 0, 0, "the camera's lines have at least 6 pixels, want 4 x 6 yyyyuv"},
		{"fewer lines", &fours, rtp(0x80, 0x80|96, "0000 0006 0002 0002 010203040506"), 0, 0, "the camera's pictures end after 4 lines of 4 pixels, want 4 x 6 yyyyuv"},
	} {
		p, err := read(row.reader, bytesOf(t, row.packet))
		if got := row.reader.Explain(p.Refusal); err != nil || got != row.want {
			t.Errorf("%s: %q, %v; want %q", row.name, got, err, row.want)
		}
		if row.want == "" && (int(p.Place) != row.place || p.Length != row.length || p.Shape != row.reader.Shape) {
			t.Errorf("%s: %+v, want %d bytes from %d on", row.name, p, row.length, row.place)
		}
	}
}

// TestLineHeaders checks that HeadBytes holds the headers of 100 lines.
func TestLineHeaders(t *testing.T) {
	const lines = 100
	r := Reader{Format: RFC4175, Shape: wire.Picture{Format: wire.FormatGrey8, Width: 1, Height: lines}}
	send := cameratest.RTP{Width: 1, PixelBytes: 1, Pixels: make([]byte, lines), Size: lines}
	p, err := read(&r, send.Packets()[0])
	if err != nil || p.Length != lines {
		t.Errorf("got %+v, %v; want %d bytes", p, err, lines)
	}
}

func TestReadAllocatesNothing(t *testing.T) {
	packets := map[*Reader][]byte{&grey: bytesOf(t, standardLeader), &any: bytesOf(t, standardLeader), &video: bytesOf(t, rtp(0x80, 96, "0000 0006 0001 0001 010203040506"))}
	for r, b := range packets {
		var p Packet
		if n := testing.AllocsPerRun(100, func() {
			if r.Read(&p, b, len(b)) != nil {
				t.Fatal("packet is malformed")
			}
		}); n != 0 {
			t.Errorf("%v: %v allocations", r.Format, n)
		}
	}
}

// check fails the test if what was read of a packet contradicts the packet or the picture.
func check(t *testing.T, r *Reader, b []byte) {
	p, err := read(r, b)
	switch {
	case err != nil:
		if wire.ReasonOf(err) == wire.ReasonNone {
			t.Fatalf("error without a reason: %v", err)
		}
	case p.Refusal.Cause != 0:
		if r.Explain(p.Refusal) == "" {
			t.Fatalf("refusal %+v without a text", p.Refusal)
		}
	case p.Part == Fragment || p.Part == Run:
		if p.Length < 1 || p.Offset < 1 || p.Offset+p.Length != len(b) {
			t.Fatalf("%+v lies outside the packet of %d bytes", p, len(b))
		}
		if p.Part == Run && uint64(p.Place)+uint64(p.Length) > uint64(r.PictureBytes()) {
			t.Fatalf("%+v lies outside the picture of %d bytes", p, r.PictureBytes())
		}
	}
}

func FuzzGVSP(f *testing.F) {
	for _, text := range []string{standardLeader, extendedLeader, "0000 0001 03000001 aabb", "0000 0001 02000009 00000001 000001e0", "0000 0001 04000000 aa"} {
		f.Add(bytesOf(f, text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		check(t, &grey, b)
		check(t, &colour, b)
		check(t, &any, b)
	})
}

func FuzzRFC4175(f *testing.F) {
	for _, rest := range []string{"0000 0006 0001 0001 010203040506", "0000 0003 0000 8003 0003 0001 0000 010203040506", "0000 0003 8000 0000 010203"} {
		f.Add(bytesOf(f, rtp(0x80, 96, rest)))
	}
	f.Add(bytesOf(f, rtp(0x92, 96, "00000001 00000002 bede0001 00000000 0000 0003 0000 0000 010203")))
	f.Add(bytesOf(f, rtp(0x80, 96, "0000 0006 0000 8002 0006 0002 0000 010203040506 010203040506")))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, r := range []*Reader{&video, &video8, &deep, &rgb10, &fours} {
			check(t, r, b)
		}
	})
}
