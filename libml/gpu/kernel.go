package gpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/models"
)

func floatBits(f float32) uint32 { return math.Float32bits(f) }

// blocks is the maximum number of blocks of a launch. Sixteen read host memory at the
// full rate of PCIe if the conversion is cheap, thirty-two in any case, on as few as
// eight multiprocessors (docs/adr/0006-gather.md).
const blocks = 32

// Kernel is the gather kernel for one input, loaded in a context. It knows nothing
// of slots or requests; the caller keeps the arguments of its launches.
type Kernel struct {
	context  *cuda.Context
	plan     plan
	module   *module
	gather   cuda.Function
	fetch    cuda.Function
	channels cuda.Pointer
	slabs    []slab
}

type slab struct {
	at    cuda.Pointer
	bytes int
}

// NewKernel loads the kernel for an input. The calling thread must be bound to the
// context. For an input that libml/cpu rejects, the error is the same, cpu.ErrInput.
func NewKernel(context *cuda.Context, in models.Input) (*Kernel, error) {
	return newKernel(context, in, kernelOf(&in))
}

// NewGeneralKernel is NewKernel without the specialised kernels, for tests.
func NewGeneralKernel(context *cuda.Context, in models.Input) (*Kernel, error) {
	return newKernel(context, in, anyKernel(&in))
}

func newKernel(context *cuda.Context, in models.Input, name string) (_ *Kernel, err error) {
	// If the CPU cannot gather an input, no device can, for the same reasons.
	if _, err := cpu.New(in, nil); err != nil {
		return nil, err
	}
	if other := func(t models.DType) bool { return t != models.U8 && t != models.F16 && t != models.F32 }; name != copyKernel && (other(in.WireType) || other(in.TensorType)) {
		return nil, fmt.Errorf("%w on a GPU: %s becomes %s, want u8, f16 or f32; serve the function on a CPU, or list the tensor in inputs", cpu.ErrInput, in.WireType, in.TensorType)
	}
	k := &Kernel{context: context, plan: newPlan(&in)}
	k.plan.kernel = name
	defer func() {
		if err != nil {
			k.Close()
		}
	}()
	if k.module, err = loadModule(context, name, "fetch"); err != nil {
		return nil, err
	}
	if k.gather, err = k.module.Function(name); err != nil {
		return nil, err
	}
	if k.fetch, err = k.module.Function("fetch"); err != nil {
		return nil, err
	}
	if k.channels, err = context.Allocate(len(k.plan.channels)); err != nil {
		return nil, err
	}
	return k, k.upload()
}

// upload copies the channels to the device.
func (k *Kernel) upload() error {
	stage, err := k.context.AllocateHost(len(k.plan.channels))
	if err != nil {
		return err
	}
	copy(stage, k.plan.channels)
	stream, err := k.context.NewStream()
	if err == nil {
		if err = stream.Copy(k.channels, cuda.At(stage), len(stage)); err == nil {
			err = stream.Synchronize()
		}
		if e := stream.Destroy(); err == nil {
			err = e
		}
	}
	if e := k.context.FreeHost(stage); err == nil {
		err = e
	}
	return err
}

// Name returns the kernel's name in gather.cu.
func (k *Kernel) Name() string { return k.plan.kernel }

// AddSlab registers a slab for descriptors; its index is the number of slabs added
// before. The slab is bytes of memory that the device reads at an address. Earlier
// launches do not know the slab.
func (k *Kernel) AddSlab(at cuda.Pointer, bytes int) error {
	if len(k.slabs) == Slabs {
		return fmt.Errorf("add slab: already %d, which is the max of the kernel", Slabs)
	}
	k.slabs = append(k.slabs, slab{at, bytes})
	return nil
}

// Launch holds a launch's arguments. They are created once, and only one launch at a
// time may use them.
type Launch struct {
	kernel *Kernel
	args   *cuda.Args
	batch  []byte
	slabs  int
	fetch  *cuda.Args
}

// NewLaunch creates arguments whose faults go to fault: eight bytes that the device
// can write and that are 0 before a launch. FaultError decodes them.
func (k *Kernel) NewLaunch(fault cuda.Pointer) *Launch {
	l := &Launch{kernel: k, args: cuda.NewArgs(batchBytes), fetch: cuda.NewArgs(fetchBytes)}
	l.batch = l.args.Bytes(0)
	copy(l.batch, k.plan.batch[:])
	binary.LittleEndian.PutUint64(l.batch[atChannels:], uint64(k.channels))
	binary.LittleEndian.PutUint64(l.batch[atFault:], uint64(fault))
	return l
}

// setImage makes the copy kernel see its tensor as images of this many bytes.
func (l *Launch) setImage(bytes int) {
	binary.LittleEndian.PutUint32(l.batch[atWireBytes:], uint32(bytes))
}

// Gather queues the gather of count descriptors, which must lie in memory that the
// device can read. The tensor must have room for images and be aligned to 16 bytes.
// Descriptors and tensor are in use until the gather is done. Gather allocates nothing.
func (l *Launch) Gather(s cuda.Stream, descriptors cuda.Pointer, count int, tensor cuda.Pointer, images int) error {
	for ; l.slabs < len(l.kernel.slabs); l.slabs++ {
		slab := l.kernel.slabs[l.slabs]
		setSlab(l.batch, l.slabs, slab.at, slab.bytes)
	}
	binary.LittleEndian.PutUint64(l.batch[atDescriptors:], uint64(descriptors))
	binary.LittleEndian.PutUint64(l.batch[atTensor:], uint64(tensor))
	binary.LittleEndian.PutUint32(l.batch[atCount:], uint32(count))
	binary.LittleEndian.PutUint32(l.batch[atImages:], uint32(images))
	grid := uint32(min(blocks, (count+warps-1)/warps))
	return l.kernel.gather.Launch([3]uint32{grid, 1, 1}, [3]uint32{warps * 32, 1, 1}, 0, s, l.args)
}

// FetchPart sets part i of the copy that Fetch makes: from device memory to pinned
// host memory, each aligned to 16 bytes. There may be up to fetchParts parts.
func (l *Launch) FetchPart(i int, to, from cuda.Pointer, bytes int) {
	setFetchPart(l.fetch.Bytes(0), i, to, from, bytes)
}

// setFetchPart is FetchPart in the argument of the kernel.
func setFetchPart(parts []byte, i int, to, from cuda.Pointer, bytes int) {
	binary.LittleEndian.PutUint64(parts[atFrom+8*i:], uint64(from))
	binary.LittleEndian.PutUint64(parts[atTo+8*i:], uint64(to))
	binary.LittleEndian.PutUint64(parts[atBytes+8*i:], uint64(bytes))
}

// Fetch queues the copy of the first parts, with bytes in total. It allocates
// nothing.
func (l *Launch) Fetch(s cuda.Stream, parts, bytes int) error {
	binary.LittleEndian.PutUint32(l.fetch.Bytes(0)[atParts:], uint32(parts))
	const block = warps * 32
	grid := uint32(min(blocks, max(1, bytes/(lineBytes*block))))
	return l.kernel.fetch.Launch([3]uint32{grid, 1, 1}, [3]uint32{block, 1, 1}, 0, s, l.fetch)
}

// Close frees what NewKernel allocated; nothing may be in flight.
func (k *Kernel) Close() error {
	var errs []error
	if k.channels != 0 {
		errs = append(errs, k.context.Free(k.channels))
	}
	if k.module != nil {
		errs = append(errs, k.module.release())
	}
	k.channels, k.module = 0, nil
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	return nil
}
