package devicetest

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
)

// Select defines a selection, for one image. It sets the bits of the selected rows in bitmap, and copies what is read of
// them from outputs to results. There, the columns of a row are neighbours.
func Select(s device.Selection, outputs, results [][]byte, bitmap []byte) {
	at := func(t device.Table, row, column int) int {
		return 4 * (t.First + row*t.RowStride + column*t.ColumnStride)
	}
	clear(bitmap)
	for row := range s.Rows {
		selected := false
		for column := range s.Scores.Columns {
			v := math.Float32frombits(binary.LittleEndian.Uint32(outputs[s.Scores.Output][at(s.Scores, row, column):]))
			selected = selected || v >= s.Threshold || v-v != 0
		}
		if !selected {
			continue
		}
		bitmap[row/8] |= 1 << (row % 8)
		for _, t := range s.Read {
			for column := range t.Columns {
				copy(results[t.Output][4*(t.First+row*t.ResultStride()+column):][:4], outputs[t.Output][at(t, row, column):])
			}
		}
	}
}

// readsRows reports whether selected rows of an output are read, and no others.
func readsRows(list []device.Selection, output int) bool {
	return slices.ContainsFunc(list, func(s device.Selection) bool {
		return slices.ContainsFunc(s.Read, func(t device.Table) bool { return t.Output == output })
	})
}

// BitmapBytes is the size of an image's bitmap.
func BitmapBytes(s device.Selection) int { return (s.Rows + 31) / 32 * 4 }

// Selections returns outputs, in elements of an image, of which all but the last one have rows to select.
func Selections(random *rand.Rand) (outputs []int, list []device.Selection) {
	for range 1 + random.IntN(4) {
		rows, columns, others := 1+random.IntN(100), 1+random.IntN(90), 1+random.IntN(50)
		o := len(outputs)
		s := device.Selection{Rows: rows, Threshold: random.Float32() - 0.5}
		switch random.IntN(3) {
		case 0: // [others + columns, rows]
			outputs = append(outputs, rows*(others+columns))
			s.Scores = device.Table{Output: o, First: others * rows, Columns: columns, RowStride: 1, ColumnStride: rows}
			s.Read = []device.Table{{Output: o, Columns: others + columns, RowStride: 1, ColumnStride: rows}}
		case 1: // [rows, others + 1 + columns]
			all := others + 1 + columns
			outputs = append(outputs, rows*all)
			s.Scores = device.Table{Output: o, First: others, Columns: 1, RowStride: all, ColumnStride: 1}
			s.Read = []device.Table{{Output: o, Columns: all, RowStride: all, ColumnStride: 1}}
		case 2: // [rows, columns] and [rows, others]
			outputs = append(outputs, rows*columns, rows*others)
			s.Scores = device.Table{Output: o, Columns: columns, RowStride: columns, ColumnStride: 1}
			s.Read = []device.Table{s.Scores, {Output: o + 1, Columns: others, RowStride: others, ColumnStride: 1}}
		}
		list = append(list, s)
	}
	return append(outputs, 1+random.IntN(9)), list
}

// SelectedOutputs returns outputs for some images. In an image no row is selected, a few, or each.
func SelectedOutputs(random *rand.Rand, elements []int, list []device.Selection, images int) (outputs [][]byte) {
	thresholds := make([]float32, len(elements))
	for _, s := range list {
		thresholds[s.Scores.Output] = s.Threshold
	}
	special := []float32{0, float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}
	for o, n := range elements {
		var output []byte
		for range images {
			part := []float32{0, 0.001, 0.001, 1}[random.IntN(4)]
			for range n {
				v := thresholds[o] - 0.001 - random.Float32()
				if random.Float32() < part {
					v = thresholds[o] + special[random.IntN(len(special))]
				}
				output = binary.LittleEndian.AppendUint32(output, math.Float32bits(v))
			}
		}
		outputs = append(outputs, output)
	}
	return outputs
}

// selects compares with Select. A device may ignore selections.
func selects(t *testing.T, open Open) {
	random := rand.New(rand.NewPCG(5, 36))
	for range 30 {
		elements, list := Selections(random)
		most := 1 + random.IntN(4)
		sizes := sizesOf(small, most)
		sizes.Outputs, sizes.Selections = nil, list
		for _, n := range elements {
			sizes.Outputs = append(sizes.Outputs, 4*n*most)
		}
		target := newSizedBench(t, open, small, sizes)
		for slot := range device.Slots {
			have, images := target.tensors[slot], 1+random.IntN(most)
			outputs := SelectedOutputs(random, elements, list, most)
			var want [][]byte
			for o, output := range outputs {
				for i := range have.Results[o] {
					have.Results[o][i] = 0xa5
				}
				want = append(want, bytes.Clone(have.Results[o]))
				target.Write(have.Outputs[o], output) // on a CPU these are the results
			}
			must.OK(t, target.Fetch(slot, images))
			target.wait(t, slot)
			for i, s := range list {
				bitmaps := have.Selected
				if bitmaps == nil {
					break
				}
				size := BitmapBytes(s)
				bitmap := make([]byte, size)
				for image := range images {
					Select(s, ImageOf(outputs, elements, image), ImageOf(want, elements, image), bitmap)
					if got := bitmaps[s.Scores.Output][image*size:][:size]; !bytes.Equal(got, bitmap) {
						t.Fatalf("slot %d, image %d: selection %d has rows %x, want %x of %+v", slot, image, i, got, bitmap, s)
					}
				}
			}
			for o := range outputs {
				first := 4 * elements[o] * images
				if have.Selected == nil || !readsRows(list, o) {
					copy(want[o], outputs[o][:first])
				}
				if got := have.Results[o][:first]; !bytes.Equal(got, want[o][:first]) {
					t.Fatalf("slot %d: output %d of %d images differs; selections %+v", slot, o, images, list)
				}
			}
		}
		target.close(t)
	}
}

// ImageOf returns the part of an image.
func ImageOf(outputs [][]byte, elements []int, image int) (part [][]byte) {
	for o, n := range elements {
		part = append(part, outputs[o][4*n*image:][:4*n])
	}
	return part
}
