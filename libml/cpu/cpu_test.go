package cpu

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

func TestCPUIsADevice(t *testing.T) {
	devicetest.Run(t, func(in models.Input) (devicetest.Target, error) {
		d, err := New(in, nil)
		return devicetest.Host(d), err
	})
}

// The faulty device passes the suite while it injects no fault.
func TestFaultyDevice(t *testing.T) {
	devicetest.Run(t, func(in models.Input) (devicetest.Target, error) {
		d, err := New(in, nil)
		return devicetest.Host(&devicetest.Faulty{Device: d}), err
	})
}

// The queued device passes the suite.
func TestQueuedDevice(t *testing.T) {
	groups := []int{8, 8, 12}
	open := func(in models.Input) (devicetest.Target, error) {
		d, err := New(in, nil)
		if err != nil {
			return devicetest.Target{}, err
		}
		q := devicetest.Queue(d, in, groups...)
		q.Late.Store(int64(10 * time.Microsecond))
		return q.Target(), nil
	}
	devicetest.Run(t, open)
	devicetest.RunPartitioned(t, open, groups)
}

// The suite cuts small pictures into tiny fragments. Here pictures are large
// enough for the kernels' unrolled loops, and cut into packets of one size.
func TestGatherPackets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := devicetest.Inputs().Draw(t, "input")
		kind := rapid.SampledFrom(models.PictureTypes)
		in.TensorType = models.DType(kind.Draw(t, "tensor"))
		if in.WireType = models.DType(kind.Draw(t, "wire")); in.WireType.IsFloat() { // random bytes are NaNs, too
			in.WireType = models.U8
		}
		in.Height, in.Width = rapid.IntRange(1, 64).Draw(t, "rows"), rapid.IntRange(1, 64).Draw(t, "columns")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		picture := make([]byte, in.WireBytes())
		for i := range picture {
			picture[i] = byte(random.Uint32())
		}
		slab, req := packets(picture, rapid.IntRange(60, 1473).Draw(t, "payload"), 22)
		random.Shuffle(len(req.Fragments), func(i, j int) { req.Fragments[i], req.Fragments[j] = req.Fragments[j], req.Fragments[i] })
		d, err := New(in, [][]byte{slab})
		must.OK(t, err)
		got := devicetest.Aligned(in.TensorBytes())
		must.OK(t, d.Gather(0, device.HostBuffer(got), []device.Request{req}, make([]bool, 1)))
		if !bytes.Equal(got, devicetest.Reference(in, picture)) {
			t.Fatalf("gather of %+v differs from the reference", in)
		}
	})
}

// packets lays a picture out as GRO does: header, payload, header, payload.
func packets(picture []byte, payload, header int) ([]byte, device.Request) {
	var slab []byte
	req := device.Request{Bytes: uint32(len(picture))}
	for place := 0; place < len(picture); place += payload {
		n := min(payload, len(picture)-place)
		slab = append(slab, make([]byte, header)...)
		req.Fragments = append(req.Fragments, shm.Fragment{Offset: uint64(len(slab)), Place: uint32(place), Length: uint16(n)})
		slab = append(slab, picture[place:place+n]...)
	}
	return slab, req
}

// Every f16 converts to f32 and back without a change.
func TestHalfRoundTrip(t *testing.T) {
	for h := range 1 << 16 {
		h := uint16(h)
		f := wire.HalfToFloat(h)
		if want := devicetest.HalfValue(h); float64(f) != want && !(math.IsNaN(want) && math.IsNaN(float64(f))) {
			t.Fatalf("HalfToFloat(%#04x) = %v, want %v", h, f, want)
		}
		if got := wire.FloatToHalf(f); got != h {
			t.Fatalf("%#04x comes back as %#04x", h, got)
		}
	}
}

