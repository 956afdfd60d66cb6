package cameras

import (
	"encoding/binary"
	"errors"
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

// pixelFormat is a format of a camera. Its wire format is 0 if the sampler cannot read it.
type pixelFormat struct {
	name string
	wire wire.PictureFormat
}

var pixelFormats = func() map[uint32]pixelFormat {
	all := map[uint32]pixelFormat{
		0x01080001: {"Mono8", wire.FormatGrey8}, 0x01100003: {"Mono10", wire.FormatGrey10}, 0x010c0004: {"Mono10Packed", wire.FormatGrey10Packed},
		0x010a0046: {"Mono10p", wire.FormatGrey10p}, 0x01100005: {"Mono12", wire.FormatGrey12}, 0x010c0006: {"Mono12Packed", wire.FormatGrey12Packed},
		0x010c0047: {"Mono12p", wire.FormatGrey12p}, 0x01100007: {"Mono16", wire.FormatGrey16},
		0x02180014: {"RGB8", wire.FormatRGB8}, 0x02180015: {"BGR8", wire.FormatBGR8}, 0x02200016: {"RGBa8", wire.FormatRGBA8}, 0x02200017: {"BGRa8", 0},
		0x0210001f: {"YUV422_8_UYVY", wire.FormatUYVY}, 0x02100032: {"YUV422_8", wire.FormatYUYV},
	}
	// The orders of Bayer formats have codes in a row; those without gaps in the order of the alphabet.
	orders := [...]struct {
		name      string
		order     wire.BayerOrder
		row, spot uint32
	}{{"GR", wire.BayerGR, 0, 4}, {"RG", wire.BayerRG, 1, 6}, {"GB", wire.BayerGB, 2, 2}, {"BG", wire.BayerBG, 3, 0}}
	for _, o := range orders {
		for code, f := range map[uint32]pixelFormat{
			0x01080008 + o.row: {"8", wire.FormatBayerRG8}, 0x0110000c + o.row: {"10", wire.FormatBayerRG10}, 0x01100010 + o.row: {"12", wire.FormatBayerRG12},
			0x010c0026 + o.row: {"10Packed", wire.FormatBayerRG10Packed}, 0x010c002a + o.row: {"12Packed", wire.FormatBayerRG12Packed},
			0x010a0052 + o.spot: {"10p", wire.FormatBayerRG10p}, 0x010c0053 + o.spot: {"12p", wire.FormatBayerRG12p},
		} {
			all[code] = pixelFormat{"Bayer" + o.name + f.name, f.wire + wire.PictureFormat(o.order)}
		}
	}
	return all
}()

// formatName names a code, or writes it in hex.
func formatName(code uint32) string {
	if f, ok := pixelFormats[code]; ok {
		return f.name
	}
	return fmt.Sprintf("pixel format 0x%08x", code)
}

// pixelName names the pixels that the function takes, as cameras of the format do.
func (r *Reader) pixelName() string {
	for _, f := range pixelFormats {
		if r.Format == GVSP && f.wire == r.Shape.Format {
			return f.name
		}
	}
	return r.Shape.Format.String()
}

// shapeOf returns the shape of a camera's picture, whose lines have so many bytes more than their pixels.
func (r *Reader) shapeOf(code, width, height uint32, padding int) wire.Picture {
	p := wire.Picture{Format: pixelFormats[code].wire, Width: int(width), Height: int(height), Colours: r.Shape.Colours}
	if padding > 0 {
		p.Stride = p.RowBytes() + padding
	}
	return p
}

// checkShape returns an error if the function does not take a camera's picture.
func (r *Reader) checkShape(code, width, height uint32, padding int) error {
	if pixelFormats[code].wire == 0 {
		return errors.New("this pixel format is not known; want Mono8 to Mono16, RGB8, BGR8, RGBa8, YUV422_8, YUV422_8_UYVY, or Bayer of 8, 10 or 12 bits")
	}
	return CheckShape(r.shapeOf(code, width, height, padding), r.Largest)
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
		at, p.Extended = extendedBytes, true
	}
	if status != statusSuccess && status != statusResent { // the camera no longer has these pixels
		return wire.ErrStatus
	}
	p.Picture, p.Stream = uint32(block), uint32(block>>32)

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
	if r.Shape.Format == 0 {
		if paddingY != 0 {
			p.Refusal = Refusal{Cause: badPadding, A: 0, B: uint32(paddingY)}
		} else if r.checkShape(format, width, height, int(paddingX)) != nil {
			p.Refusal = Refusal{Cause: badPicture, A: width, B: height, C: format, D: uint32(paddingX)}
		} else {
			p.Shape = r.shapeOf(format, width, height, int(paddingX))
			p.Bytes, _ = p.Shape.Bytes()
		}
		return nil
	}
	switch {
	case uint64(width) != uint64(r.Shape.Width) || uint64(height) != uint64(r.Shape.Height) || pixelFormats[format].wire != r.Shape.Format:
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
	if lines := binary.BigEndian.Uint32(body[4:]); lines != 0 && r.Shape.Format != 0 && uint64(lines) != uint64(r.Shape.Height) {
		p.Refusal = Refusal{Cause: badHeight, A: lines}
	}
	return nil
}
