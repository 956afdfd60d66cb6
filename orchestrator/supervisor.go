package orchestrator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
)

// Options say where and how to run. Times of zero get their defaults.
type Options struct {
	// Dir is the runtime folder, shared with the manager.
	Dir string
	Log zerolog.Logger
	// Self is the path of this binary, whose verb `if` runs where a process has no
	// command of its own.
	Self string
	// Program is the command of a framework that is a program of its own. The error, a
	// line, says what is missing. It is not called for others, and may be nil.
	Program func(framework string) (command []string, err error)
	// ReservedCPUs is how many CPUs are the manager's; 0 leaves it to SplitCPUs.
	ReservedCPUs int
	// CPUs are those of the inference functions, where SplitCPUs is not asked.
	CPUs []int
	// Mechanism forces how shares are held ("cgroup-v2", "cgroup-v1", "governor");
	// empty takes the first that works, in this order.
	Mechanism string

	HandshakeTimeout time.Duration // spawn to handshake; default 10 s
	LoadTimeout      time.Duration // spawn to loaded, and waking to ready, and that to whole; default 2 min
	DrainTimeout     time.Duration // drain to SIGTERM; default 5 s
	TermTimeout      time.Duration // SIGTERM to SIGKILL; default 2 s

	// For the tests of this package.
	spawner spawner
	shares  shares
	machine machine
}

// Defaults. A program needs no time for its handshake, but a busy machine may
// start it late. Loading is a framework's start and a model's file: 15 s in the
// paper (3.2.3), with room. A batch in flight may last as long as the largest
// objective, well below a second, and a drain takes two of them.
const (
	defaultHandshakeTimeout = 10 * time.Second
	defaultLoadTimeout      = 2 * time.Minute
	defaultDrainTimeout     = 5 * time.Second
	defaultTermTimeout      = 2 * time.Second
)

// Run runs an orchestrator until ctx ends, then drains and ends all processes and
// returns nil. An error is returned when it cannot begin, or the GPU that the manager
// names is not there.
func Run(ctx context.Context, o Options) error {
	if len(o.CPUs) == 0 {
		_, o.CPUs = IFCPUs(o.ReservedCPUs)
	}
	release, err := control.ClaimOrchestrator(o.Dir)
	if err != nil {
		return err
	}
	defer release()
	if o.shares == nil {
		s, err := openShares(o.Mechanism, len(o.CPUs), o.Log)
		if err != nil {
			return fmt.Errorf("open shares: %w", err)
		}
		o.shares = s
	}
	defer func() {
		if err := o.shares.close(); err != nil {
			o.Log.Warn().Err(err).Msg("close shares")
		}
	}()
	if o.spawner == nil {
		s, err := newExecSpawner(o.CPUs, o.Log)
		if err != nil {
			return fmt.Errorf("open spawner: %w", err)
		}
		o.spawner = s
	}
	defer o.spawner.close()
	if o.machine == nil {
		o.machine = realMachine{o.Dir}
	}
	link, err := control.DialOrchestrator(o.Dir, o.Log)
	if err != nil {
		return err
	}
	defer link.Close()
	o.Log.Info().Str("mechanism", o.shares.mechanism()).Ints("cpus", o.CPUs).Msg("orchestrator started")
	return newSupervisor(o, link).run(ctx)
}

// managerLink is what the supervisor needs of control.OrchestratorLink.
type managerLink interface {
	Desired() <-chan control.Desired
	Publish(control.Observed) error
}

