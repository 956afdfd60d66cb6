package kubetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a program of the cluster. It ends with this process, however that ends. Its methods may be used by one
// goroutine at a time.
type Process struct {
	name    string
	command []string
	env     []string
	log     string // path

	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended; then err says how
	err  error
}

// launcher runs functions on a thread that lives as long as this process. The kernel sends a child's parent-death
// signal when the thread ends that started it, and Go ends threads.
var launcher = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// Start starts the program again after Kill.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	defer log.Close()

	cmd := exec.Command(p.command[0], p.command[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	started := make(chan error)
	launcher() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}

	p.cmd, p.done = cmd, make(chan struct{})
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return nil
}

// Kill kills the program with SIGKILL and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Ended reports whether the program has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Signal sends a signal, such as SIGSTOP.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Pid returns the program's process ID.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Log returns the path of the file that the program logs to.
func (p *Process) Log() string { return p.log }

// await polls until ready returns nil. It fails if the program ends, or with the last error of ready.
func (p *Process) await(ctx context.Context, ready func(context.Context) error) error {
	for {
		err := ready(ctx)

		select {
		case <-p.done:
			return fmt.Errorf("start %s: it ended: %w\n%s", p.name, errors.Join(p.err, err), p.tail())
		default:
		}
		if err == nil {
			return nil
		}

		select {
		case <-p.done:
		case <-ctx.Done():
			return fmt.Errorf("start %s: %w: %w\n%s", p.name, context.Cause(ctx), err, p.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tail returns the last lines of the log.
func (p *Process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
