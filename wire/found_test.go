package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
)

var exampleBox = Box{Class: 3, Score: 0.5, X0: 0.25, Y0: 0, X1: 1, Y1: 0.75}

func checkContent(t *testing.T, kind Kind, payload []byte, want Content) {
	t.Helper()
	var got Content
	if err := got.Decode(kind, payload); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: got %+v, %v, want %+v", kind, got, err, want)
	}
}

func TestPoints(t *testing.T) {
	boxes, points := []Box{exampleBox, exampleBoxes[0]}, []Point{{0.5, 0.25, 1}, {-1, 2, 0}, {}, {0.125, 1, 0.5}}
	payload := AppendPoints(nil, boxes, points, 2)
	checkContent(t, KindPoints, payload, Content{Boxes: boxes, Points: points, PerBox: 2})
	if want := PointsHead + 2*PointedSize(2); len(payload) != want {
		t.Errorf("%d bytes, want %d", len(payload), want)
	}
}

func TestMasks(t *testing.T) {
	mask := Mask{X: 1, Y: 2, Columns: 3, Rows: 3, Bits: []byte{0b10000001, 1}}
	payload := AppendMasked(AppendMasked(AppendMasksHead(nil, 5, 6), exampleBox, mask), exampleBox, Mask{Rows: 5, Columns: 2})
	want := []Mask{mask, {Rows: 5, Columns: 2, Bits: []byte{0, 0}}}
	checkContent(t, KindMasks, payload, Content{Boxes: []Box{exampleBox, exampleBox}, Masks: want, Rows: 5, Columns: 6})
	if want := MasksHead + MaskedSize(9) + MaskedSize(10); len(payload) != want {
		t.Errorf("%d bytes, want %d", len(payload), want)
	}
}

func TestPolygons(t *testing.T) {
	want := []Polygon{{Class: 7, Score: 0.75, Points: []Point{{X: 0.5, Y: 0.25}, {X: -1}, {Y: 2}}}, {Score: 1, Points: []Point{{X: 1, Y: 1}}}}
	payload := AppendPolygon(AppendPolygon(nil, 7, 0.75, want[0].Points), 0, 1, want[1].Points)
	checkContent(t, KindPolygons, payload, Content{Polygons: want})
	if want := PolygonSize(3) + PolygonSize(1); len(payload) != want {
		t.Errorf("%d bytes, want %d", len(payload), want)
	}
}

func TestMap(t *testing.T) {
	for _, c := range map[string]struct {
		cells []byte
		want  Map
	}{
		"classes": {AppendRun(AppendRun(nil, 5, 4), 300, 2), Map{Element: MapClasses, Classes: []uint16{5, 5, 5, 5, 300, 300}}},
		"u8":      {[]byte{0, 255, 51, 0, 0, 0}, Map{Element: MapU8, Values: []float32{0, 1, 0.2, 0, 0, 0}}},
		"f16":     {[]byte{0, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc0}, Map{Element: MapF16, Values: []float32{1, 0, 0, 0, 0, -2}}},
	} {
		c.want.Rows, c.want.Columns = 2, 3
		checkContent(t, KindMap, append(AppendMapHead(nil, c.want.Element, 2, 3), c.cells...), Content{Map: c.want})
	}
}

func TestText(t *testing.T) {
	checkContent(t, KindText, AppendText(nil, 0.5, []byte("Größe")), Content{Text: "Größe", TextScore: 0.5})
}

