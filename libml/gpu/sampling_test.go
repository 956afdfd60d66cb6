package gpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"image"
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/sampling"
	"github.com/penstock/penstock/wire"
)

// sampled is a picture that a test samples.
type sampled struct {
	wire.Picture
	region sampling.Region
	bytes  []byte
}

// Bytes implements sampling.Source.
func (s *sampled) Bytes(_, place, count int) []byte { return s.bytes[place:][:count] }

// randomSampled returns a random picture of a format, of which a random part is sampled.
func randomSampled(random *rand.Rand, f wire.PictureFormat, in *models.Input) (s sampled, err error) {
	// part returns a random part of a side.
	part := func(length int) (from, to int) {
		from = random.IntN(length)
		return from, from + 1 + random.IntN(length-from)
	}
	l, _ := f.Layout()
	s.Picture = wire.Picture{Format: f, Width: 4 + random.IntN(60), Height: 4 + random.IntN(40)}
	if l.EvenWidth {
		s.Width &^= 1
	}
	if l.EvenHeight {
		s.Height &^= 1
	}
	s.Colours = []wire.Colours{0, 1, 2, 4, 5, 6}[random.IntN(6)]
	if random.IntN(2) == 0 {
		s.Stride = s.RowBytes() + 2*random.IntN(9)
		s.Stride += s.Stride & 1
	}
	switch random.IntN(3) {
	case 0:
		s.region = sampling.Fit(in, s.Width, s.Height)
	default:
		s.region.Part.Min.X, s.region.Part.Max.X = part(s.Width)
		s.region.Part.Min.Y, s.region.Part.Max.Y = part(s.Height)
		s.region.Inside.Min.X, s.region.Inside.Max.X = part(in.Width)
		s.region.Inside.Min.Y, s.region.Inside.Max.Y = part(in.Height)
	}
	n, err := s.Picture.Bytes()
	s.bytes = make([]byte, n)
	for i := range s.bytes {
		s.bytes[i] = byte(random.Uint32())
	}
	return s, err
}

// samplePTX samples pictures into one tensor by the kernel in the interpreter.
func samplePTX(in *models.Input, pictures []sampled) ([]byte, error) {
	kernel, err := parsed("sample")
	if err != nil {
		return nil, err
	}
	tensor := bytes.Repeat([]byte{0xa5}, len(pictures)*in.TensorBytes())
	regions := []region{{at: tensorAt, bytes: tensor}}
	head := newSamplingHead(in)
	head.Tensor, head.Pictures = tensorAt, uint32(len(pictures))
	parameter, err := binary.Append(nil, binary.LittleEndian, head)
	if err != nil {
		return nil, err
	}
	for i, p := range pictures {
		at := uint64(slabAt + i<<32 + 1) // any alignment
		regions = append(regions, region{at: at, bytes: p.bytes, readOnly: true})
		described, err := newSamplingPicture(in, p.Picture, p.region, cuda.Pointer(at), i)
		if err != nil {
			return nil, err
		}
		if parameter, err = binary.Append(parameter, binary.LittleEndian, described); err != nil {
			return nil, err
		}
	}
	parameter = append(parameter, make([]byte, samplingBytes-len(parameter))...)
	const block = warps * warpThreads
	return tensor, kernel.launch((len(pictures)*in.Width*in.Height+block-1)/block, parameter, regions)
}

