// Package supervisor keeps the manager and the orchestrator of a node running: it starts
// one that dies again, and ends both in order.
package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/runclock"
)

// Options say what is run.
type Options struct {
	// Binary is the program, whose verbs manager and orchestrator are. Args follow both
	// verbs, OrchestratorArgs the orchestrator's.
	Binary                 string
	Args, OrchestratorArgs []string
	Environment            []string
	// Patience is how long each may take to end.
	Patience time.Duration
	// Lend gives each orchestrator what it inherits.
	Lend Lender
	Log  zerolog.Logger
}

// Lender gives a child what it inherits; started is called once it has been started, or
// could not be.
type Lender func(child *exec.Cmd) (started func(), err error)

// Run keeps a manager and an orchestrator running until ctx ends or one of them cannot go
// on. The manager is ended first: it needs the processes to answer what it has accepted.
// For a child that ended by itself the error is its *exec.ExitError: it has said why.
func Run(ctx context.Context, o Options) error {
	managerCtx, stopManager := context.WithCancel(context.Background())
	defer stopManager()
	orchestratorCtx, stopOrchestrator := context.WithCancel(context.Background())
	defer stopOrchestrator()
	manager, orchestrator := make(chan error, 1), make(chan error, 1)
	start := func(ctx context.Context, verb string, ended chan<- error, lend Lender, more ...string) {
		err := o.keep(ctx, slices.Concat([]string{verb}, o.Args, more), lend)
		if err != nil && !endedByItself(err) {
			err = fmt.Errorf("%s: %w", verb, err)
		}
		ended <- err
	}
	go start(orchestratorCtx, "orchestrator", orchestrator, o.Lend, o.OrchestratorArgs...)
	go start(managerCtx, "manager", manager, nil)
	select {
	case err := <-manager:
		stopOrchestrator()
		return cmp.Or(err, <-orchestrator)
	case err := <-orchestrator:
		// The manager answers what it can without processes.
		stopManager()
		return cmp.Or(err, <-manager)
	case <-ctx.Done():
	}
	stopManager()
	err := <-manager
	stopOrchestrator()
	return cmp.Or(err, <-orchestrator)
}

// endedByItself reports whether an error is the exit status of a child that no signal
// ended.
func endedByItself(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Exited()
}

// A child that lived shorter than this when it failed will fail again: its error
// is Run's.
const shortLife = 2 * time.Second

// keep runs a child and starts it again when it dies, until ctx ends; then it
// terminates it and waits.
func (o *Options) keep(ctx context.Context, args []string, lend Lender) error {
	// The children of this thread die with it (PDEATHSIG), so it stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		child, err := o.start(args, lend)
		if err != nil {
			return fmt.Errorf("start: %w", err)
		}
		started := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- child.Wait() }()
		select {
		case err := <-ended:
			short := time.Since(started) < shortLife
			if short && endedByItself(err) {
				return err // it said why, and would again
			}
			if short {
				time.Sleep(shortLife) // killed, and perhaps again
			}
			o.Log.Error().Err(err).Str("child", args[0]).Msg("child ended; restarting it")
		case <-ctx.Done():
			return o.end(child, ended)
		}
	}
}

// start starts a child, which is this thread's.
func (o *Options) start(args []string, lend Lender) (*exec.Cmd, error) {
	child := exec.Command(o.Binary, args...)
	child.Stdout, child.Stderr, child.Env = os.Stdout, os.Stderr, o.Environment
	// A group of its own: Ctrl-C reaches the supervisor, which ends its children in order.
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	lent := func() {}
	if lend != nil {
		var err error
		if lent, err = lend(child); err != nil {
			return nil, err
		}
	}
	err := child.Start()
	lent()
	return child, err
}

// end terminates a child and waits for its end.
func (o *Options) end(child *exec.Cmd, ended <-chan error) error {
	child.Process.Signal(syscall.SIGTERM)
	late, cancel := runclock.Process().WithTimeout(context.Background(), o.Patience)
	defer cancel()
	select {
	case err := <-ended:
		return err
	case <-late.Done():
		child.Process.Kill()
		return fmt.Errorf("killed: did not end within %s after SIGTERM", o.Patience)
	}
}
