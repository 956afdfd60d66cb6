package orchestrator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/orchestrator/keeper"
)

// Options say where and how to run. Times of zero get their defaults.
type Options struct {
	// Dir is the runtime folder, shared with the manager.
	Dir string
	Log zerolog.Logger
	// Self is the path of this binary, whose verb `if` runs where a process has no
	// command of its own.
	Self string
	// Prepared is the folder of prepared models, which only a process of its own writes
	// (prepare.go); empty leaves them to the processes that run them.
	Prepared string
	// Program is the command of a framework that is a program of its own. The error, a
	// line, says what is missing. It is not called for others, and may be nil.
	Program func(framework string) (command []string, err error)
	// Sandbox confines the processes; nil starts them with all rights of this one.
	Sandbox *Sandbox
	// ReservedCPUs is how many CPUs are the manager's; 0 leaves it to splitCPUs.
	ReservedCPUs int
	// CPUs are those of the inference functions, where splitCPUs is not asked.
	CPUs []int
	// Mechanism forces how shares are held ("cgroup-v2", "cgroup-v1", "governor");
	// empty takes the first that works, in this order.
	Mechanism string
	// Keeper is the parent of the processes, which are gone on with if another
	// orchestrator started them. Run closes it. Nil: the processes are this one's children.
	Keeper keeper.Keeper

	HandshakeTimeout time.Duration // spawn to handshake; default 10 s
	LoadTimeout      time.Duration // spawn to loaded, and waking to ready, and that to whole; default 2 min
	DrainTimeout     time.Duration // drain to SIGTERM; default 5 s
	TermTimeout      time.Duration // SIGTERM to SIGKILL; default 2 s

	// For the tests of this package.
	spawner spawner
	shares  shares
	machine machine
	clock   *runclock.Clock
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

// hangUpTimeout is how long a process that has closed its link may take to exit. The
// kernel closes the descriptors of a dying process before it reports the exit; in
// between it frees the process's memory.
const hangUpTimeout = time.Second

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
	if o.Keeper == nil && o.spawner == nil {
		o.Keeper = keeper.NewLocal()
	}
	owner := os.Getpid()
	if o.Keeper != nil {
		defer o.Keeper.Close()
		owner = o.Keeper.PID()
	}
	if err := o.Sandbox.prepare(o.Dir, o.Prepared, o.Log); err != nil {
		return err
	}
	if o.shares == nil {
		s, err := openShares(o.Mechanism, len(o.CPUs), owner, o.Log)
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
		s, err := newExecSpawner(o.Keeper, o.CPUs, o.Self, o.Dir, o.Log)
		if err != nil {
			return fmt.Errorf("open spawner: %w", err)
		}
		o.spawner = s
	}
	if o.Keeper != nil {
		defer o.Keeper.Close() // again: before the shares, whose groups must be empty
	}
	if o.machine == nil {
		o.machine = realMachine{o.Dir, o.Self, o.Sandbox}
	}
	link, err := control.DialOrchestrator(o.Dir, o.Log)
	if err != nil {
		return err
	}
	defer link.Close()
	o.Log.Info().Str("mechanism", o.shares.mechanism()).Ints("cpus", o.CPUs).Msg("orchestrator started")
	s := newSupervisor(o, link)
	s.restore(o.spawner.held())
	if o.Keeper == nil {
		return s.run(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-o.Keeper.Gone():
			cancel(keeper.ErrClosed)
		case <-ctx.Done():
		}
	}()
	err = s.run(ctx)
	if errors.Is(context.Cause(ctx), keeper.ErrClosed) {
		err = errors.Join(err, keeper.ErrClosed)
	}
	return err
}

// managerLink is what the supervisor needs of control.OrchestratorLink.
type managerLink interface {
	Desired() <-chan control.Desired
	Publish(control.Observed) error
	PeerExists() bool
}

// supervisor is the circle of the package doc. All of it belongs to run's goroutine.
type supervisor struct {
	o      Options
	limits limits
	log    zerolog.Logger
	link   managerLink
	id     string
	clock  *runclock.Clock

	wish       wish
	heard      time.Time // when the manager was last heard
	mute       bool      // the manager exists and has been silent for control.SilentAfter
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
	// lastWeights is the weight server of the last orchestrator, until this one takes over.
	lastWeights *keeper.Process

	// Of models that are being prepared, by the card's file: the processes that wait.
	preparing    map[string][]key
	preparations chan preparation
}

