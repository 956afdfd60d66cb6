package wire

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// A picture twice as wide as high, letterboxed into a square.
var letterboxed = Place{X: 0, Y: 0.25, Width: 1, Height: 0.5}

// The middle of a picture three times as wide as high.
var cropped = Place{X: -1, Y: 0, Width: 3, Height: 1}

func TestPlaceBoxes(t *testing.T) {
	payload := AppendBoxes(nil, []Box{
		{Class: 1, Score: 0.9, X0: 0.25, Y0: 0.25, X1: 0.5, Y1: 0.5},
		{Class: 2, Score: 0.8, X0: 0, Y0: 0, X1: 1, Y1: 0.25}, // in the padding
		{Class: 3, Score: 0.7, X0: 0, Y0: 0, X1: 1, Y1: 1},
	})
	want := []Box{{Class: 1, Score: 0.9, X0: 0.25, Y0: 0, X1: 0.5, Y1: 0.5}, {Class: 3, Score: 0.7, X0: 0, Y0: 0, X1: 1, Y1: 1}}
	checkContent(t, KindBoxes, letterboxed.Append(nil, KindBoxes, payload), Content{Boxes: want})

	want = []Box{{Class: 3, Score: 0.7, X0: 0.375, Y0: 0, X1: 0.625, Y1: 1}}
	payload = AppendBoxes(nil, []Box{{Class: 3, Score: 0.7, X0: 0.125, Y0: 0, X1: 0.875, Y1: 1}})
	checkContent(t, KindBoxes, cropped.Append(nil, KindBoxes, payload), Content{Boxes: want})
}

func TestPlacePoints(t *testing.T) {
	box := Box{Score: 0.9, X0: 0, Y0: 0.25, X1: 1, Y1: 0.75}
	moved := Box{Score: 0.9, X0: 0, Y0: 0, X1: 1, Y1: 1}
	outside := Box{X0: 0, Y0: 0.8, X1: 1, Y1: 0.9}
	payload := AppendPoints(nil, []Box{outside, box}, []Point{{}, {}, {0.5, 0.5, 0.25}, {0, 0, 0.125}}, 2)
	want := Content{Boxes: []Box{moved}, Points: []Point{{0.5, 0.5, 0.25}, {0, -0.5, 0.125}}, PerBox: 2}
	checkContent(t, KindPoints, letterboxed.Append(nil, KindPoints, payload), want)
}

func TestPlacePolygons(t *testing.T) {
	payload := AppendPolygon(nil, 3, 0.5, []Point{{X: 0, Y: 0}, {X: 1, Y: 0.5}, {X: 0.5, Y: 1}})
	want := []Polygon{{Class: 3, Score: 0.5, Points: []Point{{X: 0, Y: -0.5}, {X: 1, Y: 0.5}, {X: 0.5, Y: 1.5}}}}
	checkContent(t, KindPolygons, letterboxed.Append(nil, KindPolygons, payload), Content{Polygons: want})
}

func TestPlaceMasks(t *testing.T) {
	// Rows 1 and 2 of four are in the picture. The mask has rows 0 to 2 of columns 1 and 2.
	box := Box{Score: 0.9, X0: 0.25, Y0: 0, X1: 0.75, Y1: 0.75}
	payload := AppendMasked(AppendMasksHead(nil, 4, 4), box, Mask{X: 1, Y: 0, Columns: 2, Rows: 3, Bits: []byte{0b01_10_11}})
	checkContent(t, KindMasks, letterboxed.Append(nil, KindMasks, payload), Content{
		Boxes: []Box{{Score: 0.9, X0: 0.25, Y0: 0, X1: 0.75, Y1: 1}}, Rows: 2, Columns: 4,
		Masks: []Mask{{X: 1, Y: 0, Columns: 2, Rows: 2, Bits: []byte{0b01_10}}},
	})
	// The input is the middle third.
	checkContent(t, KindMasks, cropped.Append(nil, KindMasks, payload), Content{
		Boxes: []Box{{Score: 0.9, X0: 1.25 / 3, Y0: 0, X1: 1.75 / 3, Y1: 0.75}}, Rows: 4, Columns: 12,
		Masks: []Mask{{X: 5, Y: 0, Columns: 2, Rows: 3, Bits: []byte{0b01_10_11}}},
	})
}

