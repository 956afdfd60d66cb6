// Package residency decides which models' weights are on the GPU, when a worker serves more
// models than its memory holds. It is pure: no clock, no I/O.
//
//	evicted ──load──> resident ──batch──> active
//	   ^──────evict──────┘ ^────────────────┘
//
// The worker calls Worker.Plan after each event: a first packet, a complete request, the end
// of a batch or of a step. It also calls Plan at the time that Worker.Wake returns. Plan looks
// at all models and returns steps, which the worker begins in this order. Pressure tells the operator if
// the memory is too small for the load.
package residency

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock/libml/lane"
)

// State is the place of a model's weights.
type State uint8

const (
	Evicted  State = iota // not on the GPU; in host memory, or in the file
	Resident              // on the GPU
	Active                // on the GPU, and a batch runs or is queued
)

func (s State) String() string { return [...]string{"evicted", "resident", "active"}[s] }

// Op is what a step does.
type Op uint8

const (
	Load  Op = iota // from Evicted to Resident
	Evict           // from Resident to Evicted, without a copy
)

func (o Op) String() string { return [...]string{"load", "evict"}[o] }

// From reports whether the step can begin in a state.
func (o Op) From(s State) bool { return s == [...]State{Load: Evicted, Evict: Resident}[o] }

// Step changes the state of a model. The memory that it needs is free once the steps before
// it in the same plan have ended.
type Step struct {
	Model int // index of Plan's models
	Op    Op
}

// Model is what Plan must know about a model. Times are nanoseconds of one clock.
type Model struct {
	State State
	// Moving: a step has begun that changes the state, and has not ended. The memory of the
	// next state is taken from its beginning on, that of this state until its end. Ends is when the step
	// should end.
	Moving bool
	Ends   int64
	// WeightsBytes is its size on the GPU.
	WeightsBytes int64
	// Load is how long a load is expected to take alone, Batch its smallest batch.
	Load, Batch time.Duration

	// Arriving requests have begun to arrive. Count only those whose client has proved that
	// it can receive: a forged packet must not load anything. Waiting requests are complete.
	Arriving, Waiting int
	// Deadline is the earliest of those that a load from now on can keep, or the earliest of
	// all if it can keep none. It is unused without requests.
	Deadline int64
	// A periodic stream is expected to send its next request at Expected, and then each
	// Period. A Period of 0 means that there is no such stream.
	Expected int64
	Period   time.Duration

	// Rate has its requests per second, see type Rate.
	Rate float64
	// Used is when its last batch ended.
	Used int64
}

// Worker has the limits of a worker.
type Worker struct {
	// MemoryBytes is the GPU memory for weights (lane.Terms.RoomBytes).
	MemoryBytes int64
	// Ahead is how long before the end of a load the next one may begin. Before its copy, a load has to
	// evict others and to map memory. 0 allows one load at a time.
	Ahead time.Duration
	// Order sorts the models to evict, the first victim first. Plan uses ByWorth if it is nil.
	Order func(a, b *Model) int
}

// ByWorth compares what models are worth keeping: the time that loading them would take per
// second and byte, which is request rate × load time / size. Among equals the one that was
// used last is worth more.
func ByWorth(a, b *Model) int {
	return cmp.Or(cmp.Compare(a.worth(), b.worth()), cmp.Compare(a.Used, b.Used))
}

func (m *Model) worth() float64 {
	return m.Rate * m.Load.Seconds() / float64(max(1, m.WeightsBytes))
}

// hasWork reports whether its weights must stay, or be loaded.
func (m *Model) hasWork(now int64) bool {
	return m.State == Active || m.Arriving > 0 || m.Waiting > 0 || m.expects(now)
}

// lead is how many load times before a periodic request its load may begin. The first may
// pass while another model is loaded.
const lead = 2

// prefetch returns when the load for a periodic request begins.
func (m *Model) prefetch() int64 { return m.Expected - lead*int64(m.Load) }

// expects reports whether a periodic request will come so soon that its weights are needed. A
// request that is late by a whole period no longer counts.
func (m *Model) expects(now int64) bool {
	return m.Period > 0 && now >= m.prefetch() && now < m.Expected+int64(m.Period)
}

// due returns when the weights of an evicted model must be on the GPU. No load is late for a request that is only
// expected.
func (m *Model) due(now int64) int64 {
	if m.Arriving+m.Waiting > 0 {
		return m.Deadline - int64(m.Batch)
	}
	return max(m.Expected, now+int64(m.Load))
}

