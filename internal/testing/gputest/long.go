package gputest

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// longFragments sends pictures in jumbo frames, in a single fragment of the max length,
// and in more fragments than the device has room for.
func longFragments(t *testing.T, b *harness) {
	for _, in := range []models.Input{
		{Height: 120, Width: 120, Channels: 3, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F16, TensorLayout: models.CHW},
		{Height: 70, Width: 77, Channels: 3, WireType: models.F32, WireLayout: models.HWC, TensorType: models.F16, TensorLayout: models.HWC, ReverseChannels: true},
		{Height: 97, Width: 111, Channels: 5, WireType: models.F16, WireLayout: models.CHW, TensorType: models.F32, TensorLayout: models.HWC},
		{Height: 101, Width: 101, Channels: 4, WireType: models.U8, WireLayout: models.CHW, TensorType: models.U8, TensorLayout: models.CHW},
	} {
		d, err := gpu.New(in, gpu.Options{Device: "cuda"})
		must.OK(t, err)
		slab := pages(t, 2*in.WireBytes()+4096)
		must.OK(t, d.AddSlab(slab))
		sizes := device.Sizes{Input: in.TensorBytes()}
		tensors, err := d.Tensors(nil, sizes)
		must.OK(t, err)
		random := rand.New(rand.NewPCG(9, 9))
		for _, length := range []int{65535, 8972, 1921, 11} {
			picture := make([]byte, in.WireBytes())
			for i := range picture {
				picture[i] = byte(random.Uint32()) & 0xbb
			}
			req := device.Request{Bytes: uint32(len(picture))}
			for at, place := 0, 0; place < len(picture); {
				n := min(length, len(picture)-place)
				at += random.IntN(min(23, length))
				copy(slab[at:], picture[place:place+n])
				req.Fragments = append(req.Fragments, shm.Fragment{Offset: uint64(at), Place: uint32(place), Length: uint16(n)})
				at, place = at+n, place+n
			}
			must.OK(t, d.Gather(0, tensors[0].Input, []device.Request{req}, make([]bool, 1)))
			if _, err := d.Wait(0); err != nil {
				t.Fatal(err)
			}
			want := devicetest.Aligned(in.TensorBytes())
			must.OK(t, cpu.Direct(in, picture, want))
			if !slices.Equal(b.read(tensors[0].Input), want) {
				t.Errorf("%+v in fragments of %d bytes differs from the CPU's", in, length)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