// supervisor is the circle of the package doc. All of it belongs to run's goroutine.
type supervisor struct {
	o      Options
	limits limits
	log    zerolog.Logger
	link   managerLink
	id     string
	now    func() time.Time

	wish       wish
	heard      time.Time // when the manager was last heard
	attachment string    // the manager's attach socket
	ackSeq     uint64

	managerID string
	processes map[key]*child
	past      map[key]bool
	backoffs  map[place]*backoff // of places where something is wanted
	reports   chan report

	// On a GPU; see gpu.go.
	device    *device // nil: the CPU
	gpu       gpuState
	releasing map[int]release // dead processes whose memory may not be free yet, by id
	verdicts  chan verdict
	// asking: a device failed, and its MPS server has not answered yet how it is.
	// serverless: there is none. Until dying its end is waited for.
	asking, serverless bool
	dying              time.Time
	over               chan struct{} // closed when run has ended
	closing            sync.WaitGroup
	weights            *weightsHolder // nil: nobody shares any
}

// child is a process with all that is known of it.
type child struct {
	fact
	desired  control.DesiredProcess
	process  process // nil where it was never started
	governor bool    // its share is libml's to hold
	pardoned bool    // nothing was wanted in its place any more: how it ends says nothing of who comes there
	notice   control.Notice

	// On a GPU.
	at           []int   // the groups that it said last that it runs on
	lost         bool    // its device failed under it
	blameless    bool    // which is the MPS server's doing
	unfit        []int   // the last groups that it found its model cannot run on
	outgrown     bool    // it ends for that
	wokenPercent float64 // its share when it was woken, which MPS keeps
	mismatch     string  // what is not as it was promised
	complained   string  // what of that was logged
	lastWords    string  // why it says that it ends
	asked        string  // why it was made to end, if it was
	fault        string  // what it did wrong, if it did
	reason       string  // once it has ended
}

// report is an event of one process.
type report struct {
	key   key
	event event
}

func newSupervisor(o Options, link managerLink) *supervisor {
	id := make([]byte, 8)
	rand.Read(id)
	or := func(d, otherwise time.Duration) time.Duration {
		if d > 0 {
			return d
		}
		return otherwise
	}
	return &supervisor{
		o: o, log: o.Log, link: link, id: hex.EncodeToString(id), now: time.Now,
		limits: limits{
			handshake: or(o.HandshakeTimeout, defaultHandshakeTimeout),
			load:      or(o.LoadTimeout, defaultLoadTimeout),
			drain:     or(o.DrainTimeout, defaultDrainTimeout),
			term:      or(o.TermTimeout, defaultTermTimeout),
			lost:      lostTimeout,
		},
		processes: map[key]*child{},
		past:      map[key]bool{},
		backoffs:  map[place]*backoff{},
		reports:   make(chan report),
		releasing: map[int]release{},
		verdicts:  make(chan verdict),
		over:      make(chan struct{}),
	}
}

// run goes round until ctx has ended, or the device turns out not to be there, and no
// process is left.
func (s *supervisor) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer s.closeDevice()
	defer close(s.over)
	stop := ctx.Done()
	for {
		next := s.act()
		s.publish()
		if s.wish.ending && s.living() == 0 {
			return s.gpu.err
		}
		wait := time.Hour
		if !next.IsZero() {
			wait = next.Sub(s.now())
		}
		timer.Reset(max(wait, 0))
		select {
		case <-stop:
			stop = nil
			s.wish.ending = true
			s.log.Info().Int("processes", s.living()).Msg("orchestrator drains")
		case d, ok := <-s.link.Desired():
			if ok {
				s.hear(d)
			}
		case r := <-s.reports:
			s.note(r)
		case g := <-s.deviceStates():
			s.noteGPU(g)
		case v := <-s.verdicts:
			s.noteVerdict(v)
		case <-timer.C:
		}
	}
}

// hear takes the manager's word.
func (s *supervisor) hear(d control.Desired) {
	s.heard = s.now()
	if w := s.wish.desired; w != nil && w.ManagerID == d.ManagerID && d.Seq < w.Seq {
		return // an older word that came late
	}
	s.wish.desired = &d
	if d.ManagerID == s.managerID {
		s.pardon(d.Processes)
	}
}

