package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control/oomscore"
	"github.com/penstock/penstock/internal/procstat"
	"github.com/penstock/penstock/shm/cpuset"
)

// Local is a Keeper whose own process is the parent. One operating system thread forks
// all processes and lives until Close, for two reasons. The kernel sends the parent-death
// signal when the thread that forked ends. A child inherits that thread's CPU affinity.
type Local struct {
	starts chan func()
	cpus   []int // the thread's CPUs at its start; owned by the thread
	quit   chan struct{}
	ended  chan struct{} // closed when the thread has ended
	waits  sync.WaitGroup

	serving sync.Mutex // held by the running Serve: there is at most one

	mu     sync.Mutex
	held   map[string]*kept
	closed bool
}

// kept is a process that the keeper holds.
type kept struct {
	cmd     *exec.Cmd
	started time.Time
	files   [3]int // link, stdout, stderr; callers get duplicates (dup(2))
	done    chan struct{}

	// Guarded by Local.mu.
	note   json.RawMessage
	sent   []syscall.Signal // signals sent while it ran
	reaped bool             // another process may have its process id now
	exit   Exit             // valid once done is closed
}

// NewLocal starts the thread. The caller closes it.
func NewLocal() *Local {
	l := &Local{starts: make(chan func()), quit: make(chan struct{}), ended: make(chan struct{}), held: map[string]*kept{}}
	go func() {
		defer close(l.ended)
		// Never unlocked: the thread ends with this goroutine.
		runtime.LockOSThread()
		l.cpus, _ = cpuset.Allowed()
		for {
			select {
			case start := <-l.starts:
				start()
			case <-l.quit:
				return
			}
		}
	}()
	return l
}

// Start implements Keeper.
func (l *Local) Start(c Command) (*Process, error) {
	k, err := l.start(c)
	if err != nil {
		return nil, err
	}
	p, err := l.process(c.ID, k)
	if err != nil {
		l.Signal(c.ID, syscall.SIGKILL)
		<-k.done
		l.Forget(c.ID)
	}
	return p, err
}

func (l *Local) start(c Command) (*kept, error) {
	l.mu.Lock()
	_, taken := l.held[c.ID]
	closed := l.closed
	l.mu.Unlock()
	switch {
	case closed:
		return nil, ErrClosed
	case taken:
		return nil, fmt.Errorf("process %s exists already", c.ID)
	}

	k := &kept{note: c.Note, done: make(chan struct{})}
	theirs, err := k.open()
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	if len(c.Greeting) > 0 {
		if _, err := unix.Write(k.files[0], c.Greeting); err != nil {
			k.close()
			return nil, fmt.Errorf("write greeting: %w", err)
		}
	}
	k.cmd = &exec.Cmd{
		Path: c.Path, Args: c.Args, Dir: c.Dir, Env: c.Env,
		Stdout: theirs[1], Stderr: theirs[2], ExtraFiles: theirs[:1],
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	started := make(chan error)
	start := func() {
		cpus := c.CPUs
		if len(cpus) == 0 {
			cpus = l.cpus
		}
		if err := cpuset.PinThread(0, cpus); err != nil {
			started <- fmt.Errorf("set CPUs: %w", err)
			return
		}
		started <- k.cmd.Start()
	}
	select {
	case l.starts <- start:
	case <-l.ended:
		k.close()
		return nil, ErrClosed
	}
	if err := <-started; err != nil {
		k.close()
		return nil, err
	}
	k.started = time.Now()
	// If the keeper has privileges, the program cannot take this back.
	_ = oomscore.Set(k.cmd.Process.Pid, oomscore.Function) // it may have ended

	l.mu.Lock()
	l.held[c.ID] = k
	l.mu.Unlock()
	l.waits.Go(func() { l.wait(k) })
	return k, nil
}

// open makes the link and the pipes. The keeper's ends go into k.files, and the process's
// into theirs, both in the order link, stdout, stderr.
func (k *kept) open() (theirs []*os.File, err error) {
	k.files = [3]int{-1, -1, -1}
	defer func() {
		if err != nil {
			k.close()
			for _, f := range theirs {
				f.Close()
			}
		}
	}()
	for i, name := range []string{"link", "stdout", "stderr"} {
		var ends [2]int
		if i == 0 {
			ends, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		} else {
			err = unix.Pipe2(ends[:], unix.O_CLOEXEC)
		}
		if err != nil {
			return theirs, fmt.Errorf("make %s: %w", name, err)
		}
		k.files[i] = ends[0]
		theirs = append(theirs, os.NewFile(uintptr(ends[1]), name))
		if err := unix.SetNonblock(ends[0], true); err != nil {
			return theirs, fmt.Errorf("make %s: %w", name, err)
		}
	}
	return theirs, nil
}

func (k *kept) close() {
	for i, fd := range k.files {
		if fd >= 0 {
			unix.Close(fd)
			k.files[i] = -1
		}
	}
}

// wait waits for a process, ends the processes that it left behind, and keeps its exit
// status. It reports the exit when none of them runs any more.
func (l *Local) wait(k *kept) {
	pid := k.cmd.Process.Pid
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	// No process that is being started escapes: the kernel does not complete a fork while a signal to the
	// group is pending (copy_process). The sandbox keeps processes in the group.
	l.mu.Lock()
	_ = unix.Kill(-pid, syscall.SIGKILL)
	_ = k.cmd.Wait() // ProcessState has the result
	k.reaped = true
	l.mu.Unlock()
	awaitGroup(pid)

	l.mu.Lock()
	defer l.mu.Unlock()
	k.exit.Code = k.cmd.ProcessState.ExitCode()
	if status, ok := k.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		k.exit.Signal = status.Signal()
		k.exit.Ours = slices.Contains(k.sent, k.exit.Signal)
	}
	close(k.done)
}

