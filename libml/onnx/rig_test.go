//go:build cgo

package onnx

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/cudatest"
	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// played is a backend with a model that runs on the fake driver. The model copies a batch from
// the inputs through scratch memory to the outputs, and launches a kernel in between.
type played struct {
	fill     cuda.Function
	weights  int    // bytes
	scratch  int    // bytes per image
	fromHost []byte // pinned; if not nil, a batch copies it to the first bytes of each output
	toHost   []byte // pinned; if not nil, a batch copies to it
	// once makes a session fill its weights with 5 in its first run. Each batch answers with
	// the weights.
	once bool
	// keeps makes a run never release its scratch memory.
	keeps bool
	// outside makes each batch also write to the weights' pool.
	outside bool
	// unmade returns the error of making a session, unqueued that of running it.
	unmade   func(settings) error
	unqueued func(settings) error
	// optimised is the optimised model. If it is nil, the model cannot be optimised.
	optimised []byte
	optimises int // calls of optimise

	mu       sync.Mutex
	sessions int        // that are not closed
	made     []settings // of all sessions
	ran      int        // calls of run
}

// session returns a non-nil interface with a nil pointer beside an error: callers must not use
// it.
func (b *played) session(model []byte, s settings, weights *pool) (session, error) {
	return b.newSession(s, weights)
}

