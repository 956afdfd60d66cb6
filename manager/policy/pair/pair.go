// Package pair is the policy of one instance of an inference function: which of
// its processes serves, which stands by as the shadow, and how one takes over
// from the other (paper 3.2.4). It is pure: events go in, commands and desired
// processes come out; the manager carries them out.
//
// A take-over, whatever its cause:
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
// one hand-over of the ring and nothing else. With in-place changes (a quota that is
// written, other multiprocessors that the process moves to) the share of the active
// process is written and nobody swaps, except for a new model.
//
// A device that fails takes all with it who had touched it; the shadow had not:
//
//	Lost: active, ready ──role kill──> gone     shadow ──role serve──> next
//
// Where nobody serves, the next process is Early, as far as processes can be: ready with
// a part of its batch sizes, whole only later. One that dies before it is whole is
// followed by one that is not Early, so that a model that is never whole does not serve
// by halves for ever.
package pair

import (
	"fmt"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
)

// Process is one generation of an instance, as wished and as seen.
type Process struct {
	Generation   uint32
	Role         control.Role
	SharePercent float64
	Card         *models.Card

	State    control.State
	Attached bool // it has its shared memory
	Reason   string
	// Early: it is to be ready as soon as it can serve at all. It is set with Serve.
	Early bool

	whole     bool // it has all that it will have
	reclaimed bool
	excused   bool // its end does not speak against its model
}

// Kind names a command.
type Kind uint8

// SetEpoch gives the ring to Generation at the next batch boundary. Reclaim
// takes the ring from a Generation that is gone, and fails what it had started.
// Rejected says that the model of Generation could not be brought up and the one
// before it stays. Promoted says that a take-over was ordered; Replaced that it
// brought a new model.
const (
	SetEpoch Kind = iota + 1
	Reclaim
	Rejected
	Promoted
	Replaced
)

// Command is something for the manager to do or to say.
type Command struct {
	Kind       Kind
	Generation uint32
	Reason     string
}

// Pair is one instance's processes. It is not safe for concurrent use.
type Pair struct {
	// InPlace writes new shares to the active process instead of swapping. It and
	// Restart may change at any time.
	InPlace bool
	// Restart keeps no shadow: a change stops the process and starts another,
	// which is what a swap is compared with.
	Restart bool

	card     *models.Card
	proven   *models.Card // the last one that served
	doubted  *models.Card // one of it died early, before it was whole
	target   float64
	removing bool
	// replacing is set from Replace until a process with the card wanted is
	// promoted, or is given up.
	replacing bool
	stopped   bool // the active process was stopped for a change (Restart)
	held      bool // nobody shall serve
	renewing  bool // the active process shall give way to its shadow

	processes            []*Process // by generation
	active, next, shadow *Process
	last                 uint32
	out                  []Command
}

// New is an instance that shall serve card at sharePercent.
func New(card *models.Card, sharePercent float64) *Pair {
	return &Pair{card: card, target: sharePercent}
}

// StartAfter sets the last generation that is taken.
func (p *Pair) StartAfter(generation uint32) { p.last = generation }

// Last is the last generation that was given to a process.
func (p *Pair) Last() uint32 { return p.last }

// Card is the model wanted; Share the share wanted.
func (p *Pair) Card() *models.Card { return p.card }

// Share is the share wanted, in percent.
func (p *Pair) Share() float64 { return p.target }

// Active is the process that the epoch names, nil where there is none.
func (p *Pair) Active() *Process { return p.active }

// Shadow is the process that stands by, nil where there is none.
func (p *Pair) Shadow() *Process { return p.shadow }

// Changing reports whether a take-over is on its way.
func (p *Pair) Changing() bool { return p.next != nil }

// Processes are all that are desired, by generation. The slice is the pair's.
func (p *Pair) Processes() []*Process { return p.processes }

// Process finds a generation, nil where it is not (or no longer) desired.
func (p *Pair) Process(generation uint32) *Process {
	for _, q := range p.processes {
		if q.Generation == generation {
			return q
		}
	}
	return nil
}

// SetShare wants another share.
func (p *Pair) SetShare(percent float64) { p.target = percent }

// Replace wants another model; the one before goes on until the new one is
// ready, and for good if it never is.
func (p *Pair) Replace(card *models.Card) { p.card, p.replacing = card, true }

// Renew wants the active process to give way to its shadow, though nothing else
// changes.
func (p *Pair) Renew() { p.renewing = p.active != nil }

// Remove wants no process any more; Removed reports when there is none.
func (p *Pair) Remove() { p.removing = true }

// Removed reports whether the last process is gone after Remove.
func (p *Pair) Removed() bool { return p.removing && len(p.processes) == 0 }

// Attach notes that a generation has its shared memory.
func (p *Pair) Attach(generation uint32) {
	if q := p.Process(generation); q != nil {
		q.Attached = true
	}
}

// Observe notes a process's state. A process that ended is Gone.
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

// Whole notes that a process has all that it will have.
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

// Gone notes that a process ended, or can no longer be trusted: what it held is
// reclaimed and another takes over.
func (p *Pair) Gone(generation uint32, reason string) {
	q := p.Process(generation)
	if q == nil {
		return
	}
	p.drop(q)
	p.reclaim(q, reason)
	// A model that has not served yet and dies on the way there is given up
	// where there is one that has, unless the fault was another's.
	onTheWay := q == p.next || q == p.shadow
	if onTheWay && q.Card == p.card && !q.excused {
		p.giveUp(q, reason)
	}
	p.doubt(q)
	p.unseat(q)
}

