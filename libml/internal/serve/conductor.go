package serve

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/residency"
	"github.com/penstock/penstock/shm"
)

// conductor decides which members of a worker have their models in memory, if the memory is limited
// (package residency). It plans after each event, and gives the steps to the members, whose own
// threads carry them out between two batches:
//
//	thread of a member                        conductor
//	1 observe: requests, first packets ─────> 2 plan: others evict, this one loads
//	3 <──────────────── order, wake ────────┘
//	4 load or evict (residence.go)
//	5 loaded, evicted or failed ────────────> 2 plan
//
// So no thread waits for another one's load. No plan is made while models are being evicted: the
// next one finds their memory free.
//
// A worker without a limit has no conductor. Any goroutine may call the methods.
type conductor struct {
	lanes *gate.Lanes
	ahead time.Duration // residency.Worker.Ahead
	// fail ends the worker, because a step does not end within stepPatience of running time.
	fail    func(error)
	running func() time.Duration

	mu           sync.Mutex // guards the rest, and the members
	members      []*residence
	models       []residency.Model // of members, as of the last plan
	alarm        *time.Timer
	pressure     residency.Pressure
	pressureFrom int64 // when it was computed
}

// stepPatience is how long loading or evicting a model that has served may take. The orchestrator
// watches over first loads.
const stepPatience = 30 * time.Second

// loadAhead is how long orders, evictions and mapping take before a copy to a GPU, on an H200
// (docs/adr/0030-evicting-weights.md).
const loadAhead = time.Millisecond

// newConductor returns the conductor of a worker. ahead is residency.Worker.Ahead.
func newConductor(l *gate.Lanes, ahead time.Duration, fail func(error)) *conductor {
	c := &conductor{lanes: l, ahead: ahead, fail: fail, running: runclock.Now}
	c.alarm = time.AfterFunc(math.MaxInt64, func() { c.plan(shm.Now()) })
	return c
}

// close ends the conductor. No member may be left.
func (c *conductor) close() { c.alarm.Stop() }

// residence is a member's place in its conductor. A process that has no conductor has a nil
// residence: its model is always in memory.
type residence struct {
	of   *conductor
	name string // of the member
	wake func() // makes the member look for its order; any goroutine may call it

	joined   int64
	loadOnce bool            // load the model once, also without requests
	serves   bool            // the member's loop carries out its orders
	exact    bool            // the sizes that loads report are exact
	model    residency.Model // State is Linked or Resident
	rate     residency.Rate
	stream   residency.Arrivals
	until    int64             // when a request whose first packet has come no longer counts
	order    residency.Op      // for the member, while model.Moving
	began    time.Duration     // running time when the order was given, or the member took it
	taken    bool              // the member carries it out
	fault    error             // of the last load; nil if it did not fail
	retry    retry             // after a fault
	counts   control.Residency // without its state
}

// retry delays the next load after one that failed.
type retry struct {
	at    int64
	delay time.Duration
}

// The delay after a load that failed. It doubles up to maxRetry.
const (
	minRetry = 500 * time.Millisecond
	maxRetry = 10 * time.Second
)

// newcomer is a member that joins. Its model is not in memory yet.
type newcomer struct {
	name         string
	weightsBytes int64         // an estimate
	load         time.Duration // an estimate
	loadOnce     bool          // load the model once, also without requests
	exact        bool          // the sizes that loads report do not contain other members' memory
	wake         func()
}

// join adds a member.
func (c *conductor) join(now int64, n newcomer) *residence {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &residence{of: c, name: n.name, wake: n.wake, joined: now, loadOnce: n.loadOnce, exact: n.exact}
	r.model = residency.Model{State: residency.Linked, WeightsBytes: n.weightsBytes, Load: n.load}
	r.counts.Bytes = n.weightsBytes
	c.members = append(c.members, r)
	return r
}

// leave removes a member, whose model is no longer in memory.
func (r *residence) leave(now int64) {
	if r == nil {
		return
	}
	c := r.of
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = slices.DeleteFunc(c.members, func(o *residence) bool { return o == r })
	c.planLocked(now)
}

// work is what a member has to do.
type work struct {
	waiting  int   // complete requests
	deadline int64 // of the earliest that a load can keep
	// arrived: the first packet of a request has come since the last report. arriveBy is when that
	// request no longer counts, arriveDue its deadline.
	arrived             bool
	arriveBy, arriveDue int64
}

