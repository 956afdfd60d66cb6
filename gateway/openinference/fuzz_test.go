package openinference

import (
	"testing"

	"github.com/penstock/penstock/models"
)

// A decoded request has pictures of the right size, whatever the body.
func FuzzDecodeRequest(f *testing.F) {
	in := models.Input{Name: "x", Height: 2, Width: 2, Channels: 1, WireType: models.U8, WireLayout: models.HWC}
	f.Add([]byte(`{"inputs":[{"name":"x","shape":[2,2,2,1],"datatype":"UINT8","data":[[1,2],[3,4],[5,6],[7,8]]}]}`), "")
	f.Add([]byte(`{"inputs":[{"name":"x","shape":[2,2,1],"datatype":"UINT8","parameters":{"binary_data_size":4}}]}1234`), "98")
	f.Add([]byte(`{"parameters":{"timeout":1e99}}`), "-1")
	f.Fuzz(func(t *testing.T, body []byte, headerLength string) {
		r, err := DecodeRequest(body, headerLength, &in)
		if err != nil {
			return
		}
		if len(r.Pictures) == 0 || len(r.Pictures) > MaxPictures || r.Timeout < 0 {
			t.Errorf("%d pictures, timeout %v", len(r.Pictures), r.Timeout)
		}
		for _, p := range r.Pictures {
			if len(p) != in.WireBytes() {
				t.Errorf("picture of %d bytes, want %d", len(p), in.WireBytes())
			}
		}
	})
}
