package libml

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/weights"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// Build makes the framework that runs a card's model.
type Build func(card *models.Card) (Framework, error)

// Run runs the process of an inference function until the orchestrator drains it, see the
// package comment. A program calls it once, and exits afterwards.
//
// Run returns nil after a drain, also by ctx. It returns an error of one line if a step
// fails, or if the orchestrator or the manager has exited. If the error wraps
// device.ErrLost, the GPU has failed and calls that touch it may never return: the program
// must exit at once.
func Run(ctx context.Context, log zerolog.Logger, build Build) error {
	// The loop's thread is in C or in the kernel most of the time. When it returns, it must
	// not wait for a place to run, even with few CPUs.
	const procs = 4
	runtime.GOMAXPROCS(max(procs, runtime.NumCPU()))
	child, err := control.OpenChild()
	if err != nil {
		return err
	}
	defer child.Close()
	p := &process{child: child, log: log, open: openDevice}
	return p.run(ctx, build)
}

// process is one inference function's process.
type process struct {
	log   zerolog.Logger
	child *control.Child
	start control.Start
	conn  *control.Attachment
	open  opener

	card      *models.Card
	framework Framework
	slo       time.Duration
	memory    *memory
	weights   *weights.Mappings // nil: the framework loads its own
	inFlight  int               // maximum number of batches in flight
	// level is the level of batches within the guarantee, on a GPU with priorities:
	// prioritized. It is budget.Demoted if no guarantee was ordered at the wake.
	level       budget.Level
	prioritized device.Partitioned
	private     scratch // nil except during the warm-up
	warm        []warmUp
	// ladder has the card's configured batch sizes. ephemeral is the memory of the largest
	// in each slot that may be in flight. Once there is a mover, it owns both.
	ladder    []int
	ephemeral []int64
	abandoned bool // the process ends while the framework works

	// The present orders, written by the order goroutine.
	share    atomic.Pointer[shareOrder]
	draining atomic.Bool
	awake    bool
	woken    chan control.Order // the wake, once
	groups   chan []int         // where to move: the last order
	prepared chan string        // why the model could not be prepared; empty if it was
	failed   atomic.Pointer[error]
	unfit    atomic.Pointer[error] // why the process must not serve any more
	lost     atomic.Pointer[error] // why a peer is gone
	nudge    atomic.Pointer[shm.Consumer]

	sayMu    sync.Mutex     // guards what follows
	state    control.State  // as last reported
	standing string         // the reason to report if there is no other
	whole    control.Notice // all notices so far, merged
}

// warmUp is the time of a batch size in its warm-up run.
type warmUp struct {
	size    int
	elapsed time.Duration
	alone   time.Duration // time of a batch without the host's part; 0 if the process keeps no account
}

type shareOrder struct {
	percent  float64
	governor bool
	// guarantee is a percentage of the device's time; level is not budget.Demoted if there
	// are guarantees.
	guarantee float64
	level     budget.Level
}

var errManagerGone = errors.New("manager is gone")
var errOrchestratorGone = errors.New("orchestrator is gone")

