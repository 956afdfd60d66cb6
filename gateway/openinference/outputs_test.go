package openinference

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// TestOutputs encodes two answers of each kind as JSON. Each has less than the other.
func TestOutputs(t *testing.T) {
	box := wire.Box{Class: 1, Score: 0.5, X0: 0.25, X1: 1, Y1: 0.5}
	corners := []wire.Point{{X: 0.5}, {X: 1, Y: 0.25}, {Y: 1}}
	for name, c := range map[string]struct {
		answers [2]wire.Content
		kind    wire.Kind
		decoder models.Decoder
		want    string
	}{
		"points": {
			[2]wire.Content{{Boxes: []wire.Box{box}, Points: []wire.Point{{X: 1, Y: 2, Score: 3}, {X: 4}}, PerBox: 2}, {PerBox: 2}},
			wire.KindPoints, models.Decoder{Name: "yolo", Params: map[string]any{"keypoints": []any{2, 3}}},
			`boxes[2 1 4]FP32[0.25,0,1,0.5,0,0,0,0] scores[2 1]FP32[0.5,0] classes[2 1]INT32[1,-1] points[2 1 2 3]FP32[1,2,3,4,0,0,0,0,0,0,0,0] labels[2 1]BYTES["dog",""]`,
		},
		"masks": {
			[2]wire.Content{
				{Rows: 2, Columns: 3},
				{Boxes: []wire.Box{box}, Masks: []wire.Mask{{X: 1, Y: 0, Columns: 2, Rows: 2, Bits: []byte{0b1011}}}, Rows: 2, Columns: 3},
			},
			wire.KindMasks, models.Decoder{Name: "yolo", Params: map[string]any{"masks": "m"}},
			`boxes[2 1 4]FP32[0,0,0,0,0.25,0,1,0.5] scores[2 1]FP32[0,0.5] classes[2 1]INT32[-1,1] masks[2 1 2 3]UINT8[0,0,0,0,0,0,0,1,1,0,0,1] labels[2 1]BYTES["","dog"]`,
		},
		"polygons": {
			[2]wire.Content{{Polygons: []wire.Polygon{{Class: 0, Score: 0.75, Points: corners}}}, {Polygons: []wire.Polygon{{Class: 1, Score: 0.5, Points: corners[:2]}}}},
			wire.KindPolygons, models.Decoder{Name: "polygons"},
			`corners[2 1 3 2]FP32[0.5,0,1,0.25,0,1,0.5,0,1,0.25,1,0.25] scores[2 1]FP32[0.75,0.5] classes[2 1]INT32[0,1] labels[2 1]BYTES["cat","dog"]`,
		},
		"map of classes": {
			[2]wire.Content{{Map: wire.Map{Rows: 1, Columns: 2, Classes: []uint16{1, 2}}}, {Map: wire.Map{Rows: 1, Columns: 2, Classes: []uint16{0, 0}}}},
			wire.KindMap, models.Decoder{Name: "map", Params: map[string]any{"cells": "classes"}},
			`map[2 1 2]INT32[1,2,0,0]`,
		},
		"map of numbers": {
			[2]wire.Content{{Map: wire.Map{Element: wire.MapU8, Rows: 1, Columns: 1, Values: []float32{0.5}}}, {Map: wire.Map{Element: wire.MapU8, Rows: 1, Columns: 1, Values: []float32{1}}}},
			wire.KindMap, models.Decoder{Name: "map", Params: map[string]any{"cells": "u8"}},
			`map[2 1 1]FP32[0.5,1]`,
		},
		"tensors": {
			[2]wire.Content{
				{Tensors: []wire.Tensor{{Name: "num", Type: "i64", Data: []byte{1, 0, 0, 0, 0, 0, 0, 0x80}}, {Name: "y", Type: "f16", Shape: []int64{2}, Data: []byte{0, 0x3c, 0, 0x7c}}}},
				{Tensors: []wire.Tensor{{Name: "num", Type: "i64", Data: []byte{2, 0, 0, 0, 0, 0, 0, 0}}, {Name: "y", Type: "f16", Shape: []int64{2}, Data: []byte{0, 0xc0, 0, 0}}}},
			},
			wire.KindTensors, models.Decoder{Name: "raw"}, `num[2]INT64[-9223372036854775807,2] y[2 2]FP16[1,null,-2,0]`,
		},
		"text":      {[2]wire.Content{{Text: "ß", TextScore: 0.5}, {}}, wire.KindText, models.Decoder{Name: "text"}, `text[2]BYTES["ß",""] scores[2]FP32[0.5,0]`},
		"embedding": {[2]wire.Content{{Values: []float32{1, 0}}, {Values: []float32{0, 1}}}, wire.KindEmbedding, models.Decoder{Name: "embedding"}, `embedding[2 2]FP32[1,0,0,1]`},
	} {
		t.Run(name, func(t *testing.T) {
			card := &models.Card{Labels: []string{"cat", "dog"}, Decoder: c.decoder}
			for _, o := range c.answers[0].Tensors {
				card.Outputs = append(card.Outputs, models.Tensor{Name: o.Name, Type: models.DType(o.Type), Shape: o.Shape})
			}
			tensors, err := Outputs(card, []Answer{{c.kind, c.answers[0]}, {c.kind, c.answers[1]}})
			must.OK(t, err)
			body, _, err := EncodeResponse(&Request{}, "f", "1", nil, tensors)
			must.OK(t, err)
			var response struct {
				Outputs []struct {
					Name, Datatype string
					Shape          []int64
					Data           json.RawMessage
				}
			}
			must.OK(t, json.Unmarshal(body, &response))
			var got []string
			for _, o := range response.Outputs {
				shape, err := json.Marshal(o.Shape)
				must.OK(t, err)
				got = append(got, o.Name+strings.ReplaceAll(string(shape), ",", " ")+o.Datatype+string(o.Data))
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}

			described := Describe("f", card).Outputs
			if len(described) != len(response.Outputs) {
				t.Fatalf("described %+v", described)
			}
			for i, o := range response.Outputs {
				if d := described[i]; d.Name != o.Name || d.Datatype != o.Datatype || len(d.Shape) != len(o.Shape) {
					t.Errorf("described as %+v, answered as %s %s %v", d, o.Name, o.Datatype, o.Shape)
				}
			}
		})
	}
	if _, err := Outputs(&models.Card{}, []Answer{{Kind: wire.KindText}, {Kind: wire.KindMap}}); err == nil {
		t.Error("answers of two kinds are one response")
	}
	y := func(kind string) Answer {
		return Answer{wire.KindTensors, wire.Content{Tensors: []wire.Tensor{{Name: "y", Type: kind, Data: make([]byte, 2)}}}}
	}
	if _, err := Outputs(&models.Card{}, []Answer{y("i16"), y("f16")}); err == nil {
		t.Error("answers of two types are one output")
	}
	tensors, err := Outputs(&models.Card{}, []Answer{y("i16"), y("i16")})
	must.OK(t, err)
	body, length, err := EncodeResponse(&Request{binary: true}, "f", "1", nil, tensors)
	if must.OK(t, err); length == 0 || string(body[length:]) != "\x00\x00\x00\x00" {
		t.Errorf("binary: %q", body)
	}
}