// TestPTXSample compares the kernel with models/sampling, in batches that mix formats and sizes. They differ by less than one level:
// models/sampling rounds colours in front of a background, samples of more than 8 bits, and weights.
func TestPTXSample(t *testing.T) {
	random := rand.New(rand.NewPCG(37, 3))
	var formats []wire.PictureFormat
	for f := range 256 {
		if _, known := wire.PictureFormat(f).Layout(); known {
			formats = append(formats, wire.PictureFormat(f))
		}
	}
	types, layouts := []models.DType{models.U8, models.F16, models.F32}, []models.Layout{models.HWC, models.CHW}
	for round := range 24 {
		in := models.Input{
			Width: 1 + random.IntN(30), Height: 1 + random.IntN(20), Channels: 3 - round/6%2*2, WireType: models.U8, WireLayout: models.HWC,
			TensorType: types[round%3], TensorLayout: layouts[round/3%2], ReverseChannels: random.IntN(2) == 0, Pad: []int{114, 7, 200},
			Antialias: round%2 == 0, Background: [3]uint8{10, 100, 250},
		}
		if in.TensorType != models.U8 && random.IntN(2) == 0 {
			in.Mean, in.Std = []float32{123.675, 116.28, 103.53}[:in.Channels], []float32{58.395, 57.12, 57.375}[:in.Channels]
		}
		if random.IntN(2) == 0 {
			in.Range = [2]int{60, 900}
		}
		var pictures []sampled
		for i := range 8 {
			p := must.Get(randomSampled(random, formats[(round*8+i)%len(formats)], &in))(t)
			pictures = append(pictures, p)
		}
		most := 0.75
		if in.TensorType == models.U8 {
			most = 1 // rounded after that
		}
		tensor, err := samplePTX(&in, pictures)
		must.OK(t, err)
		s := must.Get(sampling.New(in))(t)
		for i := range pictures {
			p := &pictures[i]
			want := make([]byte, in.TensorBytes())
			must.OK(t, s.Sample(want, p.Picture, p.region, p))
			if err := devicetest.Near(&in, tensor[i*len(want):][:len(want)], want, most); err != nil {
				t.Errorf("%+v of %+v to %+v: %v", p.region, p.Picture, in, err)
			}
		}
	}
}

// TestPTXSampleMemory: a kernel that reads beyond a picture fails in these tests.
func TestPTXSampleMemory(t *testing.T) {
	in := models.Input{Width: 8, Height: 8, Channels: 3, TensorType: models.F32, TensorLayout: models.CHW}
	p := sampled{Picture: wire.Picture{Format: wire.FormatRGB8, Width: 8, Height: 8}, region: sampling.Fit(&in, 8, 8), bytes: make([]byte, 8*8*3)}
	_, err := samplePTX(&in, []sampled{p})
	must.OK(t, err)
	p.bytes = p.bytes[:len(p.bytes)-1]
	if _, err := samplePTX(&in, []sampled{p}); !errors.Is(err, errAccess) {
		t.Errorf("a picture without its last byte: %v, want %v", err, errAccess)
	}
}

func TestSamplingRefusals(t *testing.T) {
	in := models.Input{Width: 8, Height: 8, Channels: 3, TensorType: models.F32, TensorLayout: models.CHW}
	whole := image.Rect(0, 0, 8, 8)
	for name, c := range map[string]struct {
		picture wire.Picture
		region  sampling.Region
	}{
		"unknown format": {wire.Picture{Format: 200, Width: 8, Height: 8}, sampling.Region{Part: whole, Inside: whole}},
		"other colours":  {wire.Picture{Format: wire.FormatRGB8, Width: 8, Height: 8, Colours: 3}, sampling.Region{Part: whole, Inside: whole}},
		"odd NV12":       {wire.Picture{Format: wire.FormatNV12, Width: 9, Height: 8}, sampling.Region{Part: whole, Inside: whole}},
		"beyond picture": {wire.Picture{Format: wire.FormatRGB8, Width: 7, Height: 8}, sampling.Region{Part: whole, Inside: whole}},
		"beyond tensor":  {wire.Picture{Format: wire.FormatRGB8, Width: 8, Height: 8}, sampling.Region{Part: whole, Inside: whole.Inset(-1)}},
		"nothing":        {wire.Picture{Format: wire.FormatRGB8, Width: 8, Height: 8}, sampling.Region{Inside: whole}},
	} {
		if _, err := newSamplingPicture(&in, c.picture, c.region, slabAt, 0); err == nil {
			t.Errorf("%s is not refused", name)
		}
	}
}
