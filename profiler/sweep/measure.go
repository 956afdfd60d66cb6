package sweep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/penstock/penstock/internal/confidence"
)

// ErrOutOfMemory is the error of Runner.Start if the processes do not fit into the
// memory. The sweep records the point as out of memory.
var ErrOutOfMemory = errors.New("out of memory")

// ErrWrongAnswers is the error of Runner.Start if the model answers wrongly at the
// share that each process would have. The profile leaves out all points of it.
var ErrWrongAnswers = errors.New("the model answers wrongly")

// errNotFilled is the error if the load does not fill the batches: the point would be
// one of smaller batches.
var errNotFilled = errors.New("the load does not fill the batches")

// Runner runs a model on a device. Only one goroutine may use it.
type Runner interface {
	// Start starts a cell's processes within its share. A closed loop keeps each of
	// them busy: it always has a whole batch waiting. The previous cell has been
	// stopped. The error may wrap ErrOutOfMemory or ErrWrongAnswers.
	Start(ctx context.Context, c Cell) (Running, error)
}

// Running is a cell whose processes run.
type Running interface {
	// Window watches the cell for d and returns what all processes did together.
	Window(ctx context.Context, d time.Duration) (Window, error)
	// Memory returns the memory of one process, 0 if not known.
	Memory() (Memory, error)
	// Stop ends the load; nothing is in flight then. The processes may stay for the
	// next cell.
	Stop()
}

// Window is what all processes of a cell did in a period of time.
type Window struct {
	Elapsed time.Duration
	Images  int
	// Batches is the number of batches that these images were in. An image of a batch
	// of 8 counts as an eighth.
	Batches float64
	// BatchTime is the sum of the times of these batches, counted in the same
	// fractions.
	BatchTime time.Duration
}

// rate returns the images per second.
func (w Window) rate() float64 { return float64(w.Images) / w.Elapsed.Seconds() }

// latency returns the mean time of a batch.
func (w Window) latency() time.Duration {
	if w.Batches == 0 {
		return 0
	}
	return time.Duration(float64(w.BatchTime) / w.Batches)
}

func (w Window) and(v Window) Window {
	return Window{w.Elapsed + v.Elapsed, w.Images + v.Images, w.Batches + v.Batches, w.BatchTime + v.BatchTime}
}

// Memory is the memory of a process.
type Memory struct {
	// PersistentMiB is held between batches. EphemeralMiB is what the largest batch
	// needs in addition.
	PersistentMiB, EphemeralMiB float64
}

// stopRule decides when a point is stable. Its windows are consecutive. Each has
// length Window, or batchesAWindow of the point's batches if that is longer, but at
// most LongestWindow. The first windows warm up. They are not counted until the
// batches are full, and either the processes are busy or the batches have been full
// for settled windows. One more window is not counted. The point is stable when the 95
// % confidence interval of the mean throughput is within ±Precision of the mean
// (Student's t over at least MinWindows windows). After MaxWindows it is accepted
// unstable.
type stopRule struct {
	Window                 time.Duration
	Precision              float64 // 0.05 is 5 %
	MinWindows, MaxWindows int
	// LongestWindow is the max length of a window. A batch that takes longer has its
	// own window.
	LongestWindow time.Duration
	// Patience is how many windows may pass until the batches are full.
	Patience int
}

const (
	batchesAWindow = 10
	// full is the fraction of a cell's batch size that its mean batch must reach. busy
	// is the fraction of time that a process must be in a batch.
	full, busy = 0.95, 0.80
	// settled is how many full windows may pass until the processes are busy. If a
	// process is then idle between full batches, it waits for the node's data path and
	// not for the warm-up. A model of some microseconds never gets busy.
	settled = 4
)

// Measured is the result of a cell.
type Measured struct {
	// Rate is the images per second of all processes. Latency is the mean time of a
	// batch.
	Rate    float64
	Latency time.Duration
	// Precision is the half width of the rate's confidence interval, as a fraction of
	// the rate. Stable means that it is narrow enough.
	Precision float64
	Stable    bool
	Windows   int
	// Busy is the fraction of time that a process was in a batch. LoadBound means that
	// it is too small: the throughput is then limited by how fast the node feeds the
	// model.
	Busy      float64
	LoadBound bool
	Memory    Memory
}

// measure starts a cell and watches it until it is stable.
func measure(ctx context.Context, r Runner, rule stopRule, c Cell) (m Measured, err error) {
	running, err := r.Start(ctx, c)
	if err != nil {
		return m, err
	}
	defer running.Stop()
	length, err := warmUp(ctx, running, rule, c)
	if err != nil {
		return m, err
	}
	var sum Window
	var rates []float64
	for !m.Stable && m.Windows < rule.MaxWindows {
		w, err := running.Window(ctx, length)
		if err != nil {
			return m, err
		}
		sum, rates = sum.and(w), append(rates, w.rate())
		m.Windows++
		m.Precision = precision(rates)
		m.Stable = m.Windows >= rule.MinWindows && m.Precision <= rule.Precision
	}
	if sum.Images == 0 {
		return m, fmt.Errorf("no image was answered within %s", sum.Elapsed)
	}
	m.Rate, m.Latency, m.Busy = sum.rate(), sum.latency(), sum.busy(c)
	m.LoadBound = m.Busy < busy
	m.Memory, err = running.Memory()
	return m, err
}

// busy returns the fraction of time that a process of the cell was in a batch.
func (w Window) busy(c Cell) float64 {
	return float64(w.BatchTime) / float64(w.Elapsed) / float64(c.Processes)
}

// warmUp watches until the batches are full, and one more window. It returns the
// length of the next windows.
func warmUp(ctx context.Context, running Running, rule stopRule, c Cell) (length time.Duration, err error) {
	length = rule.Window
	ready, filled, batch := false, 0, 0.0
	for range rule.Patience + settled {
		w, err := running.Window(ctx, length)
		if err != nil {
			return 0, err
		}
		if ready {
			return max(length, min(rule.LongestWindow, batchesAWindow*w.latency())), nil
		}
		if w.Images == 0 { // not one batch: it takes longer than the window
			length = min(2*length, rule.LongestWindow)
			continue
		}
		if batch = float64(w.Images) / w.Batches; batch < full*float64(c.Batch) {
			filled = 0
			continue
		}
		filled++
		ready = w.busy(c) >= busy || filled >= settled
	}
	return 0, fmt.Errorf("%w: after %d windows the mean batch is %.1f of %d", errNotFilled, rule.Patience+settled, batch, c.Batch)
}

// precision returns half the width of the mean's 95 % confidence interval, as a
// fraction of the mean; infinite if it is not known.
func precision(samples []float64) float64 {
	mean, half := confidence.Mean(samples)
	if mean == 0 {
		return math.Inf(1)
	}
	return half / mean
}
