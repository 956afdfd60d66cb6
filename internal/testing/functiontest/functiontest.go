// Package functiontest has what tests of the process of an inference function need: the manager's side of the function,
// and a framework.
package functiontest

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Patience bounds waits for things that should happen at once, so that a hang fails the test.
const Patience = 30 * time.Second

// Function is the manager's side of an inference function: request table, rings, tensors, and a slab with a place for
// each slot's picture.
type Function struct {
	TB       testing.TB
	Card     *models.Card
	SLO      time.Duration
	Geometry shm.Geometry
	Table    *shm.Table
	Channel  *shm.Channel
	Tensors  *shm.Region
	Slab     *shm.Region
	Request  shm.Request        // the last one published
	GPU      *devicetest.Queued // the device of the processes; nil: a CPU

	payloads map[uint32][]byte // of slots that Replies returned
}

// Card returns a small card.
func Card() *models.Card {
	return &models.Card{
		Name: "test", Version: 7, Framework: "fake",
		Input: models.Input{
			Height: 4, Width: 5, Channels: 3,
			WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC,
		},
		Outputs: []models.Tensor{{Name: "a", Type: models.F32, Shape: []int64{3}}, {Name: "b", Type: models.F32, Shape: []int64{2, 2}}},
		Batches: []int{1, 2, 4, 8},
		SLO:     time.Hour,
		Decoder: models.Decoder{Name: "raw"},
	}
}

// New returns a function whose processes run on the CPU.
func New(t testing.TB, card *models.Card) *Function {
	t.Helper()
	return NewSized(t, card, card.TensorBytes())
}

