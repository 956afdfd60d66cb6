//go:build gpu

package gpu

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/device/cpu"
	"github.com/penstock/penstock/libml/device/gpu"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// rig is a model on a device: pictures in a slab are gathered, inferred and fetched,
// with nothing else of libml.
type rig struct {
	t         *testing.T
	card      *models.Card
	device    device.Device
	framework libml.Framework
	tensors   []device.Tensors
	pictures  int
}

// largest is the largest batch of a rig.
const largest = 8

// newRig brings a model up on a device, with batches of 1 and of largest in slots 0
// and 1. The calling goroutine is locked to its thread for good.
func newRig(t *testing.T, card *models.Card, pictures [][]byte, open func(models.Input) (device.Device, error)) *rig {
	t.Helper()
	runtime.LockOSThread()
	r := &rig{t: t, card: card, pictures: len(pictures)}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	r.device, err = open(card.Input)
	must(err)
	must(r.device.Bind())
	slab, shared := pages(t, len(pictures)*card.Input.WireBytes()), pages(t, 64<<20)
	for i, p := range pictures {
		copy(slab[i*len(p):], p)
	}
	must(r.device.AddSlab(slab))
	sizes := device.Sizes{Input: largest * card.Input.TensorBytes()}
	for i := range card.Outputs {
		sizes.Outputs = append(sizes.Outputs, largest*card.Outputs[i].Bytes())
	}
	r.tensors, err = r.device.Tensors(shared, sizes)
	must(err)
	// Before the memory goes, which cleans up first: last in, first out.
	t.Cleanup(func() {
		if err := r.framework.Deinit(); err != nil {
			t.Error(err)
		}
		if err := r.device.Close(); err != nil {
			t.Error(err)
		}
	})
	r.framework = onnx.New()
	environment := libml.Environment{Card: card, Threads: 4, Log: zerolog.Nop(), Device: r.device.Name()}
	if p, ok := r.device.(device.Partitioned); ok {
		environment.Stream = p.Stream
	}
	must(r.framework.Init(environment))
	must(r.framework.LoadModel())
	_, err = r.framework.LinkModel()
	must(err)
	r.configure(0)
	if r.device.InFlight() > 1 {
		r.configure(1)
	}
	return r
}

// configure prepares a slot for batches of 1 and of largest.
func (r *rig) configure(slot int) {
	r.t.Helper()
	for _, n := range []int{1, largest} {
		var outputs [][]byte
		for i, out := range r.tensors[slot].Outputs {
			outputs = append(outputs, out[:n*r.card.Outputs[i].Bytes()])
		}
		if _, err := r.framework.ConfigureBatch(slot, n, r.tensors[slot].Input[:n*r.card.Input.TensorBytes()], outputs); err != nil {
			r.t.Fatal(err)
		}
	}
}

// begin queues a batch of n pictures from that one on; end waits for it and returns
// its outputs.
func (r *rig) begin(slot, n, from int) {
	r.t.Helper()
	size := r.card.Input.WireBytes()
	requests, refused := make([]device.Request, n), make([]bool, n)
	for i := range requests {
		at := (from + i) % r.pictures * size
		requests[i].Bytes = uint32(size)
		for place := 0; place < size; place += wire.DefaultPieceBytes {
			requests[i].Pieces = append(requests[i].Pieces, shm.Piece{
				Offset: uint64(at + place), Place: uint32(place), Length: uint16(min(wire.DefaultPieceBytes, size-place)),
			})
		}
	}
	if err := r.device.Gather(slot, r.tensors[slot].Input[:n*r.card.Input.TensorBytes()], requests, refused); err != nil {
		r.t.Fatal(err)
	}
	if err := r.framework.InferBatch(slot, n); err != nil {
		r.t.Fatal(err)
	}
	if err := r.device.Fetch(slot, n); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) end(slot, n int) (outputs [][]byte) {
	r.t.Helper()
	if _, err := r.device.Wait(slot); err != nil {
		r.t.Fatal(err)
	}
	for i, out := range r.tensors[slot].Results {
		outputs = append(outputs, bytes.Clone(out[:n*r.card.Outputs[i].Bytes()]))
	}
	return outputs
}

