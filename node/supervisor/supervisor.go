// Package supervisor keeps the manager, the orchestrator and the gateway of a node running. It
// restarts a process that dies, and stops them in order.
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

	"github.com/penstock/penstock/control/oomscore"
	"github.com/penstock/penstock/control/runclock"
)

// Options describe the processes to run.
type Options struct {
	// Binary is the program, with the verbs manager, orchestrator and gateway. Args follow
	// each verb. OrchestratorArgs follow only the orchestrator's.
	Binary                 string
	Args, OrchestratorArgs []string
	Environment            []string
	// Gateway also starts a gateway. The node does not depend on it.
	Gateway bool
	// Patience is the max time for each process to exit.
	Patience time.Duration
	// Inherit prepares each orchestrator before its start.
	Inherit Inheritance
	Log     zerolog.Logger
}

// Inheritance adds the files that a child inherits. The supervisor calls started after it has
// started the child, or has failed to.
type Inheritance func(child *exec.Cmd) (started func(), err error)

// Run keeps the node's processes running until ctx ends, or until the manager or the orchestrator
// fails and a restart would not help. It stops the gateway first, because the gateway needs the
// manager for the requests that it has accepted. In the same way, the manager needs the functions'
// processes. If a child ended by itself, the error is its *exec.ExitError: the child has already
// reported the reason.
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
		// Without processes, the manager still answers what it can.
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

const gatewayVerb = "gateway"

// gatewayPause is the time before a restart of the gateway.
const gatewayPause = 5 * time.Second

// keepGateway keeps a gateway running until end is called, and only logs its failures. end
// returns when the gateway has exited. It may be called several times.
func (o *Options) keepGateway() (end func()) {
	if !o.Gateway {
		return func() {}
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := o.keep(ctx, append([]string{gatewayVerb}, o.Args...), nil); err != nil {
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

// endedByItself reports whether an error is the exit status of a child that no signal ended.
func endedByItself(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Exited()
}

// shortLife is the min lifetime of a child whose failure is worth a restart. A child that fails sooner
// would fail again, so Run returns its error.
const shortLife = 2 * time.Second

// keep runs a child and restarts it when it dies. When ctx ends, it terminates the child and
// waits.
func (o *Options) keep(ctx context.Context, args []string, inherit Inheritance) error {
	// The kernel ends the children of a thread with the thread (PDEATHSIG), so keep the
	// thread.
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
				return err // the child reported the reason and would fail again
			}
			if short {
				time.Sleep(shortLife) // the child was killed, and may be killed again
			}
			o.Log.Error().Err(err).Str("child", args[0]).Msg("child ended; restarting it")
		case <-ctx.Done():
			return o.end(child, ended)
		}
	}
}

// start starts a child from this thread.
func (o *Options) start(args []string, inherit Inheritance) (*exec.Cmd, error) {
	child := exec.Command(o.Binary, args...)
	child.Stdout, child.Stderr, child.Env = os.Stdout, os.Stderr, o.Environment
	// A separate process group: Ctrl-C reaches only the supervisor, which ends its children in
	// order.
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if args[0] == gatewayVerb {
		// The gateway lowers its priority. If the kernel groups tasks by session (autogroup, sched(7)),
		// that needs a new session. A session is also a process group.
		child.SysProcAttr.Setpgid, child.SysProcAttr.Setsid = false, true
	}
	started := func() {}
	if inherit != nil {
		var err error
		if started, err = inherit(child); err != nil {
			return nil, err
		}
	}
	err := child.Start()
	started()
	if err == nil && args[0] != "manager" {
		_ = oomscore.Set(child.Process.Pid, oomscore.Helper) // it may have ended
	}
	return child, err
}

// end terminates a child and waits until it has exited.
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
