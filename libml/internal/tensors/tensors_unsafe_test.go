package tensors

import (
	"os"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
)

// Whatever their shapes, tensors are aligned, inside the buffer, and do not
// overlap.
func TestTensors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		side := rapid.IntRange(1, 9)
		card := &models.Card{
			Input: models.Input{
				Height: side.Draw(t, "height"), Width: side.Draw(t, "width"), Channels: side.Draw(t, "channels"),
				TensorType: rapid.SampledFrom([]models.DType{models.U8, models.F16, models.F32}).Draw(t, "type"), TensorLayout: models.CHW,
			},
			Batches: []int{1, rapid.IntRange(2, 20).Draw(t, "batch")},
		}
		for range rapid.IntRange(1, 4).Draw(t, "outputs") {
			card.Outputs = append(card.Outputs, models.Tensor{Type: models.F32, Shape: []int64{int64(rapid.IntRange(1, 50).Draw(t, "elements"))}})
		}
		memory, err := NewScratch(card.TensorBytes())
		must.OK(t, err)
		defer memory.Free()
		laid, err := New(card, memory)
		must.OK(t, err)
		most := card.MaxBatch()

		whole := device.Bytes(append(laid.InputsOf(most), laid.OutputsOf(most)...))
		sizes := []int{most * card.Input.TensorBytes()}
		for i := range card.Outputs {
			sizes = append(sizes, most*card.Outputs[i].Bytes())
		}
		for i, tensor := range whole {
			if len(tensor) != sizes[i] || cap(tensor) != sizes[i] {
				t.Fatalf("tensor %d has %d bytes and room for %d, want %d", i, len(tensor), cap(tensor), sizes[i])
			}
			if at := uintptr(unsafe.Pointer(&tensor[0])); at%models.TensorAlignment != 0 {
				t.Errorf("tensor %d lies at %#x, want a multiple of %d", i, at, models.TensorAlignment)
			}
			for j := range tensor {
				if tensor[j] != 0 {
					t.Fatalf("byte %d of tensor %d belongs to tensor %d too", j, i, tensor[j]-1)
				}
				tensor[j] = byte(i + 1)
			}
		}

		// A smaller batch is a prefix, and an image is its own part of each
		// output.
		n := rapid.IntRange(1, most).Draw(t, "n")
		smaller := device.Bytes(append(laid.InputsOf(n), laid.OutputsOf(n)...))
		for i := range smaller {
			if len(smaller[i]) != n*sizes[i]/most || &smaller[i][0] != &whole[i][0] {
				t.Errorf("tensor %d of a batch of %d is no prefix of that of %d", i, n, most)
			}
		}
		image := make([][]byte, len(card.Outputs))
		laid.Image(image, nil, n-1)
		for o := range image {
			size := card.Outputs[o].Bytes()
			if len(image[o]) != size || &image[o][0] != &whole[1+o][(n-1)*size] {
				t.Errorf("output %d of image %d is elsewhere", o, n-1)
			}
		}
	})
}

// Scratch memory is page-aligned and zero.
func TestScratch(t *testing.T) {
	for _, size := range []int{0, 1, 4096, 1<<20 + 1} {
		s, err := NewScratch(size)
		must.OK(t, err)
		if len(s) < size || len(s) == 0 {
			t.Errorf("scratch of %d bytes has %d", size, len(s))
		}
		if at := uintptr(unsafe.Pointer(&s[0])); at%uintptr(os.Getpagesize()) != 0 {
			t.Errorf("scratch of %d bytes lies at %#x, want a page", size, at)
		}
		if slices.Max(s) != 0 {
			t.Errorf("scratch of %d bytes is not blank", size)
		}
		s[len(s)-1] = 1
		if err := s.Free(); err != nil {
			t.Errorf("free %d bytes: %v", size, err)
		}
	}
	if s, err := NewScratch(1 << 62); err == nil {
		s.Free()
		t.Error("scratch of 4 EiB is had without an error")
	}
}
