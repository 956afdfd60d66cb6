//go:build cgo

package onnx

// The framework on a GPU.
//
//	Init            loads ONNX Runtime, its CUDA provider, cuBLAS, cuDNN: no context, nothing of CUDA is called
//	LoadModel       reads the file, holds it against the card, has the CPU answer a picture of noise
//	LinkModel       a session for the smallest batch; it answers the picture as well (check.go)
//	ConfigureBatch  the first of another size: sessions for all the others, at once, each checked
//	                captures that size over libml's buffers, moves the graph to the slot's stream, uploads it
//	InferBatch      one cuGraphLaunch, on the stream of the batch
//	Deinit          gives graphs, sessions, memory and context back
//
// A session a batch size, because a session keeps no more than one cuDNN plan for a
// convolution: at another batch size it makes another and drops the first, and with
// it the kernels that were compiled at run time, which a captured graph still
// launches. (Measured: MobileNetV2's depthwise convolutions then reach illegal
// addresses, and another model's answers are wrong without a word.) It costs a copy
// of the weights a size, and gains that sizes are linked at once: six of ResNet-50 in
// 0.5 s, in place of 1.1 s one after the other. And that the smallest can be linked
// alone, and serve while the others are: a session is tried and checked in memory of
// its own, which no batch in flight uses.
//
// A graph is captured without being run (nothing of a capture runs), so configuring
// a slot disturbs no batch in flight, neither its memory nor its timing. All that a
// size does once is done when it is linked.
//
// Memory is our own (shim.c): weights of each size in one pool; what a batch needs in
// between in the pool of its lane. Slots 0 and 2 are one lane and 1 and 3 the other,
// as slots of a lane are never in flight together. So two batches in flight share
// weights and nothing else, and a second lane costs what a batch needs in between,
// not another session.
//
// A slot whose stream belongs to a green context gets the graph with its kernels in
// that context (cuda.Graph.Retarget): a partition changes with neither a session nor
// a warm-up. cuDNN chose its kernels for the whole device, so the answers are the
// same, bit for bit, on any number of multiprocessors.
//
// What cannot be captured (a node that runs on the CPU, a copy that waits) runs node
// by node, on sessions of each slot's own; the log says so. The smallest size tells for
// all whether NHWC can be captured and whether anything can; where a larger one turns out
// otherwise, it alone goes the next way down.

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
)

// lanes is how many batches can be in flight together.
const lanes = 2

// sessionOptions and providerOptions are ONNX Runtime's, by name.
var sessionOptions = [][2]string{
	{"session.use_env_allocators", "1"},                    // ours
	{"session.use_device_allocator_for_initializers", "1"}, // for the weights too
	{"session.intra_op.allow_spinning", "0"},
	{"session.inter_op.allow_spinning", "0"},
}

