// Package pair is the policy of one instance of an inference function. It
// decides which of its processes serves, which stands by as the shadow, and how
// one takes over from the other (paper 3.2.4). It is pure: its inputs are
// events, its outputs are commands and desired processes. The manager carries
// them out.
//
// A take-over, for any cause:
//
//	share or model changed            active died
//	        │                              │
//	        v                              v
//	 shadow (loaded) ──role serve──> next (linking, warming up)
//	                                       │ ready and attached
//	                                       v
//	                   SetEpoch(next); next becomes active; the old one drains
//	                                       │
//	                                       v
//	                              a new shadow is started
//
// The active process serves until the epoch moves, so a change costs the stream
// one hand-over of the ring and nothing else. A move to another device is such a
// change, too. With in-place changes, the policy sets the share of the active
// process and no swap takes place, except for a new model. Such a change is a new
// quota, or a move of the process to other multiprocessors.
//
// A device that fails ends all processes that had touched it; the shadow had
// not:
//
//	Lost: active, ready ──role kill──> gone     shadow ──role serve──> next
//
// If no process serves, the next process is Early (partial warm-up) if it can
// be. It becomes ready with a part of its batch sizes, and is whole (has all of
// them) only later. If it dies before it is whole, its successor is not Early.
// A model that never becomes whole therefore does not serve with a part of its
// batch sizes again and again.
//
// A process on a GPU may answer wrongly at its share. It finds that out before it is
// ready. If another process serves, it continues until the pair gets another share.
// If none serves, the next process has the whole device, and serves meanwhile:
//
//	Wrong: next (30 %) ──> gone     next (100 %) ──ready──> active     shadow ──> next (another share)
package pair

import (
	"slices"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
)

// Run is what a process runs: a model on a device. It is fixed for the life of the process.
type Run struct {
	Card   *models.Card
	Device string // of control.Desired.Devices
}

// Process is one generation of an instance, as desired and as observed.
type Process struct {
	Run
	Generation   uint32
	Role         control.Role
	SharePercent float64

	State    control.State
	Attached bool // it has its shared memory
	Reason   string
	// Early means that it should become ready as soon as it can serve at all.
	// It is set with Serve.
	Early bool

	whole     bool // it has all that it will have
	reclaimed bool
	excused   bool // do not blame its model for its end
}

// Kind names a command.
type Kind uint8

// SetEpoch gives the ring to Generation at the next batch boundary. Reclaim
// takes the ring from a Generation that is gone, and fails what it had started.
// Rejected reports that the model of Generation could not start, and that the
// previous model stays. Promoted reports that a take-over was ordered, Replaced
// that it brought a new model.
const (
	SetEpoch Kind = iota + 1
	Reclaim
	Rejected
	Promoted
	Replaced
)

// Command is an action or a report for the manager.
type Command struct {
	Kind       Kind
	Generation uint32
	Reason     string
}

// Pair holds the processes of one instance. It is not safe for concurrent use.
type Pair struct {
	// InPlace writes new shares to the active process instead of swapping.
	// InPlace, OnDemand and Restart may change at any time.
	InPlace bool
	// OnDemand keeps no shadow standing by. The next process is started when a
	// change or a death needs it, and takes over like a shadow.
	OnDemand bool
	// Restart keeps no shadow: a change stops the process and starts another.
	// It is the baseline for swaps.
	Restart bool

	run      Run
	proven   Run          // the last one that served
	doubted  *models.Card // a process of it died early, before it was whole
	target   float64
	wrong    float64 // a share at which the model answers wrongly; 0: none is known
	removing bool
	// replacing is set from Replace or Move until a process with the desired run is
	// promoted, or given up.
	replacing bool
	stopped   bool // the active process was stopped for a change (Restart)
	held      bool // no process may serve
	renewing  bool // the active process must give way to its shadow

	processes            []*Process // by generation
	active, next, shadow *Process
	last                 uint32
	out                  []Command
}

// New returns an instance that should serve card at sharePercent. Move sets its device.
func New(card *models.Card, sharePercent float64) *Pair {
	return &Pair{run: Run{Card: card}, target: sharePercent}
}

