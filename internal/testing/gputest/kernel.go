package gputest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/models"
)

// bench has the kernel's arguments: a slab, descriptors, and a tensor with a guard
// on either side.
type bench struct {
	*harness
	slab        []byte
	descriptors []byte
	fault       []byte
	memory      cuda.Pointer
}

const (
	slabBytes   = 16 << 20
	tensorBytes = 8 << 20
	guardBytes  = 4096
	guard       = 0xa5
)

func newBench(t *testing.T, b *harness) *bench {
	t.Helper()
	k := &bench{harness: b, slab: pages(t, slabBytes)}
	if at, err := b.context.Register(k.slab, true); err != nil {
		t.Fatal(err)
	} else if at != cuda.At(k.slab) {
		t.Fatalf("the slab is at %#x here and at %#x on the device", cuda.At(k.slab), at)
	}
	var err error
	if k.descriptors, err = b.context.AllocateHost(4 << 20); err != nil {
		t.Fatal(err)
	}
	if k.fault, err = b.context.AllocateHost(8); err != nil {
		t.Fatal(err)
	}
	if k.memory, err = b.context.Allocate(tensorBytes + 2*guardBytes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.bind(t)
		if err := errors.Join(b.context.Unregister(k.slab), b.context.FreeHost(k.descriptors), b.context.FreeHost(k.fault), b.context.Free(k.memory)); err != nil {
			t.Error(err)
		}
	})
	return k
}

// kernel compiles the gather for an input, with the slab's halves as two slabs.
func (k *bench) kernel(in models.Input, general bool) (*gpu.Kernel, error) {
	compile := gpu.NewKernel
	if general {
		compile = gpu.NewGeneralKernel
	}
	kernel, err := compile(k.context, in)
	if err != nil {
		return nil, fmt.Errorf("kernel for %+v: %w", in, err)
	}
	for i := range 2 {
		if err := kernel.AddSlab(cuda.At(k.slab[i*slabBytes/2:]), slabBytes/2); err != nil {
			return nil, err
		}
	}
	return kernel, nil
}

// gather launches with these descriptors on a tensor full of guard bytes. It
// returns the images, the fault word, and whether the kernel wrote outside the
// tensor.
func (k *bench) gather(kernel *gpu.Kernel, descriptors []gpu.Descriptor, imageBytes, images int) (tensor []byte, fault, failed error) {
	n := images * imageBytes
	if err := k.stream.Set(k.memory, guard, n+2*guardBytes); err != nil {
		return nil, nil, err
	}
	for i, d := range descriptors {
		d.Put(k.descriptors[i*gpu.DescriptorBytes:])
	}
	clear(k.fault)
	err := kernel.NewLaunch(cuda.At(k.fault)).Gather(k.stream, cuda.At(k.descriptors), len(descriptors), k.memory+guardBytes, images)
	if err == nil {
		err = k.stream.Synchronize()
	}
	if err != nil {
		return nil, nil, err
	}
	all := k.read(device.DeviceBuffer(uintptr(k.memory), n+2*guardBytes))
	outside := append(bytes.Clone(all[:guardBytes]), all[guardBytes+n:]...)
	if !allGuard(outside) {
		return nil, nil, errors.New("the guards beside the tensor were written")
	}
	return all[guardBytes : guardBytes+n], gpu.FaultError(binary.LittleEndian.Uint64(k.fault)), nil
}

// lay puts a picture into the slab in fragments of at most longest bytes with gaps
// between them, and returns their descriptors. free is the first free offset of
// each half.
func (k *bench) lay(random *rand.Rand, free *[2]uint64, picture []byte, longest, image int) (list []gpu.Descriptor) {
	for place := 0; place < len(picture); {
		n := min(1+random.IntN(longest), len(picture)-place)
		half := random.IntN(2)
		free[half] += uint64(random.IntN(40))
		copy(k.slab[half*slabBytes/2+int(free[half]):], picture[place:place+n])
		list = append(list, gpu.Descriptor{Slab: uint16(half), Offset: free[half], Place: uint32(place), Length: uint16(n), Image: uint16(image)})
		free[half] += uint64(n)
		place += n
	}
	return list
}

