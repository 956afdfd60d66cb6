package wire

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

var exampleBox = Box{Class: 3, Score: 0.5, X0: 0.25, Y0: 0, X1: 1, Y1: 0.75}

func TestPoints(t *testing.T) {
	boxes, points := []Box{exampleBox, exampleBoxes[0]}, []Point{{0.5, 0.25, 1}, {-1, 2, 0}, {}, {0.125, 1, 0.5}}
	payload := AppendPoints(nil, boxes, points, 2)
	gotBoxes, gotPoints, n, err := DecodePoints(payload)
	if err != nil || n != 2 || !reflect.DeepEqual(gotBoxes, boxes) || !reflect.DeepEqual(gotPoints, points) {
		t.Errorf("got %v %v %d, %v", gotBoxes, gotPoints, n, err)
	}
	if want := PointsHead + 2*PointedSize(2); len(payload) != want {
		t.Errorf("%d bytes, want %d", len(payload), want)
	}
}

func TestMasks(t *testing.T) {
	mask := Mask{X: 1, Y: 2, Columns: 3, Rows: 3, Bits: []byte{0b10000001, 1}}
	payload := AppendMasked(AppendMasked(AppendMasksHead(nil, 5, 6), exampleBox, mask), exampleBox, Mask{Rows: 5, Columns: 2})
	boxes, masks, rows, columns, err := DecodeMasks(payload)
	want := []Mask{mask, {Rows: 5, Columns: 2, Bits: []byte{0, 0}}}
	if err != nil || rows != 5 || columns != 6 || !reflect.DeepEqual(boxes, []Box{exampleBox, exampleBox}) || !reflect.DeepEqual(masks, want) {
		t.Errorf("got %v %v of %d x %d, %v", boxes, masks, rows, columns, err)
	}
	if want := MasksHead + MaskedSize(9) + MaskedSize(10); len(payload) != want {
		t.Errorf("%d bytes, want %d", len(payload), want)
	}
}

func TestPolygons(t *testing.T) {
	want := []Polygon{{Class: 7, Score: 0.75, Points: []Point{{X: 0.5, Y: 0.25}, {X: -1}, {Y: 2}}}, {Score: 1, Points: []Point{{X: 1, Y: 1}}}}
	payload := AppendPolygon(AppendPolygon(nil, 7, 0.75, want[0].Points), 0, 1, want[1].Points)
	if got, err := DecodePolygons(payload); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if want := PolygonSize(3) + PolygonSize(1); len(payload) != want {
		t.Errorf("%d bytes, want %d", len(payload), want)
	}
}