// pages is zeroed memory of its own pages, until the test's end.
func pages(t *testing.T, n int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return mem
}

// apartBy is the largest difference between two outputs, as a part of the largest
// value in either; infinite where one has a NaN that the other has not.
func apartBy(a, b []byte) float64 {
	most, scale := 0.0, 1e-30
	for i := 0; i < len(a); i += 4 {
		x := float64(math.Float32frombits(binary.LittleEndian.Uint32(a[i:])))
		y := float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i:])))
		if math.IsNaN(x) || math.IsNaN(y) {
			return math.Inf(1)
		}
		most, scale = max(most, math.Abs(x-y)), max(scale, math.Abs(x), math.Abs(y))
	}
	return most / scale
}

// Every output of every model is the CPU's: to 1e-3 of the largest value for f32
// models; to 5e-2 for those of fp16, which the CPU widens to f32 and the GPU rounds
// after each of some fifty layers. So it is in batches of one and of eight, in either
// slot, alone and with another batch in flight, and after a move to two groups of
// multiprocessors.
func TestONNXGivesTheCPUsOutputs(t *testing.T) {
	cards := map[string]*models.Card{}
	for _, name := range zoo.Names() {
		card, err := (zoo.Registry{Cache: t.TempDir()}).Find(name)
		if err != nil {
			t.Fatal(err)
		}
		cards[name] = card
	}
	for _, name := range []string{"mobilenetv2", "resnet50", "vgg19", "alexnet"} {
		card, err := models.ReadCard(exported(t, name))
		if err != nil {
			t.Fatal(err)
		}
		cards[name] = card
	}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range cards {
			if !yield(name) {
				return
			}
		}
	}) {
		t.Run(name, func(t *testing.T) { compare(t, cards[name]) })
	}
}

func compare(t *testing.T, card *models.Card) {
	card.Batches = []int{1, largest}
	allowed := 1e-3
	if card.Input.TensorType == models.F16 {
		allowed = 5e-2
	}
	random := rand.New(rand.NewPCG(1, 2))
	pictures := make([][]byte, 2*largest)
	for i := range pictures {
		pictures[i] = make([]byte, card.Input.WireBytes())
		base := random.IntN(200)
		for j := range pictures[i] {
			pictures[i][j] = byte(base + random.IntN(56))
		}
	}
	host := newRig(t, card, pictures, func(in models.Input) (device.Device, error) { return cpu.New(in, nil) })
	var want [][][]byte // by picture, by output
	for i := range pictures {
		host.begin(0, 1, i)
		want = append(want, host.end(0, 1))
	}
	r := newRig(t, card, pictures, func(in models.Input) (device.Device, error) { return gpu.New(in, gpu.Options{Device: "cuda"}) })
	worst := 0.0
	check := func(what string, got [][]byte, n, from int) {
		t.Helper()
		for i := range n {
			for o := range got {
				size := card.Outputs[o].Bytes()
				d := apartBy(got[o][i*size:(i+1)*size], want[(from+i)%len(pictures)][o])
				worst = max(worst, d)
				if d > allowed {
					t.Errorf("%s: picture %d, output %s is %.2g of its largest value from the CPU's, want at most %.2g", what, from+i, card.Outputs[o].Name, d, allowed)
				}
			}
		}
	}
	alone := func(what string, slots ...int) {
		for _, slot := range slots {
			for _, n := range []int{1, largest} {
				r.begin(slot, n, slot+n)
				check(fmt.Sprintf("%s, slot %d, batch %d", what, slot, n), r.end(slot, n), n, slot+n)
			}
		}
	}
	alone("alone", 0, 1)
	for i := range 5 {
		r.begin(0, largest, i)
		r.begin(1, largest, i+3)
		check("two in flight, slot 0", r.end(0, largest), largest, i)
		check("two in flight, slot 1", r.end(1, largest), largest, i+3)
	}
	if err := r.device.(device.Partitioned).Repartition([]int{2, 3}, []int{0, 1}); err != nil {
		t.Fatal(err)
	}
	r.configure(2)
	r.configure(3)
	alone("on two groups", 2, 3)
	t.Logf("differs by %.2g of the largest value at most, %.2g allowed", worst, allowed)
}
