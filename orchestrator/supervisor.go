package orchestrator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/orchestrator/cpushare"
	"github.com/penstock/penstock/orchestrator/gpu"
	"github.com/penstock/penstock/orchestrator/keeper"
	"github.com/penstock/penstock/orchestrator/program"
)

// Options say where and how to run. Durations of zero get their defaults.
type Options struct {
	// Dir is the runtime folder, shared with the manager.
	Dir string
	// Run is the same for all orchestrators of one run of a node, which may follow each other. Empty: there is only one.
	Run string
	Log zerolog.Logger
	// Self is the path of this binary. Its verb `if` runs a process that has no command of
	// its own.
	Self string
	// Prepared is the folder of prepared models. Only a separate process writes to it
	// (prepare.go). If it is empty, the processes that run the models prepare them.
	Prepared string
	// Cache is the folder where results of measurements of the GPU are kept for later starts.
	// If it is empty, every start measures.
	Cache string
	// Program returns the command of a framework that is a separate program. Its error is
	// one line that says what is missing. It is not called for other frameworks, and may be
	// nil.
	Program func(framework string) (command []string, err error)
	// Sandbox confines the processes. nil starts them with all rights of this process.
	Sandbox *Sandbox
	// Models are folders of models. The processes of workers may read them.
	Models []string
	// ReservedCPUs is the number of CPUs for the manager. 0 leaves it to splitCPUs.
	ReservedCPUs int
	// CPUs are the CPUs of the inference functions. If it is empty, splitCPUs chooses them.
	CPUs []int
	// Mechanism forces the mechanism that enforces shares ("cgroup-v2", "cgroup-v1",
	// "governor"). Empty takes the first that works, in this order.
	Mechanism string
	// Keeper is the parent of the processes. If another orchestrator started processes, Run
	// resumes them. Run closes Keeper. If it is nil, the processes are children of this
	// one.
	Keeper keeper.Keeper

	// For the tests of this package. Zero values get their defaults.
	limits       limits
	probeTimeout time.Duration
	spawner      spawner
	shares       cpushare.Shares
	machine      gpu.Machine
	clock        *runclock.Clock
}

// defaultLimits are the deadlines of processes. A program needs no time for its handshake, but a busy machine may start it
// late. Loading starts a framework and reads a model's file: 15 s in the paper (3.2.3), so
// 2 min leave room. A batch in flight may last as long as the largest objective, well below
// a second. A drain takes two batches.
//
// hangUp runs from closing the link to the exit. The kernel closes the descriptors of a dying process before it reports
// the exit. In between it frees the process's memory.
var defaultLimits = limits{
	handshake: 10 * time.Second, load: 2 * time.Minute, drain: 5 * time.Second, term: 2 * time.Second, lost: lostTimeout, hangUp: time.Second,
}

