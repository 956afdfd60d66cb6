package mps

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/internal/procstat"
)

// isMPS reports whether a process is a control daemon or a server. It compares the name
// (proc_pid_comm(5), which keeps 15 bytes).
func isMPS(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && strings.TrimSpace(string(b)) == "nvidia-cuda-mps"
}

// environOf returns the environment that a process was started with; nil if it cannot
// be read.
func environOf(pid int) map[string]string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return nil
	}
	env := map[string]string{}
	for _, e := range strings.Split(string(b), "\x00") {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	return env
}

// processes lists the MPS daemons and servers that run.
func processes() []int {
	pids, _ := procstat.PIDs()
	return slices.DeleteFunc(pids, func(pid int) bool { return !isMPS(pid) || !alive(pid) })
}

// belonging lists the MPS processes of one folder: daemon and servers.
func belonging(f folder) []int {
	var list []int
	for _, pid := range processes() {
		if environOf(pid)["CUDA_MPS_PIPE_DIRECTORY"] == f.pipe {
			list = append(list, pid)
		}
	}
	return list
}

// killAll kills the MPS processes of a folder and waits until they are gone. A process
// that is ending has no environment any more, so killAll waits for them by process id.
func killAll(f folder) error {
	const timeout = 2 * time.Second
	killed := map[int]bool{}
	for end := runclock.Now() + timeout; ; time.Sleep(2 * time.Millisecond) {
		for _, pid := range belonging(f) {
			unix.Kill(pid, unix.SIGKILL)
			killed[pid] = true
		}
		left := living(slices.Collect(maps.Keys(killed)))
		if len(left) == 0 {
			return nil
		}
		if runclock.Now() > end {
			return fmt.Errorf("MPS processes %v did not end within %v after SIGKILL", left, timeout)
		}
	}
}

// living returns the processes that have not ended.
func living(pids []int) []int {
	return slices.DeleteFunc(pids, func(pid int) bool { return !alive(pid) })
}

// Stranger is an MPS daemon that this node does not own.
type Stranger struct {
	PID int
	// Folder is its pipe folder; "?" if that cannot be read.
	Folder string
}

// Quit is the command that ends the daemon.
func (s Stranger) Quit() string {
	return fmt.Sprintf("echo quit | CUDA_MPS_PIPE_DIRECTORY=%s %s", s.Folder, controlProgram)
}

// Strangers lists the MPS control daemons of this machine that may have a GPU, except that of the runtime
// folder dir. Their clients and those of dir's daemon share the GPU by time slicing.
func Strangers(dir, uuid string) []Stranger {
	own := ""
	if dir, err := filepath.Abs(dir); err == nil {
		own = pipeFolder(dir, uuid)
	}
	var list []Stranger
	for _, pid := range processes() {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !strings.HasPrefix(filepath.Base(strings.Split(string(cmdline), "\x00")[0]), controlProgram) {
			continue // a server
		}
		s := Stranger{PID: pid, Folder: "?"}
		if env := environOf(pid); env != nil {
			of := env["CUDA_VISIBLE_DEVICES"]
			if of != uuid && (strings.HasPrefix(of, "GPU-") || strings.HasPrefix(of, "MIG-")) {
				continue // of another GPU or instance
			}
			if s.Folder = env["CUDA_MPS_PIPE_DIRECTORY"]; s.Folder == "" {
				s.Folder = "/tmp/nvidia-mps" // the program's default
			}
		}
		if s.Folder != own {
			list = append(list, s)
		}
	}
	return list
}

// watched is a process, not a child of this one, whose end is noticed at once.
type watched struct {
	pid  int
	gone chan struct{} // closed when it has ended

	file *os.File
	stop chan struct{}
	once sync.Once
	done sync.WaitGroup
}

// watch starts to watch a running process.
func watch(pid int) (*watched, error) {
	w := &watched{pid: pid, gone: make(chan struct{}), stop: make(chan struct{})}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || err == nil && !alive(pid) {
		if err == nil {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("process %d has ended", pid)
	}
	w.done.Add(1)
	if err != nil {
		// The kernel has no pid descriptors (before 5.10).
		go w.poll()
		return w, nil
	}
	w.file = os.NewFile(uintptr(fd), "pidfd")
	go w.wait()
	return w, nil
}

// wait waits until the descriptor is readable, which means that the process has ended
// (pidfd_open(2)), or is closed.
func (w *watched) wait() {
	defer w.done.Done()
	raw, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	ended := false
	raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		ended = err == nil && n == 1
		return ended
	})
	if ended {
		close(w.gone)
	}
}

func (w *watched) poll() {
	defer w.done.Done()
	for alive(w.pid) {
		select {
		case <-w.stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
	close(w.gone)
}

// over reports whether the process has ended. It waits 5 ms, as the end of a daemon or
// server that dies with the other may be seen a little later.
func (w *watched) over() bool {
	select {
	case <-w.gone:
		return true
	case <-time.After(5 * time.Millisecond):
		return false
	}
}

// close stops watching. It may be called on nil, and twice.
func (w *watched) close() {
	if w == nil {
		return
	}
	w.once.Do(func() {
		close(w.stop)
		if w.file != nil {
			w.file.Close()
		}
		w.done.Wait()
	})
}
