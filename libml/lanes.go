package libml

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/libml/lane"
)

// lanes divide a worker's members into lanes (package lane). The members of a lane take turns: a
// member's batch begins when no other batch of its lane runs and the lane's policy chooses it. Any
// goroutine may call the methods.
type lanes struct {
	capacity lane.Capacity
	policy   string

	mu    sync.Mutex // guards the list and the members, not the turns
	lanes []*laneQueue
}

// newLanes returns at most n lanes with that policy.
func newLanes(n int, policy string) (*lanes, error) {
	if _, err := lane.New(policy); err != nil {
		return nil, err
	}
	// Memory limits no lane yet: weights stay in memory as long as their function is a member.
	const unlimited = 1 << 50
	return &lanes{capacity: lane.Capacity{MemoryBytes: unlimited, Lanes: n}, policy: policy}, nil
}

// join gives a member a place in a lane. wake makes the member look for its turn again; any
// goroutine may call it at any time.
func (s *lanes) join(m lane.Model, wake func()) (*laneTurn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	members := make([]lane.Lane, len(s.lanes))
	for i, l := range s.lanes {
		for _, t := range l.members {
			members[i].Members = append(members[i].Members, t.model)
		}
	}
	i, _, err := lane.Assign(s.capacity, members, m)
	if err != nil {
		return nil, err
	}
	if i == len(s.lanes) {
		policy, err := lane.New(s.policy)
		if err != nil {
			return nil, fmt.Errorf("open lane: %w", err)
		}
		s.lanes = append(s.lanes, &laneQueue{policy: policy})
	}
	l := s.lanes[i]
	t := &laneTurn{in: s, of: l, model: m, wake: wake}
	l.mu.Lock()
	defer l.mu.Unlock()
	others := make([]lane.Job, 0, len(l.members))
	for _, o := range l.members {
		others = append(others, o.job)
	}
	t.job.Served = lane.StartServed(others)
	l.members = append(l.members, t)
	return t, nil
}

// laneQueue has the turns of one lane. mu guards all of it and its members' turns; lanes.mu guards
// members as well.
type laneQueue struct {
	mu      sync.Mutex
	policy  lane.Policy
	members []*laneTurn
	running *laneTurn // the member whose turn it is; nil if the lane is free
	jobs    []lane.Job
}

// laneTurn is a member's place in its lane. A process that is not in a worker has a nil turn: it may
// always begin.
type laneTurn struct {
	in    *lanes
	of    *laneQueue
	model lane.Model
	wake  func()

	waits bool     // it has a batch to run
	job   lane.Job // the batch, and the time that the member has had
	began int64    // its turn
}

// take reports whether the member may begin a batch now. If not, the member waits for its turn, and
// is woken when it comes. Times of the job are those of shm.Now.
func (t *laneTurn) take(now int64, job lane.Job) bool {
	if t == nil {
		return true
	}
	l := t.of
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != t {
		job.Served = t.job.Served
		t.waits, t.job = true, job
		l.next(now)
	}
	return l.running == t
}

// withdraw ends the member's turn, or its wait for one, without a batch.
func (t *laneTurn) withdraw(now int64) {
	if t == nil {
		return
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.waits = false
	if t.of.running == t {
		t.of.running = nil
		t.of.next(now)
	}
}

// end ends the member's turn after its batch.
func (t *laneTurn) end(now int64) {
	if t == nil {
		return
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if t.of.running != t {
		return
	}
	t.job.Served += time.Duration(now - t.began)
	t.of.running = nil
	t.of.next(now)
}

// leave gives up the member's place.
func (t *laneTurn) leave(now int64) {
	if t == nil {
		return
	}
	t.withdraw(now)
	t.in.mu.Lock()
	defer t.in.mu.Unlock()
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.members = slices.DeleteFunc(t.of.members, func(o *laneTurn) bool { return o == t })
}

// next gives a free lane to the batch that the policy chooses, and wakes its member.
func (l *laneQueue) next(now int64) {
	if l.running != nil {
		return
	}
	l.jobs = l.jobs[:0]
	for i, t := range l.members {
		if t.waits {
			t.job.Model = i
			l.jobs = append(l.jobs, t.job)
		}
	}
	i, ok := l.policy.Next(now, l.jobs)
	if !ok {
		return
	}
	t := l.members[l.jobs[i].Model]
	t.waits, t.began = false, now
	l.running = t
	t.wake()
}
