//go:build cgo

package decode_test

import (
	"image"
	"math"
	"testing"

	"golang.org/x/image/draw"

	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/models/sampling"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// nv12 returns a photo as a camera sends it: 1920 x 1080 pixels, BT.601, limited range.
func nv12(t *testing.T, name string) (wire.Picture, []byte) {
	t.Helper()
	photo := must.Get(picture.Read(zoo.PictureFS(), name))(t)[0].Image
	p := wire.Picture{Format: wire.FormatNV12, Width: 1920, Height: 1080}
	canvas := image.NewRGBA(image.Rect(0, 0, p.Width, p.Height))
	draw.BiLinear.Scale(canvas, image.Rect(420, 0, 1500, 1080), photo, photo.Bounds(), draw.Src, nil)
	data := make([]byte, must.Get(p.Bytes())(t))
	level := func(v float64) byte { return byte(math.Round(min(max(v, 0), 255))) }
	for y := range p.Height {
		for x := range p.Width {
			c := canvas.RGBAAt(x, y)
			r, g, b := float64(c.R), float64(c.G), float64(c.B)
			data[y*p.Width+x] = level(16 + 0.257*r + 0.504*g + 0.098*b)
			colour := data[(p.Height+y/2)*p.Width+x&^1:]
			colour[0], colour[1] = level(128-0.148*r-0.291*g+0.439*b), level(128+0.439*r-0.368*g-0.071*b)
		}
	}
	return p, data
}

type contiguous []byte

func (c contiguous) Bytes(_, place, count int) []byte { return c[place:][:count] }

// A 1080p NV12 picture in packets has the same answer as a photo of the same pixels.
func TestDetectNV12(t *testing.T) {
	card := shipped(t, "detect")
	r := load(t, card)
	p, data := nv12(t, "astronaut.jpg")

	// As a photo: in RGB first, then resized, then mapped back.
	whole := image.Rect(0, 0, p.Width, p.Height)
	rgb := models.Input{Height: p.Height, Width: p.Width, Channels: 3, TensorType: models.U8, TensorLayout: models.HWC}
	sampler := must.Get(sampling.New(rgb))(t)
	pixels := make([]byte, rgb.TensorBytes())
	must.OK(t, sampler.Sample(pixels, p, sampling.Region{Part: whole, Inside: whole}, contiguous(data)))
	photo := image.NewRGBA(whole)
	for i, v := range pixels {
		photo.Pix[i/3*4+i%3], photo.Pix[i/3*4+3] = v, 0xff
	}
	in := &card.Input
	resized, frame := picture.Resize(photo, in)
	payload, kind, err := r.Answer(resized)
	must.OK(t, err)
	var content wire.Content
	must.OK(t, content.Decode(wire.Kind(kind), payload))
	want := frame.Find(&content)
	if len(want) == 0 || card.Labels[want[0].Class] != "person" {
		t.Fatalf("found %+v in the photo, want a person", want)
	}

	// As a request. The tensor is what the model's wire format has, so that the reference can run it.
	plain := *in
	plain.TensorType, plain.TensorLayout, plain.Mean, plain.Std, plain.ReverseChannels = models.U8, models.HWC, nil, nil, false
	req := device.Request{Bytes: uint32(len(data)), Picture: p}
	for at := 0; at < len(data); at += 1000 {
		req.Fragments = append(req.Fragments, shm.Fragment{Offset: uint64(at), Place: uint32(at), Length: uint16(min(1000, len(data)-at))})
	}
	d := must.Get(cpu.New(plain, [][]byte{data}))(t)
	sampled := devicetest.Aligned(plain.TensorBytes())
	must.OK(t, d.Gather(0, device.HostBuffer(sampled), []device.Request{req}, make([]bool, 1)))
	payload, kind, err = r.Answer(sampled)
	must.OK(t, err)
	place := sampling.Fit(in, p.Width, p.Height).Place(in, p.Width, p.Height)
	var got wire.Content
	must.OK(t, got.Decode(wire.Kind(kind), place.Append(nil, wire.Kind(kind), payload)))
	if len(got.Boxes) != len(want) {
		t.Fatalf("found %+v, want %+v", got.Boxes, want)
	}
	for i, b := range got.Boxes {
		pixel := func(v float32, side int) int { return int(v*float32(side) + 0.5) }
		box := image.Rect(pixel(b.X0, p.Width), pixel(b.Y0, p.Height), pixel(b.X1, p.Width), pixel(b.Y1, p.Height))
		if apart := box.Min.Sub(want[i].Box.Min); b.Class != want[i].Class || math.Abs(float64(b.Score-want[i].Score)) > 0.01 || !apart.In(image.Rect(-2, -2, 3, 3)) || !box.Max.Sub(want[i].Box.Max).In(image.Rect(-2, -2, 3, 3)) {
			t.Errorf("box %d is %v of class %d, score %.3f, want %+v", i, box, b.Class, b.Score, want[i])
		}
	}
}
