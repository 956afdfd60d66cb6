package cameras

import (
	"encoding/binary"

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
	p.Shape = r.Shape
	p.Part, p.Picture, p.Stream = Run, binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[8:])
	at += sequenceBytes

	var last line
	for more := true; more; at += lineHeaderBytes {
		if len(head) < at+lineHeaderBytes {
			return wire.ErrShort
		}
		next := readLine(head[at:])
		if p.Refusal = r.refuseLine(&next); p.Refusal.Cause != 0 {
			return nil
		}
		switch {
		case next.bytes == 0:
			return wire.ErrLength
		case p.Length == 0:
			p.Place = uint32(r.begin(&next))
		case r.begin(&next) == r.end(&last):
		case next.line == last.line+1 && next.pixel == 0:
			p.Refusal = Refusal{Cause: badWidth, A: uint32(r.endPixel(&last))}
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
	case head[1]&markerFlag != 0 && r.end(&last) != r.PictureBytes():
		p.Refusal = Refusal{Cause: badEnd, A: uint32(last.line) + 1, B: uint32(r.endPixel(&last))}
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

// refuseLine says why no picture that the model takes has that part of a line.
func (r *Reader) refuseLine(l *line) Refusal {
	switch {
	case l.field:
		return Refusal{Cause: interlaced}
	case l.bytes%r.PixelBytes != 0:
		return Refusal{Cause: badPixelSize, A: uint32(l.bytes)}
	case l.line >= r.Height:
		return Refusal{Cause: badLine, A: uint32(l.line) + 1}
	case r.endPixel(l) > r.Width:
		return Refusal{Cause: badPixel, A: uint32(r.endPixel(l))}
	}
	return Refusal{}
}

// endPixel is the pixel of its line after a part.
func (r *Reader) endPixel(l *line) int { return l.pixel + l.bytes/r.PixelBytes }

// begin and end are the offsets of a part and of what follows it, in the picture.
func (r *Reader) begin(l *line) int { return (l.line*r.Width + l.pixel) * r.PixelBytes }
func (r *Reader) end(l *line) int   { return r.begin(l) + l.bytes }

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