func providerOptions(s settings) [][2]string {
	return [][2]string{
		{"device_id", "0"}, // the only one that the process sees
		// cuDNN's heuristics, mode A. EXHAUSTIVE is mode B: the same kernels for
		// ResNet-50 and MobileNetV2, in the same time. DEFAULT's are ten times slower.
		{"cudnn_conv_algo_search", "HEURISTIC"},
		{"prefer_nhwc", flag(s.nhwc)},
		{"use_tf32", flag(s.tf32)},
		{"enable_cuda_graph", "0"}, // the graphs are ours
	}
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// gpu is the framework on a GPU.
type gpu struct {
	env     libml.Environment
	backend backend
	preload func() error // loads the libraries
	ask     func(libml.Environment, []byte) (*reference, error)
	version func() string // ONNX Runtime's
	cache   string        // the folder of prepared models; empty: the user's

	reference *reference // what the model should answer
	sharing              // the model, and its weights where they are shared
	context   *cuda.Context
	scratch   [lanes]*pool
	nhwc      bool
	sizes     map[int]*size // that run as graphs, by batch size
	byNode    map[int]bool  // batch sizes that run node by node
	plain     map[key]*size // their sessions
	stream    cuda.Stream   // asked whether the device still answers

	mu      sync.RWMutex // guards what follows
	batches map[key]*launch
	// apart is set where a graph writes to memory that others of the model write to
	// as well: then a batch waits for the one before it, on the device.
	apart bool
	last  cuda.Event // where apart: the end of the last batch, of lastOn
	after cuda.Stream
}

// launch is a configured batch.
type launch struct {
	executable *cuda.Executable // nil where the model runs node by node
	hosts      *hosts           // what it copies from
	binding    binding          // then this is run
	scratch    *pool
	ephemeral  int64
}

// close gives the launch back; it is not in flight.
func (l *launch) close(in *cuda.Context) error {
	if l.executable == nil {
		l.binding.close()
		return nil
	}
	return errors.Join(l.executable.Destroy(), l.hosts.release(in))
}

func newGPU(env libml.Environment) *gpu {
	if env.BatchStream == nil {
		env.BatchStream = env.Stream
	}
	return &gpu{
		env: env, backend: onnxRuntime{}, preload: loadProvider, ask: newReference, version: ort.GetVersion,
		batches: make(map[key]*launch), sizes: make(map[int]*size), byNode: make(map[int]bool), plain: make(map[key]*size),
	}
}

// loadProvider loads the CUDA provider of the ONNX Runtime that is open, and all
// that it needs.
func loadProvider() error {
	if err := preloadAll(environment.path, preload); err != nil {
		return err
	}
	if err := openProvider(environment.path); err != nil {
		return fmt.Errorf("%w: load the CUDA provider of %s: %w", errNoProvider, environment.path, err)
	}
	return nil
}

// init loads what can be loaded without a device.
func (g *gpu) init() error {
	if g.env.Stream == nil {
		return fmt.Errorf("device %q: no streams to run on", g.env.Device)
	}
	// A handle of cuBLAS takes 64 MB for itself on Hopper, of which a session has one:
	// as much as ResNet-50's weights. 8 MB are what it takes on other GPUs, and no model
	// that was measured got slower.
	if os.Getenv(cublasVariable) == "" {
		if err := os.Setenv(cublasVariable, ":4096:2:16:8"); err != nil {
			return fmt.Errorf("set %s: %w", cublasVariable, err)
		}
	}
	return g.preload()
}

// cublasVariable is where cuBLAS is told how much memory its handles take: pairs of
// size in KiB and count.
const cublasVariable = "CUBLAS_WORKSPACE_CONFIG"

// loadModel reads and checks the model, and has the CPU answer a picture.
func (g *gpu) loadModel() (err error) {
	if g.env.Weights != nil {
		if err := g.openPrepared(); err != nil || g.reference != nil {
			return err
		}
	}
	model, err := g.original()
	if err != nil {
		return err
	}
	if g.reference, err = g.ask(g.env, model); err != nil {
		g.env.Log.Info().Err(brief(g.env.Card, err)).Msg("model does not run on the CPU: its answers on the GPU are not checked")
		g.reference = new(reference)
		if g.reference.input, err = sample(g.env.Card.Input); err != nil {
			return err
		}
	}
	return nil
}

// wantsNHWC: it is what tensor cores want. A ResNet-50 in f16 is a quarter faster in it. In
// f32 without TF32 it is slower for one of the shipped models (0.09 for 0.07 ms), cannot be
// captured for another, and for the third faster (0.37 for 0.62 ms at 8), at 7 s to compile
// its kernels for 1.9.
func (g *gpu) wantsNHWC() bool { return g.env.Card.Input.TensorType == models.F16 }

// linkModel opens the context and makes the smallest size's session. The bytes are what
// the device has less of, between the weights' own and those with what the libraries
// keep for a session (other processes' comings and goings are in the difference), and
// weights for each size that is linked later: sessions of all sizes have as many.
func (g *gpu) linkModel() (persistentBytes int64, err error) {
	if g.reference == nil {
		return 0, errors.New("link model: none is loaded")
	}
	if err := g.open(); err != nil {
		return 0, g.fail("open GPU", err)
	}
	g.nhwc = g.wantsNHWC()
	if err := g.share(); err != nil {
		return 0, g.fail("share the weights of "+g.env.Card.Model, err)
	}
	before, _, err := g.context.Memory()
	if err != nil {
		return 0, g.fail("link "+g.env.Card.Model, err)
	}
	smallest := g.env.Card.Batches[0]
	err = g.link([]int{smallest})
	if err != nil && len(g.initializers) > 0 && !errors.Is(err, cuda.ErrLost) && !errors.Is(err, cuda.ErrOutOfMemory) {
		// It may be the way in which they are shared.
		why := err
		g.keepPrivate(fmt.Errorf("a session over them cannot be made: %w", why))
		clear(g.byNode)
		if err = g.link([]int{smallest}); err == nil {
			if noted := g.store.Refuse(g.key, why); noted != nil {
				g.env.Log.Warn().Err(noted).Msg("the next process tries it again")
			}
		}
	}
	if err != nil {
		return 0, g.fail("link "+g.env.Card.Model, err)
	}
	if g.sizes[smallest] != nil {
		g.nhwc = g.sizes[smallest].nhwc
	}
	var weights int64
	if s := cmp.Or(g.sizes[smallest], g.plain[key{0, smallest}]); s != nil {
		weights = s.weights.look().mapped
	}
	after, _, err := g.context.Memory()
	if err != nil {
		return 0, g.fail("link "+g.env.Card.Model, err)
	}
	// Handles of cuBLAS and cuDNN, and code (measured: 80 MB for a first session, some
	// 10 for another).
	const most = 100 << 20
	held := min(max(before-after, weights), weights+most)
	held += int64(len(g.env.Card.Batches)-1) * weights
	if g.own != nil {
		held += g.own.look().mapped // once, for all of them
	}
	return held, nil
}

// explain says what is known to make answers wrong, where that is so here.
func (g *gpu) explain(err error) error {
	percentage := os.Getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
	sms, countErr := g.context.SMs()
	if percentage == "" || percentage == "100" || countErr != nil {
		return err
	}
	return fmt.Errorf("%w; MPS shows it %d multiprocessors (%s %%), and cuBLAS has wrong kernels for some numbers of them: use partitions, or another percentage",
		err, sms, percentage)
}

// open makes or joins the device's primary context, which libml's device has, and
// the pools.
func (g *gpu) open() error {
	devices, err := cuda.Devices()
	if err != nil {
		return err
	}
	if len(devices) == 0 {
		return cuda.ErrNoDevice
	}
	if g.context, err = devices[0].OpenContext(cuda.ScheduleAuto); err != nil {
		return err
	}
	if err := g.context.Bind(); err != nil {
		return err
	}
	if err := startPools(); err != nil {
		return err
	}
	if g.stream, err = g.context.NewStream(); err != nil {
		return err
	}
	if g.last, err = g.context.NewEvent(false); err != nil {
		return err
	}
	for i := range g.scratch {
		if g.scratch[i], err = newPool(devices[0]); err != nil {
			return err
		}
	}
	return nil
}

// link makes a session of each of these sizes, ascending, and has each run, as many at
// once as the framework may keep threads busy; then has each captured, one after the
// other: what the others do when they are made or first run waits for the whole device,
// which CUDA refuses while anything is being captured (error 900). What cannot be
// captured is linked the next way down. The error is the first size's that has one;
// those below it are linked, those above are given back.
func (g *gpu) link(batches []int) error {
	made := make([]*size, len(batches))
	errs := make([]error, len(batches))
	took := make([]time.Duration, len(batches))
	free := make(chan struct{}, max(1, g.env.Threads))
	var wg sync.WaitGroup
	for i, n := range batches {
		wg.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			began := time.Now()
			made[i], errs[i] = g.tried(n, g.nhwc)
			took[i] = time.Since(began)
		})
	}
	wg.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return errors.Is(err, cuda.ErrLost) }); i >= 0 {
		return errs[i] // then nothing is given back: that may wait for ever
	}
	for i, s := range made {
		if errs[i] == nil {
			began := time.Now()
			errs[i] = s.tryGraph()
			took[i] += time.Since(began)
		}
	}
	var failed error
	for i, n := range batches {
		began := time.Now()
		if failed == nil && errors.Is(errs[i], errNoGraph) {
			made[i], errs[i] = g.linkOtherwise(made[i], n, errs[i])
		}
		switch {
		case errors.Is(errs[i], cuda.ErrLost):
			return errs[i]
		case failed == nil && errs[i] == nil:
			if made[i] != nil {
				g.sizes[n] = made[i]
			}
			g.env.Log.Debug().Int("batch", n).Bool("graph", made[i] != nil).Bool("nhwc", made[i] != nil && made[i].nhwc).
				Dur("took", took[i]+time.Since(began)).Msg("batch size is linked")
			continue
		case failed == nil:
			failed = errs[i]
			if errors.Is(failed, errWrongAnswers) {
				failed = g.explain(failed)
			}
		}
		if made[i] != nil {
			failed = errors.Join(failed, made[i].close())
		}
	}
	return failed
}

