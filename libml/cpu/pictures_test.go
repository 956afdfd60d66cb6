package cpu

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/sampling"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
	"pgregory.net/rapid"
)

var letterbox = models.Input{
	Height: 12, Width: 20, Channels: 3, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.CHW,
	Pad: []int{114, 114, 114}, Mean: []float32{1, 2, 3}, Std: []float32{4, 5, 6},
}

// contiguous is a picture in one piece.
type contiguous []byte

func (c contiguous) Bytes(_, place, count int) []byte { return c[place:][:count:count] }

// cut returns a picture in fragments of these lengths, in two slabs. Between fragments are other bytes.
func cut(picture []byte, length func(left int) int) (slabs [][]byte, r device.Request) {
	slabs, r.Bytes = make([][]byte, 2), uint32(len(picture))
	for at := 0; at < len(picture); {
		n, slab := min(length(len(picture)-at), 1<<16-1), len(r.Fragments)%2
		slabs[slab] = append(slabs[slab], "gap"...)
		r.Fragments = append(r.Fragments, shm.Fragment{Offset: uint64(len(slabs[slab])), Place: uint32(at), Length: uint16(n), Slab: uint16(slab)})
		slabs[slab] = append(slabs[slab], picture[at:at+n]...)
		at += n
	}
	return slabs, r
}

func randomPicture(p wire.Picture, seed uint64) []byte {
	n, err := p.Bytes()
	if err != nil {
		panic(err)
	}
	data, random := make([]byte, n), rand.New(rand.NewPCG(seed, 1))
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	return data
}

// A picture of any format gives the same tensor, however it is cut into fragments.
func TestGatherPictures(t *testing.T) {
	var formats []wire.PictureFormat
	for f := range 256 {
		if _, ok := wire.PictureFormat(f).Layout(); ok {
			formats = append(formats, wire.PictureFormat(f))
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		p := wire.Picture{Format: rapid.SampledFrom(formats).Draw(t, "format"), Width: 2 * rapid.IntRange(2, 40).Draw(t, "width/2"), Height: 2 * rapid.IntRange(2, 20).Draw(t, "height/2")}
		if rapid.Bool().Draw(t, "stride") {
			p.Stride = p.RowBytes() + 2*rapid.IntRange(0, 9).Draw(t, "padding") + p.RowBytes()%2
		}
		in := letterbox
		in.Height++ // the card's own picture is not sampled
		in.Fit = rapid.SampledFrom([]string{"letterbox", "stretch", "crop", "left"}).Draw(t, "fit")
		in.Antialias = rapid.Bool().Draw(t, "antialias")
		data := randomPicture(p, rapid.Uint64().Draw(t, "seed"))
		longest := rapid.SampledFrom([]int{1, 7, 1000, 1 << 16}).Draw(t, "longest")
		slabs, req := cut(data, func(left int) int { return rapid.IntRange(1, min(left, longest)).Draw(t, "length") })
		req.Picture = p

		d, err := New(in, slabs)
		must.OK(t, err)
		got, want := devicetest.Aligned(in.TensorBytes()), make([]byte, in.TensorBytes())
		must.OK(t, d.Gather(0, device.HostBuffer(got), []device.Request{req}, make([]bool, 1)))
		s, err := sampling.New(in)
		must.OK(t, err)
		must.OK(t, s.Sample(want, p, sampling.Fit(&in, p.Width, p.Height), contiguous(data)))
		if !bytes.Equal(got, want) {
			t.Fatal("the tensor differs from that of a picture in one piece")
		}
	})
}

// The card's own picture is converted as one without a format. A GPU does the same.
func TestGatherPlainPicture(t *testing.T) {
	in := letterbox
	own := wire.Picture{Format: wire.FormatRGB8, Width: in.Width, Height: in.Height}
	slabs, req := cut(randomPicture(own, 1), func(left int) int { return min(left, 100) })
	d := must.Get(New(in, slabs))(t)
	tensors := [2][]byte{devicetest.Aligned(in.TensorBytes()), devicetest.Aligned(in.TensorBytes())}
	for i, tensor := range tensors {
		must.OK(t, d.Gather(0, device.HostBuffer(tensor), []device.Request{req}, make([]bool, 1)))
		if req.Picture = own; i > 0 && !bytes.Equal(tensor, tensors[0]) {
			t.Error("a picture with a format differs from one without")
		}
	}
	for _, s := range d.slots {
		if s.sampler != nil {
			t.Error("it was sampled")
		}
	}
}

func TestGatherWrongPictures(t *testing.T) {
	tensors := models.Input{Height: 1, Width: 8, Channels: 1, WireType: models.F32, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.HWC}
	for name, c := range map[string]struct {
		in   models.Input
		p    wire.Picture
		want string
	}{
		"unknown format":         {letterbox, wire.Picture{Format: 99, Width: 4, Height: 4}, "format 99"},
		"of more bytes":          {letterbox, wire.Picture{Format: wire.FormatNV12, Width: 4, Height: 4}, "request has 16 bytes, and a picture of 4 x 4 pixels of nv12 has 24"},
		"short stride":           {letterbox, wire.Picture{Format: wire.FormatGrey8, Width: 4, Height: 4, Stride: 3}, "stride of 3"},
		"no pixels":              {letterbox, wire.Picture{Format: wire.FormatGrey8}, "0 x 0 pixels"},
		"largest":                {letterbox, wire.Picture{Format: wire.FormatRGBA8, Width: 65535, Height: 65535}, "of rgba8 has"},
		"odd width":              {letterbox, wire.Picture{Format: wire.FormatNV12, Width: 5, Height: 2}, "even numbers"},
		"for a model of numbers": {tensors, wire.Picture{Format: wire.FormatGrey8, Width: 4, Height: 4}, "takes no pictures"},
	} {
		slabs, req := cut(make([]byte, 16), func(left int) int { return left })
		req.Picture = c.p
		d := must.Get(New(c.in, slabs))(t)
		tensor, refused := devicetest.Aligned(c.in.TensorBytes()), make([]bool, 1)
		for i := range tensor {
			tensor[i] = 1
		}
		err := d.Gather(0, device.HostBuffer(tensor), []device.Request{req}, refused)
		if !errors.Is(err, device.ErrPicture) || !strings.Contains(err.Error(), c.want) || !refused[0] || bytes.ContainsRune(tensor, 1) {
			t.Errorf("%s: %v, refused %v, want %q", name, err, refused, c.want)
		}
	}
}

func BenchmarkGatherNV12(b *testing.B) {
	in := letterbox
	in.Height, in.Width = 640, 640
	p := wire.Picture{Format: wire.FormatNV12, Width: 1920, Height: 1080}
	slabs, req := cut(randomPicture(p, 1), func(left int) int { return min(left, 1024) })
	req.Picture = p
	d := must.Get(New(in, slabs))(b)
	tensor, refused := devicetest.Aligned(in.TensorBytes()), make([]bool, 1)
	reqs := []device.Request{req}
	if n := testing.AllocsPerRun(2, func() { must.OK(b, d.Gather(0, device.HostBuffer(tensor), reqs, refused)) }); n != 0 {
		b.Errorf("%v allocations", n)
	}
	for b.Loop() {
		must.OK(b, d.Gather(0, device.HostBuffer(tensor), reqs, refused))
	}
}
