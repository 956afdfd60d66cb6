//go:build cgo

package onnx

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/cudatest"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/onnx/answer"
	"github.com/penstock/penstock/models"
)

// played is a backend that plays a model on the fake driver: a batch goes from the
// input through scratch memory to the outputs, and a kernel runs in between.
type played struct {
	fill     cuda.Function
	weights  int    // bytes
	scratch  int    // bytes an image
	fromHost []byte // pinned; copied into each output's first bytes where there is any
	// once has a session fill its weights with 5 at its first run, and each batch
	// answer with that.
	once bool
	// outside has each batch write into the weights' pool as well.
	outside bool
	// broken says why a session with these settings cannot be captured, or made.
	unmade   func(settings) error
	unqueued func(settings) error
	// optimised is what becomes of a model; nil: it cannot be optimised.
	optimised []byte
	optimises int    // how often it was
	toHost    []byte // pinned; a batch copies into it

	mu       sync.Mutex
	sessions int // that are there
	made     []settings
	ran      int
}

// session returns a nil *playedSession beside an error, which is no nil session: what a
// function returns beside an error is nothing to use.
func (b *played) session(model []byte, s settings, weights *pool) (session, error) {
	return b.newSession(s, weights)
}

func (b *played) newSession(s settings, weights *pool) (*playedSession, error) {
	if b.unmade != nil {
		if err := b.unmade(s); err != nil {
			return nil, err
		}
	}
	at := weights.allocate(b.weights)
	if at == 0 {
		return nil, &ortError{code: 6, text: "no addresses"}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions++
	b.made = append(b.made, s)
	return &playedSession{b: b, s: s, weights: at}, nil
}

func (b *played) optimise(model []byte, s settings, weights *pool, file string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.optimises++
	if b.optimised == nil || len(model) == 0 || filepath.Dir(file) == "" {
		return nil, &ortError{code: 1, text: "it cannot be saved"}
	}
	at := weights.allocate(b.weights)
	if at == 0 {
		return nil, &ortError{code: 6, text: "no addresses"}
	}
	release(at)
	return b.optimised, nil
}

type playedSession struct {
	b       *played
	s       settings
	weights cuda.Pointer
	did     bool // what is done once
}

func (s *playedSession) close() {
	release(s.weights)
	s.b.mu.Lock()
	s.b.sessions--
	s.b.mu.Unlock()
}

func (s *playedSession) bind(input place, outputs []place) (binding, error) {
	args := cuda.NewArgs(8, 4, 4)
	args.SetUint32(2, 4)
	return &playedBinding{s, input, outputs, args}, nil
}

type playedBinding struct {
	*playedSession
	input   place
	outputs []place
	args    *cuda.Args
}

func (b *playedBinding) close() {}

func (b *playedBinding) run(scratch *pool) error {
	b.b.mu.Lock()
	b.b.ran++
	b.b.mu.Unlock()
	if b.b.unqueued != nil {
		if err := b.b.unqueued(b.s); err != nil {
			return err
		}
	}
	n := int(b.input.shape[0])
	at := scratch.allocate(max(n*b.b.scratch, b.input.bytes) + 64)
	if at == 0 {
		return &ortError{code: 6, text: "no addresses"}
	}
	defer release(at)
	stream := b.s.stream
	b.args.SetPointer(0, at+cuda.Pointer(b.input.bytes))
	one := [3]uint32{1, 1, 1}
	errs := []error{
		stream.Copy(at, b.input.at, b.input.bytes),
		b.b.fill.Launch(one, [3]uint32{4, 1, 1}, 0, stream, b.args),
	}
	for _, o := range b.outputs {
		// Each image's output is the beginning of its input.
		each := b.input.bytes / n
		for i := range n {
			errs = append(errs, stream.Copy(o.at+cuda.Pointer(i*o.bytes/n), at+cuda.Pointer(i*each), o.bytes/n))
		}
		if b.b.fromHost != nil {
			errs = append(errs, stream.Copy(o.at, cuda.At(b.b.fromHost), len(b.b.fromHost)))
		}
	}
	if b.b.once {
		if !b.did {
			errs = append(errs, stream.Set(b.weights, 5, b.b.weights))
		}
		b.did = true
		for _, o := range b.outputs {
			errs = append(errs, stream.Copy(o.at, b.weights, o.bytes))
		}
	}
	if b.b.outside {
		errs = append(errs, stream.Set(b.weights, 1, 16))
	}
	if b.b.toHost != nil {
		errs = append(errs, stream.Copy(cuda.At(b.b.toHost), at, len(b.b.toHost)))
	}
	return errors.Join(errs...)
}

// rig is a framework on the fake GPU, with streams of all slots and memory.
type rig struct {
	t       *testing.T
	context *cuda.Context
	card    *models.Card
	played  *played
	gpu     *gpu
	f       *Framework // runs gpu
	streams [device.Slots]cuda.Stream
	log     bytes.Buffer
	ended   bool
}

func newRig(t *testing.T, b *played) *rig {
	t.Helper()
	c := bound(t)
	r := &rig{t: t, context: c, card: shipped(t, "fashion"), played: b}
	r.card.Batches = []int{1, 2, 4}
	if err := open(); err != nil {
		t.Fatal(err)
	}
	module, err := c.Load(cudatest.PTX)
	if err != nil {
		t.Fatal(err)
	}
	if b.fill, err = module.Function("penstock_fill"); err != nil {
		t.Fatal(err)
	}
	for i := range r.streams {
		r.streams[i] = r.newStream()
	}
	b.weights, b.scratch = max(b.weights, 1), max(b.scratch, 1)
	r.gpu = newGPU(libml.Environment{
		Card: r.card, Threads: 2, Log: zerolog.New(&r.log), Device: "GPU-fake",
		Stream: func(slot int) uintptr { return r.streams[slot].Handle() },
	})
	r.f = &Framework{runner: r.gpu}
	r.gpu.backend, r.gpu.preload = b, func() error { return nil }
	r.gpu.ask = func(libml.Environment, []byte) (*answer.Reference, error) { return nil, errors.New("is not asked") }
	t.Cleanup(func() {
		cudafake.Reset()
		r.end()
		if b.sessions != 0 {
			t.Errorf("%d sessions are left", b.sessions)
		}
		if err := module.Unload(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) newStream() cuda.Stream {
	r.t.Helper()
	s, err := r.context.NewStream()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.Destroy() })
	return s
}

func (r *rig) end() {
	if r.ended {
		return
	}
	r.ended = true
	if err := r.f.Deinit(); err != nil {
		r.t.Errorf("deinit: %v", err)
	}
}

func (r *rig) loaded() *rig {
	r.t.Helper()
	if err := errors.Join(r.gpu.init(), r.f.LoadModel()); err != nil {
		r.t.Fatal(err)
	}
	return r
}

// linked has every batch size linked, as it is once one beside the smallest was
// configured.
func (r *rig) linked() *rig {
	r.t.Helper()
	return r.loaded().whole()
}

func (r *rig) whole() *rig {
	r.t.Helper()
	if _, err := r.f.LinkModel(); err != nil {
		r.t.Fatal(err)
	}
	if err := r.gpu.linkRest(r.card.MaxBatch()); err != nil {
		r.t.Fatal(err)
	}
	return r
}

// tensors are device memory of a batch, until the test's end.
type tensors4 struct {
	input   []byte
	outputs [][]byte
}

func (r *rig) tensors(n int) tensors4 {
	r.t.Helper()
	at := func(size int) []byte {
		p, err := r.context.Allocate(size)
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { r.context.Free(p) })
		return cuda.Bytes(p, size)
	}
	b := tensors4{input: at(n * r.card.Input.TensorBytes())}
	for i := range r.card.Outputs {
		b.outputs = append(b.outputs, at(n*r.card.Outputs[i].Bytes()))
	}
	return b
}

func (r *rig) fillWith(b tensors4, value byte) {
	r.t.Helper()
	s := cuda.Stream{}
	if err := errors.Join(s.Set(cuda.At(b.input), value, len(b.input)), s.Synchronize()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) output(b tensors4) []byte {
	r.t.Helper()
	host, err := r.context.AllocateHost(len(b.outputs[0]))
	if err != nil {
		r.t.Fatal(err)
	}
	defer r.context.FreeHost(host)
	s := cuda.Stream{}
	if err := errors.Join(s.Copy(cuda.At(host), cuda.At(b.outputs[0]), len(host)), s.Synchronize()); err != nil {
		r.t.Fatal(err)
	}
	return bytes.Clone(host)
}

func (r *rig) configure(slot, n int, b tensors4) int64 {
	r.t.Helper()
	ephemeral, err := r.f.ConfigureBatch(slot, n, b.input, b.outputs)
	if err != nil {
		r.t.Fatal(err)
	}
	return ephemeral
}

func (r *rig) infer(slot, n int) {
	r.t.Helper()
	if err := errors.Join(r.f.InferBatch(slot, n), r.streams[slot].Synchronize()); err != nil {
		r.t.Fatal(err)
	}
}

func all(b []byte, value byte) bool {
	return len(b) > 0 && !slices.ContainsFunc(b, func(c byte) bool { return c != value })
}

func TestABatchRunsAsAGraphOnItsSlotsStream(t *testing.T) {
	r := newRig(t, &played{}).linked()
	b := r.tensors(4)
	r.fillWith(b, 7)
	cudafake.Reset()
	r.configure(0, 4, b)
	if len(cudafake.Launches()) != 0 {
		t.Error("something ran when the batch was configured")
	}
	r.infer(0, 4)
	if got := r.output(b); !all(got, 7) {
		t.Errorf("answered %v", got)
	}
	launches := cudafake.Launches()
	if len(launches) != 1 || launches[0].Stream != r.streams[0].Handle() {
		t.Errorf("launches: %v", launches)
	}
	ran := r.played.ran
	r.fillWith(b, 9)
	r.infer(0, 4)
	if got := r.output(b); !all(got, 9) || r.played.ran != ran {
		t.Errorf("the second time it answered %v, and ONNX Runtime ran %d times", got, r.played.ran-ran)
	}
}

// A graph is launched on the stream of each batch; also where batches wait for each other.
func TestStreamOfABatch(t *testing.T) {
	for name, apart := range map[string]bool{"lanes of their own": false, "apart": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, &played{outside: apart}).linked()
			b := r.tensors(4)
			r.configure(0, 4, b)
			if r.gpu.order.exclusive != apart {
				t.Fatalf("apart is %v", r.gpu.order.exclusive)
			}
			if !r.f.Demotable(0, 4) || r.f.Demotable(1, 4) {
				t.Error("the batch that is a graph cannot be demoted, or one that is not configured can")
			}
			other := r.newStream()
			on := r.streams[0]
			r.gpu.env.BatchStream = func(int) uintptr { return on.Handle() }
			for i, stream := range []cuda.Stream{r.streams[0], other, r.streams[0], other} {
				on = stream
				r.fillWith(b, byte(7+i))
				cudafake.Reset()
				if err := errors.Join(r.f.InferBatch(0, 4), stream.Synchronize()); err != nil {
					t.Fatal(err)
				}
				launches := cudafake.Launches()
				if len(launches) != 1 || launches[0].Stream != stream.Handle() {
					t.Errorf("launched on %v, want stream %#x", launches, stream.Handle())
				}
			}
		})
	}
}

