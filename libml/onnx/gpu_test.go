//go:build cgo

package onnx

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
)

func TestGPUConfigureErrors(t *testing.T) {
	r := newRig(t, &played{}).linked()
	b := r.tensors(2)
	for what, err := range map[string]error{
		"an input cut short":   second(r.f.ConfigureBatch(0, 2, []device.Buffer{b.input.Slice(4, b.input.Len())}, b.outputs)),
		"an output cut short":  second(r.f.ConfigureBatch(0, 2, []device.Buffer{b.input}, []device.Buffer{b.outputs[0].Slice(4, b.outputs[0].Len())})),
		"no outputs":           second(r.f.ConfigureBatch(0, 2, []device.Buffer{b.input}, nil)),
		"a size of no session": second(r.f.ConfigureBatch(0, 3, []device.Buffer{r.tensors(3).input}, r.tensors(3).outputs)),
		"a batch that is not":  r.f.InferBatch(0, 2),
	} {
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second(_ int64, err error) error { return err }

func TestGPUDeinit(t *testing.T) {
	r := newRig(t, &played{})
	if err := r.f.Deinit(); err != nil {
		t.Errorf("before LoadModel: %v", err)
	}
	r.loaded()
	if err := r.f.Deinit(); err != nil {
		t.Errorf("after LoadModel: %v", err)
	}
	if _, err := r.f.LinkModel(); err == nil || !strings.Contains(err.Error(), "no model is loaded") {
		t.Errorf("linked after Deinit: %v", err)
	}
	for _, call := range []string{"cuStreamCreate", "cuEventCreate", "cuMemAddressReserve", "cuMemGetInfo_v2"} {
		t.Run(call, func(t *testing.T) {
			r := newRig(t, &played{})
			must.OK(t, errors.Join(r.gpu.init(), r.f.LoadModel()))
			cudafake.Set(t, cudafake.Refuse(call, 0, cuda.Code(999)))
			if _, err := r.f.LinkModel(); err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s refused: %v", call, err)
			}
			cudafake.Reset()
		})
	}
}
