//go:build cgo

package onnx

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/onnxfile"
)

// cpu is the framework on a CPU. It has one session for all batch sizes, and no mechanism of
// the GPU path.
//
//	init            sets the session's options
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
	options *ort.SessionOptions
	model   fileMemory // from loadModel until linkModel
	session *ort.DynamicAdvancedSession
	inputs  []onnxfile.Value // that the model declares
	sized   []*cpu           // of the other sizes, with the same session

	mu      sync.RWMutex // guards batches
	batches map[key]*batch
}

func newCPU(env framework.Environment) *cpu {
	return &cpu{card: env.Card, threads: max(1, env.Threads), log: env.Log, batches: make(map[key]*batch)}
}

func (c *cpu) init() error {
	options, err := newOptions(c.threads)
	if err != nil {
		return fmt.Errorf("set session options: %w", err)
	}
	c.options = options
	c.log.Debug("ONNX Runtime opened", "library", environment.path, "onnxruntime", ort.GetVersion(), "threads", c.threads)
	return nil
}

func newOptions(threads int) (*ort.SessionOptions, error) {
	o, err := ort.NewSessionOptions()
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		o.SetExecutionMode(ort.ExecutionModeSequential),
		o.SetIntraOpNumThreads(threads),
		o.SetInterOpNumThreads(1),
		o.SetMemPattern(false), // it keeps one block of memory per batch size, and is not faster
		// Threads that spin between two operators use the CPU time of the next batch.
		o.AddSessionConfigEntry("session.intra_op.allow_spinning", "0"),
		o.AddSessionConfigEntry("session.inter_op.allow_spinning", "0"),
		o.AddSessionConfigEntry("session.use_env_allocators", "1"), // shareArena
		// A denormal costs a hundred cycles and changes no answer.
		o.AddSessionConfigEntry("session.set_denormal_as_zero", "1"),
	)
	if err != nil {
		return nil, errors.Join(err, o.Destroy())
	}
	return o, nil
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

// linkModel makes the session. ONNX Runtime does not report its memory. The bytes are the growth of allocated memory, which
// an old C library does not count, and at least the size of the model's file. They are too many if another session grows at
// the same time.
func (c *cpu) linkModel() (persistentBytes int64, err error) {
	if err := c.options.AddSessionConfigEntry(folderKey, filepath.Dir(c.card.Model)); err != nil {
		return 0, fmt.Errorf("set folder of %s: %w", c.card.Model, err)
	}
	before := allocatedBytes()
	defer trim()
	in, out := c.names()
	c.session, err = ort.NewDynamicAdvancedSessionWithONNXData(c.model, in, out, c.options)
	if err != nil {
		return 0, fmt.Errorf("make session of %s: %w", c.card.Model, summarize(c.card, err))
	}
	size := int64(len(c.model))
	c.model.free() // the session has a copy
	return max(size, allocatedBytes()-before), nil
}

// names returns the session's inputs and outputs, for runs without a binding.
func (c *cpu) names() (inputs, outputs []string) {
	if c.inputs == nil {
		return nil, nil
	}
	for _, t := range c.inputs {
		inputs = append(inputs, t.Name)
	}
	for _, o := range c.card.OutputTensors() {
		outputs = append(outputs, o.Name)
	}
	return inputs, outputs
}

// batch is the session's binding to the buffers of one batch.
type batch struct {
	binding *ort.IoBinding
	tensors map[string]ort.Value
	pins    runtime.Pinner
	// before and after a run, tensors are copied whose images are not one after the other in the model, or that have no axes.
	before, after []func()
	// n images, with rows that depend on them (rows.go). inputs and outputs are the session's.
	n               int
	rows            []rowsOutput
	inputs, outputs []ort.Value
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
		if err := old.destroy(); err != nil {
			return 0, errors.Join(fmt.Errorf("replace batch of %d: %w", n, err), b.destroy())
		}
	}
	c.batches[key{slot, n}] = b
	return b.ephemeral, nil
}