// NewSized is New with that many bytes of shared tensors.
func NewSized(t testing.TB, card *models.Card, tensorBytes int) *Function {
	t.Helper()
	fn := &Function{TB: t, Card: card, SLO: card.SLO, Geometry: shm.Geometry{Slots: 64, MaxFragments: 2, ResultBytes: 256, PoolBytes: 64 * 256}, payloads: map[uint32][]byte{}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	fn.Table, err = shm.NewTable("test", fn.Geometry)
	must(err)
	t.Cleanup(func() { fn.Table.Close() })
	fn.Channel, err = shm.NewChannel("test", fn.Geometry)
	must(err)
	t.Cleanup(func() { fn.Channel.Close() })
	fn.Tensors, err = shm.Create("test-tensors", tensorBytes, shm.Options{Writable: true})
	must(err)
	t.Cleanup(func() { fn.Tensors.Close() })
	fn.Slab, err = shm.Create("test-slab", int(fn.Geometry.Slots)*card.Input.WireBytes(), shm.Options{})
	must(err)
	t.Cleanup(func() { fn.Slab.Close() })
	return fn
}

// Groups are the sizes of the GPU's groups of multiprocessors.
var Groups = []int{8, 8, 8, 12}

// NewGPU returns a function with a GPU that serves one process.
func NewGPU(t testing.TB, card *models.Card) *Function {
	t.Helper()
	fn := NewSized(t, card, 2*card.OutputBytes())
	fn.OpenGPU()
	return fn
}

// OpenGPU gives the function a GPU for one process.
func (fn *Function) OpenGPU() {
	fn.TB.Helper()
	d, err := cpu.New(fn.Card.Input, nil)
	if err != nil {
		fn.TB.Fatal(err)
	}
	fn.GPU = devicetest.Queue(d, fn.Card.Input, Groups...)
}

// Allocations returns how often a turn allocates: the minimum of several measurements.
// Goroutines of earlier tests allocate as they end, which counts too, but not in every
// measurement.
func Allocations(runs int, turn func()) float64 {
	least := testing.AllocsPerRun(runs, turn)
	for try := 0; try < 4 && least > 0; try++ {
		least = min(least, testing.AllocsPerRun(runs, turn))
	}
	return least
}

// Hold stops the function's GPU until release is called or the test ends. Otherwise a failed test
// would wait forever when it frees the device.
func (fn *Function) Hold() (release func()) {
	release = sync.OnceFunc(fn.GPU.Hold())
	fn.TB.Cleanup(release)
	return release
}

// Fake returns a framework for the function's device.
func (fn *Function) Fake() *Fake {
	f := NewFake()
	f.GPU = fn.GPU
	return f
}

// Publish makes a request of a picture, in two fragments, and publishes it. Before that, edit,
// if not nil, may corrupt it.
func (fn *Function) Publish(slot uint32, picture []byte, edit func(*shm.Request, []shm.Fragment)) {
	fn.TB.Helper()
	size := fn.Card.Input.WireBytes()
	at := uint64(slot) * uint64(size)
	copy(fn.Slab.Bytes()[at:][:size], picture)
	cut := size / 3
	fragments := fn.Table.Fragments(slot)
	fragments[0] = shm.Fragment{Offset: at, Length: uint16(cut)}
	fragments[1] = shm.Fragment{Offset: at + uint64(cut), Place: uint32(cut), Length: uint16(size - cut)}
	now := shm.Now()
	fn.Request = shm.Request{
		ID: slot, Fragments: 2, Bytes: uint32(size),
		FirstFragment: now, Complete: now, Deadline: now + int64(time.Hour),
	}
	if edit != nil {
		edit(&fn.Request, fragments)
	}
	fn.Table.SetRequest(slot, fn.Request)
	fn.Channel.Publish(slot)
}

// Replies waits for n replies and returns them in the order in which they arrive.
func (fn *Function) Replies(n int) []uint32 {
	fn.TB.Helper()
	slots, got := make([]uint32, n), 0
	for deadline := shm.Now() + int64(Patience); got < n; {
		if shm.Now() > deadline {
			fn.TB.Fatalf("%d replies, want %d", got, n)
		}
		m, err := fn.Channel.Receive(slots[got:], deadline)
		if err != nil {
			fn.TB.Fatal(err)
		}
		for _, slot := range slots[got : got+m] {
			fn.payloads[slot] = slices.Clone(fn.Channel.ResultBytes(slot))
		}
		got += m
	}
	if _, err := fn.Channel.Receive(nil, 0); err != nil { // all of them are read
		fn.TB.Fatal(err)
	}
	return slots
}

// Payload returns the payload of a slot that Replies returned.
func (fn *Function) Payload(slot uint32) []byte { return fn.payloads[slot] }

// Silent checks that no reply waits.
func (fn *Function) Silent() {
	fn.TB.Helper()
	slots := make([]uint32, 1)
	if n, err := fn.Channel.Receive(slots, shm.Now()); n != 0 || err != nil {
		fn.TB.Fatalf("a reply for slot %d, %v; want none", slots[0], err)
	}
}

// Status returns the status of a slot that was received.
func (fn *Function) Status(slot uint32) wire.Status {
	return wire.Status(fn.Channel.Result(slot).Status)
}

// Picture returns a picture that shows its seed. Use a seed below poison to get an answer.
func (fn *Function) Picture(seed byte) []byte {
	p := make([]byte, fn.Card.Input.WireBytes())
	for i := range p {
		p[i] = seed + byte(i*5)
	}
	return p
}

// Fake is a framework that adds up the bytes of each image; on a GPU it does so as work on the
// slot's stream. For an image whose first byte is Poison its outputs are NaN.
type Fake struct {
	Card    *models.Card
	GPU     *devicetest.Queued // nil on a CPU
	Env     framework.Environment
	Node    framework.Node
	Batches map[Key]*Batch

	Mu      sync.Mutex
	Ran     []int // sizes that ran since serve
	Slots   []int // and the slots they ran in
	Demoted []bool
	Fixed   bool // its batches cannot be demoted
	Serving bool // after the warm-up
	Calls   []string
	Steps   map[string]int // how often each was called
	Failing func(step string) error
	Idle    bool        // a batch writes nothing
	Work    func(n int) // more work of a batch of n on the GPU; may be nil
	// Unless they are nil, each batch signals entered and then waits for gate.
	Entered, Gate chan struct{}
}

// Key is a slot and a batch size.
type Key [2]int

// Batch has the arguments of ConfigureBatch.
type Batch struct {
	Input   []byte
	Outputs [][]byte
	Stream  uintptr
	Compute func()
}

// Poison is the first byte of an image whose answer is no number.
const Poison = 255

// ErrFake is for tests that let a step fail.
var ErrFake = errors.New("the fake fails")

func NewFake() *Fake { return &Fake{Batches: map[Key]*Batch{}, Steps: map[string]int{}} }

func (f *Fake) Build(card *models.Card) (framework.Framework, error) {
	f.Card = card
	return f, f.Step("build")
}

func (f *Fake) Step(name string) error {
	f.Mu.Lock()
	f.Steps[name]++
	if n := len(f.Calls); !f.Serving && (n == 0 || f.Calls[n-1] != name) {
		f.Calls = append(f.Calls, name)
	}
	failing := f.Failing
	f.Mu.Unlock()
	if failing != nil {
		return failing(name)
	}
	return nil
}

// Fail makes later steps return the error that failing returns; nil: no error.
func (f *Fake) Fail(failing func(step string) error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Failing = failing
}

// Serve ends the warm-up: batches count from now on.
func (f *Fake) Serve() {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Serving, f.Ran, f.Slots, f.Demoted = true, make([]int, 0, 1<<16), make([]int, 0, 1<<16), make([]bool, 0, 1<<16)
}

// History returns the sizes that ran since serve, and the slots.
func (f *Fake) History() (sizes, slots []int) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return slices.Clone(f.Ran), slices.Clone(f.Slots)
}

