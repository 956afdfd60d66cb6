package serve

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// patience bounds waits for things that should happen at once, so that a hang fails the test.
const patience = 30 * time.Second

// harness plays the surroundings of a process. The test plays the manager's side of an inference function: request table,
// rings, tensors, and a slab with a place for each slot's picture.
type harness struct {
	t        testing.TB
	card     *models.Card
	slo      time.Duration
	geometry shm.Geometry
	table    *shm.Table
	channel  *shm.Channel
	tensors  *shm.Region
	slab     *shm.Region
	request  shm.Request        // the last one published
	gpu      *devicetest.Queued // the device of the processes; nil: device names it
	device   string             // as Start.Device
	split    []int              // the orchestrator's groups, if they differ
	streams  int                // Attached.Streams
	wake     control.Order      // of loop's process: level and guarantee
	grant    func(*control.Attached)
	timing   timing              // of the processes
	worker   *worker             // of the processes; may be nil
	opened   func(control.Start) // called when a process opens its device; may be nil
	copies   bool                // the argument of that call
	turns    *shm.Turns          // of the GPU; nil: processes take no turns
	busy     *shm.BusyFile       // of the GPU; nil: processes have no bit
	busyPath string              // its file
}

// identity returns the Start message of a process.
func (h *harness) identity(generation uint32) control.Start {
	start := control.Start{IF: "test", Generation: generation, CPUs: 1, Device: h.device, GroupSMs: h.split}
	if h.gpu != nil {
		start.Device, start.GroupSMs = h.gpu.Name(), testGroups
		if h.split != nil {
			start.GroupSMs = h.split
		}
	}
	return start
}

// open is the opener of the processes.
func (h *harness) open(start control.Start, in models.Input, o gpu.Options) (device.Device, error) {
	h.copies = o.Copy
	if h.opened != nil {
		h.opened(start)
	}
	if h.gpu != nil && start.Device == h.gpu.Name() {
		return h.gpu, nil
	}
	return openDevice(start, in, o)
}

func testCard() *models.Card {
	return &models.Card{
		Name: "test", Version: 7, Framework: "fake",
		Input: models.Input{
			Height: 4, Width: 5, Channels: 3,
			WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC,
		},
		Outputs: []models.Output{{Name: "a", Shape: []int64{3}}, {Name: "b", Shape: []int64{2, 2}}},
		Batches: []int{1, 2, 4, 8},
		SLO:     time.Hour,
		Decoder: models.Decoder{Name: "raw"},
	}
}

func newHarness(t testing.TB, card *models.Card) *harness {
	t.Helper()
	return newHarnessWith(t, card, card.TensorBytes())
}

