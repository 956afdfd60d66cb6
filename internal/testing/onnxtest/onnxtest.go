// Package onnxtest is a test suite for the framework onnx on a GPU; test/gpu runs it on a
// GPU server. Package onnx's own tests simulate a model on the fake driver.
//
//	func TestMain(m *testing.M) { onnxtest.Child(); os.Exit(m.Run()) }
//	func TestONNX(t *testing.T) { onnxtest.Run(t, onnxtest.Zoo(t)...) }
package onnxtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/libml/weights"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/zoo"
)

// tolerance is the max distance of an answer's value from the CPU's, divided by one plus
// the value's size. It covers another order of summing in f32 and, for models in f16, the
// 11 bits of mantissa through some fifty layers. TF32 is off.
func tolerance(card *models.Card) float64 {
	if card.Input.TensorType == models.F16 {
		return 2e-2
	}
	return 1e-3
}

// hostMemory is what evicted models pin.
var hostMemory = weights.NewHostMemory(0, slog.New(slog.DiscardHandler))

// Zoo returns the cards of the shipped models.
func Zoo(t testing.TB) (cards []*models.Card) {
	t.Helper()
	for _, name := range zoo.Names() {
		card, err := (zoo.Registry{Cache: t.TempDir()}).Find(name)
		must.OK(t, err)
		cards = append(cards, card)
	}
	return cards
}

// Run runs the suite for each model on the first GPU and leaves nothing on it. A model
// takes some seconds, and more if cuDNN compiles its kernels.
func Run(t *testing.T, cards ...*models.Card) {
	t.Run("LoadingTouchesNoGPU", func(t *testing.T) { touchesNothing(t, cards[0]) })
	for _, card := range cards {
		t.Run(card.Name, func(t *testing.T) {
			b := newHarness(t, card)
			run(t, b, append([]test{{"AnswersAreTheCPUs", answers}}, common...)...)
			b.close()
			t.Run("DeinitLeavesNothing", func(t *testing.T) { leavesNothing(t, card) })
		})
	}
}

// test is one test of a linked model.
type test struct {
	name string
	run  func(*testing.T, *harness)
}

var (
	common = []test{
		{"ARowOfABatchIsTheImagesOwnAnswer", rows},
		{"EverySizeStaysRightWhenTheOthersHaveRun", sizes},
		{"InferBatchQueuesAndReturns", queues},
		{"InferBatchAllocatesNothing", allocatesNothing},
		{"BatchesInFlightDoNotMeet", inFlight},
		{"ConfiguringAgainReplacesTheBuffers", replaces},
		{"APartitionGivesTheSameAnswersBitForBit", partitions},
		{"ASlotIsConfiguredBesideABatchInFlight", configuresConcurrently},
	}
	shared = append([]test{{"AnswersAreThoseOfPrivateWeights", asPrivate}}, common...)
)

func run(t *testing.T, b *harness, tests ...test) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			runtime.LockOSThread()
			must.OK(t, b.context.Bind())
			test.run(t, b)
		})
	}
}

// harness is the harness: a model that is linked on the GPU, streams, and the same model on
// the CPU.
type harness struct {
	t       *testing.T
	card    *models.Card
	context *cuda.Context
	uuid    string
	streams [device.Slots]cuda.Stream
	gpu     framework.Framework
	cpu     framework.Framework
	closers []func() error
	evicts  bool // frameworks can evict their weights
}

func newHarness(t *testing.T, card *models.Card) *harness { return newHarnessOver(t, card, false) }

// newSharedHarness returns a model whose weights are shared. It is linked twice, because the
// first link prepares it.
func newSharedHarness(t *testing.T, card *models.Card) *harness { return newHarnessOver(t, card, true) }