// StartAfter sets the last generation that is in use.
func (p *Pair) StartAfter(generation uint32) { p.last = generation }

// Last is the generation of the newest process.
func (p *Pair) Last() uint32 { return p.last }

// Card is the desired model.
func (p *Pair) Card() *models.Card { return p.run.Card }

// Device is the device that the instance should run on.
func (p *Pair) Device() string { return p.run.Device }

// Share is the desired share, in percent.
func (p *Pair) Share() float64 { return p.target }

// Active is the process that the epoch names, nil if there is none.
func (p *Pair) Active() *Process { return p.active }

// Shadow is the process that stands by, nil if there is none.
func (p *Pair) Shadow() *Process { return p.shadow }

// Changing reports whether a take-over is in progress.
func (p *Pair) Changing() bool { return p.next != nil }

// Processes are all desired processes, by generation. The pair owns the slice.
func (p *Pair) Processes() []*Process { return p.processes }

// Uses reports whether a run is desired, or a process has it.
func (p *Pair) Uses(run Run) bool {
	return run == p.run || slices.ContainsFunc(p.processes, func(q *Process) bool { return q.Run == run })
}

// On reports whether a device is the desired one, or a process is there.
func (p *Pair) On(device string) bool {
	return device == p.run.Device || slices.ContainsFunc(p.processes, func(q *Process) bool { return q.Device == device })
}

// Process returns the process of a generation, nil if it is not (or no longer)
// desired.
func (p *Pair) Process(generation uint32) *Process {
	for _, q := range p.processes {
		if q.Generation == generation {
			return q
		}
	}
	return nil
}

// SetShare sets the desired share.
func (p *Pair) SetShare(percent float64) { p.target = percent }

// Replace sets the desired model. The previous model continues until the new
// one is ready, and permanently if it never is.
func (p *Pair) Replace(card *models.Card) { p.run.Card, p.replacing = card, true }

// Move sets the desired device. Like with a new model, the process on the previous device continues until one
// on the new device is ready, and permanently if none ever is.
func (p *Pair) Move(device string) {
	p.run.Device, p.wrong = device, 0
	p.replacing = p.replacing || p.active != nil
}

// Leave kills all processes on a device that failed permanently. None is to blame. After Move the instance stays on its
// new device, even if its first process there fails.
func (p *Pair) Leave(device string) {
	if p.proven.Device == device {
		p.proven.Device = p.run.Device
	}
	for _, q := range p.processes {
		if q.Device == device {
			q.excused = true
			p.end(q)
		}
	}
}

// Renew makes the active process give way to its shadow, though nothing else
// changes.
func (p *Pair) Renew() { p.renewing = p.active != nil }

// Remove makes no process desired any more; Removed reports when none is left.
func (p *Pair) Remove() { p.removing = true }

// Removed reports whether the last process is gone after Remove.
func (p *Pair) Removed() bool { return p.removing && len(p.processes) == 0 }

// Attach records that a generation has its shared memory.
func (p *Pair) Attach(generation uint32) {
	if q := p.Process(generation); q != nil {
		q.Attached = true
	}
}

// Observe records a process's state. For an ended process it calls Gone.
func (p *Pair) Observe(generation uint32, state control.State, reason string) {
	q := p.Process(generation)
	if q == nil {
		return
	}
	q.State, q.Reason = state, reason
	if state.Ended() {
		p.Gone(generation, reason)
	}
}

// Whole records that a process has all that it will have.
func (p *Pair) Whole(generation uint32) {
	q := p.Process(generation)
	if q == nil || q.whole {
		return
	}
	q.whole = true
	if q.Card == p.doubted {
		p.doubted = nil
	}
}

// Gone records that a process ended, or can no longer be trusted. What it held
// is reclaimed, and another process takes over.
func (p *Pair) Gone(generation uint32, reason string) {
	q := p.Process(generation)
	if q == nil {
		return
	}
	p.drop(q)
	p.reclaim(q, reason)
	// If a model's process dies before the model has served, the pair goes back
	// to a model that has, unless the fault is not its own.
	onTheWay := q == p.next || q == p.shadow
	if onTheWay && q.Run == p.run && !q.excused {
		p.giveUp(q, reason)
	}
	p.doubt(q)
	p.unseat(q)
}