func (f *Fake) UseNode(node framework.Node) { f.Node = node }

func (f *Fake) Init(env framework.Environment) error {
	f.Env = env
	return f.Step("init")
}

func (f *Fake) LoadModel() error          { return f.Step("load") }
func (f *Fake) LinkModel() (int64, error) { return 100, f.Step("link") }
func (f *Fake) Deinit() error             { return f.Step("deinit") }

// ScratchBytes is what a fake's batch needs per image.
const ScratchBytes = 10

func (f *Fake) ConfigureBatch(slot, n int, inputs, outputs []device.Buffer) (int64, error) {
	b, view := &Batch{}, device.Buffer.Bytes
	if f.GPU != nil {
		b.Stream, view = f.Env.Stream(slot), f.GPU.View
	}
	b.Input = view(inputs[0])
	for _, out := range outputs {
		b.Outputs = append(b.Outputs, view(out))
	}
	b.Compute = func() {
		if f.Work != nil {
			f.Work(n)
		}
		f.compute(b, n)
	}
	f.Mu.Lock()
	f.Batches[Key{slot, n}] = b
	f.Mu.Unlock()
	return int64(ScratchBytes * n), f.Step("configure")
}

// Demotable reports true unless the test has set fixed.
func (f *Fake) Demotable(int, int) bool { return !f.Fixed }

// InputOf returns the input buffer of a batch in slot 0.
func (f *Fake) InputOf(n int) []byte { return f.Batches[Key{0, n}].Input }

func (f *Fake) InferBatch(slot, n int) error {
	err := f.Step("infer")
	f.Mu.Lock()
	serving, b := f.Serving, f.Batches[Key{slot, n}]
	if serving {
		f.Ran, f.Slots = append(f.Ran, n), append(f.Slots, slot)
		f.Demoted = append(f.Demoted, f.GPU != nil && f.Env.BatchStream(slot) != f.Env.Stream(slot))
	}
	f.Mu.Unlock()
	if serving && f.Gate != nil {
		f.Entered <- struct{}{}
		<-f.Gate
	}
	if err != nil {
		return err
	}
	if f.GPU != nil {
		return f.GPU.Queue(f.Env.BatchStream(slot), b.Compute)
	}
	if !f.Idle {
		b.Compute()
	}
	return nil
}

func (f *Fake) compute(b *Batch, n int) {
	size := f.Card.Input.TensorBytes()
	for i := range n {
		image := b.Input[i*size : (i+1)*size]
		sum := SumOf(image)
		for o, out := range b.Outputs[:len(f.Card.Outputs)] {
			bytes := f.Card.Outputs[o].Bytes()
			for e := range bytes / 4 {
				binary.LittleEndian.PutUint32(out[i*bytes+4*e:], math.Float32bits(sum+float32(o*100+e)))
			}
		}
	}
}

func SumOf(image []byte) float32 {
	if image[0] == Poison {
		return float32(math.NaN())
	}
	sum := 0
	for i, v := range image {
		sum += int(v) * (1 + i%7)
	}
	return float32(sum)
}

// Answered checks that a slot has the answer to its picture.
func (fn *Function) Answered(slot uint32, picture []byte) {
	fn.TB.Helper()
	if got := fn.Status(slot); got != wire.StatusOK {
		fn.TB.Errorf("slot %d is %v, want ok", slot, got)
		return
	}
	var want []byte
	for i, o := range fn.Card.Outputs {
		if fn.Card.Kind() == wire.KindTensors {
			want = wire.AppendTensorHead(want, o.Name, string(o.Type), o.Shape)
		}
		for e := range o.Elements() {
			want = wire.AppendRaw(want, []float32{SumOf(picture) + float32(i*100+e)})
		}
	}
	got, ok := fn.payloads[slot]
	if !ok {
		got = fn.Channel.ResultBytes(slot)
	}
	if !slices.Equal(got, want) {
		fn.TB.Errorf("slot %d is answered % x, want % x", slot, got, want)
	}
}

func (fn *Function) Dup(f *os.File) *os.File {
	fn.TB.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		fn.TB.Fatal(err)
	}
	copied := -1
	if err := raw.Control(func(fd uintptr) { copied, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		fn.TB.Fatal(err)
	}
	if err != nil {
		fn.TB.Fatal(err)
	}
	return os.NewFile(uintptr(copied), f.Name())
}

// Only makes one step fail.
func Only(step string, err error) func(string) error {
	return func(s string) error {
		if s == step {
			return err
		}
		return nil
	}
}

// Count returns how often a fake was at a step.
func (f *Fake) Count(step string) (n int) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.Steps[step]
}
