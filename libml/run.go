package libml

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/decode"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/device/cpu"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// Build makes the framework that runs a card's model.
type Build func(card *models.Card) (Framework, error)

// Run is the whole of an inference function's process: it meets the
// orchestrator that started it, gets its memory from the manager, and runs
// batches with the framework until it is told to drain. It is what a user's
// main calls; `penstock if` calls it with the built-in frameworks.
//
// The steps, and the state that the orchestrator sees after each:
//
//  1. handshake with the orchestrator and the manager
//  2. Init, LoadModel                                     -> loaded (a shadow sleeps here)
//  3. woken: map memory, LinkModel, ConfigureBatch and
//     one warm-up run of every batch size of the ladder   -> ready
//  4. the epoch names this generation, the ring is free   -> active
//  5. batches, until the epoch moves on or drain          -> draining
//  6. Deinit, and the process ends                        -> stopped
//
// Run returns nil after a drain. It returns an error, one line, when a step
// fails, and when the orchestrator or the manager is gone: an inference function
// without them has nobody to work for.
func Run(ctx context.Context, log zerolog.Logger, build Build) error {
	// The loop's thread is in C or in the kernel most of the time; when it comes
	// back it must not wait for a place to run, however few CPUs there are.
	const procs = 4
	runtime.GOMAXPROCS(max(procs, runtime.NumCPU()))
	child, err := control.OpenChild()
	if err != nil {
		return err
	}
	defer child.Close()
	p := &process{child: child, log: log}
	return p.run(ctx, build)
}

// process is one inference function's process.
type process struct {
	log   zerolog.Logger
	child *control.Child
	start control.Start
	conn  *control.Attachment

	card      *models.Card
	framework Framework
	slo       time.Duration
	memory    *memory
	private   scratch // for the warm-up; nil but for that
	warm      []warmUp

	// orders as they stand, written by the order goroutine.
	share    atomic.Pointer[shareOrder]
	draining atomic.Bool
	woken    chan struct{}
	wakeOnce sync.Once
	lost     atomic.Pointer[error] // why nobody is left to work for
	nudge    atomic.Pointer[shm.Consumer]
}

// warmUp is what a batch size took in its warm-up run.
type warmUp struct {
	size    int
	elapsed time.Duration
}

type shareOrder struct {
	percent  float64
	governor bool
}

var errManagerGone = errors.New("manager is gone")
var errOrchestratorGone = errors.New("orchestrator is gone")

func (p *process) run(ctx context.Context, build Build) error {
	p.start = p.child.Start()
	p.log = p.log.With().Str("if", p.start.IF).Int("instance", p.start.Instance).Uint32("generation", p.start.Generation).Logger()
	attached, files, conn, err := control.DialAttach(p.start.AttachSocket, control.Attach{
		Version: control.Version, IF: p.start.IF, Instance: p.start.Instance, Generation: p.start.Generation, PID: os.Getpid(),
	})
	if err != nil {
		return err
	}
	p.conn = conn
	defer conn.Close()
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if p.card, err = cardOf(attached); err != nil {
		return err
	}
	p.slo = time.Duration(attached.SLONanos)

	if p.framework, err = build(p.card); err != nil {
		return err
	}
	// The framework holds on to buffers until it is gone.
	defer func() {
		if err := p.framework.Deinit(); err != nil {
			p.log.Warn().Err(err).Msg("deinit")
		}
		if p.memory != nil {
			p.memory.close()
		}
		if p.private != nil {
			p.private.free()
		}
	}()
	if err := p.load(); err != nil {
		return err
	}

	p.woken = make(chan struct{})
	gone := make(chan struct{})
	go p.watch(ctx, gone)
	p.child.Notify(control.Notice{State: control.Loaded})
	select {
	case <-p.woken:
	case <-gone:
		return p.end()
	}

	// From here on one thread calls the framework and holds the ring.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	woken := time.Now()
	p.child.Notify(control.Notice{State: control.Linking})
	notice, err := p.link(attached, files)
	if err != nil {
		return err
	}
	if p.finished() {
		return p.end()
	}
	l, err := newLoop(p, attached)
	if err != nil {
		return err
	}
	p.nudge.Store(p.memory.consumer)
	time.Sleep(p.rest())
	notice.State = control.Ready
	notice.WarmupMillis = float64(time.Since(woken).Microseconds()) / 1000
	p.child.Notify(notice)
	if err := l.run(); err != nil {
		return err
	}
	return p.end()
}