func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

// randomInput has the sizes at which another kernel is selected: rows of a few
// pixels and of more than a tile.
func randomInput(random *rand.Rand) models.Input {
	types, layouts := []models.DType{models.U8, models.F16, models.F32}, []models.Layout{models.HWC, models.CHW}
	in := models.Input{
		Height: 1 + random.IntN(24), Width: 1 + random.IntN(40), Channels: pick(random, 1, 3, 3, 3, 3, 2, 4, 5, 17),
		WireType: pick(random, append(types, models.U8, models.U8)...), WireLayout: pick(random, append(layouts, models.HWC)...),
		TensorType: pick(random, types...), TensorLayout: pick(random, layouts...), ReverseChannels: random.IntN(2) == 0,
	}
	if random.IntN(2) == 0 {
		in.Height *= 4 // three-channel pictures with a multiple of four pixels
	}
	if random.IntN(2) == 0 {
		for range in.Channels {
			in.Mean = append(in.Mean, float32(random.Float64()*210-10))
			in.Std = append(in.Std, float32(random.Float64()*300+0.01))
		}
		if random.IntN(4) == 0 {
			in.Std[0] = 1e-38 // too small to multiply by its inverse
		}
	}
	return in
}

// randomPicture returns either random bytes, which as floats have all magnitudes
// and include infinities and NaNs, or floats as in pictures.
func randomPicture(random *rand.Rand, in models.Input) []byte {
	picture := make([]byte, in.WireBytes())
	for i := range picture {
		picture[i] = byte(random.Uint32())
	}
	if random.IntN(2) == 0 {
		return picture
	}
	for at := 0; at < len(picture); at += in.WireType.Bytes() {
		switch v := random.Float64()*300 - 20; in.WireType {
		case models.F16:
			binary.LittleEndian.PutUint16(picture[at:], devicetest.NearestHalf(v))
		case models.F32:
			binary.LittleEndian.PutUint32(picture[at:], math.Float32bits(float32(v)))
		}
	}
	return picture
}

func agrees(t *testing.T, b *harness) {
	k := newBench(t, b)
	const cases = 3000
	seen := map[string]int{}
	for seed := range uint64(cases) {
		name, err := k.agree(seed)
		if err != nil {
			t.Fatalf("seed %d, %s: %v", seed, name, err)
		}
		seen[name]++
	}
	const kernels = 1 + 6 + 9 // as in gather.cu
	if len(seen) != kernels {
		t.Errorf("of %d kernels %d were tried: %v", kernels, len(seen), seen)
	}
}

// agree compares a random batch with the CPU's result.
func (k *bench) agree(seed uint64) (name string, err error) {
	random := rand.New(rand.NewPCG(seed, 77))
	in := randomInput(random)
	kernel, err := k.kernel(in, random.IntN(4) == 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, kernel.Close()) }()
	images, longest := 1+random.IntN(3), pick(random, 1, 7, 60, 1024, 1450, gpu.FragmentBytes)
	if longest == 1 && in.WireBytes() > 4096 {
		longest = 60
	}
	var list []gpu.Descriptor
	var free [2]uint64
	want := devicetest.Aligned(images * in.TensorBytes())
	for i := range images {
		picture := randomPicture(random, in)
		list = append(list, k.lay(random, &free, picture, longest, i)...)
		if err := cpu.Direct(in, picture, want[i*in.TensorBytes():(i+1)*in.TensorBytes()]); err != nil {
			return kernel.Name(), err
		}
	}
	got, fault, err := k.gather(kernel, list, in.TensorBytes(), images)
	if err := errors.Join(err, fault); err != nil {
		return kernel.Name(), fmt.Errorf("%+v: %w", in, err)
	}
	if !bytes.Equal(got, want) {
		at := 0
		for got[at] == want[at] {
			at++
		}
		return kernel.Name(), fmt.Errorf("%+v, fragments of up to %d bytes: byte %d of image %d is %#x, the CPU's is %#x",
			in, longest, at%in.TensorBytes(), at/in.TensorBytes(), got[at], want[at])
	}
	return kernel.Name(), nil
}