func TestABatchSizeHasItsSession(t *testing.T) {
	r := newRig(t, &played{weights: 3 * mebi}).linked()
	if r.played.sessions != 3 {
		t.Errorf("%d sessions for %v", r.played.sessions, r.card.Batches)
	}
	streams := map[cuda.Stream]bool{}
	for _, s := range r.played.made {
		streams[s.stream] = true
		if s.nhwc || s.tf32 {
			t.Errorf("f32 with %+v", s)
		}
	}
	if len(streams) != 3 {
		t.Errorf("%d streams", len(streams))
	}
}

// The smallest size serves before the others are there; linking these uses no memory of
// its lane, and comes to the first that is wrong.
func TestTheSmallestBatchRunsWhileTheOthersAreLinked(t *testing.T) {
	const small, rest = 1, 2
	entered, gate := make(chan struct{}), make(chan struct{})
	p := &played{}
	made := 0
	p.unmade = func(settings) error {
		p.mu.Lock()
		made++
		n := made
		p.mu.Unlock()
		if n == small+rest {
			close(entered)
			<-gate
		}
		return nil
	}
	r := newRig(t, p)
	r.loaded()
	if _, err := r.f.LinkModel(); err != nil {
		t.Fatal(err)
	}
	if p.sessions != small {
		t.Fatalf("%d sessions when the model is linked, want one", p.sessions)
	}
	one, four := r.tensors(1), r.tensors(4)
	r.configure(0, 1, one)
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_, err := r.f.ConfigureBatch(0, 4, four.input, four.outputs)
		done <- err
	}()
	<-entered
	for i := range byte(20) {
		r.fillWith(one, i)
		r.infer(0, 1)
		if got := r.output(one); !all(got, i) {
			t.Errorf("answered %v while others are linked, want %d", got, i)
		}
	}
	before := r.gpu.scratch[0].look().mapped
	close(gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if p.sessions != small+rest {
		t.Errorf("%d sessions for %v", p.sessions, r.card.Batches)
	}
	if after := r.gpu.scratch[0].look(); after.used != 0 || before == 0 {
		t.Errorf("lane %+v, %d bytes before", after, before)
	}
	r.fillWith(four, 8)
	r.infer(0, 4)
	if got := r.output(four); !all(got, 8) {
		t.Errorf("answered %v", got)
	}
	if n := strings.Count(r.log.String(), "batch size is linked"); n != small+rest {
		t.Errorf("%d sizes in the log: %s", n, r.log.String())
	}
}

