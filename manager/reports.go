package manager

import (
	"errors"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// batching is what libml has reported on an instance's batches. The control loop owns it.
type batching struct {
	Fit   control.Fit
	Limit float64 // of the batch size
	// The total of hand-overs that a generation has reported last.
	generation uint32
	handovers  uint64
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
	b := &in.batching
	b.Limit = r.Limit
	if generation != b.generation {
		b.generation, b.handovers = generation, 0
	}
	in.noteUse(generation, &r)
	if in.growing() {
		r.Fit = control.FitUnknown
	}
	if r.Fit != b.Fit {
		b.Fit = r.Fit
		in.log.Debug().Str("fit", string(r.Fit)).Float64("limit", r.Limit).Msg("batching")
		in.m.tuneEarly(in)
	}
	in.noteHandovers(&r)
	in.residency.note(generation, r.Residency)
	in.warmedUp = warmedUp{active.Card, r.Measurements, r.Compared}
}

// noteHandovers counts the new hand-overs in a process's report. A process's first
// hand-over gave it the ring; each later one was a move.
func (in *instance) noteHandovers(r *control.Report) {
	counted := &in.batching.handovers
	if r.Handovers <= *counted {
		return
	}
	moves := r.Handovers - max(1, *counted)
	in.f.swaps.count += moves
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
	in.f.swaps.addIdle(time.Duration(r.IdleNanos))
	in.m.metrics.swapIdle.WithLabelValues(in.f.name, string(mechanism)).Observe(seconds(r.IdleNanos))
}
