package sampling

import "github.com/penstock/penstock/wire"

// The fields of a pixel (package comment).
const (
	fieldBits = 21
	one       = 1 | 1<<fieldBits | 1<<(2*fieldBits)
	levelBits = 8
)

// rows are the bytes of a row's pixels. Of 4:2:0 u and v are the rows of the colours; of Bayer above and below are the
// rows next to it, and all three have samples.
type rows struct {
	bytes, u, v []byte
	samples     [3][]uint16 // above, the row, below
	odd         bool        // the row's number
}

// reader turns the pixels at some places of a row into fields.
type reader func(to []uint64, at []int32, r *rows)

// newReader returns the reader of a format, and how many bits of a level's fraction its fields have.
func newReader(f wire.PictureFormat, l wire.PictureLayout, background [3]uint8, low, high int) (_ reader, fraction uint) {
	switch f {
	case wire.FormatRGB8:
		return func(to []uint64, at []int32, r *rows) { readRGB(to, at, r.bytes, 0, 2) }, 0
	case wire.FormatBGR8:
		return func(to []uint64, at []int32, r *rows) { readRGB(to, at, r.bytes, 2, 0) }, 0
	case wire.FormatRGBA8:
		return func(to []uint64, at []int32, r *rows) { readRGBA(to, at, r.bytes, background) }, 0
	case wire.FormatNV12:
		return readNV12, 0
	case wire.FormatI420:
		return readI420, 0
	case wire.FormatUYVY:
		return func(to []uint64, at []int32, r *rows) { readPairs(to, at, r.bytes, 1, 0) }, 0
	case wire.FormatYUYV:
		return func(to []uint64, at []int32, r *rows) { readPairs(to, at, r.bytes, 0, 1) }, 0
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

// The parts of Y, U and V in red, green and blue (ITU-R BT.601, limited range: 1.164 Y, 2.018 and -0.391 U, 1.596 and -0.813 V),
// in 1024ths of a level. OpenCV has a million parts. Rounded like this, the sums become other levels for one pixel in 3,000.
var luma, blueness, redness = func() (y, u, v [256]uint64) {
	const (
		round = 1 << 9    // half a level
		bias  = 512 << 10 // so that no field is negative
		shift = 20 - 10
	)
	for i := range 256 {
		light, colour := 1220542*max(i-16, 0)>>shift, i-128
		y[i] = fields(light, light, light) + (bias+round)*one
		u[i] = fields(0, (-409993*colour+1<<(shift-1))>>shift, 2116026*colour>>shift)
		v[i] = fields(1673527*colour>>shift, -852492*colour>>shift, 0)
	}
	return y, u, v
}()

// fields puts numbers into the fields of a pixel. Negative ones borrow from the next field. A sum without negative fields
// returns that.
func fields(red, green, blue int) uint64 {
	return uint64(red) + uint64(green)<<fieldBits + uint64(blue)<<(2*fieldBits)
}

// clamped returns levels of a sum of luma, blueness and redness, from 0 to 255. A field has 512 levels too many. So bit 9 of
// the level says that it is not negative, and then bits 8 and 10 that it is too large.
func clamped(sum uint64) uint64 {
	v := sum >> 10
	positive, over := v>>9&one, (v>>10|v>>9&(v>>8))&one
	return v&(positive<<8-positive) | (over<<8 - over)
}

func readNV12(to []uint64, at []int32, r *rows) {
	to, row, uv := to[:len(at)], r.bytes, r.u
	for i, x := range at {
		c := uv[x&^1:][:2]
		to[i] = clamped(luma[row[x]] + blueness[c[0]] + redness[c[1]])
	}
}

func readI420(to []uint64, at []int32, r *rows) {
	to, row, u, v := to[:len(at)], r.bytes, r.u, r.v
	for i, x := range at {
		to[i] = clamped(luma[row[x]] + blueness[u[x/2]] + redness[v[x/2]])
	}
}

// readPairs reads pairs of pixels in four bytes; y and u are the places of the first Y and of U.
func readPairs(to []uint64, at []int32, row []byte, y, u int) {
	to = to[:len(at)]
	for i, x := range at {
		pair := row[2*int(x&^1):][:4]
		to[i] = clamped(luma[pair[(y+2*int(x&1))&3]] + blueness[pair[u&3]] + redness[pair[(u+2)&3]])
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
