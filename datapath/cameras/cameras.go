// Package cameras reads the packets of cameras that have no Penstock client: GigE Vision streams
// (gvsp.go) and uncompressed video over RTP (rfc4175.go).
//
// A Reader finds the picture that a packet belongs to, and the place of its pixels in the packet and
// in the picture. It copies nothing and keeps nothing. The pixels stay in the slab until a process
// gathers them.
//
// A packet of a picture that the function does not take yields a Refusal, which says what the camera sends.
//
// The package is pure: it has no clock, no I/O and no state. Only refusals allocate. Any goroutine may
// call any function. Readers accept hostile bytes: they never panic, and return one of package
// wire's errors, whose Reason identifies a counter.
package cameras

import (
	"fmt"

	"github.com/penstock/penstock/wire"
)

// Format is how a camera sends pictures.
type Format uint8

// The formats.
const (
	GVSP    Format = iota + 1 // GigE Vision Stream Protocol 1 and 2
	RFC4175                   // uncompressed video over RTP, as in SMPTE ST 2110-20
)

func (f Format) String() string {
	switch f {
	case GVSP:
		return "gvsp"
	case RFC4175:
		return "rfc4175"
	}
	return "unknown"
}

// HeadBytes is how much of a packet Read needs, or the whole packet if that is shorter. It holds
// the headers of 100 lines.
const HeadBytes = 640

// Reader reads packets of one format.
type Reader struct {
	Format Format
	// Shape is that of all pictures. Without a format in it, leaders of GVSP say which pictures come, and these may have up to
	// Largest bytes.
	Shape   wire.Picture
	Largest int
}

// PictureBytes is the size of a picture; 0 if leaders say it.
func (r *Reader) PictureBytes() int {
	bytes, _ := r.Shape.Bytes()
	return bytes
}

// Part is the role of a packet in its picture.
type Part uint8

// The parts.
const (
	// Leader says what the picture looks like; it has no pixels.
	Leader Part = iota + 1
	// Fragment has the pixels of fragment Packet.Index. All fragments of a picture but the last
	// have the same size.
	Fragment
	// Run has the pixels from Packet.Place on.
	Run
	// Trailer ends a picture; it has no pixels.
	Trailer
)

// Packet is the contents of one packet.
type Packet struct {
	// Picture identifies the picture among the latest ones of the camera. With GVSP it is the block
	// id, or the low half of one of 64 bits; with RFC 4175 it is the RTP timestamp.
	Picture uint32
	// Stream is the RTP stream (SSRC), or the high half of a block id. Extended: that has 64 bits.
	Stream   uint32
	Extended bool
	Part     Part
	// Index counts the fragments of a picture from 0.
	Index uint32
	// Place is the offset of a Run in the picture, in bytes.
	Place uint32
	// Offset and Length locate the pixels in the packet, in bytes.
	Offset, Length int
	// SentAt is the camera's own time, from a leader.
	SentAt uint64
	// Shape is that of the picture, in leaders and runs; the zero value is the card's. Bytes is its size, if a leader says it.
	Shape wire.Picture
	Bytes int
	// Refusal is set if the model does not take the picture.
	Refusal Refusal
}

// Read reads a packet of packetBytes. head holds its first HeadBytes, or all of it. p holds nothing
// useful if Read fails.
func (r *Reader) Read(p *Packet, head []byte, packetBytes int) error {
	*p = Packet{}
	if r.Format == GVSP {
		return r.readGVSP(p, head, packetBytes)
	}
	return r.readRFC4175(p, head, packetBytes)
}

// Cause is the reason of a Refusal.
type Cause uint8

// The causes. A to D are the numbers of the Refusal.
const (
	// badPicture: the picture has A x B pixels of format C (PFNC), and D bytes beside each line.
	badPicture Cause = iota + 1
	// badPayload: the block holds payload of type A and no picture.
	badPayload
	// badContent: the packet has content of type A.
	badContent
	// badPadding: the camera adds A bytes to each line and B to the picture.
	badPadding
	// badHeight: the picture ends after A lines.
	badHeight
	// badEnd: the picture ends at pixel B of line A.
	badEnd
	// badLine: the picture has a line A.
	badLine
	// badPixel: a line has at least A pixels.
	badPixel
	// badWidth: a line ends after A pixels.
	badWidth
	// interlaced: the camera sends half of the lines at a time.
	interlaced
	// badGroup: a line has a part of A bytes, which does not begin and end with a group.
	badGroup
	// changed: pixels came before the leader of a picture of B bytes. The camera's picture before had A.
	changed
)

// Changed returns the refusal of a picture whose pixels came before the leader, which says another size than that of the picture
// before.
func Changed(before, after uint32) Refusal { return Refusal{Cause: changed, A: before, B: after} }

// Refusal says why a model does not take a camera's picture. Reader.Explain turns it into text. The
// zero value is no refusal.
type Refusal struct {
	Cause      Cause
	A, B, C, D uint32
}

// Explain says what the camera sends, and what the model takes.
func (r *Reader) Explain(f Refusal) string {
	want := fmt.Sprintf("want %d x %d %s", r.Shape.Width, r.Shape.Height, r.pixelName())
	switch f.Cause {
	case badPicture:
		if r.Shape.Format == 0 {
			return fmt.Sprintf("the camera sends %d x %d %s: %v", f.A, f.B, formatName(f.C), r.checkShape(f.C, f.A, f.B, int(f.D)))
		}
		return fmt.Sprintf("the camera sends %d x %d %s, %s", f.A, f.B, formatName(f.C), want)
	case badPayload:
		return fmt.Sprintf("the camera sends GVSP payload of type 0x%04x, want pictures (0x0001)", f.A)
	case badContent:
		return fmt.Sprintf("the camera sends GVSP packets with content %d, want leader, payload and trailer (1 to 3)", f.A)
	case badPadding:
		return fmt.Sprintf("the camera pads each line by %d bytes and each picture by %d, want 0", f.A, f.B)
	case badHeight:
		return fmt.Sprintf("the camera's pictures end after %d lines, %s", f.A, want)
	case badEnd:
		return fmt.Sprintf("the camera's pictures end after %d lines of %d pixels, %s", f.A, f.B, want)
	case badLine:
		return fmt.Sprintf("the camera's pictures have at least %d lines, %s", f.A, want)
	case badPixel:
		return fmt.Sprintf("the camera's lines have at least %d pixels, %s", f.A, want)
	case badWidth:
		return fmt.Sprintf("the camera's lines end after %d pixels, %s", f.A, want)
	case interlaced:
		return "the camera sends interlaced video, want progressive"
	case changed:
		return fmt.Sprintf("the camera changed from pictures of %d bytes to %d, and its packets arrive in another order; want one format and size", f.A, f.B)
	case badGroup:
		g := groupOf(r.Shape)
		return fmt.Sprintf("the camera sends %d bytes of a line, which divide a group (%d bytes, %d x %d pixels), %s", f.A, g.bytes, g.width, g.height, want)
	}
	return ""
}
