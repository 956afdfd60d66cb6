package manager

import (
	"slices"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/manager/policy/fault"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/shm"
)

// A GPU under MPS fails under all its users at once: one model's illegal access
// ends them all. Then
//
//  1. a process says that its device is lost, and ends (libml); the orchestrator
//     passes it on
//  2. every other process that had touched the device is killed, since an idle one
//     would find out only with its next batch and the MPS server waits for it to
//     go; all shadows, which had not, are woken
//  3. what a dead process had started is answered `failed` (reply.go), what it had
//     not is the next one's
//  4. package fault says whether a function is held back for it
//
// Where MPS does not run, each process has the GPU for itself: its fault is its own
// death and nothing more.

// faults is what is known of the device's failures. It belongs to the control loop.
type faults struct {
	count  uint64
	last   time.Duration // without answers, the last time
	guard  fault.Guard
	struck map[victim]time.Time // processes of the last fault, and until when their words are of it
	outage *outage
}

// victim is a process that a fault struck.
type victim struct {
	place
	generation uint32
}

// outage is a time without answers: it ends when every instance that had served
// answers again, or could.
type outage struct {
	from   int64 // the last good answer before, shm.Now
	struck int64 // when the fault was heard of
	until  int64 // the latest first good answer
	waits  map[*instance]bool
	blamed string
}

// A process that was linking when the device failed may say so for this long after
// it, unless it got ready meanwhile; then what it says is of another fault.
const lingers = 500 * time.Millisecond

// lostDevices finds who says, for the first time and not of a fault that is known,
// that the device is lost; in the order of o, which is the orchestrator's.
func (m *Manager) lostDevices(o *control.Observed) (lost []control.ObservedProcess) {
	if o.Mechanism != mechanismMPS {
		return nil
	}
	now := time.Now()
	for _, p := range o.Processes {
		v := victim{place{p.IF, p.Instance}, p.Generation}
		until, struck := m.faults.struck[v]
		if !until.IsZero() && (p.State == control.Ready || p.State == control.Active) {
			delete(m.faults.struck, v)
		}
		if p.DeviceLost && !(struck && (until.IsZero() || now.Before(until))) {
			lost = append(lost, p)
		}
	}
	return lost
}

// deviceFailed is the whole way above. lost are those who said so, one at least.
func (m *Manager) deviceFailed(o *control.Observed, lost []control.ObservedProcess) {
	x := &m.faults
	x.count++
	now := time.Now()
	x.struck = map[victim]time.Time{}
	for _, p := range o.Processes {
		v := victim{place{p.IF, p.Instance}, p.Generation}
		switch p.State {
		case control.Starting, control.Loaded: // it had not touched the device
		case control.Linking: // had it? It may have been woken for this very fault.
			x.struck[v] = now.Add(lingers)
		default:
			x.struck[v] = time.Time{}
		}
	}
	var names, suspects []string
	culprits := map[place]uint32{}
	for _, p := range lost {
		names = append(names, p.IF)
		x.struck[victim{place{p.IF, p.Instance}, p.Generation}] = time.Time{}
		if !p.Blameless {
			suspects = append(suspects, p.IF)
			culprits[place{p.IF, p.Instance}] = p.Generation
		}
	}
	var verdict fault.Verdict
	if len(suspects) > 0 {
		verdict = x.guard.Fault(now.Sub(m.started), suspects)
	}
	m.log.Error().Strs("said_by", names).Str("blamed", verdict.Blamed).Str("reason", lost[0].Reason).
		Msg("the device failed under all inference functions; waking every shadow")

	if x.outage == nil {
		x.outage = &outage{from: m.lastGood(), waits: map[*instance]bool{}}
	}
	x.outage.struck, x.outage.blamed = shm.Now(), verdict.Blamed
	m.eachInstance(func(in *instance) {
		if in.promoted != 0 && !in.f.removing && !in.pair.Held() {
			x.outage.waits[in] = true
		}
		culprit := uint32(0)
		if in.f.name == verdict.Blamed {
			culprit = culprits[place{in.f.name, in.index}]
		}
		reason := "the device failed under it: " + lost[0].Reason
		in.pair.Lost(culprit, reason)
		for generation := range in.unheard {
			in.pair.Gone(generation, reason)
		}
		clear(in.unheard)
	})
	if f := m.function(verdict.Blamed); f != nil {
		f.fails("the device failed under it: " + lost[0].Reason)
		if verdict.Held > 0 {
			f.hold(verdict.Held)
		}
	}
	// Whoever is killed for it may be said to have lost the device by it.
	m.eachInstance(func(in *instance) {
		for _, q := range in.pair.Processes() {
			if q.Role == control.Kill {
				x.struck[victim{place{in.f.name, in.index}, q.Generation}] = time.Time{}
			}
		}
	})
}

