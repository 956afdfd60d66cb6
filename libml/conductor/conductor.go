// Package conductor decides which members of a worker have their models in memory, if the memory is limited
// (package residency). It plans after each event, and gives the steps to the members, whose own
// threads carry them out between two batches:
//
//	thread of a member                        conductor
//	1 Observe: requests, first packets ─────> 2 plan: others evict, this one loads
//	3 <──────────────── order, wake ────────┘
//	4 load or evict (internal/serve/residence.go)
//	5 Loaded, Evicted or Failed ────────────> 2 plan
//
// So no thread waits for another one's load. No plan is made while models are being evicted: the
// next one finds their memory free.
package conductor

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

// Conductor belongs to a worker with limited memory. Any goroutine may call its methods, and those of Member.
type Conductor struct {
	lanes *gate.Lanes
	ahead time.Duration // residency.Worker.Ahead
	// fail ends the worker, because a step does not end within stepPatience of running time.
	fail    func(error)
	running func() time.Duration

	mu           sync.Mutex // guards the rest, and the members
	members      []*Member
	models       []residency.Model // of members, as of the last plan
	alarm        *time.Timer
	pressure     residency.Pressure
	pressureFrom int64 // when it was computed
}

// stepPatience is how long loading or evicting a model that has served may take. The orchestrator
// watches over first loads.
const stepPatience = 30 * time.Second

// LoadAhead is how long orders, evictions and mapping take before a copy to a GPU, on an H200
// (docs/adr/0030-evicting-weights.md).
const LoadAhead = time.Millisecond

// New returns the conductor of a worker. ahead is residency.Worker.Ahead.
func New(l *gate.Lanes, ahead time.Duration, fail func(error)) *Conductor {
	c := &Conductor{lanes: l, ahead: ahead, fail: fail, running: runclock.Now}
	c.alarm = time.AfterFunc(math.MaxInt64, func() { c.plan(shm.Now()) })
	return c
}

// Close ends the conductor. No member may be left.
func (c *Conductor) Close() { c.alarm.Stop() }

// Member is a member of the worker. A process without a conductor has a nil Member: its model is always in
// memory.
type Member struct {
	of   *Conductor
	name string // of the member
	wake func() // makes the member look for its order; any goroutine may call it

	joined   int64
	loadOnce bool            // load the model once, also without requests
	serves   bool            // the member's loop carries out its orders
	exact    bool            // the sizes that loads report are exact
	model    residency.Model // State is Evicted or Resident
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

// Newcomer is a member that joins. Its model is not in memory yet.
type Newcomer struct {
	Name         string
	WeightsBytes int64         // an estimate
	Load         time.Duration // an estimate
	LoadOnce     bool          // load the model once, also without requests
	Exact        bool          // the sizes that loads report do not contain other members' memory
	Wake         func()
}

// Join adds a member.
func (c *Conductor) Join(now int64, n Newcomer) *Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &Member{of: c, name: n.Name, wake: n.Wake, joined: now, loadOnce: n.LoadOnce, exact: n.Exact}
	r.model = residency.Model{State: residency.Evicted, WeightsBytes: n.WeightsBytes, Load: n.Load}
	r.counts.Bytes = n.WeightsBytes
	c.members = append(c.members, r)
	return r
}

// Leave removes a member, whose model is no longer in memory.
func (r *Member) Leave(now int64) {
	if r == nil {
		return
	}
	c := r.of
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = slices.DeleteFunc(c.members, func(o *Member) bool { return o == r })
	c.planLocked(now)
}

// Work is what a member has to do.
type Work struct {
	Waiting  int   // complete requests
	Deadline int64 // of the earliest that a load can keep
	// Arrived: the first packet of a request has come since the last report. ArriveBy is when that
	// request no longer counts, ArriveDue its deadline.
	Arrived             bool
	ArriveBy, ArriveDue int64
}

