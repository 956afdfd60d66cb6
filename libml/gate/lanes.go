package gate

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/libml/lane"
)

// Lanes divide a worker's members into lanes (package lane). The members of a lane take turns
// (place.go). Any goroutine may call the methods.
type Lanes struct {
	capacity lane.Capacity
	policy   string

	mu    sync.Mutex // guards the list and the members, not the turns
	lanes []*laneQueue
	terms atomic.Pointer[lane.Terms] // of the members
}

// Unlimited is the memory of a worker without a limit.
const Unlimited = 1 << 50

// NewLanes returns at most n lanes with that policy, for models that share memoryBytes.
func NewLanes(n int, policy string, memoryBytes int64) (*Lanes, error) {
	if _, err := lane.New(policy); err != nil {
		return nil, err
	}
	s := &Lanes{capacity: lane.Capacity{MemoryBytes: memoryBytes, Lanes: n}, policy: policy}
	s.settleLocked()
	return s, nil
}

// Join gives a member a place in a lane. wake makes the member look for its turn again; any
// goroutine may call it at any time.
func (s *Lanes) Join(m lane.Model, wake func()) (*Place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, _, err := lane.Assign(s.capacity, s.membersLocked(), m)
	if err != nil {
		return nil, err
	}
	if i == len(s.lanes) {
		policy, err := lane.New(s.policy)
		if err != nil {
			return nil, fmt.Errorf("open lane: %w", err)
		}
		s.lanes = append(s.lanes, &laneQueue{index: i, policy: policy, lead: FirstLead})
	}
	l := s.lanes[i]
	t := &Place{in: s, of: l, model: m, wake: wake}
	l.mu.Lock()
	defer l.mu.Unlock()
	others := make([]lane.Job, 0, len(l.members))
	for _, o := range l.members {
		others = append(others, o.job)
	}
	t.job.Served = lane.StartServed(others)
	l.members = append(l.members, t)
	s.settleLocked()
	return t, nil
}

// membersLocked returns the lanes as package lane has them.
func (s *Lanes) membersLocked() []lane.Lane {
	members := make([]lane.Lane, len(s.lanes))
	for i, l := range s.lanes {
		for _, t := range l.members {
			members[i].Members = append(members[i].Members, t.model)
		}
	}
	return members
}

// settleLocked computes the terms after a change of the members.
func (s *Lanes) settleLocked() {
	terms := lane.TermsOf(s.capacity, s.membersLocked())
	s.terms.Store(&terms)
}

// RoomBytes is the memory for the weights of all members.
func (s *Lanes) RoomBytes() int64 { return s.terms.Load().RoomBytes() }

// Resize corrects the memory that the member needs. If it does not fit, the error wraps
// lane.ErrMemory.
func (t *Place) Resize(m lane.Model) error {
	t.in.mu.Lock()
	defer t.in.mu.Unlock()
	before := t.model
	t.model = m
	t.in.settleLocked()
	if terms := t.in.terms.Load(); !terms.Safe() {
		t.model = before // the member ends, and others must not be refused meanwhile
		t.in.settleLocked()
		return fmt.Errorf("%w: %v", lane.ErrMemory, terms)
	}
	return nil
}

// Leave gives up the member's place.
func (t *Place) Leave(now int64) {
	if t == nil {
		return
	}
	t.Withdraw(now)
	t.in.mu.Lock()
	defer t.in.mu.Unlock()
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.members = slices.DeleteFunc(t.of.members, func(o *Place) bool { return o == t })
	t.in.settleLocked()
}

// Lane is the number of the member's lane.
func (t *Place) Lane() int { return t.of.index }

// Needs is the memory that the member needs.
func (t *Place) Needs() lane.Model { return t.model }

// Waiting is how many members wait for their turn.
func (s *Lanes) Waiting() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lanes {
		l.mu.Lock()
		for _, t := range l.members {
			if t.waits {
				n++
			}
		}
		l.mu.Unlock()
	}
	return n
}

// Terms are the terms of the members.
func (s *Lanes) Terms() *lane.Terms { return s.terms.Load() }
