// Package profiler measures the throughput of a model on each share of a device, on a
// whole node. sweep/ decides what to measure next, and how long.
package profiler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/profiler/sweep"
)

// Options describe what a Profiler runs.
type Options struct {
	testbed.Setup
	Card *models.Card
	// Grid has the cells. The node has room for the largest batch and the most
	// processes.
	Grid profile.Sweep
	// Scale is the unit of their shares.
	Scale Scale
	// Instances, if not nil, are the MIG instances that Scale is about. The caller closes
	// them after the Profiler.
	Instances *Instances
}

// Profiler measures cells of a sweep on a whole node. The model runs in processes as on
// any node. Each process has the same quota, which is a part of the cell's share. In a
// MIG instance, each process may use all of it. A closed loop over loopback keeps three
// batches per process in flight.
//
// One node exists as long as the Profiler, or as long as cells are in the same MIG
// instance. For a cell with another batch size or number of processes, the node gets
// another function. If only the share differs, the
// function's share changes. Only one goroutine may use a Profiler.
type Profiler struct {
	options Options
	harness *testbed.Harness
	node    testbed.Options
	inside  int // the size of the MIG instance that the node has; 0: none
	dir     string
	change  configs.Change
	picture []byte
	device  control.DeviceStatus // of the node
	// loaded is the cell whose processes run; the zero value if there are none.
	loaded sweep.Cell
}

// The function that is measured, and its objective. No batch can miss that objective,
// so batches grow to the max size and no request is late.
const (
	profiled         = "profiled"
	profiledSLO      = time.Hour
	batchesInFlight  = 3
	minInFlight      = 32
	profiledPatience = 5 * time.Minute
)

// New starts a node, without the model. With Options.Instances, Start does it.
func New(ctx context.Context, o Options) (_ *Profiler, err error) {
	p := &Profiler{options: o, picture: testbed.Noise(o.Card, 2), change: configs.ChangeRestart}
	switch {
	case o.Instances != nil:
		p.change = configs.ChangeNone
	case o.Device == configs.DeviceCPU:
		p.change = configs.ChangeInPlace
	}
	if p.dir, err = testbed.NewDir(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	batch, processes := slices.Max(o.Grid.Batches), slices.Max(o.Grid.Processes)
	inFlight := p.inFlight(sweep.Cell{Batch: batch, Processes: processes})
	slots := 256
	for slots < inFlight {
		slots *= 2
	}
	if slots > configs.MaxSlots {
		return nil, fmt.Errorf("%d processes with batches of %d: %d requests in flight, want at most %d; take smaller batches or fewer processes",
			processes, batch, inFlight, configs.MaxSlots)
	}
	// The largest batch must be one that a card may have.
	file, err := testbed.Variant(p.dir, o.Card, p.ladder(batch))
	if err != nil {
		return nil, err
	}
	if _, err := models.ReadCard(file); err != nil {
		return nil, fmt.Errorf("batches of %d of %s: %w", batch, o.Card.Name, err)
	}
	// Twice what is in flight: fragments have their own slots, and more are on their
	// way.
	slab := max(64, 2*inFlight*len(p.picture)>>20)
	p.node = testbed.Options{Device: o.Device, Change: p.change, Slots: slots, SlabMiB: slab}
	if o.Instances == nil {
		err = p.startNode(ctx)
	}
	return p, err
}

// startNode starts a node that has a device.
func (p *Profiler) startNode(ctx context.Context) (err error) {
	p.device = control.DeviceStatus{}
	p.harness, err = testbed.Start(ctx, p.options.Binary, p.node)
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("no device after a minute"))
	defer cancel()
	err = p.harness.WaitFor(limit, "the device", func() bool {
		status, statusErr := p.harness.Status()
		if statusErr == nil && len(status.Devices) > 0 {
			p.device = status.Devices[0]
		}
		return p.device.Mechanism != ""
	})
	if err != nil {
		return err
	}
	if p.HeldBy() == timeSlicing {
		return fmt.Errorf("%w on %s: %s", errSharesNotHeld, p.Device().Name, p.Device().Why)
	}
	return nil
}

// enter ends the node, and starts one in the MIG instance of a size.
func (p *Profiler) enter(ctx context.Context, gpcs int) (err error) {
	if err := p.leave(); err != nil {
		return err
	}
	if p.node.Device, err = p.options.Instances.use(gpcs); err != nil {
		return err
	}
	if err := p.startNode(ctx); err != nil {
		return err
	}
	p.inside = gpcs
	return nil
}

// leave ends the node, if there is one. Its MPS server ends, too, and does not keep an instance.
func (p *Profiler) leave() (err error) {
	if p.harness != nil {
		err = p.harness.Stop()
		p.harness.Kill()
		p.harness, p.loaded, p.inside = nil, sweep.Cell{}, 0
	}
	return err
}