// rest is between the warm-up and ready: the warm-up may have used up its quota, and
// whoever takes a ring while it is throttled lets it stand. It is two periods of
// a quota of 1 ms (orchestrator/quota.go).
func (p *process) rest() time.Duration {
	share := p.share.Load()
	if share == nil || share.governor || share.percent <= 0 || share.percent >= 100 {
		return 0
	}
	const twoQuotas, most = 2 * time.Millisecond, 50 * time.Millisecond
	return min(most, time.Duration(float64(twoQuotas)*100/share.percent))
}

// end is how a process that has nothing left to do ends: nil when it was told
// to, else why nobody is left.
func (p *process) end() error {
	if lost := p.lost.Load(); lost != nil {
		return *lost
	}
	p.child.Notify(control.Notice{State: control.Stopped})
	return nil
}

// finished reports whether the loop has to end at the next batch boundary.
func (p *process) finished() bool { return p.draining.Load() }

// watch follows orders and looks after both connections until one of them ends.
func (p *process) watch(ctx context.Context, gone chan<- struct{}) {
	manager := p.conn.Gone()
	finish := func(reason error) {
		if reason != nil {
			p.lost.CompareAndSwap(nil, &reason)
		}
		p.draining.Store(true)
		close(gone)
		if c := p.nudge.Load(); c != nil {
			c.Interrupt()
		}
	}
	for {
		select {
		case order, ok := <-p.child.Orders():
			if !ok {
				finish(errOrchestratorGone)
				return
			}
			switch order.Do {
			case control.DoWake, control.DoShare:
				p.share.Store(&shareOrder{percent: order.SharePercent, governor: order.Governor})
				if order.Do == control.DoWake {
					p.wakeOnce.Do(func() { close(p.woken) })
				}
			case control.DoDrain:
				finish(nil)
				return
			}
		case <-manager:
			finish(errManagerGone)
			return
		case <-ctx.Done():
			finish(nil)
			return
		}
	}
}

func cardOf(attached control.Attached) (*models.Card, error) {
	card := new(models.Card)
	if err := json.Unmarshal(attached.Card, card); err != nil {
		return nil, fmt.Errorf("read card from manager: %w", err)
	}
	return card, nil
}

// threads is how many CPU threads the framework may use: the card's word, at
// most as many as there are CPUs for inference functions.
func (p *process) threads() int {
	cpus := max(1, p.start.CPUs)
	if p.card.Threads > 0 {
		return min(p.card.Threads, cpus)
	}
	return cpus
}

// load is all that a shadow does before it is woken.
func (p *process) load() error {
	if err := p.framework.Init(Environment{Card: p.card, Threads: p.threads(), Log: p.log, Device: DeviceCPU}); err != nil {
		return fmt.Errorf("init %s: %w", p.card.Framework, err)
	}
	if err := p.framework.LoadModel(); err != nil && !errors.Is(err, ErrNoHostStage) {
		return fmt.Errorf("load model %s: %w", p.card.Name, err)
	}
	return nil
}