// tried is a session of a size that has run once, and been right.
func (g *gpu) tried(n int, nhwc bool) (*size, error) {
	s, err := g.newSize(n, cuda.Stream{}, nhwc)
	if err == nil {
		err = s.try()
	}
	return s, err
}

// linkOtherwise links a size that cannot be captured as s was made, which it closes:
// in NCHW where that was NHWC, else node by node, and then there is no size. Nothing
// else is being captured, nor is anything linked beside it.
func (g *gpu) linkOtherwise(s *size, n int, why error) (*size, error) {
	nhwc := s.nhwc
	if err := s.close(); err != nil {
		return nil, err
	}
	if nhwc {
		g.env.Log.Debug().Err(why).Int("batch", n).Msg("batch size cannot be captured in NHWC")
		s, why = g.tried(n, false)
		if why == nil {
			why = s.tryGraph()
		}
		if !errors.Is(why, errNoGraph) {
			return s, why
		}
		if err := s.close(); err != nil {
			return nil, err
		}
	}
	g.env.Log.Warn().Err(why).Int("batch", n).Msg("model cannot be captured as a graph: it runs node by node, and slower")
	g.byNode[n] = true
	// The other slots' are made when they are configured.
	_, err := g.plainSize(0, n)
	return nil, err
}

// linkRest links the sizes that are not yet, n one of them.
func (g *gpu) linkRest(n int) error {
	card := g.env.Card
	if !slices.Contains(card.Batches, n) {
		return fmt.Errorf("the card has batches %v", card.Batches)
	}
	var rest []int
	for _, other := range card.Batches {
		if g.sizes[other] == nil && !g.byNode[other] {
			rest = append(rest, other)
		}
	}
	smallest := card.Batches[0]
	if g.byNode[smallest] {
		for _, other := range rest {
			g.byNode[other] = true // each session is made when it is configured
		}
		return nil
	}
	err := g.link(rest)
	if g.sizes[n] != nil || g.byNode[n] {
		return nil // what is wrong with another is told when that is configured
	}
	return err
}

