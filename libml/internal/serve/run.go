package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/conductor"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/libml/internal/loop"
	"github.com/penstock/penstock/libml/internal/worker"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/libml/weights"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// Run runs the process of an inference function until the orchestrator drains it, see the
// package comment. If the orchestrator started the process as a worker, it hosts several
// functions. A program may call Run only once, and must exit afterwards.
//
// Run returns nil after a drain, also by ctx. It returns an error of one line if a step
// fails, or if the orchestrator or the manager has exited. If the error wraps
// device.ErrLost, the GPU has failed and calls that touch it may never return: the program
// must exit at once.
func Run(ctx context.Context, log *slog.Logger, build framework.Build) error {
	// The loop's thread is in C or in the kernel most of the time. When it returns, it must
	// not wait for a place to run, even with few CPUs.
	const procs = 4
	runtime.GOMAXPROCS(max(procs, runtime.NumCPU()))
	child, err := control.OpenChild()
	if err != nil {
		return err
	}
	defer child.Close()
	if worker := child.Start().Worker; worker != "" {
		return serveMembers(ctx, log.With("worker", worker), child, openDevice, build)
	}
	p := &process{child: child, log: log, open: openDevice}
	return p.run(ctx, build)
}

// serveMembers runs the members of a worker.
func serveMembers(ctx context.Context, log *slog.Logger, link *control.Child, open opener, build framework.Build) error {
	return worker.Run(ctx, log, link, func(ctx context.Context, w *worker.Worker, child *control.Child) error {
		return serveMember(ctx, &process{child: child, log: log, open: open, worker: w}, build)
	})
}

// serveMember runs a member. It returns an error only if the worker cannot go on.
func serveMember(ctx context.Context, p *process, build framework.Build) error {
	start := p.child.Start()
	name := fmt.Sprintf("%s/%d#%d", start.IF, start.Instance, start.Generation)
	log := p.log
	err := p.run(ctx, build)
	if exitErr := p.child.Exit(err); exitErr != nil {
		log.Debug("cannot report end of member", "error", exitErr, "member", name)
	}
	switch {
	case loop.IsLost(err):
		return fmt.Errorf("member %s: %w", name, err)
	case p.exit.abandoned:
		return fmt.Errorf("member %s ended while its framework was at work: %w", name, err)
	}
	return nil
}

// busyPoll sets shm.Spin once: the setting is the node's, so it is that of all members of a worker.
var busyPoll sync.Once

// process is one inference function's process, or a member of a worker.
type process struct {
	log   *slog.Logger
	child *control.Child
	start control.Start
	conn  *control.Attachment
	open  opener

	card        *models.Card
	summed      []weights.Identity // of the files with the sums of the card
	tensorBytes int64              // of the card before keepSizes, and a room for pictures
	build       framework.Build
	framework   framework.Framework // nil while the model is evicted
	linked      bool                // the framework has linked the model
	slo         time.Duration
	newRule     func(ladder []int) (*batching.Rule, error) // any goroutine may call it
	reporter    reporter
	memory      *memory
	weights     *weights.Mappings // nil: the framework loads its own
	// level is the level of batches within the guarantee, on a GPU with priorities:
	// memory.prioritized, or that takes turns. It is budget.Demoted if no guarantee was ordered at the wake.
	level budget.Level
	sizes sizes
	// smaller are the sizes of the input before the largest.
	smaller []inputSize
	rows    *rows // nil unless answers are being compared
	// compared reports whether answers need not be compared any more.
	compared atomic.Bool
	timing   timing

	entry *gate.Entry  // nil unless the processes of the GPU take turns
	busy  *shm.BusyBit // nil on a CPU

	worker    *worker.Worker    // nil outside a worker
	place     *gate.Place       // in the worker's lane
	residence *conductor.Member // nil if the worker's memory has no limit
	loaded    modelFile         // the model's file at the start; zero if there is none
	// measured is what the warm-up of this process or of an earlier one has measured; nil before.
	measured *control.Measurements

	orders  orders
	exit    exit
	notices notices
}

