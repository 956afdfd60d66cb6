package openinference

import (
	"encoding/binary"
	"reflect"
	"testing"
	"time"

	"github.com/penstock/penstock/gateway/openinference/inference"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
)

// TestContents decodes typed contents of every type.
func TestContents(t *testing.T) {
	for datatype, c := range map[models.DType]struct {
		contents *inference.InferTensorContents
		want     any
		wrong    *inference.InferTensorContents
		err      string
	}{
		models.Bool: {&inference.InferTensorContents{BoolContents: []bool{true, false}}, []bool{true, false}, nil, ""},
		models.I8: {&inference.InferTensorContents{IntContents: []int32{-128, 127}}, []int8{-128, 127}, &inference.InferTensorContents{IntContents: []int32{0, 128}},
			`input "x": element 1 of contents is 128, want a value within the range of int8`},
		models.I16: {&inference.InferTensorContents{IntContents: []int32{-1 << 15, 2}}, []int16{-1 << 15, 2}, &inference.InferTensorContents{IntContents: []int32{-1<<15 - 1, 0}},
			`input "x": element 0 of contents is -32769, want a value within the range of int16`},
		models.I32: {&inference.InferTensorContents{IntContents: []int32{-1 << 31, 2}}, []int32{-1 << 31, 2}, nil, ""},
		models.I64: {&inference.InferTensorContents{Int64Contents: []int64{-1 << 63, 2}}, []int64{-1 << 63, 2}, nil, ""},
		models.U8: {&inference.InferTensorContents{UintContents: []uint32{1, 255}}, []uint8{1, 255}, &inference.InferTensorContents{UintContents: []uint32{256, 0}},
			`input "x": element 0 of contents is 256, want a value within the range of uint8`},
		models.U16: {&inference.InferTensorContents{UintContents: []uint32{1, 65535}}, []uint16{1, 65535}, &inference.InferTensorContents{UintContents: []uint32{1}},
			`input "x": has 2 bytes, the shape wants 4`},
		models.U32: {&inference.InferTensorContents{UintContents: []uint32{1, 1<<32 - 1}}, []uint32{1, 1<<32 - 1}, nil, ""},
		models.U64: {&inference.InferTensorContents{Uint64Contents: []uint64{1, 1<<64 - 1}}, []uint64{1, 1<<64 - 1}, nil, ""},
		models.F32: {&inference.InferTensorContents{Fp32Contents: []float32{1.5, -2}}, []float32{1.5, -2}, &inference.InferTensorContents{Fp64Contents: []float64{1, 2}},
			`input "x": has 0 bytes, the shape wants 8`},
		models.F64: {&inference.InferTensorContents{Fp64Contents: []float64{1.5, -2}}, []float64{1.5, -2}, nil, ""},
	} {
		card := models.Card{Inputs: []models.Tensor{{Name: "x", Type: datatype, Shape: []int64{2}}}}
		m := &inference.ModelInferRequest{Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: datatypes[datatype], Shape: []int64{1, 2}, Contents: c.contents}}}
		r, err := DecodeMessage(m, &card, nil)
		must.OK(t, err)
		want, err := binary.Append(nil, binary.LittleEndian, c.want)
		must.OK(t, err)
		if !reflect.DeepEqual(r.Payloads, [][]byte{want}) {
			t.Errorf("%s: % x, want % x", datatype, r.Payloads, want)
		}
		if c.wrong != nil {
			m.Inputs[0].Contents = c.wrong
			if _, err := DecodeMessage(m, &card, nil); err == nil || err.Error() != c.err {
				t.Errorf("%s: %v, want %s", datatype, err, c.err)
			}
		}
	}
}

// TestMessage decodes what a message has besides contents.
func TestMessage(t *testing.T) {
	text := func(s string) *inference.InferParameter {
		return &inference.InferParameter{ParameterChoice: &inference.InferParameter_StringParam{StringParam: s}}
	}
	m := &inference.ModelInferRequest{
		Id: "7",
		Parameters: map[string]*inference.InferParameter{
			"timeout":        {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 25000}},
			"sequence_id":    {ParameterChoice: &inference.InferParameter_Uint64Param{Uint64Param: 3}},
			"sequence_start": {ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: true}},
			"priority":       {ParameterChoice: &inference.InferParameter_DoubleParam{DoubleParam: 1}},
		},
		Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "s", Datatype: "INT64"}, {Name: "v", Datatype: "FP16", Shape: []int64{2}}},
		RawInputContents: [][]byte{[]byte("12345678"), []byte("abcd")},
		Outputs: []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "y", Parameters: map[string]*inference.InferParameter{
			"classification": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 3}},
		}}},
	}
	r, err := DecodeMessage(m, &two, nil)
	must.OK(t, err)
	memory := make([]byte, r.Needed)
	must.OK(t, r.Fill(memory))
	if string(memory) != "abcd12345678" || r.ID != "7" || r.Timeout != 25*time.Millisecond || r.Sequence != "3" || !r.SequenceStart || r.outputs[0].classes != 3 {
		t.Errorf("%q %+v", memory, r)
	}

	for want, change := range map[string]func(){
		"message has 1 raw_input_contents, want one for each of its 2 inputs":                    func() { m.RawInputContents = m.RawInputContents[:1] },
		`input "s": has both contents and raw_input_contents or a region, want one`:              func() { m.Inputs[0].Contents = &inference.InferTensorContents{} },
		`parameter sequence_id is true, want a text or a number of at most 256 bytes`:            func() { m.Parameters["sequence_id"] = m.Parameters["sequence_start"] },
		`read parameters: json: invalid number literal, trying to unmarshal "\"x\"" into Number`: func() { m.Parameters["timeout"] = text("x") },
	} {
		saved := [3]any{m.RawInputContents, m.Inputs[0].Contents, m.Parameters["sequence_id"]}
		change()
		if _, err := DecodeMessage(m, &two, nil); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		m.RawInputContents, m.Inputs[0].Contents, m.Parameters["sequence_id"] = saved[0].([][]byte), saved[1].(*inference.InferTensorContents), saved[2].(*inference.InferParameter)
		m.Parameters["timeout"] = &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 1}}
	}
}
