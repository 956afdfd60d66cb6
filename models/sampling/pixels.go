package sampling

import (
	"math"

	"github.com/penstock/penstock/wire"
)

// The fields of a pixel (package comment).
const (
	fieldBits = 21
	one       = 1 | 1<<fieldBits | 1<<(2*fieldBits)
	levelBits = 8
)

// rows are the bytes of a row's pixels. Of NV12 and I420 u and v are the rows of the colours; of Bayer above and below are the
// rows next to it, and all three have samples.
type rows struct {
	bytes, u, v []byte
	samples     [3][]uint16 // above, the row, below
	odd         bool        // the row's number
}

// reader turns the pixels at some places of a row into fields.
type reader func(to []uint64, at []int32, r *rows)

// newReader returns the reader of a format, and how many bits of a level's fraction its fields have.
func newReader(picture wire.Picture, l wire.PictureLayout, background [3]uint8, low, high int) (_ reader, fraction uint) {
	switch picture.Format {
	case wire.FormatRGB8:
		return func(to []uint64, at []int32, r *rows) { readRGB(to, at, r.bytes, 0, 2) }, 0
	case wire.FormatBGR8:
		return func(to []uint64, at []int32, r *rows) { readRGB(to, at, r.bytes, 2, 0) }, 0
	case wire.FormatRGBA8:
		return func(to []uint64, at []int32, r *rows) { readRGBA(to, at, r.bytes, background) }, 0
	case wire.FormatNV12:
		return newParts(picture.Colours).readNV12, 0
	case wire.FormatI420:
		return newParts(picture.Colours).readI420, 0
	case wire.FormatUYVY, wire.FormatYUYV:
		p, first := newParts(picture.Colours), int(picture.Format-wire.FormatUYVY)
		return func(to []uint64, at []int32, r *rows) { p.readPairs(to, at, r.bytes, 1-first, first) }, 0
	case wire.FormatRGB10:
		return readRGB10, 0
	case wire.FormatUYVY10:
		return newParts(picture.Colours).readUYVY10, 0
	case wire.FormatYYYYUV:
		return newParts(picture.Colours).readYYYYUV, 0
	case wire.FormatGrey8:
		return readGrey8, 0
	}
	switch {
	case !l.Bayer:
		fraction = greyFraction
	case l.Bits > levelBits:
		fraction = bayerFraction
	}
	scale := newScale(low, high, fraction)
	if !l.Bayer {
		return func(to []uint64, at []int32, r *rows) { readGrey(to, at, r.samples[1], scale) }, fraction
	}
	return func(to []uint64, at []int32, r *rows) { readBayer(to, at, r, l.Order, scale) }, fraction
}

// The fractions leave enough bits of a field for the weights. Grey has one field in the whole word.
const (
	bayerFraction = 3
	greyFraction  = 8
)

func readGrey8(to []uint64, at []int32, r *rows) {
	to = to[:len(at)]
	for i, x := range at {
		to[i] = uint64(r.bytes[x])
	}
}

func readGrey(to []uint64, at []int32, samples []uint16, scale *scale) {
	to = to[:len(at)]
	for i, x := range at {
		to[i] = scale.level(uint32(samples[x]))
	}
}

// readRGB reads pixels of three bytes, with red and blue at these places.
func readRGB(to []uint64, at []int32, row []byte, red, blue int) {
	to = to[:len(at)]
	for i, x := range at {
		p := row[3*int(x):][:3]
		to[i] = uint64(p[red]) | uint64(p[1])<<fieldBits | uint64(p[blue])<<(2*fieldBits)
	}
}

// readRGBA puts pixels in front of a background.
func readRGBA(to []uint64, at []int32, row []byte, background [3]uint8) {
	for i, x := range at {
		p := row[4*int(x):][:4]
		alpha, pixel := uint64(p[3]), uint64(0)
		for c := range 3 {
			mixed := (uint64(p[c])*alpha + uint64(background[c])*(255-alpha) + 127) / 255
			pixel |= mixed << (c * fieldBits)
		}
		to[i] = pixel
	}
}