// pardon forgets the early failures of places where nothing is wanted any more, and those
// to come of what still ends there: who has the place next is another function, whatever
// its name.
func (s *supervisor) pardon(wanted []control.DesiredProcess) {
	stays := map[place]bool{}
	for _, p := range wanted {
		stays[keyOf(p).place()] = true
	}
	for p := range s.backoffs {
		if !stays[p] {
			delete(s.backoffs, p)
		}
	}
	for k, c := range s.processes {
		c.pardoned = c.pardoned || !stays[k.place()]
	}
}

// act carries plans out until there is nothing left to do, and says when there
// will be.
func (s *supervisor) act() (next time.Time) {
	silentAt := s.heard.Add(control.SilentAfter)
	if s.wish.desired != nil && !s.now().Before(silentAt) {
		s.log.Warn().Dur("silent_ms", s.now().Sub(s.heard)).Int("processes", s.living()).Msg("manager is silent; ending its processes")
		s.wish.desired = nil
	}
	for {
		todo, due := plan(s.now(), s.wish, s.facts(), s.limits)
		if len(todo) == 0 {
			next = due
			break
		}
		for _, a := range todo {
			s.do(a)
		}
	}
	if again := s.wakesHeldUntil(); !again.IsZero() && (next.IsZero() || again.Before(next)) {
		next = again
	}
	if d := s.wish.desired; d != nil {
		if d.ManagerID == s.managerID {
			s.ackSeq = d.Seq
		}
		if next.IsZero() || silentAt.Before(next) {
			next = silentAt
		}
	}
	return next
}

func (s *supervisor) facts() facts {
	f := facts{
		managerID: s.managerID,
		processes: make(map[key]fact, len(s.processes)),
		past:      func(k key) bool { return s.past[k] },
		held: func(p place) time.Time {
			if b := s.backoffs[p]; b != nil {
				return b.until
			}
			return time.Time{}
		},
		unready: s.device != nil && !s.gpu.opened,
		asleep:  s.wakesHeld() != "",
	}
	for k, c := range s.processes {
		f.processes[k] = c.fact
	}
	return f
}

func (s *supervisor) do(a action) {
	c := s.processes[a.key]
	if a.kind != adopt {
		e := s.log.Debug()
		if a.fault != "" || a.kind == kill || a.kind == term {
			e = s.log.Warn()
		}
		s.about(e, a.key).Stringer("do", a.kind).Str("why", a.why+a.fault).Msg("process")
	}
	switch a.kind {
	case adopt:
		s.managerID = s.wish.desired.ManagerID
		s.attachment = s.wish.desired.AttachSocket
		s.ackSeq = 0
		clear(s.past)
		clear(s.backoffs)
		s.openDevice(s.wish.desired.Device, s.wish.desired.SMGrain, s.wish.desired.NoMPS)
		s.log.Info().Str("manager_id", s.managerID).Msg("manager has started")
	case spawn:
		s.spawn(a)
	case bury:
		s.processes[a.key] = &child{fact: fact{state: control.Stopped}, desired: a.wanted, reason: a.why}
	case wake:
		c.desired, c.woken = a.wanted, true
		s.share(a.key, c, control.DoWake)
	case reshare:
		c.desired = a.wanted
		if s.onGPU() {
			s.regroup(a.key, c)
			return
		}
		s.share(a.key, c, control.DoShare)
	case drain:
		c.drained, c.asked = s.now(), a.why
		s.order(a.key, c, control.Order{Do: control.DoDrain})
	case term:
		c.termed = s.now()
		if c.asked == "" {
			c.asked = a.why
		}
		c.process.signal(syscall.SIGTERM)
	case kill:
		s.kill(c, a.fault, a.why)
	case forget:
		delete(s.processes, a.key)
		s.remember(a.key)
	}
}

