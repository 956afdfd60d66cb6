package openinference

import (
	"testing"

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
			if len(r.Payloads) == 0 || len(r.Payloads) > MaxImages || r.Timeout < 0 {
				t.Errorf("%d payloads, timeout %v", len(r.Payloads), r.Timeout)
			}
			for _, p := range r.Payloads {
				if len(p) != size {
					t.Errorf("payload of %d bytes, want %d", len(p), size)
				}
			}
		}
	})
}
