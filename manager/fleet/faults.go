package fleet

import (
	"slices"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/fault"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/pair"
)

// Under MPS a GPU fails for all its users at once: an illegal memory access by one
// model ends all processes. The manager then takes these steps:
//
//   1. A process reports that its device is lost, and ends (libml). The orchestrator
//      forwards the report.
//   2. The manager kills every other process that had touched the device: an idle one
//      would notice only with its next batch, and the MPS server waits for it to exit.
//      It wakes all shadows, which had not touched the device.
//   3. The reply thread answers `failed` for requests that a dead process had started
//      (reply.go). The next process gets the others.
//   4. Package fault decides whether a function is held back.
//
// Without MPS each process uses the GPU by itself, and a fault ends only that
// process.

// faults is what the manager knows of a device's failures. The control loop owns
// it.
type faults struct {
	count  uint64
	guard  fault.Guard
	struck map[victim]time.Time // processes of the last fault; reports before that time belong to it, zero: all do
}

// victim is a process that a fault struck.
type victim struct {
	gslice.ID
	generation uint32
}

// A process that was linking when the device failed may report that fault for this
// long afterwards. If it became ready in between, its report is about another fault.
const lateReportTimeout = 500 * time.Millisecond

// lost returns the processes that newly report a lost device, except for
// reports of a known fault. They are in the order of observed.
func (x *faults) lost(observed []control.ObservedProcess) (lost []control.ObservedProcess) {
	now := time.Now()
	for _, p := range observed {
		v := victim{gslice.ID{IF: p.IF, Instance: p.Instance}, p.Generation}
		until, struck := x.struck[v]
		if !until.IsZero() && (p.State == control.Ready || p.State == control.Active) {
			delete(x.struck, v)
		}
		if p.DeviceLost && !(struck && (until.IsZero() || now.Before(until))) {
			lost = append(lost, p)
		}
	}
	return lost
}

// noteLost carries out the steps above if a process of the device newly reports that it is lost.
func (d *device) noteLost(all []control.ObservedProcess) {
	observed := slices.DeleteFunc(slices.Clone(all), func(p control.ObservedProcess) bool { return p.Device != d.Device.Name })
	x := &d.faults
	lost := x.lost(observed)
	if len(lost) == 0 {
		return
	}
	x.count++
	now := time.Now()
	x.strike(observed, lost, now)

	var names, suspects []string
	culprits := map[gslice.ID]uint32{}
	for _, p := range lost {
		names = append(names, p.IF)
		if !p.Blameless {
			suspects = append(suspects, p.IF)
			culprits[gslice.ID{IF: p.IF, Instance: p.Instance}] = p.Generation
		}
	}
	var verdict fault.Verdict
	if len(suspects) > 0 {
		verdict = x.guard.Fault(now.Sub(d.started), suspects)
	}
	d.log.Error().Strs("said_by", names).Str("blamed", verdict.Blamed).Str("reason", lost[0].Reason).
		Msg("device failed for all inference functions; waking every shadow")

	reason := "the device failed under it: " + lost[0].Reason
	d.eachInstance(func(in *instance) {
		culprit := uint32(0)
		if in.f.name == verdict.Blamed {
			culprit = culprits[in.id]
		}
		in.pair.Lost(d.Device.Name, culprit, reason)
		for generation, p := range in.processes {
			if q := in.pair.Process(generation); p.unreported && q != nil && q.Device == d.Device.Name {
				in.pair.Gone(generation, reason)
				p.unreported = false
			}
		}
	})
	if f := d.functions.find(verdict.Blamed); f != nil {
		f.trial.fails(reason)
		if verdict.Held > 0 {
			f.hold(verdict.Held)
		}
	}
	// The kill may make a process report a lost device; do not count that as another
	// fault.
	d.eachInstance(func(in *instance) {
		for _, q := range in.pair.Processes() {
			if q.Role == control.Kill {
				x.struck[victim{in.id, q.Generation}] = time.Time{}
			}
		}
	})
}

// strike records the processes that a fault struck. lost reported it.
func (x *faults) strike(observed, lost []control.ObservedProcess, now time.Time) {
	x.struck = map[victim]time.Time{}
	for _, p := range observed {
		v := victim{gslice.ID{IF: p.IF, Instance: p.Instance}, p.Generation}
		switch p.State {
		case control.Starting, control.Loaded: // it had not touched the device
		case control.Linking: // unknown: this very fault may have woken it
			x.struck[v] = now.Add(lateReportTimeout)
		default:
			x.struck[v] = time.Time{}
		}
	}
	for _, p := range lost {
		x.struck[victim{gslice.ID{IF: p.IF, Instance: p.Instance}, p.Generation}] = time.Time{}
	}
}

// faultReportTimeout is how long the orchestrator has to report that an ended process had
// lost its device. The process reported it before it ended, so the message is on its
// way. A shadow that wakes before the message arrives would count as one of the
// lost.
const faultReportTimeout = 20 * time.Millisecond

// awaitReport begins to wait for the orchestrator's report on a process that served and has
// ended.
func (in *instance) awaitReport(generation uint32) {
	in.processes.of(generation).unreported = true
	time.AfterFunc(faultReportTimeout, func() {
		in.fleet.loop.Post(func() { in.endAwait(generation) })
	})
}

// endAwait ends awaitReport: no report came, so the process ended by itself. It stays
// desired until the orchestrator has observed its end.
func (in *instance) endAwait(generation uint32) {
	if p := in.processes[generation]; p != nil && p.unreported {
		p.unreported = false
		in.pair.Died(generation, "process ended")
	}
}

// A process that ends while it links may have lost the device, or may never have had
// it. The orchestrator asks MPS, which takes at most verdictTimeout. Until then the
// process stays desired, so that the orchestrator still reports on it.
const verdictTimeout = 300 * time.Millisecond

// awaitsVerdict reports whether the cause of a process's end under MPS is still unknown.
func (p processes) awaitsVerdict(q *pair.Process, o *control.ObservedProcess, now time.Time) bool {
	if q.State != control.Linking || o.State != control.Failed || o.DeviceLost || o.WrongAnswers || len(o.InfeasibleGroups) > 0 {
		return false
	}
	known := p.of(q.Generation)
	if known.doubtUntil.IsZero() {
		known.doubtUntil = now.Add(verdictTimeout)
	}
	return now.Before(known.doubtUntil)
}

// heal releases the functions whose hold is over.
func (fl *Fleet) heal() {
	for _, d := range fl.devices {
		for _, name := range d.faults.guard.Release(time.Since(fl.started)) {
			if f := fl.functions.find(name); f != nil {
				f.release()
			}
		}
	}
}

// forgetFaults forgets a function's faults of all devices.
func (fl *Fleet) forgetFaults(name string) {
	for _, d := range fl.devices {
		d.faults.guard.Forget(name)
	}
}

// hold refuses the function's requests and lets no process of it serve.
func (f *function) hold(d time.Duration) {
	f.held = "held back for " + d.String() + ": it was the first to lose the device too often"
	f.log.Error().Dur("for_ms", d).Msg("function held back: it was the first to lose the device again; its requests are answered busy")
	f.applyHolds()
}

// release ends hold.
func (f *function) release() {
	if f.held == "" {
		return
	}
	f.held = ""
	f.log.Warn().Msg("function released after it was held back")
	f.applyHolds()
}
