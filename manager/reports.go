package manager

import (
	"errors"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// handovers is the total of hand-overs that a generation has reported last. The control loop owns it.
type handovers struct {
	generation uint32
	count      uint64
}

// readReports reads a process's reports until its connection closes.
func (in *instance) readReports(conn *control.AttachConn, generation uint32) {
	defer conn.Close()
	for {
		r, err := conn.ReadReport()
		if errors.Is(err, control.ErrBadMessage) || errors.Is(err, control.ErrTooLong) {
			// The process lives and sends invalid reports. Its memory counts as free only
			// when it is dead.
			in.m.post(func() { in.kill(generation, err) })
			continue
		}
		if err != nil {
			// The kernel closes a dead process's sockets at once, so this is the first sign
			// of its death.
			in.m.post(func() { in.lost(generation) })
			return
		}
		in.m.post(func() { in.report(generation, r) })
	}
}

// report applies libml's report on its batching.
func (in *instance) report(generation uint32, r control.Report) {
	active := in.pair.Active()
	if active == nil || active.Generation != generation {
		return
	}
	if generation != in.handovers.generation {
		in.handovers = handovers{generation: generation}
	}
	r.Generation = generation
	in.sharing.Report(&r)
	in.noteHandovers(&r)
	in.residency.note(generation, r.Residency)
	in.warmedUp = warmedUp{active.Card, r.Measurements, r.Compared}
}

// noteHandovers counts the new hand-overs in a process's report. A process's first
// hand-over gave it the ring; each later one was a move.
func (in *instance) noteHandovers(r *control.Report) {
	counted := &in.handovers.count
	if r.Handovers <= *counted {
		return
	}
	moves := r.Handovers - max(1, *counted)
	in.f.swaps.Count += moves
	*counted = r.Handovers
	if r.IdleNanos < 0 {
		return
	}
	// The idle time is that of the last hand-over.
	mechanism := configs.ChangeShadow
	switch {
	case moves > 0:
		mechanism = configs.ChangePartition
	case in.pair.Restart:
		mechanism = configs.ChangeRestart
	}
	in.f.swaps.AddIdle(time.Duration(r.IdleNanos))
	in.m.metrics.HandedOver(in.f.name, string(mechanism), time.Duration(r.IdleNanos))
}
