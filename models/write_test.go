package models

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models/document"
)

// TestKeys reads cards again from their keys.
func TestKeys(t *testing.T) {
	const rowsCard = `name: rows
version: 1
framework: onnx
model: model.onnx
input: {name: x, size: [32, 32, 3], widths: [8, 32], fit: left, pad: [1, 2, 3], antialias: true, range: [4095], background: [1, 2, 3], colour: bgr, scale: 1/255, wire: {type: u8, layout: hwc}, tensor: {type: f32, layout: chw}}
state: {h: hn}
outputs:
  - {name: y, shape: [6], rows: {max: 100, batch_column: true}}
  - {name: z, shape: [2, 3], batch_axis: 1}
  - {name: hn, shape: [2, 1]}
batches: [1, 2]
slo: 1500ms
`
	const lengthsCard = `name: lengths
version: 1
framework: onnx
model: model.onnx
inputs: [{name: ids, type: i64, shape: [9]}, {name: one, shape: [1]}, {name: mask, shape: [9, 2]}]
lengths: [3, 6, 9]
pad_lengths: true
outputs: [{name: y, shape: [6]}]
slo: 1500ms
`
	written := map[string]bool{}
	for name, text := range map[string]string{"card": card, "boxCard": boxCard, "ownCard": ownCard, "speechCard": speechCard, "rowsCard": rowsCard, "lengthsCard": lengthsCard} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t)
			want, err := read(t, dir, text)
			must.OK(t, err)
			want.AutoBatches = false // keys have the sizes
			keys := want.Keys()
			for key := range keys {
				written[key] = true
			}
			if input, ok := keys["input"].(map[string]any); ok {
				for key := range input {
					written["input."+key] = true
				}
			}
			again, err := json.Marshal(keys)
			must.OK(t, err)
			got, err := read(t, dir, string(again))
			must.OK(t, err)
			if !got.Equal(want) {
				t.Errorf("read again from\n%s\n%+v, want\n%+v", again, got, want)
			}
		})
	}

	var all []string
	for _, k := range document.Keys(reflect.TypeFor[cardFile]()) {
		all = append(all, k.Name)
	}
	for _, k := range document.Keys(reflect.TypeFor[inputFile]()) {
		all = append(all, "input."+k.Name)
	}
	for _, key := range all {
		if !written[key] && key != "input.scale" { // it is in mean and std
			t.Errorf("no card was written with %s", key)
		}
	}
}
