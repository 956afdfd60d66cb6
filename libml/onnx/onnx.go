//go:build cgo

// Package onnx is the framework "onnx": ONNX Runtime behind libml's six callbacks, on a CPU
// (cpu.go) or on a GPU (gpu.go).
//
// The GPU path needs an ONNX Runtime for CUDA 13, and with it NVIDIA's driver 580 or later. It
// has eight mechanisms. Each file says when its mechanism is active:
//
//	size.go, link.go         one session per batch size
//	graph.go, lane.go        batches run as CUDA graphs, in two lanes
//	hosts.go                 pinned host memory that graphs copy from
//	layout.go                convolutions in NHWC
//	bynode.go                batches that run node by node, if a graph is not possible
//	state.go                 states of streams, between host and device
//	share.go, prepare.go     weights that processes share; prepared/ stores them
//	check.go                 answers compared with the CPU's; answer/ compares them
//
// All of them use ort.go (what the GPU path needs of ONNX Runtime). Both paths call its C API through session.go, api.go,
// ort_unsafe.go and shim.c.
//
// Without cgo the package builds, and Init returns ErrNoCgo.
package onnx

import (
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// Framework runs one model. The zero value is ready for Init.
type Framework struct {
	node   framework.Node
	card   *models.Card
	runner runner
}

// runner is the framework on one kind of device. Its methods are the callbacks of
// framework.Framework and framework.Demotable.
type runner interface {
	init() error
	loadModel() error
	linkModel() (persistentBytes int64, err error)
	configureBatch(slot, n int, inputs, outputs []device.Buffer) (ephemeralBytes int64, err error)
	inferBatch(slot, n int) error
	demotable(slot, n int) bool
	deinit() error
}

var (
	_ framework.Framework = (*Framework)(nil)
	_ framework.Demotable = (*Framework)(nil)
	_ framework.Evictable = (*Framework)(nil)
	_ framework.Resident  = (*Framework)(nil)
)

// New returns a framework for one model.
func New() *Framework { return new(Framework) }

// key names a configured batch: a size in a slot.
type key struct{ slot, n int }

// UseNode keeps what the node offers for Init.
func (f *Framework) UseNode(node framework.Node) { f.node = node }

// Init opens ONNX Runtime. On a GPU it also loads the libraries for CUDA.
func (f *Framework) Init(env framework.Environment) error {
	if err := open(); err != nil {
		return err
	}
	f.card = env.Card
	if env.Device == framework.DeviceCPU {
		f.runner = newCPU(env)
	} else {
		f.runner = newGPU(env, f.node)
	}
	return f.runner.init()
}

// LoadModel reads the model's file.
func (f *Framework) LoadModel() error { return f.runner.loadModel() }

// LinkModel makes the session, on a GPU that of the smallest batch size.
func (f *Framework) LinkModel() (persistentBytes int64, err error) { return f.runner.linkModel() }

// ConfigureBatch prepares a batch over these buffers. It neither reads nor writes them.
func (f *Framework) ConfigureBatch(slot, n int, inputs, outputs []device.Buffer) (ephemeralBytes int64, err error) {
	if err := framework.CheckBuffers(f.card, n, inputs, outputs); err != nil {
		return 0, err
	}
	return f.runner.configureBatch(slot, n, inputs, outputs)
}

// Demotable reports whether a configured batch runs as a graph on a GPU.
func (f *Framework) Demotable(slot, n int) bool { return f.runner.demotable(slot, n) }

// InferBatch runs a batch. Batches in different slots may run at once.
func (f *Framework) InferBatch(slot, n int) error { return f.runner.inferBatch(slot, n) }

// EvictableBytes returns the weights on a GPU, if the model's graph is prepared and
// Node.Evict is set.
func (f *Framework) EvictableBytes() int64 {
	if g, ok := f.runner.(*gpu); ok {
		return g.evictableBytes()
	}
	return 0
}

// Evict frees the memory of weights on a GPU.
func (f *Framework) Evict() error { return f.runner.(*gpu).evict() }

// Load copies weights to the GPU again.
func (f *Framework) Load() error { return f.runner.(*gpu).load() }

// Deinit releases everything except the library, which stays open.
func (f *Framework) Deinit() error {
	if f.runner == nil {
		return nil
	}
	return f.runner.deinit()
}
