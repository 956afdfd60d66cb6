//go:build cgo

package onnx

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/onnxfile"
)

// cpu is the framework on a CPU. It has one session for all batch sizes, and no mechanism of
// the GPU path.
//
//	loadModel       reads the file, and which inputs it declares
//	linkModel       makes the session: the optimised graph, its weights, its threads
//	configureBatch  binds libml's buffers as the session's input and outputs
//	inferBatch      makes one call into C, without an allocation. It copies tensors whose batch is not on
//	                the first axis, and no others
//	deinit          releases bindings and session
type cpu struct {
	card    *models.Card
	threads int
	log     *slog.Logger
	model   fileMemory // from loadModel until linkModel
	session *ortSession
	inputs  []onnxfile.Value // that the model declares
	sized   []*cpu           // of the other sizes, with the same session

	mu      sync.RWMutex // guards batches
	batches map[key]*batch
}

func newCPU(env framework.Environment) *cpu {
	return &cpu{card: env.Card, threads: max(1, env.Threads), log: env.Log, batches: make(map[key]*batch)}
}

func (c *cpu) init() error {
	c.log.Debug("ONNX Runtime opened", "library", library.path, "onnxruntime", library.version, "threads", c.threads)
	return nil
}

func (c *cpu) loadModel() (err error) {
	if c.model, err = readPrivately(c.card.Model); err != nil {
		return fmt.Errorf("read model: %w", err)
	}
	if err := checkData(c.card); err != nil {
		return err
	}
	c.inputs, err = declaredInputs(c.card)
	return err
}

// identity is an ONNX model with y = Identity(x), of one f32 each.
const identity = "\b\b::\n\x10\n\x01x\x12\x01y\"\bIdentity\x12\x04tinyZ\x0f\n\x01x\x12\n\n\b\b\x01\x12\x04\n\x02\b\x01b\x0f\n\x01y\x12\n\n\b\b\x01\x12\x04\n\x02\b\x01B\x02\x10\r"

// firstSession makes ONNX Runtime allocate what it keeps for all sessions of a process (1.4 MB), so that linkModel does not count it
// as memory of the first model. The session of that model reports errors.
var firstSession = sync.OnceFunc(func() {
	if s, err := newCPUSession([]byte(identity), ".", 1); err == nil {
		s.free()
	}
})

// linkModel makes the session. ONNX Runtime does not report its memory. The bytes are the growth of allocated memory, which
// an old C library does not count, and at least the size of the model's file. They are too many if another session grows at
// the same time.
func (c *cpu) linkModel() (persistentBytes int64, err error) {
	firstSession()
	before := allocatedBytes()
	defer trim()
	if c.session, err = newCPUSession(c.model, filepath.Dir(c.card.Model), c.threads); err != nil {
		return 0, fmt.Errorf("make session of %s: %w", c.card.Model, summarize(c.card, err))
	}
	size := int64(len(c.model))
	c.model.free() // the session has a copy
	return max(size, allocatedBytes()-before), nil
}

// batch is the session's binding to the buffers of one batch.
type batch struct {
	binding binding
	pins    runtime.Pinner
	// before and after a run, tensors are copied whose images are not one after the other in the model.
	before, after []func()
	// ran is set by the first run, which measures ephemeral.
	ran       bool
	ephemeral int64
}