// link puts the model on the device, prepares every batch size and runs each, so
// that the first real batch is as fast as the thousandth.
func (p *process) link(attached control.Attached, files []*os.File) (control.Notice, error) {
	var notice control.Notice
	var err error
	if p.memory, err = mapMemory(p.start.Generation, p.card, attached, files); err != nil {
		return notice, err
	}
	if notice.PersistentBytes, err = p.framework.LinkModel(); err != nil {
		return notice, fmt.Errorf("link model %s: %w", p.card.Name, err)
	}
	// The warm-up runs over private scratch: the shared buffers belong to
	// whoever holds the ring, and that is another process now.
	if p.private, err = newScratch(p.card.TensorBytes()); err != nil {
		return notice, err
	}
	scratch, err := newTensors(p.card, p.private)
	if err != nil {
		return notice, err
	}
	for i := len(p.card.Batches) - 1; i >= 0; i-- {
		n := p.card.Batches[i]
		var elapsed time.Duration
		if err := p.configure(n, scratch); err != nil {
			return notice, err
		}
		// Twice: the first run pays for what is made on demand, the second is
		// what the batching rule may expect.
		for range 2 {
			began := time.Now()
			if err := p.framework.InferBatch(0, n); err != nil {
				return notice, fmt.Errorf("warm up %s at batch %d: %w", p.card.Name, n, err)
			}
			elapsed = time.Since(began)
		}
		p.warm = append(p.warm, warmUp{n, elapsed})
		if p.finished() {
			return notice, nil
		}
	}
	for _, n := range p.card.Batches {
		bytes, err := p.framework.ConfigureBatch(0, n, p.memory.tensors[0].input(n), p.memory.tensors[0].outputs(n))
		if err != nil {
			return notice, fmt.Errorf("configure batch %d of %s: %w", n, p.card.Name, err)
		}
		notice.EphemeralBytes = max(notice.EphemeralBytes, bytes)
	}
	// Every batch size is bound to the shared buffers now.
	err, p.private = p.private.free(), nil
	return notice, err
}

func (p *process) configure(n int, t *tensors) error {
	if _, err := p.framework.ConfigureBatch(0, n, t.input(n), t.outputs(n)); err != nil {
		return fmt.Errorf("configure batch %d of %s: %w", n, p.card.Name, err)
	}
	return nil
}

// memory is what a process maps: packets, requests, rings and tensors.
type memory struct {
	consumer *shm.Consumer
	slots    uint32 // requests in flight, at most
	regions  []*shm.Region
	tensors  []*tensors // by the device's slot
	device   device.Device
	decoder  decode.Decoder
}

func mapMemory(generation uint32, card *models.Card, attached control.Attached, files []*os.File) (_ *memory, err error) {
	const fixed = 4 // request table, ring, replies, tensors
	if want := fixed + len(attached.SlabBytes); len(files) != want {
		return nil, fmt.Errorf("attach to manager: got %d file descriptors, want %d", len(files), want)
	}
	var g shm.Geometry
	if err := json.Unmarshal(attached.Geometry, &g); err != nil {
		return nil, fmt.Errorf("read geometry from manager: %w", err)
	}
	m := &memory{slots: g.Slots}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if m.consumer, err = shm.NewConsumer(generation, g, files[0], files[1], files[2]); err != nil {
		return nil, err
	}
	buffers, err := shm.Map(files[3], int(attached.TensorBytes), true)
	if err != nil {
		return nil, fmt.Errorf("map tensors: %w", err)
	}
	m.regions = append(m.regions, buffers)
	var slabs [][]byte
	for i, size := range attached.SlabBytes {
		slab, err := shm.Map(files[fixed+i], int(size), false)
		if err != nil {
			return nil, fmt.Errorf("map slab %d: %w", i, err)
		}
		m.regions = append(m.regions, slab)
		slabs = append(slabs, slab.Bytes())
	}
	if m.device, err = cpu.New(card.Input, slabs); err != nil {
		return nil, err
	}
	slots, err := m.device.Tensors(buffers.Bytes(), sizesOf(card))
	if err != nil {
		return nil, fmt.Errorf("map tensors of model %s: manager gave %d bytes: %w", card.Name, attached.TensorBytes, err)
	}
	for _, t := range slots {
		m.tensors = append(m.tensors, &tensors{card, t})
	}
	if m.decoder, err = decode.New(card); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *memory) close() {
	if m.consumer != nil {
		m.consumer.Close()
	}
	if m.device != nil {
		m.device.Close()
	}
	for _, r := range m.regions {
		r.Close()
	}
}