// Matrix says how Y, U and V become red, green and blue, in 2^-20 of a level.
type Matrix struct {
	Light                               int32 // in each colour, of what Y has more than black
	RedOfV, GreenOfU, GreenOfV, BlueOfU int32 // of what U and V have more than 128
}

// MatrixOf returns the matrix of colours, and the Y of black. Of BT.601 with the limited range it is OpenCV's.
func MatrixOf(c wire.Colours) (m Matrix, black int) {
	if c == wire.BT601 {
		return Matrix{1220542, 1673527, -409993, -852492, 2116026}, 16
	}
	part := [...]struct{ red, blue float64 }{{0.299, 0.114}, {0.2126, 0.0722}, {0.2627, 0.0593}}[c&^wire.FullRange]
	light, colour := 1.0, 1.0
	if c&wire.FullRange == 0 {
		light, colour, black = 255.0/219, 255.0/224, 16
	}
	parts := func(v float64) int32 { return int32(math.Round(v * (1 << 20))) }
	red, blue, green := 2*(1-part.red)*colour, 2*(1-part.blue)*colour, 1-part.red-part.blue
	return Matrix{parts(light), parts(red), parts(-blue * part.blue / green), parts(-red * part.red / green), parts(blue)}, black
}

// parts are the parts of Y, U and V in red, green and blue, in 1024ths of a level. Rounded like this, the sums become other
// levels than OpenCV's for one pixel in 3,000.
type parts struct{ light, blue, red [256]uint64 }

func newParts(c wire.Colours) *parts {
	const (
		round = 1 << 9    // half a level
		bias  = 512 << 10 // so that no field is negative
		shift = 20 - 10
	)
	m, black := MatrixOf(c)
	p := new(parts)
	for i := range 256 {
		light, colour := int(m.Light)*max(i-black, 0)>>shift, i-128
		p.light[i] = fields(light, light, light) + (bias+round)*one
		p.blue[i] = fields(0, (int(m.GreenOfU)*colour+1<<(shift-1))>>shift, int(m.BlueOfU)*colour>>shift)
		p.red[i] = fields(int(m.RedOfV)*colour>>shift, int(m.GreenOfV)*colour>>shift, 0)
	}
	return p
}

// fields puts numbers into the fields of a pixel. Negative ones borrow from the next field. A sum without negative fields
// returns that.
func fields(red, green, blue int) uint64 {
	return uint64(red) + uint64(green)<<fieldBits + uint64(blue)<<(2*fieldBits)
}

// clamped returns levels of a sum of parts, from 0 to 255. A field has 512 levels too many. So bit 9 of
// the level says that it is not negative, and then bits 8 and 10 that it is too large.
func clamped(sum uint64) uint64 {
	v := sum >> 10
	positive, over := v>>9&one, (v>>10|v>>9&(v>>8))&one
	return v&(positive<<8-positive) | (over<<8 - over)
}

func (p *parts) readNV12(to []uint64, at []int32, r *rows) {
	to, row, uv := to[:len(at)], r.bytes, r.u
	for i, x := range at {
		c := uv[x&^1:][:2]
		to[i] = clamped(p.light[row[x]] + p.blue[c[0]] + p.red[c[1]])
	}
}

func (p *parts) readI420(to []uint64, at []int32, r *rows) {
	to, row, u, v := to[:len(at)], r.bytes, r.u, r.v
	for i, x := range at {
		to[i] = clamped(p.light[row[x]] + p.blue[u[x/2]] + p.red[v[x/2]])
	}
}

// readPairs reads pairs of pixels in four bytes; y and u are the places of the first Y and of U.
func (p *parts) readPairs(to []uint64, at []int32, row []byte, y, u int) {
	to = to[:len(at)]
	for i, x := range at {
		pair := row[2*int(x&^1):][:4]
		to[i] = clamped(p.light[pair[(y+2*int(x&1))&3]] + p.blue[pair[u&3]] + p.red[pair[(u+2)&3]])
	}
}

// highByte returns the high 8 bits of a sample of 10 that begins at a bit of a row.
func highByte(row []byte, bit int32) byte {
	v, shift := row[bit/8], bit%8
	if shift != 0 {
		v = v<<shift | row[bit/8+1]>>(8-shift)
	}
	return v
}

