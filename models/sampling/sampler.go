package sampling

import (
	"encoding/binary"
	"fmt"
	"image"
	"math"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// Source has the bytes of a picture.
type Source interface {
	// Bytes returns count bytes, from a place in the picture on. They are valid until the next call for the same plane. The
	// places of a plane ascend, nearly always.
	Bytes(plane, place, count int) []byte
}

// Sampler makes images of a batch tensor. Only one goroutine may use it at a time.
type Sampler struct {
	in       models.Input
	channels []channel
	plan     plan // of the last shape of picture

	lines   [][]float32 // a row of the tensor, by channel
	padding []byte      // a row of a tensor that has only padding
}

// channel says how a channel of the tensor follows from a level: level * factor + offset.
type channel struct {
	field          uint // of a pixel
	factor, offset float32
}

// New returns a sampler for an input of one or three channels.
func New(in models.Input) (*Sampler, error) {
	if in.Channels != 1 && in.Channels != 3 {
		return nil, fmt.Errorf("sample pictures: the tensor has %d channels, want 1 or 3", in.Channels)
	}
	s := &Sampler{in: in}
	for c := range in.Channels {
		to := channel{field: uint(c), factor: 1}
		if in.ReverseChannels {
			to.field = uint(in.Channels - 1 - c)
		}
		if len(in.Mean) > 0 {
			to.factor, to.offset = 1/in.Std[c], -in.Mean[c]/in.Std[c]
		}
		s.channels = append(s.channels, to)
		line, level := make([]float32, in.Width), float32(0)
		switch len(in.Pad) {
		case 1:
			level = float32(in.Pad[0])
		case 3:
			level = float32(in.Pad[to.field])
		}
		for x := range line {
			line[x] = level*to.factor + to.offset
		}
		s.lines = append(s.lines, line)
	}
	row := *s
	row.in.Height = 1
	s.padding = make([]byte, row.in.TensorBytes())
	row.write(s.padding, 0, 0, in.Width)
	return s, nil
}

// Sample makes an image of the tensor, models.Input.TensorBytes long, from a region of a picture. The source has
// wire.Picture.Bytes.
func (s *Sampler) Sample(tensor []byte, p wire.Picture, region Region, from Source) error {
	if p.Stride == 0 {
		p.Stride = p.RowBytes()
	}
	if p != s.plan.picture || region != s.plan.region {
		if err := s.plan.set(s, p, region); err != nil {
			return fmt.Errorf("sample picture: %w", err)
		}
	}
	s.plan.from = from
	s.pad(tensor, region.Inside)
	s.plan.forget()
	for y := range region.Inside.Dy() {
		s.plan.line(s, y)
		s.write(tensor, region.Inside.Min.X, region.Inside.Min.Y+y, region.Inside.Dx())
	}
	return nil
}

// pad writes the colour of the padding beside a rectangle.
func (s *Sampler) pad(tensor []byte, inside image.Rectangle) {
	pixel := s.in.TensorType.Bytes()
	if s.in.TensorLayout == models.HWC {
		pixel *= s.in.Channels
	}
	row := pixel * s.in.Width
	for i := range len(tensor) / row {
		left, right := inside.Min.X*pixel, inside.Max.X*pixel
		if y := i % s.in.Height; y < inside.Min.Y || y >= inside.Max.Y {
			left = row
		}
		to, padding := tensor[i*row:][:row], s.padding[i/s.in.Height*row:][:row]
		copy(to[:left], padding)
		copy(to[right:], padding[right:])
	}
}

// write converts the first count results of the lines to pixels of the tensor.
func (s *Sampler) write(tensor []byte, x, y, count int) {
	in := &s.in
	size := in.TensorType.Bytes()
	for c, line := range s.lines {
		at, step := ((c*in.Height+y)*in.Width+x)*size, size
		if in.TensorLayout == models.HWC {
			at, step = ((y*in.Width+x)*in.Channels+c)*size, in.Channels*size
		}
		line := line[:count]
		switch in.TensorType {
		case models.U8:
			for _, v := range line {
				tensor[at] = uint8(min(max(v+0.5, 0), 255))
				at += step
			}
		case models.F16:
			for _, v := range line {
				binary.NativeEndian.PutUint16(tensor[at:], wire.FloatToHalf(v))
				at += step
			}
		case models.F32:
			if step == size {
				copy(tensor[at:], view(line))
				continue
			}
			for _, v := range line {
				binary.NativeEndian.PutUint32(tensor[at:], math.Float32bits(v))
				at += step
			}
		default:
			least, end := in.TensorType.Range()
			for _, v := range line {
				in.TensorType.Append(tensor[:at], min(max(float64(v), least), end-1))
				at += step
			}
		}
	}
}

// plan is what follows from the shape of a picture.
type plan struct {
	picture     wire.Picture
	layout      wire.PictureLayout
	region      Region
	read        reader
	across      *axis
	down        *axis
	levelFactor float32 // of a result
	planes      int     // of a row

	from  Source
	bytes rows // of the last row; here, because it would escape to the heap for each

	pixels  []uint64
	sampled [2]row // by row%2
	samples [4]sampleRow
	sums    []uint64 // of pixels, at the tensor's columns
}

// row is a row of the picture, sampled at the tensor's columns.
type row struct {
	number int
	planes [3][]float32
}

type sampleRow struct {
	number  int
	samples []uint16
}

const downBits = 11

func (p *plan) set(s *Sampler, picture wire.Picture, region Region) error {
	if _, err := picture.Bytes(); err != nil {
		return err
	}
	whole := image.Rect(0, 0, picture.Width, picture.Height)
	tensor := image.Rect(0, 0, s.in.Width, s.in.Height)
	if region.Part.Empty() || region.Inside.Empty() || !region.Part.In(whole) || !region.Inside.In(tensor) {
		return fmt.Errorf("region %v to %v, want a part of %v to a part of %v", region.Part, region.Inside, whole, tensor)
	}
	*p = plan{picture: picture, region: region}
	p.layout, _ = picture.Format.Layout()
	low, high := SampleRange(&s.in, p.layout)
	reader, fraction := newReader(picture, p.layout, s.in.Background, low, high)
	p.read, p.planes = reader, 1
	bits := uint(fieldBits - levelBits)
	if p.layout.Bayer || picture.Format < wire.FormatGrey8 {
		p.planes = 3
		bits -= fraction
	}
	width, height := region.Inside.Dx(), region.Inside.Dy()
	p.across = newAxis(float64(region.Part.Min.X), float64(region.Part.Dx()), width, picture.Width, s.in.Antialias, bits)
	p.down = newAxis(float64(region.Part.Min.Y), float64(region.Part.Dy()), height, picture.Height, s.in.Antialias, downBits)
	p.levelFactor = 1 / float32(uint64(1)<<(fraction+bits+downBits))
	p.pixels = make([]uint64, len(p.across.at))
	for i := range p.sampled {
		for c := range p.planes {
			p.sampled[i].planes[c] = make([]float32, width)
		}
	}
	if picture.Format > wire.FormatGrey8 {
		for i := range p.samples {
			p.samples[i].samples = make([]uint16, picture.Width)
		}
	}
	p.sums = make([]uint64, width)
	return nil
}

// SampleRange returns the samples of black and white in pictures of a layout.
func SampleRange(in *models.Input, l wire.PictureLayout) (low, high int) {
	if in.Range[1] == 0 || l.Bits <= levelBits {
		return 0, 1<<l.Bits - 1
	}
	return in.Range[0], in.Range[1]
}

// forget drops the rows of the picture before.
func (p *plan) forget() {
	for i := range p.sampled {
		p.sampled[i].number = -1
	}
	for i := range p.samples {
		p.samples[i].number = -1
	}
}

// line sets the lines of the sampler to row y of the region.
func (p *plan) line(s *Sampler, y int) {
	d := p.down
	rows, weights := d.at[d.first[y]:], d.weights[y*d.per:][:d.per]
	for i, weight := range weights {
		if i > 0 && weight == 0 {
			continue
		}
		row := p.row(s, int(rows[i]))
		for c, to := range s.channels {
			plane, factor := row.planes[min(int(to.field), p.planes-1)], float32(weight)*p.levelFactor*to.factor
			line := s.lines[c][:len(plane)]
			if i > 0 {
				for x, v := range plane {
					line[x] += v * factor
				}
				continue
			}
			for x, v := range plane {
				line[x] = v*factor + to.offset
			}
		}
	}
}

// row returns a row of the picture, sampled at the tensor's columns. It is grey if the tensor has one channel.
func (p *plan) row(s *Sampler, y int) *row {
	r := &p.sampled[y%len(p.sampled)]
	if r.number == y {
		return r
	}
	r.number = y
	p.bytes = p.fetch(y)
	p.read(p.pixels, p.across.at, &p.bytes)
	p.across.interpolate(p.sums, p.pixels)
	if p.planes == 1 {
		for x, v := range p.sums {
			r.planes[0][x] = float32(int64(v))
		}
		return r
	}
	const mask = 1<<fieldBits - 1
	red, green, blue := r.planes[0][:len(p.sums)], r.planes[1][:len(p.sums)], r.planes[2][:len(p.sums)]
	for x, v := range p.sums {
		red[x], green[x], blue[x] = float32(int32(v&mask)), float32(int32(v>>fieldBits&mask)), float32(int32(v>>(2*fieldBits)))
	}
	if len(s.channels) == 1 {
		for x := range red {
			red[x] = 0.299*red[x] + 0.587*green[x] + 0.114*blue[x]
		}
	}
	return r
}

// fetch finds the bytes that a row of the picture depends on.
func (p *plan) fetch(y int) (r rows) {
	stride, row, height := p.picture.Stride, p.picture.RowBytes(), p.picture.Height
	switch {
	case p.layout.Bayer:
		y = min(max(y, 1), height-2)
		for i := range r.samples {
			r.samples[i] = p.unpacked(y-1+i, stride, row)
		}
		r.odd = y%2 != 0
		return r
	case p.picture.Format > wire.FormatGrey8:
		r.samples[1] = p.unpacked(y, stride, row)
		return r
	case p.picture.Format == wire.FormatYYYYUV:
		r.bytes, r.odd = p.from.Bytes(0, y/2*stride, row), y%2 != 0
		return r
	}
	r.bytes = p.from.Bytes(0, y*stride, row)
	switch p.picture.Format {
	case wire.FormatNV12:
		r.u = p.from.Bytes(1, (height+y/2)*stride, row)
	case wire.FormatI420:
		r.u = p.from.Bytes(1, height*stride+y/2*(stride/2), row/2)
		r.v = p.from.Bytes(2, height*stride+height/2*(stride/2)+y/2*(stride/2), row/2)
	}
	return r
}

// unpacked returns the samples of a row.
func (p *plan) unpacked(y, stride, row int) []uint16 {
	r := &p.samples[y%len(p.samples)]
	if r.number != y {
		r.number = y
		unpack(r.samples, p.from.Bytes(0, y*stride, row), p.layout)
	}
	return r.samples
}
