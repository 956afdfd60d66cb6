//go:build cgo

package onnx

import (
	"testing"

	"github.com/penstock/penstock/models"
)

func TestFallbackToNCHW(t *testing.T) {
	r := newRig(t, &played{unqueued: func(s settings) error {
		if s.nhwc {
			return s.stream.Synchronize() // which is refused in a capture
		}
		return nil
	}})
	r.loaded()
	r.card.Input.TensorType = models.F16
	r.whole()
	// Only the first session, the smallest size's, is in NHWC.
	if made := r.played.made; len(made) != 4 || !made[0].nhwc || !made[0].tf32 || made[1].nhwc || made[3].nhwc {
		t.Errorf("sessions were made with %+v", made)
	}
	if r.gpu.nhwc || len(r.gpu.sizes) != 3 || r.played.sessions != 3 {
		t.Errorf("NHWC %v, %d sessions", r.gpu.nhwc, r.played.sessions)
	}
	b := r.tensors(1)
	r.fillWith(b, 4)
	r.configure(0, 1, b)
	r.infer(0, 1)
	if got := r.output(b); !all(got, 4) {
		t.Errorf("answered %v", got)
	}
}
