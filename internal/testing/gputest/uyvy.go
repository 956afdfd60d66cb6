package gputest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/models"
)

// uyvy gathers pictures of UYVY for every type and order of the tensor, with each normalisation.
// The tensors equal the CPU's bit for bit.
func uyvy(t *testing.T, b *harness) {
	k := newBench(t, b)
	asItIs := models.Input{Height: 15, Width: 74, Channels: 3, WireType: models.U8, WireLayout: models.HWC, UYVY: true}
	multiplied, divided := asItIs, asItIs
	multiplied.Mean, multiplied.Std = []float32{123.675, 116.28, 103.53}, []float32{58.395, 57.12, 57.375}
	divided.Mean, divided.Std = []float32{1, 2, 3}, []float32{4, 1e-38, 6}

	var inputs []models.Input
	for _, in := range []models.Input{asItIs, multiplied, divided} {
		for _, in.TensorType = range []models.DType{models.U8, models.F16, models.F32} {
			for _, in.TensorLayout = range []models.Layout{models.CHW, models.HWC} {
				for _, in.ReverseChannels = range []bool{false, true} {
					inputs = append(inputs, in)
				}
			}
		}
	}
	for i, in := range inputs {
		// Each input has all short fragments, in which pairs of pixels are cut most often. The inputs
		// share the other lengths.
		var lengths []int
		for length := 1; length <= gpu.FragmentBytes; length++ {
			if length <= 64 || length%len(inputs) == i {
				lengths = append(lengths, length)
			}
		}
		if err := k.gatherUYVY(in, lengths); err != nil {
			t.Errorf("%+v: %v", in, err)
		}
	}
}

// gatherUYVY gathers batches of different sizes in fragments of each length.
func (k *bench) gatherUYVY(in models.Input, lengths []int) (err error) {
	kernel, err := k.kernel(in, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kernel.Close()) }()
	const most = 32
	size, image := in.WireBytes(), in.TensorBytes()
	pictures, want := make([]byte, most*size), devicetest.Aligned(most*image)
	random := rand.New(rand.NewPCG(1, 4175))
	for i := range pictures {
		pictures[i] = byte(random.Uint32())
	}
	for i := range most {
		if err := cpu.Direct(in, pictures[i*size:][:size], want[i*image:][:image]); err != nil {
			return err
		}
	}

	for _, length := range lengths {
		batch := 1 + random.IntN(most)
		if length < 16 {
			batch = 1 + random.IntN(4) // one picture has up to 2220 fragments
		}
		var list []gpu.Descriptor
		at := 0
		for n := range batch {
			for place := 0; place < size; place += length {
				d := gpu.Descriptor{Offset: uint64(at), Place: uint32(place), Length: uint16(min(length, size-place)), Image: uint16(n)}
				copy(k.slab[at:], pictures[n*size+place:][:d.Length])
				list = append(list, d)
				at += int(d.Length) + random.IntN(8)
			}
		}
		tensor, fault, err := k.gather(kernel, list, image, batch)
		if err := errors.Join(err, fault); err != nil {
			return fmt.Errorf("gather %d pictures in fragments of %d bytes: %w", batch, length, err)
		}
		if !bytes.Equal(tensor, want[:batch*image]) {
			return fmt.Errorf("%s: %d pictures in fragments of %d bytes differ from the CPU's", kernel.Name(), batch, length)
		}
	}
	return nil
}