// What is wrong with a size costs those above it, and they are given back.
func TestASizeThatCannotBeLinkedLeavesTheSmallerOnes(t *testing.T) {
	p := &played{weights: 8 * mebi, scratch: 24 * mebi}
	r := newRig(t, p)
	r.card.Batches = []int{1, 2, 4, 8}
	r.gpu.env.Threads = 1
	r.loaded()
	if _, err := r.f.LinkModel(); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 2} {
		r.tensors(n)
	}
	two, four := r.tensors(2), r.tensors(4)
	cudafake.Set(t, cudafake.Memory(cudafake.Now().Taken()+80*mebi)) // a session of 2 and its try, not of 4
	r.configure(0, 2, two)
	if len(r.gpu.sizes) != 2 || p.sessions != 2 {
		t.Errorf("%d sizes and %d sessions, want 1 and 2", len(r.gpu.sizes), p.sessions)
	}
	if _, err := r.f.ConfigureBatch(0, 4, four.input, four.outputs); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("got %v", err)
	}
	r.fillWith(two, 2)
	r.infer(0, 2)
	if got := r.output(two); !all(got, 2) {
		t.Errorf("answered %v", got)
	}
	cudafake.Reset() // there is memory again
	r.configure(0, 4, four)
	if len(r.gpu.sizes) != 4 {
		t.Errorf("%d sizes, want all", len(r.gpu.sizes))
	}
}