// child is a process with all that is known of it.
type child struct {
	fact
	desired  control.DesiredProcess
	process  process // nil where it was never started
	governor bool    // its share is libml's to hold
	yields   bool    // it limits itself to its guarantee
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

	noted json.RawMessage // the note as it was last written
}

// report is an event of one process.
type report struct {
	key   key
	event event
}

func newSupervisor(o Options, link managerLink) *supervisor {
	id := make([]byte, 8)
	rand.Read(id)
	if o.clock == nil {
		o.clock = runclock.Process()
	}
	or := func(d, otherwise time.Duration) time.Duration {
		if d > 0 {
			return d
		}
		return otherwise
	}
	return &supervisor{
		o: o, log: o.Log, link: link, id: hex.EncodeToString(id), clock: o.clock,
		limits: limits{
			handshake: or(o.HandshakeTimeout, defaultHandshakeTimeout),
			load:      or(o.LoadTimeout, defaultLoadTimeout),
			drain:     or(o.DrainTimeout, defaultDrainTimeout),
			term:      or(o.TermTimeout, defaultTermTimeout),
			lost:      lostTimeout,
			hangUp:    hangUpTimeout,
		},
		processes: map[key]*child{},
		past:      map[key]bool{},
		backoffs:  map[place]*backoff{},
		reports:   make(chan report),
		releasing: map[int]release{},
		verdicts:  make(chan verdict),

		preparing: map[string][]key{}, preparations: make(chan preparation),
		over: make(chan struct{}),
	}
}

// now is the supervisor's time, which stands still while the process is stopped: all
// that it waits for may have happened meanwhile.
func (s *supervisor) now() time.Time { return s.clock.Time() }

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
		s.save()
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
		case r := <-s.preparations:
			s.notePrepared(r)
		case v := <-s.verdicts:
			s.noteVerdict(v)
		case <-s.o.shares.yields():
			s.noteYields()
		case <-timer.C:
		}
	}
}

// noteYields tells processes whose balance is used up to limit themselves, and others that
// they need not any more.
func (s *supervisor) noteYields() {
	for _, k := range sortedKeys(s.processes) {
		if c := s.processes[k]; c.woken && !c.state.Ended() && c.yields != s.o.shares.yielding(k) {
			s.order(k, c, s.orderOf(k, c, control.DoShare))
		}
	}
}

// hear takes the manager's word.
func (s *supervisor) hear(d control.Desired) {
	s.heard = s.now()
	if s.mute {
		s.mute = false
		s.log.Info().Msg("manager answers again")
	}
	if w := s.wish.desired; w != nil && w.ManagerID == d.ManagerID && d.Seq < w.Seq {
		return // an older word that came late
	}
	s.wish.desired, s.wish.waiting = &d, false
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
	silentAt := s.judgeManager()
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
	if s.wish.waiting && (next.IsZero() || silentAt.Before(next)) {
		next = silentAt
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

// judgeManager ends the processes of a manager that is gone, and returns when to look
// again. A manager that exists is stopped or hangs: its processes go on, since the data
// path may work, and it finds them when it goes on itself.
func (s *supervisor) judgeManager() (again time.Time) {
	silent := s.now().Sub(s.heard)
	switch {
	case s.wish.desired == nil && !s.wish.waiting, silent < control.SilentAfter:
		return s.heard.Add(control.SilentAfter)
	case s.link.PeerExists():
		if !s.mute {
			s.mute = true
			s.log.Warn().Dur("silent_ms", silent).Msg("manager is stopped or hangs; its processes go on")
		}
		return s.now().Add(control.RepeatEvery)
	}
	s.log.Warn().Dur("silent_ms", silent).Int("processes", s.living()).Msg("manager is gone; ending its processes")
	s.wish.desired, s.wish.waiting, s.mute = nil, false, false
	return time.Time{}
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
		s.about(e, a.key).Stringer("do", a.kind).Str("why", a.why+a.fault).Msg(a.kind.message())
	}
	switch a.kind {
	case adopt:
		s.managerID = s.wish.desired.ManagerID
		s.attachment = s.wish.desired.AttachSocket
		s.ackSeq = 0
		clear(s.past)
		clear(s.backoffs)
		s.openDevice(s.wish.desired.Device, s.wish.desired.NoMPS)
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
		if c.process != nil {
			c.process.forget()
		}
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
		fact:    fact{state: control.Starting, spawned: now, since: now, terms: termsOf(a.wanted)},
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
			AttachSocket: s.attachment, Ticket: a.wanted.Ticket, CPUs: len(s.o.CPUs), Device: control.DeviceCPU,
		},
	}
	s.onDevice(&sp)
	if a.wanted.SharedWeights && s.onGPU() {
		sp.start.WeightsSocket = s.shareWeights()
		if s.o.Sandbox != nil {
			sp.start.Prepared = s.o.Prepared
		}
	}
	sp.note = s.noteOf(a.key, c)
	c.noted = sp.note
	var p process
	if err = s.confine(&sp, a.wanted.Model); err == nil {
		p, err = s.o.spawner.spawn(sp)
	}
	if err != nil {
		c.reason = line(err.Error())
		s.ended(a.key, c, control.Failed)
		return
	}
	c.process = p
	// Loading is work, too: from its first instant on a process has its share.
	s.limit(a.key, c)
	s.follow(a.key, p)
}