func TestToHalf(t *testing.T) {
	compare := func(f float32) {
		if got, want := wire.FloatToHalf(f), devicetest.NearestHalf(float64(f)); got != want {
			t.Fatalf("FloatToHalf(%v = %#x) = %#04x, want %#04x", f, math.Float32bits(f), got, want)
		}
	}
	// Each half, the middle between it and the next, and one f32 step to either
	// side of both.
	for h := range uint16(0x7c00) {
		exact, middle := wire.HalfToFloat(h), (wire.HalfToFloat(h)+wire.HalfToFloat(h+1))/2
		if h == 0x7bff {
			middle = 65520
		}
		for _, f := range []float32{exact, middle} {
			bits := math.Float32bits(f)
			for _, b := range []uint32{bits, bits + 1, max(bits, 1) - 1} {
				compare(math.Float32frombits(b))
				compare(-math.Float32frombits(b))
			}
		}
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range 1_000_000 {
		if f := math.Float32frombits(random.Uint32()); f == f {
			compare(f)
		}
	}
	if h := wire.FloatToHalf(math.Float32frombits(0x7f800001)); h != 0x7e00 {
		t.Errorf("a NaN whose payload does not fit becomes %#04x", h)
	}
}

// Values are rounded and saturated.
func TestToBytes(t *testing.T) {
	for f, want := range map[float32]int64{-1: 0, 0.5: 0, 0.51: 1, 1.5: 2, 2.5: 2, 254.4: 254, 255: 255, 255.5: 255, 1e9: 255, -1e9: 0} {
		if got := nearest(f, 0, 255); got != want {
			t.Errorf("nearest(%v) = %d, want %d", f, got, want)
		}
	}
	if got := nearest(float32(math.NaN()), -8, 8); got != 0 {
		t.Errorf("nearest(NaN) = %d", got)
	}
}

func TestInvalidInputs(t *testing.T) {
	sound := models.Input{
		Height: 4, Width: 4, Channels: 3, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.CHW,
		Mean: []float32{1, 2, 3}, Std: []float32{1, 2, 3},
	}
	must.Get(New(sound, nil))(t)
	for name, spoil := range map[string]func(in *models.Input){
		"wire type":       func(in *models.Input) { in.WireType = "u64" },
		"tensor type":     func(in *models.Input) { in.TensorType = "" },
		"wire layout":     func(in *models.Input) { in.WireLayout = "whc" },
		"tensor layout":   func(in *models.Input) { in.TensorLayout = "" },
		"no rows":         func(in *models.Input) { in.Height = 0 },
		"negative width":  func(in *models.Input) { in.Width = -4 },
		"too large":       func(in *models.Input) { in.Height, in.Width = 1<<20, 1<<20 },
		"size that wraps": func(in *models.Input) { in.Height, in.Width, in.Channels = 1<<32, 1<<32, 4 },
		"means missing":   func(in *models.Input) { in.Mean = nil },
		"too few":         func(in *models.Input) { in.Mean, in.Std = in.Mean[:2], in.Std[:2] },
		"std of zero":     func(in *models.Input) { in.Std = []float32{1, 0, 1} },
		"mean not finite": func(in *models.Input) { in.Mean = []float32{1, float32(math.NaN()), 1} },
	} {
		in := sound
		spoil(&in)
		if _, err := New(in, nil); !errors.Is(err, ErrInput) {
			t.Errorf("%s: New = %v", name, err)
		}
	}
}

func TestDirect(t *testing.T) {
	in := models.Input{
		Height: 5, Width: 7, Channels: 3, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.CHW,
		ReverseChannels: true, Mean: []float32{103.53, 116.28, 123.675}, Std: []float32{57.375, 57.12, 58.395},
	}
	picture := make([]byte, in.WireBytes())
	for i := range picture {
		picture[i] = byte(i * 7)
	}
	got := devicetest.Aligned(in.TensorBytes())
	must.OK(t, Direct(in, picture, got))
	if !bytes.Equal(got, devicetest.Reference(in, picture)) {
		t.Error("Direct differs from the reference")
	}
	if err := Direct(in, picture[1:], got); !errors.Is(err, device.ErrSize) {
		t.Errorf("a picture that is too short: %v", err)
	}
	if err := Direct(in, picture, got[4:]); !errors.Is(err, errTensor) {
		t.Errorf("a tensor that is too short: %v", err)
	}
	if err := Direct(in, picture, devicetest.Aligned(len(got) + 1)[1:]); !errors.Is(err, errTensor) {
		t.Errorf("a tensor that is not aligned: %v", err)
	}
}

func TestGatherAllocations(t *testing.T) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			d, dst, reqs := c.open(t)
			refused := make([]bool, len(reqs))
			if n := testing.AllocsPerRun(5, func() {
				must.OK(t, d.Gather(0, device.HostBuffer(dst), reqs, refused))
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// scene is an input like those of the models, in packets as GRO delivers them.
type scene struct {
	name string
	in   models.Input
}

func cases() []scene {
	sized := func(size, channels int, wire models.DType, to models.Layout, normalise bool) models.Input {
		in := models.Input{
			Height: size, Width: size, Channels: channels, WireType: wire, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: to,
		}
		for c := range channels {
			if normalise {
				in.Mean, in.Std = append(in.Mean, 127.5+float32(c)), append(in.Std, 127.5)
			}
		}
		return in
	}
	half := sized(224, 3, models.U8, models.CHW, true)
	half.TensorType = models.F16
	reversed := sized(416, 3, models.U8, models.HWC, true)
	reversed.ReverseChannels = true
	alike := sized(128, 3, models.U8, models.HWC, true)
	alike.Mean = []float32{127.5, 127.5, 127.5}
	return []scene{
		{"u8 hwc to f32 chw 416", sized(416, 3, models.U8, models.CHW, true)},
		{"u8 hwc to f32 hwc 416 reversed", reversed},
		{"u8 hwc to f32 hwc 416", sized(416, 3, models.U8, models.HWC, true)},
		{"u8 hwc to f32 hwc 128 channels alike", alike},
		{"u8 grey to f32 28", sized(28, 1, models.U8, models.CHW, true)},
		{"u8 hwc to f16 chw 224", half},
		{"f32 hwc to f32 chw 224", sized(224, 3, models.F32, models.CHW, true)},
		{"f32 hwc to f32 hwc 224 copied", sized(224, 3, models.F32, models.HWC, false)},
	}
}

func (s *scene) open(tb testing.TB) (*Device, []byte, []device.Request) {
	tb.Helper()
	const images, payload, header = 4, 1024, 22
	var slab []byte
	reqs := make([]device.Request, images)
	for i := range reqs {
		picture := make([]byte, s.in.WireBytes())
		for j := range picture {
			picture[j] = byte(j * (i + 3))
		}
		run, req := packets(picture, payload, header)
		for j := range req.Fragments {
			req.Fragments[j].Offset += uint64(len(slab))
		}
		slab = append(slab, run...)
		reqs[i] = req
	}
	d, err := New(s.in, [][]byte{slab})
	must.OK(tb, err)
	return d, devicetest.Aligned(images * s.in.TensorBytes()), reqs
}

// BenchmarkGather reports GB/s of picture bytes read. "floor" is a plain copy of
// as many bytes as the tensor has, between two contiguous buffers.
func BenchmarkGather(b *testing.B) {
	for _, c := range cases() {
		b.Run(c.name, func(b *testing.B) {
			d, dst, reqs := c.open(b)
			refused := make([]bool, len(reqs))
			b.SetBytes(int64(len(reqs) * c.in.WireBytes()))
			for b.Loop() {
				must.OK(b, d.Gather(0, device.HostBuffer(dst), reqs, refused))
			}
		})
		b.Run(c.name+" floor", func(b *testing.B) {
			_, dst, reqs := c.open(b)
			src := devicetest.Aligned(len(dst))
			b.SetBytes(int64(len(reqs) * c.in.WireBytes()))
			for b.Loop() {
				copy(dst, src)
			}
		})
	}
}

// Direct divides a request among the inputs.
func TestDirectTensors(t *testing.T) {
	in := models.Input{
		Height: 1, Width: 13, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC,
		Parts: []models.Part{{At: 0, Bytes: 4}, {At: 64, Bytes: 1}, {At: 128, Bytes: 8}},
	}
	request := []byte("abcdefghijklm")
	inputs := [][]byte{make([]byte, 4), make([]byte, 1), make([]byte, 8)}
	must.OK(t, Direct(in, request, inputs...))
	if got := bytes.Join(inputs, []byte(" ")); string(got) != "abcd e fghijklm" {
		t.Errorf("got %q", got)
	}
}

// Requests with fewer rows than the tensors are filled with zeros.
func TestGatherRows(t *testing.T) {
	in := models.Input{
		Height: 1, Width: 13, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC,
		Parts: []models.Part{{At: 0, Bytes: 4, Row: 1}, {At: 64, Bytes: 1}, {At: 128, Bytes: 8, Row: 2}},
	}
	for name, c := range map[string]struct{ requests, want [2]string }{
		"as many rows":                      {[2]string{"abcdefghijklm", "ABCDEFGHIJKLM"}, [2]string{"abcd e fghijklm", "ABCD E FGHIJKLM"}},
		"fewer rows":                        {[2]string{"abcdefg", "ABCDEFGHIJ"}, [2]string{"ab-- c defg----", "ABC- D EFGHIJ--"}},
		"a part of a row, no row, and more": {[2]string{"abcdefgh", "A"}, [2]string{"", ""}},
		"one row more":                      {[2]string{"abcdefghijklmnop", "ABCD"}, [2]string{"", "A--- B CD------"}},
	} {
		t.Run(name, func(t *testing.T) {
			var slab []byte
			var requests []device.Request
			for _, r := range c.requests {
				more, req := packets([]byte(r), 3, 5)
				for i := range req.Fragments {
					req.Fragments[i].Offset += uint64(len(slab))
				}
				slab, requests = append(slab, more...), append(requests, req)
			}
			d, err := New(in, [][]byte{slab})
			must.OK(t, err)
			got := devicetest.Aligned(in.BatchBytes(2))
			copy(got, bytes.Repeat([]byte("?"), len(got)))
			refused := make([]bool, 2)
			err = d.Gather(0, device.HostBuffer(got), requests, refused)
			if any := c.want[0] == "" || c.want[1] == ""; any != errors.Is(err, device.ErrSize) {
				t.Fatalf("gather: %v", err)
			}
			for i, want := range c.want {
				if refused[i] != (want == "") {
					t.Errorf("request %d refused: %v", i, refused[i])
				} else if want == "" {
					want = "---- - --------"
				}
				image := bytes.Join([][]byte{got[4*i:][:4], got[64+i:][:1], got[128+8*i:][:8]}, []byte(" "))
				if got := strings.ReplaceAll(string(image), "\x00", "-"); got != want {
					t.Errorf("request %d: %q, want %q", i, got, want)
				}
			}
		})
	}
}
