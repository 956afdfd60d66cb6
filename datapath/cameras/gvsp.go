package cameras

import (
	"encoding/binary"
	"fmt"

	"github.com/penstock/penstock/wire"
)

// The GigE Vision Stream Protocol. Numbers are big-endian. A picture is a block of packets:
//
//	id 0      leader    what the picture looks like
//	id 1..n   payload   the pixels; all packets but the last have the same size
//	id n+1    trailer
//
// Each begins with one of two headers. The extension bit says which.
//
//	 0  u16 status · u16 block id                            u16 status · u16 flags
//	 4  u1 0 · u7 content type · u24 packet id               u1 1 · u7 content type · u24 reserved
//	 8                                                       u64 block id · u32 packet id

const (
	standardBytes = 8
	extendedBytes = 20
	extensionBit  = 1 << 31

	statusSuccess = 0x0000
	statusResent  = 0x0100

	contentLeader  = 1
	contentTrailer = 2
	contentPayload = 3

	// The leader of a picture, after the header:
	//
	//	 0  u16 flags · u16 payload type · u64 timestamp · u32 pixel format
	//	16  u32 width · u32 height · u32 x offset · u32 y offset
	//	32  u16 x padding · u16 y padding
	leaderBytes = 36
	// The trailer: u32 payload type · u32 lines. The payload type has 16 bits after 16 reserved ones.
	trailerBytes = 8

	payloadImage = 1
)

// Codes of the Pixel Format Naming Convention.
const (
	codeMono8 = 0x01080001
	codeRGB8  = 0x02180014
)

var formatNames = map[uint32]string{
	codeMono8: "Mono8", codeRGB8: "RGB8", 0x02180015: "BGR8", 0x02200016: "RGBa8", 0x02200017: "BGRa8",
	0x01100003: "Mono10", 0x01100005: "Mono12", 0x01100007: "Mono16",
	0x01080008: "BayerGR8", 0x01080009: "BayerRG8", 0x0108000a: "BayerGB8", 0x0108000b: "BayerBG8",
	0x0210001f: "YUV422_8_UYVY", 0x02100032: "YUV422_8",
}

// formatName names a code, or writes it in hex.
func formatName(code uint32) string {
	if name, ok := formatNames[code]; ok {
		return name
	}
	return fmt.Sprintf("pixel format 0x%08x", code)
}

// readGVSP is Read for GVSP.
func (r *Reader) readGVSP(p *Packet, head []byte, packetBytes int) error {
	if len(head) < standardBytes {
		return wire.ErrShort
	}
	status, word := binary.BigEndian.Uint16(head), binary.BigEndian.Uint32(head[4:])
	block, id := uint64(binary.BigEndian.Uint16(head[2:])), word&(1<<24-1)
	at := standardBytes
	if word&extensionBit != 0 {
		if len(head) < extendedBytes {
			return wire.ErrShort
		}
		block, id = binary.BigEndian.Uint64(head[8:]), binary.BigEndian.Uint32(head[16:])
		at = extendedBytes
	}
	if status != statusSuccess && status != statusResent { // the camera no longer has these pixels
		return wire.ErrStatus
	}
	p.Picture = uint32(block)

	content := word >> 24 & 0x7f
	if content == contentPayload {
		if id == 0 {
			return wire.ErrIndex
		}
		p.Part, p.Index, p.Offset, p.Length = Fragment, id-1, at, packetBytes-at
		if p.Length == 0 {
			return wire.ErrLength
		}
		return nil
	}
	body := head[at:]
	switch content {
	case contentLeader:
		return r.readLeader(p, id, body)
	case contentTrailer:
		return r.readTrailer(p, id, body)
	}
	p.Part, p.Refusal = Leader, Refusal{Cause: badContent, A: content}
	return nil
}

func (r *Reader) readLeader(p *Packet, id uint32, body []byte) error {
	switch {
	case id != 0:
		return wire.ErrIndex
	case len(body) < 4:
		return wire.ErrShort
	}
	p.Part = Leader
	if kind := binary.BigEndian.Uint16(body[2:]); kind != payloadImage {
		p.Refusal = Refusal{Cause: badPayload, A: uint32(kind)}
		return nil
	}
	if len(body) < leaderBytes {
		return wire.ErrShort
	}
	p.SentAt = binary.BigEndian.Uint64(body[4:])
	format, width, height := binary.BigEndian.Uint32(body[12:]), binary.BigEndian.Uint32(body[16:]), binary.BigEndian.Uint32(body[20:])
	paddingX, paddingY := binary.BigEndian.Uint16(body[32:]), binary.BigEndian.Uint16(body[34:])
	want := uint32(codeMono8)
	if r.PixelBytes == 3 {
		want = codeRGB8
	}
	switch {
	case uint64(width) != uint64(r.Width) || uint64(height) != uint64(r.Height) || format != want:
		p.Refusal = Refusal{Cause: badPicture, A: width, B: height, C: format}
	case paddingX != 0 || paddingY != 0:
		p.Refusal = Refusal{Cause: badPadding, A: uint32(paddingX), B: uint32(paddingY)}
	}
	return nil
}

func (r *Reader) readTrailer(p *Packet, id uint32, body []byte) error {
	switch {
	case id == 0:
		return wire.ErrIndex
	case len(body) < trailerBytes:
		return wire.ErrShort
	}
	p.Part = Trailer
	// Some cameras do not fill in the number of lines.
	if lines := binary.BigEndian.Uint32(body[4:]); lines != 0 && uint64(lines) != uint64(r.Height) {
		p.Refusal = Refusal{Cause: badHeight, A: lines}
	}
	return nil
}