// leave gives back the sessions that a slot has on the stream that it ran on before.
func (g *gpu) leave(slot int) error {
	stream := cuda.StreamOf(g.env.Stream(slot))
	// All at once, while that stream is still there: another move may follow before the
	// other sizes are configured.
	for k, s := range g.plain {
		if k.slot != slot || s.stream == stream {
			continue
		}
		delete(g.plain, k)
		if err := errors.Join(g.drop(k), s.close()); err != nil {
			return err
		}
	}
	return nil
}

// plainSize is the session that runs batches of n node by node on the slot's stream,
// made anew where the stream has changed.
func (g *gpu) plainSize(slot, n int) (*size, error) {
	stream := cuda.StreamOf(g.env.Stream(slot))
	k := key{slot, n}
	if s := g.plain[k]; s != nil {
		return s, nil
	}
	s, err := g.newSize(n, stream, g.env.Card.Input.TensorType == models.F16)
	if err == nil {
		err = s.try()
	}
	if err != nil {
		if s != nil {
			err = errors.Join(err, s.close())
		}
		return nil, err
	}
	g.plain[k] = s
	return s, nil
}

// configureBatch prepares a batch.
func (g *gpu) configureBatch(slot, n int, input []byte, outputs [][]byte) (ephemeralBytes int64, err error) {
	in, outs, err := g.places(n, input, outputs)
	if err != nil {
		return 0, err
	}
	if err := g.context.Bind(); err != nil {
		return 0, g.fail(fmt.Sprintf("prepare batch of %d", n), err)
	}
	var l *launch
	err = g.leave(slot)
	if err == nil && g.sizes[n] == nil && !g.byNode[n] {
		err = g.linkRest(n)
	}
	switch {
	case err != nil:
	case g.byNode[n]:
		l, err = g.configurePlain(slot, n, in, outs)
	default:
		l, err = g.configureGraph(slot, g.sizes[n], in, outs)
	}
	if err != nil {
		return 0, g.fail(fmt.Sprintf("prepare batch of %d in slot %d", n, slot), err)
	}
	err = g.drop(key{slot, n})
	g.mu.Lock()
	g.batches[key{slot, n}] = l
	g.mu.Unlock()
	if err != nil {
		return 0, g.fail(fmt.Sprintf("replace batch of %d in slot %d", n, slot), err)
	}
	return l.ephemeral, nil
}