// kill makes a process end; its end comes as an event.
func (s *supervisor) kill(c *child, fault, why string) {
	c.killed = s.now()
	if c.fault == "" {
		c.fault = fault
	}
	if why != "" && c.asked == "" {
		c.asked = why
	}
	c.process.signal(syscall.SIGKILL)
}

func (s *supervisor) spawn(a action) {
	now := s.now()
	c := &child{
		fact:    fact{state: control.Starting, spawned: now, since: now, sharePercent: a.wanted.SharePercent},
		desired: a.wanted,
	}
	s.processes[a.key] = c
	command, err := s.command(a.wanted)
	if err != nil {
		c.reason = line(err.Error())
		s.ended(a.key, c, control.Failed)
		return
	}
	sp := spec{
		key: a.key, command: command, dir: a.wanted.Dir, environment: a.wanted.Environment,
		start: control.Start{
			IF: a.key.name, Instance: a.key.instance, Generation: a.key.generation,
			AttachSocket: s.attachment, CPUs: len(s.o.CPUs), Device: cpuDevice,
		},
	}
	s.onDevice(&sp)
	if a.wanted.SharedWeights && s.onGPU() {
		sp.start.WeightsSocket = s.shareWeights()
	}
	p, err := s.o.spawner.spawn(sp)
	if err != nil {
		c.reason = line(err.Error())
		s.ended(a.key, c, control.Failed)
		return
	}
	c.process = p
	// Loading is work, too: from its first instant on a process has its share.
	s.limit(a.key, c)
	go func() {
		for e := range p.events() {
			s.reports <- report{a.key, e}
		}
	}()
}

// command is the program of a process, and its arguments.
func (s *supervisor) command(wanted control.DesiredProcess) ([]string, error) {
	switch {
	case len(wanted.Command) > 0:
		return wanted.Command, nil
	case wanted.Framework == "":
		return []string{s.o.Self, "if"}, nil
	case s.o.Program == nil:
		return nil, fmt.Errorf("framework %s: this orchestrator has no program for it", wanted.Framework)
	}
	return s.o.Program(wanted.Framework)
}

// share writes the desired share and tells a process that is awake.
func (s *supervisor) share(k key, c *child, do control.OrderKind) {
	c.sharePercent = c.desired.SharePercent
	s.limit(k, c)
	if c.woken {
		o := control.Order{Do: do, SharePercent: c.sharePercent, Governor: c.governor}
		if s.onGPU() {
			s.place(c, &o)
			c.wokenPercent = c.sharePercent
		}
		s.order(k, c, o)
	}
}

// limit writes c's share. Where no quota can be written libml holds it. A GPU's
// share is not one of the CPUs, and who has none may use all of them.
func (s *supervisor) limit(k key, c *child) {
	if s.onGPU() || c.sharePercent == 0 {
		return
	}
	enforced, err := s.o.shares.apply(k, c.process.pid(), c.sharePercent)
	if err != nil && !c.governor {
		// The process may just have ended; then its end tells more.
		s.about(s.log.Warn(), k).Err(err).Msg("no quota for the process; its governor holds the share")
	}
	c.governor = !enforced
}

func (s *supervisor) order(k key, c *child, o control.Order) {
	if err := c.process.order(o); err != nil {
		// One that is dying does not read: then its end says why. One that hangs
		// would ignore the next order, too.
		s.about(s.log.Warn(), k).Err(err).Str("order", string(o.Do)).Msg("process does not take its order")
		s.kill(c, "it does not take orders: "+err.Error(), "")
	}
}

// note takes what a process did.
func (s *supervisor) note(r report) {
	c := s.processes[r.key]
	switch e := r.event; {
	case e.notice != nil:
		s.noteNotice(r.key, c, *e.notice)
	case e.broken != nil:
		if c.killed.IsZero() {
			s.kill(c, "it broke the protocol: "+e.broken.Error(), "")
		}
	case e.exit != nil:
		s.noteExit(r.key, c, *e.exit)
	}
}

