package serve

import (
	"cmp"
	"sync"

	"github.com/penstock/penstock/control"
)

// notices sends the process's notices to the orchestrator, one after the other. Any goroutine may
// use it.
type notices struct {
	child *control.Child

	mu       sync.Mutex     // guards what follows
	state    control.State  // as last sent
	reason   string         // to send if a notice has none
	complete control.Notice // all notices so far, merged
}

// send sends a notice. A notice without a state gets the last state.
func (s *notices) send(n control.Notice) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if n.State == "" {
		n.State = s.state
	}
	if n.Reason == "" && !n.State.Ended() {
		n.Reason = s.reason
	}
	s.state = n.State
	s.mergeLocked(n)
	s.child.Notify(n)
}

// keepReason sends a notice and adds the reason to it and to every later notice.
func (s *notices) keepReason(reason string, n control.Notice) {
	s.mu.Lock()
	s.reason = reason
	s.mu.Unlock()
	s.send(n)
}

// clearReason takes back the reason of keepReason, if there is one.
func (s *notices) clearReason() {
	s.mu.Lock()
	kept := s.reason != ""
	s.reason = ""
	s.mu.Unlock()
	if kept {
		s.send(control.Notice{})
	}
}

// sendComplete sends the complete state to an orchestrator that has taken over.
func (s *notices) sendComplete(woken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	n := s.complete
	n.Woken = woken
	if n.State != "" { // otherwise the process will soon report Loaded
		s.child.Notify(n)
	}
}

func (s *notices) mergeLocked(n control.Notice) {
	merged := &s.complete
	merged.State, merged.Reason = n.State, n.Reason
	merged.DeviceLost, merged.Blameless, merged.WrongAnswers = n.DeviceLost, n.Blameless, n.WrongAnswers
	merged.PersistentBytes = cmp.Or(n.PersistentBytes, merged.PersistentBytes)
	merged.EphemeralBytes = cmp.Or(n.EphemeralBytes, merged.EphemeralBytes)
	merged.WarmupMillis = cmp.Or(n.WarmupMillis, merged.WarmupMillis)
	if len(n.Batches) > 0 {
		merged.Batches, merged.WarmingUp = n.Batches, n.WarmingUp
	}
	if n.SMs != 0 {
		merged.SMs, merged.SMGroups, merged.InfeasibleGroups = n.SMs, n.SMGroups, n.InfeasibleGroups
	}
}
