// Package supervisor keeps the manager, the orchestrator and the gateway of a node running: it
// starts one that dies again, and ends them in order.
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
	// Binary is the program, with the verbs manager, orchestrator and gateway. Args follow
	// each verb, OrchestratorArgs the orchestrator's.
	Binary                 string
	Args, OrchestratorArgs []string
	Environment            []string
	// Gateway starts a gateway, too. The node does not depend on it.
	Gateway bool
	// Patience is how long each may take to end.
	Patience time.Duration
	// Inherit gives each orchestrator what it inherits.
	Inherit Inheritance
	Log     zerolog.Logger
}

// Inheritance gives a child what it inherits; started is called once it has been started, or
// could not be.
type Inheritance func(child *exec.Cmd) (started func(), err error)

// Run keeps the node's processes running until ctx ends, or the manager or the orchestrator
// cannot go on. The gateway is ended first: it needs the manager to answer what it has
// accepted, as the manager needs the processes.
// For a child that ended by itself the error is its *exec.ExitError: it has said why.
func Run(ctx context.Context, o Options) error {
	managerCtx, stopManager := context.WithCancel(context.Background())
	defer stopManager()
	orchestratorCtx, stopOrchestrator := context.WithCancel(context.Background())
	defer stopOrchestrator()
	manager, orchestrator := make(chan error, 1), make(chan error, 1)
	start := func(ctx context.Context, verb string, ended chan<- error, inherit Inheritance, more ...string) {
		err := o.keep(ctx, slices.Concat([]string{verb}, o.Args, more), inherit)
		if err != nil && !endedByItself(err) {
			err = fmt.Errorf("%s: %w", verb, err)
		}
		ended <- err
	}
	endGateway := o.keepGateway()
	defer endGateway()
	go start(orchestratorCtx, "orchestrator", orchestrator, o.Inherit, o.OrchestratorArgs...)
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
	endGateway()
	stopManager()
	err := <-manager
	stopOrchestrator()
	return cmp.Or(err, <-orchestrator)
}

// gatewayPause is the time before a gateway that ended is started again.
const gatewayPause = 5 * time.Second

// keepGateway keeps a gateway running until end is called. Its failures are logged only. end
// returns when the gateway has ended, and may be called again.
func (o *Options) keepGateway() (end func()) {
	if !o.Gateway {
		return func() {}
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := o.keep(ctx, append([]string{"gateway"}, o.Args...), nil); err != nil {
				o.Log.Error().Err(err).Msg("gateway ended; the node runs without it until it is started again")
			}
			select {
			case <-time.After(gatewayPause):
			case <-ctx.Done():
			}
		}
	}()
	return func() {
		stop()
		<-ended
	}
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
func (o *Options) keep(ctx context.Context, args []string, inherit Inheritance) error {
	// The children of this thread die with it (PDEATHSIG), so it stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		child, err := o.start(args, inherit)
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
func (o *Options) start(args []string, inherit Inheritance) (*exec.Cmd, error) {
	child := exec.Command(o.Binary, args...)
	child.Stdout, child.Stderr, child.Env = os.Stdout, os.Stderr, o.Environment
	// A group of its own: Ctrl-C reaches the supervisor, which ends its children in order.
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := func() {}
	if inherit != nil {
		var err error
		if started, err = inherit(child); err != nil {
			return nil, err
		}
	}
	err := child.Start()
	started()
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
