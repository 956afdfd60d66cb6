package openinference

import (
	"reflect"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
)

// TestStatistics maps the node's counters to the protocol's.
func TestStatistics(t *testing.T) {
	sample := control.FunctionSample{Ran: 12, Batches: 3, Results: []uint64{10, 1, 2}, Stages: make([]control.StageSample, len(control.StageNames))}
	for i := range sample.Stages {
		sample.Stages[i] = control.StageSample{Seconds: float64(int(1) << i), Count: 12}
	}
	s := Count("f", &models.Card{Version: 3}, &sample)
	const second = 1_000_000_000
	want := Statistics{"f", "3", 12, 3, map[string]Duration{
		"success": {10, 127 * second}, "fail": {3, 0}, "queue": {12, 6 * second},
		"compute_input": {12, 8 * second}, "compute_infer": {12, 16 * second}, "compute_output": {12, 32 * second},
	}}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("%+v, want %+v", s, want)
	}
}

// TestConfigure describes the tensors of one image.
func TestConfigure(t *testing.T) {
	card := two
	card.Framework, card.Decoder.Name = "onnx", "text"
	want := Config{"f", "penstock_onnx", "penstock", MaxImages,
		[]TensorConfig{{Name: "v", DataType: "TYPE_FP16", Dims: []int64{2}}, {Name: "s", DataType: "TYPE_INT64", Dims: []int64{}}},
		[]TensorConfig{{Name: "text", DataType: "TYPE_STRING", Dims: []int64{}}, {Name: "scores", DataType: "TYPE_FP32", Dims: []int64{}}}, nil}
	if c := Configure("f", &card); !reflect.DeepEqual(c, want) {
		t.Errorf("%+v, want %+v", c, want)
	}
}
