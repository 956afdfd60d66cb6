// Package sharesim simulates functions that share a GPU, in virtual time: it is the
// simulation behind `penstock-lab simulate`. The real code decides: guarantees
// (manager/policy/guarantee), balances and levels (control/budget), and batches
// (batching). The device, the clients, and libml's loop around these are simulated.
// The same Config gives the same Report on any machine.
//
//	arrivals ──> pending ──slab.Pick──> batch ──balance?──> level n, or 0 if demoted
//	                                                            │
//	answered in time, or late <── device: highest level first ──┘
//
// # The device
//
// Alone, a batch takes Fixed + PerImage × padded size, times log-normal noise. It does not
// fill the device in that time: launches and small kernels leave room for other
// batches. Its width is the part that it uses, (narrow × Fixed + PerImage × padded size) of
// its time. Higher levels take their widths first. A batch that loses its
// part first ends its current kernel, and keeps the higher level waiting until then.
//
// # What is measured
//
// A request is within the guarantee if the true need of its function was no larger than
// its guarantee when the request arrived, and for one objective before. The true need
// follows from the rate of the generator, not from what the manager measured.
package sharesim

import (
	"cmp"
	"fmt"
	"time"

	"github.com/penstock/penstock/manager/policy/guarantee"
)

// ladder holds the batch sizes of all functions.
var ladder = []int{1, 2, 4, 8, 16, maxBatch}

const maxBatch = 32

// sigma is the deviation of a batch's time.
const sigma = 0.03

// How often the manager observes demand, and how often it decides.
const (
	observeEvery = 50 * time.Millisecond
	decideEvery  = time.Second
)

// Function is a simulated function.
type Function struct {
	Name      string
	Objective time.Duration // the node's part
	// A batch takes Fixed + PerImage × its padded size, and consists of Kernels equal parts
	// that cannot be preempted.
	Fixed, PerImage time.Duration
	Kernels         int
	// Narrow is the part of the device that a batch's fixed time uses; 0: narrow.
	Narrow float64
	// Phases are its load. It serves from the first one on.
	Phases []Phase
	// CostError is what libml's cost is of the true one; 0: 1.
	CostError float64
}

// narrow is the part of the device that a batch's fixed time uses. On an H200 400 batches per
// second of ResNet-152 at a higher priority left VGG-19 0.83 of its rate: 0.3. ResNet-50 and
// MobileNetV2 left it 0.40: 0.4.
const narrow = 0.35

// Time returns how long a batch takes alone.
func (f *Function) Time(n int) time.Duration { return f.Fixed + time.Duration(n)*f.PerImage }

// uses returns how much of the device's time a batch uses.
func (f *Function) uses(n int) time.Duration {
	return time.Duration(cmp.Or(f.Narrow, narrow)*float64(f.Fixed)) + time.Duration(n)*f.PerImage
}

// width returns the part of the device that a batch uses while it runs alone.
func (f *Function) width(n int) float64 { return float64(f.uses(n)) / float64(f.Time(n)) }

// timeOn returns how long a batch takes alone on a part of the device.
func (f *Function) timeOn(n int, part float64) time.Duration {
	return time.Duration(float64(f.Time(n)) * max(1, f.width(n)/part))
}

func (f *Function) costError() float64 {
	if f.CostError == 0 {
		return 1
	}
	return f.CostError
}

// largest is the largest batch that takes at most half the objective.
func (f *Function) largest() int {
	best := 1
	for _, n := range ladder {
		if f.Time(n) <= f.Objective/2 {
			best = n
		}
	}
	return best
}

// Weight is the device time that a request of the function is worth: its cost in the
// largest batch that takes at most half the objective.
func (f *Function) Weight() time.Duration {
	n := f.largest()
	return f.uses(n) / time.Duration(n)
}

// Need is the part of the device that this many requests per second need.
func (f *Function) Need(rate float64) float64 {
	if rate == 0 {
		return 0
	}
	n := guarantee.Batch(rate, f.Objective, float64(f.largest()))
	return guarantee.Decide([]guarantee.Function{{
		Objective: f.Objective, Rate: rate, Fixed: f.uses(0), Cost: f.PerImage, Batch: n,
	}})[0].Need
}

// Rules are what the tests break to see that the figures show it. The zero value is the
// rule as it is.
type Rules struct {
	InvertLevels bool // the longer the objective, the higher the level
	NoBalance    bool // no work is demoted
	NoCaps       bool // with Turns batches are not capped
	NoTurns      bool // with Priorities batches of a level run next to each other
}

// Sharing is how batches of several functions share the device.
type Sharing int

// With Priorities the device runs the highest level first, as with MPS, and batches of a level run one after the
// other, as libml orders them (shm.Turn). The others are for a GPU without MPS, on which a batch uses the whole device.
// With Slices each function that has batches gets an equal part of the time. With Turns batches of all levels run one
// after the other.
const (
	Priorities Sharing = iota
	Slices
	Turns
)

