//go:build cgo

package serve_test

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/gputest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/null"
	"github.com/penstock/penstock/internal/testing/nulltest"
	"github.com/penstock/penstock/libml/internal/serve"
	"github.com/penstock/penstock/models"
)

func TestMain(m *testing.M) {
	cudafake.Main(m, cudafake.Kernels(gputest.Twins), cudafake.Kernels(nulltest.Twins))
}

// On a GPU, too, a batch changes when an answer comes but never its content. This
// test uses a fake driver without a GPU.
func TestGPUReference(t *testing.T) {
	cudafake.Check(t)
	d, err := cuda.Find("cuda")
	must.OK(t, err)
	split, err := d.Split()
	must.OK(t, err)
	detector := card()
	detector.Outputs = []models.Tensor{{Name: "scores", Type: models.F32, Shape: []int64{64, 1}}, {Name: "boxes", Type: models.F32, Shape: []int64{64, 8}}}
	detector.Decoder = models.Decoder{Name: "boxes", Params: map[string]any{
		"style": "dfl", "size": int64(8), "bins": int64(2), "iou_threshold": 1.0, "max_boxes": int64(5),
		"levels": []any{map[string]any{"stride": int64(1), "classes": "scores", "boxes": "boxes"}},
	}}
	for kernel, card := range map[string]*models.Card{"fetch": card(), "collect": detector} {
		cudafake.Reset()
		answersAsTheReference(t, card, func(pictures [][]byte) [][]byte {
			return serve.GPUAnswers(t, d.UUID(), split.GroupSMs(), card, build(null.Behaviour{Spin: 100 * time.Microsecond}), pictures)
		})
		if !slices.ContainsFunc(cudafake.Launches(), func(l cudafake.Launch) bool { return l.Name == kernel }) {
			t.Errorf("the kernel %s did not run", kernel)
		}
	}
}