func (c *cpu) configureBatch(slot, n int, inputs, outputs []device.Buffer) (ephemeralBytes int64, err error) {
	b, err := c.bind(n, inputs, outputs)
	if err != nil {
		return 0, err
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.batches[key{slot, n}]; old != nil {
		b.ran, b.ephemeral = old.ran, old.ephemeral
		old.destroy()
	}
	c.batches[key{slot, n}] = b
	return b.ephemeral, nil
}

// bind binds the session to the buffers of a batch.
func (c *cpu) bind(n int, inputs, outputs []device.Buffer) (_ *batch, err error) {
	b := &batch{}
	ins, err := c.places(n, inputs, b)
	if err != nil {
		return nil, err
	}
	var outs []place
	for i, o := range c.card.OutputTensors() {
		data := outputs[i].Bytes()
		if outer, inner := interleaved(&o, n); o.Rows == nil && outer > 1 {
			model := make([]byte, len(data))
			b.after, data = append(b.after, (&transposition{data, model, outer, n, inner}).run), model
		}
		outs = append(outs, b.place(o.Name, o.Type, o.Batch(n), data, &o))
	}
	if b.binding, err = c.session.bind(ins, outs); err != nil {
		b.pins.Unpin()
		return nil, err
	}
	return b, nil
}

// places returns the inputs of a batch, with the constants.
func (c *cpu) places(n int, inputs []device.Buffer, b *batch) (places []place, err error) {
	for i, t := range c.card.InputTensors() {
		data := inputs[i].Bytes()
		if outer, inner := interleaved(&t, n); outer > 1 {
			model := make([]byte, len(data))
			b.before, data = append(b.before, (&transposition{model, data, n, outer, inner}).run), model
		}
		places = append(places, b.place(t.Name, t.Type, t.Batch(n), data, &t))
	}
	for name, values := range c.card.Constants {
		t := c.inputs[slices.IndexFunc(c.inputs, func(v onnxfile.Value) bool { return v.Name == name })]
		shape, data, err := models.Fill(t, values, n)
		if err != nil {
			return nil, err
		}
		places = append(places, b.place(name, models.DType(t.Type), shape, data, nil))
	}
	return places, nil
}

// place pins a tensor's memory until destroy.
func (b *batch) place(name string, t models.DType, shape []int64, data []byte, tensor *models.Tensor) place {
	if len(data) > 0 {
		b.pins.Pin(&data[0])
	}
	return place{name, cuda.At(data), len(data), shape, t, tensor}
}

// transposition copies rows · columns elements of some bytes each. Rows become columns.
type transposition struct {
	to, from             []byte
	rows, columns, bytes int
}

func (t *transposition) run() {
	for row := range t.rows {
		for column := range t.columns {
			copy(t.to[(column*t.rows+row)*t.bytes:][:t.bytes], t.from[(row*t.columns+column)*t.bytes:])
		}
	}
}

// interleaved returns how many parts of an image the model's tensor has apart from each other, and the bytes of
// each. It is one part if the images are one after the other.
func interleaved(t *models.Tensor, n int) (outer, inner int) {
	if n == 1 {
		return 1, t.Bytes()
	}
	before := models.Tensor{Type: t.Type, Shape: t.Shape[:t.BatchAxis]}
	outer = before.Elements()
	return outer, t.Bytes() / outer
}

func (b *batch) destroy() {
	b.binding.close()
	b.pins.Unpin()
}

// inferBatch runs a batch. Several threads may run one session, each with its own binding.
func (c *cpu) inferBatch(slot, n int) error {
	c.mu.RLock()
	b := c.batches[key{slot, n}]
	c.mu.RUnlock()
	if b == nil {
		return fmt.Errorf("batch of %d in slot %d is not configured", n, slot)
	}
	before := int64(0)
	if !b.ran {
		before = allocatedBytes()
	}
	err := b.run()
	if err != nil && !isAboutImages(err) {
		return summarize(c.card, err)
	}
	if !b.ran { // In the first run of a size, the arena grows to the size's needs.
		b.ephemeral, b.ran = max(0, allocatedBytes()-before), true
	}
	return err
}

func (b *batch) run() error {
	for _, prepare := range b.before {
		prepare()
	}
	err := b.binding.run(nil)
	if err == nil || isAboutImages(err) {
		for _, finish := range b.after {
			finish()
		}
	}
	return err
}

// demotable reports false: a CPU has no streams.
func (*cpu) demotable(slot, n int) bool { return false }

func (c *cpu) deinit() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sized {
		s.session = nil
		_ = s.deinit() // cannot fail
	}
	for _, b := range c.batches {
		b.destroy()
	}
	clear(c.batches)
	if c.session != nil {
		c.session.close()
		c.session = nil
	}
	c.model.free()
	trim()
	return nil
}
