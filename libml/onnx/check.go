//go:build cgo

package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/device/cpu"
	"github.com/penstock/penstock/models"
)

// Before it serves on a GPU, each batch size answers one picture of noise, and the
// answers are held against the CPU's, which LoadModel has made. It is there because
// a GPU's libraries can be wrong in silence: cuBLAS 13.0 chooses its f16 kernels by
// the number of multiprocessors that it sees, and where MPS shows it fewer than the
// device has, some of them compute nonsense (measured on an H200: ResNet-50 is wrong
// at 20, 30, 40, 60, 70 and 80 %, right at 10, 50 and above 90; PyTorch's matrix
// product likewise). A green context shows it the whole device, and is right.

// errWrongAnswers is returned by LinkModel and ConfigureBatch on a GPU if the model's answers are not
// the CPU's.
var errWrongAnswers = errors.New("model answers wrongly on this GPU")

// farthest is how far a value may be from the CPU's, for the largest of its output.
// Of models that are right the farthest were at 0.06 (f16) and 3e-5 (f32); of those
// that are wrong, most at 0.4 to infinity.
const farthest = 0.25

// reference is the sample and what the CPU answers to it.
type reference struct {
	input   []byte      // one image
	outputs [][]float32 // none where the CPU cannot say
}

// newReference runs a model on the CPU, once.
func newReference(env libml.Environment, model []byte) (_ *reference, err error) {
	card := env.Card
	f := New()
	env.Device, env.Stream = libml.DeviceCPU, nil
	env.Threads = 1 // a shadow loads while others serve
	if err := f.Init(env); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Deinit()) }()
	f.model = model
	if _, err := f.LinkModel(); err != nil {
		return nil, err
	}
	r := new(reference)
	if r.input, err = sample(card.Input); err != nil {
		return nil, err
	}
	// A model with a fixed batch has no batch of 1. Its first image is the sample, and
	// the others are zero.
	n := card.Batches[0]
	input := make([]byte, n*len(r.input))
	copy(input, r.input)
	var outputs [][]byte
	for i := range card.Outputs {
		outputs = append(outputs, make([]byte, n*card.Outputs[i].Bytes()))
	}
	if _, err := f.ConfigureBatch(0, n, input, outputs); err != nil {
		return nil, err
	}
	if err := f.InferBatch(0, n); err != nil {
		return nil, err
	}
	for i, o := range outputs {
		r.outputs = append(r.outputs, floats(o[:card.Outputs[i].Bytes()]))
	}
	return r, nil
}

func floats(data []byte) []float32 {
	values := make([]float32, len(data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return values
}

// sample is a picture of noise as the gather would write it, of bytes whatever comes
// over the wire: noise in floats has infinities in it.
func sample(in models.Input) ([]byte, error) {
	in.WireType = models.U8
	rng := rand.New(rand.NewPCG(1, 2))
	picture := make([]byte, in.WireBytes())
	for i := range picture {
		picture[i] = byte(rng.IntN(256))
	}
	tensor := make([]byte, in.TensorBytes())
	if err := cpu.Direct(in, picture, tensor); err != nil {
		return nil, fmt.Errorf("make a sample: %w", err)
	}
	return tensor, nil
}

// check has a batch of the sample run, by launch, over these tensors on the stream,
// and compares each image's answer.
func (r *reference) check(c *cuda.Context, stream cuda.Stream, in place, outs []place, launch func() error) (err error) {
	bytes := len(r.input)
	for _, o := range outs {
		bytes = max(bytes, o.bytes)
	}
	host, err := c.AllocateHost(bytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.FreeHost(host)) }()
	copy(host, r.input)
	n := in.bytes / len(r.input)
	for i := range n {
		if err := stream.Copy(in.at+cuda.Pointer(i*len(r.input)), cuda.At(host), len(r.input)); err != nil {
			return err
		}
	}
	if err := errors.Join(launch(), stream.Synchronize()); err != nil {
		return err
	}
	for k, o := range outs[:min(len(outs), len(r.outputs))] {
		if err := errors.Join(stream.Copy(cuda.At(host), o.at, o.bytes), stream.Synchronize()); err != nil {
			return err
		}
		got := floats(host[:o.bytes])
		each := len(got) / n
		for i := range n {
			if d := distance(r.outputs[k], got[i*each:(i+1)*each]); !(d <= farthest) {
				return fmt.Errorf("%w: output %s is %.2g of its largest value away from the CPU's", errWrongAnswers, o.name, d)
			}
		}
	}
	return nil
}

// distance is the largest difference for the largest value; NaN where there is one
// that is not wanted.
func distance(want, got []float32) float64 {
	var largest, worst float64
	for i := range want {
		largest = max(largest, math.Abs(float64(want[i])))
		if d := math.Abs(float64(got[i]) - float64(want[i])); d > worst || math.IsNaN(d) {
			worst = d
		}
	}
	if worst == 0 {
		return 0
	}
	return worst / largest
}