// firstQueues is a played.unqueued: only the first session, which is the smallest size's, can
// be captured.
func firstQueues() func(settings) error {
	first := cuda.Stream{}
	return func(s settings) error {
		if first == (cuda.Stream{}) {
			first = s.stream
		}
		if s.stream != first {
			return s.stream.Synchronize() // which is refused in a capture
		}
		return nil
	}
}

// The smallest size can be captured, a larger one cannot.
func TestALargerSizeThatCannotBeCapturedRunsNodeByNode(t *testing.T) {
	p := &played{unqueued: firstQueues()}
	r := newRig(t, p)
	r.gpu.env.Threads = 1
	r.loaded()
	if _, err := r.f.LinkModel(); err != nil {
		t.Fatal(err)
	}
	for _, n := range r.card.Batches {
		b := r.tensors(n)
		r.fillWith(b, byte(n))
		for slot := range 2 {
			r.configure(slot, n, b)
			r.infer(slot, n)
		}
		if got := r.output(b); !all(got, byte(n)) {
			t.Errorf("batch of %d answered %v", n, got)
		}
	}
	if g := r.gpu; len(g.sizes) != 1 || len(g.byNode.sessions) != 4 {
		t.Errorf("%d sizes as graphs and %d sessions node by node, want 1 and 4", len(g.sizes), len(g.byNode.sessions))
	}
	if n := strings.Count(r.log.String(), "node by node"); n != 2 {
		t.Errorf("%d lines of it: %s", n, r.log.String())
	}
}

func TestLinkModelCountsWhatIsKept(t *testing.T) {
	r := newRig(t, &played{weights: 3 * mebi})
	r.loaded()
	persistent, err := r.f.LinkModel()
	if err != nil {
		t.Fatal(err)
	}
	// 4 MiB for 3, in each of three sessions.
	if persistent < 12*mebi || persistent > 16*mebi {
		t.Errorf("%d bytes", persistent)
	}
}

func TestConfigureBatchTellsWhatTheBatchNeedsBesides(t *testing.T) {
	r := newRig(t, &played{scratch: mebi}).linked()
	b := r.tensors(4)
	if got := r.configure(0, 4, b); got < 4*mebi || got > 4*mebi+1024 {
		t.Errorf("%d bytes", got)
	}
	if again := r.configure(0, 4, b); again < 4*mebi {
		t.Errorf("%d bytes the second time", again)
	}
}

// A partition is a green context's stream: the same graph runs there.
func TestASlotInAPartitionRunsOnItsMultiprocessors(t *testing.T) {
	r := newRig(t, &played{}).linked()
	b := r.tensors(2)
	r.fillWith(b, 3)
	r.configure(0, 2, b)
	split, err := r.context.Device().Split()
	if err != nil {
		t.Fatal(err)
	}
	green, err := r.context.Green(split, []int{2, 3})
	if err != nil {
		t.Fatal(err)
	}
	part, err := green.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	ran := r.played.ran
	r.streams[2] = part
	r.configure(2, 2, b)
	if r.played.ran != ran {
		t.Error("ONNX Runtime ran the model to move it")
	}
	cudafake.Reset()
	r.infer(0, 2)
	r.infer(2, 2)
	var sms []uint32
	for _, l := range cudafake.Launches() {
		sms = append(sms, l.SMs)
	}
	if !slices.Equal(sms, []uint32{132, 16}) {
		t.Errorf("multiprocessors: %v", sms)
	}
	if got := r.output(b); !all(got, 3) {
		t.Errorf("answered %v", got)
	}
	r.end()
	if err := errors.Join(part.Destroy(), green.Destroy()); err != nil {
		t.Error(err)
	}
}

func TestBatchesInFlightShareNoScratch(t *testing.T) {
	r := newRig(t, &played{scratch: mebi}).linked()
	var scratch [device.Slots]cuda.Pointer
	for slot := range scratch {
		cudafake.Reset()
		r.configure(slot, 4, r.tensors(4))
		r.infer(slot, 4)
		l := cudafake.Launches()
		if len(l) != 1 {
			t.Fatalf("launches: %v", l)
		}
		for i := range 8 {
			scratch[slot] |= cuda.Pointer(l[0].Arguments[0][i]) << (8 * i)
		}
	}
	if scratch[0] != scratch[2] || scratch[1] != scratch[3] || scratch[0] == scratch[1] {
		t.Errorf("scratch of the slots: %#x", scratch)
	}
}

func TestConfiguringAgainReplacesAndFrees(t *testing.T) {
	r := newRig(t, &played{}).linked()
	b, other := r.tensors(2), r.tensors(2)
	r.configure(0, 2, b)
	before := cudafake.Now()
	for range 10 {
		r.configure(0, 2, other)
		r.configure(0, 2, b)
	}
	if after := cudafake.Now(); after.Executables != before.Executables || after.Graphs != before.Graphs || after.Bytes != before.Bytes {
		t.Errorf("before %+v\nafter  %+v", before, after)
	}
	r.fillWith(other, 5)
	r.configure(0, 2, other)
	r.infer(0, 2)
	if got := r.output(other); !all(got, 5) {
		t.Errorf("answered %v", got)
	}
}