// Observe reports a member's work. It returns the order that the member has to carry out now; ok is
// false if there is none.
func (r *Member) Observe(now int64, w Work) (order residency.Op, ok bool) {
	c := r.of
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &r.model
	m.Waiting, m.Arriving = w.Waiting, 0
	if w.Arrived {
		r.until = w.ArriveBy
	}
	switch {
	case w.Waiting > 0:
		m.Deadline, r.until = w.Deadline, 0
	case now < r.until:
		m.Arriving = 1
		if w.Arrived {
			m.Deadline = w.ArriveDue
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

// Request counts a request, whose first packet came at a time.
func (r *Member) Request(first int64) {
	if r == nil {
		return
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.rate = r.rate.Observe(first)
	r.stream = r.stream.Observe(first)
}

// Resident reports whether the model is in memory. It stays there while the member has work.
func (r *Member) Resident() bool {
	if r == nil {
		return true
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	return r.model.State == residency.Resident && !r.model.Moving
}

// Loading returns how long a load is expected to take.
func (r *Member) Loading() time.Duration {
	if r == nil {
		return 0
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	return r.model.Load
}

// Failure returns why the last load failed, until it may be tried again.
func (r *Member) Failure(now int64) error {
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

// Loaded ends a load: the model is in memory.
func (r *Member) Loaded(now int64, bytes int64, took time.Duration) {
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

// Serve begins the member's service. From now on only requests keep the model in memory.
func (r *Member) Serve(now int64, batch time.Duration) {
	c := r.of
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.model.State == residency.Resident {
		r.loadOnce = false
	}
	r.serves, r.model.Batch, r.model.Used = true, batch, now
	c.planLocked(now)
}

// Evicted ends an eviction.
func (r *Member) Evicted(now int64) {
	c := r.of
	c.mu.Lock()
	defer c.mu.Unlock()
	r.model.State, r.model.Moving, r.taken = residency.Evicted, false, false
	r.counts.Evictions++
	c.planLocked(now)
}

// Failed ends a load that failed. The model is not in memory, and is not loaded again for a while.
func (r *Member) Failed(now int64, why error) {
	c := r.of
	c.mu.Lock()
	defer c.mu.Unlock()
	r.model.Moving, r.taken, r.loadOnce = false, false, false
	r.fault = why
	r.retry.delay = min(max(minRetry, 2*r.retry.delay), maxRetry)
	r.retry.at = now + int64(r.retry.delay)
	c.planLocked(now)
}

// Ran tells how long a smallest batch takes, after a batch.
func (r *Member) Ran(now int64, batch time.Duration) {
	if r == nil {
		return
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.model.Batch, r.model.Used = batch, now
}

// Report returns the figures for the manager.
func (r *Member) Report(now int64) *control.Residency {
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
func (c *Conductor) plan(now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.planLocked(now)
}

// planLocked gives the orders of a new plan.
func (c *Conductor) planLocked(now int64) {
	wake := c.watchLocked(now)
	if !slices.ContainsFunc(c.members, (*Member).evicting) {
		w := residency.Worker{MemoryBytes: c.lanes.RoomBytes(), Ahead: c.ahead}
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
func (r *Member) ends(now int64) int64 {
	if r.counts.Loads == 0 || r.fault != nil {
		return math.MaxInt64
	}
	return now + int64(r.model.Load)
}

// exceedsLocked reports whether the models take more memory than there is, because one was larger than
// estimated.
func (c *Conductor) exceedsLocked() bool {
	var taken int64
	for _, r := range c.members {
		if r.model.State == residency.Resident {
			taken += r.model.WeightsBytes
		}
	}
	return taken > c.lanes.RoomBytes()
}

// evicting reports whether the member has to evict its model.
func (r *Member) evicting() bool { return r.model.Moving && r.order == residency.Evict }

// modelsLocked writes the members' models for a plan to c.models.
func (c *Conductor) modelsLocked(now int64) {
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
			m.Waiting, m.Deadline = 1, max(r.joined+int64(StartPatience), now+int64(m.Load+m.Batch))
		default:
			if next, period := r.stream.Expected(); period > minPeriods*m.Load {
				m.Expected, m.Period = next, period
			}
		}
		c.models = append(c.models, m)
	}
}

// StartPatience is how long a member that starts gives way to requests.
const StartPatience = time.Second

// minPeriods is how many times as long as a load the period of a stream must be for its loads to
// begin ahead. With a shorter one the model would always be expected, and never evicted.
const minPeriods = 4

// watchLocked ends the worker if a step does not end. It returns when to look again.
func (c *Conductor) watchLocked(now int64) (again int64) {
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
