package onnx

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/models"
)

// tensor is an input or output as the model declares it.
type tensor struct {
	name  string
	dtype string  // as models.DType where that has it
	dims  []int64 // -1: dynamic; empty where the model leaves the shape unsaid
}

func (t tensor) String() string {
	if len(t.dims) == 0 {
		return t.dtype + " of a shape left open"
	}
	return t.dtype + " " + shape(t.dims)
}

// shape prints dimensions, n for a dynamic one.
func shape(dims []int64) string {
	s := make([]string, len(dims))
	for i, d := range dims {
		s[i] = "n"
		if d >= 0 {
			s[i] = strconv.FormatInt(d, 10)
		}
	}
	return "[" + strings.Join(s, ", ") + "]"
}

// fits checks what a model declares against what its card says. The error names
// both.
func fits(card *models.Card, inputs, outputs []tensor) error {
	if len(inputs) != 1 {
		return fmt.Errorf("model takes %d inputs (%s); want one, of %s: a request is one picture", len(inputs), described(inputs), inputTypes)
	}
	if t := inputs[0]; !slices.Contains([]string{string(models.U8), string(models.F16), string(models.F32)}, t.dtype) {
		return fmt.Errorf("input %q is %s in the model; want %s: put a Cast in front of it", t.name, t, inputTypes)
	}
	in := &card.Input
	want := tensor{name: in.Name, dtype: string(in.TensorType), dims: append([]int64{-1}, in.Shape(1)[1:]...)}
	if err := matches("input", card, want, inputs); err != nil {
		return err
	}
	for i := range card.Outputs {
		o := &card.Outputs[i]
		want := tensor{name: o.Name, dtype: string(models.F32), dims: append([]int64{-1}, o.Shape...)}
		if err := matches("output", card, want, outputs); err != nil {
			return err
		}
	}
	return nil
}

// matches finds the tensor that the card wants and compares it: a dynamic
// dimension of the model takes any size, a fixed batch only itself.
func matches(kind string, card *models.Card, want tensor, have []tensor) error {
	i := slices.IndexFunc(have, func(t tensor) bool { return t.name == want.name })
	if i < 0 {
		return fmt.Errorf("model has no %s %q, which the card names; it has %s", kind, want.name, names(have))
	}
	got := have[i]
	same := got.dtype == want.dtype && (len(got.dims) == 0 || len(got.dims) == len(want.dims))
	for d := 1; same && d < len(got.dims); d++ {
		same = got.dims[d] < 0 || got.dims[d] == want.dims[d]
	}
	if !same {
		return fmt.Errorf("%s %q is %s in the model, %s in the card", kind, want.name, got, want)
	}
	if len(got.dims) > 0 && got.dims[0] >= 0 && (len(card.Batches) != 1 || got.dims[0] != int64(card.Batches[0])) {
		return fmt.Errorf("%s %q is %s in the model, fixed at batch %d; the card has batches %v, want [%d]: smaller batches are padded",
			kind, want.name, got, got.dims[0], card.Batches, got.dims[0])
	}
	return nil
}

// inputTypes are the element types that the gather writes.
const inputTypes = "u8, f16 or f32"

func described(ts []tensor) string {
	s := make([]string, len(ts))
	for i, t := range ts {
		s[i] = fmt.Sprintf("%q %s", t.name, t)
	}
	return strings.Join(s, ", ")
}

func names(ts []tensor) string {
	if len(ts) == 0 {
		return "none"
	}
	s := make([]string, len(ts))
	for i, t := range ts {
		s[i] = strconv.Quote(t.name)
	}
	return strings.Join(s, ", ")
}
