package devicetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// Target is a device under test, and how to read what it wrote.
type Target struct {
	device.Device
	// Read copies an image or more out of memory that the device's Tensors gave.
	Read func(tensor []byte) []byte
}

// Open makes a device for an input; the slabs are added by the suite.
type Open func(in models.Input) (Target, error)

// Run puts a device through what every device must do.
func Run(t *testing.T, open Open) {
	t.Run("GathersWhatTheReferenceDoes", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { agrees(t, open) }) })
	t.Run("RefusesOneRequestAndGathersTheOthers", func(t *testing.T) { refuses(t, open) })
	t.Run("RefusesATensorThatIsTooSmall", func(t *testing.T) { tooSmall(t, open) })
	t.Run("PadsWithZeros", func(t *testing.T) { pads(t, open) })
}

// Inputs generates the inputs that cards may have, small ones.
func Inputs() *rapid.Generator[models.Input] {
	return rapid.Custom(func(t *rapid.T) models.Input {
		kind := rapid.SampledFrom([]models.DType{models.U8, models.U8, models.F16, models.F32})
		layout := rapid.SampledFrom([]models.Layout{models.HWC, models.CHW})
		in := models.Input{
			Height: rapid.IntRange(1, 24).Draw(t, "height"), Width: rapid.IntRange(1, 40).Draw(t, "width"),
			Channels: rapid.SampledFrom([]int{1, 3, 3, 2, 4, 5}).Draw(t, "channels"),
			WireType: kind.Draw(t, "wire type"), WireLayout: layout.Draw(t, "wire layout"),
			TensorType: kind.Draw(t, "tensor type"), TensorLayout: layout.Draw(t, "tensor layout"),
			ReverseChannels: rapid.Bool().Draw(t, "reverse"),
		}
		switch rapid.IntRange(0, 2).Draw(t, "normalise") {
		case 1: // all channels alike
			m, s := rapid.Float32Range(-10, 200).Draw(t, "mean"), rapid.Float32Range(0.01, 300).Draw(t, "std")
			in.Mean, in.Std = slices.Repeat([]float32{m}, in.Channels), slices.Repeat([]float32{s}, in.Channels)
		case 2:
			in.Mean = rapid.SliceOfN(rapid.Float32Range(-10, 200), in.Channels, in.Channels).Draw(t, "means")
			in.Std = rapid.SliceOfN(rapid.Float32Range(0.01, 300), in.Channels, in.Channels).Draw(t, "stds")
		}
		return in
	})
}

// picture fills a payload: any bytes for u8, numbers as pictures have them and
// now and then the ends of the range for floats. NaNs only where they are moved
// and not computed with, for which NaN comes out is the processor's affair.
func picture(t *rapid.T, in models.Input) []byte {
	random := rapid.SliceOfN(rapid.Byte(), in.WireBytes(), in.WireBytes())
	moved := in.WireType == in.TensorType && len(in.Mean) == 0
	if in.WireType == models.U8 || moved {
		return random.Draw(t, "picture")
	}
	seeds := random.Draw(t, "picture")
	out := make([]byte, 0, in.WireBytes())
	for i := 0; i < len(seeds); i += in.WireType.Bytes() {
		v := float64(seeds[i])*1.7 - 50 + float64(seeds[i+1])/256
		switch seeds[i+1] {
		case 0:
			v = math.Inf(1)
		case 1:
			v = -math.MaxFloat32
		case 2:
			v = 1e-7
		case 3:
			v = math.Copysign(0, -1)
		}
		if in.WireType == models.F16 {
			out = binary.LittleEndian.AppendUint16(out, NearestHalf(v))
		} else {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
		}
	}
	return out
}

// scatter cuts payload at arbitrary places, lays the pieces apart in the slabs
// in any order, and returns the descriptors in another order.
func scatter(t *rapid.T, slabs [][]byte, free []uint64, payload []byte) []shm.Piece {
	longest := rapid.SampledFrom([]int{1, 7, 60, 1024}).Draw(t, "longest piece")
	if longest == 1 && len(payload) > 512 {
		longest = 60
	}
	var pieces []shm.Piece
	for place := 0; place < len(payload); {
		n := min(rapid.IntRange(1, longest).Draw(t, "length"), len(payload)-place)
		s := rapid.IntRange(0, len(slabs)-1).Draw(t, "slab")
		free[s] += uint64(rapid.IntRange(0, 30).Draw(t, "distance"))
		copy(slabs[s][free[s]:], payload[place:place+n])
		pieces = append(pieces, shm.Piece{Offset: free[s], Place: uint32(place), Length: uint16(n), Slab: uint16(s)})
		free[s] += uint64(n)
		place += n
	}
	if rapid.Bool().Draw(t, "shuffled") {
		pieces = rapid.Permutation(pieces).Draw(t, "order")
	}
	return pieces
}

