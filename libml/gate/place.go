package gate

import (
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/lane"
)

// FirstLead is the time from a batch's dispatch until it is gathered, until one has been measured.
const FirstLead = 100 * time.Microsecond

// laneQueue has the turns of one lane: one batch runs, and one is queued behind it.
//
//	member's thread   waits ──> running ──────────> launched ──> near its end ──> ended
//	policy              └──────────────────────────────────────────────┘
//	the next member's                                            queued ──> launched ──> running ──> ...
//
// The device begins the queued batch when the running one has ended, without the host (device.Ordered).
// Its requests are gathered before that. The policy chooses as late as that allows, because later requests
// may be more urgent. On a device that is not Ordered no batch is queued.
//
// A demoted batch is not queued, and no batch is queued behind a demoted one. Such a batch takes unknown
// time, and one within the guarantee must not wait for two.
//
// mu guards all of it and its members' turns; Lanes.mu guards members as well.
type laneQueue struct {
	index   int // in its lanes
	mu      sync.Mutex
	policy  lane.Policy
	members []*Place
	running *Place        // the member whose turn it is; nil if the lane is free
	queued  *Place        // the member whose turn is next, if it has begun already
	lead    time.Duration // from the choice of a queued batch to the end of its gather
	jobs    []lane.Job
}

// Place is a member's place in its lane. A process that is not in a worker has a nil Place: it may
// always begin.
type Place struct {
	in     *Lanes
	of     *laneQueue
	model  lane.Model
	wake   func()
	device device.Ordered // nil if batches cannot be queued
	entry  *Entry

	waits bool     // it has a batch to run
	job   lane.Job // the batch, and the time that the member has had
	began int64    // its turn; of a queued one, when it was chosen
	// launched: the device has all work of the batch, in that slot. Another one may be queued behind it.
	launched bool
	slot     int
	takes    time.Duration // expected
	ends     int64         // expected
}

// SetDevice lets batches be queued if the member's device is able to order them, and while no other process waits for
// its turn on the GPU.
func (t *Place) SetDevice(d device.Device, entry *Entry) {
	if t == nil || entry != nil && !entry.PerLevel() {
		return
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.entry = entry
	t.device, _ = d.(device.Ordered)
}

// Take reports whether the member may begin a batch now. If not, the member waits for its turn, and
// is woken when it comes. Times of the job are those of shm.Now.
func (t *Place) Take(now int64, job lane.Job) bool {
	if t == nil {
		return true
	}
	l := t.of
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queued == t && job.Demoted {
		l.queued = nil // its guarantee was used up since it was chosen
	}
	if l.running != t && l.queued != t {
		job.Served = t.job.Served
		t.waits, t.job = true, job
		l.next(now)
	}
	return l.running == t || l.queued == t
}

// Follow orders the work that comes next in the slot behind the running batch, if the turn is a queued
// one.
func (t *Place) Follow(slot int) (followed bool, err error) {
	if t == nil {
		return false, nil
	}
	l := t.of
	l.mu.Lock() // the running batch keeps its slot until end, which needs the lock
	defer l.mu.Unlock()
	if l.queued != t {
		return false, nil
	}
	if err := t.device.Follow(slot, l.running.device, l.running.slot); err != nil {
		return false, fmt.Errorf("queue batch behind that of another member: %w", err)
	}
	return true, nil
}

// Launch records that the device has all work of the member's batch. takes is how long the batch is
// expected to take, and gather the part before inference.
func (t *Place) Launch(slot int, began int64, takes, gather time.Duration) {
	if t == nil || t.device == nil {
		return
	}
	l := t.of
	l.mu.Lock()
	defer l.mu.Unlock()
	t.launched, t.slot, t.takes, t.ends = true, slot, takes, began+int64(takes)
	if l.queued == t {
		lead := time.Duration(began-t.began) + gather
		l.lead += (min(lead, l.running.takes) - l.lead) / 8
		t.ends = max(began, l.running.ends) + int64(takes)
	}
}

// Offer lets the policy choose the next batch if the member's batch ends soon. If it does not, offer returns
// how long to wait before the next call. It returns 0 if no more calls are needed: a batch was chosen, or
// one that comes later takes the place by itself.
func (t *Place) Offer(now int64) time.Duration {
	if t == nil {
		return 0
	}
	l := t.of
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !t.launched || len(l.members) == 1:
		return 0
	case l.running != t:
		return max(time.Duration(l.running.ends-now), offerInterval)
	}
	if left := time.Duration(l.opens() - now); left > 0 {
		return left
	}
	l.next(now)
	return 0
}

// offerInterval is how often a queued batch is checked that should run by now.
const offerInterval = 100 * time.Microsecond

// Withdraw ends the member's turn, or its wait for one, without a batch.
func (t *Place) Withdraw(now int64) {
	if t == nil {
		return
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.waits = false
	t.of.release(t, now)
}

// End ends the member's turn after its batch. It returns since when no other batch of the lane ran. It
// returns 0 if the end of the batch before was not noticed yet.
func (t *Place) End(now int64) (began int64) {
	if t == nil {
		return 0
	}
	l := t.of
	l.mu.Lock()
	defer l.mu.Unlock()
	switch t {
	case l.running:
		began = t.began
		t.job.Served += time.Duration(now - t.began)
	case l.queued: // the thread of the batch before has not noticed its end yet
		t.job.Served += t.takes
	}
	l.release(t, now)
	return began
}

// release takes the turn from a member.
func (l *laneQueue) release(t *Place, now int64) {
	switch t {
	case l.running:
		l.running, l.queued = l.queued, nil
		if r := l.running; r != nil {
			r.began, r.ends = now, now+int64(r.takes)
		}
	case l.queued:
		l.queued = nil
	default:
		return
	}
	t.launched = false
	l.next(now)
}

// opens returns when the place behind the running batch becomes free.
func (l *laneQueue) opens() int64 {
	return l.running.ends - int64(min(l.lead, l.running.takes/2))
}

// next gives a free place to the batch that the policy chooses, and wakes its member.
func (l *laneQueue) next(now int64) {
	begins := now
	if r := l.running; r != nil {
		if l.queued != nil || !r.launched || now < l.opens() {
			return
		}
		begins = max(now, r.ends)
	}
	l.jobs = l.jobs[:0]
	for i, t := range l.members {
		if t.waits {
			t.job.Model = i
			l.jobs = append(l.jobs, t.job)
		}
	}
	i, ok := l.policy.Next(begins, l.jobs)
	if !ok {
		return
	}
	t := l.members[l.jobs[i].Model]
	if l.running != nil && (t.device == nil || t.job.Demoted || t.entry.awaited()) {
		return
	}
	t.waits, t.began = false, now
	if l.running == nil {
		l.running = t
	} else {
		l.queued = t
	}
	t.wake()
}