// observe reports a member's work. It returns the order that the member has to carry out now; ok is
// false if there is none.
func (r *residence) observe(now int64, w work) (order residency.Op, ok bool) {
	c := r.of
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &r.model
	m.Waiting, m.Arriving = w.waiting, 0
	if w.arrived {
		r.until = w.arriveBy
	}
	switch {
	case w.waiting > 0:
		m.Deadline, r.until = w.deadline, 0
	case now < r.until:
		m.Arriving = 1
		if w.arrived {
			m.Deadline = w.arriveDue
		}
	}
	if m.Moving && !r.taken && r.order == residency.Evict && m.Waiting+m.Arriving > 0 && !c.exceedsLocked() {
		m.Moving = false // it has work again
	}
	c.planLocked(now)
	if !m.Moving || r.taken {
		return 0, false
	}
	r.taken, r.began = true, c.running()
	m.Ends = r.ends(now)
	return r.order, true
}

// request counts a request, whose first packet came at a time.
func (r *residence) request(first int64) {
	if r == nil {
		return
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.rate = r.rate.Observe(first)
	r.stream = r.stream.Observe(first)
}

// resident reports whether the model is in memory. It stays there while the member has work.
func (r *residence) resident() bool {
	if r == nil {
		return true
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	return r.model.State == residency.Resident && !r.model.Moving
}

// loading returns how long a load is expected to take.
func (r *residence) loading() time.Duration {
	if r == nil {
		return 0
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	return r.model.Load
}

// failure returns why the last load failed, until it may be tried again.
func (r *residence) failure(now int64) error {
	if r == nil {
		return nil
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if now >= r.retry.at {
		return nil
	}
	return r.fault
}

// loaded ends a load: the model is in memory.
func (r *residence) loaded(now int64, bytes int64, took time.Duration) {
	if r == nil {
		return
	}
	c := r.of
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &r.model
	m.State, m.Moving, r.taken = residency.Resident, false, false
	if bytes > 0 && (r.exact || !r.serves || bytes < m.WeightsBytes) { // other members may have grown meanwhile
		m.WeightsBytes, r.counts.Bytes = bytes, bytes
	}
	r.loadOnce = r.loadOnce && !r.serves
	if !r.serves || took < m.Load { // one slow load must not make all later ones look hopeless
		m.Load = took
	} else {
		m.Load += (took - m.Load) / 4
	}
	m.Used = now
	r.fault, r.retry = nil, retry{}
	r.counts.Loads++
	r.counts.LastLoadMillis = float64(took.Microseconds()) / 1000
	c.planLocked(now)
}

// serve begins the member's service. From now on only requests keep the model in memory.
func (r *residence) serve(now int64, batch time.Duration) {
	c := r.of
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.model.State == residency.Resident {
		r.loadOnce = false
	}
	r.serves, r.model.Batch, r.model.Used = true, batch, now
	c.planLocked(now)
}

// evicted ends an eviction.
func (r *residence) evicted(now int64) {
	c := r.of
	c.mu.Lock()
	defer c.mu.Unlock()
	r.model.State, r.model.Moving, r.taken = residency.Linked, false, false
	r.counts.Evictions++
	c.planLocked(now)
}

// failed ends a load that failed. The model is not in memory, and is not loaded again for a while.
func (r *residence) failed(now int64, why error) {
	c := r.of
	c.mu.Lock()
	defer c.mu.Unlock()
	r.model.Moving, r.taken, r.loadOnce = false, false, false
	r.fault = why
	r.retry.delay = min(max(minRetry, 2*r.retry.delay), maxRetry)
	r.retry.at = now + int64(r.retry.delay)
	c.planLocked(now)
}

// ran tells how long a smallest batch takes, after a batch.
func (r *residence) ran(now int64, batch time.Duration) {
	if r == nil {
		return
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.model.Batch, r.model.Used = batch, now
}

// report returns the figures for the manager.
func (r *residence) report(now int64) *control.Residency {
	if r == nil {
		return nil
	}
	c := r.of
	c.mu.Lock()
	defer c.mu.Unlock()
	report, terms := r.counts, c.lanes.Terms()
	report.FixedBytes = terms.FixedBytes + terms.ScratchBytes
	switch m := &r.model; {
	case m.State == residency.Resident && m.Waiting > 0:
		report.State = control.Running
	case m.State == residency.Resident:
		report.State = control.Resident
	case m.Moving && r.taken:
		report.State = control.Loading
	default:
		report.State = control.Evicted
	}
	if now-c.pressureFrom >= int64(control.ReportEvery) {
		c.pressureFrom = now
		c.modelsLocked(now)
		c.pressure = residency.Worker{MemoryBytes: c.lanes.RoomBytes()}.Pressure(c.models)
	}
	if c.pressure.Thrashing {
		report.Thrashing, report.NeededBytes = true, report.FixedBytes+c.pressure.MemoryBytes
	}
	return &report
}

// plan plans again, because time has passed.
func (c *conductor) plan(now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.planLocked(now)
}

// planLocked gives the orders of a new plan.
func (c *conductor) planLocked(now int64) {
	wake := c.watchLocked(now)
	if !slices.ContainsFunc(c.members, (*residence).evicting) {
		w := residency.Worker{MemoryBytes: c.lanes.RoomBytes(), HostBytes: math.MaxInt64, Ahead: c.ahead}
		c.modelsLocked(now)
		evicts := false
		for _, step := range w.Plan(now, c.models) {
			if evicts && step.Op == residency.Load {
				break // the next plan has it, when the memory is free
			}
			evicts = evicts || step.Op == residency.Evict
			r := c.members[step.Model]
			r.model.Moving, r.taken, r.order, r.began = true, false, step.Op, c.running()
			r.model.Ends = r.ends(now)
			r.wake()
		}
		wake = min(wake, w.Wake(now, c.models))
	}
	if wake < math.MaxInt64 {
		c.alarm.Reset(time.Duration(max(0, wake-now)))
	}
}

// ends returns when a step that begins now should end. The first load, and one after a failure, also make
// sessions, in unknown time.
func (r *residence) ends(now int64) int64 {
	if r.counts.Loads == 0 || r.fault != nil {
		return math.MaxInt64
	}
	return now + int64(r.model.Load)
}

// exceedsLocked reports whether the models take more memory than there is, because one was larger than
// estimated.
func (c *conductor) exceedsLocked() bool {
	var taken int64
	for _, r := range c.members {
		if r.model.State == residency.Resident {
			taken += r.model.WeightsBytes
		}
	}
	return taken > c.lanes.RoomBytes()
}

// evicting reports whether the member has to evict its model.
func (r *residence) evicting() bool { return r.model.Moving && r.order == residency.Evict }

// modelsLocked writes the members' models for a plan to c.models.
func (c *conductor) modelsLocked(now int64) {
	c.models = c.models[:0]
	for _, r := range c.members {
		m := r.model
		m.Rate = r.rate.At(now)
		if now >= r.until {
			m.Arriving = 0
		}
		switch {
		case now < r.retry.at:
			m.Waiting, m.Arriving = 0, 0
		case r.loadOnce && m.Waiting+m.Arriving == 0:
			// A member that starts is never late, so it finds room even if it is worth least.
			m.Waiting, m.Deadline = 1, max(r.joined+int64(startPatience), now+int64(m.Load+m.Batch))
		default:
			if next, period := r.stream.Expected(); period > minPeriods*m.Load {
				m.Expected, m.Period = next, period
			}
		}
		c.models = append(c.models, m)
	}
}

// startPatience is how long a member that starts gives way to requests.
const startPatience = time.Second

// minPeriods is how many times as long as a load the period of a stream must be for its loads to
// begin ahead. With a shorter one the model would always be expected, and never evicted.
const minPeriods = 4

// watchLocked ends the worker if a step does not end. It returns when to look again.
func (c *conductor) watchLocked(now int64) (again int64) {
	again = math.MaxInt64
	for _, r := range c.members {
		if r.serves && r.model.Moving {
			left := r.began + stepPatience - c.running()
			if left <= 0 {
				c.fail(fmt.Errorf("member %s: %w: %s of its model takes longer than %v", r.name, errStuck, r.order, stepPatience))
				continue
			}
			again = min(again, now+int64(left))
		}
		for _, at := range []int64{r.retry.at, r.until} {
			if at > now {
				again = min(again, at)
			}
		}
	}
	return again
}

// errStuck is wrapped by the error that ends a worker whose member loads or evicts without end.
var errStuck = errors.New("framework hangs")
