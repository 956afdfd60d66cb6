package null

import (
	_ "embed"
	"fmt"
	"math"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
)

// ptx is made from null.cu by `make ptx`.
//
//go:embed null.ptx
var ptx []byte

// gpu is the part of the framework that computes on a GPU: kernels on a slot's stream write a
// batch's answers.
type gpu struct {
	context                     *cuda.Context
	module                      *cuda.Module
	digest, values, work, fault cuda.Function
	scratch                     cuda.Pointer // the slots' digests
	weights                     *cuda.Arena  // Behaviour.Allocate, after the digests; nil: none
	most                        int          // images of the largest batch
	faulty                      *cuda.Args
}

// openGPU loads the kernels and allocates memory. weights bytes in addition can be evicted, and then no
// batch can run.
func openGPU(name string, most int, weights int64) (_ *gpu, err error) {
	d, err := cuda.Find(name)
	if err != nil {
		return nil, err
	}
	g := &gpu{most: most, faulty: cuda.NewArgs(8)}
	if g.context, err = d.OpenContext(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	if err := g.context.Bind(); err != nil {
		return nil, err
	}
	if g.module, err = g.context.Load(ptx); err != nil {
		return nil, err
	}
	for name, f := range map[string]*cuda.Function{
		"null_digest": &g.digest, "null_values": &g.values, "null_spin": &g.work, "null_fault": &g.fault,
	} {
		if *f, err = g.module.Function(name); err != nil {
			return nil, err
		}
	}
	if weights > 0 {
		if g.weights, err = g.context.NewArena(g.scratchBytes() + int(weights)); err != nil {
			return nil, fmt.Errorf("allocate %d bytes: %w", weights, err)
		}
		g.scratch = g.weights.Pointer()
	} else if g.scratch, err = g.context.Allocate(g.scratchBytes()); err != nil {
		return nil, err
	}
	const nowhere = 8 // not an address of the device
	g.faulty.SetPointer(0, nowhere)
	return g, nil
}

const digestBytes = 4

func (g *gpu) scratchBytes() int { return device.Slots * g.most * digestBytes }

// evictableBytes is the memory of the weights.
func (g *gpu) evictableBytes() int64 {
	if g == nil || g.weights == nil {
		return 0
	}
	return int64(g.weights.Bytes())
}

// close frees everything and unbinds the context from the thread. It returns the first error.
func (g *gpu) close() (err error) {
	keep := func(e error) {
		if err == nil {
			err = e
		}
	}
	if g.weights != nil {
		keep(g.weights.Close())
	} else if g.scratch != 0 {
		keep(g.context.Free(g.scratch))
	}
	if g.module != nil {
		keep(g.module.Unload())
	}
	keep(g.context.Close())
	return err
}

// launches are a batch's kernels with their arguments.
type launches struct {
	gpu    *gpu
	images uint32
	digest *cuda.Args
	values []*cuda.Args // by output
	work   *cuda.Args   // nil: none
}

// The work of a batch is measured in the speed of an H200: all multiprocessors at their max clock,
// each with four warps' instructions per cycle. It is divided into blocks, which the device
// distributes over the multiprocessors of the stream. On half of them it takes twice as long.
const (
	workSMs      = 132
	workKHz      = 1_980_000
	perCycle     = 128 // operations of a multiprocessor
	workThreads  = 1024
	operations   = 64 // of a thread in one round of null_spin
	blocksPerSM  = 8
	workBlocks   = workSMs * blocksPerSM
	roundCycles  = workThreads * operations / perCycle // of a block that runs alone on a multiprocessor
	answerBlock  = 256                                 // threads, as in null.cu
	mostOfRounds = 1 << 31
)

// rounds returns how many rounds each block runs, so that all work takes d.
func rounds(d time.Duration) uint32 {
	cycles := d.Seconds() * workKHz * 1000 / blocksPerSM
	return uint32(min(max(1, cycles/roundCycles), mostOfRounds))
}

// prepare makes the launches of a batch of n in a slot.
func (g *gpu) prepare(card *models.Card, slot, n int, b batch, do *Behaviour) *launches {
	digests := g.scratch + cuda.Pointer(slot*g.most*digestBytes)
	l := &launches{gpu: g, images: uint32(n), digest: cuda.NewArgs(8, 4, 8)}
	l.digest.SetPointer(0, cuda.Pointer(b.inputs[0].Address()))
	l.digest.SetUint32(1, uint32(card.Input.TensorBytes()))
	l.digest.SetPointer(2, digests)
	for o, out := range b.outputs {
		a := cuda.NewArgs(8, 8, 4, 4, 4)
		a.SetPointer(0, digests)
		a.SetPointer(1, cuda.Pointer(out.Address()))
		a.SetUint32(2, uint32(card.Outputs[o].Elements()))
		a.SetUint32(3, uint32(o))
		if do.NaN {
			a.SetUint32(4, 1)
		}
		l.values = append(l.values, a)
	}
	if d := do.Spin + time.Duration(n)*do.SpinPerImage; d > 0 {
		const seed = 0.5
		l.work = cuda.NewArgs(4, 4, 8)
		l.work.SetUint32(0, rounds(d))
		l.work.SetUint32(1, math.Float32bits(seed))
		l.work.SetPointer(2, digests)
	}
	return l
}

// queue queues the batch on a stream, after a fault if the behaviour has one now. It allocates
// nothing.
func (l *launches) queue(stream cuda.Stream, fault bool) error {
	if fault {
		if err := l.gpu.fault.Launch([3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, stream, l.gpu.faulty); err != nil {
			return err
		}
	}
	if l.work != nil {
		if err := l.gpu.work.Launch([3]uint32{workBlocks, 1, 1}, [3]uint32{workThreads, 1, 1}, 0, stream, l.work); err != nil {
			return err
		}
	}
	grid, block := [3]uint32{l.images, 1, 1}, [3]uint32{answerBlock, 1, 1}
	if err := l.gpu.digest.Launch(grid, block, 0, stream, l.digest); err != nil {
		return err
	}
	for _, a := range l.values {
		if err := l.gpu.values.Launch(grid, block, 0, stream, a); err != nil {
			return err
		}
	}
	return nil
}