func newHarnessWith(t testing.TB, card *models.Card, tensorBytes int) *harness {
	t.Helper()
	h := &harness{t: t, card: card, device: framework.DeviceCPU, slo: card.SLO, geometry: shm.Geometry{Slots: 64, MaxFragments: 2, ResultBytes: 256}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	h.table, err = shm.NewTable("test", h.geometry)
	must(err)
	t.Cleanup(func() { h.table.Close() })
	h.channel, err = shm.NewChannel("test", h.geometry)
	must(err)
	t.Cleanup(func() { h.channel.Close() })
	h.tensors, err = shm.Create("test-tensors", tensorBytes, shm.Options{Writable: true})
	must(err)
	t.Cleanup(func() { h.tensors.Close() })
	h.slab, err = shm.Create("test-slab", int(h.geometry.Slots)*card.Input.WireBytes(), shm.Options{})
	must(err)
	t.Cleanup(func() { h.slab.Close() })
	return h
}

// testGroups are the sizes of the GPU's groups of multiprocessors.
var testGroups = []int{8, 8, 8, 12}

// newGPUHarness returns a harness with a GPU that serves one process.
func newGPUHarness(t testing.TB, card *models.Card) *harness {
	t.Helper()
	h := newHarnessWith(t, card, 2*card.OutputBytes())
	h.openGPU()
	return h
}

// openGPU gives the harness a GPU for one process.
func (h *harness) openGPU() {
	h.t.Helper()
	d, err := cpu.New(h.card.Input, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.gpu = devicetest.Queue(d, h.card.Input, testGroups...)
}

// allocations returns how often a turn allocates: the minimum of several measurements.
// Goroutines of earlier tests allocate as they end, which counts too, but not in every
// measurement.
func allocations(runs int, turn func()) float64 {
	least := testing.AllocsPerRun(runs, turn)
	for try := 0; try < 4 && least > 0; try++ {
		least = min(least, testing.AllocsPerRun(runs, turn))
	}
	return least
}

// hold stops the harness's GPU until release is called or the test ends. Otherwise a failed test
// would wait forever when it frees the device.
func (h *harness) hold() (release func()) {
	release = sync.OnceFunc(h.gpu.Hold())
	h.t.Cleanup(release)
	return release
}

// fake is a framework for the harness's device.
func (h *harness) fake() *fake {
	f := newFake()
	f.gpu = h.gpu
	return f
}

// attached returns the manager's grant and its files.
func (h *harness) attached() (control.Attached, []*os.File) {
	h.t.Helper()
	card, err := json.Marshal(h.card)
	if err != nil {
		h.t.Fatal(err)
	}
	geometry, err := json.Marshal(h.geometry)
	if err != nil {
		h.t.Fatal(err)
	}
	attached := control.Attached{
		Version: control.Version, Card: card, Geometry: geometry, Setup: control.Setup{SLONanos: int64(h.slo), Streams: h.streams},
		TensorBytes: int64(h.tensors.Size()), SlabBytes: []int64{int64(h.slab.Size())},
	}
	if h.grant != nil {
		h.grant(&attached)
	}
	files := []*os.File{
		h.table.File(), h.channel.RingFile(), h.channel.RepliesFile(), h.tensors.File(), h.slab.File(),
	}
	if h.turns != nil {
		entry, err := h.turns.Join()
		if err != nil {
			h.t.Fatal(err)
		}
		attached.Turn = &entry
		files = append(files, h.turns.File())
	}
	if h.busy != nil {
		word, locks, err := h.busy.Files()
		if err != nil {
			h.t.Fatal(err)
		}
		h.t.Cleanup(func() { locks.Close() })
		attached.Busy = true
		files = append(files, word, locks)
	}
	return attached, files
}

// publish makes a request of a picture, in two fragments, and publishes it. Before that, edit,
// if not nil, may corrupt it.
func (h *harness) publish(slot uint32, picture []byte, edit func(*shm.Request, []shm.Fragment)) {
	h.t.Helper()
	size := h.card.Input.WireBytes()
	at := uint64(slot) * uint64(size)
	copy(h.slab.Bytes()[at:][:size], picture)
	cut := size / 3
	fragments := h.table.Fragments(slot)
	fragments[0] = shm.Fragment{Offset: at, Length: uint16(cut)}
	fragments[1] = shm.Fragment{Offset: at + uint64(cut), Place: uint32(cut), Length: uint16(size - cut)}
	now := shm.Now()
	h.request = shm.Request{
		ID: slot, Fragments: 2, Bytes: uint32(size),
		FirstFragment: now, Complete: now, Deadline: now + int64(time.Hour),
	}
	if edit != nil {
		edit(&h.request, fragments)
	}
	h.table.SetRequest(slot, h.request)
	h.channel.Publish(slot)
}

// replies waits for n replies and returns them in the order in which they arrive.
func (h *harness) replies(n int) []uint32 {
	h.t.Helper()
	slots, got := make([]uint32, n), 0
	for deadline := shm.Now() + int64(patience); got < n; {
		if shm.Now() > deadline {
			h.t.Fatalf("%d replies, want %d", got, n)
		}
		m, err := h.channel.Receive(slots[got:], deadline)
		if err != nil {
			h.t.Fatal(err)
		}
		got += m
	}
	return slots
}

// silent checks that no reply waits.
func (h *harness) silent() {
	h.t.Helper()
	slots := make([]uint32, 1)
	if n, err := h.channel.Receive(slots, shm.Now()); n != 0 || err != nil {
		h.t.Fatalf("a reply for slot %d, %v; want none", slots[0], err)
	}
}

// status returns the status of a slot that was received.
func (h *harness) status(slot uint32) wire.Status { return wire.Status(h.channel.Result(slot).Status) }

// picture returns a picture that shows its seed. Use a seed below poison to get an answer.
func (h *harness) picture(seed byte) []byte {
	p := make([]byte, h.card.Input.WireBytes())
	for i := range p {
		p[i] = seed + byte(i*5)
	}
	return p
}

// fake is a framework that adds up the bytes of each image; on a GPU it does so as work on the
// slot's stream. For an image whose first byte is poison its outputs are NaN.
type fake struct {
	card    *models.Card
	gpu     *devicetest.Queued // nil on a CPU
	env     framework.Environment
	node    framework.Node
	batches map[fakeKey]*fakeBatch

	mu      sync.Mutex
	ran     []int // sizes that ran since serve
	slots   []int // and the slots they ran in
	demoted []bool
	fixed   bool // its batches cannot be demoted
	serving bool // after the warm-up
	calls   []string
	steps   map[string]int // how often each was called
	failing func(step string) error
	idle    bool        // a batch writes nothing
	work    func(n int) // more work of a batch of n on the GPU; may be nil
	// Unless they are nil, each batch signals entered and then waits for gate.
	entered, gate chan struct{}
}

type fakeKey struct{ slot, n int }

// fakeBatch has the arguments of ConfigureBatch.
type fakeBatch struct {
	input   []byte
	outputs [][]byte
	stream  uintptr
	compute func()
}

const poison = 255

var errFake = errors.New("the fake fails")

func newFake() *fake { return &fake{batches: map[fakeKey]*fakeBatch{}, steps: map[string]int{}} }

func (f *fake) build(card *models.Card) (framework.Framework, error) {
	f.card = card
	return f, f.step("build")
}

func (f *fake) step(name string) error {
	f.mu.Lock()
	f.steps[name]++
	if n := len(f.calls); !f.serving && (n == 0 || f.calls[n-1] != name) {
		f.calls = append(f.calls, name)
	}
	failing := f.failing
	f.mu.Unlock()
	if failing != nil {
		return failing(name)
	}
	return nil
}

// fail makes later steps return the error that failing returns; nil: no error.
func (f *fake) fail(failing func(step string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = failing
}

// serve ends the warm-up: batches count from now on.
func (f *fake) serve() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.serving, f.ran, f.slots, f.demoted = true, make([]int, 0, 1<<16), make([]int, 0, 1<<16), make([]bool, 0, 1<<16)
}

// history returns the sizes that ran since serve, and the slots.
func (f *fake) history() (sizes, slots []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.ran), slices.Clone(f.slots)
}

func (f *fake) UseNode(node framework.Node) { f.node = node }

func (f *fake) Init(env framework.Environment) error {
	f.env = env
	return f.step("init")
}

func (f *fake) LoadModel() error          { return f.step("load") }
func (f *fake) LinkModel() (int64, error) { return 100, f.step("link") }
func (f *fake) Deinit() error             { return f.step("deinit") }

// scratchBytes is what a fake's batch needs per image.
const scratchBytes = 10

func (f *fake) ConfigureBatch(slot, n int, inputs, outputs []device.Buffer) (int64, error) {
	b, view := &fakeBatch{}, device.Buffer.Bytes
	if f.gpu != nil {
		b.stream, view = f.env.Stream(slot), f.gpu.View
	}
	b.input = view(inputs[0])
	for _, out := range outputs {
		b.outputs = append(b.outputs, view(out))
	}
	b.compute = func() {
		if f.work != nil {
			f.work(n)
		}
		f.compute(b, n)
	}
	f.mu.Lock()
	f.batches[fakeKey{slot, n}] = b
	f.mu.Unlock()
	return int64(scratchBytes * n), f.step("configure")
}

// Demotable reports true unless the test has set fixed.
func (f *fake) Demotable(int, int) bool { return !f.fixed }

// input is the input buffer of a batch in slot 0.
func (f *fake) input(n int) []byte { return f.batches[fakeKey{0, n}].input }

func (f *fake) InferBatch(slot, n int) error {
	err := f.step("infer")
	f.mu.Lock()
	serving, b := f.serving, f.batches[fakeKey{slot, n}]
	if serving {
		f.ran, f.slots = append(f.ran, n), append(f.slots, slot)
		f.demoted = append(f.demoted, f.gpu != nil && f.env.BatchStream(slot) != f.env.Stream(slot))
	}
	f.mu.Unlock()
	if serving && f.gate != nil {
		f.entered <- struct{}{}
		<-f.gate
	}
	if err != nil {
		return err
	}
	if f.gpu != nil {
		return f.gpu.Queue(f.env.BatchStream(slot), b.compute)
	}
	if !f.idle {
		b.compute()
	}
	return nil
}

func (f *fake) compute(b *fakeBatch, n int) {
	size := f.card.Input.TensorBytes()
	for i := range n {
		image := b.input[i*size : (i+1)*size]
		sum := sumOf(image)
		for o, out := range b.outputs {
			bytes := f.card.Outputs[o].Bytes()
			for e := range bytes / 4 {
				binary.LittleEndian.PutUint32(out[i*bytes+4*e:], math.Float32bits(sum+float32(o*100+e)))
			}
		}
	}
}

func sumOf(image []byte) float32 {
	if image[0] == poison {
		return float32(math.NaN())
	}
	sum := 0
	for i, v := range image {
		sum += int(v) * (1 + i%7)
	}
	return float32(sum)
}

// answered checks that a slot has the answer to its picture.
func (h *harness) answered(slot uint32, picture []byte) {
	h.t.Helper()
	if got := h.status(slot); got != wire.StatusOK {
		h.t.Errorf("slot %d is %v, want ok", slot, got)
		return
	}
	var want []float32
	for o := range h.card.Outputs {
		for e := range h.card.Outputs[o].Elements() {
			want = append(want, sumOf(picture)+float32(o*100+e))
		}
	}
	if got := h.channel.ResultBytes(slot); !slices.Equal(got, wire.AppendRaw(nil, want)) {
		h.t.Errorf("slot %d is answered % x, want %v", slot, got, want)
	}
}

// loop returns a batch loop that is warmed up and owns the ring. The test is its thread and
// turns it.
func (h *harness) loop(f *fake) *loop {
	h.t.Helper()
	runtime.LockOSThread()
	h.t.Cleanup(runtime.UnlockOSThread)
	attached, files := h.attached()
	for i := range files {
		files[i] = h.dup(files[i])
	}
	framework, err := f.build(h.card)
	if err != nil {
		h.t.Fatal(err)
	}
	p := &process{
		log: slog.New(slog.DiscardHandler), start: h.identity(1), open: h.open,
		card: h.card, framework: framework, slo: h.slo,
	}
	if err := p.load(); err != nil {
		h.t.Fatal(err)
	}
	p.orders.follow(h.wake)
	if _, err := p.link(h.wake, attached, files); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(p.memory.close)
	l, err := newLoop(p, attached)
	if err != nil {
		h.t.Fatal(err)
	}
	h.channel.SetEpoch(1)
	if owned, err := l.ring.Acquire(shm.Now() + int64(patience)); !owned || err != nil {
		h.t.Fatalf("acquire: %v, %v", owned, err)
	}
	f.serve()
	return l
}

func (h *harness) dup(f *os.File) *os.File {
	h.t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		h.t.Fatal(err)
	}
	copied := -1
	if err := raw.Control(func(fd uintptr) { copied, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		h.t.Fatal(err)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return os.NewFile(uintptr(copied), f.Name())
}

// turn makes one loop.step without its waits: it takes the requests and runs one batch.
func (l *loop) turn() error {
	l.take()
	if l.pick(); l.choice.Batch == 0 {
		return nil
	}
	l.begin()
	return l.finish()
}

// child is a process of the harness's function that runs inside the test process, from the
// handshake to its end.
type child struct {
	t       testing.TB
	parent  *control.Parent
	manager *control.AttachConn
	notices chan control.Notice // closed when the link ends
	ended   chan error
}

// start starts a process and gives it its memory over the same links as a real one. tamper, if
// not nil, changes the grant.
func (h *harness) start(generation uint32, build framework.Build, tamper func(*control.Attached)) *child {
	h.t.Helper()
	dir, err := os.MkdirTemp("", "ps") // a socket's path is short
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "attach")
	listener, err := control.ListenAttach(socket, os.Getuid(), zerolog.Nop())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { listener.Close() })
	parent, end, err := control.SocketPair()
	if err != nil {
		h.t.Fatal(err)
	}
	c := &child{t: h.t, parent: parent, notices: make(chan control.Notice, 64), ended: make(chan error, 1)}
	identity := h.identity(generation)
	identity.AttachSocket = socket
	if err := parent.Order(control.Order{Do: control.DoStart, Start: &identity}); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		defer close(c.notices)
		for {
			n, err := parent.ReadNotice()
			if err != nil {
				return
			}
			c.notices <- n
		}
	}()
	go func() {
		link, err := control.NewChild(end)
		if err != nil {
			c.ended <- err
			return
		}
		defer link.Close()
		c.ended <- (&process{child: link, log: slog.New(slog.DiscardHandler), open: h.open, timing: h.timing, membership: membership{worker: h.worker}}).run(context.Background(), build)
	}()
	conn, hello, err := listener.Accept()
	if err != nil {
		h.t.Fatal(err)
	}
	if hello.IF != "test" || hello.Generation != generation {
		h.t.Errorf("a process attaches as %+v", hello)
	}
	attached, files := h.attached()
	if tamper != nil {
		tamper(&attached)
	}
	if err := conn.Grant(attached, files); err != nil {
		h.t.Fatal(err)
	}
	c.manager = conn
	h.t.Cleanup(func() {
		parent.Close()
		if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			h.t.Error(err)
		}
	})
	return c
}

