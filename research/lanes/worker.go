// Package lanes simulates workers that serve more models than their memory holds, in virtual
// time: it is the simulation behind `penstock-lab lanes`. The real code decides: lanes and
// their next batch (libml/lane), loads and evictions (libml/residency), and the requests of a
// batch (libml/slab). The GPU, the copies and the clients are simulated. The same Config gives
// the same Result on any machine.
//
//	first packet ──Transfer──> complete ──> waiting ──lane.Policy──> batch ──> in time, or late
//	      └──> residency.Plan ──> evict, load ───────────────┘
//
// # The GPU
//
// A batch takes Fixed + PerImage × its requests, times log-normal noise. Lanes do not slow
// each other down. A load takes mapTime and its size divided by CopyRate, times noise; a part
// of the loads is late. Evictions take no time.
//
// # What is checked
//
// After each event Run checks the safety condition of the lanes, the memory of resident
// weights, and that no step hurts a model with work. A violation is an error.
package lanes

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/libml/residency"
	"github.com/penstock/penstock/libml/slab"
)

// mapTime is what mapping and unmapping one model of 304 MiB takes on an H200.
const mapTime = 70 * time.Microsecond

// Deviations of the times of batches and loads.
const (
	batchSigma = 0.03
	loadSigma  = 0.05
)

// A late load takes this many times as long as expected.
const lateFactor = 8

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
	// Cold: it begins on disk, not linked.
	Cold bool
}

func (m *Model) batchTime(requests int) time.Duration {
	return m.Fixed + time.Duration(requests)*m.PerImage
}