// errSharesNotHeld is the error of New for a GPU on which no mechanism limits
// processes: a share would have no effect there.
var errSharesNotHeld = errors.New("no mechanism enforces shares")

// The mechanisms of control.Observed that a Profiler treats specially.
const (
	mps         = "mps"
	timeSlicing = "time-slicing"
	governed    = "governor"
)

// HeldBy returns the mechanism that limits processes to their shares:
// control.Observed.Mechanism.
func (p *Profiler) HeldBy() string { return p.device.Mechanism }

// Device returns the GPU, nil on a CPU.
func (p *Profiler) Device() *control.GPU { return p.device.GPU }

// Close ends the node.
func (p *Profiler) Close() (err error) {
	if p.options.Instances != nil {
		err = p.leave()
	} else if p.harness != nil {
		p.harness.Kill()
	}
	if removeErr := os.RemoveAll(p.dir); removeErr != nil {
		err = errors.Join(err, fmt.Errorf("remove folder: %w", removeErr))
	}
	return err
}

// inFlight returns how many requests are kept in flight for a cell. Each process has
// one batch that runs, one that waits complete, and one on its way.
func (p *Profiler) inFlight(c sweep.Cell) int {
	return max(minInFlight, batchesInFlight*c.Batch*c.Processes)
}

// ladder returns the batch sizes for the card of a cell with that batch size. A model
// with a fixed batch has no smaller one.
func (p *Profiler) ladder(batch int) []int {
	if p.options.Card.Batches[0] > 1 {
		return []int{batch}
	}
	return testbed.Ladder(batch)
}

// Start starts the cell's processes if necessary, sets their share, and starts the
// load.
func (p *Profiler) Start(ctx context.Context, c sweep.Cell) (sweep.Running, error) {
	percent := p.options.Scale.Percent(c.Share)
	var err error
	if p.options.Instances != nil && p.inside != c.Share {
		if err := p.enter(ctx, c.Share); err != nil {
			return nil, err
		}
	}
	switch {
	case p.loaded.Batch != c.Batch || p.loaded.Processes != c.Processes:
		err = p.load(ctx, c, percent)
	case p.loaded.Share != c.Share:
		err = p.share(ctx, c, percent)
	}
	if err != nil {
		return nil, err
	}
	p.loaded = c
	f, err := p.harness.Function(profiled)
	if err != nil {
		return nil, err
	}
	if p.refuses(f, percent/float64(c.Processes)) {
		// The node now tries other shares.
		return nil, cmp.Or(p.unload(ctx), fmt.Errorf("%w at %.4g %% of this GPU", sweep.ErrWrongAnswers, percent/float64(c.Processes)))
	}
	r := &profiling{p: p, c: c}
	if p.options.Scale.MemoryMiB != nil {
		m, err := r.Memory()
		if err != nil {
			return nil, err
		}
		need, have := float64(c.Processes)*(m.PersistentMiB+m.EphemeralMiB), p.options.Scale.MemoryMiB(c.Share)
		if need > have {
			return nil, fmt.Errorf("%d processes need %.0f MiB, share %d has %.0f: %w", c.Processes, need, c.Share, have, sweep.ErrOutOfMemory)
		}
	}
	if r.load, err = newLoad(ctx, f.Port, p.inFlight(c), p.picture); err != nil {
		return nil, err
	}
	r.since = time.Now()
	return r, nil
}

// load replaces the node's function by one with the cell's batch size. It has as many
// instances as the cell has processes.
func (p *Profiler) load(ctx context.Context, c sweep.Cell, percent float64) error {
	if err := p.unload(ctx); err != nil {
		return err
	}
	file, err := testbed.Variant(p.dir, p.options.Card, p.ladder(c.Batch))
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeoutCause(ctx, profiledPatience, fmt.Errorf("the model did not serve within %s", profiledPatience))
	defer cancel()
	each := percent / float64(c.Processes)
	if p.change == configs.ChangeNone {
		each = 0
	}
	// The answer comes when all its processes serve, or when the function was removed
	// because one cannot.
	_, err = control.SendOrder(limit, p.harness.Dir, control.AddPath, configs.Function{
		Name: profiled, Model: file, SLO: profiledSLO, Instances: c.Processes, SharePercent: each, InFlight: 1,
	})
	switch {
	case err == nil || limit.Err() != nil: // the function exists, if only for a while
		p.loaded = c
		if err != nil && ctx.Err() == nil {
			err = errors.Join(err, p.unload(ctx))
		}
		return err
	default:
		// The rest of the message is for people who added the function by hand.
		reason, _, _ := strings.Cut(err.Error(), "; the function was removed")
		if _, after, ok := strings.Cut(reason, "its process "); ok {
			reason = "a process " + after
		}
		return explain(errors.New(reason))
	}
}

// unload removes the function from the node, if there is one.
func (p *Profiler) unload(ctx context.Context) error {
	if p.loaded == (sweep.Cell{}) {
		return nil
	}
	p.loaded = sweep.Cell{}
	return p.harness.Remove(ctx, profiled)
}