func TestPlaceMap(t *testing.T) {
	u8 := append(AppendMapHead(nil, MapU8, 4, 2), 0, 51, 102, 153, 204, 255, 0, 0)
	want := Map{Element: MapU8, Rows: 2, Columns: 2, Values: []float32{0.4, 0.6, 0.8, 1}}
	checkContent(t, KindMap, letterboxed.Append(nil, KindMap, u8), Content{Map: want})

	classes := AppendRun(AppendRun(AppendMapHead(nil, MapClasses, 4, 2), 7, 3), 9, 5)
	want = Map{Element: MapClasses, Rows: 2, Columns: 2, Classes: []uint16{7, 9, 9, 9}}
	checkContent(t, KindMap, letterboxed.Append(nil, KindMap, classes), Content{Map: want})

	left := Place{X: 0, Width: 2, Height: 1} // the input is the left half
	want = Map{Element: MapClasses, Rows: 4, Columns: 2, Classes: []uint16{7, 0, 9, 0, 9, 0, 9, 0}}
	checkContent(t, KindMap, left.Append(nil, KindMap, classes), Content{Map: want})
}

// Payloads of every kind stay valid for pictures of every place. A picture that is the input changes nothing.
func TestPlaceAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Float64Range(-2, 2)
		size := rapid.Float64Range(0.01, 4)
		place := Place{number.Draw(t, "x"), number.Draw(t, "y"), size.Draw(t, "width"), size.Draw(t, "height")}
		rows, columns := rapid.IntRange(0, 9).Draw(t, "rows"), rapid.IntRange(0, 9).Draw(t, "columns")
		x, y := rapid.IntRange(0, columns).Draw(t, "mask x"), rapid.IntRange(0, rows).Draw(t, "mask y")
		mask := Mask{X: uint16(x), Y: uint16(y), Columns: uint16(rapid.IntRange(0, columns-x).Draw(t, "mask columns")), Rows: uint16(rapid.IntRange(0, rows-y).Draw(t, "mask rows"))}
		classes := AppendMapHead(nil, MapClasses, rows, columns)
		for left := rows * columns; left > 0; {
			n := rapid.IntRange(1, left).Draw(t, "run")
			classes, left = AppendRun(classes, rapid.Uint16().Draw(t, "class"), n), left-n
		}
		for kind, payload := range map[Kind][]byte{
			KindTopK: AppendTopK(nil, []Class{{1, 0.5}}), KindText: AppendText(nil, 1, []byte("a")), KindRaw: {1, 2, 3, 4},
			KindBoxes: AppendBoxes(nil, []Box{exampleBox}), KindPoints: AppendPoints(nil, []Box{exampleBox}, []Point{{1, 2, 3}}, 1),
			KindMasks:    AppendMasked(AppendMasksHead(nil, rows, columns), exampleBox, mask),
			KindPolygons: AppendPolygon(nil, 1, 1, []Point{{X: 1}, {Y: 2}, {}}),
			KindMap:      classes,
		} {
			got := place.Append([]byte{1, 2, 3}, kind, payload)
			if err := Check(kind, got[3:]); err != nil || len(got)-3 > len(payload) && kind != KindMap {
				t.Fatalf("%s: % x, %v", kind, got, err)
			}
			if n := len(got) - 3 - MapHead; kind == KindMap && n > rows*columns*RunSize {
				t.Fatalf("%d runs in a map of %d cells", n/RunSize, rows*columns)
			}
			whole := Place{Width: 1, Height: 1}
			if got := whole.Append(nil, kind, payload); kind != KindMap && (kind != KindMasks || mask.Rows*mask.Columns > 0) && !bytes.Equal(got, payload) {
				t.Fatalf("%s: got % x, want % x", kind, got, payload)
			}
		}
	})
}
