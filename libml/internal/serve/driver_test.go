//go:build cgo

package serve_test

import (
	"testing"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/gputest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/null"
	"github.com/penstock/penstock/internal/testing/nulltest"
	"github.com/penstock/penstock/libml/internal/serve"
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
	answersAsTheReference(t, func(pictures [][]byte) [][]byte {
		return serve.GPUAnswers(t, d.UUID(), split.GroupSMs(), card(), build(null.Behaviour{Spin: 100 * time.Microsecond}), pictures)
	})
}
