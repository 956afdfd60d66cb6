package loadgen

import (
	"context"
	"sync"
	"time"

	"github.com/penstock/penstock/control"
)

// watch asks the manager while a run lasts. Its counters are taken from where
// they stood at the beginning.
type watch struct {
	ask func(context.Context) (control.Status, error)

	mu    sync.Mutex
	first control.Status
	last  control.Status
	known bool
}

func newWatch(ask func(context.Context) (control.Status, error)) *watch { return &watch{ask: ask} }

// begin takes the counters' first values.
func (w *watch) begin(ctx context.Context) error {
	if w.ask == nil {
		return nil
	}
	status, err := w.ask(ctx)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first, w.last, w.known = status, status, true
	return nil
}

// poll asks until ctx ends. A question that fails is asked again: only the last
// one matters.
func (w *watch) poll(ctx context.Context) {
	if w.ask == nil {
		return
	}
	ticker := time.NewTicker(StatusEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			w.update(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (w *watch) update(ctx context.Context) error {
	status, err := w.ask(ctx)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = status
	return nil
}

// end takes the counters' last values; without them nobody knows what was lost.
func (w *watch) end(ctx context.Context) error {
	if w.ask == nil {
		return nil
	}
	err := w.update(ctx)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.known = false
	}
	return err
}

// function returns what the manager said last of a function; its counters are
// those of this run.
func (w *watch) function(name string) (control.FunctionStatus, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, is := w.last.Function(name)
	if !w.known || !is {
		return control.FunctionStatus{}, false
	}
	first, _ := w.first.Function(name)
	last.Swaps = since(last.Swaps, first.Swaps)
	last.Accepted = since(last.Accepted, first.Accepted)
	last.Replied = since(last.Replied, first.Replied)
	last.Lost = since(last.Lost, first.Lost)
	last.KernelDrops = since(last.KernelDrops, first.KernelDrops)
	return last, true
}

// firstShare is a function's share at the beginning.
func (w *watch) firstShare(name string) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, _ := w.first.Function(name)
	return first.SharePercent
}

// since is how far a counter rose; one that fell began anew, in a manager that
// started meanwhile.
func since(last, first uint64) uint64 {
	if last < first {
		return last
	}
	return last - first
}
