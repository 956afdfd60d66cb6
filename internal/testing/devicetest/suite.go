package devicetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Target is a device under test, with access to its memory.
type Target struct {
	device.Device
	// Read copies a tensor, or a part of one, out of memory from the device's Tensors.
	// Write copies data into one. Both are called on a thread that the device was
	// bound to, with nothing in flight in the tensor's slot.
	Read  func(tensor device.Buffer) []byte
	Write func(tensor device.Buffer, data []byte)
}

// Host returns a target whose tensors are host memory.
func Host(d device.Device) Target {
	return Target{
		Device: d,
		Read:   func(tensor device.Buffer) []byte { return bytes.Clone(tensor.Bytes()) },
		Write:  func(tensor device.Buffer, data []byte) { copy(tensor.Bytes(), data) },
	}
}

// Open makes a device for an input. The suite binds it, adds the slabs and makes the
// tensors.
type Open func(in models.Input) (Target, error)

// Run tests what every device must do.
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, open Open)
	}{
		{"GathersWhatTheReferenceDoes", func(t *testing.T, open Open) { rapid.Check(t, func(t *rapid.T) { agrees(t, open) }) }},
		{"RefusesOneRequestAndGathersTheOthers", refuses},
		{"RefusesATensorThatIsTooSmall", tooSmall},
		{"RefusesASlotThatThereIsNot", noSlot},
		{"RefusesSharedMemoryThatIsTooSmall", tooLittleShared},
		{"PadsWithZeros", pads},
		{"FetchesTheOutputsOfTheFirstImages", fetches},
		{"CopiesTensors", copies},
		{"HasBatchesInFlightTogether", together},
		{"Selects", selects},
		{"GathersTensors", func(t *testing.T, open Open) { rapid.Check(t, func(t *rapid.T) { tensors(t, open) }) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.LockOSThread()            // devices are bound to threads
			t.Cleanup(runtime.UnlockOSThread) // after the device is closed, on its thread
			c.run(t, open)
		})
	}
}

// Inputs generates small examples of the inputs that cards may have.
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

// picture draws a payload. For u8 it draws any bytes; for floats, numbers as in
// pictures and sometimes the ends of the range. It draws NaNs only if they are moved
// without computation: which NaN a computation returns depends on the processor.
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

// scatter cuts payload at random places, puts the fragments apart into the slabs in
// any order, and returns the descriptors in another order.
func scatter(t *rapid.T, slabs [][]byte, free []uint64, payload []byte) []shm.Fragment {
	longest := rapid.SampledFrom([]int{1, 7, 60, 1024}).Draw(t, "longest fragment")
	if longest == 1 && len(payload) > 512 {
		longest = 60
	}
	var fragments []shm.Fragment
	for place := 0; place < len(payload); {
		n := min(rapid.IntRange(1, longest).Draw(t, "length"), len(payload)-place)
		s := rapid.IntRange(0, len(slabs)-1).Draw(t, "slab")
		free[s] += uint64(rapid.IntRange(0, 30).Draw(t, "distance"))
		copy(slabs[s][free[s]:], payload[place:place+n])
		fragments = append(fragments, shm.Fragment{Offset: free[s], Place: uint32(place), Length: uint16(n), Slab: uint16(s)})
		free[s] += uint64(n)
		place += n
	}
	if rapid.Bool().Draw(t, "shuffled") {
		fragments = rapid.Permutation(fragments).Draw(t, "order")
	}
	return fragments
}

