// Package lanes simulates workers that serve more models than their memory holds, in virtual
// time: it is the simulation behind `penstock-lab lanes`. The real code decides: lanes and
// their next batch (libml/lane), loads and evictions (libml/residency), and the requests of a
// batch (batching). The GPU, the copies and the clients are simulated. The same Config gives
// the same Result on any machine.
//
//	first packet ──Transfer──> complete ──> waiting ──lane.Policy──> batch ──> in time, or late
//	      └──> residency.Plan ──> evict, load ───────────────┘
//
// # The GPU
//
// A batch takes Fixed + PerImage × its requests, times log-normal noise. Lanes do not slow
// each other down. A load takes prepareTime and its size divided by CopyRate, times noise; a part
// of the loads is late. Copies run one after the other. Evictions take no time besides prepareTime.
//
// # What is checked
//
// After each event Run checks the safety condition of the lanes, the memory of resident
// weights, and that no step hurts a model with work. A violation is an error.
package lanes

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/libml/residency"
)

// Deviations of the times of batches and loads.
const (
	batchSigma = 0.03
	loadSigma  = 0.05
)

// Model is a simulated model and its requests.
type Model struct {
	Name string
	lane.Model
	// A batch takes Fixed + PerImage × requests. It has at most MaxBatch of them.
	Fixed, PerImage time.Duration
	MaxBatch        int
	Objective       time.Duration // from the first packet to the end of the batch
	// Rate is that of random requests per second, Period that of a periodic stream, or 0.
	Rate   float64
	Period time.Duration
	// From and Until are when it is added and removed; an Until of 0 means never.
	From, Until time.Duration
}

func (m *Model) batchTime(requests int) time.Duration {
	return m.Fixed + time.Duration(requests)*m.PerImage
}

// Config is one simulation.
type Config struct {
	Models   []Model
	Capacity lane.Capacity
	Policy   string
	// Order is the order of victims, as in residency.Worker.
	Order func(a, b *residency.Model) int
	// CopyRate has the bytes per second of a load.
	CopyRate float64
	// Ahead is that of residency.Worker.
	Ahead time.Duration
	// Transfer is the time from a request's first packet to its last.
	Transfer time.Duration
	// Unproven is the part of the requests whose client has not proved that it can receive.
	Unproven float64
	// LoadLast: loads begin when the request is complete, to show what the first packet brings.
	LoadLast bool
	// OnlyResident: a lane sees only jobs whose weights are on the GPU. Policies other than edf
	// are better so, because they cannot leave the lane to another job during a load.
	OnlyResident bool
	// LateLoads is the part of the loads that are late.
	LateLoads float64
	Seed      uint64
	// Duration is the virtual time of the run. Requests before Settle are not counted.
	Duration, Settle time.Duration
}

// Result is how a simulation went.
type Result struct {
	Requests, InTime, Late int
	// Failed requests were of a removed or refused model.
	Failed           int
	Loads, Evictions int
	// Refused models fitted in no lane.
	Refused int
	// Busy is the part of the time in which a lane runs a batch, Loading that in which a load
	// is under way.
	Busy, Loading float64
	// Cold requests found their weights elsewhere at their first packet. ColdMillis is the mean time
	// from their last packet to the end of their batch.
	Cold       int
	ColdMillis float64
	// Thrashing is the part of the samples that report it, MemoryBytes the median of the
	// worker's memory that would end it.
	Thrashing   float64
	MemoryBytes int64
}

// InTimePercent is the part of the requests that are answered in time. Requests of removed
// models do not count.
func (r Result) InTimePercent() float64 {
	return 100 * float64(r.InTime) / float64(max(1, r.Requests-r.Failed))
}

// never is after all events.
const never = math.MaxInt64

type model struct {
	Model
	lane     int // -1: no member
	admitted bool
	removed  bool
	state    residency.State
	stepEnd  int64     // of the load under way
	stepDue  int64     // when it should end
	arriving []request // in the order in which they will be complete
	waiting  []request
	next     int64 // next first packet
	nominal  int64 // next request of the periodic stream, without jitter
	// arrivals and noise are the same with each policy.
	arrivals, noise *rand.Rand
	rate            residency.Rate
	used            int64
	served          time.Duration
}

func (m *model) moving() bool { return m.stepEnd != never }

// laneState is a lane of the worker.
type laneState struct {
	policy   lane.Policy
	model    int   // that runs or that the lane waits for; -1: idle
	end      int64 // of its batch; never: it waits for a load
	requests []request
}

type worker struct {
	Config
	models    []model
	lanes     []laneState
	noise     *rand.Rand // of batches
	busFree   int64      // when the copies that have begun end
	snapshot  []residency.Model
	jobs      []lane.Job
	pending   []batching.Request
	resources residency.Worker
	sampled   int64
	samples   int
	thrashing []int64
	coldTime  time.Duration
	result    Result
}

