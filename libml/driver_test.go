//go:build cgo

package libml_test

import (
	"testing"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/fake"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/device/gpu/gputest"
	"github.com/penstock/penstock/libml/null"
	"github.com/penstock/penstock/libml/null/nulltest"
)

func TestMain(m *testing.M) {
	fake.Main(m, fake.Kernels(gputest.Twins), fake.Kernels(nulltest.Twins))
}

// A batch changes when an answer comes, never what it is, on a GPU either: here on
// a driver without one.
func TestAProcessOnAGPUAnswersAsTheReferenceDoes(t *testing.T) {
	fake.Check(t)
	d, err := cuda.Find("cuda")
	if err != nil {
		t.Fatal(err)
	}
	split, err := d.Split(0)
	if err != nil {
		t.Fatal(err)
	}
	answersAsTheReference(t, func(pictures [][]byte) [][]byte {
		return libml.GPUAnswers(t, d.UUID(), split.GroupSMs(), card(), build(null.Behaviour{Spin: 100 * time.Microsecond}), pictures)
	})
}