// Config is one simulation.
type Config struct {
	Models    []Model
	Capacity  lane.Capacity
	HostBytes int64
	Policy    string
	// Order is the order of victims, as in residency.Worker.
	Order func(a, b *residency.Model) int
	// CopyRate has the bytes per second of a load.
	CopyRate float64
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

type request struct {
	slab.Request
	first  int64
	proven bool
	cold   bool
}

type model struct {
	Model
	lane     int // -1: no member
	admitted bool
	removed  bool
	state    residency.State
	step     residency.Op // under way until stepEnd
	stepEnd  int64
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
	snapshot  []residency.Model
	jobs      []lane.Job
	pending   []slab.Request
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
	w.resources = residency.Worker{HostBytes: c.HostBytes, Order: c.Order}
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

// retryEvery is how often a model is offered again that waits for room.
const retryEvery = 10 * time.Millisecond

// endBatches answers the requests of batches that have ended.
func (w *worker) endBatches(now int64) {
	for i := range w.lanes {
		l := &w.lanes[i]
		if l.end > now {
			continue
		}
		m := &w.models[l.model]
		for _, r := range l.requests {
			w.count(r)
			if now > r.Deadline {
				w.answered(r, &w.result.Late)
			} else {
				w.answered(r, &w.result.InTime)
			}
			if r.cold && r.first >= int64(w.Settle) {
				w.result.Cold++
				w.coldTime += time.Duration(now - r.Whole)
			}
		}
		m.state, m.used = residency.Resident, now
		l.model, l.end, l.requests = -1, never, nil
	}
}

func (w *worker) count(r request) { w.answered(r, &w.result.Requests) }

// answered adds a request to a counter, if it is measured.
func (w *worker) answered(r request, counter *int) {
	if r.first >= int64(w.Settle) {
		*counter++
	}
}

func (w *worker) endSteps(now int64) {
	for i := range w.models {
		if m := &w.models[i]; m.stepEnd <= now {
			m.state, m.stepEnd = residency.State(m.step)+1, never
		}
	}
}

// changeMembers adds and removes models. A removed model leaves when its batch and its step
// have ended. A new one enters when the weights of the others leave room for its lane.
func (w *worker) changeMembers(now int64) {
	for i := range w.models {
		m := &w.models[i]
		if m.Until > 0 && now >= int64(m.Until) && m.admitted && !m.removed {
			m.removed, m.next = true, never
			for _, r := range slices.Concat(m.arriving, m.waiting) {
				w.count(r)
				w.answered(r, &w.result.Failed)
			}
			m.arriving, m.waiting = nil, nil
		}
		if m.removed && m.lane >= 0 && m.state != residency.Active && !m.moving() && !w.reserved(i) {
			m.lane, m.state = -1, residency.Disk
		}
	}
	w.resources.MemoryBytes = lane.TermsOf(w.Capacity, w.members()).RoomBytes()
	for i := range w.models {
		if m := &w.models[i]; !m.admitted && now >= int64(m.From) && !w.admit(now, i) {
			return
		}
	}
}

// reserved reports whether a lane waits for the model's load.
func (w *worker) reserved(index int) bool {
	return slices.ContainsFunc(w.lanes, func(l laneState) bool { return l.model == index })
}

// members returns the lanes as lane.Assign takes them.
func (w *worker) members() []lane.Lane {
	lanes := make([]lane.Lane, len(w.lanes))
	for i := range w.models {
		if m := &w.models[i]; m.lane >= 0 {
			lanes[m.lane].Members = append(lanes[m.lane].Members, m.Model.Model)
		}
	}
	return lanes
}

// admit adds a model. It returns false if the model must wait until others are evicted.
func (w *worker) admit(now int64, index int) bool {
	m := &w.models[index]
	lanes := w.members()
	chosen, _, err := lane.Assign(w.Capacity, lanes, m.Model.Model)
	if err != nil {
		w.result.Refused++
		m.admitted, m.removed = true, true
		return true
	}
	lanes[chosen].Members = append(lanes[chosen].Members, m.Model.Model)
	// Plan makes room within the new limit. The lane grows when there is enough.
	w.resources.MemoryBytes = lane.TermsOf(w.Capacity, lanes).RoomBytes()
	if w.residentBytes() > w.resources.MemoryBytes {
		return false
	}
	m.lane, m.admitted = chosen, true
	if !m.Cold && w.usedHostBytes()+m.WeightsBytes <= w.HostBytes {
		m.state = residency.Linked
	}
	switch {
	case m.Period > 0:
		m.nominal = now + int64(m.arrivals.Float64()*float64(m.Period))
		m.next = m.nominal
	case m.Rate > 0:
		m.next = now + m.interval()
	}
	return true
}

// interval returns a random time between two requests.
func (m *model) interval() int64 {
	return 1 + int64(m.arrivals.ExpFloat64()/m.Rate*float64(time.Second))
}

func (w *worker) residentBytes() (sum int64) {
	for i := range w.models {
		m := &w.models[i]
		if m.state >= residency.Resident || m.moving() && m.step == residency.Load {
			sum += m.WeightsBytes
		}
	}
	return sum
}

func (w *worker) usedHostBytes() (sum int64) {
	for i := range w.models {
		if m := &w.models[i]; m.state > residency.Disk || m.moving() {
			sum += m.WeightsBytes
		}
	}
	return sum
}

// receive takes first packets and last packets.
func (w *worker) receive(now int64) {
	for i := range w.models {
		m := &w.models[i]
		for m.next <= now {
			r := request{first: m.next, proven: m.arrivals.Float64() >= w.Unproven, cold: m.state < residency.Resident}
			r.Whole = m.next + int64(w.Transfer)
			r.Deadline = m.next + int64(m.Objective)
			m.arriving = append(m.arriving, r)
			m.rate = m.rate.Observe(m.next)
			m.schedule()
		}
		for len(m.arriving) > 0 && m.arriving[0].Whole <= now {
			if len(m.waiting) == 0 {
				w.startServed(m)
			}
			m.waiting = append(m.waiting, m.arriving[0])
			m.arriving = m.arriving[1:]
		}
	}
}

// schedule sets the next first packet. That of a periodic stream has a jitter of a hundredth
// of its period.
func (m *model) schedule() {
	if m.Period == 0 {
		m.next += m.interval()
		return
	}
	m.nominal += int64(m.Period)
	m.next = m.nominal + int64((m.arrivals.Float64()-0.5)/100*float64(m.Period))
}

// startServed lets a model join those of its lane that have work.
func (w *worker) startServed(m *model) {
	var others []lane.Job
	for i := range w.models {
		if o := &w.models[i]; o.lane == m.lane && (len(o.waiting) > 0 || o.state == residency.Active) {
			others = append(others, lane.Job{Served: o.served})
		}
	}
	m.served = max(m.served, lane.StartServed(others))
}

// answerLate answers requests that even a batch of one would miss.
func (w *worker) answerLate(now int64) {
	for i := range w.models {
		m := &w.models[i]
		m.waiting = slices.DeleteFunc(m.waiting, func(r request) bool {
			late := now+int64(m.batchTime(1)) > r.Deadline
			if late {
				w.count(r)
				w.answered(r, &w.result.Late)
			}
			return late
		})
	}
}

// plan begins the steps of a plan.
func (w *worker) plan(now int64) error {
	for i := range w.models {
		w.snapshot[i] = w.observe(now, i)
	}
	steps := w.resources.Plan(now, w.snapshot)
	touched := map[int]bool{}
	for _, s := range steps {
		m := &w.models[s.Model]
		switch {
		case touched[s.Model]:
			return fmt.Errorf("plan has two steps of %s: %v", m.Name, steps)
		case !s.Op.From(m.state) || m.moving() || m.lane < 0:
			return fmt.Errorf("plan has %v of %s, which is %v", s.Op, m.Name, m.state)
		}
		touched[s.Model] = true
		switch s.Op {
		case residency.Evict, residency.Drop:
			if len(m.waiting) > 0 || w.expects(m) || w.reserved(s.Model) {
				return fmt.Errorf("plan has %v of %s, which has work", s.Op, m.Name)
			}
			m.state = residency.Linked
			if s.Op == residency.Drop {
				m.state = residency.Disk
			} else {
				w.result.Evictions++
			}
		default:
			m.step, m.stepEnd = s.Op, now+w.stepTime(m, &w.snapshot[s.Model], s.Op)
			if s.Op == residency.Load {
				w.result.Loads++
				w.result.Loading += time.Duration(min(m.stepEnd, int64(w.Duration)) - now).Seconds()
			}
		}
	}
	if len(steps) > 0 {
		for i := range w.models {
			w.snapshot[i] = w.observe(now, i) // for Wake
		}
	}
	return nil
}

// expects reports whether a request of a client that can receive has begun to arrive.
func (w *worker) expects(m *model) bool {
	return slices.ContainsFunc(m.arriving, func(r request) bool { return r.proven && !w.LoadLast })
}

// observe returns what Plan sees of a model.
func (w *worker) observe(now int64, index int) residency.Model {
	m := &w.models[index]
	o := residency.Model{
		State: m.state, Moving: m.moving(), WeightsBytes: m.WeightsBytes, Batch: m.batchTime(1),
		Read: readTime(m.WeightsBytes), Link: linkTime, Load: w.loadTime(m.WeightsBytes),
		Waiting: len(m.waiting), Rate: m.rate.At(now), Used: m.used,
	}
	if m.Period > 0 && !m.removed && m.admitted {
		o.Period, o.Expected = m.Period, m.nominal
	}
	kept := now + int64(o.Load+o.Batch)
	earliest, deadline := int64(never), int64(never)
	note := func(r request) {
		earliest = min(earliest, r.Deadline)
		if r.Deadline >= kept {
			deadline = min(deadline, r.Deadline)
		}
	}
	for _, r := range m.arriving {
		if r.proven && !w.LoadLast {
			o.Arriving++
			note(r)
		}
	}
	for _, r := range m.waiting {
		note(r)
	}
	if o.Deadline = deadline; deadline == never {
		o.Deadline = earliest
	}
	// A lane that waits for a model counts as its work, even if its requests became late.
	if w.reserved(index) && m.state == residency.Resident {
		o.State = residency.Active
	}
	return o
}

func (w *worker) loadTime(bytes int64) time.Duration {
	return mapTime + time.Duration(float64(bytes)/w.CopyRate*float64(time.Second))
}

// Reading takes 2 GB/s from a disk, linking as long as sessions of weights that are shared.
const linkTime = 10 * time.Millisecond

func readTime(bytes int64) time.Duration { return time.Duration(bytes / 2) }

// stepTime returns how long a step really takes.
func (w *worker) stepTime(m *model, seen *residency.Model, op residency.Op) int64 {
	expected := [...]time.Duration{residency.Read: seen.Read, residency.Link: seen.Link, residency.Load: seen.Load}[op]
	took := float64(expected) * math.Exp(loadSigma*m.noise.NormFloat64())
	if m.noise.Float64() < w.LateLoads {
		took *= lateFactor
	}
	return 1 + int64(took)
}

// dispatch lets idle lanes begin a batch.
func (w *worker) dispatch(now int64) error {
	for i := range w.lanes {
		l := &w.lanes[i]
		if l.model >= 0 && len(w.models[l.model].waiting) == 0 && l.end == never && !w.models[l.model].moving() {
			l.model = -1 // all requests became late while their weights were loaded
		}
		if l.model < 0 {
			w.jobs = w.jobsOf(now, i)
			choice, ok := l.policy.Next(now, w.jobs)
			if !ok {
				continue
			}
			if choice < 0 || choice >= len(w.jobs) {
				return fmt.Errorf("lane %d: policy chose job %d of %d", i, choice, len(w.jobs))
			}
			l.model = w.jobs[choice].Model
		}
		if m := &w.models[l.model]; l.end == never && m.state == residency.Resident {
			w.begin(now, l, m)
		}
	}
	return nil
}

// jobsOf returns the members of a lane that have a batch to run.
func (w *worker) jobsOf(now int64, index int) []lane.Job {
	jobs := w.jobs[:0]
	for i := range w.models {
		m := &w.models[i]
		loading := m.moving() && m.step == residency.Load && !w.OnlyResident
		if m.lane != index || len(m.waiting) == 0 || m.state < residency.Resident && !loading {
			continue
		}
		size := min(m.MaxBatch, len(m.waiting))
		j := lane.Job{Model: i, Complete: never, Deadline: never, Requests: size, Batch: m.batchTime(size), Served: m.served}
		for _, r := range m.waiting {
			j.Complete, j.Deadline = min(j.Complete, r.Whole), min(j.Deadline, r.Deadline)
		}
		if loading {
			j.Load = time.Duration(max(1, m.stepEnd-now))
		}
		jobs = append(jobs, j)
	}
	return jobs
}

// begin runs the batch that slab.Pick chooses.
func (w *worker) begin(now int64, l *laneState, m *model) {
	w.pending = w.pending[:0]
	for k, r := range m.waiting {
		r.Slot = uint32(k)
		w.pending = append(w.pending, r.Request)
	}
	size, _ := slab.Pick(w.pending, now, m.MaxBatch, m.batchTime)
	if size == 0 {
		l.model = -1
		return
	}
	taken := map[uint32]bool{}
	for _, r := range w.pending[:size] {
		taken[r.Slot] = true
		l.requests = append(l.requests, m.waiting[r.Slot])
	}
	kept := m.waiting[:0:0]
	for k, r := range m.waiting {
		if !taken[uint32(k)] {
			kept = append(kept, r)
		}
	}
	m.waiting = kept
	took := time.Duration(float64(m.batchTime(size)) * math.Exp(batchSigma*w.noise.NormFloat64()))
	l.end = now + max(1, int64(took))
	m.state = residency.Active
	m.served += took
	w.result.Busy += time.Duration(min(l.end, int64(w.Duration)) - now).Seconds()
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
		if m := &w.models[i]; m.moving() && m.step == residency.Load {
			loads++
		}
	}
	if host := w.usedHostBytes(); host > w.HostBytes || loads > 1 {
		return fmt.Errorf("%d bytes in host memory of %d, %d loads under way", host, w.HostBytes, loads)
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

// LRU orders victims by the end of their last batch, for comparison.
func LRU(a, b *residency.Model) int { return cmp.Compare(a.Used, b.Used) }