// bind binds the session to the buffers of a batch.
func (c *cpu) bind(n int, inputs, outputs []device.Buffer) (_ *batch, err error) {
	binding, err := c.session.CreateIoBinding()
	if err != nil {
		return nil, fmt.Errorf("make binding: %w", err)
	}
	b := &batch{binding: binding, tensors: map[string]ort.Value{}, n: n, rows: rowsOutputs(c.card.OutputTensors(), device.Bytes(outputs))}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.destroy())
		}
	}()

	for i, t := range c.card.InputTensors() {
		data := inputs[i].Bytes()
		if len(t.Batch(n)) == 0 {
			return nil, fmt.Errorf("input %q has no axes in the model, so it is the same for all requests; want it in constants", t.Name)
		}
		if outer, inner := interleaved(&t, n); outer > 1 {
			model := make([]byte, len(data))
			b.before, data = append(b.before, (&transposition{model, data, n, outer, inner}).run), model
		}
		if err := b.bind(t.Name, t.Type, t.Batch(n), data, binding.BindInput); err != nil {
			return nil, fmt.Errorf("input %w", err)
		}
	}
	for name, values := range c.card.Constants {
		t := c.inputs[slices.IndexFunc(c.inputs, func(v onnxfile.Value) bool { return v.Name == name })]
		shape, data, err := models.Fill(t, values, n)
		if err != nil {
			return nil, err
		}
		if err := b.bind(name, models.DType(t.Type), shape, data, binding.BindInput); err != nil {
			return nil, fmt.Errorf("constant %w", err)
		}
	}
	for i, o := range c.card.OutputTensors()[:len(outputs)] { // observe binds none
		if o.Rows != nil {
			continue
		}
		data := outputs[i].Bytes()
		if outer, inner := interleaved(&o, n); outer > 1 {
			model := make([]byte, len(data))
			b.after, data = append(b.after, (&transposition{data, model, outer, n, inner}).run), model
		}
		if err := b.bind(o.Name, o.Type, o.Batch(n), data, binding.BindOutput); err != nil {
			return nil, fmt.Errorf("output %w", err)
		}
		if len(o.Batch(n)) == 0 {
			b.after = append(b.after, func() { copy(data, encoded(b.tensors[o.Name])) })
		}
	}
	in, out := c.names()
	for _, name := range in {
		b.inputs = append(b.inputs, b.tensors[name])
	}
	for _, name := range out {
		b.outputs = append(b.outputs, b.tensors[name]) // nil if it has rows
	}
	return b, nil
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

// bind binds a buffer as an input or output, with the binding's method.
func (b *batch) bind(name string, dtype models.DType, shape []int64, data []byte, bind func(string, ort.Value) error) error {
	t, err := b.tensor(shape, data, dtype)
	if err == nil {
		b.tensors[name] = t
		err = bind(name, t)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// tensor makes a tensor over a buffer, which stays pinned until destroy.
func (b *batch) tensor(shape []int64, data []byte, t models.DType) (tensor ort.Value, err error) {
	if len(shape) > 0 && len(data) > 0 {
		b.pins.Pin(&data[0])
	}
	return newTensor(t, shape, data)
}

// newTensor makes a tensor over a buffer. Without axes it has a copy of the data.
func newTensor(t models.DType, shape []int64, data []byte) (ort.Value, error) {
	element, known := elementTypes[t]
	switch scalar := scalars[t]; {
	case !known:
		return nil, fmt.Errorf("its type is %s, want numbers", t)
	case len(shape) > 0:
		return ort.NewCustomDataTensor(shape, data, element)
	case scalar == nil:
		return nil, fmt.Errorf("it has no axes and type %s, want another type", t)
	default:
		return scalar(data)
	}
}

// scalars make tensors without axes, which only constants and outputs are. They copy the data.
var scalars = map[models.DType]func(data []byte) (ort.Value, error){
	models.Bool: scalar[bool],
	models.I8:   scalar[int8], models.I16: scalar[int16], models.I32: scalar[int32], models.I64: scalar[int64],
	models.U8: scalar[uint8], models.U16: scalar[uint16], models.U32: scalar[uint32], models.U64: scalar[uint64],
	models.F32: scalar[float32], models.F64: scalar[float64],
}

func scalar[T ort.TensorData](data []byte) (ort.Value, error) {
	var v T
	if _, err := binary.Decode(data, binary.LittleEndian, &v); err != nil {
		return nil, err
	}
	return ort.NewScalar(v)
}

func (b *batch) destroy() error {
	err := b.binding.Destroy()
	for _, t := range b.tensors {
		err = errors.Join(err, t.Destroy())
	}
	b.pins.Unpin()
	return err
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
	err := b.run(c.session)
	if err != nil && !isAboutImages(err) {
		return summarize(c.card, err)
	}
	if !b.ran { // In the first run of a size, the arena grows to the size's needs.
		b.ephemeral, b.ran = max(0, allocatedBytes()-before), true
	}
	return err
}

func (b *batch) run(session *ort.DynamicAdvancedSession) (err error) {
	for _, prepare := range b.before {
		prepare()
	}
	var outputs []ort.Value
	if len(b.rows) > 0 {
		outputs = slices.Clone(b.outputs)
		err = session.Run(b.inputs, outputs)
	} else {
		err = session.RunWithBinding(b.binding)
	}
	if err != nil {
		return err
	}
	for _, finish := range b.after {
		finish()
	}
	err = splitRows(b.rows, b.n, func(output int) ([]int64, []byte) {
		return outputs[output].GetShape(), encoded(outputs[output])
	})
	for i := range b.rows {
		err = cmp.Or(outputs[b.rows[i].index].Destroy(), err)
	}
	return err
}

// demotable reports false: a CPU has no streams.
func (*cpu) demotable(slot, n int) bool { return false }

func (c *cpu) deinit() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, s := range c.sized {
		s.session = nil
		errs = append(errs, s.deinit())
	}
	for k, b := range c.batches {
		errs = append(errs, b.destroy())
		delete(c.batches, k)
	}
	if c.session != nil {
		errs = append(errs, c.session.Destroy())
		c.session = nil
	}
	if c.options != nil {
		errs = append(errs, c.options.Destroy())
		c.options = nil
	}
	c.model.free()
	trim()
	return errors.Join(errs...)
}