func TestAConfiguredBatchAllocatesNothingToRun(t *testing.T) {
	r := newRig(t, &played{}).linked()
	r.configure(0, 1, r.tensors(1))
	if n := testing.AllocsPerRun(100, func() {
		if err := r.f.InferBatch(0, 1); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
	r.streams[0].Synchronize()
}

// readingHost is a rig, linked, whose batches begin their outputs with 8 bytes of the
// host's memory: "constant", until the caller changes it.
func readingHost(t *testing.T) (r *rig, host []byte) {
	t.Helper()
	b := &played{}
	r = newRig(t, b)
	host, err := r.context.AllocateHost(8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.end()
		if err := r.context.FreeHost(host); err != nil {
			t.Error(err)
		}
	})
	copy(host, "constant")
	b.fromHost = host
	return r.linked(), host
}

// What a model reads of the host's memory as it is captured, a graph would read again
// when it is launched, when the memory is somebody else's.
func TestAGraphKeepsWhatItReadsOfTheHost(t *testing.T) {
	r, host := readingHost(t)
	tensors := r.tensors(1)
	r.configure(0, 1, tensors)
	clear(host)
	r.infer(0, 1)
	if got := r.output(tensors); !strings.HasPrefix(string(got), "constant") {
		t.Errorf("answered %q", got)
	}
}

// Slots of a lane over different buffers capture one after the other: what one reads of
// the host stays when the other takes its graph's place.
func TestASlotKeepsWhatItReadsOfTheHostWhenAnotherIsConfigured(t *testing.T) {
	r, host := readingHost(t)
	before := cudafake.Now().HostAllocations
	first, second := r.tensors(1), r.tensors(1)
	r.configure(0, 1, first)
	copy(host, "another.") // it may get the place of the first's
	r.configure(2, 1, second)
	clear(host)
	r.infer(0, 1)
	r.infer(2, 1)
	if one, other := string(r.output(first)), string(r.output(second)); !strings.HasPrefix(one, "constant") || !strings.HasPrefix(other, "another.") {
		t.Errorf("answered %q and %q", one, other)
	}
	r.configure(0, 1, second) // the graph that slot 2 was configured with is there
	if got := cudafake.Now().HostAllocations - before; got != 1 {
		t.Errorf("%d pieces of pinned memory for one graph", got)
	}
	r.end()
	if got := cudafake.Now().HostAllocations - before; got != 0 {
		t.Errorf("%d pieces of pinned memory are left", got)
	}
}

// One that cannot be copied is captured again for each move, with what it reads of the
// host: what the one before it read is given back.
func TestGraphsThatCannotBeCopiedDoNotPileUp(t *testing.T) {
	r, _ := readingHost(t)
	cudafake.Set(t, cudafake.Refuse("cuGraphClone", 0, cuda.NotSupported))
	tensors := r.tensors(1)
	r.configure(0, 1, tensors)
	before := cudafake.Now().HostAllocations
	for range 5 {
		r.streams[0] = r.newStream()
		r.configure(0, 1, tensors)
		r.infer(0, 1)
		if got := r.output(tensors); !strings.HasPrefix(string(got), "constant") {
			t.Errorf("answered %q", got)
		}
	}
	if got := cudafake.Now().HostAllocations; got != before {
		t.Errorf("%d pieces of pinned memory, were %d", got, before)
	}
}

// ONNX Runtime makes some things when a session first runs: they must not be made in a
// capture only.
func TestWhatIsDoneOnceIsDone(t *testing.T) {
	r := newRig(t, &played{once: true, weights: 4096}).linked()
	b := r.tensors(2)
	r.configure(0, 2, b)
	r.infer(0, 2)
	if got := r.output(b); !all(got, 5) {
		t.Errorf("answered %v", got)
	}
}

// A graph that writes where the others do waits for the one before, on the device.
func TestAGraphThatWritesElsewhereRunsAlone(t *testing.T) {
	r := newRig(t, &played{outside: true}).linked()
	for slot := range 2 {
		r.configure(slot, 1, r.tensors(1))
	}
	if !r.gpu.order.exclusive {
		t.Fatal("it may run beside another")
	}
	waits := func() bool { return cudafake.Now().Events > 0 }
	if !waits() {
		t.Fatal("no event to wait for")
	}
	for range 3 {
		r.infer(0, 1)
		r.infer(1, 1)
	}
	if n := testing.AllocsPerRun(20, func() { r.f.InferBatch(0, 1) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
	r.streams[0].Synchronize()
}

func TestAModelThatIsCapturedOnlyInNCHWIsLinkedSo(t *testing.T) {
	r := newRig(t, &played{unqueued: func(s settings) error {
		if s.nhwc {
			return s.stream.Synchronize() // which is refused in a capture
		}
		return nil
	}})
	r.loaded()
	r.card.Input.TensorType = models.F16
	r.whole()
	// The smallest size found it out for all.
	if made := r.played.made; len(made) != 4 || !made[0].nhwc || !made[0].tf32 || made[1].nhwc || made[3].nhwc {
		t.Errorf("sessions were made with %+v", made)
	}
	if r.gpu.nhwc || len(r.gpu.sizes) != 3 || r.played.sessions != 3 {
		t.Errorf("NHWC %v, %d sessions", r.gpu.nhwc, r.played.sessions)
	}
	b := r.tensors(1)
	r.fillWith(b, 4)
	r.configure(0, 1, b)
	r.infer(0, 1)
	if got := r.output(b); !all(got, 4) {
		t.Errorf("answered %v", got)
	}
}

func TestAModelThatCannotBeCapturedRunsNodeByNode(t *testing.T) {
	p := &played{}
	r := newRig(t, p)
	host, err := r.context.AllocateHost(8)
	if err != nil {
		t.Fatal(err)
	}
	p.toHost = host
	r.linked()
	if !strings.Contains(r.log.String(), "node by node") || strings.Count(r.log.String(), "warn") != 1 {
		t.Errorf("the log: %s", r.log.String())
	}
	b := r.tensors(2)
	r.fillWith(b, 6)
	for _, slot := range []int{0, 1} {
		r.configure(slot, 2, b)
		ran := p.ran
		r.infer(slot, 2)
		if got := r.output(b); !all(got, 6) || p.ran != ran+1 {
			t.Errorf("slot %d answered %v after %d runs", slot, got, p.ran-ran)
		}
	}
	if n := testing.AllocsPerRun(20, func() { r.f.InferBatch(0, 2) }); n > 2 { // the played model's own
		t.Errorf("%g allocations", n)
	}
	r.streams[0].Synchronize()

	// On another stream it needs another session, and gives those back that it had on
	// the one before, of every size: that stream goes with the next move.
	sessions := p.sessions
	r.streams[0] = r.newStream()
	r.configure(0, 2, b)
	if p.sessions != sessions-1 || p.made[len(p.made)-1].stream != r.streams[0] {
		t.Errorf("%d sessions and then %d, want the sizes 1 and 2 gone and 2 made", sessions, p.sessions)
	}
	r.infer(0, 2)
	r.end()
	r.context.FreeHost(host)
}

// What the played model answers is the beginning of its input.
func TestAModelThatAnswersAsOnTheCPUIsLinked(t *testing.T) {
	r := newRig(t, &played{})
	r.gpu.ask = func(env libml.Environment, _ []byte) (*answer.Reference, error) {
		picture, err := answer.Sample(env.Card.Input)
		return &answer.Reference{Input: picture, Outputs: [][]float32{answer.Floats(picture[:40])}}, err
	}
	r.linked()
	if got := len(r.gpu.reference.Input); got != r.card.Input.TensorBytes() {
		t.Errorf("a sample of %d bytes", got)
	}
}

func TestAModelThatAnswersOtherwiseIsNotLinked(t *testing.T) {
	for _, c := range []struct {
		name   string
		spoil  func(*testing.T, *rig)
		want   string
		absent string
	}{
		{"as a graph", func(*testing.T, *rig) {}, "output prob", "MPS"},
		{"node by node", func(t *testing.T, r *rig) {
			host, err := r.context.AllocateHost(8)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { r.context.FreeHost(host) })
			r.played.toHost = host
		}, "output prob", "MPS"},
		{"where MPS limits it", func(t *testing.T, r *rig) {
			t.Setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30")
		}, "multiprocessors (30 %)", "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, &played{})
			r.gpu.ask = newReference // the real model's, on the CPU
			c.spoil(t, r)
			r.loaded()
			if r.gpu.reference == nil || len(r.gpu.reference.Outputs[0]) != 10 {
				t.Fatalf("the CPU answered %+v", r.gpu.reference)
			}
			_, err := r.f.LinkModel()
			if !errors.Is(err, answer.ErrWrong) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), c.absent) {
				t.Errorf("got %v", err)
			}
			r.end()
			if r.played.sessions != 0 {
				t.Errorf("%d sessions are left", r.played.sessions)
			}
		})
	}
}

