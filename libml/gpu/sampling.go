package gpu

import (
	"encoding/binary"
	"fmt"
	"image"
	"math"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/sampling"
	"github.com/penstock/penstock/wire"
)

const samplingPictures = 32

// samplingParameter is the parameter of the kernel sample, as in gather.cu. Fields without a name are what a C compiler leaves
// out for alignment.
type samplingParameter struct {
	samplingHead
	Picture [samplingPictures]samplingPicture
}

type samplingHead struct {
	Tensor                                uint64
	Pictures, Width, Height, Stride, Type uint32
	Base                                  [3]uint32
	Channels                              uint32
	Mix                                   [3][4]float32
	Pad, Background                       [3]float32
	Matrix                                [len(wire.ColourNames)]sampling.Matrix
}

type samplingAxis struct {
	Begin        int64
	Step, Box    uint64
	Limit        uint32
	First, Count uint16
}

type samplingPicture struct {
	At                                 uint64
	Across, Down                       samplingAxis
	Plane                              [3]uint32
	Row, ColourRow                     uint32
	Pixel, Colour, Half, Kind          uint8
	Pitch, Bits, HighFirst, BayerOrder uint8
	Low, Image                         uint16
	Scale                              float32
	Colours                            uint32
}

var samplingBytes = binary.Size(samplingParameter{})

// How samples become a colour.
const (
	samplesRGB = iota
	samplesRGBA
	samplesYUV
	samplesGrey
	samplesBayer
)

// newSamplingHead returns what all pictures of an input have in common. It has one or three channels.
func newSamplingHead(in *models.Input) samplingHead {
	pixels := uint32(in.Width * in.Height)
	h := samplingHead{Width: uint32(in.Width), Height: uint32(in.Height), Channels: uint32(in.Channels), Stride: 1}
	switch in.TensorType {
	case models.F16:
		h.Type = 1
	case models.F32:
		h.Type = 2
	}
	for c := range in.Channels {
		h.Base[c] = uint32(c) * pixels
		if in.TensorLayout == models.HWC {
			h.Base[c], h.Stride = uint32(c), h.Channels
		}
		factor, offset := float32(1), float32(0)
		if len(in.Mean) > 0 {
			factor, offset = 1/in.Std[c], -in.Mean[c]/in.Std[c]
		}
		colour := [3]float32{0.299, 0.587, 0.114} // grey, ITU-R BT.601
		if in.Channels == 3 {
			field := c
			if in.ReverseChannels {
				field = 2 - c
			}
			colour = [3]float32{}
			colour[field] = 1
		}
		for k, part := range colour {
			h.Mix[c][k] = part * factor
		}
		h.Mix[c][3] = offset
	}
	for k := range h.Pad {
		switch {
		case len(in.Pad) == 3 && in.Channels == 3:
			h.Pad[k] = float32(in.Pad[k])
		case len(in.Pad) > 0:
			h.Pad[k] = float32(in.Pad[0])
		}
		h.Background[k] = float32(in.Background[k])
	}
	for c, name := range wire.ColourNames {
		if name != "" {
			h.Matrix[c], _ = sampling.MatrixOf(wire.Colours(c))
		}
	}
	return h
}

// newSamplingPicture describes the picture at an address of device memory.
func newSamplingPicture(in *models.Input, picture wire.Picture, r sampling.Region, at cuda.Pointer, index int) (samplingPicture, error) {
	if _, err := picture.Bytes(); err != nil {
		return samplingPicture{}, fmt.Errorf("sample picture: %w", err)
	}
	whole, tensor := image.Rect(0, 0, picture.Width, picture.Height), image.Rect(0, 0, in.Width, in.Height)
	if r.Part.Empty() || r.Inside.Empty() || !r.Part.In(whole) || !r.Inside.In(tensor) {
		return samplingPicture{}, fmt.Errorf("sample picture: region %v to %v, want a part of %v to a part of %v", r.Part, r.Inside, whole, tensor)
	}
	l, _ := picture.Format.Layout()
	row := uint32(picture.Stride)
	if row == 0 {
		row = uint32(picture.RowBytes())
	}
	p := samplingPicture{
		At: uint64(at), Image: uint16(index), Row: row, ColourRow: row,
		Across: newSamplingAxis(r.Part.Min.X, r.Part.Dx(), picture.Width, r.Inside.Min.X, r.Inside.Dx(), in.Antialias),
		Down:   newSamplingAxis(r.Part.Min.Y, r.Part.Dy(), picture.Height, r.Inside.Min.Y, r.Inside.Dy(), in.Antialias),
		Pixel:  uint8(l.Samples), Colour: uint8(l.Samples), Bits: uint8(l.Bits), Kind: samplesYUV, Colours: uint32(picture.Colours),
	}
	_, black := sampling.MatrixOf(picture.Colours)
	p.Low = uint16(black)
	luma := row * uint32(picture.Height)
	switch picture.Format {
	case wire.FormatRGB8, wire.FormatRGB10:
		p.Kind, p.Plane = samplesRGB, [3]uint32{0, 1, 2}
	case wire.FormatBGR8:
		p.Kind, p.Plane = samplesRGB, [3]uint32{2, 1, 0}
	case wire.FormatRGBA8:
		p.Kind, p.Plane = samplesRGBA, [3]uint32{0, 1, 2}
	case wire.FormatGrey8:
		p.Kind = samplesRGB // three times the same
	case wire.FormatNV12:
		p.Plane, p.Colour, p.Half = [3]uint32{0, luma, luma + 1}, 2, 3
	case wire.FormatI420:
		p.Plane, p.ColourRow, p.Half = [3]uint32{0, luma, luma + luma/4}, row/2, 3
	case wire.FormatUYVY, wire.FormatUYVY10:
		p.Plane, p.Colour, p.Half = [3]uint32{1, 0, 2}, 4, 1
	case wire.FormatYUYV:
		p.Plane, p.Colour, p.Half = [3]uint32{0, 1, 3}, 4, 1
	case wire.FormatYYYYUV:
		p.Plane, p.Colour, p.Half = [3]uint32{0, 4, 5}, 6, 7
	default:
		p.setSamples(in, l)
	}
	return p, nil
}

// setSamples describes grey and Bayer samples.
func (p *samplingPicture) setSamples(in *models.Input, l wire.PictureLayout) {
	p.Kind, p.Pitch, p.BayerOrder = samplesGrey, uint8((l.Bits+7)/8*8), uint8(l.Order)
	if l.Bayer {
		p.Kind = samplesBayer
	}
	if l.Packing == wire.Tight {
		p.Pitch = p.Bits
	}
	if l.Packing == wire.HighFirst {
		p.Pitch, p.HighFirst = 12, 1
	}
	low, high := sampling.SampleRange(in, l)
	p.Low, p.Scale = uint16(low), 255/float32(high-low)
}

// newSamplingAxis describes the boxes of count results, first in the tensor, from the part of a side that begins at begin.
// Pixels that a box covers have weights by how much. So a box of one pixel, around the middle of a result, gives the same
// weights as linear interpolation.
func newSamplingAxis(begin, length, limit, first, count int, area bool) samplingAxis {
	const one = 1 << 32
	step, box := float64(length)/float64(count), 1.0
	if area {
		box = max(step, box)
	}
	return samplingAxis{
		Begin: int64(math.Round((float64(begin) + (step-box)/2) * one)), Step: uint64(math.Round(step * one)), Box: uint64(box * one),
		Limit: uint32(limit), First: uint16(first), Count: uint16(count),
	}
}
