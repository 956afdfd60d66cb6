//go:build cgo

// Package onnx is the framework "onnx": ONNX Runtime behind libml's six
// callbacks, on a CPU or a GPU. On a CPU:
//
//	Init            finds and opens libonnxruntime.so, once a process
//	LoadModel       reads the file, has ONNX Runtime parse it, holds it against the card
//	LinkModel       makes the session: the optimised graph, its weights, its threads
//	ConfigureBatch  binds libml's buffers as the session's input and outputs
//	InferBatch      one call into C: no copy, no allocation
//	Deinit          gives bindings and session back
//
// On a GPU gpu.go has the flow.
//
// Without cgo the package builds and Init says what is missing.
package onnx

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/models"
)

// Framework runs one model. The zero value is ready for Init.
type Framework struct {
	gpu *gpu // set by Init for a GPU; then nothing else is

	card    *models.Card
	threads int
	options *ort.SessionOptions
	model   []byte // the file, from LoadModel until LinkModel
	session *ort.DynamicAdvancedSession

	mu      sync.RWMutex // guards batches: InferBatch of two slots, ConfigureBatch
	batches map[key]*batch
}

var (
	_ libml.Framework = (*Framework)(nil)
	_ libml.Demotable = (*Framework)(nil)
)

// New returns a framework for one model.
func New() *Framework { return new(Framework) }

// key is a configured batch: a size in a slot.
type key struct{ slot, n int }

// batch is the session's binding to the buffers of one batch.
type batch struct {
	binding *ort.IoBinding
	tensors []*ort.CustomDataTensor
	pins    runtime.Pinner
	// ran is set by the first run, which has measured ephemeral.
	ran       bool
	ephemeral int64
}

// environment is ONNX Runtime's: one a process, and for its whole life, because
// the library does not survive being unloaded while its threads wind down.
var environment struct {
	mu   sync.Mutex
	path string // of the library, once it is open
}

// open opens ONNX Runtime, or finds it open.
func open() error {
	environment.mu.Lock()
	defer environment.mu.Unlock()
	if environment.path != "" {
		return nil
	}
	path, err := Library()
	if err != nil {
		return err
	}
	ort.SetSharedLibraryPath(path)
	// What is wrong comes back as an error, and is told once: as the error.
	if err := ort.InitializeEnvironment(ort.WithLogLevelFatal()); err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	environment.path = path
	return nil
}

// Init opens ONNX Runtime and sets the session's options.
func (f *Framework) Init(env libml.Environment) error {
	if err := open(); err != nil {
		return err
	}
	if env.Device != libml.DeviceCPU {
		f.gpu = newGPU(env)
		return f.gpu.init()
	}
	f.card, f.threads, f.batches = env.Card, max(1, env.Threads), make(map[key]*batch)
	options, err := newOptions(f.threads)
	if err != nil {
		return fmt.Errorf("set session options: %w", err)
	}
	f.options = options
	env.Log.Debug().Str("library", environment.path).Str("onnxruntime", ort.GetVersion()).Int("threads", f.threads).Msg("ONNX Runtime is open")
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
		// Threads that spin between two operators burn the CPU share that the
		// next batch needs.
		o.AddSessionConfigEntry("session.intra_op.allow_spinning", "0"),
		o.AddSessionConfigEntry("session.inter_op.allow_spinning", "0"),
		// A denormal costs a hundred cycles and changes no answer.
		o.AddSessionConfigEntry("session.set_denormal_as_zero", "1"),
	)
	if err != nil {
		return nil, errors.Join(err, o.Destroy())
	}
	return o, nil
}

// LoadModel reads the model's file and holds its inputs and outputs against the
// card.
func (f *Framework) LoadModel() (err error) {
	if f.gpu != nil {
		return f.gpu.loadModel()
	}
	f.model, _, _, err = readModel(f.card)
	return err
}