// pages returns n zero bytes in separate whole pages, because a GPU registers whole
// pages. Slabs and the memory that processes share use them.
func pages(t fataler, n int) []byte {
	b, err := unix.Mmap(-1, 0, max(1, n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		t.Fatalf("map %d bytes: %v", n, err)
	}
	return b[:n]
}

// fataler is a *testing.T or a *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// bench is a device with slabs and tensors, and what is needed to close it.
type bench struct {
	Target
	slabs   [][]byte
	tensors []device.Tensors
	shared  []byte
}

// newBench opens and binds a device with slabs of these sizes. Its largest batch has
// `images` images, and it has two outputs: of 4 and of 12 bytes per image.
func newBench(t fataler, open Open, in models.Input, images int, slabBytes ...int) *bench {
	t.Helper()
	return newSizedBench(t, open, in, sizesOf(in, images), slabBytes...)
}

func newSizedBench(t fataler, open Open, in models.Input, sizes device.Sizes, slabBytes ...int) *bench {
	t.Helper()
	target, err := open(in)
	if err != nil {
		t.Fatalf("open device for %+v: %v", in, err)
	}
	b := &bench{Target: target}
	if err := b.Bind(); err != nil {
		t.Fatalf("bind: %v", err)
	}
	for _, n := range slabBytes {
		s := pages(t, n)
		b.slabs = append(b.slabs, s)
		if err := b.AddSlab(s); err != nil {
			t.Fatalf("add slab: %v", err)
		}
	}
	// At least as much as any device needs.
	b.shared = pages(t, device.Slots*sharedBytes(sizes))
	if b.tensors, err = b.Tensors(b.shared, sizes); err != nil {
		t.Fatalf("tensors: %v", err)
	}
	if len(b.tensors) != device.Slots {
		t.Fatalf("tensors for %d slots, want %d", len(b.tensors), device.Slots)
	}
	for slot, have := range b.tensors {
		var outputs, results []int
		for o, output := range have.Outputs {
			outputs, results = append(outputs, output.Len()), append(results, len(have.Results[o]))
		}
		if len(have.States) != sizes.States {
			t.Fatalf("slot %d has %d bytes for states, want %d", slot, len(have.States), sizes.States)
		}
		if have.Input.Len() != sizes.Input || !slices.Equal(outputs, sizes.Outputs) || !slices.Equal(results, sizes.Outputs) {
			t.Fatalf("slot %d has tensors of %d, %v and %v bytes, want %+v", slot, have.Input.Len(), outputs, results, sizes)
		}
	}
	return b
}

func (b *bench) close(t fataler) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Errorf("close device: %v", err)
	}
	for _, s := range append(b.slabs, b.shared) {
		if err := unix.Munmap(s[:cap(s)]); err != nil {
			t.Errorf("unmap: %v", err)
		}
	}
}

func (b *bench) wait(t fataler, slot int) {
	t.Helper()
	inferred, err := b.Wait(slot)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	if inferred < 0 {
		t.Errorf("what follows the gather took %v", inferred)
	}
	if done, err := b.Done(slot); !done || err != nil {
		t.Errorf("after Wait, Done = %v, %v", done, err)
	}
}

func sizesOf(in models.Input, images int) device.Sizes {
	return device.Sizes{Input: in.BatchBytes(images), Outputs: []int{4 * images, 12 * images}, States: 192}
}

func sharedBytes(sizes device.Sizes) int {
	n := models.Aligned(sizes.Input)
	for _, o := range sizes.Outputs {
		n += models.Aligned(o)
	}
	return n
}