// Plan returns the steps to begin now. It brings the weights of models with work to the GPU in
// the order of lane.EDF, and makes room for them.
//
//   - At most one load is under way. Copies share one bus, so two at once would both end later.
//     A load may overlap the next one by Ahead at most.
//   - Weights on the GPU never exceed MemoryBytes. If they do, because a lane or a model grew,
//     idle models are evicted first.
//   - A model with work is never evicted.
//   - A load that is too late for its requests begins after all others. It evicts only models
//     that come before it in the order of victims. So models that cannot all be served do not
//     evict each other in turn.
func (w Worker) Plan(now int64, models []Model) []Step {
	p := planner{now: now, models: models, order: w.Order, room: w.MemoryBytes}
	if p.order == nil {
		p.order = ByWorth
	}
	loads, busy := 0, false
	for i := range models {
		m := &models[i]
		if m.State != Evicted || m.Moving {
			p.room -= m.WeightsBytes
		}
		if m.State == Evicted && m.Moving {
			loads++
			busy = loads > 1 || !w.allowsNext(now, m)
		}
	}
	switch {
	case p.room < 0:
		p.shrink()
	case !busy:
		p.load()
	}
	return p.steps
}

// allowsNext reports whether the next load may begin although the model's step has not ended.
func (w Worker) allowsNext(now int64, m *Model) bool {
	return w.Ahead > 0 && m.State == Evicted && m.Ends-now <= int64(w.Ahead)
}

// Wake returns the next time after now at which Plan may have a step without another event:
// when a load for a periodic request is due, when such a request no longer counts, or when a load
// ends so soon that the next may begin. It is math.MaxInt64 if there is none.
func (w Worker) Wake(now int64, models []Model) int64 {
	wake := int64(math.MaxInt64)
	waits := slices.ContainsFunc(models, func(m Model) bool { return m.State == Evicted && !m.Moving && m.hasWork(now) })
	for i := range models {
		switch m := &models[i]; {
		case m.State == Evicted && m.Moving:
			if waits && w.Ahead > 0 && !w.allowsNext(now, m) {
				wake = min(wake, m.Ends-int64(w.Ahead))
			}
		case m.Period <= 0:
		case m.State == Evicted && m.prefetch() > now:
			wake = min(wake, m.prefetch())
		case m.State == Resident && m.expects(now):
			wake = min(wake, m.Expected+int64(m.Period))
		}
	}
	return wake
}

// planner is the work of one call of Plan.
type planner struct {
	now    int64
	models []Model
	order  func(a, b *Model) int
	room   int64 // bytes that are free
	steps  []Step
}

// load adds the load of one model. The models are jobs of a lane, since one load runs at a time. If
// there is no room for the first one, it takes the next.
func (p *planner) load() {
	var jobs []lane.Job
	for i := range p.models {
		if m := &p.models[i]; m.State == Evicted && !m.Moving && m.hasWork(p.now) {
			jobs = append(jobs, lane.Job{Model: i, Deadline: m.due(p.now), Batch: m.Load, Requests: max(1, m.Arriving+m.Waiting)})
		}
	}
	if len(jobs) == 0 {
		return
	}
	for queue, _ := lane.New(lane.EDF); len(jobs) > 0; {
		k, _ := queue.Next(p.now, jobs)
		i := jobs[k].Model
		if p.free(&p.models[i]) {
			p.steps = append(p.steps, Step{i, Load})
			return
		}
		jobs = slices.Delete(jobs, k, k+1)
	}
}

// shrink adds the evictions that end an excess, of all idle models if it takes so many. Those with
// work follow when they are idle.
func (p *planner) shrink() {
	for _, i := range p.victims(func(*Model) bool { return true }) {
		if p.room >= 0 {
			return
		}
		p.steps = append(p.steps, Step{i, Evict})
		p.room += p.models[i].WeightsBytes
	}
}

// victims returns the idle models that may go, those that go first before others.
func (p *planner) victims(may func(*Model) bool) (victims []int) {
	for i := range p.models {
		if v := &p.models[i]; v.State == Resident && !v.Moving && !v.hasWork(p.now) && may(v) {
			victims = append(victims, i)
		}
	}
	slices.SortStableFunc(victims, func(a, b int) int { return p.order(&p.models[a], &p.models[b]) })
	return victims
}

// free adds the evictions that make room for a model. If there cannot be enough, it adds none and
// returns false.
func (p *planner) free(m *Model) bool {
	late := m.due(p.now)-int64(m.Load) < p.now
	victims := p.victims(func(v *Model) bool { return !late || p.order(v, m) < 0 })
	left, count := p.room, 0
	for ; count < len(victims) && left < m.WeightsBytes; count++ {
		left += p.models[victims[count]].WeightsBytes
	}
	if left < m.WeightsBytes {
		return false
	}
	// A large victim may make smaller ones before it unnecessary.
	for _, i := range slices.Backward(victims[:count]) {
		if size := p.models[i].WeightsBytes; left-size >= m.WeightsBytes {
			left -= size
		} else {
			p.steps = append(p.steps, Step{i, Evict})
		}
	}
	return true
}