func TestOutOfMemoryIsToldAndLeavesNothing(t *testing.T) {
	t.Run("when it is linked", func(t *testing.T) {
		r := newRig(t, &played{weights: 64 * mebi})
		r.loaded()
		before := cudafake.Now()
		cudafake.Set(t, cudafake.Memory(before.Bytes+50*mebi))
		_, err := r.f.LinkModel()
		if !errors.Is(err, cuda.ErrOutOfMemory) || errors.Is(err, device.ErrLost) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v", err)
		}
		if r.played.sessions != 0 {
			t.Errorf("%d sessions are left", r.played.sessions)
		}
	})
	t.Run("when it is tried", func(t *testing.T) {
		r := newRig(t, &played{scratch: 64 * mebi})
		r.loaded()
		cudafake.Set(t, cudafake.Memory(cudafake.Now().Taken()+50*mebi))
		if _, err := r.f.LinkModel(); !errors.Is(err, cuda.ErrOutOfMemory) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("when a batch is configured", func(t *testing.T) {
		r := newRig(t, &played{scratch: 32 * mebi}).linked()
		small, big := r.tensors(1), r.tensors(4)
		r.configure(1, 1, small) // of the lane that LinkModel has not used
		cudafake.Set(t, cudafake.Memory(cudafake.Now().Taken()+16*mebi))
		if _, err := r.f.ConfigureBatch(1, 4, big.input, big.outputs); !errors.Is(err, cuda.ErrOutOfMemory) {
			t.Errorf("got %v", err)
		}
		// What was there before still runs, and with memory the rest does.
		r.infer(1, 1)
		cudafake.Reset()
		r.configure(1, 4, big)
		r.infer(1, 4)
	})
	t.Run("as ONNX Runtime says it", func(t *testing.T) {
		r := newRig(t, &played{unmade: func(settings) error {
			return &ortError{code: 11, text: "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; hostname=h ; file=x"}
		}})
		r.loaded()
		_, err := r.f.LinkModel()
		if !errors.Is(err, cuda.ErrOutOfMemory) || strings.Contains(err.Error(), "hostname") || !strings.Contains(err.Error(), "ALLOC_FAILED") {
			t.Errorf("got %v", err)
		}
	})
}

func TestALostDeviceIsToldByWhateverIsCalled(t *testing.T) {
	t.Run("InferBatch", func(t *testing.T) {
		r := newRig(t, &played{}).linked()
		b := r.tensors(1)
		r.configure(0, 1, b)
		cudafake.Set(t, cudafake.Lose(cuda.IllegalAddress))
		for what, err := range map[string]error{
			"run":       r.f.InferBatch(0, 1),
			"configure": func() error { _, err := r.f.ConfigureBatch(0, 2, b.input, b.outputs); return err }(),
		} {
			if what == "run" && (!errors.Is(err, device.ErrLost) || !errors.Is(err, cuda.ErrLost)) {
				t.Errorf("%s: %v", what, err)
			}
		}
		cudafake.Reset()
	})
	t.Run("what ONNX Runtime was refused", func(t *testing.T) {
		p := &played{}
		r := newRig(t, p)
		r.card.Batches = []int{1}
		p.unmade = func(settings) error {
			cudafake.Set(t, cudafake.Lose(cuda.IllegalAddress))
			return &ortError{code: 11, text: "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=x"}
		}
		r.loaded()
		if _, err := r.f.LinkModel(); !errors.Is(err, device.ErrLost) || !strings.Contains(err.Error(), "CUDA failure 700") {
			t.Errorf("got %v", err)
		}
		cudafake.Reset()
	})
}

// The manager gives the process more multiprocessors then.
func TestTooFewMultiprocessorsAreTold(t *testing.T) {
	t.Run("for a graph", func(t *testing.T) {
		r := newRig(t, &played{}).linked()
		b := r.tensors(1)
		cudafake.Apply(t, cudafake.Refuse("cuGraphInstantiateWithFlags", 1, cuda.InvalidClusterSize))
		if _, err := r.f.ConfigureBatch(0, 1, b.input, b.outputs); !errors.Is(err, cuda.ErrTooFewSMs) || errors.Is(err, device.ErrLost) {
			t.Errorf("got %v", err)
		}
		r.configure(0, 1, b)
	})
	t.Run("for what ONNX Runtime launches", func(t *testing.T) {
		p := &played{}
		r := newRig(t, p)
		r.card.Batches = []int{1}
		p.unmade = func(settings) error {
			return &ortError{code: 11, text: "CUDA failure 912: invalid cluster size ; GPU=0 ; hostname=x"}
		}
		r.loaded()
		if _, err := r.f.LinkModel(); !errors.Is(err, cuda.ErrTooFewSMs) || errors.Is(err, cuda.ErrOutOfMemory) {
			t.Errorf("got %v", err)
		}
	})
}

func TestASlotIsConfiguredWhileAnotherRuns(t *testing.T) {
	r := newRig(t, &played{}).linked()
	b := r.tensors(4)
	for _, n := range r.card.Batches {
		r.configure(0, n, tensors4{b.input[:n*r.card.Input.TensorBytes()], [][]byte{b.outputs[0][:n*r.card.Outputs[0].Bytes()]}})
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		other, err := newThread(r.context)
		if err != nil {
			t.Error(err)
			return
		}
		defer other.end()
		other.do(func() error {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return nil
				default:
				}
				if err := errors.Join(r.f.InferBatch(0, r.card.Batches[i%3]), r.streams[0].Synchronize()); err != nil {
					t.Error(err)
					return nil
				}
			}
		})
	})
	for range 20 {
		for _, n := range r.card.Batches {
			r.configure(2, n, tensors4{b.input[:n*r.card.Input.TensorBytes()], [][]byte{b.outputs[0][:n*r.card.Outputs[0].Bytes()]}})
		}
		time.Sleep(time.Millisecond)
	}
	close(stop)
	wg.Wait()
}