func agrees(t *rapid.T, open Open) {
	in := Inputs().Draw(t, "input")
	const images = 2
	slabBytes := make([]int, rapid.IntRange(1, 3).Draw(t, "slabs"))
	for i := range slabBytes {
		// Room for fragments of one byte with the max distance between all of them.
		slabBytes[i] = images * in.WireBytes() * 31
	}
	target := newBench(t, open, in, images+1, slabBytes...)
	defer target.close(t)
	slabs := target.slabs
	free := make([]uint64, len(slabs))
	var want []byte
	var reqs []device.Request
	for range images {
		p := picture(t, in)
		want = append(want, Reference(in, p)...)
		reqs = append(reqs, device.Request{Fragments: scatter(t, slabs, free, p), Bytes: uint32(len(p))})
	}
	slot := rapid.IntRange(0, device.Slots-1).Draw(t, "slot")
	input := target.tensors[slot].Input
	if err := target.Pad(slot, input, 0, images+1); err != nil {
		t.Fatalf("pad: %v", err)
	}
	refused := []bool{true, true}
	if err := target.Gather(slot, input, reqs, refused); err != nil {
		t.Fatalf("gather: %v", err)
	}
	target.wait(t, slot)
	if refused[0] || refused[1] {
		t.Fatalf("sound requests are refused: %v", refused)
	}
	got := target.Read(input)
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

// tensors gathers requests of several tensors, which are divided among the inputs however they are cut into
// fragments.
func tensors(t *rapid.T, open Open) {
	const images, room = 3, 4
	var in models.Input
	for range rapid.IntRange(2, 4).Draw(t, "inputs") {
		part := models.Part{At: models.Aligned(in.BatchBytes(room)), Bytes: rapid.SampledFrom([]int{1, 4, 8, 3000}).Draw(t, "bytes")}
		if len(in.Parts) == 0 {
			part.At = 0
		}
		in.Parts, in.Width = append(in.Parts, part), in.Width+part.Bytes
	}
	in.Height, in.Channels, in.WireType, in.WireLayout, in.TensorType, in.TensorLayout = 1, 1, models.U8, models.HWC, models.U8, models.HWC
	target := newBench(t, open, in, room, images*in.Width*32)
	defer target.close(t)
	var want [][]byte // by image
	var reqs []device.Request
	free := make([]uint64, 1)
	for range images {
		p := picture(t, in)
		want, reqs = append(want, p), append(reqs, device.Request{Fragments: scatter(t, target.slabs, free, p), Bytes: uint32(len(p))})
	}
	spoilt := rapid.IntRange(0, images).Draw(t, "spoilt")
	if spoilt < images {
		reqs[spoilt].Bytes++
		want[spoilt] = make([]byte, in.Width)
	}
	input := target.tensors[0].Input
	target.Write(input, bytes.Repeat([]byte{0xee}, input.Len()))

	refused := make([]bool, images)
	if err := target.Gather(0, input, reqs, refused); (err != nil) != (spoilt < images) {
		t.Fatal(err)
	}
	target.wait(t, 0)
	if at := slices.Index(refused, true); at != spoilt && (at >= 0 || spoilt < images) {
		t.Fatalf("refused: %v, want request %d", refused, spoilt)
	}
	check := func(what string) {
		got := target.Read(input)
		place := 0
		for k, p := range in.Parts {
			for i, image := range want {
				if at := p.At + i*p.Bytes; !bytes.Equal(got[at:at+p.Bytes], image[place:place+p.Bytes]) {
					t.Fatalf("%s: image %d of input %d differs", what, i, k)
				}
			}
			place += p.Bytes
		}
	}
	check("gather")
	if err := target.Pad(0, input, 1, images); err != nil {
		t.Fatal(err)
	}
	target.wait(t, 0)
	want[1], want[2] = make([]byte, in.Width), make([]byte, in.Width)
	check("padding")
	if err := target.Gather(0, input.Slice(0, in.BatchBytes(images)-1), reqs, refused); err == nil {
		t.Error("gathers beyond the memory")
	}
}

// three returns a device for 2 x 2 pictures of one byte per pixel, with a slab of 12
// bytes, room for four images, and three valid requests.
func three(t *testing.T, open Open) (*bench, []device.Request) {
	t.Helper()
	b := newBench(t, open, small, 4, 12)
	t.Cleanup(func() { b.close(t) })
	for i := range b.slabs[0] {
		b.slabs[0][i] = byte(i + 1)
	}
	reqs := make([]device.Request, 3)
	for i := range reqs {
		reqs[i] = device.Request{Bytes: 4, Fragments: []shm.Fragment{{Offset: uint64(4*i + 3), Place: 3, Length: 1}, {Offset: uint64(4 * i), Length: 3}}}
	}
	return b, reqs
}

var small = models.Input{
	Height: 2, Width: 2, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.HWC,
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
		name     string
		spoil    func(r *device.Request)
		fragment int
		want     error
	}{
		{"of another size", func(r *device.Request) { r.Bytes = 5 }, -1, device.ErrSize},
		{"of another size than its picture", func(r *device.Request) { r.Picture = wire.Picture{Format: wire.FormatRGB8, Width: 1, Height: 1} }, -1, device.ErrPicture},
		{"with a fragment outside the slab", func(r *device.Request) { r.Fragments[0].Offset = 12 }, 0, device.ErrOutsideSlab},
		{"with a fragment in no slab", func(r *device.Request) { r.Fragments[1].Slab = 1 }, 1, device.ErrSlab},
		{"with a gap", func(r *device.Request) { r.Fragments = r.Fragments[:1] }, -1, device.ErrGap},
		{"with an overlap", func(r *device.Request) { r.Fragments[0].Place = 2 }, -1, device.ErrOverlap},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.LockOSThread()
			t.Cleanup(runtime.UnlockOSThread) // after the device is closed, on its thread
			target, reqs := three(t, open)
			c.spoil(&reqs[1])
			refused := make([]bool, 3)
			err := target.Gather(0, target.tensors[0].Input, reqs, refused)
			var re *device.RequestError
			if !errors.As(err, &re) || re.Request != 1 || re.Fragment != c.fragment || !errors.Is(err, c.want) {
				t.Errorf("gather = %v, want request 1, fragment %d, %v", err, c.fragment, c.want)
			}
			target.wait(t, 0)
			if !slices.Equal(refused, []bool{false, true, false}) {
				t.Errorf("refused = %v", refused)
			}
			if got, want := target.Read(target.tensors[0].Input)[:48], floats(1, 2, 3, 4, 0, 0, 0, 0, 9, 10, 11, 12); !bytes.Equal(got, want) {
				t.Errorf("tensor is\n%x, want\n%x", got, want)
			}
		})
	}
}

