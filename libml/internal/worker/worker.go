// Package worker is a process that hosts several inference functions, its members. A member shares the operating
// system's process, and so the framework's library, its threads and its allocator, with others. Everything else of
// it is its own: ring, epoch, tensors, batch loop, and conversation with the orchestrator and the manager.
//
// The device's failure ends the worker, like a crash in any member.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/conductor"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/libml/weights"
	"github.com/penstock/penstock/shm"
)

// Worker is what the members share. A nil Worker is that of a process that is no member.
type Worker struct {
	name      string
	Lanes     *gate.Lanes
	Balance   gate.Balance
	Conductor *conductor.Conductor // nil: all models stay in memory
	// HostMemory is what the members pin together.
	HostMemory *weights.HostMemory

	// warmUps has a place for one member that warms up on a CPU. Batches of several members at once would
	// need memory that is never needed again. links has a place per CPU for members without a warm-up.
	warmUps, links chan struct{}
	// starting counts the members that prepare their service.
	starting atomic.Int32

	mu    sync.Mutex // guards what follows
	entry *gate.Entry
	turns os.FileInfo // the file of entry
	busy  *shm.BusyBit
}

// ErrOrchestratorGone is returned if the orchestrator ended first.
var ErrOrchestratorGone = errors.New("orchestrator ended")

// Run runs the members of a worker until the orchestrator or ctx ends it. It calls serve on a goroutine for each
// member; an error of serve ends the worker. After an error the program must exit at once, because a member's calls
// may never return.
func Run(ctx context.Context, log *slog.Logger, link *control.Child, serve func(context.Context, *Worker, *control.Child) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var members sync.WaitGroup
	fatal := make(chan error, 1)
	fail := func(err error) {
		select {
		case fatal <- err:
		default: // another member has ended the worker
		}
	}
	w, err := New(log, link.Start(), fail)
	if err != nil {
		return err
	}
	defer w.Close()
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
				return errors.Join(ErrOrchestratorGone, wait())
			}
			members.Go(func() {
				if err := serve(ctx, w, child); err != nil {
					fail(err)
				}
			})
		case err := <-fatal:
			return err
		case order, ok := <-link.Orders():
			switch {
			case !ok:
				return errors.Join(ErrOrchestratorGone, wait())
			case order.Do == control.DoDrain:
				return wait()
			}
		case <-ctx.Done():
			return wait()
		}
	}
}

// New returns a worker without members. fail is called if its conductor fails.
func New(log *slog.Logger, start control.Start, fail func(error)) (*Worker, error) {
	memory := start.MemoryBytes
	if memory == 0 {
		memory = gate.Unlimited
	}
	lanes, err := gate.NewLanes(start.Lanes, start.LanePolicy, memory)
	if err != nil {
		return nil, fmt.Errorf("open lanes of worker %s: %w", start.Worker, err)
	}
	w := &Worker{
		name: start.Worker, Lanes: lanes, HostMemory: weights.NewHostMemory(start.HostMemoryBytes, log),
		warmUps: make(chan struct{}, 1), links: make(chan struct{}, max(1, start.CPUs)),
	}
	if start.MemoryBytes != 0 {
		ahead := conductor.LoadAhead
		if start.Device == framework.DeviceCPU {
			ahead = 0 // a load takes the time of a CPU, and not of a bus
		}
		w.Conductor = conductor.New(lanes, ahead, fail)
	}
	return w, nil
}

// Close ends the conductor.
func (w *Worker) Close() {
	if w.Conductor != nil {
		w.Conductor.Close()
	}
}

// Conducted reports whether the worker's memory is limited.
func (w *Worker) Conducted() bool { return w != nil && w.Conductor != nil }

// Join gives a member a place in a lane. wake is that of gate.Lanes.Join.
func (w *Worker) Join(need lane.Model, wake func()) (*gate.Place, error) {
	place, err := w.Lanes.Join(need, wake)
	return place, w.joinError(err)
}

// Resize corrects the memory that a member needs.
func (w *Worker) Resize(place *gate.Place, need lane.Model) error {
	return w.joinError(place.Resize(need))
}

// joinError describes why the worker has no place for the member; nil if err is.
func (w *Worker) joinError(err error) error {
	switch {
	case err == nil:
		return nil
	case w.Conducted():
		return fmt.Errorf("join worker %s: %w; raise its memory", w.name, err)
	}
	return fmt.Errorf("join worker: %w", err)
}

// BeginStart counts a member as one that prepares its service, until the function that it returns is called.
func (w *Worker) BeginStart() (end func()) {
	if w == nil {
		return func() {}
	}
	w.starting.Add(1)
	return func() { w.starting.Add(-1) }
}

// Starts reports whether members prepare their service.
func (w *Worker) Starts() bool { return w != nil && w.starting.Load() > 0 }

// BeginWarmUp waits for a place to link on a CPU, and to warm up unless the model was measured before. It returns
// false if gone was closed before. A conductor lets one load at a time in any case.
func (w *Worker) BeginWarmUp(measured bool, gone <-chan struct{}) (release func(), free bool) {
	if w == nil || w.Conducted() {
		return func() {}, true
	}
	places := w.warmUps
	if measured {
		places = w.links
	}
	select {
	case places <- struct{}{}:
		return func() { <-places }, true
	case <-gone:
		return nil, false
	}
}

// Entry opens an entry in the file of turns. All members have the same one. The manager gives a worker another entry
// after all of its members have left. Without a worker, the caller closes the entry.
func (w *Worker) Entry(file *os.File, number int) (*gate.Entry, error) {
	if w == nil {
		return gate.OpenEntry(file, number)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	of, err := file.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open turns on the GPU: %w", err), file.Close())
	}
	if w.entry != nil && w.entry.Number() == number && os.SameFile(of, w.turns) {
		return w.entry, file.Close()
	}
	entry, err := gate.OpenEntry(file, number)
	if err != nil {
		return nil, err
	}
	w.entry, w.turns = entry, of
	return entry, nil
}

// Busy takes a bit in the busy word with open. All members have the same one, which outlives the member that took it.
// Without a worker, the caller closes the bit.
func (w *Worker) Busy(open func() *shm.BusyBit) *shm.BusyBit {
	if w == nil {
		return open()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy == nil {
		w.busy = open()
	}
	return w.busy
}