func (c *child) order(o control.Order) {
	c.t.Helper()
	if err := c.parent.Order(o); err != nil {
		c.t.Fatal(err)
	}
}

// await waits for a state.
func (c *child) await(state control.State) control.Notice {
	c.t.Helper()
	return c.awaitNotice(string(state), func(n control.Notice) bool { return n.State == state })
}

// awaitNotice waits for the first notice that has what is wanted, and returns it.
func (c *child) awaitNotice(want string, has func(control.Notice) bool) control.Notice {
	c.t.Helper()
	limit := time.After(patience)
	for {
		select {
		case n, ok := <-c.notices:
			if !ok {
				c.t.Fatalf("the process ended before it reported %s: %v", want, c.end())
			}
			if has(n) {
				return n
			}
		case <-limit:
			c.t.Fatalf("the process does not report %s", want)
		}
	}
}

// end waits until the process ends.
func (c *child) end() error {
	c.t.Helper()
	select {
	case err := <-c.ended:
		return err
	case <-time.After(patience):
		c.t.Fatal("the process does not end")
		return nil
	}
}

// finish ends the batch in flight that is done first, and returns the slots of its answers. It
// allocates nothing.
func (h *harness) finish(l *loop, slots []uint32) []uint32 {
	h.t.Helper()
	if err := l.finish(); err != nil {
		h.t.Fatal(err)
	}
	n, err := h.channel.Receive(slots, shm.Now()+int64(patience))
	if err != nil {
		h.t.Fatal(err)
	}
	return slots[:n]
}