// groupPoll is the interval at which awaitGroup looks.
const groupPoll = time.Millisecond

// awaitGroup returns when no process of a group that was killed can run code. The group's leader has been
// reaped. The other processes are not children of this one, so it cannot wait(2) for them.
func awaitGroup(group int) {
	for !errors.Is(unix.Kill(-group, 0), unix.ESRCH) && groupRuns(group) {
		time.Sleep(groupPoll)
	}
}

// groupRuns reports whether a process group has a thread that has not ended.
func groupRuns(group int) bool {
	pids, _ := procstat.PIDs()
	for _, pid := range pids {
		stat, err := procstat.Read(pid)
		if err != nil || int(stat.Number(procstat.ProcessGroup)) != group {
			continue // it has ended, or is another's
		}
		// A process looks like a zombie as soon as its first thread has ended.
		if !stat.Ended() || stat.Number(procstat.Threads) > 1 {
			return true
		}
	}
	return false
}

// process returns a handle on k, with duplicates of its files.
func (l *Local) process(id string, k *kept) (*Process, error) {
	var files [3]*os.File
	l.mu.Lock()
	note, reaped := k.note, k.reaped
	for i, fd := range k.files {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			l.mu.Unlock()
			for _, f := range files[:i] {
				f.Close()
			}
			return nil, fmt.Errorf("pass on process %s: %w", id, err)
		}
		files[i] = os.NewFile(uintptr(own), id)
	}
	l.mu.Unlock()
	exit := make(chan Exit, 1)
	go func() {
		<-k.done
		exit <- k.exit
	}()
	return &Process{
		ID: id, PID: k.cmd.Process.Pid, Started: k.started, Note: note,
		Link: files[0], Stdout: files[1], Stderr: files[2], Exit: exit, Exited: reaped,
	}, nil
}

// Held implements Keeper.
func (l *Local) Held() []*Process {
	l.mu.Lock()
	held := make(map[string]*kept, len(l.held))
	for id, k := range l.held {
		held[id] = k
	}
	l.mu.Unlock()
	var list []*Process
	for id, k := range held {
		if p, err := l.process(id, k); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// Signal implements Keeper.
func (l *Local) Signal(id string, sig syscall.Signal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.held[id]
	if k == nil || k.reaped {
		return
	}
	if !exited(k.cmd.Process.Pid) {
		k.sent = append(k.sent, sig)
	}
	// Only ESRCH is possible: the whole group is gone, which is the signal's purpose.
	_ = unix.Kill(-k.cmd.Process.Pid, sig)
}

// exited reports whether a child has exited and is not reaped yet. A signal sent from now
// on is not what ended it.
func exited(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0
}

// Note implements Keeper.
func (l *Local) Note(id string, note json.RawMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.held[id]; k != nil {
		k.note = note
	}
}

// Forget implements Keeper.
func (l *Local) Forget(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.held[id]; k != nil && k.reaped {
		k.close()
		delete(l.held, id)
	}
}

// PID implements Keeper.
func (l *Local) PID() int { return os.Getpid() }

// Gone implements Keeper.
func (l *Local) Gone() <-chan struct{} { return nil }

// endAll kills all processes, and returns when it holds none.
func (l *Local) endAll() {
	l.mu.Lock()
	var ids []string
	for id := range l.held {
		ids = append(ids, id)
	}
	l.mu.Unlock()
	for _, id := range ids {
		l.Signal(id, syscall.SIGKILL)
	}
	for _, id := range ids {
		l.mu.Lock()
		k := l.held[id]
		l.mu.Unlock()
		if k != nil {
			<-k.done
			l.Forget(id)
		}
	}
}

// Close kills all processes, and ends the thread.
func (l *Local) Close() error {
	l.mu.Lock()
	again := l.closed
	l.closed = true
	l.mu.Unlock()
	if again {
		return nil
	}
	l.endAll()
	close(l.quit)
	<-l.ended
	l.endAll() // a process may have been starting
	l.waits.Wait()
	return nil
}