func TestMap(t *testing.T) {
	for name, c := range map[string]struct {
		cells []byte
		want  Map
	}{
		"classes": {AppendRun(AppendRun(nil, 5, 4), 300, 2), Map{Element: MapClasses, Classes: []uint16{5, 5, 5, 5, 300, 300}}},
		"u8":      {[]byte{0, 255, 51, 0, 0, 0}, Map{Element: MapU8, Values: []float32{0, 1, 0.2, 0, 0, 0}}},
		"f16":     {[]byte{0, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc0}, Map{Element: MapF16, Values: []float32{1, 0, 0, 0, 0, -2}}},
	} {
		c.want.Rows, c.want.Columns = 2, 3
		got, err := DecodeMap(append(AppendMapHead(nil, c.want.Element, 2, 3), c.cells...))
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

func TestText(t *testing.T) {
	if text, score, err := DecodeText(AppendText(nil, 0.5, []byte("Größe"))); err != nil || text != "Größe" || score != 0.5 {
		t.Errorf("got %q %v, %v", text, score, err)
	}
}

func TestCheckPayload(t *testing.T) {
	for name, c := range map[string]struct {
		kind    Kind
		payload []byte
	}{
		"points without their number":   {KindPoints, []byte{1}},
		"half a point":                  {KindPoints, AppendPoints(nil, []Box{exampleBox}, []Point{{}}, 1)[:30]},
		"no grid":                       {KindMasks, []byte{1, 0, 1}},
		"mask outside of the grid":      {KindMasks, AppendMasked(AppendMasksHead(nil, 2, 2), exampleBox, Mask{X: 1, Columns: 2, Rows: 1})},
		"mask without its bits":         {KindMasks, AppendMasked(AppendMasksHead(nil, 2, 2), exampleBox, Mask{Columns: 2, Rows: 2, Bits: []byte{}})},
		"polygon without its corners":   {KindPolygons, AppendPolygon(nil, 0, 0, make([]Point, 3))[:20]},
		"map of an unknown element":     {KindMap, AppendMapHead(nil, 3, 0, 0)},
		"map with too few cells":        {KindMap, append(AppendMapHead(nil, MapU8, 2, 2), 0, 0, 0)},
		"map with too many cells":       {KindMap, AppendRun(AppendMapHead(nil, MapClasses, 2, 2), 1, 5)},
		"map with runs of 2^32-1 cells": {KindMap, AppendRun(AppendRun(AppendMapHead(nil, MapClasses, 2, 2), 1, 1<<32-1), 1, 5)},
		"text that is not UTF-8":        {KindText, AppendText(nil, 0, []byte{0xff})},
		"text without a score":          {KindText, []byte("abc")},
		"no kind":                       {KindNone, []byte{1}},
		"unknown kind":                  {NumKinds, nil},
	} {
		if err := Check(c.kind, c.payload); !errors.Is(err, ErrPayload) {
			t.Errorf("%s: %v, want %v", name, err, ErrPayload)
		}
	}
}

// FuzzFound checks that what Check accepts can be decoded, and that boxes and outlines are encoded to the same
// bytes.
func FuzzFound(f *testing.F) {
	f.Add(byte(KindPoints), AppendPoints(nil, []Box{exampleBox}, []Point{{1, 2, 3}}, 1))
	f.Add(byte(KindMasks), AppendMasked(AppendMasksHead(nil, 2, 2), exampleBox, Mask{X: 1, Columns: 1, Rows: 2}))
	f.Add(byte(KindPolygons), AppendPolygon(nil, 7, 0.75, make([]Point, 4)))
	f.Add(byte(KindMap), AppendRun(AppendMapHead(nil, MapClasses, 2, 2), 1, 4))
	f.Add(byte(KindText), AppendText(nil, 1, []byte("ABC")))
	f.Fuzz(func(t *testing.T, kind byte, payload []byte) {
		accepted := Check(Kind(kind), payload) == nil
		var again []byte
		var err error
		switch Kind(kind) {
		case KindPoints:
			var boxes []Box
			var points []Point
			var n int
			if boxes, points, n, err = DecodePoints(payload); err == nil {
				again = AppendPoints(nil, boxes, points, n)
			}
		case KindMasks:
			var boxes []Box
			var masks []Mask
			var rows, columns int
			boxes, masks, rows, columns, err = DecodeMasks(payload)
			again = AppendMasksHead(nil, rows, columns)
			for i := range boxes {
				again = AppendMasked(again, boxes[i], masks[i])
			}
		case KindPolygons:
			var polygons []Polygon
			polygons, err = DecodePolygons(payload)
			for _, p := range polygons {
				again = AppendPolygon(again, p.Class, p.Score, p.Points)
			}
		case KindText:
			var text string
			var score float32
			text, score, err = DecodeText(payload)
			again = AppendText(nil, score, []byte(text))
		case KindMap:
			if len(payload) < MapHead || payload[2] != 0 || payload[3] > 1 { // bound the memory
				return
			}
			_, err = DecodeMap(payload)
			again = payload
		default:
			return
		}
		if accepted != (err == nil) {
			t.Fatalf("Check accepts: %v; decoder: %v", accepted, err)
		}
		if accepted && !bytes.Equal(again, payload) {
			t.Fatalf("% x is written back as % x", payload, again)
		}
	})
}
