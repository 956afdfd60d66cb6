package gpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
)

// Addresses of a launch in the interpreter.
const (
	slabAt        = 0x7f00_0000_0000
	descriptorsAt = 0x7f10_0000_0000
	faultAt       = 0x7f20_0000_0000
	tensorAt      = 0x0200_0000_0000
	channelsAt    = 0x0300_0000_0000
)

// gathering is a launch of an input's kernel in the interpreter.
type gathering struct {
	kernel      *program
	plan        plan
	slab        []byte
	descriptors []byte
	tensor      []byte
	fault       []byte
}

func newGathering(in models.Input, name string, slabBytes, images int) (*gathering, error) {
	kernel, err := parsed(name)
	if err != nil {
		return nil, err
	}
	g := &gathering{kernel: kernel, plan: newPlan(&in), slab: make([]byte, slabBytes), fault: make([]byte, 8)}
	g.tensor = bytes.Repeat([]byte{0xa5}, images*g.plan.imageBytes)
	return g, nil
}

func (g *gathering) add(d Descriptor) {
	g.descriptors = append(g.descriptors, make([]byte, DescriptorBytes)...)
	d.Put(g.descriptors[len(g.descriptors)-DescriptorBytes:])
}

// run launches at most that many blocks. It returns an error if the kernel accesses other memory than
// its own.
func (g *gathering) run(most int) error {
	count := len(g.descriptors) / DescriptorBytes
	parameter := bytes.Clone(g.plan.batch[:])
	put := func(at int, value uint64) { binary.LittleEndian.PutUint64(parameter[at:], value) }
	put(atDescriptors, descriptorsAt)
	put(atTensor, tensorAt)
	put(atFault, faultAt)
	put(atChannels, channelsAt)
	put(atCount, uint64(count)|uint64(len(g.tensor)/g.plan.imageBytes)<<32) // and atImages
	setSlab(parameter, 0, slabAt, len(g.slab))
	return g.kernel.launch(min(most, (count+warps-1)/warps), parameter, []region{
		{at: slabAt, bytes: g.slab, readOnly: true},
		{at: descriptorsAt, bytes: g.descriptors, readOnly: true},
		{at: channelsAt, bytes: g.plan.channels, readOnly: true},
		{at: tensorAt, bytes: g.tensor},
		{at: faultAt, bytes: g.fault},
	})
}

// TestPTX runs each kernel of gather.ptx in the interpreter. The tensors equal the definition's bit
// for bit, and no kernel accesses other memory.
func TestPTX(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 75))
	seen := map[string]bool{"fetch": true, "sample": true, "collect": true} // test/gpu runs the copy, TestPTXSample and TestPTXCollect the others
	for _, in := range ptxInputs(random) {
		for name := range map[string]bool{kernelOf(&in): true, anyKernel(&in): true} {
			for _, longest := range longestFragments(random, &in) {
				if err := gatherByPTX(random, in, name, longest); err != nil {
					t.Errorf("%s, %+v: %v", name, in, err)
				}
			}
			seen[name] = true
		}
	}
	for _, name := range allKernels() {
		if !seen[name] {
			t.Errorf("%s did not run", name)
		}
	}
}

// ptxInputs returns small inputs of all types and layouts, with each normalisation.
func ptxInputs(random *rand.Rand) (inputs []models.Input) {
	types, layouts := []models.DType{models.U8, models.F16, models.F32}, []models.Layout{models.HWC, models.CHW}
	var in models.Input
	add := func() {
		for _, in.TensorType = range types {
			for _, in.TensorLayout = range layouts {
				for _, std := range [][]float32{nil, {0.58395, 0.5712, 0.57375}, {0.58395, 0.5712, 1e-38}} { // as it is, multiplied, divided
					in.Width, in.ReverseChannels = 2+2*random.IntN(14), random.IntN(2) == 0
					in.Height, in.Mean, in.Std = 4+4*random.IntN(3), nil, nil
					if std != nil && in.Channels <= len(std) {
						in.Mean, in.Std = []float32{123.675, 116.28, 103.53}[:in.Channels], std[:in.Channels]
					}
					inputs = append(inputs, in)
				}
			}
		}
	}
	for _, in.WireType = range types {
		for _, in.WireLayout = range layouts {
			for _, in.Channels = range []int{3, 1 + 3*random.IntN(2)} {
				add()
			}
		}
	}
	return inputs
}