func TestTensors(t *testing.T) {
	checkContent(t, KindTensors, appendTensors(exampleTensors), Content{Tensors: exampleTensors})
	for _, c := range []struct {
		kind string
		data []byte
		want any
		json string
	}{
		{"bool", []byte{1, 0}, []bool{true, false}, "[true,false]"},
		{"i8", []byte{0xff}, []int8{-1}, "[-1]"},
		{"i16", []byte{0, 0x80}, []int16{-1 << 15}, "[-32768]"},
		{"i32", []byte{1, 0, 0, 0x80}, []int32{-1<<31 + 1}, "[-2147483647]"},
		{"i64", []byte{1, 0, 0, 0, 0, 0, 0, 0x80}, []int64{-1<<63 + 1}, "[-9223372036854775807]"},
		{"u8", []byte{200, 1}, []uint8{200, 1}, "[200,1]"},
		{"u16", []byte{1, 2}, []uint16{513}, "[513]"},
		{"u32", []byte{0, 0, 0, 0x80}, []uint32{1 << 31}, "[2147483648]"},
		{"u64", []byte{1, 0, 0, 0, 0, 0, 0, 0x80}, []uint64{1<<63 + 1}, "[9223372036854775809]"},
		{"f16", []byte{0, 0x3e, 0, 0x7c}, []float32{1.5, float32(math.Inf(1))}, "[1.5,null]"},
		{"bf16", []byte{0xc0, 0xbf}, []float32{-1.5}, "[-1.5]"},
		{"f32", []byte{0, 0, 0x80, 0x7f, 0, 0, 0x80, 0x3f}, []float32{float32(math.Inf(1)), 1}, "[null,1]"},
		{"f64", []byte{0, 0, 0, 0, 0, 0, 0xf8, 0x3f}, []float64{1.5}, "[1.5]"},
	} {
		tensor := Tensor{Name: "y", Type: c.kind, Shape: []int64{int64(len(c.data) / ElementBytes(c.kind))}, Data: c.data}
		if got := tensor.Values(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %T%v, want %T%v", c.kind, got, got, c.want, c.want)
		}
		text, err := tensor.MarshalJSON()
		if want := fmt.Sprintf(`{"name":"y","type":"%s","shape":%v,"data":%s}`, c.kind, tensor.Shape, c.json); err != nil || string(text) != want {
			t.Errorf("%s: %s, %v, want %s", c.kind, text, err, want)
		}
		checkContent(t, KindTensors, appendTensors([]Tensor{tensor}), Content{Tensors: []Tensor{tensor}})
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
		"tensor of an unknown type":     {KindTensors, []byte{13, 0, 0, 0}},
		"tensor without its name":       {KindTensors, []byte{0, 0, 2, 0, 'a'}},
		"tensor with a name not UTF-8":  {KindTensors, []byte{0, 0, 1, 0, 0xff, 1}},
		"tensor without its shape":      {KindTensors, []byte{0, 2, 0, 0, 1, 0, 0, 0, 1}},
		"tensor without its elements":   {KindTensors, AppendTensorHead(nil, "y", "f32", []int64{2})},
		"tensor of 2^96 elements":       {KindTensors, append(AppendTensorHead(nil, "y", "i8", []int64{1 << 31, 1 << 31, 1 << 31, 4}), make([]byte, 64)...)},
		"bytes behind the last tensor":  {KindTensors, append(appendTensors(exampleTensors), 0)},
		"too many tensors":              {KindTensors, bytes.Repeat([]byte{0, 0, 0, 0, 1}, MaxTensors+1)},
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
	f.Add(byte(KindTensors), appendTensors(exampleTensors))
	f.Add(byte(KindTensors), AppendTensorHead(nil, "none", "u64", []int64{1<<32 - 1, 1<<32 - 1, 0}))
	f.Add(byte(KindText), AppendText(nil, 1, []byte("ABC")))
	f.Fuzz(func(t *testing.T, kind byte, payload []byte) {
		if Kind(kind) == KindMap && (len(payload) < MapHead || payload[2] != 0 || payload[3] > 1) { // bound the memory
			return
		}
		accepted := Check(Kind(kind), payload) == nil
		var c Content
		err := c.Decode(Kind(kind), payload)
		again := payload
		switch Kind(kind) {
		case KindNone:
			accepted = len(payload) == 0
		case KindPoints:
			again = AppendPoints(nil, c.Boxes, c.Points, c.PerBox)
		case KindMasks:
			again = AppendMasksHead(nil, c.Rows, c.Columns)
			for i := range c.Boxes {
				again = AppendMasked(again, c.Boxes[i], c.Masks[i])
			}
		case KindPolygons:
			again = nil
			for _, p := range c.Polygons {
				again = AppendPolygon(again, p.Class, p.Score, p.Points)
			}
		case KindTensors:
			again = appendTensors(c.Tensors)
			for i := range c.Tensors {
				if v := &c.Tensors[i]; reflect.ValueOf(v.Values()).Len()*ElementBytes(v.Type) != len(v.Data) {
					t.Fatalf("%d bytes of %s", len(v.Data), v.Type)
				}
			}
		case KindText:
			again = AppendText(nil, c.TextScore, []byte(c.Text))
		}
		if accepted != (err == nil) {
			t.Fatalf("Check accepts: %v; decoder: %v", accepted, err)
		}
		if err == nil && !bytes.Equal(again, payload) {
			t.Fatalf("% x is written back as % x", payload, again)
		}
	})
}

func TestNarrow(t *testing.T) {
	low, other := exampleBox, exampleBox
	low.Score, other.Class = 0.25, 9
	boxes := []Box{exampleBox, other, low, exampleBox}
	points := []Point{{1, 2, 1}, {3, 4, 1}, {5, 6, 1}, {7, 8, 1}}
	corner := []Point{{X: 1}}
	mask := Mask{Columns: 3, Rows: 3, Bits: []byte{3, 1}}
	masked := AppendMasked(AppendMasked(AppendMasksHead(nil, 5, 6), low, Mask{Columns: 6, Rows: 5}), exampleBox, mask)
	wanted := func(class uint16, score float32) bool { return class == 3 && score >= 0.5 }
	for _, c := range []struct {
		kind          Kind
		payload, want []byte
	}{
		{KindBoxes, AppendBoxes(nil, boxes), AppendBoxes(nil, []Box{exampleBox, exampleBox})},
		{KindBoxes, nil, nil},
		{KindTopK, AppendTopK(nil, []Class{{3, 0.75}, {9, 0.5}, {3, 0.125}}), AppendTopK(nil, []Class{{3, 0.75}})},
		{KindPoints, AppendPoints(nil, boxes, points, 1), AppendPoints(nil, []Box{exampleBox, exampleBox}, []Point{points[0], points[3]}, 1)},
		{KindMasks, masked, AppendMasked(AppendMasksHead(nil, 5, 6), exampleBox, mask)},
		{KindPolygons, AppendPolygon(AppendPolygon(nil, 9, 1, nil), 3, 0.75, corner), AppendPolygon(nil, 3, 0.75, corner)},
		{KindPolygons, AppendPolygon(nil, 3, float32(math.NaN()), corner), nil},
		{KindText, AppendText(nil, 0.75, []byte("word")), AppendText(nil, 0.75, nil)},
		{KindEmbedding, []byte{0, 0, 128, 63}, []byte{0, 0, 128, 63}},
		{KindBoxes, []byte{1, 2, 3}, []byte{1, 2, 3}},
		{KindMasks, masked[:len(masked)-1], masked[:len(masked)-1]},
		{NumKinds, []byte{1}, []byte{1}},
	} {
		got := bytes.Clone(c.payload)
		if n := testing.AllocsPerRun(1, func() { got = Narrow(c.kind, got, wanted) }); n != 0 {
			t.Errorf("%v: %v allocations", c.kind, n)
		}
		if !bytes.Equal(got, c.want) {
			t.Errorf("%v: %x, want %x", c.kind, got, c.want)
		}
	}
}