func (p *process) run(ctx context.Context, build framework.Build) (err error) {
	// One thread calls the framework and the device, holds the ring, and cleans up. It ends with
	// this goroutine, because it may have another priority than others (raisePriority).
	runtime.LockOSThread()
	ended := make(chan struct{})
	defer close(ended)
	p.start, p.notices.child = p.child.Start(), p.child
	p.orders.open()
	p.log = p.log.With("if", p.start.IF, "instance", p.start.Instance, "generation", p.start.Generation)

	attached, files, err := p.attach()
	if err != nil {
		return err
	}
	defer p.conn.Close()
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err := p.readAttached(attached); err != nil {
		return err
	}

	p.build = build
	if p.framework, err = build(p.card); err != nil {
		return err
	}
	defer func() {
		p.cleanAfter(err)
		p.place.Leave(shm.Now())
		p.residence.Leave(shm.Now())
	}()

	if err := p.live(ctx, ended, attached, files); err != nil && !errors.Is(err, errStopped) {
		return err
	}
	return p.end()
}

// attach connects to the manager. The caller closes the files.
func (p *process) attach() (attached control.Attached, files []*os.File, err error) {
	attached, files, p.conn, err = control.DialAttach(p.start.AttachSocket, control.Attach{
		Version: control.Version, IF: p.start.IF, Instance: p.start.Instance, Generation: p.start.Generation, PID: os.Getpid(),
		Ticket: p.start.Ticket,
	})
	return attached, files, err
}

// readAttached takes the settings that the manager has sent.
func (p *process) readAttached(attached control.Attached) (err error) {
	if attached.BusyPollNanos > 0 {
		busyPoll.Do(func() { shm.Spin = max(shm.Spin, time.Duration(attached.BusyPollNanos)) })
	}
	p.slo = time.Duration(attached.SLONanos)
	p.newRule = func(ladder []int) (*batching.Rule, error) {
		return batching.New(string(cmp.Or(attached.Batching.Rule, control.BatchSLAB)), batching.Config{
			SLO: p.slo, Ladder: ladder, Fixed: attached.Batching.Size, Delay: attached.Batching.Delay,
		})
	}
	if p.card, err = readCard(attached); err == nil {
		p.tensorBytes = int64(p.card.TensorBytes() + gpu.RoomBytes(&p.card.Input, attached.LargestPicture))
	}
	return err
}

// live takes steps 2 to 6 of the package comment. A member of a worker takes its places there before
// step 4. live returns errStopped if the process must end before step 5.
func (p *process) live(ctx context.Context, ended <-chan struct{}, attached control.Attached, files []*os.File) error {
	if err := p.loadShadow(&attached); err != nil {
		return err
	}
	gone := make(chan struct{})
	go p.watch(ctx, gone, ended)
	p.notices.send(control.Notice{State: control.Loaded})
	wake, err := p.awaitWake(gone)
	if err != nil {
		return err
	}

	p.sizes.warm = p.recall(attached.Measurements, p.firstSizes(wake), p.onGPU() && wake.Level != budget.Demoted)
	if err := p.joinWorker(gone); err != nil {
		return err
	}
	l, ready, err := p.prepareService(gone, wake, attached, files)
	if err != nil {
		return err
	}
	return p.serve(l, ready)
}

// loadShadow loads the model of a shadow. A conductor has it loaded later, when there is room for it.
func (p *process) loadShadow(attached *control.Attached) error {
	p.loaded, _ = p.readModelFile() // a file that cannot be read fails the load
	p.compared.Store(p.knowsFiles() && attached.Compared == p.loaded.stamp)
	if p.worker.Conducted() {
		return nil
	}
	return p.load()
}

// awaitWake waits for the wake. It returns errStopped if gone was closed before.
func (p *process) awaitWake(gone <-chan struct{}) (control.Order, error) {
	select {
	case wake := <-p.orders.woken:
		return wake, nil
	case <-gone:
		return control.Order{}, errStopped
	}
}

// joinWorker takes the places that a member has in its worker. It returns errStopped if gone was closed
// before.
func (p *process) joinWorker(gone <-chan struct{}) (err error) {
	switch {
	case p.worker.Conducted():
		return p.joinConductor(gone)
	case p.worker != nil:
		p.place, err = p.worker.Join(lane.Model{}, p.interrupt)
	}
	return err
}