// readModel reads a card's model, with what it takes and gives, and checks that it fits
// the card.
func readModel(card *models.Card) (data []byte, inputs, outputs []tensor, err error) {
	if data, err = os.ReadFile(card.Model); err != nil {
		return nil, nil, nil, fmt.Errorf("read model: %w", err)
	}
	if inputs, outputs, err = declared(card); err != nil {
		return nil, nil, nil, fmt.Errorf("read model %s (%d bytes): %w", card.Model, len(data), brief(card, err))
	}
	if err := fits(card, inputs, outputs); err != nil {
		return nil, nil, nil, fmt.Errorf("model %s does not fit its card: %w", card.Model, err)
	}
	return data, inputs, outputs, nil
}

// declared parses the model, nothing of it optimised, and returns what it takes
// and gives.
func declared(card *models.Card) (inputs, outputs []tensor, err error) {
	options, err := newOptions(1)
	if err != nil {
		return nil, nil, err
	}
	defer options.Destroy()
	if err := options.SetGraphOptimizationLevel(ort.GraphOptimizationLevelDisableAll); err != nil {
		return nil, nil, err
	}
	in, out, err := ort.GetInputOutputInfoWithOptions(card.Model, options)
	if err != nil {
		return nil, nil, err
	}
	return tensors(in), tensors(out), nil
}

func tensors(infos []ort.InputOutputInfo) []tensor {
	out := make([]tensor, len(infos))
	for i, info := range infos {
		t := tensor{name: info.Name, dims: info.Dimensions, dtype: strings.ToLower(strings.TrimPrefix(info.DataType.String(), "ONNX_TENSOR_ELEMENT_DATA_TYPE_"))}
		for _, d := range []models.DType{models.U8, models.F16, models.F32} {
			if info.OrtValueType == ort.ONNXTypeTensor && info.DataType == elementType(d) {
				t.dtype = string(d)
			}
		}
		out[i] = t
	}
	return out
}

func elementType(t models.DType) ort.TensorElementDataType {
	switch t {
	case models.U8:
		return ort.TensorElementDataTypeUint8
	case models.F16:
		return ort.TensorElementDataTypeFloat16
	default: // models.F32: a card has no other
		return ort.TensorElementDataTypeFloat
	}
}

// LinkModel makes the session. The bytes are what the process grew by, at least
// the model's own: ONNX Runtime does not say what it holds.
func (f *Framework) LinkModel() (persistentBytes int64, err error) {
	if f.gpu != nil {
		return f.gpu.linkModel()
	}
	before := residentBytes()
	f.session, err = ort.NewDynamicAdvancedSessionWithONNXData(f.model, nil, nil, f.options)
	if err != nil {
		return 0, fmt.Errorf("make session of %s: %w", f.card.Model, brief(f.card, err))
	}
	size := int64(len(f.model))
	f.model = nil // the session has its own copy
	return max(size, residentBytes()-before), nil
}