func tooSmall(t *testing.T, open Open) {
	target, reqs := three(t, open)
	input := target.tensors[0].Input
	if err := target.Gather(0, input.Slice(0, 47), reqs, make([]bool, 3)); err == nil {
		t.Error("three images went into 47 bytes")
	}
	if err := target.Pad(0, input, 0, 5); err == nil {
		t.Error("five images were padded in a tensor of four")
	}
	if err := target.Pad(0, input, 2, 1); err == nil {
		t.Error("images were padded from 2 up to 1")
	}
	if err := target.Fetch(0, 5); err == nil {
		t.Error("the outputs of five images were fetched from tensors of four")
	}
	target.wait(t, 0) // no work is left over
}

func noSlot(t *testing.T, open Open) {
	target, reqs := three(t, open)
	for _, slot := range []int{-1, device.Slots} {
		input := target.tensors[0].Input
		if err := target.Gather(slot, input, reqs, make([]bool, 3)); err == nil {
			t.Errorf("gathers in slot %d", slot)
		}
		if err := target.Pad(slot, input, 0, 1); err == nil {
			t.Errorf("pads in slot %d", slot)
		}
		if err := target.Fetch(slot, 1); err == nil {
			t.Errorf("fetches from slot %d", slot)
		}
		if _, err := target.Done(slot); err == nil {
			t.Errorf("knows whether slot %d is done", slot)
		}
		if _, err := target.Wait(slot); err == nil {
			t.Errorf("waits for slot %d", slot)
		}
	}
}

func tooLittleShared(t *testing.T, open Open) {
	target, err := open(small)
	if err != nil {
		t.Fatalf("open device: %v", err)
	}
	if err := target.Bind(); err != nil {
		t.Fatalf("bind: %v", err)
	}
	shared := pages(t, 15)
	if _, err := target.Tensors(shared, sizesOf(small, 4)); !errors.Is(err, device.ErrShared) {
		t.Errorf("tensors in 15 bytes: %v, want %v", err, device.ErrShared)
	}
	if err := target.Close(); err != nil {
		t.Errorf("close device: %v", err)
	}
	if err := unix.Munmap(shared[:cap(shared)]); err != nil {
		t.Errorf("unmap: %v", err)
	}
}

func pads(t *testing.T, open Open) {
	target, reqs := three(t, open)
	input := target.tensors[1].Input
	target.Write(input, bytes.Repeat([]byte{0xff}, input.Len()))
	if err := target.Gather(1, input, reqs[:1], make([]bool, 1)); err != nil {
		t.Fatalf("gather: %v", err)
	}
	if err := target.Pad(1, input, 1, 3); err != nil {
		t.Fatalf("pad: %v", err)
	}
	target.wait(t, 1)
	want := append(floats(1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0), bytes.Repeat([]byte{0xff}, 16)...)
	if got := target.Read(input); !bytes.Equal(got, want) {
		t.Errorf("tensor is\n%x, want\n%x", got, want)
	}
}