// TestClassification asks for the best classes of an output.
func TestClassification(t *testing.T) {
	card := &models.Card{Labels: []string{"cat", "dog"}}
	ranked := []Tensor{{"scores", []int64{2, 2}, []float32{0.75, 0.25, 0.5, 0}}, {"classes", []int64{2, 2}, []int32{1, 7, 0, noClass}}}
	for name, c := range map[string]struct {
		outputs     []Tensor
		asked, want string
	}{
		"places":    {[]Tensor{{"y", []int64{1, 3}, []float32{0.25, 2, 0.5}}}, `{"name":"y","parameters":{"classification":2}}`, `"shape":[1,2],"datatype":"BYTES","data":["2.000000:1:dog","0.500000:2"]`},
		"classes":   {ranked, `{"name":"scores","parameters":{"classification":9}}`, `"shape":[2,2],"datatype":"BYTES","data":["0.750000:1:dog","0.250000:7","0.500000:0:cat",""]`},
		"own names": {[]Tensor{{"scores", []int64{1, 1}, []float32{1}}, {"classes", []int64{1, 1}, []float32{7}}}, `{"name":"scores","parameters":{"classification":1}}`, `"data":["1.000000:0:cat"]`},
		"integers":  {ranked, `{"name":"classes","parameters":{"classification":1}}`, `"shape":[2,1],"datatype":"BYTES","data":["7:1:dog","0:0:cat"]`},
		"no number": {ranked, `{"name":"classes","parameters":{"classification":0}}`, `"datatype":"INT32","data":[1,7,0,-1]`},
		"texts":     {[]Tensor{{"text", []int64{1}, []string{"a"}}}, `{"name":"text","parameters":{"classification":1}}`, `output "text" has elements of BYTES, want an output of numbers`},
	} {
		r := &Request{labels: card.Labels}
		var q outputJSON
		must.OK(t, json.Unmarshal([]byte(c.asked), &q))
		r.outputs = []outputWanted{{name: q.Name, classes: q.Parameters.Classification}}
		body, _, err := EncodeResponse(r, "f", "1", nil, c.outputs)
		if err != nil {
			body = []byte(err.Error())
		}
		if !strings.Contains(string(body), c.want) {
			t.Errorf("%s: %s, want %s", name, body, c.want)
		}
	}
}