// Config is one simulation.
type Config struct {
	Functions []Function
	Sharing   Sharing
	Rules     Rules
	Seed      uint64
	// Duration is the virtual time of the run, of which Settle is not measured.
	Duration, Settle time.Duration
}

// Result is what became of a function's requests.
type Result struct {
	Function Function `json:"-"`
	// Requests arrived in the measured time; Good of them were answered in time.
	Requests, Good int
	// Within of the requests were within the guarantee; WithinGood in time.
	Within, WithinGood int
	// Guaranteed and Demoted are device time.
	Guaranteed, Demoted time.Duration
	// Infeasible is the part of the run in which Decide said that the objective is.
	Infeasible float64
}

// Run simulates the functions on one device.
func Run(c Config) ([]Result, error) {
	return run(c, true, 1)
}

// alone simulates one function, on a fixed part of the device.
func alone(c Config, index int, part float64) (Result, error) {
	functions := make([]Function, len(c.Functions))
	copy(functions, c.Functions)
	for i := range functions {
		if i != index {
			functions[i].Phases = []Phase{{}}
		}
	}
	c.Functions = functions
	r, err := run(c, false, part)
	if err != nil {
		return Result{}, err
	}
	return r[index], nil
}

func run(c Config, shared bool, part float64) ([]Result, error) {
	if c.Duration <= c.Settle {
		return nil, fmt.Errorf("simulate sharing: duration %v is not longer than the %v before it is measured", c.Duration, c.Settle)
	}
	d := &device{part: part, sharing: c.Sharing}
	turns := shared && (c.Sharing == Turns || c.Sharing == Priorities && !c.Rules.NoTurns)
	var functions []*function
	for i, f := range c.Functions {
		s, err := newFunction(f, &c, d, i)
		if err != nil {
			return nil, fmt.Errorf("simulate sharing: %w", err)
		}
		functions = append(functions, s)
	}
	m := manager{functions: functions, shared: shared}
	for now := int64(0); ; {
		next := min(d.next(), m.next())
		for _, f := range functions {
			next = min(next, f.arrivals.next(), f.samples(now))
		}
		if now = max(now, next); now >= int64(c.Duration) {
			break
		}
		d.advance(now)
		for b := d.ended(); b != nil; b = d.ended() {
			b.of.finish(b, now)
		}
		m.tick(now)
		for _, f := range functions {
			for f.arrivals.next() <= now {
				f.receive(now)
				f.arrivals.advance()
			}
			if !turns {
				f.step(now)
			}
		}
		if turns {
			takeTurns(functions, now)
		}
	}
	var results []Result
	for _, f := range functions {
		// Requests without an answer are left out.
		f.result.Within -= len(f.counted)
		for _, r := range f.unanswered() {
			if r.Whole >= f.from {
				f.result.Requests--
			}
		}
		f.result.Infeasible /= c.Duration.Seconds()
		results = append(results, f.result)
	}
	return results, nil
}

// manager decides guarantees, and follows the true needs.
type manager struct {
	functions []*function
	shared    bool
	observes  int64 // next
	decides   int64 // next
	decided   int64 // last
}

// next returns when there is something to do.
func (m *manager) next() int64 {
	at := m.decides
	if m.shared {
		at = min(at, m.observes)
	}
	for _, f := range m.functions {
		at = min(at, f.phaseEnds())
	}
	return at
}

func (m *manager) tick(now int64) {
	fresh := false
	for _, f := range m.functions {
		if !f.serves && now >= int64(f.Phases[0].At) && (len(f.Phases) > 1 || f.Phases[0].Rate > 0) {
			f.serves, fresh = true, true
		}
	}
	if m.shared && now >= m.observes {
		m.observes += int64(observeEvery)
		for _, f := range m.functions {
			fresh = f.demand.Observe(f.arrived, time.Duration(now)) || fresh
		}
	}
	if now >= m.decides {
		m.decides += int64(decideEvery)
		fresh = true
	}
	if m.shared && fresh {
		m.decide(now)
	}
	for _, f := range m.functions {
		f.follow(now)
	}
}

func (m *manager) decide(now int64) {
	elapsed := time.Duration(now - m.decided)
	m.decided = now
	var serving []*function
	var functions []guarantee.Function
	for _, f := range m.functions {
		if !f.serves {
			continue
		}
		serving = append(serving, f)
		functions = append(functions, f.wants())
	}
	actions := guarantee.Decide(functions)
	if len(serving) > 0 && serving[0].device.sharing == Turns && !serving[0].rules.NoCaps {
		guarantee.CapBatches(functions, actions)
	}
	for i, a := range actions {
		f := serving[i]
		if f.action.Infeasible != "" {
			f.result.Infeasible += elapsed.Seconds()
		}
		f.act(now, a)
	}
}
