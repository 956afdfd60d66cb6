package gputest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/sampling"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// formats are all formats of pictures.
var formats = func() (list []wire.PictureFormat) {
	for f := range 256 {
		if _, known := wire.PictureFormat(f).Layout(); known {
			list = append(list, wire.PictureFormat(f))
		}
	}
	return list
}()

// pictures compares batches of pictures with the CPU's. A batch mixes all formats and many sizes with pictures of the card and
// requests that both refuse.
func pictures(t *testing.T, b *harness) {
	random := rand.New(rand.NewPCG(37, 4))
	for round := range 24 {
		in := models.Input{
			Width: 1 + random.IntN(60), Height: 1 + random.IntN(40), Channels: pick(random, 1, 3, 3), WireType: models.U8, WireLayout: models.HWC,
			TensorType: pick(random, models.U8, models.F16, models.F32), TensorLayout: pick(random, models.HWC, models.CHW),
			ReverseChannels: random.IntN(2) == 0, Antialias: round%2 == 0,
			Fit: pick(random, sampling.Letterbox, sampling.Stretch, sampling.Crop, sampling.Left),
		}
		if in.TensorType != models.U8 {
			in.Mean, in.Std = []float32{123.675, 116.28, 103.53}[:in.Channels], []float32{58.395, 57.12, 57.375}[:in.Channels]
		}
		for range in.Channels {
			in.Pad = append(in.Pad, random.IntN(256))
		}
		var list []wire.Picture
		for i := range 36 { // more than one launch takes
			p := wire.Picture{Format: formats[(36*round+i)%len(formats)], Width: 4 + 2*random.IntN(70), Height: 4 + 2*random.IntN(50),
				Colours: pick(random, 0, wire.BT709, wire.BT2020, wire.FullRange, wire.BT709|wire.FullRange)}
			if random.IntN(2) == 0 {
				p.Stride = p.RowBytes() + 2*random.IntN(9) + p.RowBytes()%2
			}
			switch i % 9 {
			case 3:
				p = wire.Picture{}
			case 5:
				p.Stride = p.RowBytes() - 1
			}
			list = append(list, p)
		}
		if err := b.samplePictures(t, random, in, list); err != nil {
			t.Fatalf("round %d, %+v: %v", round, in, err)
		}
	}
}

// manyPictures are larger than the room that they share.
func manyPictures(t *testing.T, b *harness) {
	in := models.Input{Width: 33, Height: 31, Channels: 3, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.CHW}
	large := wire.Picture{Format: wire.FormatNV12, Width: 3840, Height: 2160}
	must.OK(t, b.samplePictures(t, rand.New(rand.NewPCG(37, 5)), in, []wire.Picture{large, {}, large, large, {Format: wire.FormatRGB8, Width: 9, Height: 9}, large}))
}

// samplePictures gathers random pictures of these formats and sizes on both devices.
func (b *harness) samplePictures(t *testing.T, random *rand.Rand, in models.Input, list []wire.Picture) (err error) {
	const slabs, largest = 2, 13 << 20
	sizes := device.Sizes{Input: len(list) * in.TensorBytes()}
	b.bind(t)
	target, err := gpu.New(in, gpu.Options{Device: "cuda", LargestPicture: largest})
	must.OK(t, err)
	defer func() { err = errors.Join(err, target.Close()) }()
	reference, err := cpu.New(in, nil)
	must.OK(t, err)

	var memory [slabs][]byte
	for i := range memory {
		memory[i] = pages(t, 80<<20)
		must.OK(t, errors.Join(target.AddSlab(memory[i]), reference.AddSlab(memory[i])))
	}
	tensors, err := target.Tensors(nil, sizes)
	must.OK(t, err)
	var free [slabs]int
	reqs := make([]device.Request, len(list))
	for i, p := range list {
		reqs[i].Picture = p
		bytes, err := p.Bytes()
		if err != nil {
			bytes = in.WireBytes()
		}
		reqs[i].Bytes = uint32(bytes)
		longest := min(max(1, bytes/4), pick(random, 700, 1400, 9000))
		for place := 0; place < bytes; {
			n, slab := min(1+random.IntN(longest), bytes-place), random.IntN(slabs)
			free[slab] += random.IntN(20)
			for k := range n {
				memory[slab][free[slab]+k] = byte(random.Uint32())
			}
			reqs[i].Fragments = append(reqs[i].Fragments, shm.Fragment{Slab: uint16(slab), Offset: uint64(free[slab]), Place: uint32(place), Length: uint16(n)})
			place, free[slab] = place+n, free[slab]+n
		}
	}

	want, refused, refuses := devicetest.Aligned(sizes.Input), make([]bool, len(list)), make([]bool, len(list))
	var first *device.RequestError
	if err := reference.Gather(0, device.HostBuffer(want), reqs, refuses); err != nil && !errors.As(err, &first) {
		return err
	}
	for slot := range target.InFlight() { // each has its room
		if err := target.Gather(slot, tensors[slot].Input, reqs, refused); fmt.Sprint(err) != fmt.Sprint(first) && first != nil || first == nil && err != nil {
			return fmt.Errorf("gather: %w, and on a CPU: %w", err, first)
		}
		if _, err := target.Wait(slot); err != nil {
			return err
		}
		got, image, most := b.read(tensors[slot].Input), in.TensorBytes(), 0.75
		if in.TensorType == models.U8 {
			most = 1 // both round
		}
		for i, p := range list {
			if err := devicetest.Near(&in, got[i*image:][:image], want[i*image:][:image], most); err != nil || refused[i] != refuses[i] {
				return fmt.Errorf("slot %d, %+v: %w, refused %v, want %v", slot, p, err, refused[i], refuses[i])
			}
		}
	}
	return nil
}

// largePicture is refused: it has more bytes than the room.
func largePicture(t *testing.T, b *harness) {
	in := models.Input{Width: 8, Height: 8, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC}
	for name, o := range map[string]gpu.Options{
		"without max_picture":      {Device: "cuda"},
		"where the CPU gathers":    {Device: "cuda", Copy: true, LargestPicture: 64},
		"larger than a room":       {Device: "cuda", LargestPicture: 64},
		"with a side beyond 65535": {Device: "cuda", LargestPicture: 64},
	} {
		p := wire.Picture{Format: wire.FormatGrey8, Width: 4, Height: 4}
		switch name {
		case "larger than a room":
			p.Width, p.Height = 1<<13, 1<<12+1
		case "with a side beyond 65535":
			p.Width, p.Height = 1, 1<<16
		}
		slab := pages(t, p.Width*p.Height)
		d, tensors := deviceOf(t, in, slab, o)
		req := device.Request{Picture: p}
		for req.Bytes < uint32(len(slab)) {
			n := min(60000, uint32(len(slab))-req.Bytes)
			req.Fragments = append(req.Fragments, shm.Fragment{Offset: uint64(req.Bytes), Place: req.Bytes, Length: uint16(n)})
			req.Bytes += n
		}
		refused := make([]bool, 1)
		if err := d.Gather(0, tensors[0].Input, []device.Request{req}, refused); !errors.Is(err, device.ErrPicture) || !refused[0] {
			t.Errorf("%s: %v, refused %v", name, err, refused)
		}
		_, err := d.Wait(0)
		must.OK(t, err)
	}
}