// prepareService links the model, warms it up and opens the loop. It sends the notice ready, which it
// returns.
func (p *process) prepareService(gone <-chan struct{}, wake control.Order, attached control.Attached, files []*os.File) (l *loop.Loop, ready control.Notice, err error) {
	defer p.worker.BeginStart()()
	release := func() {}
	if !p.onGPU() {
		var free bool
		if release, free = p.worker.BeginWarmUp(p.measured != nil, gone); !free {
			return nil, ready, errStopped
		}
	}
	began := time.Now()
	p.notices.send(control.Notice{State: control.Linking})
	ready, err = p.link(wake, attached, files)
	release()
	if err != nil {
		return nil, ready, markUnfit(wake.SMGroups, err)
	}
	if p.exit.requested() {
		return nil, ready, errStopped
	}
	if l, err = p.openLoop(attached, ready); err != nil {
		return nil, ready, err
	}

	time.Sleep(p.restAfterWarmUp())
	ready.State, ready.Batches, ready.WarmingUp = control.Ready, p.sizes.ladder, p.sizes.missing()
	ready.WarmupMillis = float64(time.Since(began).Microseconds()) / 1000
	p.notices.send(ready)
	return l, ready, nil
}

// cleanAfter frees what the process allocated, if the error that ends it allows that.
func (p *process) cleanAfter(err error) {
	if p.exit.abandoned {
		return // the framework is still at work
	}
	if loop.IsLost(err) {
		// A call that touches the device may never return now.
		p.notices.send(control.Notice{State: control.Failed, Reason: err.Error(), DeviceLost: true, Blameless: errors.Is(err, cuda.ErrServer)})
		return
	}
	groups, wrong := unfitGroups(err), errors.Is(err, device.ErrWrongAnswers)
	if len(groups) > 0 || wrong {
		p.notices.send(control.Notice{State: control.Failed, Reason: err.Error(), InfeasibleGroups: groups, WrongAnswers: wrong})
	}
	p.clean()
}

// clean frees what the process allocated. The framework goes first, because it holds on to
// buffers.
func (p *process) clean() {
	p.drop()
	p.closeEntry()
	p.closeBusy()
	if p.memory != nil {
		p.memory.close()
	}
}

// restAfterWarmUp is the pause between warm-up and ready. The warm-up may have used up the quota,
// and a process that takes a ring while it is throttled leaves the ring idle. The pause is two
// periods of a quota of 1 ms (orchestrator/quota.go).
func (p *process) restAfterWarmUp() time.Duration {
	share := p.orders.share.Load()
	if p.onGPU() || share == nil || share.Governor || share.Percent <= 0 || share.Percent >= 100 {
		return 0
	}
	const twoQuotas, most = 2 * time.Millisecond, 50 * time.Millisecond
	return min(most, time.Duration(float64(twoQuotas)*100/share.Percent))
}

// end returns why a process without further work ends: nil if it was ordered to, else which
// peer is gone.
func (p *process) end() error {
	if err := p.exit.peerGone.get(); err != nil {
		return err
	}
	p.notices.send(control.Notice{State: control.Stopped})
	return nil
}