// doubt records the model of a process that served and died before it was
// whole, unless the fault was not its own.
func (p *Pair) doubt(q *Process) {
	if q == p.active && q.Early && !q.whole && !q.excused {
		p.doubted = q.Card
	}
}

// Died is Gone for the active process. It remains desired, draining, until its
// end is observed: the cause of its end is not known yet.
func (p *Pair) Died(generation uint32, reason string) {
	if q := p.Process(generation); q != nil && q == p.active {
		q.Role = control.Drain
		p.doubt(q)
		p.unseat(q)
		p.reclaim(q, reason)
	}
}

// Excuse records that a generation ends through no fault of its own: the next
// process tries its model again. Lost gets the generation to blame.
func (p *Pair) Excuse(generation uint32) {
	if q := p.Process(generation); q != nil {
		q.excused = true
	}
}

// Wrong records that a generation ends because it answers wrongly at its share, and not
// on the whole device. Call it after SetShare with another share, if there is one. If
// there is none and another process serves, that one continues, and a new model is given
// up.
func (p *Pair) Wrong(generation uint32) {
	if q := p.Process(generation); q != nil && q.SharePercent < wholeDevice {
		p.wrong = q.SharePercent
		q.excused = p.target != p.wrong || p.active == nil || p.active == q
	}
}

// wholeDevice is the share of a process that may use all of the device.
const wholeDevice = 100

// Excused reports whether Excuse was called for the process.
func (q *Process) Excused() bool { return q.excused }

// reclaim emits Reclaim once for what a process held.
func (p *Pair) reclaim(q *Process, reason string) {
	if !q.reclaimed {
		q.reclaimed = true
		p.emit(Reclaim, q, reason)
	}
}

// Lost records that a device failed under every process that had touched it.
// Ready, active and draining processes would notice only at their next use of
// it. They are killed, and their rings reclaimed when they are gone. The shadow
// is woken at once. A linking process is left alone: it notices by itself, or
// was woken after the fault. culprit is the generation to blame, 0 if it is
// none of these. Its model is given up if it has not served yet and another
// model has.
func (p *Pair) Lost(device string, culprit uint32, reason string) {
	if q := p.Process(culprit); q != nil && q == p.next && q.Run == p.run {
		p.giveUp(q, reason)
	}
	for _, q := range p.processes {
		switch q.State {
		case control.Ready, control.Active, control.Draining:
			if q.Device == device {
				p.end(q)
			}
		}
	}
}

// Hold prevents all processes from serving, or allows it again. It kills a
// serving process; a shadow stands by.
func (p *Pair) Hold(held bool) {
	p.held = held
	if !held {
		return
	}
	for _, q := range []*Process{p.active, p.next} {
		if q != nil {
			p.end(q)
		}
	}
}

// Held reports whether Hold prevents all processes from serving.
func (p *Pair) Held() bool { return p.held }

// end kills a process and removes it from its place.
func (p *Pair) end(q *Process) {
	q.Role = control.Kill
	p.unseat(q)
}

func (p *Pair) unseat(q *Process) {
	switch q {
	case p.active:
		p.active = nil
	case p.next:
		p.next = nil
	case p.shadow:
		p.shadow = nil
	}
}

// giveUp returns to the model and the device that have served, if q's have not.
func (p *Pair) giveUp(q *Process, reason string) {
	if p.proven.Card != nil && q.Run != p.proven {
		p.run, p.replacing = p.proven, false
		p.emit(Rejected, q, reason)
	}
}

// Kill ends a process that does not do its work. Its death is then observed
// like any other.
func (p *Pair) Kill(generation uint32) {
	if q := p.Process(generation); q != nil {
		q.Role = control.Kill
	}
}