// follow has the events of a process reported.
func (s *supervisor) follow(k key, p process) {
	go func() {
		for e := range p.events() {
			s.reports <- report{k, e}
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
	c.terms = termsOf(c.desired)
	s.limit(k, c)
	if c.woken {
		o := s.orderOf(k, c, do)
		if s.onGPU() {
			s.place(c, &o)
			c.wokenPercent = c.terms.percent
		}
		s.order(k, c, o)
	}
}

// orderOf is an order with the process's terms.
func (s *supervisor) orderOf(k key, c *child, do control.OrderKind) control.Order {
	o := control.Order{
		Do: do, SharePercent: c.terms.percent, Governor: c.governor,
		GuaranteePercent: 100 * c.terms.guarantee, Level: c.terms.level,
	}
	if c.yields = s.o.shares.yielding(k); c.yields {
		o.SharePercent = o.GuaranteePercent
	}
	return o
}

// limit holds a process to its terms on the CPUs. libml holds those of a GPU, and those that
// no control group can.
func (s *supervisor) limit(k key, c *child) {
	if s.onGPU() || c.terms == (terms{}) {
		return
	}
	enforced, err := s.o.shares.apply(k, c.process.pid(), c.terms)
	if err != nil && !c.governor {
		// The process may just have ended; then its end tells more.
		s.about(s.log.Warn(), k).Err(err).Msg("no control group for the process; it limits itself")
	}
	c.governor = !enforced
}

func (s *supervisor) order(k key, c *child, o control.Order) {
	err := c.process.order(o)
	switch {
	case errors.Is(err, control.ErrHungUp):
		// Its exit comes as an event, and says why.
		c.hungUp = s.now()
		s.about(s.log.Debug(), k).Err(err).Str("order", string(o.Do)).Msg("order not delivered: process closed its link")
	case err != nil:
		// A process that hangs would ignore the next order, too.
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
	c.woken = c.woken || n.Woken
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
		s.about(s.log.Info(), k).Int("pid", c.process.pid()).Str("state", string(n.State)).Msg(n.State.Change())
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
	if n.Prepare {
		s.prepareModel(k, c)
	}
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
	state := control.Failed
	switch {
	case e.signal != 0 && !e.ours:
		// It did not end for what the orchestrator asked of it, or held against it.
		c.reason = because(c.lastWords, e.String())
	case c.fault != "" && e.signal == syscall.SIGKILL:
		c.reason = because(c.fault, e.after("killed by the orchestrator"))
	case c.fault != "":
		c.reason = because(c.fault, e.String())
	case c.asked != "" && e.clean():
		state = control.Stopped
		c.reason = c.asked
	case c.asked != "" && e.ours:
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
		q.State, q.SharePercent, q.Reason = c.state, c.terms.percent, c.notice.Reason
		if c.process != nil {
			q.PID = c.process.pid()
		}
		if c.state.Ended() {
			q.Reason = c.reason
		}
		if s.onGPU() {
			s.observeChild(k, c, q)
		} else {
			total, demoted := s.o.shares.spent(k)
			q.DeviceNanos, q.DemotedNanos = int64(total), int64(demoted)
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
