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

// graphs has the batches that were handed over with penstock_graph. Any goroutine may use it.
type graphs struct {
	mu sync.Mutex // guards changes of by
	// by is replaced, never changed, because every batch reads it. It is nil at first.
	by atomic.Pointer[map[batch]*launch]
}

// launch is the graph of one slot and size.
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

// set replaces the batch's launch, which is not in flight; nil removes it.
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

// clear removes all; none is in flight.
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

// handOver is penstock_graph. Batches that are not being configured may be in flight.
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

// markTooFew makes the error of a configure_batch wrap cuda.ErrTooFewSMs if its graph failed with
// it: penstock.h has no code for that.
func (f *Framework) markTooFew(err error) error {
	if f.tooFew.Load() {
		return fmt.Errorf("%w: %w", cuda.ErrTooFewSMs, err)
	}
	return err
}

// setGraph makes a batch run as a copy of the graph from now on.
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