// doubt notes a process that served and dies before it is whole, but for what is not
// its own fault.
func (p *Pair) doubt(q *Process) {
	if q == p.active && q.Early && !q.whole && !q.excused {
		p.doubted = q.Card
	}
}

// Died is Gone for the active process, which stays desired, draining, until its end
// is observed: how it ended is still to be heard.
func (p *Pair) Died(generation uint32, reason string) {
	if q := p.Process(generation); q != nil && q == p.active {
		q.Role = control.Drain
		p.doubt(q)
		p.unseat(q)
		p.reclaim(q, reason)
	}
}

// Excuse notes that a generation ends for what is not its own fault: its model is
// tried again with the next process. Whose fault it was, Lost has been told.
func (p *Pair) Excuse(generation uint32) {
	if q := p.Process(generation); q != nil {
		q.excused = true
	}
}

// Excused reports whether Excuse was told of the process.
func (q *Process) Excused() bool { return q.excused }

// reclaim says once that what a process held is free.
func (p *Pair) reclaim(q *Process, reason string) {
	if !q.reclaimed {
		q.reclaimed = true
		p.emit(Reclaim, q, reason)
	}
}

// Lost notes that the device failed under every process that had touched it. Those
// that would find it out only when they next use it are killed, and their rings
// reclaimed when they are gone; the shadow is woken at once. One that is linking is
// let be: it finds out by itself, or was woken after the fault. culprit is the
// generation that is to blame, 0 where none here is: its model is given up if it has
// not served yet and there is one that has.
func (p *Pair) Lost(culprit uint32, reason string) {
	if q := p.Process(culprit); q != nil && q == p.next && q.Card == p.card {
		p.giveUp(q, reason)
	}
	for _, q := range p.processes {
		switch q.State {
		case control.Ready, control.Active, control.Draining:
			p.end(q)
		}
	}
}

// Hold keeps everybody from serving, or lets them serve again. Who does is killed; a
// shadow stands by.
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

// Held reports whether Hold keeps everybody from serving.
func (p *Pair) Held() bool { return p.held }

// end kills a process and takes it off its place.
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

// giveUp goes back to the model that has served, where q's has not.
func (p *Pair) giveUp(q *Process, reason string) {
	if p.proven != nil && q.Card != p.proven {
		p.card, p.replacing = p.proven, false
		p.emit(Rejected, q, reason)
	}
}

// Kill ends a process that does not do its work; its death is then seen like any
// other.
func (p *Pair) Kill(generation uint32) {
	if q := p.Process(generation); q != nil {
		q.Role = control.Kill
	}
}

// Step says what is to be done now; the slice is valid until the next call.
// Processes reflects it at once.
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
		if p.shadow == nil && !p.Restart {
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
	if p.replacing && p.active.Card == p.card {
		p.replacing = false
		p.emit(Replaced, p.active, "")
	}
	p.proven = p.active.Card
}

// wake makes the shadow, or a new process where there is none that fits, the
// next to serve.
func (p *Pair) wake() {
	if p.shadow != nil && p.shadow.Card != p.card {
		p.shadow.Role = control.Kill
		p.shadow = nil
	}
	q := p.shadow
	if q == nil {
		q = p.spawn()
	}
	// A model that another could be gone back to shows all of itself first.
	q.Early = p.active == nil && q.Card != p.doubted && (p.proven == nil || q.Card == p.proven)
	q.Role, q.SharePercent = control.Serve, p.target
	p.shadow, p.next = nil, q
}

// change brings in a new share or model beside a process that serves, and keeps
// a shadow standing by.
func (p *Pair) change() {
	if p.shadow != nil && p.shadow.Card != p.card {
		p.shadow.Role = control.Kill
		p.shadow = nil
	}
	if p.shadow == nil {
		// The first shadow waits until the active one serves: they would only
		// slow each other down.
		if p.active.State == control.Active || p.active.Card != p.card {
			p.shadow = p.spawn()
		}
	}
	stale := p.active.Card != p.card
	if p.InPlace && !stale {
		p.active.SharePercent = p.target
	}
	if !stale && !p.renewing && p.active.SharePercent == p.target {
		return
	}
	if p.shadow != nil && p.shadow.State == control.Loaded && p.shadow.Attached {
		p.wake()
	}
}

// restart stops the active process when it is not what is wanted; the next one is
// started when it is gone.
func (p *Pair) restart() {
	stale := p.active.Card != p.card
	if p.active.Role != control.Serve || !stale && (p.InPlace || p.active.SharePercent == p.target) {
		return
	}
	p.active.Role = control.Drain
	p.stopped = true
}

func (p *Pair) spawn() *Process {
	p.last++
	q := &Process{Generation: p.last, Role: control.Shadow, SharePercent: p.target, Card: p.card, State: control.Starting}
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

// Check reports a broken invariant: at most one process in each place, every
// process desired at most once, a place held only by a desired process.
func (p *Pair) Check() error {
	seen := map[uint32]bool{}
	for _, q := range p.processes {
		if seen[q.Generation] {
			return fmt.Errorf("generation %d is desired twice", q.Generation)
		}
		seen[q.Generation] = true
	}
	places := map[*Process]string{}
	for name, q := range map[string]*Process{"active": p.active, "next": p.next, "shadow": p.shadow} {
		if q == nil {
			continue
		}
		if other, taken := places[q]; taken {
			return fmt.Errorf("generation %d is both %s and %s", q.Generation, other, name)
		}
		if !seen[q.Generation] {
			return fmt.Errorf("generation %d is %s and not desired", q.Generation, name)
		}
		places[q] = name
	}
	return nil
}