// Run runs an orchestrator until ctx ends, then drains and ends all processes and returns
// nil. It returns an error if it cannot begin, or if the machine lacks the GPU that the
// manager names.
func Run(ctx context.Context, o Options) error {
	if len(o.CPUs) == 0 {
		_, o.CPUs = IFCPUs(o.ReservedCPUs, Near{})
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
	if err := o.Sandbox.prepare(o.Dir, o.Prepared); err != nil {
		return err
	}
	if err := o.openShares(owner); err != nil {
		return err
	}
	defer o.closeShares()
	if o.Keeper != nil {
		defer o.Keeper.Close() // closed a second time here, before the shares, whose groups must be empty
	}
	if err := o.openMachine(); err != nil {
		return err
	}
	link, err := control.DialOrchestrator(o.Dir, o.Log)
	if err != nil {
		return err
	}
	defer link.Close()
	o.Log.Info().Str("mechanism", o.shares.Mechanism()).Ints("cpus", o.CPUs).Msg("orchestrator started")
	s := newSupervisor(o, link)
	held := o.spawner.held()
	if err := o.Sandbox.removeLeft(o.Dir, held); err != nil {
		o.Log.Warn().Err(err).Msg("cannot remove the private folders of processes that have ended")
	}
	s.restore(held)
	s.openGuests()
	return s.runWhile(ctx, o.Keeper)
}

// openShares opens the mechanism that enforces shares. owner is the parent of the processes.
func (o *Options) openShares(owner int) (err error) {
	if o.shares != nil {
		return nil
	}
	if o.shares, err = cpushare.Open(o.Mechanism, len(o.CPUs), owner, o.Log); err != nil {
		return fmt.Errorf("open shares: %w", err)
	}
	return nil
}

func (o *Options) closeShares() {
	if err := o.shares.Close(); err != nil {
		o.Log.Warn().Err(err).Msg("cannot close shares")
	}
}

// openMachine opens what starts processes and finds GPUs.
func (o *Options) openMachine() (err error) {
	if o.machine == nil {
		o.machine = gpu.Here{
			Dir: o.Dir, Self: o.Self, Confined: o.Sandbox != nil, User: o.Sandbox.user(), Cache: o.Cache, ProbeTimeout: o.probeTimeout, Log: o.Log,
		}
	}
	if o.spawner != nil {
		return nil
	}
	s, err := newExecSpawner(o.Keeper, o.CPUs, o.Self, o.Dir, o.Log)
	if err != nil {
		return fmt.Errorf("open spawner: %w", err)
	}
	s.shares = o.shares
	o.spawner = s
	return nil
}

// runWhile is run until the keeper is gone; k may be nil.
func (s *supervisor) runWhile(ctx context.Context, k keeper.Keeper) error {
	if k == nil {
		return s.run(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-k.Gone():
			cancel(keeper.ErrClosed)
		case <-ctx.Done():
		}
	}()
	err := s.run(ctx)
	if errors.Is(context.Cause(ctx), keeper.ErrClosed) {
		err = errors.Join(err, keeper.ErrClosed)
	}
	return err
}

// managerLink is the part of control.OrchestratorLink that the supervisor uses.
type managerLink interface {
	Desired() <-chan control.Desired
	Publish(control.Observed) error
	PeerExists() bool
}

// supervisor runs the loop of the package doc. All its state belongs to run's goroutine.
type supervisor struct {
	o      Options
	limits limits
	log    zerolog.Logger
	link   managerLink
	id     string
	clock  *runclock.Clock

	target  desiredState
	manager managerPeer

	processes map[key]*child
	reports   chan report

	devices       []*device         // those that the manager wants, in its order
	bound         map[string]string // the GPUs that they are; see boundFile
	deviceChanges chan struct{}
	swept         bool // daemons of MPS that no device has were ended
	verdicts      chan verdict

	preparations preparations
	guests       guests

	done    chan struct{} // closed when run has ended
	closing sync.WaitGroup
}

// managerPeer is what the supervisor knows of the manager that the processes belong to.
type managerPeer struct {
	id          string // empty at first
	socket      string // processes attach to it
	ackSeq      uint64
	lastMessage time.Time
	silent      bool // it exists and has been silent for control.PeerTimeout
}

// child is the supervisor's state of a process.
type child struct {
	observedProcess
	device   *device
	desired  control.DesiredProcess
	process  process // nil if it was never started
	governor bool    // libml enforces its share
	yields   bool    // it limits itself to its guarantee
	pardoned bool    // its place had no desired process for a time: its end must not delay the next function there
	notice   control.Notice

	// On a GPU.
	at               []int   // the groups that it last reported to run on
	lost             bool    // its device failed under it
	blameless        bool    // the MPS server or a guest is the cause
	infeasibleGroups []int   // the latest groups that its model cannot run on
	groupsTooFew     bool    // it ends because of that
	wrongAnswers     bool    // it ends because its model answers wrongly
	wokenPercent     float64 // its share when it was woken; MPS keeps it
	mismatch         string  // how its multiprocessors differ from what it was promised
	complained       string  // the mismatch that was last logged
	lastWords        string  // its own reason for its end
	asked            string  // why the orchestrator asked it to end; empty if it did not
	fault            string  // what it did wrong; empty if nothing
	reason           string  // final reason, once it has ended

	noted json.RawMessage // the note that was last written
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
	return &supervisor{
		o: o, log: o.Log, link: link, id: hex.EncodeToString(id), clock: o.clock,
		limits:    cmp.Or(o.limits, defaultLimits),
		processes: map[key]*child{},
		reports:   make(chan report),

		deviceChanges: make(chan struct{}, 1),
		verdicts:      make(chan verdict),

		bound:        readBound(o.Dir, o.Run),
		preparations: preparations{waiting: map[preparedModel][]key{}, results: make(chan preparation)},
		done:         make(chan struct{}),
	}
}

// now is the supervisor's clock. It stands still while the process is stopped: everything
// that the supervisor waits for may have happened meanwhile.
func (s *supervisor) now() time.Time { return s.clock.Time() }

// run loops until no process is left after the end of ctx, or after the device turned out
// to be missing.
func (s *supervisor) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer s.closeDevices()
	defer s.guests.close(s.log) // before MPS
	defer close(s.done)
	stop := ctx.Done()
	for {
		next := s.act()
		s.save()
		s.publish()
		s.guests.update(s.devices)
		if s.target.ending && s.living() == 0 {
			return s.deviceFailure()
		}
		wait := time.Hour
		if !next.IsZero() {
			wait = next.Sub(s.now())
		}
		if s.target.ending {
			wait = min(wait, time.Second) // see living
		}
		timer.Reset(max(wait, 0))
		select {
		case <-stop:
			stop = nil
			s.target.ending = true
			s.log.Info().Int("processes", s.living()).Msg("orchestrator is stopping; draining processes")
			s.closing.Go(func() { s.guests.close(s.log) })
		case d, ok := <-s.link.Desired():
			if ok {
				s.receive(d)
			}
		case r := <-s.reports:
			s.note(r)
		case <-s.deviceChanges:
			s.noteDevices()
		case r := <-s.preparations.results:
			s.notePrepared(r)
		case v := <-s.verdicts:
			v.device.noteVerdict(v)
		case device := <-s.guests.ended():
			s.noteGuestEnded(device)
		case <-s.o.shares.Yields():
			s.noteYields()
		case <-timer.C:
		}
	}
}

