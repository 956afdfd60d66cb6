package loop

import (
	"math"
	"time"

	"github.com/penstock/penstock/libml/conductor"
	"github.com/penstock/penstock/libml/residency"
	"github.com/penstock/penstock/shm"
)

// conduct reports the loop's work to the conductor, and carries out its order. No batch is in
// flight. While the model is not in memory, the loop watches for the first packets of requests. A
// request that is not complete after half the objective no longer keeps the model in memory. The error
// wraps device.ErrLost.
func (l *Loop) conduct() error {
	r := l.Residence
	if r == nil {
		return nil
	}
	now := shm.Now()
	w := conductor.Work{Waiting: len(l.Queue.Pending), Deadline: l.reachable(now, r.Loading())}
	if l.Ring.Arrived() {
		w.Arrived, w.ArriveBy, w.ArriveDue = true, now+int64(l.SLO/2), now+int64(l.SLO)
	}
	defer func() { l.Ring.Watch(!r.Resident()) }()
	order, ok := r.Observe(now, w)
	if !ok {
		return nil
	}
	l.Gate.StopWaiting() // this takes time
	if order == residency.Load {
		return l.Process.LoadModel()
	}
	return l.Process.EvictModel()
}

// reachable returns the earliest deadline that a load from now on can keep. If it can keep none, it
// returns the earliest.
func (l *Loop) reachable(now int64, load time.Duration) int64 {
	need := int64(load + l.SmallestBatch())
	reachable, earliest := int64(math.MaxInt64), int64(math.MaxInt64)
	for i := range l.Queue.Pending {
		deadline := l.Queue.Pending[i].Deadline
		earliest = min(earliest, deadline)
		if deadline-need >= now {
			reachable = min(reachable, deadline)
		}
	}
	if reachable < math.MaxInt64 {
		return reachable
	}
	return earliest
}

// SmallestBatch is the mean time of a batch of the smallest size.
func (l *Loop) SmallestBatch() time.Duration { return l.Queue.Typical(l.Queue.Rule.Pad(1)) }