func readCard(attached control.Attached) (*models.Card, error) {
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
func (p *process) onGPU() bool { return p.start.Device != "" && p.start.Device != framework.DeviceCPU }

// load does everything that a shadow does before it is woken.
func (p *process) load() error {
	env := framework.Environment{Card: p.card, Threads: p.threads(), Log: p.log, Device: framework.DeviceCPU}
	var node framework.Node
	if p.onGPU() {
		env.Device, env.Stream, env.BatchStream = p.start.Device, p.stream, p.batchStream
		if p.worker != nil {
			node.Lane = func() int { return p.place.Lane() } // it has a place later
		}
		if node.Evict = p.residence != nil; node.Evict {
			node.HostMemory = p.worker.HostMemory
		}
		if p.start.WeightsSocket != "" {
			p.weights = weights.NewMappings(p.start.WeightsSocket)
			env.Weights = p.sharedWeights
		}
		if p.start.Prepared != "" {
			node.Prepared, node.Prepare = p.start.Prepared, p.prepare
		}
	}
	if f, ok := p.framework.(framework.Resident); ok {
		f.UseNode(node)
	}
	if err := p.checkSums(); err != nil {
		return fmt.Errorf("load model %s: %w", p.card.Name, err)
	}
	if err := p.framework.Init(env); err != nil {
		return fmt.Errorf("init %s: %w", p.card.Name, err)
	}
	err := p.framework.LoadModel()
	if err == nil || errors.Is(err, framework.ErrNoHostStage) {
		err = p.checkUnchanged()
	}
	if err != nil {
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
	if p.entry, err = p.openEntry(attached, files); err != nil {
		return notice, err
	}
	p.busy = p.takeBusyBit(busyFiles(attached, files))
	if err := p.openGroups(&notice, wake); err != nil {
		return notice, err
	}
	p.sizes.card, p.sizes.ladder = p.card.Batches, p.firstSizes(wake)
	if m := p.measured; m != nil && p.residence != nil { // the conductor lets the loop load it
		notice.PersistentBytes, notice.EphemeralBytes = m.PersistentBytes, m.EphemeralBytes
		return notice, nil
	}
	began := shm.Now()
	if p.residence != nil {
		if err := p.load(); err != nil {
			return notice, err
		}
	}
	if notice.PersistentBytes, err = p.linkModel(); err != nil {
		return notice, err
	}
	weights := p.weightsBytes(notice.PersistentBytes)
	loading := p.loadTime(weights, time.Duration(shm.Now()-began))
	if p.onGPU() {
		p.residence.Loaded(shm.Now(), weights, loading)
		err = p.warmUpSizes(p.warmUp, &notice)
	} else {
		// Until the batches have run, no other model is loaded: each would count the other's memory.
		err = p.warmUpSizes(p.warmUpPrivately, &notice)
		p.residence.Loaded(shm.Now(), weights, loading)
	}
	if err == nil {
		err = p.openSizes()
	}
	if err == nil && p.worker != nil && p.measured == nil {
		p.remember(&notice, weights, loading, p.sizes.warm)
	}
	return notice, err
}

// firstSizes are the batch sizes that the process has when it is ready.
func (p *process) firstSizes(wake control.Order) []int {
	if wake.PartialWarmUp && p.warmsUpPartly() {
		return p.card.Batches[:1]
	}
	return p.card.Batches
}

// warmsUpPartly reports whether the process may serve before it has all its batch sizes.
func (p *process) warmsUpPartly() bool { return p.onGPU() && !p.worker.Conducted() }

// linkModel has the framework link the loaded model.
func (p *process) linkModel() (persistentBytes int64, err error) {
	persistentBytes, err = p.framework.LinkModel()
	if err == nil && p.onGPU() { // where it may read the files
		err = p.checkUnchanged()
	}
	if err != nil {
		return 0, fmt.Errorf("link model %s: %w", p.card.Name, err)
	}
	p.linked = true
	return persistentBytes, nil
}

// openGroups brings the device to the ordered groups before anything is created there.
func (p *process) openGroups(notice *control.Notice, wake control.Order) error {
	groups := wake.SMGroups
	d, ok := p.memory.device.(device.Partitioned)
	if !ok {
		if len(groups) > 0 {
			return fmt.Errorf("run on groups %v of multiprocessors: device %s has no groups", groups, p.memory.device.Name())
		}
		return nil
	}
	slots := []int{0, 1}[:p.memory.inFlight]
	if len(groups) > 0 {
		if err := d.Repartition(slots, groups); err != nil {
			return fmt.Errorf("run on groups %v of multiprocessors: %w", groups, err)
		}
	}
	// A function that is not kept now may be kept later. Streams cannot rise.
	level := max(wake.Level, budget.LevelOf(p.slo))
	switch {
	case wake.Level == budget.Demoted:
	case p.takesAllTurns(): // the turns have the levels
		p.level = level
		p.timing.lock = newDeviceLock(d.Name(), cmp.Or(p.timing.patience, lockPatience))
	default:
		switch err := d.Prioritize(slots, level); {
		case errors.Is(err, cuda.ErrNotSupported):
			p.log.Warn("GPU has no stream priorities; batches above the guarantee are not demoted", "error", err)
		case err != nil:
			return err
		default:
			p.level, p.memory.prioritized = level, d
			p.timing.lock = newDeviceLock(d.Name(), cmp.Or(p.timing.patience, lockPatience))
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