func (b *played) newSession(s settings, weights *pool) (*playedSession, error) {
	if b.unmade != nil {
		if err := b.unmade(s); err != nil {
			return nil, err
		}
	}
	at := weights.allocate(b.weights)
	if at == 0 {
		return nil, &ortError{text: "no addresses"}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions++
	b.made = append(b.made, s)
	return &playedSession{b: b, s: s, weights: at}, nil
}

func (b *played) optimise(model []byte, s settings, weights *pool, file string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.optimises++
	if b.optimised == nil || len(model) == 0 || filepath.Dir(file) == "" {
		return nil, &ortError{text: "it cannot be saved"}
	}
	at := weights.allocate(b.weights)
	if at == 0 {
		return nil, &ortError{text: "no addresses"}
	}
	release(at)
	return b.optimised, nil
}

type playedSession struct {
	b       *played
	s       settings
	weights cuda.Pointer
	did     bool // the one-time work
}

func (s *playedSession) close() {
	release(s.weights)
	s.b.mu.Lock()
	s.b.sessions--
	s.b.mu.Unlock()
}

func (s *playedSession) bind(inputs, outputs []place) (binding, error) {
	args := cuda.NewArgs(8, 4, 4)
	args.SetUint32(2, 4)
	return &playedBinding{playedSession: s, inputs: inputs, outputs: outputs, args: args}, nil
}

type playedBinding struct {
	*playedSession
	inputs  []place
	outputs []place
	args    *cuda.Args
	errs    []error // scratch
}

func (b *playedBinding) close() {}

func (b *playedBinding) run(scratch *pool) error {
	b.b.mu.Lock()
	b.b.ran++
	b.b.mu.Unlock()
	if b.b.unqueued != nil {
		if err := b.b.unqueued(b.s); err != nil {
			return err
		}
	}
	n, largest := int(b.inputs[0].shape[0]), 0
	for _, in := range b.inputs {
		largest = max(largest, in.bytes)
	}
	at := scratch.allocate(max(n*b.b.scratch, largest) + 64)
	if at == 0 {
		return &ortError{text: "no addresses"}
	}
	if !b.b.keeps {
		defer release(at)
	}
	stream := b.s.stream
	b.args.SetPointer(0, at+cuda.Pointer(largest))
	one := [3]uint32{1, 1, 1}
	errs := append(b.errs[:0], b.b.fill.Launch(one, [3]uint32{4, 1, 1}, 0, stream, b.args))
	for k, o := range b.outputs {
		// Each image's output is the beginning of the input with the output's number, or of the last one.
		in := b.inputs[min(k, len(b.inputs)-1)]
		errs = append(errs, stream.Copy(at, in.at, in.bytes))
		each := in.bytes / n
		for i := range n {
			errs = append(errs, stream.Copy(o.at+cuda.Pointer(i*o.bytes/n), at+cuda.Pointer(i*each), o.bytes/n))
		}
		if b.b.fromHost != nil {
			errs = append(errs, stream.Copy(o.at, cuda.At(b.b.fromHost), len(b.b.fromHost)))
		}
	}
	if b.b.once {
		if !b.did {
			errs = append(errs, stream.Set(b.weights, 5, b.b.weights))
		}
		b.did = true
		for _, o := range b.outputs {
			errs = append(errs, stream.Copy(o.at, b.weights, o.bytes))
		}
	}
	if b.b.outside {
		errs = append(errs, stream.Set(b.weights, 1, 16))
	}
	if b.b.toHost != nil {
		errs = append(errs, stream.Copy(cuda.At(b.b.toHost), at, len(b.b.toHost)))
	}
	b.errs = errs
	return errors.Join(errs...)
}

// rig is a framework on the fake GPU, with a stream per slot.
type rig struct {
	t       *testing.T
	context *cuda.Context
	card    *models.Card
	played  *played
	gpu     *gpu
	f       *Framework // runs gpu
	streams [device.Slots]cuda.Stream
	log     bytes.Buffer
	ended   bool
}

func newRig(t *testing.T, b *played) *rig {
	t.Helper()
	return newRigIn(t, bound(t), b)
}

// newRigIn makes a rig in a context that others may use too.
func newRigIn(t *testing.T, c *cuda.Context, b *played) *rig {
	t.Helper()
	card := shipped(t, "fashion")
	card.Batches = []int{1, 2, 4}
	return newRigOf(t, c, b, card)
}

// newRigOf makes a rig for a card.
func newRigOf(t *testing.T, c *cuda.Context, b *played, card *models.Card) *rig {
	t.Helper()
	r := &rig{t: t, context: c, card: card, played: b}
	if err := open(); err != nil {
		t.Fatal(err)
	}
	module, err := c.Load(cudatest.PTX)
	if err != nil {
		t.Fatal(err)
	}
	if b.fill, err = module.Function("penstock_fill"); err != nil {
		t.Fatal(err)
	}
	for i := range r.streams {
		r.streams[i] = r.newStream()
	}
	b.weights, b.scratch = max(b.weights, 1), max(b.scratch, 1)
	r.gpu = newGPU(framework.Environment{
		Card: r.card, Threads: 2, Log: slog.New(zerolog.NewSlogHandler(zerolog.New(&r.log))), Device: "GPU-fake",
		Stream: func(slot int) uintptr { return r.streams[slot].Handle() },
	}, framework.Node{})
	r.f = &Framework{card: r.card, runner: r.gpu}
	r.gpu.backend, r.gpu.hide, r.gpu.preload = b, func() error { return nil }, func() error { return nil }
	r.gpu.ask = func(framework.Environment, *modelFile) (*answer.Reference, error) {
		return nil, errors.New("is not asked")
	}
	t.Cleanup(func() {
		cudafake.Reset()
		r.end()
		if b.sessions != 0 {
			t.Errorf("%d sessions are left", b.sessions)
		}
		if err := module.Unload(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) newStream() cuda.Stream {
	r.t.Helper()
	s, err := r.context.NewStream()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.Destroy() })
	return s
}

func (r *rig) end() {
	if r.ended {
		return
	}
	r.ended = true
	if err := r.f.Deinit(); err != nil {
		r.t.Errorf("deinit: %v", err)
	}
}

func (r *rig) loaded() *rig {
	r.t.Helper()
	if err := errors.Join(r.gpu.init(), r.f.LoadModel()); err != nil {
		r.t.Fatal(err)
	}
	return r
}

// linked loads the model and links every batch size, as if a size beside the smallest was
// configured.
func (r *rig) linked() *rig {
	r.t.Helper()
	return r.loaded().whole()
}

func (r *rig) whole() *rig {
	r.t.Helper()
	if _, err := r.f.LinkModel(); err != nil {
		r.t.Fatal(err)
	}
	if err := r.gpu.linkRest(r.card.MaxBatch()); err != nil {
		r.t.Fatal(err)
	}
	return r
}

// batchTensors are buffers of a batch on the device.
type batchTensors struct {
	inputs  []device.Buffer
	outputs []device.Buffer
}

func (r *rig) tensors(n int) batchTensors {
	r.t.Helper()
	at := func(size int) device.Buffer {
		p, err := r.context.Allocate(size)
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { r.context.Free(p) })
		return device.DeviceBuffer(uintptr(p), size)
	}
	var b batchTensors
	for _, in := range r.card.InputTensors() {
		b.inputs = append(b.inputs, at(n*in.Bytes()))
	}
	for i := range r.card.Outputs {
		b.outputs = append(b.outputs, at(n*r.card.Outputs[i].Bytes()))
	}
	return b
}

// fillWith fills the first input.
func (r *rig) fillWith(b batchTensors, value byte) {
	r.t.Helper()
	r.fill(b.inputs[0], value)
}

func (r *rig) fill(b device.Buffer, value byte) {
	r.t.Helper()
	s := cuda.Stream{}
	if err := errors.Join(s.Set(cuda.Pointer(b.Address()), value, b.Len()), s.Synchronize()); err != nil {
		r.t.Fatal(err)
	}
}

// output returns the first output.
func (r *rig) output(b batchTensors) []byte {
	r.t.Helper()
	return r.read(b.outputs[0])
}

func (r *rig) pinned(bytes int) []byte {
	r.t.Helper()
	host, err := r.context.AllocateHost(bytes)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { r.context.FreeHost(host) })
	return host
}