func newHarnessOver(t *testing.T, card *models.Card, shared bool) *harness {
	t.Helper()
	runtime.LockOSThread()
	b := &harness{t: t, card: card}
	found, err := cuda.Find("cuda")
	b.uuid = found.UUID()
	must.OK(t, err)
	if b.context, err = found.OpenContext(); err == nil {
		err = b.context.Bind()
	}
	must.OK(t, err)
	b.closers = append(b.closers, b.context.Close)
	for i := range b.streams {
		if b.streams[i], err = b.context.NewStream(); err != nil {
			t.Fatal(err)
		}
		b.closers = append(b.closers, b.streams[i].Destroy)
	}
	stream := func(slot int) uintptr { return b.streams[slot].Handle() }
	if !shared {
		b.gpu = b.framework(found.UUID(), stream, nil)
	} else {
		h := &held{context: b.context, files: make(map[string]framework.Weights)}
		b.closers = append(b.closers, h.close)
		for i := range 2 {
			if b.gpu != nil {
				must.OK(t, b.gpu.Deinit())
				b.closers = b.closers[:len(b.closers)-1]
			}
			b.gpu = b.framework(found.UUID(), stream, h.weights)
			if h.asked != i+1 || len(h.files) != 1 {
				t.Fatalf("it asked %d times for weights, which are %d files", h.asked, len(h.files))
			}
		}
	}
	b.cpu = b.framework(framework.DeviceCPU, nil, nil)
	return b
}

func (b *harness) framework(device string, stream func(int) uintptr, weights func(string) (framework.Weights, error)) framework.Framework {
	b.t.Helper()
	f := onnx.New()
	env := framework.Environment{Card: b.card, Threads: runtime.GOMAXPROCS(0), Log: slog.New(zerolog.NewSlogHandler(zerolog.New(os.Stderr))), Device: device, Stream: stream, Weights: weights}
	f.UseNode(framework.Node{Evict: b.evicts, HostMemory: hostMemory})
	if err := f.Init(env); err != nil {
		b.t.Fatal(err)
	}
	b.closers = append(b.closers, f.Deinit)
	must.OK(b.t, f.LoadModel())
	began := time.Now()
	persistent, err := f.LinkModel()
	must.OK(b.t, err)
	b.t.Logf("%s on %s: linked for %v in %v, %.1f MB", b.card.Name, device, b.card.Batches, time.Since(began).Round(time.Millisecond), float64(persistent)/1e6)
	return f
}

func (b *harness) close() {
	for _, f := range slices.Backward(b.closers) {
		if err := f(); err != nil {
			b.t.Errorf("close: %v", err)
		}
	}
	b.closers = nil
}

// tensors belong to a batch, in the GPU's memory.
type tensors struct {
	input   device.Buffer
	outputs []device.Buffer
}

// make allocates tensors that live as long as the bed.
func (b *harness) make(t *testing.T, n int) tensors {
	t.Helper()
	at := func(bytes int) device.Buffer {
		p, err := b.context.Allocate(bytes)
		must.OK(t, err)
		b.closers = append(b.closers, func() error { return b.context.Free(p) })
		return device.DeviceBuffer(uintptr(p), bytes)
	}
	x := tensors{input: at(n * b.card.Input.TensorBytes())}
	for i := range b.card.Outputs {
		x.outputs = append(x.outputs, at(n*b.card.Outputs[i].Bytes()))
	}
	return x
}

// prefix returns the tensors of a smaller batch in the same memory.
func (b *harness) prefix(x tensors, n int) tensors {
	y := tensors{input: x.input.Slice(0, n*b.card.Input.TensorBytes())}
	for i, o := range x.outputs {
		y.outputs = append(y.outputs, o.Slice(0, n*b.card.Outputs[i].Bytes()))
	}
	return y
}

// noise returns the input of n images, as a gather would normalise random pixels.
func (b *harness) noise(n int, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	in := b.card.Input
	in.WireType = models.U8
	picture, out := make([]byte, in.WireBytes()), make([]byte, n*in.TensorBytes())
	for i := range n {
		for k := range picture {
			picture[k] = byte(rng.IntN(256))
		}
		if err := cpu.Direct(in, picture, out[i*in.TensorBytes():][:in.TensorBytes()]); err != nil {
			panic(err) // the card was read, so its input can be gathered
		}
	}
	return out
}

func (b *harness) write(t *testing.T, dst device.Buffer, src []byte) {
	t.Helper()
	b.move(t, len(src), func(host []byte) (to, from cuda.Pointer) { copy(host, src); return at(dst), cuda.At(host) })
}

