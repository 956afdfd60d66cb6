package orchestrator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/cgroup"
	"github.com/penstock/penstock/orchestrator/cpushare"
	"github.com/penstock/penstock/orchestrator/keeper"
	"github.com/penstock/penstock/orchestrator/program"
	"github.com/penstock/penstock/shm/cpuset"
)

// execSpawner starts real processes, which a keeper holds.
type execSpawner struct {
	log    zerolog.Logger
	keeper keeper.Keeper
	cpus   []int
	self   string // the binary that contains the launcher
	dir    string // the runtime folder
	oom    cgroup.OOMKills
	shares cpushare.Shares

	// warned: it was logged that limits are not enforced.
	warned atomic.Bool

	workers workers
}

// newExecSpawner returns a spawner that starts processes through k, on these CPUs. The caller
// closes k.
func newExecSpawner(k keeper.Keeper, cpus []int, self, dir string, log zerolog.Logger) (*execSpawner, error) {
	if err := tryCPUs(cpus); err != nil {
		return nil, fmt.Errorf("CPUs of the inference functions: %w", err)
	}
	s := &execSpawner{log: log, keeper: k, cpus: cpus, self: self, dir: dir}
	s.workers = workers{s: s, hosts: map[string]*host{}}
	return s, nil
}

// tryCPUs returns an error if a thread cannot be pinned to these CPUs.
func tryCPUs(cpus []int) error {
	failed := make(chan error)
	go func() {
		// Never unlocked: the thread ends with this goroutine. An unlocked thread would run
		// other goroutines with this affinity.
		runtime.LockOSThread()
		failed <- cpuset.PinThread(0, cpus)
	}()
	return <-failed
}

// afterlife is how long output and notices are still read once a process has ended. They hold
// what the process wrote. A process that has left the group may keep the pipes open for ever.
const afterlife = 200 * time.Millisecond

func (s *execSpawner) spawn(sp spec) (process, error) {
	if sp.worker != "" {
		return s.workers.spawn(sp)
	}
	c, err := s.start(sp)
	if err != nil {
		return nil, err
	}
	go c.run()
	return c, nil
}