// Step returns the commands to carry out now; the slice is valid until the next
// call. Processes includes their effect at once.
func (p *Pair) Step() []Command {
	if p.removing {
		for _, q := range p.processes {
			if q.Role != control.Kill {
				q.Role = control.Drain
			}
		}
		p.active, p.next, p.shadow = nil, nil, nil
		return p.flush()
	}
	if p.held {
		switch {
		case p.OnDemand:
			p.dismiss()
		case p.shadow == nil && !p.Restart:
			p.shadow = p.spawn()
		}
		return p.flush()
	}
	if p.next != nil && p.next.Attached && p.next.State == control.Ready {
		p.promote()
	}
	if p.active == nil && p.next == nil {
		p.wake()
	}
	switch {
	case p.active == nil || p.next != nil:
	case p.Restart:
		p.restart()
	default:
		p.change()
	}
	return p.flush()
}

// promote moves the epoch to next.
func (p *Pair) promote() {
	old := p.active
	p.active, p.next, p.renewing = p.next, nil, false
	p.emit(SetEpoch, p.active, "")
	if old != nil {
		old.Role = control.Drain
	}
	if old != nil || p.stopped {
		p.emit(Promoted, p.active, "")
	}
	p.stopped = false
	if p.active.SharePercent == p.target {
		p.wrong = 0
	}
	if p.replacing && p.active.Run == p.run {
		p.replacing = false
		p.emit(Replaced, p.active, "")
	}
	p.proven = p.active.Run
}

// wake makes the shadow the next process to serve. If the shadow does not fit,
// it takes a new process.
func (p *Pair) wake() {
	if p.shadow != nil && p.shadow.Run != p.run {
		p.dismiss()
	}
	q := p.shadow
	if q == nil {
		q = p.spawn()
	}
	// If an older model could serve instead, a new model must be whole before
	// it serves.
	q.Early = p.active == nil && q.Card != p.doubted && (p.proven.Card == nil || q.Card == p.proven.Card)
	q.Role, q.SharePercent = control.Serve, p.target
	if p.wrong != 0 && p.active == nil && !p.stopped {
		q.SharePercent = wholeDevice
	}
	p.shadow, p.next = nil, q
}

// wantsShare reports whether the active process needs another share that is not known to
// be wrong.
func (p *Pair) wantsShare() bool { return p.active.SharePercent != p.target && p.target != p.wrong }

// change introduces a new share, model or device next to a serving process. Unless
// OnDemand, it keeps a shadow standing by.
func (p *Pair) change() {
	stale := p.active.Run != p.run
	if p.InPlace && !stale {
		p.active.SharePercent = p.target
	}
	changes := stale || p.renewing || p.wantsShare()

	if p.shadow != nil && (p.shadow.Run != p.run || p.OnDemand && !changes) {
		p.dismiss()
	}
	// The first shadow waits until the active process serves: they would only
	// slow each other down.
	standsBy := !p.OnDemand && p.active.State == control.Active
	if p.shadow == nil && (standsBy || stale || p.OnDemand && changes) {
		p.shadow = p.spawn()
	}
	if changes && p.shadow != nil && p.shadow.State == control.Loaded && p.shadow.Attached {
		p.wake()
	}
}

// dismiss ends the shadow, if there is one.
func (p *Pair) dismiss() {
	if p.shadow != nil {
		p.shadow.Role = control.Kill
		p.shadow = nil
	}
}

// restart stops the active process if it differs from what is desired. The next
// one is started when it is gone.
func (p *Pair) restart() {
	stale := p.active.Run != p.run
	if p.active.Role != control.Serve || !stale && (p.InPlace || !p.wantsShare()) {
		return
	}
	p.active.Role = control.Drain
	p.stopped = true
}

func (p *Pair) spawn() *Process {
	p.last++
	q := &Process{Generation: p.last, Role: control.Shadow, SharePercent: p.target, Run: p.run, State: control.Starting}
	p.processes = append(p.processes, q)
	return q
}

func (p *Pair) drop(q *Process) {
	for i, r := range p.processes {
		if r == q {
			p.processes = append(p.processes[:i], p.processes[i+1:]...)
			return
		}
	}
}

func (p *Pair) emit(kind Kind, q *Process, reason string) {
	p.out = append(p.out, Command{Kind: kind, Generation: q.Generation, Reason: reason})
}

func (p *Pair) flush() []Command {
	out := p.out
	p.out = nil
	return out
}