// read returns all outputs and clears them.
func (b *harness) read(t *testing.T, x tensors) (out []float32) {
	t.Helper()
	for _, o := range x.outputs {
		b.move(t, o.Len(), func(host []byte) (to, from cuda.Pointer) { return cuda.At(host), at(o) }, func(host []byte) {
			values := make([]float32, len(host)/4)
			if _, err := binary.Decode(host, binary.LittleEndian, values); err != nil {
				t.Fatal(err)
			}
			out = append(out, values...)
		})
		s := cuda.Stream{}
		must.OK(t, errors.Join(s.Set(at(o), 0, o.Len()), s.Synchronize()))
	}
	return out
}

func at(b device.Buffer) cuda.Pointer { return cuda.Pointer(b.Address()) }

// move copies through pinned memory of this length.
func (b *harness) move(t *testing.T, bytes int, ends func(host []byte) (to, from cuda.Pointer), then ...func([]byte)) {
	t.Helper()
	host, err := b.context.AllocateHost(bytes)
	must.OK(t, err)
	defer b.context.FreeHost(host)
	to, from := ends(host)
	s := cuda.Stream{}
	must.OK(t, errors.Join(s.Copy(to, from, len(host)), s.Synchronize()))
	for _, f := range then {
		f(host)
	}
}

func (b *harness) configure(t *testing.T, slot, n int, x tensors) int64 {
	t.Helper()
	ephemeral, err := b.gpu.ConfigureBatch(slot, n, []device.Buffer{x.input}, x.outputs)
	must.OK(t, err)
	return ephemeral
}

func (b *harness) infer(t *testing.T, slot, n int) {
	t.Helper()
	must.OK(t, b.gpu.InferBatch(slot, n))
	must.OK(t, b.streams[slot].Synchronize())
}

// answer returns the GPU's answer to an input in a slot with separate memory.
func (b *harness) answer(t *testing.T, slot, n int, x tensors, input []byte) []float32 {
	t.Helper()
	b.configure(t, slot, n, x)
	b.write(t, x.input, input)
	b.infer(t, slot, n)
	return b.read(t, x)
}

func (b *harness) onCPU(t *testing.T, n int, input []byte) (out []float32) {
	t.Helper()
	var outputs [][]byte
	for i := range b.card.Outputs {
		outputs = append(outputs, make([]byte, n*b.card.Outputs[i].Bytes()))
	}
	if _, err := b.cpu.ConfigureBatch(0, n, device.HostBuffers(input), device.HostBuffers(outputs...)); err != nil {
		t.Fatal(err)
	}
	must.OK(t, b.cpu.InferBatch(0, n))
	for _, o := range outputs {
		values := make([]float32, len(o)/4)
		if _, err := binary.Decode(o, binary.LittleEndian, values); err != nil {
			t.Fatal(err)
		}
		out = append(out, values...)
	}
	return out
}

// furthest returns the largest difference, divided by one plus the value's size.
func furthest(want, got []float32) (worst float64) {
	if len(want) != len(got) {
		return math.Inf(1)
	}
	for i := range want {
		d := math.Abs(float64(want[i])-float64(got[i])) / (1 + math.Abs(float64(want[i])))
		if !(d <= worst) { // true if d is NaN, which counts as the largest
			worst = d
		}
		if math.IsNaN(d) {
			return math.Inf(1)
		}
	}
	return worst
}

// farRows returns how many of n rows have a value that is further from the expected one than allowed. A
// row is what one image or sentence has in a model's only output.
func farRows(n int, want, got []float32, allowed float64) (far int) {
	size := len(want) / n
	for i := range n {
		if furthest(want[i*size:(i+1)*size], got[i*size:(i+1)*size]) > allowed {
			far++
		}
	}
	return far
}

// isIndex reports whether answers are numbers of words or classes.
func isIndex(answer []float32) bool {
	return !slices.ContainsFunc(answer, func(x float32) bool { return x != float32(math.Trunc(float64(x))) })
}

