package gputest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// bothWays gathers the same requests, including an invalid one, by the kernel and by
// copies. The tensors must be the same, bit for bit.
func bothWays(t *testing.T, b *harness) {
	const batch, room, slots = 5, 8, 2
	of := func(wire, tensor models.DType, layout models.Layout, mean ...float32) models.Input {
		in := models.Input{Height: 224, Width: 224, Channels: 3, WireType: wire, WireLayout: models.HWC, TensorType: tensor, TensorLayout: layout}
		if len(mean) > 0 {
			in.Mean, in.Std = mean, []float32{58.395, 57.12, 57.375}
		}
		return in
	}
	for name, in := range map[string]models.Input{
		"as they are":                    of(models.U8, models.U8, models.HWC),
		"pixels of bytes to planes":      of(models.U8, models.F16, models.CHW, 123.675, 116.28, 103.53),
		"pixels of floats to planes":     of(models.F32, models.F32, models.CHW, 123.675, 116.28, 103.53),
		"pictures of an odd size, bytes": {Height: 7, Width: 331, Channels: 3, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.CHW},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			random := rand.New(rand.NewPCG(7, 11))
			slab := pages(t, 8<<20)
			for i := range slab {
				slab[i] = byte(random.Uint32())
			}
			reqs := make([]device.Request, batch)
			at := uint64(3)
			for i := range reqs {
				reqs[i].Bytes = uint32(in.WireBytes())
				for place := 0; place < in.WireBytes(); {
					n := min(1+random.IntN(1400), in.WireBytes()-place)
					reqs[i].Fragments = append(reqs[i].Fragments, shm.Fragment{Offset: at, Place: uint32(place), Length: uint16(n)})
					place, at = place+n, at+uint64(n+random.IntN(40))
				}
			}
			random.Shuffle(len(reqs[1].Fragments), func(i, k int) {
				p := reqs[1].Fragments
				p[i], p[k] = p[k], p[i]
			})
			reqs[2].Fragments[1].Offset = 1 << 40 // invalid
			var tensors [2][]byte
			for way, copies := range []bool{false, true} {
				b.bind(t)
				tensors[way] = gathered(t, b, in, gpu.Options{Device: "cuda", Copy: copies}, slab, reqs, room, slots)
			}
			b.bind(t)
			if !bytes.Equal(tensors[0], tensors[1]) {
				t.Error("what was copied is not what the kernel gathers")
			}
			image := in.TensorBytes()
			if blank := make([]byte, image); !bytes.Equal(tensors[1][2*image:3*image], blank) || bytes.Equal(tensors[1][:image], blank) {
				t.Error("the unsound request's picture is not blank, or the first one's is")
			}
		})
	}
}

// gathered returns a device's tensors for the requests, in each of its first slots in
// turn. Each slot ran another batch before.
func gathered(t *testing.T, b *harness, in models.Input, o gpu.Options, slab []byte, reqs []device.Request, room, slots int) (all []byte) {
	t.Helper()
	d, err := gpu.New(in, o)
	must.OK(t, err)
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	must.OK(t, d.AddSlab(slab))
	tensors, err := d.Tensors(nil, device.Sizes{Input: room * in.TensorBytes()})
	must.OK(t, err)
	refused := make([]bool, room)
	for slot := range slots {
		input := tensors[slot].Input
		others := []device.Request{reqs[4], reqs[3], reqs[1], reqs[0], reqs[1], reqs[3], reqs[4], reqs[0]}
		must.OK(t, errors.Join(d.Gather(slot, input, others, refused), d.Fetch(slot, 0)))
		if _, err := d.Wait(slot); err != nil {
			t.Fatal(err)
		}
		err := d.Gather(slot, input, reqs, refused[:len(reqs)])
		var one *device.RequestError
		if !errors.As(err, &one) || one.Request != 2 || one.Fragment != 1 || !errors.Is(err, device.ErrOutsideSlab) {
			t.Fatalf("gather: %v, want request 2's fragment 1 refused", err)
		}
		must.OK(t, errors.Join(d.Pad(slot, input, len(reqs), room), d.Fetch(slot, 0)))
		if _, err := d.Wait(slot); err != nil {
			t.Fatal(err)
		}
		all = append(all, b.read(input)...)
	}
	return all
}
