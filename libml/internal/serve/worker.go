package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/conductor"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/internal/loop"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/libml/weights"
)

// A worker is a process that hosts several inference functions, its members. A member is a
// process of this package that shares its operating system's process, and so the framework's
// library, its threads and its allocator, with others. Everything else of it is its own: ring,
// epoch, tensors, batch loop, and conversation with the orchestrator and the manager.
//
// The device's failure ends the worker, like a crash in any member.

// worker is what the members of a worker share.
type worker struct {
	name      string
	open      opener
	lanes     *gate.Lanes
	balance   gate.Balance
	entry     workerEntry
	busy      workerBusy
	conductor *conductor.Conductor // nil: all models stay in memory
	// hostMemory is what the members pin together.
	hostMemory *weights.HostMemory
	// warmUps has a place for one member that warms up on a CPU. Batches of several members at once would
	// need memory that is never needed again. links has a place per CPU for members without a warm-up.
	warmUps, links chan struct{}
	// starting counts the members that prepare their service.
	starting atomic.Int32
}

// membership is what a process has as a member of a worker. The zero value is that of a process outside
// a worker.
type membership struct {
	worker    *worker           // that hosts it
	place     *gate.Place       // in the worker's lane
	residence *conductor.Member // nil if the worker's memory has no limit
	loaded    modelFile         // the model's file at the start; zero if there is none
	checked   bool              // Node.Checked
	// measured is what the warm-up of this process or of an earlier one has measured; nil before.
	measured *control.Measurements
}

// conducted reports whether the process is a member of a worker with limited memory.
func (m *membership) conducted() bool { return m.worker != nil && m.worker.conductor != nil }

// joinLane gives the member a place in a lane. wake is that of gate.Lanes.Join.
func (m *membership) joinLane(need lane.Model, wake func()) (err error) {
	m.place, err = m.worker.lanes.Join(need, wake)
	return m.joinError(err)
}

// resize corrects the memory that the member needs.
func (m *membership) resize(need lane.Model) error { return m.joinError(m.place.Resize(need)) }

// joinError describes why the worker has no place for the member; nil if err is.
func (m *membership) joinError(err error) error {
	switch {
	case err == nil:
		return nil
	case m.conducted():
		return fmt.Errorf("join worker %s: %w; raise its memory", m.worker.name, err)
	}
	return fmt.Errorf("join worker: %w", err)
}

// beginStart counts the member as one that prepares its service, until the function that it returns is
// called.
func (m *membership) beginStart() (end func()) {
	if m.worker == nil {
		return func() {}
	}
	m.worker.starting.Add(1)
	return func() { m.worker.starting.Add(-1) }
}

// othersStart reports whether other members prepare their service.
func (m *membership) othersStart() bool { return m.worker != nil && m.worker.starting.Load() > 0 }

// leave gives up the member's places in its worker.
func (m *membership) leave(now int64) {
	m.place.Leave(now)
	m.residence.Leave(now)
}

// serveMembers runs the members of a worker until the orchestrator or ctx ends it. After an error
// the program must exit at once, because a member's calls may never return.
func serveMembers(ctx context.Context, log *slog.Logger, link *control.Child, open opener, build framework.Build) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	start := link.Start()
	memory := start.MemoryBytes
	if memory == 0 {
		memory = gate.Unlimited
	}
	lanes, err := gate.NewLanes(start.Lanes, start.LanePolicy, memory)
	if err != nil {
		return fmt.Errorf("open lanes of worker %s: %w", start.Worker, err)
	}
	w := worker{
		name: start.Worker, open: open, lanes: lanes, hostMemory: weights.NewHostMemory(start.HostMemoryBytes, log),
		warmUps: make(chan struct{}, 1), links: make(chan struct{}, max(1, start.CPUs)),
	}
	var members sync.WaitGroup
	fatal := make(chan error, 1)
	fail := func(err error) {
		select {
		case fatal <- err:
		default: // another member has ended the worker
		}
	}
	if start.MemoryBytes != 0 {
		ahead := conductor.LoadAhead
		if start.Device == framework.DeviceCPU {
			ahead = 0 // a load takes the time of a CPU, and not of a bus
		}
		w.conductor = conductor.New(lanes, ahead, fail)
		defer w.conductor.Close()
	}
	wait := func() error {
		stop() // drains each member
		go func() {
			members.Wait()
			fail(nil) // unless a member has failed
		}()
		return <-fatal
	}
	for {
		select {
		case child, ok := <-link.Members():
			if !ok {
				return errors.Join(errOrchestratorGone, wait())
			}
			members.Go(func() {
				if err := serveMember(ctx, log, child, &w, build); err != nil {
					fail(err)
				}
			})
		case err := <-fatal:
			return err
		case order, ok := <-link.Orders():
			switch {
			case !ok:
				return errors.Join(errOrchestratorGone, wait())
			case order.Do == control.DoDrain:
				return wait()
			}
		case <-ctx.Done():
			return wait()
		}
	}
}

// beginWarmUp waits for a place to link, and to warm up, on a CPU. It returns false if gone was closed
// before. A conductor lets one load at a time in any case.
func (p *process) beginWarmUp(gone <-chan struct{}) (release func(), free bool) {
	if p.worker == nil || p.conducted() || p.onGPU() {
		return func() {}, true
	}
	places := p.worker.warmUps
	if p.measured != nil {
		places = p.worker.links
	}
	select {
	case places <- struct{}{}:
		return func() { <-places }, true
	case <-gone:
		return nil, false
	}
}

// serveMember runs a member. It returns an error only if the worker cannot go on.
func serveMember(ctx context.Context, log *slog.Logger, child *control.Child, w *worker, build framework.Build) error {
	start := child.Start()
	name := fmt.Sprintf("%s/%d#%d", start.IF, start.Instance, start.Generation)
	p := &process{child: child, log: log, open: w.open, membership: membership{worker: w}}
	err := p.run(ctx, build)
	if exitErr := child.Exit(err); exitErr != nil {
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
