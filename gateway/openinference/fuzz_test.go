package openinference

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/gateway/openinference/inference"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
)

// A decoded request has payloads of the right size, whatever the body.
func FuzzDecodeRequest(f *testing.F) {
	picture := models.Card{Input: models.Input{
		Name: "x", Height: 2, Width: 2, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.CHW,
	}}
	f.Add([]byte(`{"inputs":[{"name":"x","shape":[2,2,2,1],"datatype":"UINT8","data":[[1,2],[3,4],[5,6],[7,8]]}]}`), "")
	f.Add([]byte(`{"inputs":[{"name":"x","shape":[2,2,1],"datatype":"UINT8","parameters":{"binary_data_size":4}}]}1234`), "98")
	f.Add([]byte(`{"inputs":[{"name":"x","shape":[1,1,2,2],"datatype":"FP32","data":[1,2,3.4,4]}]}`), "")
	f.Add([]byte(`{"parameters":{"timeout":1e99}}`), "-1")
	f.Add([]byte(`{"inputs":[{"name":"s","shape":[2],"datatype":"INT64","data":[-1,2]},{"name":"v","shape":[2,2],"datatype":"FP16","data":[[1,2],[3,4]]}]}`), "")
	f.Fuzz(func(t *testing.T, body []byte, headerLength string) {
		for card, size := range map[*models.Card]int{&picture: 4, &two: 12} {
			r, err := decoded(body, headerLength, card)
			if err != nil {
				continue
			}
			checkPayloads(t, r, size)
		}
	})
}

func checkPayloads(t *testing.T, r *Request, size int) {
	if len(r.Payloads) == 0 || len(r.Payloads) > MaxImages || r.Timeout < 0 {
		t.Errorf("%d payloads, timeout %v", len(r.Payloads), r.Timeout)
	}
	for _, p := range r.Payloads {
		if len(p) != size {
			t.Errorf("payload of %d bytes, want %d", len(p), size)
		}
	}
}

// The same for messages of gRPC.
func FuzzDecodeMessage(f *testing.F) {
	tensor := func(name, datatype string, shape ...int64) *inference.ModelInferRequest_InferInputTensor {
		return &inference.ModelInferRequest_InferInputTensor{Name: name, Datatype: datatype, Shape: shape}
	}
	typed := tensor("s", "INT64")
	typed.Contents = &inference.InferTensorContents{Int64Contents: []int64{-1}}
	for _, m := range []*inference.ModelInferRequest{
		{Inputs: []*inference.ModelInferRequest_InferInputTensor{tensor("s", "INT64", 2), tensor("v", "FP16", 2, 2)}, RawInputContents: [][]byte{make([]byte, 16), make([]byte, 8)}},
		{Inputs: []*inference.ModelInferRequest_InferInputTensor{typed, tensor("v", "FP16", 2)}},
	} {
		body, err := proto.Marshal(m)
		must.OK(f, err)
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var m inference.ModelInferRequest
		if proto.Unmarshal(body, &m) != nil {
			return
		}
		r, err := DecodeMessage(&m, &two, nil)
		if err != nil || r.Fill(make([]byte, r.Needed)) != nil {
			return
		}
		checkPayloads(t, r, 12)
	})
}