// alignments sends pictures whose fragments begin at every address modulo 128 and
// at every offset modulo 16. Their lengths are near those at which another kernel
// is selected.
func alignments(t *testing.T, b *harness) {
	k := newBench(t, b)
	for _, in := range []models.Input{
		{Height: 44, Width: 88, Channels: 1, WireType: models.U8, TensorType: models.U8},
		{Height: 44, Width: 44, Channels: 3, WireType: models.U8, TensorType: models.F16, Mean: []float32{123.675, 116.28, 103.53}, Std: []float32{58.395, 57.12, 57.375}},
		{Height: 44, Width: 44, Channels: 3, WireType: models.U8, TensorType: models.U8, ReverseChannels: true},
		{Height: 44, Width: 44, Channels: 3, WireType: models.F16, TensorType: models.F32},
		{Height: 31, Width: 31, Channels: 3, WireType: models.F32, TensorType: models.F16},
	} {
		in.WireLayout, in.TensorLayout = models.HWC, models.CHW
		kernel, err := k.kernel(in, false)
		must.OK(t, err)
		random := rand.New(rand.NewPCG(5, 6))
		picture := make([]byte, in.WireBytes())
		for i := range picture {
			picture[i] = byte(random.Uint32()) & 0xbb // no NaNs and no infinities, so that CPU and GPU both keep all bits
		}
		want := devicetest.Aligned(in.TensorBytes())
		must.OK(t, cpu.Direct(in, picture, want))
		const images = 64
		for round, lengths := range [][]int{{1, 2, 3}, {11, 12, 13, 15, 16, 17}, {23, 24, 25, 31, 32, 33}, {127, 128, 129}, {511, 512, 513}, {1023, 1024, 1025}, {gpu.FragmentBytes - 1, gpu.FragmentBytes}} {
			var list []gpu.Descriptor
			at := uint64(0)
			n := images
			if lengths[0] == 1 {
				n = 4 // as many descriptors as there is room for
			}
			for image := range n {
				for place, i := 0, image; place < len(picture); i++ {
					length := min(lengths[i%len(lengths)], len(picture)-place)
					// The next address with the alignment to test.
					at += (uint64(image+64*(i%2)) - at) % 128
					copy(k.slab[at:], picture[place:place+length])
					list = append(list, gpu.Descriptor{Offset: at, Place: uint32(place), Length: uint16(length), Image: uint16(image)})
					at, place = at+uint64(length), place+length
				}
			}
			if at > slabBytes/2 {
				t.Fatalf("round %d takes %d bytes of slab", round, at)
			}
			got, fault, err := k.gather(kernel, list, in.TensorBytes(), n)
			must.OK(t, errors.Join(err, fault))
			for image := range n {
				if !bytes.Equal(got[image*in.TensorBytes():(image+1)*in.TensorBytes()], want) {
					t.Fatalf("%s, fragments of %v bytes from address %d: the image differs from the CPU's", kernel.Name(), lengths, image)
				}
			}
		}
		if err := kernel.Close(); err != nil {
			t.Error(err)
		}
	}
}

// floats is an input of 768 bytes per picture in which a cut can divide an element.
var floats = models.Input{Height: 8, Width: 8, Channels: 3, WireType: models.F32, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.CHW}

