//go:build cgo

package onnx

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	ort "github.com/yalue/onnxruntime_go"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/libml/onnx/signature"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/onnxfile"
)

// modelFile is a model's file with the inputs and outputs that it declares. The GPU path
// reads it only when it needs it: a prepared model replaces it.
type modelFile struct {
	mu              sync.Mutex // guards the others
	data            []byte     // nil until the first read
	inputs, outputs []signature.Tensor
}

// read returns the model's file. The first call reads it, and checks it against the card.
func (m *modelFile) read(card *models.Card) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data != nil {
		return m.data, nil
	}
	var err error
	m.data, m.inputs, m.outputs, err = readModel(card)
	return m.data, err
}

// readModel reads a card's model, with its declared inputs and outputs. It returns an error
// if the model does not fit the card.
func readModel(card *models.Card) (data []byte, inputs, outputs []signature.Tensor, err error) {
	if data, err = os.ReadFile(card.Model); err != nil {
		return nil, nil, nil, fmt.Errorf("read model: %w", err)
	}
	if err := checkData(card); err != nil {
		return nil, nil, nil, err
	}
	if inputs, outputs, err = checkedDeclared(card, len(data)); err != nil {
		return nil, nil, nil, err
	}
	return data, inputs, outputs, nil
}

// checkData returns an error if the model has weights in other files than when the card was read.
func checkData(card *models.Card) error {
	files, err := onnxfile.DataFiles(card.Model)
	if err == nil && !slices.Equal(files, card.Data) {
		err = fmt.Errorf("it has weights in the files %q now, and had %q; run `penstock if replace`", files, card.Data)
	}
	if err != nil {
		return fmt.Errorf("read model %s: %w", card.Model, err)
	}
	return nil
}

// checkedDeclared is declared, and returns an error if the model does not fit the card. bytes is the
// size of the file.
func checkedDeclared(card *models.Card, bytes int) (inputs, outputs []signature.Tensor, err error) {
	if inputs, outputs, err = declared(card); err != nil {
		return nil, nil, fmt.Errorf("read model %s (%d bytes): %w", card.Model, bytes, summarize(card, err))
	}
	return inputs, outputs, checkCard(card, inputs, outputs)
}

// fileMemory is a file's bytes outside the Go heap. A worker loads models often: on the heap, the files
// would stay in memory until the next garbage collection.
type fileMemory []byte

// readPrivately reads a file. It does not map the file, which another program may truncate at any time.
func readPrivately(name string) (_ fileMemory, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() == 0 {
		return nil, fmt.Errorf("file %s is empty", name)
	}
	memory, err := unix.Mmap(-1, 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for %s: %w", info.Size(), name, err)
	}
	read := fileMemory(memory)
	if _, err := io.ReadFull(f, read); err != nil {
		read.free()
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return read, nil
}

func (m *fileMemory) free() {
	if *m != nil {
		_ = unix.Munmap(*m) // it was mapped
		*m = nil
	}
}

// checkCard returns an error if a model with these inputs and outputs does not fit its card.
func checkCard(card *models.Card, inputs, outputs []signature.Tensor) error {
	if err := signature.Check(card, inputs, outputs); err != nil {
		return fmt.Errorf("model %s does not fit its card: %w", card.Model, err)
	}
	return nil
}

// declared has ONNX Runtime parse the model without optimising it, and returns its declared
// inputs and outputs.
func declared(card *models.Card) (inputs, outputs []signature.Tensor, err error) {
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

func tensors(infos []ort.InputOutputInfo) []signature.Tensor {
	out := make([]signature.Tensor, len(infos))
	for i, info := range infos {
		t := signature.Tensor{
			Name: info.Name, Dims: info.Dimensions,
			Type: strings.ToLower(strings.TrimPrefix(info.DataType.String(), "ONNX_TENSOR_ELEMENT_DATA_TYPE_")),
		}
		for d, element := range elementTypes {
			if info.OrtValueType == ort.ONNXTypeTensor && info.DataType == element {
				t.Type = string(d)
			}
		}
		out[i] = t
	}
	return out
}

// elementTypes are ONNX Runtime's numbers of types.
var elementTypes = map[models.DType]ort.TensorElementDataType{
	models.Bool: ort.TensorElementDataTypeBool,
	models.I8:   ort.TensorElementDataTypeInt8, models.I16: ort.TensorElementDataTypeInt16,
	models.I32: ort.TensorElementDataTypeInt32, models.I64: ort.TensorElementDataTypeInt64,
	models.U8: ort.TensorElementDataTypeUint8, models.U16: ort.TensorElementDataTypeUint16,
	models.U32: ort.TensorElementDataTypeUint32, models.U64: ort.TensorElementDataTypeUint64,
	models.F16: ort.TensorElementDataTypeFloat16, models.BF16: ort.TensorElementDataTypeBFloat16,
	models.F32: ort.TensorElementDataTypeFloat, models.F64: ort.TensorElementDataTypeDouble,
}