// answers compares answers with those of the CPU. If they are numbers of words, CPU and GPU may choose
// different words of nearly equal scores, because they round f16 differently. One row in 16 may then differ.
func answers(t *testing.T, b *harness) {
	for _, n := range b.card.Batches {
		x := b.make(t, n)
		for seed := range uint64(2) {
			input := b.noise(n, seed)
			want, got := b.onCPU(t, n, input), b.answer(t, 0, n, x, input)
			d := furthest(want, got)
			if len(b.card.Outputs) == 1 && isIndex(want) && isIndex(got) {
				far := farRows(n, want, got, tolerance(b.card))
				t.Logf("batch of %d: %d rows have other words than the CPU's", n, far)
				if far <= n/16 {
					d = 0
				}
			}
			if demotable := b.gpu.(framework.Demotable); !demotable.Demotable(0, n) {
				t.Errorf("batch of %d: runs node by node, not as a graph", n)
			}
			t.Logf("batch of %d: %.2g from the CPU's", n, d)
			if d > tolerance(b.card) {
				t.Errorf("batch of %d: %g from the CPU's, more than %g", n, d, tolerance(b.card))
			}
		}
	}
}

func rows(t *testing.T, b *harness) {
	n := b.card.MaxBatch()
	x, one := b.make(t, n), b.make(t, 1)
	input := b.noise(n, 3)
	all := b.answer(t, 0, n, x, input)
	size := b.card.Input.TensorBytes()
	for i := range n {
		alone := b.answer(t, 1, 1, one, input[i*size:(i+1)*size])
		var row []float32
		at := 0
		for k := range b.card.Outputs {
			values := b.card.Outputs[k].Bytes() / 4
			row = append(row, all[at+i*values:at+(i+1)*values]...)
			at += n * values
		}
		if d := furthest(alone, row); d > tolerance(b.card) {
			t.Errorf("image %d in a batch of %d is %g from its own answer", i, n, d)
		}
	}
}

func sizes(t *testing.T, b *harness) {
	x := b.make(t, b.card.MaxBatch())
	input := b.noise(b.card.MaxBatch(), 4)
	for _, n := range b.card.Batches {
		b.configure(t, 0, n, b.prefix(x, n))
	}
	run := func(n int) []float32 {
		y := b.prefix(x, n)
		b.write(t, y.input, input[:y.input.Len()])
		b.infer(t, 0, n)
		return b.read(t, y)
	}
	first := map[int][]float32{}
	for _, n := range b.card.Batches {
		first[n] = run(n)
	}
	for range 3 {
		for _, n := range b.card.Batches {
			if got := run(n); !slices.Equal(got, first[n]) {
				t.Errorf("a batch of %d answers %g from what it answered before", n, furthest(first[n], got))
			}
		}
	}
}

func queues(t *testing.T, b *harness) {
	n := b.card.MaxBatch()
	x := b.make(t, n)
	b.write(t, x.input, b.noise(n, 5))
	b.configure(t, 0, n, x)
	b.infer(t, 0, n)
	const batches = 50
	began := time.Now()
	for range batches {
		must.OK(t, b.gpu.InferBatch(0, n))
	}
	queued := time.Since(began)
	must.OK(t, b.streams[0].Synchronize())
	done := time.Since(began)
	t.Logf("batch of %d: queued in %v, done in %v", n, queued/batches, done/batches)
	if queued > done*9/10 {
		t.Errorf("%d batches of %d were queued in %v and done in %v: it waits", batches, n, queued, done)
	}
}