// ConfigureBatch binds the buffers. It neither reads nor writes them.
func (f *Framework) ConfigureBatch(slot, n int, input []byte, outputs [][]byte) (ephemeralBytes int64, err error) {
	if f.gpu != nil {
		return f.gpu.configureBatch(slot, n, input, outputs)
	}
	in := &f.card.Input
	if len(input) != n*in.TensorBytes() || len(outputs) != len(f.card.Outputs) {
		return 0, fmt.Errorf("batch of %d: input has %d bytes and there are %d outputs, want %d and %d",
			n, len(input), len(outputs), n*in.TensorBytes(), len(f.card.Outputs))
	}
	binding, err := f.session.CreateIoBinding()
	if err != nil {
		return 0, fmt.Errorf("make binding: %w", err)
	}
	b := &batch{binding: binding}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.destroy())
		}
	}()
	t, err := b.tensor(in.Shape(n), input, elementType(in.TensorType))
	if err != nil {
		return 0, fmt.Errorf("make input %s: %w", in.Name, err)
	}
	if err := binding.BindInput(in.Name, t); err != nil {
		return 0, fmt.Errorf("bind input %s: %w", in.Name, err)
	}
	for i := range f.card.Outputs {
		o := &f.card.Outputs[i]
		if len(outputs[i]) != n*o.Bytes() {
			return 0, fmt.Errorf("batch of %d: output %s has %d bytes, want %d", n, o.Name, len(outputs[i]), n*o.Bytes())
		}
		t, err := b.tensor(append([]int64{int64(n)}, o.Shape...), outputs[i], ort.TensorElementDataTypeFloat)
		if err != nil {
			return 0, fmt.Errorf("make output %s: %w", o.Name, err)
		}
		if err := binding.BindOutput(o.Name, t); err != nil {
			return 0, fmt.Errorf("bind output %s: %w", o.Name, err)
		}
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.batches[key{slot, n}]; old != nil {
		b.ran, b.ephemeral = old.ran, old.ephemeral
		if err := old.destroy(); err != nil {
			return 0, fmt.Errorf("replace batch of %d: %w", n, err)
		}
	}
	f.batches[key{slot, n}] = b
	return b.ephemeral, nil
}

// tensor makes a tensor over a buffer, which stays pinned until destroy.
func (b *batch) tensor(shape []int64, data []byte, t ort.TensorElementDataType) (*ort.CustomDataTensor, error) {
	if len(data) > 0 {
		b.pins.Pin(&data[0])
	}
	tensor, err := ort.NewCustomDataTensor(shape, data, t)
	if err != nil {
		return nil, err
	}
	b.tensors = append(b.tensors, tensor)
	return tensor, nil
}

func (b *batch) destroy() error {
	err := b.binding.Destroy()
	for _, t := range b.tensors {
		err = errors.Join(err, t.Destroy())
	}
	b.pins.Unpin()
	return err
}

// Demotable is true on a GPU of batches that run as graphs.
func (f *Framework) Demotable(slot, n int) bool { return f.gpu != nil && f.gpu.demotable(slot, n) }

// InferBatch runs a batch. Batches in two slots may run at once: a session may be
// run from several threads, each with a binding of its own.
func (f *Framework) InferBatch(slot, n int) error {
	if f.gpu != nil {
		return f.gpu.inferBatch(slot, n)
	}
	f.mu.RLock()
	b := f.batches[key{slot, n}]
	f.mu.RUnlock()
	if b == nil {
		return fmt.Errorf("batch of %d in slot %d is not configured", n, slot)
	}
	if b.ran {
		return f.session.RunWithBinding(b.binding)
	}
	// The first run of a size makes the arena grow to what the size needs.
	before := residentBytes()
	if err := f.session.RunWithBinding(b.binding); err != nil {
		return brief(f.card, err)
	}
	b.ephemeral, b.ran = max(0, residentBytes()-before), true
	return nil
}

// Deinit gives bindings and session back; the library stays open.
func (f *Framework) Deinit() error {
	if f.gpu != nil {
		return f.gpu.deinit()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for k, b := range f.batches {
		errs = append(errs, b.destroy())
		delete(f.batches, k)
	}
	if f.session != nil {
		errs = append(errs, f.session.Destroy())
		f.session = nil
	}
	if f.options != nil {
		errs = append(errs, f.options.Destroy())
		f.options = nil
	}
	f.model = nil
	return errors.Join(errs...)
}

// brief puts an error of ONNX Runtime on one line and drops what its reader is
// told anyway: the wrapper's words and the file.
func brief(card *models.Card, err error) error {
	s := strings.Join(strings.Fields(err.Error()), " ")
	for _, words := range []string{
		"Error loading temporary session: ",
		"Error creating C session: ",
		"Error creating session: ",
		"Load model from " + card.Model + " failed:",
	} {
		s = strings.TrimPrefix(s, words)
	}
	return errors.New(s)
}