// receive takes a message of the manager.
func (s *supervisor) receive(d control.Desired) {
	s.manager.lastMessage = s.now()
	if s.manager.silent {
		s.manager.silent = false
		s.log.Info().Msg("manager answers again")
	}
	if w := s.target.desired; w != nil && w.ManagerID == d.ManagerID && d.Seq < w.Seq {
		return // an older message that came late
	}
	s.target.desired, s.target.waiting = &d, false
	if d.ManagerID == s.manager.id {
		s.openDevices(&d, false) // an earlier orchestrator's notes have only those with processes
		s.pardon(d.Processes)
	}
}

// pardon forgets the early failures of places that have no desired process. It also excuses
// the later ends of processes still there. The next process in such a place belongs to
// another function, even if the name is the same.
func (s *supervisor) pardon(wanted []control.DesiredProcess) {
	stays := map[place]bool{}
	for _, p := range wanted {
		stays[keyOf(p).place()] = true
	}
	for _, d := range s.devices {
		maps.DeleteFunc(d.backoffs, func(p place, _ *backoff) bool { return !stays[p] })
	}
	for k, c := range s.processes {
		c.pardoned = c.pardoned || !stays[k.place()]
	}
}

// act carries out plans until they are empty, and returns when to plan again.
func (s *supervisor) act() (next time.Time) {
	silentAt := s.judgeManager()
	for {
		todo, due := plan(s.now(), s.target, s.observedState(), s.limits)
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
	if s.target.waiting && (next.IsZero() || silentAt.Before(next)) {
		next = silentAt
	}
	if d := s.target.desired; d != nil {
		if d.ManagerID == s.manager.id {
			s.manager.ackSeq = d.Seq
		}
		if next.IsZero() || silentAt.Before(next) {
			next = silentAt
		}
	}
	return next
}

// judgeManager ends the processes of a manager that is gone, and returns when to check
// again. A silent manager that exists is stopped or hangs. Its processes go on: the data
// path may work, and the manager finds them when it resumes.
func (s *supervisor) judgeManager() (again time.Time) {
	silent := s.now().Sub(s.manager.lastMessage)
	switch {
	case s.target.desired == nil && !s.target.waiting, silent < control.PeerTimeout:
		return s.manager.lastMessage.Add(control.PeerTimeout)
	case s.link.PeerExists():
		if !s.manager.silent {
			s.manager.silent = true
			s.log.Warn().Dur("silent_ms", silent).Msg("manager does not answer; its processes keep running")
		}
		return s.now().Add(control.RepeatEvery)
	}
	s.log.Warn().Dur("silent_ms", silent).Int("processes", s.living()).Msg("manager ended; stopping its processes")
	s.target.desired, s.target.waiting, s.manager.silent = nil, false, false
	return time.Time{}
}

func (s *supervisor) observedState() observedState {
	f := observedState{
		managerID: s.manager.id,
		processes: make(map[key]observedProcess, len(s.processes)),
		held: func(p control.DesiredProcess) (until time.Time, ok bool) {
			d := s.deviceOf(p.Device)
			if b := d.backoffs[keyOf(p).place()]; b != nil {
				until = b.until
			}
			return until, d.held() == ""
		},
	}
	for k, c := range s.processes {
		q := c.observedProcess
		q.member, q.asleep = c.desired.Worker != "", c.device.wakesHeld() != ""
		f.processes[k] = q
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
		s.addProcess(e, a.key).Stringer("do", a.kind).Str("why", a.why+a.fault).Msg(a.kind.message())
	}
	switch a.kind {
	case adopt:
		s.manager.id = s.target.desired.ManagerID
		s.manager.socket = s.target.desired.AttachSocket
		s.manager.ackSeq = 0
		s.openDevices(s.target.desired, true)
		s.log.Info().Str("manager_id", s.manager.id).Msg("manager started")
	case spawn:
		s.spawn(a)
	case markExited:
		s.processes[a.key] = &child{observedProcess: observedProcess{state: control.Stopped}, device: s.deviceOf(a.wanted.Device), desired: a.wanted, reason: a.why}
	case wake:
		c.desired, c.woken = a.wanted, true
		s.share(a.key, c, control.DoWake)
	case reshare:
		c.desired = a.wanted
		s.reshare(a.key, c)
	case drain:
		c.drained, c.asked = s.now(), a.why
		s.saveProcess(a.key, c)
		s.order(a.key, c, control.Order{Do: control.DoDrain})
	case term:
		c.termed = s.now()
		if c.asked == "" {
			c.asked = a.why
		}
		s.signal(a.key, c, syscall.SIGTERM)
	case kill:
		s.kill(a.key, c, a.fault, a.why)
	case forget:
		if c.process != nil {
			c.process.forget()
		}
		delete(s.processes, a.key)
	}
}

// kill sends SIGKILL to a process. Its end comes as an event.
func (s *supervisor) kill(k key, c *child, fault, why string) {
	c.killed = s.now()
	if c.fault == "" {
		c.fault = fault
	}
	if why != "" && c.asked == "" {
		c.asked = why
	}
	s.signal(k, c, syscall.SIGKILL)
}

// signal saves why a process is to end, and then sends the signal. If this orchestrator ends before
// the process does, the next one knows that the end was ordered.
func (s *supervisor) signal(k key, c *child, sig syscall.Signal) {
	s.saveProcess(k, c)
	c.process.signal(sig)
}

func (s *supervisor) spawn(a action) {
	now := s.now()
	c := &child{
		observedProcess: observedProcess{state: control.Starting, spawned: now, since: now, terms: a.wanted.Terms},
		device:          s.deviceOf(a.wanted.Device), desired: a.wanted,
	}
	s.processes[a.key] = c
	command, err := s.command(a.wanted)
	if err != nil {
		c.reason = program.Line(err.Error())
		s.ended(a.key, c, control.Failed)
		return
	}
	sp := spec{
		key: a.key, worker: a.wanted.Worker, command: command, dir: a.wanted.Dir, environment: a.wanted.Environment,
		start: control.Start{
			IF: a.key.name, Instance: a.key.instance, Generation: a.key.generation,
			AttachSocket: s.manager.socket, Ticket: a.wanted.Ticket, CPUs: len(s.o.CPUs), Device: control.DeviceCPU,
			WorkerLimits: a.wanted.WorkerLimits,
		},
	}
	c.device.add(&sp)
	if a.wanted.SharedWeights && c.device.onGPU() {
		sp.start.WeightsSocket = c.device.shareWeights()
		if s.o.Sandbox != nil {
			sp.start.Prepared = s.o.Prepared
		}
	}
	sp.note = s.noteOf(a.key, c)
	c.noted = sp.note
	var p process
	if err = s.confine(&sp, c.device, modelFiles(&a.wanted)); err == nil {
		p, err = s.o.spawner.spawn(sp)
	}
	if err != nil {
		c.reason = program.Line(err.Error())
		s.ended(a.key, c, control.Failed)
		return
	}
	c.process = p
	// Loading is work as well, so the process has its share from the start.
	s.limit(a.key, c)
	s.follow(a.key, p)
}

// follow forwards the events of a process to the loop.
func (s *supervisor) follow(k key, p process) {
	go func() {
		for e := range p.events() {
			select {
			case s.reports <- report{k, e}:
			case <-s.done: // the process hangs on a lost device
			}
		}
	}()
}

// command returns the program of a process, and its arguments.
func (s *supervisor) command(wanted control.DesiredProcess) ([]string, error) {
	switch {
	case wanted.Worker != "" && (len(wanted.Command) > 0 || wanted.Framework != ""):
		return nil, fmt.Errorf("its model is a program of its own, which worker %s cannot host", wanted.Worker)
	case len(wanted.Command) > 0:
		return wanted.Command, nil
	case wanted.Framework == "":
		return []string{s.o.Self, "if"}, nil
	case s.o.Program == nil:
		return nil, fmt.Errorf("framework %s: this orchestrator has no program that runs it", wanted.Framework)
	}
	return s.o.Program(wanted.Framework)
}

// note takes an event of a process.
func (s *supervisor) note(r report) {
	c := s.processes[r.key]
	switch e := r.event; {
	case e.notice != nil:
		s.noteNotice(r.key, c, *e.notice)
	case e.broken != nil:
		if c.killed.IsZero() {
			s.kill(r.key, c, "protocol error: "+e.broken.Error(), "")
		}
	case e.exit != nil:
		s.noteExit(r.key, c, *e.exit)
	}
}

func (s *supervisor) noteNotice(k key, c *child, n control.Notice) {
	c.handshook = true
	c.woken = c.woken || n.Woken
	if n.State.Ended() {
		s.noteEnd(k, c, n)
		n.State = control.Draining
	}
	if !n.State.Follows(c.state) {
		if c.killed.IsZero() {
			s.kill(k, c, fmt.Sprintf("protocol error: state %s after %s", n.State, c.state), "")
		}
		return
	}
	if n.State != c.state {
		c.since = s.now()
		s.addProcess(s.log.Info(), k).Int("pid", c.process.pid()).Str("state", string(n.State)).Msg(n.State.Change())
	}
	if c.state = n.State; n.State == control.Ready {
		c.device.refused = nil
	}
	c.notice.PersistentBytes = cmp.Or(n.PersistentBytes, c.notice.PersistentBytes)
	c.notice.EphemeralBytes = cmp.Or(n.EphemeralBytes, c.notice.EphemeralBytes)
	c.notice.WarmupMillis = cmp.Or(n.WarmupMillis, c.notice.WarmupMillis)
	s.noteBatches(c, n)
	if n.Prepare {
		s.prepareModel(k, c)
	}
	c.notice.Reason = program.Line(n.Reason)
	if c.device.onGPU() {
		s.notePlace(k, c, n)
	}
}

// noteEnd takes the notice of a process that is about to end. The loop waits for the exit itself, for no
// longer than after a drain.
func (s *supervisor) noteEnd(k key, c *child, n control.Notice) {
	c.lastWords = program.Line(n.Reason)
	if n.State == control.Failed {
		if c.device.onGPU() {
			c.lastWords = s.guests.withGuests(c.device.Device, c.lastWords)
		}
		c.fault = cmp.Or(c.fault, c.lastWords, "the process reported a failure without a reason")
	}
	if n.DeviceLost && c.device.onGPU() {
		c.blameless = c.blameless || n.Blameless
		c.device.lose(k, c)
		if c.notice.SMs == 0 {
			c.device.refuse(k.name, c.lastWords)
		}
	}
	c.infeasibleGroups, c.groupsTooFew = n.InfeasibleGroups, len(n.InfeasibleGroups) > 0
	c.wrongAnswers = n.WrongAnswers
	if c.drained.IsZero() {
		c.drained = s.now()
	}
}

// noteExit judges whether a process ended as ordered, or failed. A crash during a
// drain is a failure. The manager orders a drain as soon as it sees a crash, which may be
// before the orchestrator sees it.
func (s *supervisor) noteExit(k key, c *child, e exit) {
	s.unlimit(k, c)
	state := control.Failed
	switch {
	case e.signal != 0 && !e.ours:
		// Neither an order nor a deadline of the orchestrator is the reason.
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
		// The epoch has moved on, and the manager's order is on its way.
		state = control.Stopped
		c.reason = "another process took over the ring"
	case e.clean():
		c.reason = because("the process ended without an order", cmp.Or(c.lastWords, e.String()))
	default:
		c.reason = because(c.lastWords, e.String())
	}
	s.ended(k, c, state)
}

func (s *supervisor) ended(k key, c *child, state control.State) {
	now := s.now()
	lived := now.Sub(c.spawned)
	c.state, c.since = state, now
	b := c.device.backoffs[k.place()]
	if b == nil {
		b = &backoff{}
		if !c.pardoned {
			c.device.backoffs[k.place()] = b
		}
	}
	if c.device.onGPU() {
		c.device.release(c)
	}
	// A loss of the whole device does not count toward backoff.
	expected := false
	switch {
	case !c.failed.IsZero(), c.pardoned:
	case c.groupsTooFew && b.recordTooFew(len(c.infeasibleGroups), c.reason):
	case c.wrongAnswers && b.recordWrong(c.wokenPercent, c.reason):
		expected = true // the manager tries percentages
	default:
		b.ended(now, lived, state == control.Failed, c.reason)
	}
	e := s.log.Info()
	if state == control.Failed && !expected {
		e = s.log.Error()
	}
	if wait := b.until.Sub(now); wait > 0 {
		e = e.Dur("backoff_ms", wait)
	}
	s.addProcess(e, k).Str("state", string(state)).Str("reason", c.reason).Dur("lived_ms", lived).Msg("process ended")
}

// living counts the processes that the end waits for. A process that was killed on a lost device may hang in the driver.
func (s *supervisor) living() (n int) {
	for _, c := range s.processes {
		hangs := c.device.Lost != "" && !c.killed.IsZero() && s.now().Sub(c.killed) > s.limits.term
		if !c.state.Ended() && !hangs {
			n++
		}
	}
	return n
}

// publish sends the observed state to the manager. It lists processes that wait for their
// backoff as starting, without a process id.
func (s *supervisor) publish() {
	o := control.Observed{
		OrchestratorID: s.id, ManagerID: s.manager.id, AckSeq: s.manager.ackSeq,
		CPUs:      len(s.o.CPUs),
		Processes: make([]control.ObservedProcess, 0, len(s.processes)),
	}
	for _, d := range s.devices {
		o.Devices = append(o.Devices, d.observe())
	}
	s.observeWaiting(&o)
	for _, k := range sortedKeys(s.processes) {
		o.Processes = append(o.Processes, s.observeProcess(k, s.processes[k]))
	}
	if err := s.link.Publish(o); err != nil {
		s.log.Error().Err(err).Msg("cannot publish observed state")
	}
}

// observeWaiting adds the desired processes that were not started yet.
func (s *supervisor) observeWaiting(o *control.Observed) {
	d := s.target.desired
	if d == nil || d.ManagerID != s.manager.id {
		return
	}
	for _, p := range d.Processes {
		k := keyOf(p)
		if s.processes[k] != nil {
			continue
		}
		q := control.ObservedProcess{IF: k.name, Instance: k.instance, Generation: k.generation, Device: p.Device, State: control.Starting}
		on := s.deviceOf(p.Device)
		q.Reason = on.held()
		if b := on.backoffs[k.place()]; b != nil && b.failures > 0 {
			q.Reason = fmt.Sprintf("waiting %v after %d early failures; the last one: %s", b.delay(), b.failures, b.last)
		}
		o.Processes = append(o.Processes, q)
	}
}

// observeProcess returns the observed state of a process.
func (s *supervisor) observeProcess(k key, c *child) control.ObservedProcess {
	q := control.ObservedProcess{
		IF: k.name, Instance: k.instance, Generation: k.generation, Device: c.device.Device,
		State: c.state, SharePercent: c.terms.SharePercent, Reason: c.notice.Reason,
		PersistentBytes: c.notice.PersistentBytes, EphemeralBytes: c.notice.EphemeralBytes, WarmupMillis: c.notice.WarmupMillis,
		Batches: c.notice.Batches, WarmingUp: !c.warmingSince.IsZero(),
	}
	if c.process != nil {
		q.PID = c.process.pid()
	}
	if m, ok := c.process.(*member); ok {
		q.Superseded = m.isSuperseded()
	}
	if c.state.Ended() {
		q.Reason = c.reason
	}
	if c.device.onGPU() {
		s.observeChild(k, c, &q)
	} else if c.desired.Worker == "" {
		total, demoted := s.o.shares.Spent(k.id())
		q.DeviceNanos, q.DemotedNanos = int64(total), int64(demoted)
	}
	if q.Reason == "" {
		q.Reason = s.triedAgain(k, c)
	}
	return q
}

// triedAgain returns why the previous process failed, for a process that is starting in a
// place without a serving process. Otherwise it returns an empty string.
func (s *supervisor) triedAgain(k key, c *child) string {
	b := c.device.backoffs[k.place()]
	if b == nil || b.last == "" || c.state != control.Starting && c.state != control.Linking {
		return ""
	}
	for other, c := range s.processes {
		if other.place() == k.place() && c.state == control.Active {
			return ""
		}
	}
	return "starting again; the last process failed: " + b.last
}

func (s *supervisor) addProcess(e *zerolog.Event, k key) *zerolog.Event {
	return e.Str("if", k.name).Int("instance", k.instance).Uint32("generation", k.generation)
}

// because joins an event and its cause, unless the cause already contains the event.
func because(what, why string) string {
	if what == "" || strings.Contains(why, what) {
		return program.Line(why)
	}
	return program.Line(what + ": " + why)
}