// hearFault is how long the orchestrator has to say that a process which is gone had
// lost its device. The process said so before it ended, so its word is on the way;
// a shadow that was woken before that word is taken for one of the lost.
const hearFault = 20 * time.Millisecond

// listen waits for the orchestrator's word on a process that served and is gone.
func (in *instance) listen(generation uint32) {
	in.unheard[generation] = true
	time.AfterFunc(hearFault, func() {
		in.m.post(func() { in.heard(generation) })
	})
}

// heard ends listen: the process died by itself, as far as anybody says. It stays
// desired until its end is observed.
func (in *instance) heard(generation uint32) {
	if in.unheard[generation] {
		delete(in.unheard, generation)
		in.pair.Died(generation, "process ended")
	}
}

// A process that ends while it links may have lost the device, or never had it: the
// orchestrator asks MPS, which takes it verdictPatience at most. Until then the
// process stays desired, so that it is heard of.
const verdictPatience = 300 * time.Millisecond

// doubtful reports whether it is too early to believe how a process ended.
func (in *instance) doubtful(q *pair.Process, o *control.ObservedProcess, now time.Time) bool {
	if !in.m.device.mps || q.State != control.Linking || o.State != control.Failed || o.DeviceLost || len(o.GroupsUnfit) > 0 {
		return false
	}
	until, known := in.doubts[q.Generation]
	if !known {
		in.doubts[q.Generation] = now.Add(verdictPatience)
	}
	return !known || now.Before(until)
}

// lastGood is when the node last answered well, as far as that says since when it
// does not: what nobody asked for is not missed.
func (m *Manager) lastGood() int64 {
	now := shm.Now()
	good, oldest := int64(0), now
	m.eachInstance(func(in *instance) {
		good = max(good, in.lastGood.Load())
		if t := in.f.oldest(in); t != 0 {
			oldest = min(oldest, now-int64(runclock.Now()-t))
		}
	})
	return max(good, oldest)
}

// heal looks whether everybody answers again, and lets those go whose time is up.
func (m *Manager) heal() {
	x := &m.faults
	for _, name := range x.guard.Release(time.Since(m.started)) {
		if f := m.function(name); f != nil {
			f.letGo()
		}
	}
	out := x.outage
	if out == nil {
		return
	}
	for in := range out.waits {
		q := in.pair.Active()
		good := in.firstGood.Load()
		switch {
		case !slices.Contains(m.functions, in.f), in.f.removing, in.pair.Held():
			// Nobody answers for it, and not for this.
		case q == nil || in.promoted <= out.struck:
			continue
		case good != 0:
			out.until = max(out.until, good)
		case q.State == control.Active && in.f.oldest(in) == 0:
			out.until = max(out.until, in.promoted) // it could, and nobody asks
		default:
			continue
		}
		delete(out.waits, in)
	}
	if len(out.waits) > 0 {
		return
	}
	x.last = time.Duration(max(0, out.until-out.from))
	x.outage = nil
	m.log.Warn().Dur("without_answers_ms", x.last).Str("blamed", out.blamed).Uint64("faults", x.count).
		Msg("every inference function answers again after the device's fault")
}

// hold refuses the function's requests and lets no process of it serve.
func (f *function) hold(d time.Duration) {
	f.held = "held back for " + d.String() + ": the device failed under it too often"
	f.log.Error().Dur("for_ms", d).Msg("function held back: it was the first to lose the device, again; its requests are refused, the others go on")
	f.refuse()
	for _, in := range f.instances {
		in.pair.Hold(true)
	}
}

// letGo ends hold.
func (f *function) letGo() {
	if f.held == "" {
		return
	}
	f.held = ""
	f.log.Warn().Msg("function is tried again after it was held back")
	if !f.removing {
		f.resume()
	}
	for _, in := range f.instances {
		in.pair.Hold(false)
	}
}

// forgive forgets what a function's old model did.
func (f *function) forgive() {
	f.m.faults.guard.Forget(f.name)
	f.letGo()
}

// status is how often the device failed.
func (x *faults) status() control.FaultStatus {
	return control.FaultStatus{Count: x.count, LastMillis: float64(x.last) / float64(time.Millisecond)}
}