func TestOnAGPUConfigureBatchRefusesWhatIsNotOfItsSize(t *testing.T) {
	r := newRig(t, &played{}).linked()
	b := r.tensors(2)
	for what, err := range map[string]error{
		"an input cut short":   second(r.f.ConfigureBatch(0, 2, b.input[4:], b.outputs)),
		"an output cut short":  second(r.f.ConfigureBatch(0, 2, b.input, [][]byte{b.outputs[0][4:]})),
		"no outputs":           second(r.f.ConfigureBatch(0, 2, b.input, nil)),
		"a size of no session": second(r.f.ConfigureBatch(0, 3, r.tensors(3).input, r.tensors(3).outputs)),
		"a batch that is not":  r.f.InferBatch(0, 2),
	} {
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second(_ int64, err error) error { return err }

func TestOnAGPUDeinitCopesWithWhateverWasReached(t *testing.T) {
	r := newRig(t, &played{})
	if err := r.f.Deinit(); err != nil {
		t.Errorf("before LoadModel: %v", err)
	}
	r.loaded()
	if err := r.f.Deinit(); err != nil {
		t.Errorf("after LoadModel: %v", err)
	}
	if _, err := r.f.LinkModel(); err == nil || !strings.Contains(err.Error(), "none is loaded") {
		t.Errorf("linked after Deinit: %v", err)
	}
	for _, call := range []string{"cuStreamCreate", "cuEventCreate", "cuMemAddressReserve", "cuMemGetInfo_v2"} {
		t.Run(call, func(t *testing.T) {
			r := newRig(t, &played{})
			if err := errors.Join(r.gpu.init(), r.f.LoadModel()); err != nil {
				t.Fatal(err)
			}
			cudafake.Set(t, cudafake.Refuse(call, 0, cuda.Code(999)))
			if _, err := r.f.LinkModel(); err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s refused: %v", call, err)
			}
			cudafake.Reset()
		})
	}
}

// On this machine ONNX Runtime is the one for CPUs.
func TestInitOnAGPUNamesTheProviderThatIsMissing(t *testing.T) {
	f := New()
	err := f.Init(libml.Environment{
		Card: shipped(t, "fashion"), Threads: 1, Device: "GPU-1", Stream: func(int) uintptr { return 0 },
	})
	if !errors.Is(err, errNoProvider) {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{bridgeFile, LibraryVariable, "CUDA 13"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if err := f.Deinit(); err != nil {
		t.Error(err)
	}
}

func TestALibraryThatTheProviderNeedsIsNamedWithWhatBringsIt(t *testing.T) {
	dir := t.TempDir()
	library, err := Library()
	if err != nil {
		t.Fatal(err)
	}
	// A provider that was linked with what it is here: any shared library will do.
	for _, name := range []string{bridgeFile, providerFile} {
		if err := os.Symlink(library, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	mine := filepath.Join(dir, libraryFile)
	var asked []string
	if err := preloadAll(mine, func(name string) error {
		asked = append(asked, name)
		if strings.Contains(name, "ops") {
			return errors.New("cannot open shared object file")
		}
		return nil
	}); err != nil {
		t.Errorf("a part that may be missing: %v", err)
	}
	if !slices.Contains(asked, "libcudnn.so.9") {
		t.Errorf("asked for %v", asked)
	}
	err = preloadAll(mine, func(name string) error {
		if name == "libcudnn.so.9" {
			return errors.New("cannot open shared object file")
		}
		return nil
	})
	if !errors.Is(err, errNoProvider) || !strings.Contains(err.Error(), "libcudnn.so.9") || !strings.Contains(err.Error(), "cuDNN 9 brings it") {
		t.Errorf("got %v", err)
	}
	if err := missing("libcuda.so.1", "p", errors.New("x")); !strings.Contains(err.Error(), "NVIDIA driver") {
		t.Errorf("got %v", err)
	}
}

func TestWhatONNXRuntimeSaysBecomesALine(t *testing.T) {
	for said, want := range map[string]string{
		"Non-zero status code returned while running Conv node. Name:'/conv1/Conv' Status Message: /onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:129 std::conditional_t<THRW, void> onnxruntime::CudaCall(ERRTYPE) [with ERRTYPE = cudaError] CUDA failure 2: out of memory ; GPU=0 ; hostname=box ; file=/x/y.cc ; line=80 ; expr=cudaMalloc((void**)&p, size);": "Conv node. Name:'/conv1/Conv': CUDA failure 2: out of memory",
		"CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; hostname=box":                                                                   "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
		"Non-zero status code returned while running Transpose node. Name:'t' Status Message: CUDA error cudaErrorStreamCaptureUnsupported: no": "Transpose node. Name:'t': CUDA error cudaErrorStreamCaptureUnsupported: no",
		"two\n  lines": "two lines",
	} {
		if got := (&ortError{text: said}).Error(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if got := (&ortError{text: strings.Repeat("é ", 1000)}).Error(); len(got) > 310 {
		t.Errorf("%d bytes", len(got))
	}
}