// longestFragments returns max lengths of fragments. Short ones cut most elements, but the interpreter
// needs a second for thousands of them.
func longestFragments(random *rand.Rand, in *models.Input) []int {
	long := []int{60, 300, 1450, FragmentBytes}[random.IntN(4)]
	if in.WireBytes() <= 600 {
		return []int{1 + random.IntN(8), long}
	}
	return []int{long}
}

// gatherByPTX gathers random pictures in fragments of up to longest bytes.
func gatherByPTX(random *rand.Rand, in models.Input, name string, longest int) error {
	size, images := in.WireBytes(), 1+random.IntN(2)
	g, err := newGathering(in, name, images*size*20+128, images)
	if err != nil {
		return err
	}
	var want []byte
	at := 0
	for image := range images {
		picture := make([]byte, size)
		for i := range picture {
			picture[i] = byte(random.Uint32())
			if in.WireType != models.U8 {
				picture[i] &= 0xbb // no NaNs and no infinities
			}
		}
		want = append(want, devicetest.Reference(in, picture)...)
		for place := 0; place < size; {
			n := min(1+random.IntN(longest), size-place)
			at += random.IntN(19)
			copy(g.slab[at:], picture[place:place+n])
			g.add(Descriptor{Offset: uint64(at), Place: uint32(place), Length: uint16(n), Image: uint16(image)})
			at, place = at+n, place+n
		}
	}

	// With one block each warp gathers many fragments.
	if err := g.run([]int{1, blocks}[random.IntN(2)]); err != nil {
		return err
	}
	if err := FaultError(binary.LittleEndian.Uint64(g.fault)); err != nil {
		return err
	}
	if !bytes.Equal(g.tensor, want) {
		differs := 0
		for g.tensor[differs] == want[differs] {
			differs++
		}
		return fmt.Errorf("fragments of up to %d bytes: byte %d of %d is %#x, want %#x", longest, differs, len(want), g.tensor[differs], want[differs])
	}
	return nil
}

// TestPTXBadDescriptors runs a kernel with descriptors that a broken host might send. A kernel
// accesses only its own memory and reports the descriptor.
func TestPTXBadDescriptors(t *testing.T) {
	in := models.Input{
		Height: 3, Width: 10, Channels: 3, WireType: models.F16, WireLayout: models.HWC, TensorType: models.F16, TensorLayout: models.CHW,
	}
	const slabBytes = 4096
	size := in.WireBytes()
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 3))
		near := func(limit int) int {
			return max(0, []int{0, 1, limit - 1, limit, limit + 1}[random.IntN(5)]+random.IntN(5)-2)
		}
		g, err := newGathering(in, kernelOf(&in), slabBytes, 2)
		must.OK(t, err)
		for range 1 + random.IntN(40) {
			g.add(Descriptor{
				Slab: uint16(near(1)), Offset: uint64(near(slabBytes)), Place: uint32(near(size)),
				Length: uint16([]int{near(4), near(size), near(FragmentBytes)}[random.IntN(3)]), Image: uint16(near(2)),
			})
		}
		if err := g.run(blocks); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}

	g, err := newGathering(in, kernelOf(&in), slabBytes, 1)
	must.OK(t, err)
	g.add(Descriptor{Length: 7})
	must.OK(t, g.run(blocks))
	if err := FaultError(binary.LittleEndian.Uint64(g.fault)); !errors.Is(err, ErrDescriptor) || !errors.Is(err, faultReasons[6]) {
		t.Errorf("an element without its end: %v", err)
	}
}