// share changes the share of the running function.
func (p *Profiler) share(ctx context.Context, c sweep.Cell, percent float64) error {
	before, err := p.harness.Function(profiled)
	if err != nil {
		return err
	}
	if err := p.harness.Order(control.SharePath, control.ShareOrder{Name: profiled, SharePercent: percent / float64(c.Processes)}); err != nil {
		return err
	}
	limit, cancel := context.WithTimeoutCause(ctx, profiledPatience, fmt.Errorf("share of %.1f %% was not applied within %s", percent, profiledPatience))
	defer cancel()
	err = p.harness.WaitFor(limit, "a share", func() bool {
		f, err := p.harness.Function(profiled)
		switch {
		case err != nil || !serves(f):
			return false
		case p.change == configs.ChangeInPlace:
			return testbed.Same(f.SharePercent, percent)
		}
		return renewed(before, f)
	})
	if err != nil {
		return err
	}
	// The orchestrator learns of it with the next repetition, at the latest.
	return testbed.Pause(ctx, 2*control.RepeatEvery)
}

// refuses reports whether the node has given an instance another percentage of the GPU than this one, since the
// answers of its model are wrong there (manager/sharing/percentages.go).
func (p *Profiler) refuses(f control.FunctionStatus, percent float64) bool {
	return p.HeldBy() == mps && p.change != configs.ChangeNone && slices.ContainsFunc(f.Instances, func(in control.InstanceStatus) bool {
		const quantum = 1.0 / 64 // of shares of package gslice
		return math.Abs(in.SharePercent-percent) > quantum
	})
}

// serves reports whether each instance has a process that serves with all its batch
// sizes.
func serves(f control.FunctionStatus) bool {
	for i := range f.Instances {
		if p, ok := f.Instances[i].Serving(); !ok || p.WarmingUp {
			return false
		}
	}
	return true
}

// renewed reports whether every instance is served by another process than before.
func renewed(before, after control.FunctionStatus) bool {
	for i := range after.Instances {
		was, _ := before.Instances[i].Serving()
		is, _ := after.Instances[i].Serving()
		if is.Generation == was.Generation {
			return false
		}
	}
	return true
}

// noMemory matches the messages of frameworks, drivers and kernels when there is no
// memory left. A process that the kernel killed because of memory ended by signal 9.
var noMemory = regexp.MustCompile(`(?i)out of memory|cannot allocate|failed to allocate|bad_alloc|\bOOM\b|signal 9 \(not by Penstock\)`)

// explain adds the error of package sweep to the reason why a process cannot start.
func explain(err error) error {
	switch {
	case noMemory.MatchString(err.Error()):
		return fmt.Errorf("%w: %w", sweep.ErrOutOfMemory, err)
	case strings.Contains(err.Error(), device.ErrWrongAnswers.Error()):
		return fmt.Errorf("%w: %w", sweep.ErrWrongAnswers, err)
	}
	return err
}

// profiling is a cell under load.
type profiling struct {
	p     *Profiler
	c     sweep.Cell
	load  *load
	since time.Time
}

// Window waits for d and counts the answers in that time.
func (r *profiling) Window(ctx context.Context, d time.Duration) (w sweep.Window, err error) {
	if err := testbed.Pause(ctx, d); err != nil {
		return w, err
	}
	if w, err = r.load.take(); err != nil {
		return w, fmt.Errorf("%w: %s", err, r.p.harness.Log())
	}
	now := time.Now()
	w.Elapsed, r.since = now.Sub(r.since), now
	if r.p.HeldBy() == governed {
		// Pauses are between batches, not in them. A batch's time is therefore from its
		// beginning to the beginning of the next.
		w.BatchTime = w.Elapsed * time.Duration(r.c.Processes)
	}
	return w, nil
}

// gauges matches the two lines of /metrics with the memory of one process.
var gauges = regexp.MustCompile(`(?m)^penstock_model_(persistent|ephemeral)_bytes\{[^}]*function="` + profiled + `"[^}]*\} (\S+)$`)

// Memory asks the node how much memory a process holds.
func (r *profiling) Memory() (m sweep.Memory, err error) {
	page, err := r.p.harness.Metrics()
	if err != nil {
		return m, err
	}
	for _, line := range gauges.FindAllStringSubmatch(page, -1) {
		bytes, err := strconv.ParseFloat(line[2], 64)
		if err != nil {
			return m, fmt.Errorf("read metrics: %q is no number of bytes", line[2])
		}
		if line[1] == "persistent" {
			m.PersistentMiB = bytes / (1 << 20)
		} else {
			m.EphemeralMiB = bytes / (1 << 20)
		}
	}
	return m, nil
}

// Stop ends the load and waits until everything in flight is answered.
func (r *profiling) Stop() { r.load.stop() }