func (s *supervisor) noteNotice(k key, c *child, n control.Notice) {
	c.shook = true
	if n.State.Ended() {
		// It says that it is about to end. Its end is believed when it is seen, and
		// it gets no more time for it than a drained one.
		c.lastWords = line(n.Reason)
		if n.State == control.Failed && c.fault == "" {
			c.fault = cmp.Or(c.lastWords, "it says that it failed")
		}
		if n.DeviceLost && s.onGPU() {
			c.blameless = n.Blameless
			s.lose(k, c)
		}
		c.unfit, c.outgrown = n.GroupsUnfit, len(n.GroupsUnfit) > 0
		if c.drained.IsZero() {
			c.drained = s.now()
		}
		n.State = control.Draining
	}
	if !n.State.Follows(c.state) {
		if c.killed.IsZero() {
			s.kill(c, fmt.Sprintf("it broke the protocol: said %s after %s", n.State, c.state), "")
		}
		return
	}
	if n.State != c.state {
		c.since = s.now()
		s.about(s.log.Info(), k).Int("pid", c.process.pid()).Str("state", string(n.State)).Msg("process")
	}
	c.state = n.State
	if n.PersistentBytes != 0 {
		c.notice.PersistentBytes = n.PersistentBytes
	}
	if n.EphemeralBytes != 0 {
		c.notice.EphemeralBytes = n.EphemeralBytes
	}
	if n.WarmupMillis != 0 {
		c.notice.WarmupMillis = n.WarmupMillis
	}
	s.noteBatches(c, n)
	c.notice.Reason = line(n.Reason)
	if s.onGPU() {
		s.notePlace(k, c, n)
	}
}

// noteExit judges how a process ended: as it was told to, or failed. A crash on
// the way out is a failure, though it was asked to end: the manager asks as soon
// as it sees the crash, which may be before this does.
func (s *supervisor) noteExit(k key, c *child, e exit) {
	if !s.onGPU() {
		if err := s.o.shares.remove(k); err != nil {
			s.about(s.log.Warn(), k).Err(err).Msg("remove share")
		}
	}
	ours := e.signal == syscall.SIGKILL && !c.killed.IsZero() || e.signal == syscall.SIGTERM && !c.termed.IsZero()
	state := control.Failed
	switch {
	case c.fault != "" && e.signal == syscall.SIGKILL && !c.killed.IsZero():
		// Not a signal from elsewhere, as where memory ran out.
		c.reason = because(c.fault, e.after("killed by the orchestrator"))
	case c.fault != "":
		c.reason = because(c.fault, e.String())
	case c.asked != "" && e.clean():
		state = control.Stopped
		c.reason = c.asked
	case c.asked != "" && ours:
		state = control.Stopped
		c.reason = because(c.asked, e.String())
	case e.clean() && c.state == control.Draining:
		// The epoch moved on: the manager's order is on its way.
		state = control.Stopped
		c.reason = "another took the ring"
	case e.clean():
		c.reason = because("it ended unasked", cmp.Or(c.lastWords, e.String()))
	default:
		c.reason = because(c.lastWords, e.String())
	}
	s.ended(k, c, state)
}

func (s *supervisor) ended(k key, c *child, state control.State) {
	now := s.now()
	lived := now.Sub(c.spawned)
	c.state, c.since = state, now
	b := s.backoffs[k.place()]
	if b == nil {
		b = &backoff{}
		if !c.pardoned {
			s.backoffs[k.place()] = b
		}
	}
	if s.onGPU() {
		s.release(c)
	}
	// What all lose together is nobody's early failure.
	if c.failed.IsZero() && !c.pardoned && !(c.outgrown && b.outgrew(len(c.unfit), c.reason)) {
		b.ended(now, lived, state == control.Failed, c.reason)
	}
	e := s.log.Info()
	if state == control.Failed {
		e = s.log.Error()
	}
	if wait := b.until.Sub(now); wait > 0 {
		e = e.Dur("backoff_ms", wait)
	}
	s.about(e, k).Str("state", string(state)).Str("reason", c.reason).Dur("lived_ms", lived).Msg("process ended")
}

