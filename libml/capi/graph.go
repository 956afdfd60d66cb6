//go:build cgo

package capi

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
)

// graphs has a launch for each batch that the program handed over with penstock_graph. Any goroutine
// may use it.
type graphs struct {
	mu sync.Mutex // held to replace the map
	// by is copied on write: set stores a changed copy, so that InferBatch reads the map without a
	// lock. It is nil at first, and after clear.
	by atomic.Pointer[map[batch]*launch]
}

// launch is the executable graph of a batch.
type launch struct {
	executable *cuda.Executable
}

// find returns the batch's launch, or nil if infer_batch runs it.
func (g *graphs) find(b batch) *launch {
	if by := g.by.Load(); by != nil {
		return (*by)[b]
	}
	return nil
}

// set replaces the batch's launch and destroys the old one, which must not be in flight. A nil l only
// removes the old one.
func (g *graphs) set(b batch, l *launch) error {
	g.mu.Lock()
	by := map[batch]*launch{}
	if was := g.by.Load(); was != nil {
		maps.Copy(by, *was)
	}
	old := by[b]
	if delete(by, b); l != nil {
		by[b] = l
	}
	g.by.Store(&by)
	g.mu.Unlock()
	if old == nil {
		return nil
	}
	return lost("release graph", old.executable.Destroy())
}

// clear removes and destroys all launches. None of them may be in flight.
func (g *graphs) clear() error {
	g.mu.Lock()
	all := g.by.Swap(nil)
	g.mu.Unlock()
	if all == nil {
		return nil
	}
	var errs []error
	for _, l := range *all {
		errs = append(errs, lost("release graph", l.executable.Destroy()))
	}
	return errors.Join(errs...)
}

// handOver implements penstock_graph. It accepts a graph only for the batch that configure_batch is
// running for: any other batch may be in flight, and its launch cannot be replaced.
func (f *Framework) handOver(slot, n int, graph uintptr) error {
	if now := f.configuring.Load(); now == nil || *now != (batch{slot, n}) {
		return fmt.Errorf("batch of %d in slot %d is not being configured; pass its graph in its configure_batch", n, slot)
	}
	err := f.setGraph(slot, n, graph)
	if errors.Is(err, cuda.ErrTooFewSMs) {
		f.tooFew.Store(true)
	}
	return err
}

// markTooFew makes the error of a configure_batch wrap cuda.ErrTooFewSMs if handOver failed with it
// during that call. The callback cannot return this error itself: penstock.h has no code for it.
func (f *Framework) markTooFew(err error) error {
	if f.tooFew.Load() {
		return fmt.Errorf("%w: %w", cuda.ErrTooFewSMs, err)
	}
	return err
}

// setGraph makes InferBatch launch a copy of the graph for a batch, on the multiprocessors of the
// slot's stream. The caller keeps its graph.
func (f *Framework) setGraph(slot, n int, graph uintptr) error {
	env := f.env.Load()
	stream := cuda.StreamOf(f.stream(slot))
	switch {
	case env == nil || env.Stream == nil:
		return errors.New("no GPU to launch a graph on")
	case stream == (cuda.Stream{}):
		return fmt.Errorf("slot %d has no stream; pass graphs in configure_batch", slot)
	case graph == 0:
		return errors.New("the graph is NULL")
	}
	l := &launch{}
	var err error
	if l.executable, err = cuda.GraphOf(graph).Retarget(stream); err != nil {
		return lost(fmt.Sprintf("batch of %d in slot %d", n, slot), err)
	}
	if err := l.executable.Upload(stream); err != nil {
		return lost(fmt.Sprintf("batch of %d in slot %d", n, slot), errors.Join(err, l.executable.Destroy()))
	}
	return f.graphs.set(batch{slot, n}, l)
}

// run queues the batch on a stream.
func (l *launch) run(on cuda.Stream) error { return lost("launch graph", l.executable.Launch(on)) }

// lost adds the failed step to an error. It wraps device.ErrLost if the device is lost.
func lost(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cuda.ErrLost):
		return fmt.Errorf("%s: %w: %w", doing, device.ErrLost, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