func agrees(t *rapid.T, open Open) {
	in := Inputs().Draw(t, "input")
	target, err := open(in)
	if err != nil {
		t.Fatalf("open device for %+v: %v", in, err)
	}
	defer func() {
		if err := target.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
	}()
	const images = 2
	slabs := make([][]byte, rapid.IntRange(1, 3).Draw(t, "slabs"))
	for i := range slabs {
		// Room for a piece of one byte and the widest distance each time.
		slabs[i] = make([]byte, images*in.WireBytes()*31)
		if err := target.AddSlab(slabs[i]); err != nil {
			t.Fatalf("add slab: %v", err)
		}
	}
	tensors, err := target.Tensors(Aligned((images + 1) * in.TensorBytes()))
	if err != nil {
		t.Fatalf("tensors: %v", err)
	}
	free := make([]uint64, len(slabs))
	var want []byte
	var reqs []device.Request
	for range images {
		p := picture(t, in)
		want = append(want, Reference(in, p)...)
		reqs = append(reqs, device.Request{Pieces: scatter(t, slabs, free, p), Bytes: uint32(len(p))})
	}
	slot := rapid.IntRange(0, device.Slots-1).Draw(t, "slot")
	refused := []bool{true, true}
	if err := target.Gather(slot, tensors, reqs, refused); err != nil {
		t.Fatalf("gather: %v", err)
	}
	if err := target.Wait(slot); err != nil {
		t.Fatalf("wait: %v", err)
	}
	if refused[0] || refused[1] {
		t.Fatalf("sound requests are refused: %v", refused)
	}
	got := target.Read(tensors)
	if !bytes.Equal(got[:len(want)], want) {
		at := 0
		for got[at] == want[at] {
			at++
		}
		t.Fatalf("byte %d of image %d is %#x, want %#x", at%in.TensorBytes(), at/in.TensorBytes(), got[at], want[at])
	}
	if slices.ContainsFunc(got[len(want):], func(b byte) bool { return b != 0 }) {
		t.Fatal("gather wrote past the last image")
	}
}

// three is a device for 2 x 2 pictures of one byte a pixel, with a slab of 12
// bytes and three requests that are sound.
func three(t *testing.T, open Open) (Target, []byte, []device.Request) {
	t.Helper()
	target, err := open(models.Input{
		Height: 2, Width: 2, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.HWC,
	})
	if err != nil {
		t.Fatalf("open device: %v", err)
	}
	t.Cleanup(func() {
		if err := target.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
	})
	if err := target.AddSlab([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}); err != nil {
		t.Fatalf("add slab: %v", err)
	}
	shared := Aligned(4 * 16)
	for i := range shared {
		shared[i] = 0xff
	}
	tensors, err := target.Tensors(shared)
	if err != nil {
		t.Fatalf("tensors: %v", err)
	}
	reqs := make([]device.Request, 3)
	for i := range reqs {
		reqs[i] = device.Request{Bytes: 4, Pieces: []shm.Piece{{Offset: uint64(4*i + 3), Place: 3, Length: 1}, {Offset: uint64(4 * i), Length: 3}}}
	}
	return target, tensors, reqs
}

func floats(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func refuses(t *testing.T, open Open) {
	for _, c := range []struct {
		name  string
		spoil func(r *device.Request)
		piece int
		want  error
	}{
		{"of another size", func(r *device.Request) { r.Bytes = 5 }, -1, device.ErrSize},
		{"with a piece outside the slab", func(r *device.Request) { r.Pieces[0].Offset = 12 }, 0, device.ErrOutsideSlab},
		{"with a piece in no slab", func(r *device.Request) { r.Pieces[1].Slab = 1 }, 1, device.ErrSlab},
		{"with a gap", func(r *device.Request) { r.Pieces = r.Pieces[:1] }, -1, device.ErrGap},
		{"with an overlap", func(r *device.Request) { r.Pieces[0].Place = 2 }, -1, device.ErrOverlap},
	} {
		t.Run(c.name, func(t *testing.T) {
			target, tensors, reqs := three(t, open)
			c.spoil(&reqs[1])
			refused := make([]bool, 3)
			err := target.Gather(0, tensors, reqs, refused)
			var re *device.RequestError
			if !errors.As(err, &re) || re.Request != 1 || re.Piece != c.piece || !errors.Is(err, c.want) {
				t.Errorf("gather = %v, want request 1, piece %d, %v", err, c.piece, c.want)
			}
			if err := target.Wait(0); err != nil {
				t.Errorf("wait: %v", err)
			}
			if !slices.Equal(refused, []bool{false, true, false}) {
				t.Errorf("refused = %v", refused)
			}
			if got, want := target.Read(tensors)[:48], floats(1, 2, 3, 4, 0, 0, 0, 0, 9, 10, 11, 12); !bytes.Equal(got, want) {
				t.Errorf("tensor is\n%x, want\n%x", got, want)
			}
		})
	}
}

func tooSmall(t *testing.T, open Open) {
	target, tensors, reqs := three(t, open)
	if err := target.Gather(0, tensors[:47], reqs, make([]bool, 3)); err == nil {
		t.Error("three images went into 47 bytes")
	}
	if err := target.Pad(0, tensors, 0, 5); err == nil {
		t.Error("five images were padded in a tensor of four")
	}
	if err := target.Gather(device.Slots, tensors, reqs, make([]bool, 3)); err == nil {
		t.Errorf("there is a slot %d", device.Slots)
	}
}

func pads(t *testing.T, open Open) {
	target, tensors, reqs := three(t, open)
	if err := target.Gather(1, tensors, reqs[:1], make([]bool, 1)); err != nil {
		t.Fatalf("gather: %v", err)
	}
	if err := target.Pad(1, tensors, 1, 3); err != nil {
		t.Fatalf("pad: %v", err)
	}
	if err := target.Wait(1); err != nil {
		t.Fatalf("wait: %v", err)
	}
	want := append(floats(1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0), bytes.Repeat([]byte{0xff}, 16)...)
	if got := target.Read(tensors); !bytes.Equal(got, want) {
		t.Errorf("tensor is\n%x, want\n%x", got, want)
	}
}
