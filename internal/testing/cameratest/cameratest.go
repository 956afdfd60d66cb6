// Package cameratest makes the packets that cameras send: GigE Vision streams and uncompressed
// video over RTP.
package cameratest

import (
	"encoding/binary"
	"image"
	"slices"
)

// Codes of the Pixel Format Naming Convention.
const (
	Mono8      = 0x01080001
	RGB8       = 0x02180014
	BayerRG12p = 0x010c0059
)

// GVSP is a picture as a GigE Vision camera sends it.
type GVSP struct {
	Block         uint64
	Extended      bool // headers of GigE Vision 2
	Width, Height uint32
	Format        uint32
	Timestamp     uint64
	Pixels        []byte
	// Size is the number of pixels' bytes in each packet but the last.
	Size int
}

// Contents of GVSP packets.
const (
	Leader  = 1
	Trailer = 2
	Payload = 3
)

// Packet returns a packet with that content and packet id.
func (g *GVSP) Packet(content byte, id uint32, body []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, 0)
	if g.Extended {
		b = binary.BigEndian.AppendUint16(b, 0)
		b = binary.BigEndian.AppendUint32(b, 1<<31|uint32(content)<<24)
		b = binary.BigEndian.AppendUint64(b, g.Block)
		b = binary.BigEndian.AppendUint32(b, id)
	} else {
		b = binary.BigEndian.AppendUint16(b, uint16(g.Block))
		b = binary.BigEndian.AppendUint32(b, uint32(content)<<24|id)
	}
	return append(b, body...)
}

// Count is the number of packets with pixels.
func (g *GVSP) Count() int { return (len(g.Pixels) + g.Size - 1) / g.Size }

// Leader returns the first packet.
func (g *GVSP) Leader() []byte {
	body := binary.BigEndian.AppendUint32(nil, 1)
	body = binary.BigEndian.AppendUint64(body, g.Timestamp)
	for _, word := range []uint32{g.Format, g.Width, g.Height, 0, 0, 0} {
		body = binary.BigEndian.AppendUint32(body, word)
	}
	return g.Packet(Leader, 0, body)
}

// Payload returns packet i with pixels, from 0.
func (g *GVSP) Payload(i int) []byte {
	return g.Packet(Payload, uint32(i+1), g.Pixels[i*g.Size:min((i+1)*g.Size, len(g.Pixels))])
}

// Trailer returns the last packet.
func (g *GVSP) Trailer() []byte {
	body := binary.BigEndian.AppendUint32(nil, 1)
	return g.Packet(Trailer, uint32(g.Count()+1), binary.BigEndian.AppendUint32(body, g.Height))
}

// Packets returns all packets in order.
func (g *GVSP) Packets() [][]byte {
	packets := [][]byte{g.Leader()}
	for i := range g.Count() {
		packets = append(packets, g.Payload(i))
	}
	return append(packets, g.Trailer())
}

// RTP is a picture as a sender of RFC 4175 sends it: each packet is as full as possible, and may
// begin and end within a line.
type RTP struct {
	Timestamp, Stream uint32
	Sequence          uint16
	Width, PixelBytes int
	Pixels            []byte
	// Size is the max number of pixels' bytes in a packet, a multiple of PixelBytes.
	Size int
	// Group is the size of a pgroup, if it has several pixels. Width and PixelBytes are those of groups then.
	Group image.Point
}

// Line is the header of a part of a line.
type Line struct {
	Bytes, Line, Pixel int
}

// Packet returns a packet with these lines and pixels.
func (r *RTP) Packet(sequence uint16, marker bool, lines []Line, pixels []byte) []byte {
	b := []byte{2 << 6, 96}
	if marker {
		b[1] |= 0x80
	}
	b = binary.BigEndian.AppendUint16(b, sequence)
	b = binary.BigEndian.AppendUint32(b, r.Timestamp)
	b = binary.BigEndian.AppendUint32(b, r.Stream)
	b = binary.BigEndian.AppendUint16(b, 0)
	for i, l := range lines {
		pixel := l.Pixel
		if i < len(lines)-1 {
			pixel |= 0x8000
		}
		for _, word := range []int{l.Bytes, l.Line, pixel} {
			b = binary.BigEndian.AppendUint16(b, uint16(word))
		}
	}
	return append(b, pixels...)
}

// Packets returns all packets in order.
func (r *RTP) Packets() (packets [][]byte) {
	lineBytes, across, down := r.Width*r.PixelBytes, max(1, r.Group.X), max(1, r.Group.Y)
	for at := 0; at < len(r.Pixels); {
		end := min(at+r.Size, len(r.Pixels))
		var lines []Line
		for from := at; from < end; {
			to := min(end, (from/lineBytes+1)*lineBytes)
			lines = append(lines, Line{to - from, from / lineBytes * down, from % lineBytes / r.PixelBytes * across})
			from = to
		}
		packets = append(packets, r.Packet(r.Sequence+uint16(len(packets)), end == len(r.Pixels), lines, slices.Clone(r.Pixels[at:end])))
		at = end
	}
	return packets
}
