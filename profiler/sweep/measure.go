package sweep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/penstock/penstock/plan/confidence"
)

// ErrOutOfMemory is returned by Runner.Start where the processes do not fit into the
// memory that there is: the point is recorded as such.
var ErrOutOfMemory = errors.New("out of memory")

// ErrNotFilled is returned if the load does not fill the batches: the point would be
// one of smaller batches.
var ErrNotFilled = errors.New("the load does not fill the batches")

// Runner runs a model on a device. It is used by one goroutine.
type Runner interface {
	// Start brings a cell's processes up within its share, each kept busy by a closed
	// loop that always has a whole batch waiting. The cell before has been stopped. It
	// returns an error that wraps ErrOutOfMemory where they do not fit.
	Start(ctx context.Context, c Cell) (Running, error)
}

// Running is a cell at work.
type Running interface {
	// Window watches it for that long and returns what all processes did together.
	Window(ctx context.Context, d time.Duration) (Window, error)
	// Memory is what one process holds, 0 where it is not known.
	Memory() (Memory, error)
	// Stop ends the load; nothing is in flight then. The processes may stay, for the
	// next cell.
	Stop() error
}

// Window is what all processes of a cell did in a span of time.
type Window struct {
	Elapsed time.Duration
	Images  int
	// Batches is how many batches these images rode in, in parts: an image of a batch
	// of 8 brings an eighth.
	Batches float64
	// BatchTime is the sum of the times of these batches, in parts likewise.
	BatchTime time.Duration
}

// rate is images a second.
func (w Window) rate() float64 { return float64(w.Images) / w.Elapsed.Seconds() }

// latency is the mean time of a batch.
func (w Window) latency() time.Duration {
	if w.Batches == 0 {
		return 0
	}
	return time.Duration(float64(w.BatchTime) / w.Batches)
}

func (w Window) and(v Window) Window {
	return Window{w.Elapsed + v.Elapsed, w.Images + v.Images, w.Batches + v.Batches, w.BatchTime + v.BatchTime}
}

// Memory is what a process holds.
type Memory struct {
	// PersistentMiB is held between batches, EphemeralMiB beside that in the largest.
	PersistentMiB, EphemeralMiB float64
}

// stopRule says when a point is stable. Its windows follow one another; each is Window
// long, or batchesAWindow of the point's batches if that is longer, at most
// LongestWindow. The first windows warm up. They are not counted until the batches are
// full, and either follow one another or have been full for settled windows; one more
// window is left out. The point is stable when, over at least
// LeastWindows, the 95 % confidence interval of the mean throughput (Student's t over
// the windows) is no wider than Precision of the mean to either side, and is taken as
// it is after MostWindows.
type stopRule struct {
	Window                    time.Duration
	Precision                 float64 // 0.05 is 5 %
	LeastWindows, MostWindows int
	// LongestWindow bounds a window. A batch that takes longer has a window of its own.
	LongestWindow time.Duration
	// Patience is how many windows may pass until the batches are full.
	Patience int
}

const (
	batchesAWindow = 10
	// full is the part of a cell's batch size that its mean batch must have, busy the
	// part of the time that a process must be in a batch.
	full, busy = 0.95, 0.80
	// settled is how many full windows may pass until the processes are busy. A process
	// that is idle between full batches then waits for the node's data path and not for
	// the warm-up: a model of some microseconds never gets busy.
	settled = 4
)

// Measured is a cell after its windows.
type Measured struct {
	// Rate is images a second of all processes, Latency the mean time of a batch.
	Rate    float64
	Latency time.Duration
	// Precision is how wide the rate's confidence interval is to either side, as a
	// part of it; Stable whether that is narrow enough.
	Precision float64
	Stable    bool
	Windows   int
	// Busy is the part of the time that a process was in a batch. LoadBound says that
	// it is too little: the throughput is what the node feeds the model with.
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
	defer func() { err = errors.Join(err, running.Stop()) }()
	length, err := warmUp(ctx, running, rule, c)
	if err != nil {
		return m, err
	}
	var sum Window
	var rates []float64
	for !m.Stable && m.Windows < rule.MostWindows {
		w, err := running.Window(ctx, length)
		if err != nil {
			return m, err
		}
		sum, rates = sum.and(w), append(rates, w.rate())
		m.Windows++
		m.Precision = precision(rates)
		m.Stable = m.Windows >= rule.LeastWindows && m.Precision <= rule.Precision
	}
	if sum.Images == 0 {
		return m, fmt.Errorf("no image was answered within %s", sum.Elapsed)
	}
	m.Rate, m.Latency, m.Busy = sum.rate(), sum.latency(), sum.busy(c)
	m.LoadBound = m.Busy < busy
	m.Memory, err = running.Memory()
	return m, err
}

// busy is the part of the time that a process of the cell was in a batch.
func (w Window) busy(c Cell) float64 {
	return float64(w.BatchTime) / float64(w.Elapsed) / float64(c.Processes)
}

// warmUp watches until the batches are full, and one window more. It returns how long
// windows must be.
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
	return 0, fmt.Errorf("%w: after %d windows the mean batch is %.1f of %d", ErrNotFilled, rule.Patience+settled, batch, c.Batch)
}

// precision is half the width of the mean's 95 % confidence interval, as a part of the
// mean; infinite where it is not known.
func precision(samples []float64) float64 {
	mean, half := confidence.Mean(samples)
	if mean == 0 {
		return math.Inf(1)
	}
	return half / mean
}