// pastMost is how many ended generations of a place are remembered. A manager
// never goes back; this is for one that repeats itself.
const pastMost = 1024

func (s *supervisor) remember(k key) {
	s.past[k] = true
	if k.generation > pastMost {
		delete(s.past, key{k.name, k.instance, k.generation - pastMost})
	}
}

func (s *supervisor) living() (n int) {
	for _, c := range s.processes {
		if !c.state.Ended() {
			n++
		}
	}
	return n
}

// publish tells the manager what is. Processes that wait for their backoff are
// listed as starting, without a process id.
func (s *supervisor) publish() {
	o := control.Observed{
		OrchestratorID: s.id, ManagerID: s.managerID, AckSeq: s.ackSeq,
		Mechanism: s.o.shares.mechanism(), CPUs: len(s.o.CPUs),
		Processes: make([]control.ObservedProcess, 0, len(s.processes)),
	}
	if s.device != nil {
		s.observeGPU(&o)
	}
	observe := func(k key) *control.ObservedProcess {
		o.Processes = append(o.Processes, control.ObservedProcess{IF: k.name, Instance: k.instance, Generation: k.generation})
		return &o.Processes[len(o.Processes)-1]
	}
	if d := s.wish.desired; d != nil && d.ManagerID == s.managerID {
		for _, p := range d.Processes {
			k := keyOf(p)
			if s.processes[k] != nil {
				continue
			}
			q := observe(k)
			q.State = control.Starting
			if s.device != nil && !s.gpu.opened {
				q.Reason = "waits until the GPU is found"
			}
			if b := s.backoffs[k.place()]; b != nil && b.failures > 0 {
				q.Reason = fmt.Sprintf("backoff: waits %v after %d early failures, the last: %s", b.delay(), b.failures, b.last)
			}
		}
	}
	for _, k := range sortedKeys(s.processes) {
		c := s.processes[k]
		q := observe(k)
		q.State, q.SharePercent, q.Reason = c.state, c.sharePercent, c.notice.Reason
		if c.process != nil {
			q.PID = c.process.pid()
		}
		if c.state.Ended() {
			q.Reason = c.reason
		}
		if s.onGPU() {
			s.observeChild(k, c, q)
		}
		if q.Reason == "" {
			q.Reason = s.triedAgain(k, c)
		}
		q.PersistentBytes, q.EphemeralBytes, q.WarmupMillis = c.notice.PersistentBytes, c.notice.EphemeralBytes, c.notice.WarmupMillis
		q.Batches, q.Growing = c.notice.Batches, !c.growing.IsZero()
	}
	if err := s.link.Publish(o); err != nil {
		s.log.Error().Err(err).Msg("publish observed state")
	}
}

// triedAgain says why the process before one that comes up failed, where nobody serves in
// its place; else it is empty.
func (s *supervisor) triedAgain(k key, c *child) string {
	b := s.backoffs[k.place()]
	if b == nil || b.last == "" || c.state != control.Starting && c.state != control.Linking {
		return ""
	}
	for other, c := range s.processes {
		if other.place() == k.place() && c.state == control.Active {
			return ""
		}
	}
	return "tried again; the last one failed: " + b.last
}

func (s *supervisor) about(e *zerolog.Event, k key) *zerolog.Event {
	return e.Str("if", k.name).Int("instance", k.instance).Uint32("generation", k.generation)
}

// maxReason bounds what a process can make the orchestrator repeat ten times a second.
const maxReason = 1000

// line makes text one line of bounded length.
func line(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

// because joins what happened and what it came from, unless the latter says both.
func because(what, why string) string {
	if what == "" || strings.Contains(why, what) {
		return line(why)
	}
	return line(what + ": " + why)
}
