//go:build cgo

package onnx

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// gpu is the framework on a GPU. Its methods are the callbacks. They call the mechanisms in
// this order:
//
//	init            loads ONNX Runtime's CUDA provider, cuBLAS and cuDNN; calls nothing of CUDA
//	loadModel       finds the prepared model, or reads the file; has the CPU answer a picture
//	linkModel       opens the context; finds shared weights; links the smallest batch size
//	configureBatch  links all other sizes, at the first call for one of them; captures the
//	                batch over libml's buffers, moves the graph to the slot's stream, uploads it
//	inferBatch      launches the graph on the batch's stream, between copies of states
//	deinit          releases graphs, sessions, memory and context
type gpu struct {
	env     framework.Environment
	node    framework.Node
	backend backend
	hide    func() error // hides the compiler from the libraries
	preload func() error // loads the libraries
	ask     func(framework.Environment, *modelFile) (*answer.Reference, error)
	version func() string // of ONNX Runtime
	cache   string        // the folder of prepared models; empty: env's, or the user's

	file      modelFile
	reference *answer.Reference // nil until loadModel
	shared    sharedWeights

	context *cuda.Context // nil until linkModel
	stream  cuda.Stream   // runs no batches; fail asks it whether the device answers
	scratch [lanes]*pool
	joined  *lanePool     // nil outside a worker
	nhwc    bool          // the layout of the sizes that are linked next
	sizes   map[int]*size // that run as graphs, by batch size
	byNode  fallback

	mu      sync.RWMutex // guards what follows
	batches map[key]*launch
	order   order
}

// launch is a configured batch: an executable graph, or a binding that runs node by node.
type launch struct {
	executable *cuda.Executable
	hosts      *hosts // that the executable copies from

	binding binding // if executable is nil
	scratch *pool   // for binding

	ephemeral int64 // bytes of scratch memory
	// before and after each run, states are copied.
	before, after []transfer
}

// close releases the launch, which must not be in flight.
func (l *launch) close(in *cuda.Context) error {
	if l.executable == nil {
		l.binding.close()
		return nil
	}
	return errors.Join(l.executable.Destroy(), l.hosts.release(in))
}

func newGPU(env framework.Environment, node framework.Node) *gpu {
	if env.BatchStream == nil {
		env.BatchStream = env.Stream
	}
	return &gpu{
		env: env, node: node, backend: onnxRuntime{}, hide: hideCompiler, preload: loadProvider, ask: newReference, version: func() string { return library.version },
		batches: make(map[key]*launch), sizes: make(map[int]*size), byNode: newFallback(),
	}
}

// init loads what it can without touching the device.
func (g *gpu) init() error {
	if g.env.Stream == nil {
		return fmt.Errorf("device %q has no streams", g.env.Device)
	}
	for _, t := range append(g.env.Card.InputTensors(), g.env.Card.Outputs...) {
		if t.BatchAxis > 0 && g.env.Card.MaxBatch() > 1 {
			return fmt.Errorf("tensor %q has batch_axis %d, and larger batches than 1 of it run on a CPU only; want batches: [1]", t.Name, t.BatchAxis)
		}
	}
	// Each session has a handle of cuBLAS. On Hopper a handle takes 64 MB of workspace, as
	// much as ResNet-50's weights. With the 8 MB of other GPUs no measured model is slower.
	if os.Getenv(cublasVariable) == "" {
		if err := os.Setenv(cublasVariable, ":4096:2:16:8"); err != nil {
			return fmt.Errorf("set %s: %w", cublasVariable, err)
		}
	}
	if err := g.hide(); err != nil {
		g.env.Log.Warn("cannot keep cuDNN from compiling kernels; some models start slowly", "error", err)
	}
	return g.preload()
}

// cublasVariable sets the workspace of cuBLAS's handles: pairs of size in KiB and count.
const cublasVariable = "CUBLAS_WORKSPACE_CONFIG"

// loadModel finds the prepared model or reads the file, and sets the reference.
func (g *gpu) loadModel() (err error) {
	if g.sharesWeights() {
		if err := g.openPrepared(); err != nil || g.reference != nil {
			return err
		}
	}
	if _, err := g.file.read(g.env.Card); err != nil {
		return err
	}
	return g.askReference()
}

// linkModel opens the context and links the smallest batch size.
func (g *gpu) linkModel() (persistentBytes int64, err error) {
	if g.reference == nil {
		return 0, errors.New("link model: no model is loaded")
	}
	if err := g.open(); err != nil {
		return 0, g.fail("open GPU", err)
	}

	g.nhwc = prefersNHWC(g.env.Card)
	if err := g.share(); err != nil {
		return 0, g.fail("share the weights of "+g.env.Card.Model, err)
	}

	freeBefore, _, err := g.context.Memory()
	if err == nil {
		err = g.linkSmallest()
	}
	if err == nil {
		persistentBytes, err = g.heldBytes(freeBefore)
	}
	if err != nil {
		return 0, g.fail("link "+g.env.Card.Model, err)
	}
	return persistentBytes, nil
}

