package wire

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func TestPayloadRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Float32()
		classes := rapid.SliceOf(rapid.Custom(func(t *rapid.T) Class {
			return Class{Class: rapid.Uint16().Draw(t, "class"), P: number.Draw(t, "p")}
		})).Draw(t, "classes")
		boxes := rapid.SliceOf(rapid.Custom(func(t *rapid.T) Box {
			return Box{
				Class: rapid.Uint16().Draw(t, "class"), Score: number.Draw(t, "score"),
				X0: number.Draw(t, "x0"), Y0: number.Draw(t, "y0"), X1: number.Draw(t, "x1"), Y1: number.Draw(t, "y1"),
			}
		})).Draw(t, "boxes")
		values := rapid.SliceOf(number).Draw(t, "values")

		topk, boxed, raw := AppendTopK(nil, classes), AppendBoxes(nil, boxes), AppendRaw(nil, values)
		if len(topk) != ClassSize*len(classes) || len(boxed) != BoxSize*len(boxes) || len(raw) != 4*len(values) {
			t.Fatalf("sizes %d, %d, %d", len(topk), len(boxed), len(raw))
		}
		if got, err := DecodeTopK([]Class{}, topk); err != nil || !reflect.DeepEqual(got, classes) {
			t.Fatalf("top-k: got %v, %v; want %v", got, err, classes)
		}
		if got, err := DecodeBoxes([]Box{}, boxed); err != nil || !reflect.DeepEqual(got, boxes) {
			t.Fatalf("boxes: got %v, %v; want %v", got, err, boxes)
		}
		if got, err := DecodeRaw([]float32{}, raw); err != nil || !reflect.DeepEqual(got, values) {
			t.Fatalf("raw: got %v, %v; want %v", got, err, values)
		}
	})
}

func TestPayloadTruncated(t *testing.T) {
	for _, n := range []int{1, ClassSize - 1, ClassSize + 1, BoxSize - 1, BoxSize + 1} {
		b := make([]byte, n)
		if got, err := DecodeTopK(nil, b); err != ErrPayload || got != nil {
			t.Errorf("top-k of %d bytes: %v, %v", n, got, err)
		}
		if got, err := DecodeBoxes(nil, b); err != ErrPayload || got != nil {
			t.Errorf("boxes of %d bytes: %v, %v", n, got, err)
		}
		if n%4 == 0 {
			continue
		}
		if got, err := DecodeRaw(nil, b); err != ErrPayload || got != nil {
			t.Errorf("raw of %d bytes: %v, %v", n, got, err)
		}
	}
}