func allocatesNothing(t *testing.T, b *harness) {
	x := b.make(t, 1)
	b.configure(t, 0, 1, x)
	b.infer(t, 0, 1)
	if n := testing.AllocsPerRun(100, func() {
		must.OK(t, b.gpu.InferBatch(0, 1))
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
	must.OK(t, b.streams[0].Synchronize())
}

func inFlight(t *testing.T, b *harness) {
	var x [2]tensors
	var alone [2]map[int][]float32
	for slot := range x {
		x[slot] = b.make(t, b.card.MaxBatch())
		b.write(t, x[slot].input, b.noise(b.card.MaxBatch(), 10+uint64(slot)))
		alone[slot] = map[int][]float32{}
		for _, n := range b.card.Batches {
			b.configure(t, slot, n, b.prefix(x[slot], n))
		}
	}
	for slot := range x {
		for _, n := range b.card.Batches {
			b.infer(t, slot, n)
			alone[slot][n] = b.read(t, b.prefix(x[slot], n))
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	wrong, rounds := 0, 60
	for range rounds {
		var n [2]int
		for slot := range n {
			n[slot] = b.card.Batches[rng.IntN(len(b.card.Batches))]
		}
		for range 4 {
			for slot := range n {
				must.OK(t, b.gpu.InferBatch(slot, n[slot]))
			}
		}
		for slot := range n {
			must.OK(t, b.streams[slot].Synchronize())
		}
		for slot := range n {
			if got := b.read(t, b.prefix(x[slot], n[slot])); !slices.Equal(got, alone[slot][n[slot]]) {
				wrong++
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d batches in flight with another are not what they are alone", wrong, 2*rounds)
	}
}

func replaces(t *testing.T, b *harness) {
	n := b.card.Batches[0]
	old, now := b.make(t, n), b.make(t, n)
	input := b.noise(n, 6)
	want := b.answer(t, 0, n, old, input)
	b.write(t, now.input, input)
	b.configure(t, 0, n, now)
	b.infer(t, 0, n)
	if got := b.read(t, now); !slices.Equal(got, want) {
		t.Errorf("over other buffers it answers %g from what it answered", furthest(want, got))
	}
	if left := b.read(t, old); slices.ContainsFunc(left, func(v float32) bool { return v != 0 }) {
		t.Error("it wrote to replaced outputs")
	}
}

// partitions configures a slot on changing groups of multiprocessors, as for a running
// function.
func partitions(t *testing.T, b *harness) {
	split, err := b.context.Device().Split()
	if errors.Is(err, cuda.ErrNotSupported) {
		t.Skipf("this driver or device has no green contexts: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	x := b.make(t, b.card.MaxBatch())
	input := b.noise(b.card.MaxBatch(), 7)
	b.write(t, x.input, input)
	want := map[int][]float32{}
	whole := map[int]time.Duration{}
	for _, n := range b.card.Batches {
		y := b.prefix(x, n)
		b.configure(t, 0, n, y)
		b.infer(t, 0, n)
		want[n] = b.read(t, y)
		whole[n] = b.pace(t, 0, n)
		t.Logf("the whole device: batch of %d in %v", n, whole[n])
	}
	before := b.streams[2]
	defer func() { b.streams[2] = before }()
	groups := len(split.GroupSMs())
	for _, part := range [][2]int{{0, 2}, {2, 6}, {groups - 8, groups}} {
		var list []int
		for g := max(0, part[0]); g < min(part[1], groups); g++ {
			list = append(list, g)
		}
		green, err := b.context.Green(split, list)
		must.OK(t, err)
		if b.streams[2], err = green.NewStream(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, n := range b.card.Batches {
			b.configure(t, 2, n, b.prefix(x, n))
		}
		must.OK(t, b.streams[2].Synchronize())
		took := time.Since(began)
		var paces []string
		for _, n := range b.card.Batches {
			b.infer(t, 2, n)
			if got := b.read(t, b.prefix(x, n)); !slices.Equal(got, want[n]) {
				t.Errorf("a batch of %d on %d multiprocessors answers %g from the whole device", n, green.SMs(), furthest(want[n], got))
			}
			paces = append(paces, fmt.Sprintf("%d: %.2fx", n, float64(b.pace(t, 2, n))/float64(whole[n])))
		}
		t.Logf("%d multiprocessors: %d sizes configured in %v; time of a batch against the whole device: %s",
			green.SMs(), len(b.card.Batches), took.Round(10*time.Microsecond), strings.Join(paces, ", "))
		for _, n := range b.card.Batches {
			b.configure(t, 2, n, b.prefix(x, n)) // again: nothing of the last one remains
		}
		must.OK(t, b.streams[2].Synchronize())
		stream := b.streams[2]
		b.streams[2] = before
		for _, n := range b.card.Batches {
			b.configure(t, 2, n, b.prefix(x, n))
		}
		must.OK(t, errors.Join(stream.Destroy(), green.Destroy()))
	}
}

// pace returns how long a batch takes, with batches one after the other.
func (b *harness) pace(t *testing.T, slot, n int) time.Duration {
	t.Helper()
	b.infer(t, slot, n)
	const batches = 20
	began := time.Now()
	for range batches {
		must.OK(t, b.gpu.InferBatch(slot, n))
	}
	must.OK(t, b.streams[slot].Synchronize())
	return time.Since(began) / batches
}

func configuresConcurrently(t *testing.T, b *harness) {
	n := b.card.MaxBatch()
	x, other := b.make(t, n), b.make(t, n)
	b.write(t, x.input, b.noise(n, 8))
	b.configure(t, 0, n, x)
	b.infer(t, 0, n)
	want := b.read(t, x)
	stop, ended := make(chan struct{}), make(chan error, 1)
	configured := 0
	go func() {
		runtime.LockOSThread()
		err := b.context.Bind()
		for err == nil {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			// Slot 2 uses slot 0's lane, but must not touch its memory.
			for _, size := range b.card.Batches {
				y := b.prefix(other, size)
				if configured%2 == 0 {
					y = b.prefix(x, size)
				}
				if _, err = b.gpu.ConfigureBatch(2, size, []device.Buffer{y.input}, y.outputs); err != nil {
					break
				}
			}
			configured++
		}
		ended <- err
	}()
	wrong := 0
	for range 200 {
		b.infer(t, 0, n)
		if got := b.read(t, x); !slices.Equal(got, want) {
			wrong++
		}
	}
	close(stop)
	must.OK(t, <-ended)
	t.Logf("configured %d times beside 200 batches", configured)
	if wrong > 0 || configured == 0 {
		t.Errorf("%d of 200 batches are wrong while another slot is configured %d times", wrong, configured)
	}
}

// leavesNothing links and closes repeatedly. What the libraries keep permanently is
// allocated the first time.
func leavesNothing(t *testing.T, card *models.Card) {
	runtime.LockOSThread()
	found, err := cuda.Find("cuda")
	must.OK(t, err)
	context, err := found.OpenContext()
	if err == nil {
		err = context.Bind()
	}
	must.OK(t, err)
	defer context.Close()
	small := *card
	small.Batches = card.Batches[:1]
	cycle := func() {
		b := newHarness(t, &small)
		x := b.make(t, 1)
		for slot := range device.Slots {
			b.configure(t, slot, 1, x)
			b.infer(t, slot, 1)
		}
		b.close()
		// b.close has unbound the thread.
		must.OK(t, context.Bind())
	}
	cycle()
	free := func() int64 {
		free, _, err := context.Memory()
		must.OK(t, err)
		return free
	}
	before := free()
	const cycles = 4
	for range cycles {
		cycle()
	}
	lost := before - free()
	t.Logf("%d bytes less are free after %d more times", lost, cycles)
	if lost > cycles*mebi {
		t.Errorf("%d bytes less are free after linking %d times", lost, cycles)
	}
}

const mebi = 1 << 20

// childEnv makes this process load a model and report which devices it opened.
const childEnv = "PENSTOCK_ONNXTEST_CHILD"

// Child runs a test's other process; in the test's own process it returns immediately.
func Child() {
	path := os.Getenv(childEnv)
	if path == "" {
		return
	}
	fmt.Println(opened(path))
	os.Exit(0)
}

func opened(path string) string {
	card, err := models.ReadCard(path)
	if err != nil {
		return err.Error()
	}
	f := onnx.New()
	env := framework.Environment{Card: card, Threads: 1, Log: slog.New(slog.DiscardHandler), Device: "GPU", Stream: func(int) uintptr { return 0 }}
	began := time.Now()
	if err := f.Init(env); err != nil {
		return err.Error()
	}
	loaded := time.Since(began)
	if err := f.LoadModel(); err != nil {
		return err.Error()
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err.Error()
	}
	for _, file := range files {
		if name, err := os.Readlink(filepath.Join("/proc/self/fd", file.Name())); err == nil && strings.HasPrefix(name, "/dev/nvidia") {
			return "it opened " + name
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err.Error()
	}
	for _, library := range []string{"libonnxruntime_providers_cuda.so", "libcudnn", "libcublasLt"} {
		if !strings.Contains(string(maps), library) {
			return library + " is not loaded"
		}
	}
	return fmt.Sprintf("untouched; libraries in %v", loaded.Round(time.Millisecond))
}

func touchesNothing(t *testing.T, card *models.Card) {
	self, err := os.Executable()
	must.OK(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+filepath.Join(card.Dir, "card.yaml"))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the process that loads a model: %v\n%s", err, out)
	}
	t.Logf("%s", strings.TrimSpace(string(out)))
	if !strings.HasPrefix(string(out), "untouched") {
		t.Errorf("a process that has loaded a model: %s", out)
	}
}
