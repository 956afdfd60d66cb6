package orchestrator

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/shm/cpuset"
)

// execSpawner starts real processes. All of them are forked by one operating
// system thread that lives until close, for two things that belong to a thread:
// the parent-death signal comes when the thread that forked ends, and a child
// inherits that thread's CPU affinity.
type execSpawner struct {
	log    zerolog.Logger
	starts chan func()
	ended  chan struct{}
}

// newExecSpawner starts the thread, on the CPUs of the inference functions.
func newExecSpawner(cpus []int, log zerolog.Logger) (*execSpawner, error) {
	s := &execSpawner{log: log, starts: make(chan func()), ended: make(chan struct{})}
	failed := make(chan error)
	go s.thread(cpus, failed)
	if err := <-failed; err != nil {
		<-s.ended
		return nil, err
	}
	return s, nil
}

func (s *execSpawner) thread(cpus []int, failed chan<- error) {
	defer close(s.ended)
	// Never unlocked: the thread ends with this goroutine, and does not go back,
	// with its affinity, to run others.
	runtime.LockOSThread()
	if err := cpuset.PinThread(0, cpus); err != nil {
		failed <- fmt.Errorf("CPUs of the inference functions: %w", err)
		return
	}
	failed <- nil
	for start := range s.starts {
		start()
	}
}

// close ends the thread, and with it whatever process should still be there.
func (s *execSpawner) close() error {
	close(s.starts)
	<-s.ended
	return nil
}

// afterlife is how long output and notices are still read once a process is gone:
// what it wrote is there, but one that left its group may hold the pipes for ever.
const afterlife = 200 * time.Millisecond

func (s *execSpawner) spawn(sp spec) (process, error) {
	parent, end, err := control.SocketPair()
	if err != nil {
		return nil, fmt.Errorf("start %v: %w", sp.key, err)
	}
	defer end.Close()
	var pipes [2]struct{ r, w *os.File }
	for i := range pipes {
		if pipes[i].r, pipes[i].w, err = os.Pipe(); err != nil {
			break
		}
	}
	c := &execProcess{link: parent, out: make(chan event)}
	if err == nil {
		c.cmd = exec.Command(sp.command[0], sp.command[1:]...)
		c.cmd.Dir = sp.dir
		if len(sp.environment) > 0 {
			c.cmd.Env = inherited(sp.start.Device)
			for name, value := range sp.environment {
				c.cmd.Env = append(c.cmd.Env, name+"="+value)
			}
		}
		c.cmd.Stdout, c.cmd.Stderr = pipes[0].w, pipes[1].w
		c.cmd.ExtraFiles = []*os.File{end} // becomes control.ChildFD
		c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		done := make(chan struct{})
		s.starts <- func() {
			err = c.cmd.Start()
			close(done)
		}
		<-done
	}
	for _, p := range pipes {
		if p.w != nil {
			p.w.Close()
		}
	}
	if err != nil {
		for _, p := range pipes {
			if p.r != nil {
				p.r.Close()
			}
		}
		parent.Close()
		return nil, fmt.Errorf("start %v: %w", sp.key, err)
	}
	c.stdout, c.stderr = pipes[0].r, pipes[1].r
	log := s.log.With().Str("if", sp.key.name).Int("instance", sp.key.instance).
		Uint32("generation", sp.key.generation).Logger()
	go c.watch(log)
	// A process that cannot even take this is dying; its end comes as an event.
	if err := parent.Order(control.Order{Do: control.DoStart, Start: &sp.start}); err != nil {
		log.Warn().Err(err).Msg("process does not take its start")
	}
	return c, nil
}

// execProcess is one real process.
type execProcess struct {
	cmd            *exec.Cmd
	link           *control.Parent
	stdout, stderr *os.File
	out            chan event

	mu     sync.Mutex
	reaped bool // its process id, and its group's, may be another's
}

func (c *execProcess) pid() int                    { return c.cmd.Process.Pid }
func (c *execProcess) order(o control.Order) error { return c.link.Order(o) }
func (c *execProcess) events() <-chan event        { return c.out }
func (c *execProcess) group(sig syscall.Signal)    { _ = unix.Kill(-c.pid(), sig) }

func (c *execProcess) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		// Only ESRCH is possible: all of the group is gone, which is what a signal is for.
		c.group(sig)
	}
}

// watch is the one goroutine that waits for the process, and says how it ended.
func (c *execProcess) watch(log zerolog.Logger) {
	defer close(c.out)
	var readers sync.WaitGroup
	var tail tail
	readers.Add(3)
	go func() {
		defer readers.Done()
		readLines(c.stdout, func(l string) { relay(log, "stdout", l) })
	}()
	go func() {
		defer readers.Done()
		readLines(c.stderr, func(l string) {
			tail.add(relay(log, "stderr", l))
		})
	}()
	go func() {
		defer readers.Done()
		c.readNotices()
	}()

	waitUnreaped(c.pid())
	c.mu.Lock()
	c.group(syscall.SIGKILL) // what it started and left behind
	err := c.cmd.Wait()
	c.reaped = true
	c.mu.Unlock()

	deadline := time.Now().Add(afterlife)
	hangup := time.AfterFunc(afterlife, func() { c.link.Close() })
	c.stdout.SetReadDeadline(deadline)
	c.stderr.SetReadDeadline(deadline)
	readers.Wait()
	hangup.Stop()
	c.link.Close()
	c.stdout.Close()
	c.stderr.Close()
	c.out <- event{exit: c.exit(err, tail.lines())}
}

// waitUnreaped waits until the process has ended, and leaves its id taken.
func waitUnreaped(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (c *execProcess) exit(err error, tail []string) *exit {
	e := &exit{code: c.cmd.ProcessState.ExitCode(), tail: tail}
	if status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		e.signal = status.Signal()
	}
	if e.signal == 0 && e.code < 0 { // cannot be, unless somebody else has waited for it
		e.tail = append(e.tail, fmt.Sprint("wait: ", err))
	}
	return e
}

// readNotices passes on what the process says, until it says nonsense or nothing more.
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