func (g *gpu) configureGraph(slot int, s *size, in place, outs []place) (*launch, error) {
	stream := cuda.StreamOf(g.env.Stream(slot))
	l, apart, err := s.prepare(slot%lanes, stream, in, outs)
	if err != nil {
		return nil, err
	}
	if err := l.executable.Upload(stream); err != nil {
		return nil, errors.Join(err, l.close(g.context))
	}
	if apart {
		g.mu.Lock()
		g.apart = true
		g.mu.Unlock()
	}
	return l, nil
}

func (g *gpu) configurePlain(slot, n int, in place, outs []place) (*launch, error) {
	s, err := g.plainSize(slot, n)
	if err != nil {
		return nil, err
	}
	scratch := g.scratch[slot%lanes]
	var b binding
	if err := s.thread.do(func() (err error) {
		b, err = s.session.bind(in, outs)
		return err
	}); err != nil {
		return nil, err
	}
	return &launch{binding: b, scratch: scratch}, nil
}

// places are libml's buffers as tensors.
func (g *gpu) places(n int, input []byte, outputs [][]byte) (in place, outs []place, err error) {
	card := g.env.Card
	if len(input) != n*card.Input.TensorBytes() || len(outputs) != len(card.Outputs) {
		return in, nil, fmt.Errorf("batch of %d: input has %d bytes and there are %d outputs, want %d and %d",
			n, len(input), len(outputs), n*card.Input.TensorBytes(), len(card.Outputs))
	}
	in = place{card.Input.Name, cuda.At(input), len(input), card.Input.Shape(n), card.Input.TensorType}
	for i := range card.Outputs {
		o := &card.Outputs[i]
		if len(outputs[i]) != n*o.Bytes() {
			return in, nil, fmt.Errorf("batch of %d: output %s has %d bytes, want %d", n, o.Name, len(outputs[i]), n*o.Bytes())
		}
		outs = append(outs, place{o.Name, cuda.At(outputs[i]), len(outputs[i]), append([]int64{int64(n)}, o.Shape...), models.F32})
	}
	return in, outs, nil
}