func fetches(t *testing.T, open Open) {
	target, reqs := three(t, open)
	for slot := range device.Slots {
		have := target.tensors[slot]
		var want [][]byte
		for o, output := range have.Outputs {
			data := make([]byte, output.Len())
			for i := range data {
				data[i] = byte(100*slot + 50*o + i + 1)
			}
			target.Write(output, data)
			want = append(want, data)
		}
		if err := target.Gather(slot, have.Input, reqs, make([]bool, 3)); err != nil {
			t.Fatalf("gather: %v", err)
		}
		if err := target.Fetch(slot, 3); err != nil {
			t.Fatalf("fetch: %v", err)
		}
		target.wait(t, slot)
		for o := range want {
			if first := len(want[o]) / 4 * 3; !bytes.Equal(have.Results[o][:first], want[o][:first]) {
				t.Errorf("slot %d, output %d: %x, want %x", slot, o, have.Results[o][:first], want[o][:first])
			}
		}
	}
}

// An upload is in the input, and a download has the output at its place in the stream.
func copies(t *testing.T, open Open) {
	target, _ := three(t, open)
	for slot := range device.Slots {
		have := target.tensors[slot]
		data, got := make([]byte, 8), make([]byte, 8)
		for i := range data {
			data[i] = byte(slot + i + 1)
		}
		target.Write(have.Outputs[0], []byte("the outputs"))
		target.Write(have.Input, make([]byte, have.Input.Len()))
		must.OK(t, target.Upload(slot, have.Input.Slice(8, 16), data))
		must.OK(t, target.Download(slot, got, have.Outputs[0].Slice(4, 12)))
		must.OK(t, target.Fetch(slot, 0))
		target.wait(t, slot)
		if want := slices.Concat(make([]byte, 8), data, make([]byte, have.Input.Len()-16)); !bytes.Equal(target.Read(have.Input), want) {
			t.Errorf("slot %d has %x, want %x", slot, target.Read(have.Input), want)
		}
		if !bytes.HasPrefix(got, []byte("outputs")) {
			t.Errorf("slot %d: got %q", slot, got)
		}
		if target.Upload(slot, have.Input, data) == nil || target.Download(slot, got, have.Outputs[0]) == nil {
			t.Errorf("slot %d copies between memory of different sizes", slot)
		}
	}
	if target.Upload(device.Slots, device.Buffer{}, nil) == nil {
		t.Error("uploads to a slot that does not exist")
	}
}

// Slots 0 and 1 contain the results of their own calls, however the calls are
// interleaved.
func together(t *testing.T, open Open) {
	target, reqs := three(t, open)
	n := target.InFlight()
	if n != 1 && n != 2 {
		t.Fatalf("%d batches in flight, want 1 or 2", n)
	}
	for round := range 50 {
		for slot := range n {
			have := target.tensors[slot]
			target.Write(have.Outputs[0], []byte{byte(round), byte(slot), 1, 2})
			if err := target.Gather(slot, have.Input, reqs[slot:slot+1], make([]bool, 1)); err != nil {
				t.Fatalf("gather: %v", err)
			}
			if err := target.Pad(slot, have.Input, 1, 1+slot); err != nil {
				t.Fatalf("pad: %v", err)
			}
			if err := target.Fetch(slot, 1); err != nil {
				t.Fatalf("fetch: %v", err)
			}
		}
		for slot := range n {
			target.wait(t, slot)
			have := target.tensors[slot]
			first := float32(4*slot + 1)
			if got, want := target.Read(have.Input)[:16], floats(first, first+1, first+2, first+3); !bytes.Equal(got, want) {
				t.Fatalf("round %d: input of slot %d is %x, want %x", round, slot, got, want)
			}
			if got, want := have.Results[0][:4], []byte{byte(round), byte(slot), 1, 2}; !bytes.Equal(got, want) {
				t.Fatalf("round %d: results of slot %d are %x, want %x", round, slot, got, want)
			}
		}
	}
}