func readRGB10(to []uint64, at []int32, r *rows) {
	for i, x := range at {
		red, green, blue := highByte(r.bytes, 30*x), highByte(r.bytes, 30*x+10), highByte(r.bytes, 30*x+20)
		to[i] = fields(int(red), int(green), int(blue))
	}
}

func (p *parts) readUYVY10(to []uint64, at []int32, r *rows) {
	for i, x := range at {
		pair := x / 2 * 40
		to[i] = clamped(p.light[highByte(r.bytes, 20*x+10)] + p.blue[highByte(r.bytes, pair)] + p.red[highByte(r.bytes, pair+20)])
	}
}

func (p *parts) readYYYYUV(to []uint64, at []int32, r *rows) {
	first := int32(0)
	if r.odd {
		first = 2
	}
	for i, x := range at {
		four := r.bytes[x/2*6:][:6]
		to[i] = clamped(p.light[four[first+x&1]] + p.blue[four[4]] + p.red[four[5]])
	}
}

// scale turns samples into levels.
type scale struct {
	low, most uint64
	factor    uint64 // in 2^-scaleShift
}

const scaleShift = 24

// newScale maps samples from low to high to levels with a fraction of so many bits.
func newScale(low, high int, fraction uint) *scale {
	most, samples := uint64(255)<<fraction, uint64(high-low)
	return &scale{uint64(low), most, (most<<scaleShift + samples/2) / samples}
}

// level returns the level of a sample.
func (s *scale) level(sample uint32) uint64 {
	return min((max(uint64(sample), s.low)-s.low)*s.factor+1<<(scaleShift-1), s.most<<scaleShift) >> scaleShift
}

// readBayer interpolates the two colours that a pixel lacks from the pixels next to it, in whole samples, as OpenCV does. Pixels at the picture's edge
// are those next to them.
func readBayer(to []uint64, at []int32, r *rows, order wire.BayerOrder, scale *scale) {
	above, row, below := r.samples[0], r.samples[1], r.samples[2]
	if r.odd {
		order ^= wire.BayerGB // the order of the second row
	}
	for i, x := range at {
		x := min(max(int(x), 1), len(row)-2)
		a, p, b := above[x-1:][:3], row[x-1:][:3], below[x-1:][:3]
		here := uint32(p[1])
		across, down := uint32(p[0])+uint32(p[2]), uint32(a[1])+uint32(b[1])
		corners, cross := (uint32(a[0])+uint32(a[2])+uint32(b[0])+uint32(b[2])+2)/4, (across+down+2)/4
		across, down = (across+1)/2, (down+1)/2
		var red, green, blue uint32
		switch order ^ wire.BayerOrder(x&1) {
		case wire.BayerRG: // a red pixel
			red, green, blue = here, cross, corners
		case wire.BayerGR: // green, between red ones
			red, green, blue = across, here, down
		case wire.BayerGB: // green, between blue ones
			red, green, blue = down, here, across
		case wire.BayerBG: // blue
			red, green, blue = corners, cross, here
		}
		to[i] = scale.level(red) | scale.level(green)<<fieldBits | scale.level(blue)<<(2*fieldBits)
	}
}

// unpack writes the samples of a row.
func unpack(to []uint16, row []byte, l wire.PictureLayout) {
	switch {
	case l.Packing == wire.Tight:
		mask, bits := uint32(1)<<l.Bits-1, 0
		for i := range to {
			// A sample of 10 or 12 bits lies in two bytes.
			at := bits / 8
			to[i] = uint16((uint32(row[at]) | uint32(row[at+1])<<8) >> (bits % 8) & mask)
			bits += l.Bits
		}
	case l.Packing == wire.HighFirst:
		low := l.Bits - 8
		for i := range to {
			three := row[i/2*3:]
			to[i] = uint16(three[i%2*2])<<low | uint16(three[1])>>(i%2*4)&(1<<low-1)
		}
	case l.Bits == 8:
		for i := range to {
			to[i] = uint16(row[i])
		}
	default:
		for i := range to {
			to[i] = (uint16(row[2*i]) | uint16(row[2*i+1])<<8) & (1<<l.Bits - 1)
		}
	}
}