func badDescriptors(t *testing.T, b *harness) {
	k := newBench(t, b)
	kernel, err := k.kernel(floats, false)
	must.OK(t, err)
	defer kernel.Close()
	const half = slabBytes / 2
	for _, c := range []struct {
		name  string
		bad   gpu.Descriptor
		fault uint64 // as gather.cu counts
	}{
		{"a slab that was not added", gpu.Descriptor{Slab: 2, Length: 64}, 1},
		{"the last slab number", gpu.Descriptor{Slab: math.MaxUint16, Length: 64}, 1},
		{"no bytes", gpu.Descriptor{}, 2},
		{"more bytes than a tile has", gpu.Descriptor{Length: gpu.FragmentBytes + 1}, 2},
		{"the most bytes", gpu.Descriptor{Length: math.MaxUint16}, 2},
		{"a byte past its slab", gpu.Descriptor{Offset: half - 63, Length: 64}, 3},
		{"the last offset", gpu.Descriptor{Slab: 1, Offset: 1<<48 - 1, Length: 64}, 3},
		{"a byte past its request", gpu.Descriptor{Place: 768 - 63, Length: 64}, 4},
		{"the last place", gpu.Descriptor{Place: math.MaxUint32, Length: 64}, 4},
		{"more bytes than its request", gpu.Descriptor{Length: 769}, 4},
		{"an image past the tensor", gpu.Descriptor{Length: 64, Image: 2}, 5},
		{"the last image", gpu.Descriptor{Length: 64, Image: math.MaxUint16}, 5},
	} {
		tensor, fault, err := k.gather(kernel, []gpu.Descriptor{c.bad}, floats.TensorBytes(), 2)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if want := gpu.FaultError(c.fault << 32); fault == nil || fault.Error() != want.Error() {
			t.Errorf("%s: reported as %v, want %v", c.name, fault, want)
		}
		if !allGuard(tensor) {
			t.Errorf("%s: written all the same", c.name)
		}
	}
	// An element that is cut must continue in the next fragment.
	for name, list := range map[string][]gpu.Descriptor{
		"an element without its end":          {{Length: 63}},
		"an element without its beginning":    {{Place: 1, Length: 63}},
		"an element that goes on elsewhere":   {{Length: 63}, {Place: 64, Length: 64}},
		"an element that goes on in another":  {{Length: 63}, {Place: 63, Length: 1, Image: 1}},
		"an element that goes on in no slab":  {{Length: 63}, {Slab: 9, Place: 63, Length: 1}},
		"an element whose end is out of slab": {{Length: 63}, {Offset: half, Place: 63, Length: 1}},
	} {
		tensor, fault, err := k.gather(kernel, list, floats.TensorBytes(), 2)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !errors.Is(fault, gpu.ErrDescriptor) {
			t.Errorf("%s: not reported", name)
		}
		if !allGuard(tensor[floats.TensorBytes():]) {
			t.Errorf("%s: another image was written", name)
		}
	}
}

func allGuard(b []byte) bool { return bytes.Count(b, []byte{guard}) == len(b) }

// randomDescriptors launches with descriptors that a broken host might send. The
// device and the guards must survive.
func randomDescriptors(t *testing.T, b *harness) {
	k := newBench(t, b)
	for _, in := range []models.Input{
		floats,
		{Height: 16, Width: 16, Channels: 3, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.CHW},
		{Height: 16, Width: 16, Channels: 3, WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC},
		{Height: 9, Width: 9, Channels: 5, WireType: models.F16, WireLayout: models.CHW, TensorType: models.F32, TensorLayout: models.HWC},
	} {
		kernel, err := k.kernel(in, false)
		must.OK(t, err)
		for seed := range uint64(100) {
			random := rand.New(rand.NewPCG(seed, 3))
			near := func(limit int) int { return max(0, limit+pick(random, -limit, -1, 0, 1, limit)+random.IntN(5)-2) }
			list := make([]gpu.Descriptor, 1+random.IntN(600))
			for i := range list {
				list[i] = gpu.Descriptor{
					Slab: uint16(near(1)), Offset: uint64(near(slabBytes/2)) & (1<<48 - 1), Place: uint32(near(in.WireBytes())),
					Length: uint16(pick(random, near(0), near(4), near(64), near(gpu.FragmentBytes))), Image: uint16(near(2)),
				}
			}
			if _, _, err := k.gather(kernel, list, in.TensorBytes(), 2); err != nil {
				t.Fatalf("%s, seed %d: %v", kernel.Name(), seed, err)
			}
		}
		if err := kernel.Close(); err != nil {
			t.Error(err)
		}
	}
}
