package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/configs/configfile"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/onnx"
	modelstore "github.com/penstock/penstock/libml/onnx/prepared"
	"github.com/penstock/penstock/libml/python"
	"github.com/penstock/penstock/manager"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/keeper"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/shm/cpuset"
)

// nodeFlags are what up, manager and orchestrator have in common.
type nodeFlags struct {
	config  string
	dir     string
	verbose bool
	unread  error  // why the configuration file cannot be read, if begin goes on without
	run     string // the run of `penstock up` that started this process; empty if none did
	cmd     *cobra.Command
}

func (n *nodeFlags) register(cmd *cobra.Command) {
	n.cmd = cmd
	cmd.Flags().StringVarP(&n.config, "config", "c", "", "configuration file (YAML); the built-in one if left out")
	cmd.Flags().StringVar(&n.dir, "runtime-dir", "", "folder for the sockets between this node's processes")
	cmd.Flags().BoolVarP(&n.verbose, "verbose", "v", false, "log every process's states")
}

// takeRun is for the verbs that up starts.
func (n *nodeFlags) takeRun() {
	n.run = os.Getenv(runVariable)
	os.Unsetenv(runVariable) // the processes of functions do not inherit it
}

// runVariable names one run of up in the environment of the managers and orchestrators that it
// starts: they go on with what the one before them wrote. Unlike a command line, only this user
// can read it.
const runVariable = "PENSTOCK_RUN"

// begin is load, and opens the log, which end ends.
func (n *nodeFlags) begin(name string) (c configs.Config, log zerolog.Logger, end func(), err error) {
	c, unread, err := n.load()
	if err != nil {
		return c, zerolog.Nop(), nil, err
	}
	log, end = openLog(c.Log, name)
	if n.unread = unread; unread != nil {
		log.Error().Err(unread).Msg("configuration cannot be read; going on with what was last followed of it")
	}
	return c, log, end, nil
}

// load is read, and prepares the runtime folder.
func (n *nodeFlags) load() (c configs.Config, unread, err error) {
	if c, unread, err = n.read(); err != nil {
		return c, nil, err
	}
	folder, err := control.MakeRuntimeDir(c.RuntimeDir)
	if err != nil {
		return c, nil, err
	}
	c.RuntimeDir = folder.Path()
	folder.Close()
	return c, unread, nil
}

// read reads the configuration, as configfile.Read, and changes nothing.
func (n *nodeFlags) read() (c configs.Config, unread, err error) {
	if c, unread, err = configfile.Read(n.config, n.dir, n.run); err != nil {
		return c, nil, err
	}
	if c.Lab, err = configs.ReadLab(); err != nil {
		return c, nil, err
	}
	logsAs(n.cmd, c.Log.Format)
	if n.dir != "" {
		c.RuntimeDir = n.dir
	}
	if c.RuntimeDir == "" {
		c.RuntimeDir = control.DefaultRuntimeDir()
	}
	if c.RuntimeDir, err = filepath.Abs(c.RuntimeDir); err != nil {
		return c, nil, fmt.Errorf("find runtime folder: %w", err)
	}
	if n.verbose {
		c.Log.Level = "debug"
	}
	return c, unread, nil
}