// start starts a process. The caller has to run it.
func (s *execSpawner) start(sp spec) (*execProcess, error) {
	fail := func(err error) (*execProcess, error) { return nil, fmt.Errorf("start %v: %w", sp.key, err) }
	greeting, err := control.Greeting(sp.start)
	if err != nil {
		return fail(err)
	}
	cmd := exec.Command(sp.command[0], sp.command[1:]...)
	if cmd.Err != nil {
		return fail(cmd.Err)
	}
	cmd.Dir, cmd.Env = sp.dir, os.Environ()
	if len(sp.environment) > 0 {
		cmd.Env = program.Environment(sp.start.Device)
		for name, value := range sp.environment {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	var counters cgroup.Counters
	if sp.confined != nil {
		sp.confined.Parent = s.keeper.PID()
		counters = s.hold(&sp)
		if err := program.Confine(cmd, s.self, sp.confined); err != nil {
			return fail(errors.Join(err, s.shares.Remove(sp.key.id())))
		}
	}
	p, err := s.keeper.Start(keeper.Command{
		ID: sp.key.String(), Path: cmd.Path, Args: cmd.Args, Dir: cmd.Dir, Env: cmd.Env, CPUs: s.cpus, Greeting: greeting, Note: sp.note,
	})
	if err != nil {
		if sp.confined != nil {
			err = errors.Join(err, os.RemoveAll(sp.confined.Private), s.shares.Remove(sp.key.id()))
		}
		return fail(err)
	}
	if counters.File == "" {
		tasks, limit := counters.Tasks, counters.TaskLimit
		counters, err = cgroup.CountersOf(p.PID)
		counters.Tasks, counters.TaskLimit = tasks, limit
	}
	if err != nil {
		s.log.Debug().Err(err).Int("pid", p.PID).Msg("cannot count OOM kills in the process's control group")
	}
	c, err := s.watch(p, sp.key, false)
	if err != nil {
		go keeper.Drop(s.keeper, p, 0)
		return fail(err)
	}
	c.kernel = counters
	return c, nil
}

// hold makes the group of a process that is about to start, with its limits.
func (s *execSpawner) hold(sp *spec) cgroup.Counters {
	h, err := s.shares.Hold(sp.key.id(), sp.limits, sp.start.Device == control.DeviceCPU)
	if err != nil && !s.warned.Swap(true) {
		s.log.Warn().Err(err).Msg("some limits of functions are not enforced; see `penstock doctor`")
	}
	sp.confined.Join, sp.confined.FileBytes = h.Join, sp.limits.MemoryBytes/2
	return h.Counters
}

// held lists the processes that another orchestrator started. Their events begin after
// resume.
func (s *execSpawner) held() []heldProcess {
	var list []heldProcess
	for _, p := range s.keeper.Held() {
		var w savedWorker
		if json.Unmarshal(p.Note, &w) == nil && w.Worker != "" {
			list = append(list, s.heldMembers(p, w)...)
			continue
		}
		list = append(list, heldProcess{id: p.ID, note: p.Note, age: time.Since(p.Started), exited: p.Exited, held: p})
	}
	return list
}

// heldMembers takes over a worker, or ends it, and lists its members.
func (s *execSpawner) heldMembers(p *keeper.Process, w savedWorker) []heldProcess {
	list, err := s.workers.resume(p, w)
	if err != nil {
		s.log.Warn().Err(err).Str("worker", w.Worker).Msg("cannot take over a worker of the last orchestrator; killing it")
		go keeper.Drop(s.keeper, p, 0)
	}
	return list
}

// resume takes over a held process. The last orchestrator may have read its handshake and
// died before it could note that, so none is expected here. A process checks the version
// itself.
func (s *execSpawner) resume(h heldProcess, k key, counters cgroup.Counters) (process, error) {
	if h.member != nil {
		return h.member, nil
	}
	const shook = true
	c, err := s.watch(h.held, k, shook)
	if err != nil {
		return nil, fmt.Errorf("take over %v: %w", k, err)
	}
	c.kernel = counters
	go c.run()
	return c, nil
}

// drop ends a held process, cleanly if it can, and forgets it. It returns when the process
// has ended.
func (s *execSpawner) drop(h heldProcess, patience time.Duration) {
	if h.member != nil {
		h.member.drop(patience)
		return
	}
	keeper.Drop(s.keeper, h.held, patience)
}

// watch returns a process for what the keeper holds.
func (s *execSpawner) watch(p *keeper.Process, k key, shook bool) (*execProcess, error) {
	link, err := control.NewParent(p.Link, shook)
	if err != nil {
		return nil, err
	}
	return &execProcess{
		held: p, keeper: s.keeper, link: link, private: privateFolder(s.dir, k), out: make(chan event), oom: &s.oom,
		log: s.log.With().Str("if", k.name).Int("instance", k.instance).Uint32("generation", k.generation).Logger(),
	}, nil
}

// execProcess is one real process.
type execProcess struct {
	held   *keeper.Process
	keeper keeper.Keeper
	link   *control.Parent
	out    chan event
	log    zerolog.Logger
	oom    *cgroup.OOMKills
	kernel cgroup.Counters
	// private is the process's private folder, which may not exist.
	private string
}

func (c *execProcess) pid() int                    { return c.held.PID }
func (c *execProcess) order(o control.Order) error { return c.link.Order(o) }
func (c *execProcess) events() <-chan event        { return c.out }
func (c *execProcess) signal(sig syscall.Signal)   { c.keeper.Signal(c.held.ID, sig) }
func (c *execProcess) note(note json.RawMessage)   { c.keeper.Note(c.held.ID, note) }
func (c *execProcess) forget()                     { c.keeper.Forget(c.held.ID) }
func (c *execProcess) counters() cgroup.Counters   { return c.kernel }

// passOn calls stdout and stderr with the lines that a process prints, until it has ended. end waits for that.
func passOn(p *keeper.Process, stdout, stderr func(line string), end func() keeper.Exit) keeper.Exit {
	var readers sync.WaitGroup
	readers.Go(func() { program.ReadLines(p.Stdout, stdout) })
	readers.Go(func() { program.ReadLines(p.Stderr, stderr) })
	exit := end()
	deadline := time.Now().Add(afterlife)
	p.Stdout.SetReadDeadline(deadline)
	p.Stderr.SetReadDeadline(deadline)
	readers.Wait()
	p.Stdout.Close()
	p.Stderr.Close()
	return exit
}

// run passes on what the process reports, and its exit.
func (c *execProcess) run() {
	defer close(c.out)
	var notices sync.WaitGroup
	notices.Go(c.readNotices)
	var tail program.Tail
	output := program.NewOutput(c.log)
	end := passOn(c.held, func(l string) { output.Relay("stdout", l) }, func(l string) { tail.Add(output.Relay("stderr", l)) }, func() keeper.Exit {
		exit := c.await()
		time.AfterFunc(afterlife, func() { c.link.Close() })
		return exit
	})
	notices.Wait()
	output.End()
	c.link.Close()
	if err := removePrivate(c.private); err != nil {
		c.log.Warn().Err(err).Msg("cannot remove private folder")
	}
	e := exit{code: end.Code, signal: end.Signal, ours: end.Ours, tail: tail.Lines()}
	if refused := c.kernel.RefusedTasks(); refused != "" && !e.clean() && !e.ours {
		e.tail = append([]string{refused}, e.tail...)
	}
	if e.signal == syscall.SIGKILL && !e.ours {
		e.oom = c.oom.Claim(c.kernel)
	}
	c.out <- event{exit: &e}
}

// limitsInterval is how often a process's limits are looked at.
const limitsInterval = time.Second

// await waits for the process's end. It logs once that the process has reached its limit of processes: such a
// process may go on, and do less than it should.
func (c *execProcess) await() keeper.Exit {
	ticks := time.NewTicker(limitsInterval)
	defer ticks.Stop()
	for {
		select {
		case end := <-c.held.Exit:
			return end
		case <-ticks.C:
			if refused := c.kernel.RefusedTasks(); refused != "" {
				c.log.Warn().Msg(refused)
				return <-c.held.Exit
			}
		}
	}
}

// readNotices passes on notices until the process closes the link or sends something else.
func (c *execProcess) readNotices() {
	for {
		n, err := c.link.ReadNotice()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			c.out <- event{broken: err}
			return
		}
		c.out <- event{notice: &n}
	}
}
