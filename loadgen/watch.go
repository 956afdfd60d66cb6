package loadgen

import (
	"context"
	"sync"
	"time"

	"github.com/penstock/penstock/control"
)

// watch asks the manager during a run. It reports the manager's counters relative to their
// values at the beginning.
type watch struct {
	ask func(context.Context) (control.Status, error)

	mu    sync.Mutex
	first control.Status
	last  control.Status
	known bool
	// statuses is the last status of each function. restarted has the functions whose counters fell, or
	// that were missing for a while because they were removed and added. After a restart of
	// the manager it has all functions.
	statuses  map[string]control.FunctionStatus
	restarted map[string]bool
}

// lastPolls is how often the watch asks at the end. One request may fail while the machine is busy.
const lastPolls = 2

func newWatch(ask func(context.Context) (control.Status, error)) *watch {
	return &watch{ask: ask, statuses: map[string]control.FunctionStatus{}, restarted: map[string]bool{}}
}

// begin records the counters' first values.
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
	for _, f := range status.Functions {
		w.statuses[f.Name] = f
	}
	return nil
}

// poll asks until ctx ends. It repeats a failed status request at the next tick: only the
// last status matters.
func (w *watch) poll(ctx context.Context) {
	if w.ask == nil {
		return
	}
	ticker := time.NewTicker(statusEvery)
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
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		return err
	}
	died := !status.Started.Equal(w.last.Started)
	for name, before := range w.statuses {
		now, ok := status.Function(name)
		if died || !ok || now.Accepted < before.Accepted || now.Replied < before.Replied || now.Swaps < before.Swaps || now.KernelDrops < before.KernelDrops {
			w.restarted[name] = true
		}
	}
	for _, f := range status.Functions {
		w.statuses[f.Name] = f
	}
	w.last = status
	return nil
}

// end records the counters' last values. Without them, lost requests are unknown.
func (w *watch) end(ctx context.Context) error {
	if w.ask == nil {
		return nil
	}
	var err error
	for range lastPolls {
		if err = w.update(ctx); err == nil {
			break
		}
	}
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.known = false
	}
	return err
}

// function returns the manager's last status of a function. Its counters are those of this
// run.
func (w *watch) function(name string) (control.FunctionStatus, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.last.Function(name)
	if !w.known || !ok {
		return control.FunctionStatus{}, false
	}
	first, _ := w.first.Function(name)
	if w.restarted[name] { // the first values belong to other counters
		first = control.FunctionStatus{}
	}
	last.Swaps = since(last.Swaps, first.Swaps)
	last.Accepted = since(last.Accepted, first.Accepted)
	last.Replied = since(last.Replied, first.Replied)
	last.Failed = since(last.Failed, first.Failed)
	last.Lost = since(last.Lost, first.Lost)
	last.KernelDrops = since(last.KernelDrops, first.KernelDrops)
	return last, true
}

// began reports whether a function's counters started again from 0 since the beginning, and
// whether the function is gone.
func (w *watch) began(name string) (restarted, removed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.last.Function(name)
	return w.restarted[name] && ok, w.restarted[name] && !ok && w.known
}

// firstShare returns a function's share at the beginning.
func (w *watch) firstShare(name string) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, _ := w.first.Function(name)
	return first.SharePercent
}

// since returns how far a counter rose. A counter that fell started again from 0.
func since(last, first uint64) uint64 {
	if last < first {
		return last
	}
	return last - first
}
