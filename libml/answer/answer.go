// Package answer compares answers of a model: a GPU's with the CPU's (Reference), and those of a batch
// with those of each picture alone (Rows).
//
// # A GPU's answers
//
// The framework onnx runs one picture of noise on the CPU when it loads a model. Later it runs the picture
// on the GPU, once per batch size. A GPU's libraries can compute wrong results without an error.
// cuBLAS 13.0 chooses its f16 kernels by the number of multiprocessors that it sees. Under
// an MPS percentage it sees fewer than the device has, and some of these kernels are wrong.
// PyTorch's matrix product is wrong in the same way. In a green context cuBLAS sees the whole
// device, and is right.
package answer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
)

// maxDistance is the largest distance of a right answer. The farthest right answers that
// were measured are at 0.06 (f16) and 3e-5 (f32). Most wrong ones are at 0.4 to infinity.
const maxDistance = 0.25

// Reference is a picture and the CPU's answer to it.
type Reference struct {
	Input   []byte      // one image of each input, as the gather writes it, without gaps
	Outputs [][]float32 // of the card's outputs; empty if the model does not run on the CPU
}

// Samples is the number of different samples.
const Samples = 3

// Sample returns the k-th picture, k < Samples, as the gather writes it to the input tensor. The first is
// noise. The others have broad stripes and dark noise, because a model may answer all noise alike. The
// picture's elements are bytes, also if the card has another type on the wire: random floats
// include infinities. Of a request of tensors, a sample has floats from -1 to 1, and integers of 0 and 1,
// because larger ones may be the number of nothing.
func Sample(card *models.Card, k int) ([]byte, error) {
	in, rng := card.Input, rand.New(rand.NewPCG(1, 2+uint64(k)))
	if len(in.Parts) > 0 {
		return sampleTensors(card.Inputs, rng), nil
	}
	in.WireType = models.U8
	picture := make([]byte, in.WireBytes())
	stripe, values := [Samples]int{1, len(picture)/8 + 1, 1}[k], [Samples]int{256, 256, 64}[k]
	for i := range picture {
		if i%stripe == 0 {
			picture[i] = byte(rng.IntN(values))
		} else {
			picture[i] = picture[i-1]
		}
	}

	tensor := make([]byte, in.TensorBytes())
	if err := cpu.Direct(in, picture, tensor); err != nil {
		return nil, fmt.Errorf("make a sample: %w", err)
	}
	return tensor, nil
}

func sampleTensors(tensors []models.Tensor, rng *rand.Rand) (data []byte) {
	for i := range tensors {
		t := &tensors[i]
		for range t.Elements() {
			v := float64(rng.IntN(2))
			if t.Type.IsFloat() {
				v = 2*rng.Float64() - 1
			}
			data = t.Type.Append(data, v)
		}
	}
	return data
}

// Digest returns the SHA-256 of a sample, or of a file of a prepared model.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// Floats returns the values of an output of this type.
func Floats(t models.DType, data []byte) []float32 {
	if t != models.F32 {
		data = t.AppendF32(nil, data)
	}
	values := make([]float32, len(data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return values
}

// Fits reports whether the answer has the sizes of the card's outputs. No answer fits every
// card.
func (r *Reference) Fits(card *models.Card) bool {
	if len(r.Outputs) == 0 {
		return true
	}
	if len(r.Outputs) != len(card.Outputs) {
		return false
	}
	for i := range r.Outputs {
		if len(r.Outputs[i]) != card.Outputs[i].Elements() {
			return false
		}
	}
	return true
}

// Compare returns device.ErrWrongAnswers if an image's values of one output differ from the CPU's. The
// batch has that many images of the sample. It accepts all values if there is no answer of
// the CPU.
func (r *Reference) Compare(output int, name string, batch []float32, images int) error {
	if output >= len(r.Outputs) {
		return nil
	}
	each := len(batch) / images
	for i := range images {
		if d := distance(r.Outputs[output], batch[i*each:(i+1)*each]); !(d <= maxDistance) {
			return fmt.Errorf("%w: output %s differs from the CPU's by %.2g of its largest value", device.ErrWrongAnswers, name, d)
		}
	}
	return nil
}

// distance returns the largest difference, divided by the largest wanted value. It is NaN if
// a value is NaN.
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