func managerCommand() *cobra.Command {
	var flags nodeFlags
	cmd := &cobra.Command{
		Use:     "manager",
		Short:   "Run the IF Manager: packets in, batches out, shares",
		Example: `  penstock manager --config node.yaml    # and beside it: penstock orchestrator --config node.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags.takeRun()
			c, log, end, err := flags.begin("manager")
			if err != nil {
				return err
			}
			defer end()
			return runManager(cmd.Context(), c, flags, log)
		},
	}
	flags.register(cmd)
	return cmd
}

func runManager(ctx context.Context, c configs.Config, flags nodeFlags, log zerolog.Logger) error {
	// From now on Go leaves it as it is, however few CPUs the process is pinned to; the manager
	// raises it as its data path wants.
	runtime.GOMAXPROCS(runtime.NumCPU())
	manager.RaiseProcess()
	shm.Spin = max(shm.Spin, c.BusyPoll)
	own, _ := orchestrator.IFCPUs(c.ReservedCPUs)
	if err := cpuset.Pin(own); err != nil {
		log.Warn().Err(err).Msg("the manager is not kept off the CPUs of the inference functions")
	}
	confined, err := sandboxOf(c)
	if err != nil {
		return err
	}
	user, sandboxed := processUser(confined)
	release := func() {}
	defer func() { release() }()
	return manager.Run(ctx, manager.Options{
		Config: c, Dir: c.RuntimeDir, FindModel: registry(c).Find, Log: log, Run: flags.run, Unread: flags.unread,
		ProcessUser: user, Sandbox: sandboxed,
	}, func(m *manager.Manager) {
		if r, err := control.RegisterNode(c.RuntimeDir); err != nil {
			log.Warn().Err(err).Msg("clients cannot find this node without --runtime-dir")
		} else {
			release = r
		}
		if c.File == "" {
			return // the built-in one stays as it is
		}
		dir := c.RuntimeDir // of a flag, perhaps
		keep := func(c configs.Config) {
			if flags.run == "" {
				return // nobody starts another in the place of this one
			}
			if err := configfile.Keep(dir, c); err != nil {
				log.Warn().Err(err).Msg("should the file become unreadable, a process that dies ends the node")
			}
		}
		keep(c)
		go configfile.Follow(ctx, m, c, keep, log)
	})
}

// keptFlag tells an orchestrator that up is the parent of its processes.
const keptFlag = "kept"

// connectKeeper goes on with what up holds. An up of another version, from before an
// upgrade, has ended what it held.
func connectKeeper(log zerolog.Logger) (keeper.Keeper, error) {
	k, err := keeper.Connect(os.NewFile(3, "keeper"))
	if errors.Is(err, keeper.ErrVersion) {
		log.Warn().Err(err).Msg("start processes anew; restart penstock up to let them outlive the orchestrator")
		return keeper.NewLocal(), nil
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}

func orchestratorCommand() *cobra.Command {
	var flags nodeFlags
	var kept bool
	cmd := &cobra.Command{
		Use:     "orchestrator",
		Short:   "Start, watch and stop the inference functions' processes",
		Example: `  penstock orchestrator --config node.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags.takeRun()
			c, log, end, err := flags.begin("orchestrator")
			if err != nil {
				return err
			}
			defer end()
			if err := haveDevice(c); err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find own binary: %w", err)
			}
			own, ifs := orchestrator.IFCPUs(c.ReservedCPUs)
			if err := cpuset.Pin(own); err != nil {
				log.Warn().Err(err).Msg("the orchestrator is not kept off the CPUs of the inference functions")
			}
			if err := python.SetEnvironment(); err != nil {
				return err
			}
			// Processes have another HOME, so they cannot look for the library themselves.
			if library, err := onnx.Library(); err == nil {
				if err := os.Setenv(onnx.LibraryVariable, library); err != nil {
					return fmt.Errorf("set %s: %w", onnx.LibraryVariable, err)
				}
			}
			o := orchestrator.Options{Dir: c.RuntimeDir, Log: log, Self: self, CPUs: ifs, Program: program}
			if o.Sandbox, err = sandboxOf(c); err != nil {
				return err
			}
			if o.Prepared, err = modelstore.DefaultDir(); err != nil {
				log.Warn().Err(err).Msg("no folder for prepared models; processes on a GPU prepare their own")
			}
			if kept {
				if o.Keeper, err = connectKeeper(log); err != nil {
					return err
				}
			}
			return orchestrator.Run(cmd.Context(), o)
		},
	}
	flags.register(cmd)
	cmd.Flags().BoolVar(&kept, keptFlag, false, "descriptor 3 is a keeper of processes")
	cmd.Flags().MarkHidden(keptFlag)
	return cmd
}

// program is the command of a framework that is a program of its own.
func program(framework string) ([]string, error) {
	if framework == models.PyTorch {
		return python.Command("penstock.pytorch")
	}
	return nil, fmt.Errorf("framework %s has no program", framework)
}

// haveDevice says, before anything is started, why there is no GPU of the name that
// the configuration wants.
func haveDevice(c configs.Config) error {
	if c.Device == configs.DeviceCPU || c.Device == configs.DeviceAuto {
		return nil
	}
	if err := orchestrator.StayOut(c.RuntimeDir); err != nil {
		return err
	}
	if _, err := cuda.Find(c.Device); err != nil {
		return fmt.Errorf("device %s: %w; `penstock doctor` says what is there, `device: auto` falls back to the CPU", c.Device, err)
	}
	return nil
}

