package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda/yield"
	"github.com/penstock/penstock/orchestrator/cgroup"
)

// Command is a program to run as a guest.
type Command struct {
	// Path is the program, and Args its arguments, with its name first.
	Path string
	Args []string
	Name string // of the guest; empty: the program's
	// Environment is added to this process's.
	Environment []string
	MemoryBytes int64  // max GPU memory inside MPS, else main memory; 0: no limit
	Own         bool   // outside MPS
	Device      string // the name of a device, or a GPU's UUID; empty: the node chooses
	// User is the program's user; nil: this process's, or the node's choice for root.
	User *control.GuestUser
	// Swap is the swap library, which lets the program's memory leave the GPU; empty: it stays.
	Swap string
	// Self is a binary that calls MaybeLaunch.
	Self string
	// Stdin, Stdout and Stderr are the program's. Run also writes its own lines to Stderr.
	Stdin, Stdout, Stderr *os.File
}

// request describes the command for the orchestrator.
func (c *Command) request() *control.GuestRun {
	sum := sha256.Sum256([]byte(strings.Join(append([]string{c.Path}, c.Args[1:]...), "\x00")))
	text := strings.Join(c.Args, " ")
	if len(text) > control.MaxGuestCommand {
		text = text[:control.MaxGuestCommand]
	}
	name := c.Name
	if name == "" {
		name = NameOf(c.Path)
	}
	return &control.GuestRun{
		Name: name, Command: strings.ToValidUTF8(text, "?"), Key: hex.EncodeToString(sum[:]), MemoryBytes: c.MemoryBytes, Own: c.Own, Device: c.Device, Swap: c.Swap != "", User: c.User,
	}
}

// replaced are the variables of the environment that the place sets.
var replaced = []string{"CUDA_MPS_", "CUDA_VISIBLE_DEVICES="}

// environment is this process's, with those of the command and its place.
func (c *Command) environment(p *control.GuestPlace) []string {
	env := os.Environ()
	if len(p.Environment) > 0 {
		env = slices.DeleteFunc(env, func(e string) bool {
			return slices.ContainsFunc(replaced, func(prefix string) bool { return strings.HasPrefix(e, prefix) })
		})
	}
	env = append(env, c.Environment...)
	for name, value := range p.Environment {
		env = append(env, name+"="+value)
	}
	return append(env, control.GuestVariable+"="+p.Token)
}

// forwarded are the signals that Run passes on to the program. The terminal itself sends those of
// fromTerminal to the program, which is in the same process group.
var (
	forwarded    = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2}
	fromTerminal = []os.Signal{syscall.SIGINT, syscall.SIGQUIT}
)

// stopTimeout is the time from SIGTERM to SIGKILL if the node has ended.
const stopTimeout = 5 * time.Second

// endTimeout is how long Run waits until the orchestrator has ended the rest of the guest.
const endTimeout = 2 * killTimeout

// Result is how a program ended.
type Result struct {
	Status int            // as a shell would return it
	Signal syscall.Signal // that ended it, or 0
}

// Run runs a program as a guest until it has ended. With an error, the program was not started. Run takes
// over link and the process's signals.
func Run(link *control.GuestLink, c Command) (Result, error) {
	defer link.Close()
	// The program gets a signal when the thread ends that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 16)
	for _, sig := range forwarded {
		if !signal.Ignored(sig) { // nohup
			signal.Notify(signals, sig)
		}
	}
	defer func() {
		signal.Stop(signals)
		close(signals)
	}()

	if err := link.Send(control.GuestOrder{Run: c.request()}); err != nil {
		return Result{}, err
	}
	answer, err := receive(link)
	if err == nil && answer.Place == nil {
		err = control.ErrBadMessage
	}
	if err != nil {
		return Result{}, err
	}
	place := answer.Place
	if place.User != nil && os.Geteuid() != 0 {
		return Result{}, fmt.Errorf("run guest: only root can run it as user %s", place.User.Name)
	}

	cmd, gate, err := c.start(place)
	if err != nil {
		return Result{}, err
	}
	defer gate.Close()
	if answer, err = begin(link, cmd.Process.Pid); err != nil {
		gate.Close()
		_ = cmd.Wait() // the launcher ends with the gate
		return Result{}, err
	}
	if place.User != nil && c.User == nil {
		fmt.Fprintf(c.Stderr, "penstock run: the program runs as user %s\n", place.User.Name)
	}
	for _, line := range answer.Go.Missing {
		fmt.Fprintln(c.Stderr, "penstock run:", line)
	}
	group := groupOf(cmd.Process.Pid, place.Token) // the program could leave it
	if err := json.NewEncoder(gate).Encode(c.launch(place)); err != nil {
		fmt.Fprintln(c.Stderr, "penstock run: start launcher:", err)
	}
	gate.Close()

	var ended atomic.Bool
	gone, done := make(chan struct{}), make(chan struct{}, 1)
	go func() {
		defer close(gone)
		c.follow(link, cmd.Process, group, &ended, done)
	}()
	go forward(signals, cmd.Process, func() {
		select {
		case <-done: // of a signal that did not wait so long
		default:
		}
		if link.Send(control.GuestOrder{Ending: true}) != nil {
			return
		}
		select {
		case <-done:
		case <-gone:
		case <-time.After(endingTimeout):
		}
	})
	_ = cmd.Wait() // ProcessState has the result
	ended.Store(true)
	_ = link.CloseWrite()
	select {
	case <-gone:
	case <-time.After(endTimeout):
	}
	return resultOf(cmd.ProcessState), nil
}

