package cameras

import (
	"encoding/binary"
	"fmt"

	"github.com/penstock/penstock/wire"
)

// Uncompressed video over RTP (RFC 3550, RFC 4175). Numbers are big-endian.
//
//	 0  u2 version 2 · u1 padding · u1 extension · u4 count of sources
//	 1  u1 marker · u7 payload type
//	 2  u16 sequence number · u32 timestamp · u32 SSRC
//	12  count x u32 · extension, if there is one
//	    u16 high half of the sequence number
//	    lines:  u16 bytes · u1 field · u15 line · u1 another line follows · u15 first pixel
//	    pixels of all lines
//
// The sequence number is not needed: each packet says where its pixels belong. The marker is set in
// the last packet of a picture. If it is lost, the picture is complete all the same. If it comes
// with other pixels than the last ones, the picture has another size.

const (
	rtpBytes        = 12
	rtpVersion      = 2
	paddingFlag     = 0x20
	extensionFlag   = 0x10
	markerFlag      = 0x80
	sequenceBytes   = 2 // the high half of the sequence number
	lineHeaderBytes = 6
)

// readRFC4175 is Read for RFC 4175.
func (r *Reader) readRFC4175(p *Packet, head []byte, packetBytes int) error {
	at, err := rtpPayload(head)
	if err != nil {
		return err
	}
	g := groupOf(r.Shape)
	p.Shape = r.Shape
	p.Part, p.Picture, p.Stream = Run, binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[8:])
	at += sequenceBytes

	var last line
	for more := true; more; at += lineHeaderBytes {
		if len(head) < at+lineHeaderBytes {
			return wire.ErrShort
		}
		next := readLine(head[at:])
		if p.Refusal = r.refuseLine(&g, &next); p.Refusal.Cause != 0 {
			return nil
		}
		switch {
		case next.bytes == 0:
			return wire.ErrLength
		case p.Length == 0:
			p.Place = uint32(g.begin(&next))
		case g.begin(&next) == g.end(&last):
		case next.line == last.line+g.height && next.pixel == 0:
			p.Refusal = Refusal{Cause: badWidth, A: uint32(g.endPixel(&last))}
			return nil
		default:
			return wire.ErrOffset // the lines of a packet must follow each other
		}
		p.Length += next.bytes
		last, more = next, next.more
	}
	p.Offset = at

	switch {
	case p.Offset+p.Length > packetBytes:
		return wire.ErrLength
	case p.Offset+p.Length < packetBytes:
		return wire.ErrTrailing
	case head[1]&markerFlag != 0 && g.end(&last) != r.PictureBytes():
		p.Refusal = Refusal{Cause: badEnd, A: uint32(last.line + g.height), B: uint32(g.endPixel(&last))}
	}
	return nil
}

// line is the header of a part of a line.
type line struct {
	bytes       int
	line, pixel int  // of its first pixel
	field       bool // it belongs to the second half of an interlaced picture
	more        bool // another header follows
}

func readLine(b []byte) line {
	number, pixel := binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint16(b[4:])
	return line{
		bytes: int(binary.BigEndian.Uint16(b)),
		line:  int(number & 0x7fff), field: number&0x8000 != 0,
		pixel: int(pixel & 0x7fff), more: pixel&0x8000 != 0,
	}
}

// group is a pgroup (RFC 4175, 4.3): the smallest part of a picture with whole bytes and colours.
type group struct {
	bytes, width, height int
	row                  int // bytes from a row of groups to the next
}

func groupOf(p wire.Picture) group {
	g := group{width: 1, height: 1, row: p.RowBytes()}
	l, _ := p.Format.Layout()
	if l.EvenWidth {
		g.width = 2
	}
	if l.EvenHeight {
		g.height = 2
	}
	bytes := func(width int) int {
		p.Width = width
		return p.RowBytes() // rounded up
	}
	for bytes(8*g.width) != 8*bytes(g.width) {
		g.width *= 2
	}
	g.bytes = bytes(g.width)
	return g
}

// CheckShape returns an error if no camera can send such a picture, or it is larger than the largest.
func CheckShape(p wire.Picture, largest int) error {
	size, _ := p.Bytes()
	if err := p.Check(size, largest); err != nil {
		return err
	}
	if g := groupOf(p); p.Width%g.width != 0 {
		return fmt.Errorf("lines of %d pixels end within a group; want a multiple of %d", p.Width, g.width)
	}
	return nil
}

// refuseLine says why no picture that the model takes has that part of a line.
func (r *Reader) refuseLine(g *group, l *line) Refusal {
	switch {
	case l.field:
		return Refusal{Cause: interlaced}
	case l.bytes%g.bytes != 0 || l.pixel%g.width != 0 || l.line%g.height != 0:
		return Refusal{Cause: badGroup, A: uint32(l.bytes)}
	case l.line >= r.Shape.Height:
		return Refusal{Cause: badLine, A: uint32(l.line) + 1}
	case g.endPixel(l) > r.Shape.Width:
		return Refusal{Cause: badPixel, A: uint32(g.endPixel(l))}
	}
	return Refusal{}
}

// endPixel is the pixel of its line after a part.
func (g *group) endPixel(l *line) int { return l.pixel + l.bytes/g.bytes*g.width }

// begin and end are the offsets of a part and of what follows it, in the picture.
func (g *group) begin(l *line) int { return l.line/g.height*g.row + l.pixel/g.width*g.bytes }
func (g *group) end(l *line) int   { return g.begin(l) + l.bytes }

// rtpPayload returns the offset of what follows a packet's RTP header.
func rtpPayload(head []byte) (at int, err error) {
	switch {
	case len(head) < rtpBytes:
		return 0, wire.ErrShort
	case head[0]>>6 != rtpVersion:
		return 0, wire.ErrVersion
	case head[0]&paddingFlag != 0:
		return 0, wire.ErrFlags
	case head[1] >= 192 && head[1] <= 223: // RTCP on the same port (RFC 5761, 4)
		return 0, wire.ErrType
	}
	at = rtpBytes + 4*int(head[0]&15)
	if head[0]&extensionFlag == 0 {
		return at, nil
	}
	if len(head) < at+4 {
		return 0, wire.ErrShort
	}
	return at + 4 + 4*int(binary.BigEndian.Uint16(head[at+2:])), nil
}