func upCommand() *cobra.Command {
	var flags nodeFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run manager and orchestrator together",
		Long: `Runs the manager and the orchestrator as two processes and starts one that
dies again. An orchestrator goes on with the processes that run. A manager goes on
with the functions that it had last (penstock if), unless the configuration file has
been changed and can be read. SIGTERM or Ctrl-C drains: what was accepted is answered, then everything
ends.`,
		Example: `  penstock up
  penstock up --config configs/demo.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, log, end, err := flags.begin("up")
			if err != nil {
				return err
			}
			defer end()
			if flags.unread == nil {
				problems, err := checkFunctions(c)
				if err != nil {
					return err
				}
				if err := problems.Err(); err != nil {
					return err
				}
			}
			return up(cmd.Context(), flags, c, log)
		},
	}
	flags.register(cmd)
	return cmd
}

// up keeps a manager and an orchestrator running until ctx ends. The manager is
// ended first: it needs the processes to answer what it has accepted.
func up(ctx context.Context, flags nodeFlags, c configs.Config, log zerolog.Logger) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	args := []string{"--runtime-dir", c.RuntimeDir}
	if flags.config != "" {
		args = append(args, "--config", flags.config)
	}
	if flags.verbose {
		args = append(args, "--verbose")
	}
	managerCtx, stopManager := context.WithCancel(context.Background())
	defer stopManager()
	orchestratorCtx, stopOrchestrator := context.WithCancel(context.Background())
	defer stopOrchestrator()
	manager, orchestrator := make(chan error, 1), make(chan error, 1)
	environment := append(os.Environ(), runVariable+"="+rand.Text())
	// The inference functions' processes are this process's children, so that they outlive
	// an orchestrator that crashes.
	processes := keeper.NewLocal()
	defer processes.Close()
	start := func(ctx context.Context, verb string, ended chan<- error, lend lender, more ...string) {
		err := keep(ctx, log, self, slices.Concat([]string{verb}, args, more), environment, 5*c.DrainTimeout, lend)
		var status exitStatus
		if err != nil && !errors.As(err, &status) {
			err = fmt.Errorf("%s: %w", verb, err)
		}
		ended <- err
	}
	go start(orchestratorCtx, "orchestrator", orchestrator, lendKeeper(processes, log), "--"+keptFlag)
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
	err = <-manager
	stopOrchestrator()
	return cmp.Or(err, <-orchestrator)
}

// lender gives a child what it inherits; started is called once it has been started, or
// could not be.
type lender func(child *exec.Cmd) (started func(), err error)

// lendKeeper has a child go on with the processes of the one before.
func lendKeeper(k *keeper.Local, log zerolog.Logger) lender {
	return func(child *exec.Cmd) (func(), error) {
		ours, theirs, err := keeper.SocketPair()
		if err != nil {
			return nil, err
		}
		child.ExtraFiles = []*os.File{theirs}
		go func() {
			if err := k.Serve(ours); err != nil {
				log.Warn().Err(err).Msg("serve orchestrator")
			}
		}()
		return func() { theirs.Close() }, nil
	}
}

// said is how a child ended: one that ended by itself has said why.
func said(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exitStatus(exit.ExitCode())
	}
	return err
}

// A child that lived shorter than this when it failed will fail again: its error
// is up's.
const shortLife = 2 * time.Second

// keep runs a child and starts it again when it dies, until ctx ends; then it
// terminates it and waits, at most for patience.
func keep(ctx context.Context, log zerolog.Logger, self string, args, environment []string, patience time.Duration, lend lender) error {
	// The children of this thread die with it (PDEATHSIG), so it stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		child := exec.Command(self, args...)
		child.Stdout, child.Stderr, child.Env = os.Stdout, os.Stderr, environment
		// A group of its own: Ctrl-C reaches up, which ends its children in order.
		child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
		lent := func() {}
		if lend != nil {
			var err error
			if lent, err = lend(child); err != nil {
				return fmt.Errorf("start: %w", err)
			}
		}
		started := time.Now()
		err := child.Start()
		lent()
		if err != nil {
			return fmt.Errorf("start: %w", err)
		}
		ended := make(chan error, 1)
		go func() { ended <- child.Wait() }()
		select {
		case err := <-ended:
			short := time.Since(started) < shortLife
			if status := said(err); short && status != err {
				return status // it said why, and would again
			}
			if short {
				time.Sleep(shortLife) // killed, and perhaps again
			}
			log.Error().Err(err).Str("child", args[0]).Msg("child died; starting it again")
		case <-ctx.Done():
			child.Process.Signal(syscall.SIGTERM)
			late, cancel := runclock.Process().WithTimeout(context.Background(), patience)
			defer cancel()
			select {
			case err := <-ended:
				return said(err)
			case <-late.Done():
				child.Process.Kill()
				return fmt.Errorf("did not end within %s of SIGTERM and was killed", patience)
			}
		}
	}
}