func (r *rig) read(b device.Buffer) []byte {
	r.t.Helper()
	host, err := r.context.AllocateHost(b.Len())
	if err != nil {
		r.t.Fatal(err)
	}
	defer r.context.FreeHost(host)
	s := cuda.Stream{}
	if err := errors.Join(s.Copy(cuda.At(host), cuda.Pointer(b.Address()), len(host)), s.Synchronize()); err != nil {
		r.t.Fatal(err)
	}
	return bytes.Clone(host)
}

func (r *rig) configure(slot, n int, b batchTensors) int64 {
	r.t.Helper()
	ephemeral, err := r.f.ConfigureBatch(slot, n, b.inputs, b.outputs)
	if err != nil {
		r.t.Fatal(err)
	}
	return ephemeral
}

func (r *rig) infer(slot, n int) {
	r.t.Helper()
	if err := errors.Join(r.f.InferBatch(slot, n), r.streams[slot].Synchronize()); err != nil {
		r.t.Fatal(err)
	}
}

func all(b []byte, value byte) bool {
	return len(b) > 0 && !slices.ContainsFunc(b, func(c byte) bool { return c != value })
}

// strict is a played backend with sessions that synchronize their stream in close, as ONNX
// Runtime's do. It notices a stream that was destroyed too early. The fake driver itself
// loses the device if memory in use is released.
type strict struct {
	*played
	fails func(settings) bool // reports whether a session fails, with work queued
	wrong []error             // of synchronizing
}

func (b *strict) session(model []byte, s settings, weights *pool) (session, error) {
	if b.fails != nil && b.fails(s) {
		const bytes = 4 * mebi
		at := weights.allocate(bytes)
		err := s.stream.Set(at, 1, bytes)
		release(at)
		return nil, errors.Join(err, &ortError{text: "bad allocation"})
	}
	made, err := b.newSession(s, weights)
	if err != nil {
		return nil, err
	}
	return &strictSession{made, b}, nil
}

type strictSession struct {
	*playedSession
	b *strict
}

func (s *strictSession) close() {
	if err := s.s.stream.Synchronize(); err != nil {
		s.b.wrong = append(s.b.wrong, err)
	}
	s.playedSession.close()
}