// inferBatch queues the batch on its slot's stream.
func (g *gpu) inferBatch(slot, n int) error {
	g.mu.RLock()
	l, apart := g.batches[key{slot, n}], g.apart
	g.mu.RUnlock()
	if l == nil {
		return fmt.Errorf("batch of %d in slot %d is not configured", n, slot)
	}
	var err error
	switch {
	case l.executable == nil:
		if l.scratch.look().refused != nil {
			l.scratch.mark() // by a batch before; else a capture beside this may want its peak
		}
		err = short(l.scratch, l.binding.run(l.scratch))
	case apart:
		err = g.launchApart(l, cuda.StreamOf(g.env.BatchStream(slot)))
	default:
		err = l.executable.Launch(cuda.StreamOf(g.env.BatchStream(slot)))
	}
	if err != nil {
		return g.fail(fmt.Sprintf("run batch of %d in slot %d", n, slot), err)
	}
	return nil
}

// demotable reports whether the batch is a graph: a session that runs node by node is
// bound to a stream for its life.
func (g *gpu) demotable(slot, n int) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	l := g.batches[key{slot, n}]
	return l != nil && l.executable != nil
}

// launchApart queues the batch behind the one before, of whatever slot. So one within the
// guarantee may wait for a demoted one.
func (g *gpu) launchApart(l *launch, on cuda.Stream) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.after != on {
		if err := on.Wait(g.last); err != nil {
			return err
		}
	}
	if err := l.executable.Launch(on); err != nil {
		return err
	}
	g.after = on
	return g.last.Record(on)
}

// drop gives a configured batch back; it is not in flight.
func (g *gpu) drop(k key) error {
	g.mu.Lock()
	l := g.batches[k]
	delete(g.batches, k)
	g.mu.Unlock()
	if l == nil {
		return nil
	}
	return l.close(g.context)
}

// deinit gives everything back.
func (g *gpu) deinit() error {
	g.reference, g.model = nil, nil
	g.closeEntry()
	if g.context == nil {
		return nil
	}
	errs := []error{g.context.Bind()}
	for k := range g.batches {
		errs = append(errs, g.drop(k))
	}
	for _, s := range g.sizes {
		errs = append(errs, s.close())
	}
	for _, s := range g.plain {
		errs = append(errs, s.close())
	}
	clear(g.sizes)
	clear(g.byNode)
	clear(g.plain)
	for i := range g.scratch {
		errs = append(errs, g.scratch[i].close())
		g.scratch[i] = nil
	}
	errs = append(errs, g.own.close())
	g.own, g.initializers = nil, nil
	if g.last != (cuda.Event{}) {
		errs = append(errs, g.last.Destroy())
	}
	if g.stream != (cuda.Stream{}) {
		errs = append(errs, g.stream.Destroy())
	}
	errs = append(errs, closeElsewhere(g.context))
	g.context = nil
	if err := errors.Join(errs...); err != nil {
		return g.fail("give GPU back", err)
	}
	return nil
}

// closeElsewhere closes a context on another thread: Close unbinds the thread that
// calls it, and the caller's stays libml's device's.
func closeElsewhere(c *cuda.Context) error {
	t, err := newThread(c)
	if err != nil {
		return err
	}
	defer t.end()
	return t.do(c.Close)
}

// fail names what failed, makes it device.ErrLost where nothing will work again and
// cuda.ErrOutOfMemory where memory was missing. Of what ONNX Runtime says, only CUDA
// itself knows the first.
func (g *gpu) fail(doing string, err error) error {
	var said *ortError
	if errors.As(err, &said) {
		if said.outOfMemory() && !errors.Is(err, cuda.ErrOutOfMemory) {
			err = fmt.Errorf("%w: %w", cuda.ErrOutOfMemory, err)
		}
		if said.tooFewSMs() {
			err = fmt.Errorf("%w: %w", cuda.ErrTooFewSMs, err)
		}
		if g.stream != (cuda.Stream{}) {
			if _, asked := g.stream.Query(); errors.Is(asked, cuda.ErrLost) {
				err = fmt.Errorf("%w (%w)", err, asked)
			}
		}
	}
	if errors.Is(err, cuda.ErrLost) && !errors.Is(err, device.ErrLost) {
		err = fmt.Errorf("%w: %w", device.ErrLost, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