// open makes or joins the device's primary context, which libml's device uses too. It also
// makes the pools.
func (g *gpu) open() error {
	first, err := cuda.Find("cuda")
	if err != nil {
		return err
	}
	if g.context, err = first.OpenContext(); err != nil {
		return err
	}
	if err := g.context.Bind(); err != nil {
		return err
	}
	if err := startPools(); err != nil {
		return err
	}
	if g.stream, err = g.context.NewStream(); err != nil {
		return err
	}
	return g.openLanes()
}

// configureBatch prepares a batch. It disturbs no batch in flight: linking uses private
// memory, and a capture runs nothing.
func (g *gpu) configureBatch(slot, n int, inputs, outputs []device.Buffer) (ephemeralBytes int64, err error) {
	ins, outs := places(g.env.Card.InputTensors(), n, inputs), places(g.env.Card.OutputTensors(), n, outputs)
	if err := g.context.Bind(); err != nil {
		return 0, g.fail(fmt.Sprintf("prepare batch of %d", n), err)
	}

	l, err := g.newLaunch(slot, n, ins, outs)
	if err != nil {
		return 0, g.fail(fmt.Sprintf("prepare batch of %d in slot %d", n, slot), err)
	}

	err = g.releaseBatch(key{slot, n})
	g.mu.Lock()
	g.batches[key{slot, n}] = l
	g.mu.Unlock()
	if err != nil {
		return 0, g.fail(fmt.Sprintf("replace batch of %d in slot %d", n, slot), err)
	}
	return l.ephemeral, nil
}

func (g *gpu) newLaunch(slot, n int, ins, outs []place) (*launch, error) {
	if err := g.leaveStream(slot); err != nil {
		return nil, err
	}
	if g.sizes[n] == nil && !g.byNode.sizes[n] {
		if err := g.linkRest(n); err != nil {
			return nil, err
		}
	}
	if g.byNode.sizes[n] {
		return g.bindByNode(slot, n, ins, outs)
	}
	return g.uploadGraph(slot, g.sizes[n], ins, outs)
}

// inferBatch queues the batch on its stream.
func (g *gpu) inferBatch(slot, n int) error {
	g.mu.RLock()
	l, exclusive := g.batches[key{slot, n}], g.order.exclusive
	g.mu.RUnlock()
	if l == nil {
		return fmt.Errorf("batch of %d in slot %d is not configured", n, slot)
	}

	stream := cuda.StreamOf(g.env.BatchStream(slot))
	err := transferAll(stream, l.before)
	switch {
	case err != nil:
	case l.executable == nil:
		err = l.runByNode()
	case exclusive:
		err = g.launchInOrder(l.executable, stream)
	default:
		err = l.executable.Launch(stream)
	}
	if isAboutImages(err) {
		return cmp.Or(transferAll(stream, l.after), err)
	}
	if err == nil {
		err = transferAll(stream, l.after)
	}
	if err != nil {
		return g.fail(fmt.Sprintf("run batch of %d in slot %d", n, slot), err)
	}
	return nil
}

// demotable reports whether the batch is a graph: a session that runs node by node stays on
// its stream.
func (g *gpu) demotable(slot, n int) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	l := g.batches[key{slot, n}]
	return l != nil && l.executable != nil
}

// evictableBytes is the memory of weights that evict frees.
func (g *gpu) evictableBytes() int64 {
	if g.shared.resident == nil {
		return 0
	}
	return g.shared.resident.MemoryBytes()
}

// evict frees the memory of the weights. Their addresses stay, so sessions and graphs do too.
func (g *gpu) evict() error {
	if err := errors.Join(g.context.Bind(), g.shared.resident.Evict()); err != nil {
		return g.fail("evict weights of "+g.env.Card.Model, err)
	}
	return nil
}

// load brings the weights back.
func (g *gpu) load() error {
	if err := errors.Join(g.context.Bind(), g.shared.resident.Load()); err != nil {
		return g.fail("load weights of "+g.env.Card.Model, err)
	}
	return nil
}

// releaseBatch releases a configured batch, which must not be in flight.
func (g *gpu) releaseBatch(k key) error {
	g.mu.Lock()
	l := g.batches[k]
	delete(g.batches, k)
	g.mu.Unlock()
	if l == nil {
		return nil
	}
	return l.close(g.context)
}

func (g *gpu) deinit() error {
	g.reference, g.file.data = nil, nil
	g.shared.closeEntry()
	if g.context == nil {
		return nil
	}

	errs := []error{g.context.Bind()}
	for k := range g.batches {
		errs = append(errs, g.releaseBatch(k))
	}
	for _, s := range g.sizes {
		errs = append(errs, s.close())
	}
	clear(g.sizes)
	errs = append(errs, g.byNode.close(), g.closeLanes(), g.shared.close())
	if g.stream != (cuda.Stream{}) {
		errs = append(errs, g.stream.Destroy())
	}
	errs = append(errs, closeElsewhere(g.context))
	g.context = nil

	if err := errors.Join(errs...); err != nil {
		return g.fail("release GPU", err)
	}
	return nil
}

// places returns libml's buffers as tensors of n images.
func places(tensors []models.Tensor, n int, buffers []device.Buffer) (all []place) {
	for i, b := range buffers {
		t := &tensors[i]
		all = append(all, place{t.Name, cuda.Pointer(b.Address()), b.Len(), t.Batch(n), t.Type, t})
	}
	return all
}