// Run simulates a worker.
func Run(c Config) (Result, error) {
	w, err := newWorker(c)
	if err != nil {
		return Result{}, fmt.Errorf("simulate worker: %w", err)
	}
	for now := int64(0); now < int64(c.Duration); now = w.nextEvent(now) {
		w.endBatches(now)
		w.endSteps(now)
		w.changeMembers(now)
		w.receive(now)
		w.answerLate(now)
		if err := w.plan(now); err != nil {
			return Result{}, fmt.Errorf("simulate worker: at %v: %w", time.Duration(now), err)
		}
		if err := w.dispatch(now); err != nil {
			return Result{}, fmt.Errorf("simulate worker: at %v: %w", time.Duration(now), err)
		}
		if err := w.check(); err != nil {
			return Result{}, fmt.Errorf("simulate worker: at %v: %w", time.Duration(now), err)
		}
		w.sample(now)
	}
	return w.finish(), nil
}

func newWorker(c Config) (*worker, error) {
	w := &worker{Config: c, noise: rand.New(rand.NewPCG(c.Seed, 1)), snapshot: make([]residency.Model, len(c.Models))}
	if terms := lane.TermsOf(c.Capacity, nil); !terms.Safe() {
		return nil, fmt.Errorf("no room for models: %v", terms)
	}
	w.resources = residency.Worker{Order: c.Order, Ahead: c.Ahead}
	for range c.Capacity.Lanes {
		policy, err := lane.New(c.Policy)
		if err != nil {
			return nil, err
		}
		w.lanes = append(w.lanes, laneState{policy: policy, model: -1, end: never})
	}
	for i, m := range c.Models {
		w.models = append(w.models, model{
			Model: m, lane: -1, stepEnd: never, next: never,
			arrivals: rand.New(rand.NewPCG(c.Seed, uint64(2*i)<<8)), noise: rand.New(rand.NewPCG(c.Seed, uint64(2*i+1)<<8)),
		})
	}
	return w, nil
}

// nextEvent returns when the next event is.
func (w *worker) nextEvent(now int64) int64 {
	next := min(w.resources.Wake(now, w.snapshot), w.sampled+int64(sampleEvery))
	for i := range w.models {
		m := &w.models[i]
		next = min(next, m.next, m.stepEnd)
		if len(m.arriving) > 0 {
			next = min(next, m.arriving[0].Whole)
		}
		for _, r := range m.waiting {
			next = min(next, r.Deadline-int64(m.batchTime(1))+1)
		}
		if !m.admitted {
			next = min(next, max(now+int64(retryEvery), int64(m.From)))
		} else if m.Until > 0 && !m.removed {
			next = min(next, int64(m.Until))
		}
	}
	for i := range w.lanes {
		next = min(next, w.lanes[i].end)
	}
	return max(next, now+1)
}

// check checks what must hold after each event.
func (w *worker) check() error {
	terms := lane.TermsOf(w.Capacity, w.members())
	if !terms.Safe() {
		return fmt.Errorf("lanes are not safe: %v", terms)
	}
	if resident := w.residentBytes(); resident > terms.RoomBytes() {
		return fmt.Errorf("%d bytes of weights are resident, room for %d", resident, terms.RoomBytes())
	}
	loads := 0
	for i := range w.models {
		if w.models[i].moving() {
			loads++
		}
	}
	if loads > 2 || w.Ahead == 0 && loads > 1 {
		return fmt.Errorf("%d loads under way", loads)
	}
	for i := range w.lanes {
		l := &w.lanes[i]
		if l.end != never && (w.models[l.model].state != residency.Active || w.models[l.model].lane != i) {
			return fmt.Errorf("lane %d runs %s, which is %v in lane %d", i, w.models[l.model].Name, w.models[l.model].state, w.models[l.model].lane)
		}
	}
	return nil
}

// sampleEvery is how often the pressure is sampled.
const sampleEvery = 100 * time.Millisecond

func (w *worker) sample(now int64) {
	if now < w.sampled+int64(sampleEvery) {
		return
	}
	w.sampled = now
	if now < int64(w.Settle) {
		return
	}
	w.samples++
	if p := w.resources.Pressure(w.snapshot); p.Thrashing {
		w.thrashing = append(w.thrashing, p.MemoryBytes+w.Capacity.MemoryBytes-w.resources.MemoryBytes)
	}
}

// finish returns the result. Requests that have no answer yet do not count.
func (w *worker) finish() Result {
	r := w.result
	seconds := w.Duration.Seconds()
	r.Busy /= seconds * float64(len(w.lanes))
	r.Loading /= seconds
	r.ColdMillis = w.coldTime.Seconds() * 1000 / float64(max(1, r.Cold))
	r.Thrashing = float64(len(w.thrashing)) / float64(max(1, w.samples))
	if slices.Sort(w.thrashing); len(w.thrashing) > 0 {
		r.MemoryBytes = w.thrashing[len(w.thrashing)/2]
	}
	return r
}