// answerTimeout bounds the wait for an answer of the node, during which signals have no effect.
const answerTimeout = 30 * time.Second

// receive returns the orchestrator's answer, or its error.
func receive(link *control.GuestLink) (a control.GuestAnswer, err error) {
	if err := link.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return a, fmt.Errorf("run guest: %w", err)
	}
	defer link.SetReadDeadline(time.Time{})
	err = link.Receive(&a)
	switch {
	case errors.Is(err, io.EOF):
		return a, errors.New("run guest: the node closed the connection; it may have too many guests")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return a, fmt.Errorf("run guest: the node has not answered for %v; see its log", answerTimeout)
	case err != nil:
		return a, fmt.Errorf("run guest: %w", err)
	case a.Error != "":
		return a, errors.New(a.Error)
	case a.Ended != "":
		return a, errors.New("run guest: " + a.Ended)
	}
	return a, nil
}

// launch says how the launcher becomes the program.
func (c *Command) launch(p *control.GuestPlace) launch {
	l := launch{Path: []byte(c.Path), User: p.User, CPUs: p.CPUs, Parent: os.Getpid(), Swap: []byte(c.Swap)}
	for _, arg := range c.Args {
		l.Args = append(l.Args, []byte(arg))
	}
	if p.Environment[yield.FileVariable] != "" {
		library, err := yield.Library(c.Self)
		if err != nil {
			fmt.Fprintln(c.Stderr, "penstock run: the program does not wait for functions:", err)
		}
		l.Yield = []byte(library)
	}
	return l
}

// start starts the launcher, which waits at the gate.
func (c *Command) start(p *control.GuestPlace) (*exec.Cmd, *os.File, error) {
	theirs, gate, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("make gate: %w", err)
	}
	defer theirs.Close()
	cmd := &exec.Cmd{
		Path: c.Self, Args: []string{c.Self, verb}, Env: c.environment(p), ExtraFiles: []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}
	// Without this check a nil file would become an interface that is not nil.
	if c.Stdin != nil {
		cmd.Stdin = c.Stdin
	}
	if c.Stdout != nil {
		cmd.Stdout = c.Stdout
	}
	if c.Stderr != nil {
		cmd.Stderr = c.Stderr
	}
	if err := cmd.Start(); err != nil {
		gate.Close()
		return nil, nil, fmt.Errorf("start launcher: %w", err)
	}
	return cmd, gate, nil
}

// begin reports the launcher, and waits until it may go on.
func begin(link *control.GuestLink, pid int) (control.GuestAnswer, error) {
	if err := link.Send(control.GuestOrder{Started: pid}); err != nil {
		return control.GuestAnswer{}, err
	}
	a, err := receive(link)
	if err == nil && a.Go == nil {
		err = control.ErrBadMessage
	}
	return a, err
}

// groupOf returns the group of a launcher that waits: its control group if it has one.
func groupOf(pid int, token string) Group {
	if group := cgroup.FindGuest(pid, token); group != nil {
		return group
	}
	return Marked{token}
}

// endingTimeout is how long a signal that ends the program waits for the end of its work on the GPU.
const endingTimeout = time.Second

// follow prints why the orchestrator ends the guest, until the orchestrator closes the connection. If it
// does so while the program runs, nothing else ends the guest.
func (c *Command) follow(link *control.GuestLink, p *os.Process, group Group, ended *atomic.Bool, done chan<- struct{}) {
	reason := ""
	for {
		var a control.GuestAnswer
		if err := link.Receive(&a); err != nil {
			break
		}
		if a.Done != "" {
			select {
			case done <- struct{}{}:
			default:
			}
		}
		if a.Ended != "" {
			reason = a.Ended
			fmt.Fprintf(c.Stderr, "penstock run: %s; ending %s\n", reason, c.Path)
		}
	}
	if ended.Load() {
		return
	}
	if reason == "" {
		fmt.Fprintf(c.Stderr, "penstock run: the node's orchestrator ended; ending %s\n", c.Path)
	}
	terminate(group)
	for deadline := time.Now().Add(stopTimeout); !ended.Load() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	_ = group.Kill()
	_ = p.Kill()
	_ = group.Remove() // else the next orchestrator does so
}

// forward passes signals on to the program. It calls ending before a signal that the program does not handle.
func forward(signals <-chan os.Signal, p *os.Process, ending func()) {
	for sig := range signals {
		if slices.Contains(fromTerminal, sig) && inForeground() {
			continue
		}
		if number, ok := sig.(syscall.Signal); ok && !survives(p.Pid, number) {
			ending()
		}
		_ = p.Signal(sig) // it may have ended
	}
}

// inForeground reports whether the terminal sends its signals to this process's group.
func inForeground() bool {
	terminal, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer terminal.Close()
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// resultOf says how a program ended.
func resultOf(state *os.ProcessState) Result {
	if wait, ok := state.Sys().(syscall.WaitStatus); ok && wait.Signaled() {
		return Result{Status: statusSignalBase + int(wait.Signal()), Signal: wait.Signal()}
	}
	return Result{Status: state.ExitCode()}
}