func (p *process) run(ctx context.Context, build Build) (err error) {
	// One thread calls the framework and the device, holds the ring, and cleans up.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.start = p.child.Start()
	p.log = p.log.With().Str("if", p.start.IF).Int("instance", p.start.Instance).Uint32("generation", p.start.Generation).Logger()
	attached, files, conn, err := control.DialAttach(p.start.AttachSocket, control.Attach{
		Version: control.Version, IF: p.start.IF, Instance: p.start.Instance, Generation: p.start.Generation, PID: os.Getpid(),
		Ticket: p.start.Ticket,
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
	if attached.BusyPollNanos > 0 {
		shm.Spin = max(shm.Spin, time.Duration(attached.BusyPollNanos))
	}
	if p.card, err = cardOf(attached); err != nil {
		return err
	}
	p.slo = time.Duration(attached.SLONanos)

	if p.framework, err = build(p.card); err != nil {
		return err
	}
	defer func() {
		if p.abandoned {
			return // the framework is still at work
		}
		if lost(err) {
			// A call that touches the device may never return now.
			p.say(control.Notice{State: control.Failed, Reason: err.Error(), DeviceLost: true, Blameless: errors.Is(err, cuda.ErrServer)})
			return
		}
		if groups := unfitGroups(err); len(groups) > 0 {
			p.say(control.Notice{State: control.Failed, Reason: err.Error(), GroupsUnfit: groups})
		}
		p.clean()
	}()
	if err := p.load(); err != nil {
		return err
	}

	p.woken, p.groups, p.prepared = make(chan control.Order, 1), make(chan []int, 1), make(chan string, 1)
	gone := make(chan struct{})
	go p.watch(ctx, gone)
	p.say(control.Notice{State: control.Loaded})
	var wake control.Order
	select {
	case wake = <-p.woken:
	case <-gone:
		return p.end()
	}

	woken := time.Now()
	p.say(control.Notice{State: control.Linking})
	notice, err := p.link(wake, attached, files)
	if err != nil {
		return unfitOn(wake.SMGroups, err)
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
	notice.State, notice.Batches, notice.Growing = control.Ready, p.ladder, p.growing()
	notice.WarmupMillis = float64(time.Since(woken).Microseconds()) / 1000
	p.say(notice)
	if d, ok := p.memory.device.(device.Partitioned); ok {
		goFirst()
		if runtime.NumCPU() >= cpusToBeEager {
			p.memory.consumer.Eager(eagerFor)
		}
		m := p.startMover(l, d, notice)
		err = m.end(l.run())
	} else {
		err = l.run()
	}
	if err != nil {
		return err
	}
	return p.end()
}

// clean frees what the process allocated. The framework goes first, because it holds on to
// buffers.
func (p *process) clean() {
	if err := p.framework.Deinit(); err != nil {
		p.log.Warn().Err(err).Msg("deinit")
	}
	if p.weights != nil {
		if err := p.weights.Close(); err != nil {
			p.log.Warn().Err(err).Msg("unmap weights")
		}
	}
	if p.memory != nil {
		p.memory.close()
	}
	if p.private != nil {
		p.private.free()
	}
}

// say sends a notice to the orchestrator. It may be called from any goroutine; notices go
// one after the other. A notice without a state gets the last state.
func (p *process) say(n control.Notice) {
	p.sayMu.Lock()
	defer p.sayMu.Unlock()
	if n.State == "" {
		n.State = p.state
	}
	if n.Reason == "" && !n.State.Ended() {
		n.Reason = p.standing
	}
	p.state = n.State
	p.remember(n)
	p.child.Notify(n)
}

// remember merges a notice into p.whole. The caller holds sayMu.
func (p *process) remember(n control.Notice) {
	whole := &p.whole
	whole.State, whole.Reason = n.State, n.Reason
	whole.DeviceLost, whole.Blameless = n.DeviceLost, n.Blameless
	whole.PersistentBytes = cmp.Or(n.PersistentBytes, whole.PersistentBytes)
	whole.EphemeralBytes = cmp.Or(n.EphemeralBytes, whole.EphemeralBytes)
	whole.WarmupMillis = cmp.Or(n.WarmupMillis, whole.WarmupMillis)
	if len(n.Batches) > 0 {
		whole.Batches, whole.Growing = n.Batches, n.Growing
	}
	if n.SMs != 0 {
		whole.SMs, whole.SMGroups, whole.GroupsUnfit = n.SMs, n.SMGroups, n.GroupsUnfit
	}
}

// report sends the complete state to an orchestrator that has taken over.
func (p *process) report() {
	p.sayMu.Lock()
	defer p.sayMu.Unlock()
	n := p.whole
	n.Woken = p.awake
	if n.State != "" { // otherwise it will soon report Loaded
		p.child.Notify(n)
	}
}

// loseDevice ends the process because the device failed. A goroutine other than the loop's
// calls it.
func (p *process) loseDevice(why error) {
	p.failed.CompareAndSwap(nil, &why)
	p.draining.Store(true)
	p.memory.consumer.Interrupt()
}

// deviceLost returns the reason given to loseDevice, or nil.
func (p *process) deviceLost() error {
	if why := p.failed.Load(); why != nil {
		return *why
	}
	return nil
}

// rest is the pause between warm-up and ready. The warm-up may have used up the quota, and
// a process that takes a ring while it is throttled leaves the ring idle. The pause is two
// periods of a quota of 1 ms (orchestrator/quota.go).
func (p *process) rest() time.Duration {
	share := p.share.Load()
	if p.onGPU() || share == nil || share.governor || share.percent <= 0 || share.percent >= 100 {
		return 0
	}
	const twoQuotas, most = 2 * time.Millisecond, 50 * time.Millisecond
	return min(most, time.Duration(float64(twoQuotas)*100/share.percent))
}

// end returns why a process without further work ends: nil if it was ordered to, else which
// peer is gone.
func (p *process) end() error {
	if lost := p.lost.Load(); lost != nil {
		return *lost
	}
	p.say(control.Notice{State: control.Stopped})
	return nil
}

// finished reports whether the loop must end at the next batch boundary.
func (p *process) finished() bool { return p.draining.Load() }

// watch follows orders and watches both connections until one of them ends.
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
				p.follow(order)
				p.moveTo(order)
			case control.DoReport:
				p.report()
			case control.DoPrepared:
				select {
				case p.prepared <- order.Failed:
				default: // it is not an answer to a request
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

// follow stores the share of an order.
func (p *process) follow(order control.Order) {
	p.share.Store(&shareOrder{
		percent: order.SharePercent, governor: order.Governor,
		guarantee: order.GuaranteePercent, level: order.Level,
	})
}

// moveTo passes on the groups to run on: first to the goroutine that waits for the wake,
// later to the mover. Only the last order counts.
func (p *process) moveTo(order control.Order) {
	if order.Do == control.DoWake && !p.awake {
		p.awake = true
		p.woken <- order
		return
	}
	if !p.awake || !p.onGPU() {
		return
	}
	select {
	case <-p.groups:
	default:
	}
	p.groups <- order.SMGroups
}

func cardOf(attached control.Attached) (*models.Card, error) {
	card := new(models.Card)
	if err := json.Unmarshal(attached.Card, card); err != nil {
		return nil, fmt.Errorf("read card from manager: %w", err)
	}
	return card, nil
}

// threads is how many CPU threads the framework may use: as many as the card says, at most
// the number of CPUs for inference functions.
func (p *process) threads() int {
	cpus := max(1, p.start.CPUs)
	if p.card.Threads > 0 {
		return min(p.card.Threads, cpus)
	}
	return cpus
}

// onGPU reports whether the process runs on a GPU.
func (p *process) onGPU() bool { return p.start.Device != "" && p.start.Device != DeviceCPU }

// load does everything that a shadow does before it is woken.
func (p *process) load() error {
	env := Environment{Card: p.card, Threads: p.threads(), Log: p.log, Device: DeviceCPU}
	if p.onGPU() {
		env.Device, env.Stream, env.BatchStream = p.start.Device, p.stream, p.batchStream
		if p.start.WeightsSocket != "" {
			p.weights = weights.NewMappings(p.start.WeightsSocket)
			env.Weights = p.sharedWeights
		}
		if p.start.Prepared != "" {
			env.Prepared, env.Prepare = p.start.Prepared, p.prepare
		}
	}
	if err := p.framework.Init(env); err != nil {
		return fmt.Errorf("init %s: %w", p.card.Name, err)
	}
	if err := p.framework.LoadModel(); err != nil && !errors.Is(err, ErrNoHostStage) {
		return fmt.Errorf("load model %s: %w", p.card.Name, err)
	}
	return nil
}

// stream is Environment.Stream.
func (p *process) stream(slot int) uintptr {
	if d, ok := p.memory.device.(device.Partitioned); ok {
		return d.Stream(slot)
	}
	return 0
}

// batchStream is Environment.BatchStream.
func (p *process) batchStream(slot int) uintptr {
	if d, ok := p.memory.device.(device.Partitioned); ok {
		return d.BatchStream(slot)
	}
	return 0
}

// link puts the model on the device and prepares every batch size, or only the smallest if
// the process may begin with that. It runs each size, so that the first real batch is as
// fast as the thousandth.
func (p *process) link(wake control.Order, attached control.Attached, files []*os.File) (control.Notice, error) {
	var notice control.Notice
	for name, value := range wake.Environment {
		if err := os.Setenv(name, value); err != nil {
			return notice, fmt.Errorf("set %s before the device is opened: %w", name, err)
		}
	}
	var err error
	if p.memory, err = p.mapMemory(attached, files); err != nil {
		return notice, err
	}
	p.inFlight = p.memory.device.InFlight()
	if attached.Streams > 0 {
		p.inFlight = min(p.inFlight, attached.Streams)
	}
	if err := p.place(&notice, wake); err != nil {
		return notice, err
	}
	p.ladder = p.card.Batches
	if _, ok := p.memory.device.(device.Partitioned); ok && wake.Early {
		p.ladder = p.card.Batches[:1]
	}
	if notice.PersistentBytes, err = p.framework.LinkModel(); err != nil {
		return notice, fmt.Errorf("link model %s: %w", p.card.Name, err)
	}
	if p.onGPU() {
		err = p.warmUp(&notice)
	} else {
		err = p.warmUpPrivately(&notice)
	}
	return notice, err
}

// place moves the device to the ordered groups before anything is created there.
func (p *process) place(notice *control.Notice, wake control.Order) error {
	groups := wake.SMGroups
	d, ok := p.memory.device.(device.Partitioned)
	if !ok {
		if len(groups) > 0 {
			return fmt.Errorf("run on groups %v of multiprocessors: device %s has none", groups, p.memory.device.Name())
		}
		return nil
	}
	slots := []int{0, 1}[:p.inFlight]
	if len(groups) > 0 {
		if err := d.Repartition(slots, groups); err != nil {
			return fmt.Errorf("run on groups %v of multiprocessors: %w", groups, err)
		}
	}
	if wake.Level != budget.Demoted {
		switch err := d.Prioritize(slots, wake.Level); {
		case errors.Is(err, cuda.ErrNotSupported):
			p.log.Warn().Err(err).Msg("batches beyond the guarantee are not demoted: the GPU has no stream priorities")
		case err != nil:
			return err
		default:
			p.level, p.prioritized = wake.Level, d
		}
	}
	var err error
	notice.SMGroups = groups
	notice.SMs, err = p.countSMs(d, 0, groups)
	return err
}

// countSMs counts the multiprocessors of a slot that was moved to these groups. The
// orchestrator chose the groups. If their sizes are not those that it reported, both sides
// mean different multiprocessors, which is an error.
func (p *process) countSMs(d device.Partitioned, slot int, groups []int) (int, error) {
	n, err := d.SMs(slot)
	if err != nil {
		return 0, fmt.Errorf("count multiprocessors: %w", err)
	}
	want := 0
	for _, g := range groups {
		if g < len(p.start.GroupSMs) {
			want += p.start.GroupSMs[g]
		}
	}
	if len(groups) > 0 && n != want {
		return n, fmt.Errorf("groups %v have %d multiprocessors on %s, and the orchestrator counts %d: they split it differently",
			groups, n, d.Name(), want)
	}
	return n, nil
}

// warmUp configures and warms up every slot that may be in flight, on a device whose
// tensors belong to the process.
func (p *process) warmUp(notice *control.Notice) error {
	for slot := range p.inFlight {
		bytes, err := p.configureSlot(slot)
		if err != nil {
			return err
		}
		p.ephemeral = append(p.ephemeral, bytes)
		for _, n := range slices.Backward(p.ladder) {
			elapsed, err := p.warmUpBatch(slot, n, p.memory.tensors[slot])
			if err != nil {
				return err
			}
			if slot == 0 {
				p.warm = append(p.warm, warmUp{size: n, elapsed: elapsed})
			}
			if p.finished() {
				return nil
			}
		}
	}
	notice.EphemeralBytes = p.ephemeralBytes()
	if p.level == budget.Demoted {
		return nil
	}
	for i := range p.warm {
		if err := p.measureAlone(&p.warm[i]); err != nil || p.finished() {
			return err
		}
	}
	return nil
}

// measureAlone measures how long a batch takes at the function's level. Other processes use
// the device, too, so the shortest of several runs counts. Short batches run several times
// in a row, so that the host's part counts for less.
func (p *process) measureAlone(w *warmUp) error {
	const (
		fewest, most = 3, 8
		limit        = 20 * time.Millisecond // for all runs after the third
	)
	d := p.memory.device
	rounds := int(max(1, min(4, limit/16/max(1, w.elapsed))))
	began := shm.Now()
	for run := range most {
		start := shm.Now()
		if run >= fewest && time.Duration(start-began) > limit {
			break
		}
		var err error
		for range rounds {
			err = worse(err, p.framework.InferBatch(0, w.size))
		}
		err = worse(err, d.Fetch(0, 0))
		_, waitErr := d.Wait(0)
		if err = worse(err, waitErr); err != nil {
			return fmt.Errorf("measure %s at batch %d: %w", p.card.Name, w.size, err)
		}
		if took := time.Duration(shm.Now()-start) / time.Duration(rounds); run == 0 || took < w.alone {
			w.alone = took
		}
	}
	return nil
}

// configureSlot prepares the batch sizes in a slot and returns the bytes of the largest.
func (p *process) configureSlot(slot int) (ephemeralBytes int64, err error) {
	for _, n := range p.ladder {
		bytes, err := p.configure(slot, n, p.memory.tensors[slot])
		if err != nil {
			return 0, err
		}
		ephemeralBytes = max(ephemeralBytes, bytes)
	}
	return ephemeralBytes, nil
}

func (p *process) configure(slot, n int, t *tensors) (ephemeralBytes int64, err error) {
	if ephemeralBytes, err = p.framework.ConfigureBatch(slot, n, t.input(n), t.outputs(n)); err != nil {
		return 0, fmt.Errorf("configure batch %d of %s: %w", n, p.card.Name, err)
	}
	return ephemeralBytes, nil
}

// warmUpBatch runs a batch of blank images over these tensors twice and returns the time of
// the second run. The first run pays for lazy initialisation; the second is what the
// batching rule may expect. It does not write the results, which are shared.
func (p *process) warmUpBatch(slot, n int, t *tensors) (elapsed time.Duration, err error) {
	d := p.memory.device
	err = d.Pad(slot, t.input(n), 0, n)
	for i := 0; i < 2 && err == nil; i++ {
		began := time.Now()
		err = p.framework.InferBatch(slot, n)
		err = worse(err, d.Fetch(slot, 0))
		_, waitErr := d.Wait(slot)
		err = worse(err, waitErr)
		elapsed = time.Since(began)
	}
	if err != nil {
		return 0, fmt.Errorf("warm up %s at batch %d: %w", p.card.Name, n, err)
	}
	return elapsed, nil
}

// warmUpPrivately warms up over private scratch memory. The shared buffers belong to the
// owner of the ring, which is another process now. At the end it configures over the shared
// buffers.
func (p *process) warmUpPrivately(notice *control.Notice) (err error) {
	if p.private, err = newScratch(p.card.TensorBytes()); err != nil {
		return err
	}
	scratch, err := newTensors(p.card, p.private)
	if err != nil {
		return err
	}
	for i := len(p.card.Batches) - 1; i >= 0; i-- {
		n := p.card.Batches[i]
		if _, err := p.configure(0, n, scratch); err != nil {
			return err
		}
		outputs := scratch.outputs(n)
		wipe(outputs)
		elapsed, err := p.warmUpBatch(0, n, scratch)
		if err != nil {
			return err
		}
		if err := written(p.card, outputs); err != nil {
			return fmt.Errorf("warm up %s at batch %d: %w", p.card.Name, n, err)
		}
		p.warm = append(p.warm, warmUp{size: n, elapsed: elapsed})
		if p.finished() {
			return nil
		}
	}
	if notice.EphemeralBytes, err = p.configureSlot(0); err != nil {
		return err
	}
	// Every batch size uses the shared buffers now.
	err, p.private = p.private.free(), nil
	return err
}
