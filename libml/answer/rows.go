package answer

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/penstock/penstock/models"
)

// ErrMixed is returned by Rows.Compare if an answer depends on the other pictures of its batch.
var ErrMixed = errors.New("answers of a batch are mixed up")

// Rows compares the answers of a batch with those of each picture alone. A client must not get values of
// another client's picture. It would get them if the batch is not on the axis that the card names: the
// model's outputs are cut into one part per image there. It would also get them if the model computes
// with several images at once.
//
// The order of calls is Learn for each sample, Learn for the first sample again, then Compare.
type Rows struct {
	outputs []rowsOutput
	learned int
}

// rowsOutput is one output of the card.
type rowsOutput struct {
	name  string
	dtype models.DType
	alone [Samples][]float32
	// limit is the largest difference of equal values; infinite for an output that is not compared.
	limit float64
	// most is how many values of a picture may differ.
	most int
	// differ has a bit for each sample whose answers have differed.
	differ uint
	// half: the model computes in f16.
	half bool
}

// Two answers to one picture are equal up to a part of what answers to different pictures differ by. An
// f16 model on a GPU uses other kernels for other batch sizes: its answers differ by up to 0.06 of their
// largest value from the CPU's. Those of an f32 model differ by up to 3e-5.
const (
	partF16, partF32   = 0.25, 0.1
	floorF16, floorF32 = 1e-2, 1e-3 // of the largest value, if answers hardly differ
	// labelPart is the part of an output of whole numbers that may differ: rounding flips an arg max
	// of two classes that are equally likely.
	labelPart = 0.05
)

// NewRows returns a comparison for a card's outputs.
func NewRows(card *models.Card) *Rows {
	r := new(Rows)
	for _, t := range card.OutputTensors() {
		r.outputs = append(r.outputs, rowsOutput{name: t.Name, dtype: t.Type, half: card.Input.TensorType == models.F16})
	}
	return r
}

// Pictures returns the samples of a batch's images: an order of at least two different samples if images
// is at least two. Over all orders, each image gets each sample.
func Pictures(order, images int) []int {
	pictures := make([]int, images)
	for i := range pictures {
		mixed := bits.Reverse32(uint32(i)*2654435761) >> 8 // Knuth's multiplicative hash: no period of 3
		if i < Samples {
			mixed = uint32(i)
		}
		pictures[i] = int(mixed+uint32(order)) % Samples
	}
	return pictures
}

// Learn takes the answer of the next sample, alone in its batch: one image of each output.
func (r *Rows) Learn(image [][]byte) {
	for i := range r.outputs {
		o := &r.outputs[i]
		if r.learned < Samples {
			o.alone[r.learned] = Floats(o.dtype, image[i])
		} else {
			o.learnLimit(Floats(o.dtype, image[i]))
		}
	}
	r.learned++
}

// learnLimit computes what may differ. again is another answer to the first sample. If it differs, the model
// computes with random numbers, and the output is not compared.
func (o *rowsOutput) learnLimit(again []float32) {
	part, floor := partF32, floorF32
	if o.half {
		part, floor = partF16, floorF16
	}
	var largest, spread, random float64
	whole := true
	for i := range again {
		first := o.alone[0][i]
		random = max(random, difference(first, again[i]))
		for _, other := range o.alone {
			v := float64(other[i])
			whole = whole && v == math.Trunc(v)
			spread = max(spread, finite(difference(first, other[i])))
			largest = max(largest, finite(math.Abs(v)))
		}
	}
	if o.limit = max(part*spread, floor*largest); random > floor*largest {
		o.limit = math.Inf(1)
	}
	if whole {
		o.most = int(labelPart * float64(len(again)))
	}
}

// Random returns the names of the outputs that are not compared, because they change from run to run.
func (r *Rows) Random() (names []string) {
	for i := range r.outputs {
		if math.IsInf(r.outputs[i].limit, 1) {
			names = append(names, r.outputs[i].name)
		}
	}
	return names
}

// Compare returns ErrMixed if the answers of a batch differ from those of its pictures alone. outputs are
// the batch's. Answers to one of the samples may differ: rounding can change the order of two boxes
// that are equally good. So a call may return the error for a difference that an earlier call has seen.
func (r *Rows) Compare(outputs [][]byte, pictures []int) error {
	for i := range r.outputs {
		o := &r.outputs[i]
		each := len(outputs[i]) / len(pictures)
		for image, k := range pictures {
			if o.differs(k, outputs[i][image*each:][:each]) {
				o.differ |= 1 << k
			}
		}
		if bits.OnesCount(o.differ) > 1 {
			return fmt.Errorf("%w: output %q answers a picture in a batch of %d differently than alone; its batch must be on the axis batch_axis, and a picture's answer must not depend on other pictures",
				ErrMixed, o.name, len(pictures))
		}
	}
	return nil
}

func (o *rowsOutput) differs(sample int, image []byte) bool {
	if math.IsInf(o.limit, 1) {
		return false
	}
	count := 0
	got := Floats(o.dtype, image)
	for i, want := range o.alone[sample] {
		if got := got[i]; got != want && difference(want, got) > o.limit {
			if count++; count > o.most {
				return true
			}
		}
	}
	return false
}

// difference is infinite if one of the values is not a number and the other one is.
func difference(a, b float32) float64 {
	d := math.Abs(float64(a) - float64(b))
	switch {
	case a == b || a != a && b != b:
		return 0
	case math.IsNaN(d):
		return math.Inf(1)
	}
	return d
}

// finite returns 0 in place of an infinite value or of no number.
func finite(v float64) float64 {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	return v
}
